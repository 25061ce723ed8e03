//! The gateway beside nginx: `ratekeeper proxy` and an nginx with `limit_req`, in front of the same
//! nginx that answers 1 KB, under wrk, in HTTP/1.1 and in TLS; with larger bodies; and under
//! h2load, in HTTP/2.

mod load;
mod servers;

use super::Group;
use crate::harness::median;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{CONNECTIONS, Loader, Run, Ticks};
use serde_json::json;
use servers::{Server, Upstream, Who};
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "gateway",
    about: "a proxy in front of nginx by wrk and h2load, 64 connections; in brackets: / nginx with limit_req",
    run,
};

/// More of the machine's time with others, and the 99th percentile says more about them than about
/// the proxy.
const UNDISTURBED: f64 = 0.01;

/// How requests are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Get,
    /// With a body of 64 KB.
    Post,
    /// GET by h2load.
    Http2,
}

struct Workload {
    name: &'static str,
    load: Load,
    path: &'static str,
    /// Whether the answers are of the service of small chunks.
    chunks: bool,
    tls: bool,
    /// Whether it is measured again at a pace, and held against the goals.
    is_goal: bool,
    /// Rounds that count. Up to twice as many are run until enough were undisturbed; otherwise the
    /// least disturbed ones count.
    rounds: usize,
    /// Each contestant has so many turns in a round, one after the other's, and the median of them
    /// counts.
    turns: usize,
    /// How long a turn is, and how long it is again at a pace.
    length: Duration,
}

/// What most of them have in common.
const USUAL: Workload = Workload {
    name: "",
    load: Load::Get,
    path: "/",
    chunks: false,
    tls: false,
    is_goal: false,
    rounds: 5,
    turns: 3,
    length: Duration::from_secs(1),
};

const WORKLOADS: [Workload; 6] = [
    // Who else has the machine changes from second to second.
    Workload {
        name: "HTTP/1.1",
        is_goal: true,
        rounds: 7,
        turns: 5,
        ..USUAL
    },
    // All connections shake hands at once, and who is done first waits for the others. That must be
    // less than a percent of all, or the 99th percentile tells of nothing else.
    Workload {
        name: "TLS",
        tls: true,
        is_goal: true,
        rounds: 7,
        turns: 1,
        length: Duration::from_secs(5),
        ..USUAL
    },
    Workload {
        name: "64 KB in chunks of 1 KB",
        chunks: true,
        ..USUAL
    },
    Workload {
        name: "100 KB",
        path: "/large",
        ..USUAL
    },
    Workload {
        name: "POST of 64 KB",
        load: Load::Post,
        ..USUAL
    },
    Workload {
        name: "HTTP/2",
        load: Load::Http2,
        tls: true,
        ..USUAL
    },
];

/// A line for each workload.
type Lines = [Line; WORKLOADS.len()];

/// What is known of a workload.
#[derive(Clone, Copy, Default)]
struct Line {
    /// The medians, a column for each contestant.
    medians: [Run; Who::ALL.len()],
    /// The medians of the ratios to nginx in the same round: what changes from minute to minute is
    /// in both.
    ratios: [Run; Who::ALL.len()],
}

/// Something that is told of a run.
struct Figure {
    name: &'static str,
    unit: &'static str,
    /// How many are printed after the point.
    digits: usize,
    /// Whether it is measured only where the workload is a goal.
    of_goals: bool,
    of: fn(&Run) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "requests/s",
        unit: "requests/s",
        digits: 0,
        of_goals: false,
        of: |run| run.rate,
    },
    Figure {
        name: "p99 in ms",
        unit: "ms",
        digits: 2,
        of_goals: false,
        of: |run| run.p99,
    },
    Figure {
        name: "p99 in ms at a pace",
        unit: "ms",
        digits: 2,
        of_goals: true,
        of: |run| run.paced,
    },
    Figure {
        name: "µs of a core a request",
        unit: "µs",
        digits: 1,
        of_goals: false,
        of: |run| run.micros,
    },
];

