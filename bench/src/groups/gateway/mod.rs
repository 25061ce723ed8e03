//! The gateway beside nginx: `tollgate proxy` and an nginx with `limit_req`, in front of the same nginx that answers 1 KB,
//! under wrk, in HTTP/1.1 and in TLS.

mod load;
mod servers;

use super::Group;
use crate::harness::median;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{CONNECTIONS, Run, Ticks, Wrk};
use serde_json::json;
use servers::{Server, Upstream, Who};
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "gateway",
    about: "a proxy in front of nginx by wrk, 64 connections; in brackets: / nginx with limit_req",
    run,
};

/// So many rounds count, in which each contestant is under load, in turn.
const RUNS: usize = 7;

/// And as many are run until so many were undisturbed; else the least disturbed of them count.
const MOST_RUNS: usize = 13;

/// More of the machine's time with others, and the 99th percentile says more about them than about the proxy.
const UNDISTURBED: f64 = 0.01;

struct Protocol {
    name: &'static str,
    tls: bool,
    /// Each contestant has so many turns in a round, one after the other's, and the median of them counts.
    turns: usize,
    /// How long a turn is, and how long it is again at a pace.
    length: Duration,
}

const PROTOCOLS: [Protocol; 2] = [
    // Who else has the machine changes from second to second.
    Protocol { name: "HTTP/1.1", tls: false, turns: 5, length: Duration::from_secs(1) },
    // All connections shake hands at once, and who is done first waits for the others. That must be less than a percent of all,
    // or the 99th percentile tells of nothing else.
    Protocol { name: "TLS", tls: true, turns: 1, length: Duration::from_secs(5) },
];

/// A line for each protocol.
type Lines = [Line; PROTOCOLS.len()];

/// What is known of a protocol.
#[derive(Clone, Copy, Default)]
struct Line {
    /// The medians, a column for each contestant.
    medians: [Run; Who::ALL.len()],
    /// The medians of the ratios to nginx in the same round: what changes from minute to minute is in both.
    ratios: [Run; Who::ALL.len()],
}

/// Something that is told of a run.
struct Figure {
    name: &'static str,
    unit: &'static str,
    /// How many are printed after the point.
    digits: usize,
    of: fn(&Run) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure { name: "requests/s", unit: "requests/s", digits: 0, of: |run| run.rate },
    Figure { name: "p99 in ms", unit: "ms", digits: 2, of: |run| run.p99 },
    Figure { name: "p99 in ms at a pace", unit: "ms", digits: 2, of: |run| run.paced },
    Figure { name: "µs of a core a request", unit: "µs", digits: 1, of: |run| run.micros },
];

fn run(group: &'static str) -> Findings {
    let lines = match measured() {
        Ok(lines) => lines,
        Err(why) => {
            println!("skipped: {why}\n");
            return Findings { goals: goals(None), ..Findings::default() };
        }
    };
    let (mut rows, mut printed) = (Vec::new(), Vec::new());
    for (protocol, line) in PROTOCOLS.iter().zip(&lines) {
        for Figure { name, unit, digits, of } in FIGURES {
            let row = format!("{}, {name}", protocol.name);
            let [nginx, own] = Who::ALL.map(|who| of(&line.medians[who as usize]));
            let ratio = of(&line.ratios[Who::Tollgate as usize]);
            printed.push(vec![row.clone(), format!("{nginx:.digits$}"), format!("{own:.digits$} ({ratio:.3})")]);
            let params = object(json!({ "connections": CONNECTIONS, "statistic": "median" }));
            let to_nginx = Ratio { who: Who::Nginx.name().into(), ratio };
            for (who, value, ratio_to) in [(Who::Nginx, nginx, None), (Who::Tollgate, own, Some(to_nginx))] {
                let (row, params) = (row.clone(), params.clone());
                rows.push(Row { group, row, who: who.name().into(), value, unit, ratio_to, params });
            }
        }
    }
    println!("{}\n", table(&["", Who::Nginx.name(), Who::Tollgate.name()], printed.into_iter()));
    Findings { goals: goals(Some(&lines)), rows, ..Findings::default() }
}

fn goals(lines: Option<&Lines>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (at, Protocol { name, .. }) in PROTOCOLS.iter().enumerate() {
        let ratio = |figure: fn(&Run) -> f64| lines.map(|lines| figure(&lines[at].ratios[Who::Tollgate as usize]));
        for (what, bound, measured) in [
            ("requests/s", Bound::AtLeast(0.8), ratio(|run| run.rate)),
            ("p99", Bound::AtMost(1.0), ratio(|run| run.p99)),
            ("p99 at a pace", Bound::AtMost(1.0), ratio(|run| run.paced)),
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
    let mut lines = [Line::default(); PROTOCOLS.len()];
    for (protocol, line) in PROTOCOLS.iter().zip(&mut lines) {
        let mut rounds = Vec::new();
        while rounds.iter().filter(|round: &&Round| round.stolen <= UNDISTURBED).count() < RUNS
            && rounds.len() < MOST_RUNS
        {
            rounds.push(round(protocol, &upstream, &wrk, rounds.len() % 2)?);
        }
        rounds.sort_by(|one, other| one.stolen.total_cmp(&other.stolen));
        let all = rounds.len();
        rounds.truncate(RUNS);
        let worst = rounds.last().map_or(0.0, |round| round.stolen);
        if worst > UNDISTURBED {
            println!(
                "{}: not a quiet machine: in the least disturbed {RUNS} of {all} rounds others had up to {:.1} % of its time\n",
                protocol.name,
                worst * 100.0
            );
        }
        for who in Who::ALL {
            let of: Vec<Run> = rounds.iter().map(|round| round.runs[who as usize]).collect();
            let ratios = rounds.iter().map(|round| {
                let (of, to) = (round.runs[who as usize], round.runs[Who::Nginx as usize]);
                of_each(|figure| figure(&of) / figure(&to))
            });
            line.ratios[who as usize] = medians(&ratios.collect::<Vec<_>>());
            line.medians[who as usize] = medians(&of);
        }
    }
    Ok(lines)
}

/// What each contestant did in a round.
struct Round {
    runs: [Run; Who::ALL.len()],
    /// Which part of the machine's time others had meanwhile.
    stolen: f64,
}

/// Each has its turns, one after the other's; `first` goes first.
fn round(protocol: &Protocol, upstream: &Upstream, wrk: &Wrk, first: usize) -> Result<Round, String> {
    // New ones each time: where its memory happens to lie makes a process faster or slower for as long as it lives.
    let start = |who| Server::start(who, upstream, protocol.tls);
    let servers = [start(Who::Nginx)?, start(Who::Tollgate)?];
    for server in &servers {
        wrk.warm_up(server)?;
    }
    let before = Ticks::now();
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..protocol.turns {
        for at in [first, 1 - first] {
            turns[at].push(wrk.measure(&servers[at], protocol.length)?);
        }
    }
    let runs = turns.map(|turns| medians(&turns));
    Ok(Round { runs, stolen: Ticks::now().stolen_since(&before) })
}

/// Of each figure by itself.
fn medians(runs: &[Run]) -> Run {
    of_each(|figure| median(runs.iter().map(figure)))
}

fn of_each(made: impl Fn(fn(&Run) -> f64) -> f64) -> Run {
    Run {
        rate: made(|run| run.rate),
        p99: made(|run| run.p99),
        paced: made(|run| run.paced),
        micros: made(|run| run.micros),
    }
}
