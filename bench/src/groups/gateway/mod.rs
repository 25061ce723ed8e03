//! The gateway beside nginx: `tollgate proxy` and an nginx with `limit_req`, in front of the same nginx that answers 1 KB,
//! under wrk, in HTTP/1.1 and in TLS.

mod load;
mod servers;

use super::Group;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{CONNECTIONS, Run, Wrk};
use serde_json::json;
use servers::{Server, Upstream, Who};

pub(super) const GROUP: Group = Group {
    name: "gateway",
    about: "a proxy in front of nginx by wrk, 64 connections; in brackets: / nginx with limit_req",
    run,
};

/// Every contestant is under load so often, in turn.
const RUNS: usize = 7;

const ROWS: [(&str, bool); 2] = [("HTTP/1.1", false), ("TLS", true)];

/// The medians: a line for each protocol, a column for each contestant.
type Medians = [[Run; Who::ALL.len()]; ROWS.len()];

fn run(group: &'static str) -> Findings {
    let medians = match measured() {
        Ok(medians) => medians,
        Err(why) => {
            println!("skipped: {why}\n");
            return Findings { goals: goals(None), ..Findings::default() };
        }
    };
    let nginx = Who::Nginx as usize;
    let lines = ROWS.iter().zip(&medians).map(|((name, _), runs)| {
        let figure = |who: Who| {
            let Run { rate, p99 } = runs[who as usize];
            match who {
                Who::Nginx => format!("{rate:.0}, p99 {p99:.2} ms"),
                Who::Tollgate => format!(
                    "{rate:.0} ({:.3}), p99 {p99:.2} ms ({:.3})",
                    rate / runs[nginx].rate,
                    p99 / runs[nginx].p99
                ),
            }
        };
        vec![(*name).to_owned(), figure(Who::Nginx), figure(Who::Tollgate)]
    });
    println!("{}\n", table(&["requests/s", Who::Nginx.name(), Who::Tollgate.name()], lines));
    let mut found = Findings { goals: goals(Some(&medians)), ..Findings::default() };
    for ((name, _), runs) in ROWS.iter().zip(&medians) {
        for who in Who::ALL {
            let Run { rate, p99 } = runs[who as usize];
            for (value, other, unit) in [(rate, runs[nginx].rate, "requests/s"), (p99, runs[nginx].p99, "ms")] {
                let ratio_to =
                    (who != Who::Nginx).then(|| Ratio { who: Who::Nginx.name().into(), ratio: value / other });
                let params = object(json!({ "connections": CONNECTIONS, "statistic": "median" }));
                found.rows.push(Row {
                    group,
                    row: (*name).to_owned(),
                    who: who.name().into(),
                    value,
                    unit,
                    ratio_to,
                    params,
                });
            }
        }
    }
    found
}

fn goals(medians: Option<&Medians>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (at, (name, _)) in ROWS.iter().enumerate() {
        let ratio = |figure: fn(&Run) -> f64| {
            medians.map(|runs| figure(&runs[at][Who::Tollgate as usize]) / figure(&runs[at][Who::Nginx as usize]))
        };
        for (what, bound, measured) in [
            ("requests/s", Bound::AtLeast(0.8), ratio(|run| run.rate)),
            ("p99", Bound::AtMost(1.0), ratio(|run| run.p99)),
        ] {
            let text = format!("the gateway, {name}: {what} / nginx with limit_req");
            goals.push(Goal { text, bound, measured, because: "it could not be run" });
        }
    }
    goals
}

fn measured() -> Result<Medians, String> {
    let wrk = Wrk::find()?;
    let upstream = Upstream::start()?;
    let mut medians = [[Run::default(); Who::ALL.len()]; ROWS.len()];
    for ((_, tls), medians) in ROWS.into_iter().zip(&mut medians) {
        let servers = [Server::start(Who::Nginx, &upstream, tls)?, Server::start(Who::Tollgate, &upstream, tls)?];
        for server in &servers {
            wrk.load(server, load::WARM_UP)?;
        }
        let mut runs = [[Run::default(); RUNS]; Who::ALL.len()];
        for round in 0..RUNS {
            for (of, server) in runs.iter_mut().zip(&servers) {
                of[round] = wrk.load(server, load::LENGTH)?;
            }
        }
        for (median, runs) in medians.iter_mut().zip(runs) {
            let middle = |figure: fn(&Run) -> f64| {
                let mut figures = runs.each_ref().map(figure);
                figures.sort_by(f64::total_cmp);
                figures[RUNS / 2]
            };
            *median = Run { rate: middle(|run| run.rate), p99: middle(|run| run.p99) };
        }
    }
    Ok(medians)
}
