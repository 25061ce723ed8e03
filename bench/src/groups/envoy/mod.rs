//! Envoy's rate limit service under h2load: the binary `ratekeeper` beside a bare tonic service
//! that decodes the same request and answers one full status, both with one runtime per core.

mod echo;
mod load;
#[path = "../../../../crates/ratekeeper-server/proto/mod.rs"]
mod proto;

pub(crate) use echo::{CHILD, run as child};

use super::Group;
use crate::harness::{is_quick, median};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{Competitor, H2load, Server};
use serde_json::json;

pub(super) const GROUP: Group = Group {
    name: "envoy",
    about: "ShouldRateLimit with one descriptor by h2load, 8 clients; in brackets: / bare",
    run,
};

/// The number of runs of each contestant, alternating.
const RUNS: usize = 5;

/// Concurrent requests of a client.
const STREAMS: [u32; 2] = [1, 32];

/// The medians: a line for each number of streams, a column for each contestant.
type Medians = [[f64; Competitor::ALL.len()]; STREAMS.len()];

fn run(group: &'static str) -> Findings {
    let medians = match measured() {
        Ok(medians) => medians,
        Err(error) => {
            println!("skipped: {error}\n");
            return Findings {
                goals: goals(None),
                ..Findings::default()
            };
        }
    };
    let bare = Competitor::Bare as usize;
    let lines = STREAMS.iter().zip(&medians).map(|(streams, rates)| {
        let figure = |competitor: Competitor| match competitor {
            Competitor::Bare => format!("{:.0}", rates[bare]),
            _ => format!(
                "{:.0} ({:.3})",
                rates[competitor as usize],
                rates[competitor as usize] / rates[bare]
            ),
        };
        vec![
            format!("8 clients × {streams}"),
            figure(Competitor::Bare),
            figure(Competitor::Ratekeeper),
        ]
    });
    println!(
        "{}\n",
        table(
            &[
                "requests/s",
                Competitor::Bare.name(),
                Competitor::Ratekeeper.name()
            ],
            lines
        )
    );
    let mut found = Findings {
        goals: goals(Some(&medians)),
        ..Findings::default()
    };
    for (streams, rates) in STREAMS.iter().zip(&medians) {
        for competitor in Competitor::ALL {
            let value = rates[competitor as usize];
            let ratio_to = (competitor != Competitor::Bare).then(|| Ratio {
                competitor: Competitor::Bare.name().into(),
                ratio: value / rates[bare],
            });
            let params = object(
                json!({ "clients": load::CLIENTS, "streams": streams, "statistic": "median" }),
            );
            let row = format!("8 clients × {streams}");
            found.rows.push(Row {
                group,
                row,
                competitor: competitor.name().into(),
                value,
                unit: "requests/s",
                ratio_to,
                params,
            });
        }
    }
    found
}

fn goals(medians: Option<&Medians>) -> Vec<Goal> {
    let goal = |(at, streams): (usize, &u32)| Goal {
        text: format!("ShouldRateLimit requests/s, 8 clients × {streams} / a bare tonic service"),
        bound: Bound::AtLeast(0.9),
        measured: medians.map(|rates| {
            rates[at][Competitor::Ratekeeper as usize] / rates[at][Competitor::Bare as usize]
        }),
        because: "it could not run",
    };
    STREAMS.iter().enumerate().map(goal).collect()
}

fn measured() -> Result<Medians, String> {
    let h2load = H2load::find()?;
    let servers = [
        Server::start(Competitor::Bare)?,
        Server::start(Competitor::Ratekeeper)?,
    ];
    let mut medians = [[0.0; Competitor::ALL.len()]; STREAMS.len()];
    for (streams, medians) in STREAMS.into_iter().zip(&mut medians) {
        let mut runs = [const { Vec::new() }; Competitor::ALL.len()];
        for server in &servers {
            h2load.load(server, streams, load::WARM_UP_CALLS)?;
        }
        for _ in 0..if is_quick() { 2 } else { RUNS } {
            for (of, server) in runs.iter_mut().zip(&servers) {
                of.push(h2load.load(server, streams, load::LENGTH)?);
            }
        }
        *medians = runs.map(median);
    }
    Ok(medians)
}
