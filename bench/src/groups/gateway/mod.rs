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

/// A line for each protocol.
type Lines = [Line; ROWS.len()];

/// What is known of a protocol.
#[derive(Clone, Copy, Default)]
struct Line {
    /// The medians, a column for each contestant.
    medians: [Run; Who::ALL.len()],
    /// The medians of the ratios to nginx in the same round: what changes from minute to minute is in both.
    ratios: [Run; Who::ALL.len()],
}

fn run(group: &'static str) -> Findings {
    let lines = match measured() {
        Ok(lines) => lines,
        Err(why) => {
            println!("skipped: {why}\n");
            return Findings { goals: goals(None), ..Findings::default() };
        }
    };
    let printed = ROWS.iter().zip(&lines).map(|((name, _), line)| {
        let figure = |who: Who| {
            let (run, ratio) = (line.medians[who as usize], line.ratios[who as usize]);
            let figures = [(run.rate, 0, ratio.rate), (run.p99, 2, ratio.p99), (run.paced, 2, ratio.paced)];
            figures.map(|(figure, digits, ratio)| match who {
                Who::Nginx => format!("{figure:.digits$}"),
                Who::Tollgate => format!("{figure:.digits$} ({ratio:.3})"),
            })
        };
        let whats = ["requests/s", "p99 in ms", "p99 in ms at 20,000/s"];
        let lines = whats.into_iter().zip(figure(Who::Nginx)).zip(figure(Who::Tollgate));
        lines.map(move |((what, nginx), own)| vec![format!("{name}, {what}"), nginx, own])
    });
    println!("{}\n", table(&["", Who::Nginx.name(), Who::Tollgate.name()], printed.flatten()));
    let mut found = Findings { goals: goals(Some(&lines)), ..Findings::default() };
    for ((name, _), line) in ROWS.iter().zip(&lines) {
        for who in Who::ALL {
            let (run, ratios) = (line.medians[who as usize], line.ratios[who as usize]);
            for (value, ratio, unit, paced) in [
                (run.rate, ratios.rate, "requests/s", false),
                (run.p99, ratios.p99, "ms", false),
                (run.paced, ratios.paced, "ms", true),
            ] {
                let ratio_to = (who != Who::Nginx).then(|| Ratio { who: Who::Nginx.name().into(), ratio });
                let params = object(json!({ "connections": CONNECTIONS, "statistic": "median", "paced": paced }));
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

fn goals(lines: Option<&Lines>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (at, (name, _)) in ROWS.iter().enumerate() {
        let ratio = |figure: fn(&Run) -> f64| lines.map(|lines| figure(&lines[at].ratios[Who::Tollgate as usize]));
        for (what, bound, measured) in [
            ("requests/s", Bound::AtLeast(0.8), ratio(|run| run.rate)),
            ("p99", Bound::AtMost(1.0), ratio(|run| run.p99)),
            ("p99 at 20,000/s", Bound::AtMost(1.0), ratio(|run| run.paced)),
        ] {
            let text = format!("the gateway, {name}: {what} / nginx with limit_req");
            goals.push(Goal { text, bound, measured, because: "it could not be run" });
        }
    }
    goals
}

fn measured() -> Result<Lines, String> {
    let upstream = Upstream::start()?;
    let wrk = Wrk::find(&upstream.directory)?;
    let mut lines = [Line::default(); ROWS.len()];
    for ((_, tls), line) in ROWS.into_iter().zip(&mut lines) {
        let servers = [Server::start(Who::Nginx, &upstream, tls)?, Server::start(Who::Tollgate, &upstream, tls)?];
        for server in &servers {
            wrk.warm_up(server)?;
        }
        let mut runs = [[Run::default(); RUNS]; Who::ALL.len()];
        for round in 0..RUNS {
            for (of, server) in runs.iter_mut().zip(&servers) {
                of[round] = wrk.measure(server)?;
            }
        }
        let nginx = runs[Who::Nginx as usize];
        for (who, runs) in runs.into_iter().enumerate() {
            line.medians[who] = median(runs);
            let ratio = |round: usize| {
                let (of, to) = (runs[round], nginx[round]);
                Run { rate: of.rate / to.rate, p99: of.p99 / to.p99, paced: of.paced / to.paced }
            };
            line.ratios[who] = median(std::array::from_fn(ratio));
        }
    }
    Ok(lines)
}

/// Of each figure by itself.
fn median(runs: [Run; RUNS]) -> Run {
    let middle = |figure: fn(&Run) -> f64| {
        let mut figures = runs.each_ref().map(figure);
        figures.sort_by(f64::total_cmp);
        figures[RUNS / 2]
    };
    Run { rate: middle(|run| run.rate), p99: middle(|run| run.p99), paced: middle(|run| run.paced) }
}
