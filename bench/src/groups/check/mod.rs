//! `POST /v1/check` under wrk: the binary `ratekeeper` beside a bare axum service that decodes the
//! same request and answers an object of the same size, both with one runtime per core.

mod echo;
mod load;

pub(crate) use echo::{CHILD, run as child};

use super::Group;
use crate::harness::median;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{Competitor, Server, Wrk};
use serde_json::json;

pub(super) const GROUP: Group = Group {
    name: "check",
    about: "POST /v1/check by wrk, 64 connections, under a limit that nobody meets; in brackets: / bare",
    run,
};

/// The number of runs of each contestant, alternating.
const RUNS: usize = 7;

/// If a server waits for its core for more than this part, requests per second depend more on the
/// machine than on the server.
const MIN_CORE_SHARE: f64 = 0.02;

/// One value for each contestant.
type PerCompetitor<T> = [T; Competitor::ALL.len()];

/// The result of one run.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Requests per second.
    rate: f64,
    /// Microseconds of processor time of the server per request.
    micros: f64,
    /// For which part of the run the server waited for its core, because another process had it.
    waited: f64,
}

fn run(group: &'static str) -> Findings {
    let runs = match measured() {
        Ok(runs) => runs,
        Err(error) => {
            println!("skipped: {error}\n");
            return Findings {
                goals: vec![goal(None)],
                ..Findings::default()
            };
        }
    };
    let medians = runs.map(|runs| {
        [
            median(runs.map(|run| run.rate)),
            median(runs.map(|run| run.micros)),
        ]
    });
    let [bare, ours] = medians;
    let beside =
        |at: usize, digits: usize| format!("{:.digits$} ({:.3})", ours[at], ours[at] / bare[at]);
    let lines = [
        vec![
            Competitor::Bare.name().to_owned(),
            format!("{:.0}", bare[0]),
            format!("{:.2}", bare[1]),
        ],
        vec![
            Competitor::Ratekeeper.name().to_owned(),
            beside(0, 0),
            beside(1, 2),
        ],
    ];
    println!(
        "{}\n",
        table(
            &["POST /v1/check", "requests/s", "µs of processor time"],
            lines.into_iter()
        )
    );
    let disturbed = runs
        .iter()
        .flatten()
        .filter(|run| run.waited > MIN_CORE_SHARE)
        .count();
    if disturbed > 0 {
        let all = RUNS * Competitor::ALL.len();
        println!(
            "not a quiet machine: in {disturbed} of {all} runs other processes used the server's core\n"
        );
    }
    let mut found = Findings {
        goals: vec![goal(Some(ours[0] / bare[0]))],
        ..Findings::default()
    };
    for (at, (row, unit)) in [
        ("requests a second", "requests/s"),
        ("processor time of a request", "µs"),
    ]
    .into_iter()
    .enumerate()
    {
        for (competitor, medians) in Competitor::ALL.into_iter().zip(&medians) {
            let value = medians[at];
            let ratio_to = (competitor != Competitor::Bare).then(|| Ratio {
                competitor: Competitor::Bare.name().into(),
                ratio: value / bare[at],
            });
            let waited = runs[competitor as usize].map(|run| run.waited);
            let params = json!({ "connections": load::CONNECTIONS, "statistic": "median", "waited": waited });
            let (row, competitor) = (row.into(), competitor.name().into());
            found.rows.push(Row {
                group,
                row,
                competitor,
                value,
                unit,
                ratio_to,
                params: object(params),
            });
        }
    }
    found
}

fn goal(measured: Option<f64>) -> Goal {
    Goal {
        text: "POST /v1/check requests/s / a bare axum JSON echo".into(),
        bound: Bound::AtLeast(0.85),
        measured,
        because: "it could not run",
    }
}

/// Returns the runs of each: A B A B …
fn measured() -> Result<PerCompetitor<[Run; RUNS]>, String> {
    let wrk = Wrk::find()?;
    let servers = [
        Server::start(Competitor::Bare)?,
        Server::start(Competitor::Ratekeeper)?,
    ];
    let mut runs = [[Run::default(); RUNS]; Competitor::ALL.len()];
    for server in &servers {
        wrk.load(server, load::WARM_UP_CALLS)?;
    }
    for round in 0..RUNS {
        for (of, server) in runs.iter_mut().zip(&servers) {
            of[round] = wrk.load(server, load::LENGTH)?;
        }
    }
    Ok(runs)
}