fn run(group: &'static str) -> Findings {
    let lines = match measured() {
        Ok(lines) => lines,
        Err(why) => {
            println!("skipped: {why}\n");
            return Findings {
                goals: goals(None),
                ..Findings::default()
            };
        }
    };
    let (mut rows, mut printed) = (Vec::new(), Vec::new());
    for (workload, line) in WORKLOADS.iter().zip(&lines) {
        for Figure {
            name,
            unit,
            digits,
            of,
            ..
        } in FIGURES
            .into_iter()
            .filter(|figure| workload.is_goal || !figure.of_goals)
        {
            let row = format!("{}, {name}", workload.name);
            let [nginx, own] = Who::ALL.map(|who| of(&line.medians[who as usize]));
            let ratio = of(&line.ratios[Who::Ratekeeper as usize]);
            printed.push(vec![
                row.clone(),
                format!("{nginx:.digits$}"),
                format!("{own:.digits$} ({ratio:.3})"),
            ]);
            let params = object(json!({ "connections": CONNECTIONS, "statistic": "median" }));
            let to_nginx = Ratio {
                who: Who::Nginx.name().into(),
                ratio,
            };
            for (who, value, ratio_to) in [
                (Who::Nginx, nginx, None),
                (Who::Ratekeeper, own, Some(to_nginx)),
            ] {
                let (row, params) = (row.clone(), params.clone());
                rows.push(Row {
                    group,
                    row,
                    who: who.name().into(),
                    value,
                    unit,
                    ratio_to,
                    params,
                });
            }
        }
    }
    println!(
        "{}\n",
        table(
            &["", Who::Nginx.name(), Who::Ratekeeper.name()],
            printed.into_iter()
        )
    );
    Findings {
        goals: goals(Some(&lines)),
        rows,
        ..Findings::default()
    }
}

fn goals(lines: Option<&Lines>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (at, Workload { name, .. }) in WORKLOADS
        .iter()
        .enumerate()
        .filter(|(_, workload)| workload.is_goal)
    {
        let ratio = |figure: fn(&Run) -> f64| {
            lines.map(|lines| figure(&lines[at].ratios[Who::Ratekeeper as usize]))
        };
        for (what, bound, measured) in [
            ("requests/s", Bound::AtLeast(0.8), ratio(|run| run.rate)),
            ("p99", Bound::AtMost(1.0), ratio(|run| run.p99)),
            ("p99 at a pace", Bound::AtMost(1.0), ratio(|run| run.paced)),
        ] {
            let text = format!("the gateway, {name}: {what} / nginx with limit_req");
            goals.push(Goal {
                text,
                bound,
                measured,
                because: "it could not be run",
            });
        }
    }
    goals
}

fn measured() -> Result<Lines, String> {
    let upstream = Upstream::start()?;
    let loader = Loader::find(&upstream.directory)?;
    let mut lines = [Line::default(); WORKLOADS.len()];
    for (workload, line) in WORKLOADS.iter().zip(&mut lines) {
        let mut rounds = Vec::new();
        while rounds
            .iter()
            .filter(|round: &&Round| round.stolen <= UNDISTURBED)
            .count()
            < workload.rounds
            && rounds.len() < 2 * workload.rounds
        {
            rounds.push(round(workload, &upstream, &loader, rounds.len() % 2)?);
        }
        rounds.sort_by(|one, other| one.stolen.total_cmp(&other.stolen));
        let all = rounds.len();
        rounds.truncate(workload.rounds);
        let worst = rounds.last().map_or(0.0, |round| round.stolen);
        if worst > UNDISTURBED {
            println!(
                "{}: not a quiet machine: in the least disturbed {} of {all} rounds others had up to {:.1} % of its time\n",
                workload.name,
                workload.rounds,
                worst * 100.0
            );
        }
        for who in Who::ALL {
            let of: Vec<Run> = rounds
                .iter()
                .map(|round| round.runs[who as usize])
                .collect();
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
fn round(
    workload: &Workload,
    upstream: &Upstream,
    loader: &Loader,
    first: usize,
) -> Result<Round, String> {
    // New ones each time: where its memory happens to lie makes a process faster or slower for as
    // long as it lives.
    let start = |who| Server::start(who, upstream, workload);
    let servers = [start(Who::Nginx)?, start(Who::Ratekeeper)?];
    for server in &servers {
        loader.warm_up(server, workload)?;
    }
    let before = Ticks::now();
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..workload.turns {
        for at in [first, 1 - first] {
            turns[at].push(loader.measure(&servers[at], workload)?);
        }
    }
    let runs = turns.map(|turns| medians(&turns));
    Ok(Round {
        runs,
        stolen: Ticks::now().stolen_since(&before),
    })
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
