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

/// So many rounds count, in which each contestant is under load, in turn.
const RUNS: usize = 7;

/// And as many are run until so many were undisturbed; else the least disturbed of them count.
const MOST_RUNS: usize = 15;

/// More of the machine's time with others, and the 99th percentile says more about them than about the proxy.
const UNDISTURBED: f64 = 0.01;

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
    for ((name, tls), line) in ROWS.into_iter().zip(&mut lines) {
        let mut rounds = Vec::new();
        while rounds.iter().filter(|round| disturbance(round) <= UNDISTURBED).count() < RUNS && rounds.len() < MOST_RUNS
        {
            // New ones each time: where its memory happens to lie makes a process faster or slower for as long as it lives.
            let servers = [Server::start(Who::Nginx, &upstream, tls)?, Server::start(Who::Tollgate, &upstream, tls)?];
            for server in &servers {
                wrk.warm_up(server)?;
            }
            // Each goes first in every second round.
            let first = rounds.len() % servers.len();
            let mut round = [Run::default(); Who::ALL.len()];
            for at in [first, 1 - first] {
                round[at] = wrk.measure(&servers[at])?;
            }
            rounds.push(round);
        }
        rounds.sort_by(|one, other| disturbance(one).total_cmp(&disturbance(other)));
        let all = rounds.len();
        rounds.truncate(RUNS);
        let worst = rounds.last().map_or(0.0, disturbance);
        if worst > UNDISTURBED {
            println!(
                "{name}: not a quiet machine: in the least disturbed {RUNS} of {all} rounds others had up to {:.1} % of its time\n",
                worst * 100.0
            );
        }
        for who in Who::ALL {
            line.medians[who as usize] = median(&rounds, |round| round[who as usize]);
            line.ratios[who as usize] = median(&rounds, |round| {
                let (of, to) = (round[who as usize], round[Who::Nginx as usize]);
                Run { rate: of.rate / to.rate, p99: of.p99 / to.p99, paced: of.paced / to.paced, stolen: 0.0 }
            });
        }
    }
    Ok(lines)
}

/// A run of each contestant.
type Round = [Run; Who::ALL.len()];

fn disturbance(round: &Round) -> f64 {
    round.iter().map(|run| run.stolen).fold(0.0, f64::max)
}

/// Of each figure by itself.
fn median(rounds: &[Round], of: impl Fn(&Round) -> Run) -> Run {
    let middle = |figure: fn(&Run) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(|round| figure(&of(round))).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let [rate, p99, paced, stolen] =
        [|run: &Run| run.rate, |run: &Run| run.p99, |run: &Run| run.paced, |run: &Run| run.stolen].map(middle);
    Run { rate, p99, paced, stolen }
}
