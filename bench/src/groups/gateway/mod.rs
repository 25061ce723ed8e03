//! The gateway beside nginx: `ratekeeper proxy` and an nginx with `limit_req`, in front of the same
//! nginx that answers 1 KB, under wrk, in HTTP/1.1 and in TLS; with larger bodies; and under
//! h2load, in HTTP/2.

mod load;
mod servers;

use super::Group;
use crate::harness::{is_quick, median};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use load::{CONNECTIONS, Loader, Run, Ticks};
use serde_json::json;
use servers::{Competitor, Server, Upstream};
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "gateway",
    about: "a proxy in front of nginx by wrk and h2load, 64 connections; in brackets: / nginx with limit_req",
    run,
};

/// If others have more than this part of the machine's time, the 99th percentile depends more on
/// them than on the proxy.
const MIN_CORE_SHARE: f64 = 0.01;

/// How requests are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Get,
    /// POST with a body of 64 KB.
    Post,
    /// GET by h2load.
    Http2,
}

struct Workload {
    name: &'static str,
    load: Load,
    path: &'static str,
    /// Whether the upstream is the service of small chunks.
    chunks: bool,
    tls: bool,
    /// Whether its latencies are goals beside its rate, and measured again at a fixed pace.
    is_goal: bool,
    /// Rounds that count. Up to twice as many are run until enough were undisturbed; otherwise the
    /// least disturbed ones count.
    rounds: usize,
    /// How many turns each contestant has in a round, one after the other's; the median of them
    /// counts.
    runs_per_round: usize,
    /// The length of a run at full load, and of one at a fixed rate.
    length: Duration,
}

/// The defaults of a workload.
const USUAL: Workload = Workload {
    name: "",
    load: Load::Get,
    path: "/",
    chunks: false,
    tls: false,
    is_goal: false,
    rounds: 5,
    runs_per_round: 3,
    length: Duration::from_secs(1),
};

const WORKLOADS: [Workload; 6] = [
    // The load of others changes from second to second.
    Workload {
        name: "HTTP/1.1",
        is_goal: true,
        rounds: 7,
        runs_per_round: 5,
        ..USUAL
    },
    // All connections shake hands at once, and the first wait for the others. These must be less
    // than a percent of all requests, or they determine the 99th percentile.
    Workload {
        name: "TLS",
        tls: true,
        is_goal: true,
        rounds: 7,
        runs_per_round: 1,
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

/// What `--quick` measures.
const QUICK: [Workload; 1] = [Workload {
    rounds: 2,
    ..WORKLOADS[0]
}];

/// A result for each workload.
type WorkloadResults = [WorkloadResult; WORKLOADS.len()];

/// The results of a workload.
#[derive(Clone, Copy, Default)]
struct WorkloadResult {
    /// The medians, a column for each contestant.
    medians: [Run; Competitor::ALL.len()],
    /// The medians of the ratios to nginx in the same round: slow changes of the machine affect
    /// both.
    ratios: [Run; Competitor::ALL.len()],
}

/// A value that is reported of a run.
struct Metric {
    name: &'static str,
    unit: &'static str,
    /// How many digits are printed after the point.
    digits: usize,
    /// Whether it is measured only where the workload is a goal.
    of_goals: bool,
    of: fn(&Run) -> f64,
}

const METRICS: [Metric; 4] = [
    Metric {
        name: "requests/s",
        unit: "requests/s",
        digits: 0,
        of_goals: false,
        of: |run| run.rate,
    },
    Metric {
        name: "p99 in ms",
        unit: "ms",
        digits: 2,
        of_goals: false,
        of: |run| run.p99,
    },
    Metric {
        name: "p99 in ms at a pace",
        unit: "ms",
        digits: 2,
        of_goals: true,
        of: |run| run.paced,
    },
    Metric {
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
        Err(error) => {
            println!("skipped: {error}\n");
            return Findings {
                goals: goals(None),
                ..Findings::default()
            };
        }
    };
    let (mut rows, mut printed) = (Vec::new(), Vec::new());
    for (workload, line) in WORKLOADS.iter().zip(&lines) {
        for Metric {
            name,
            unit,
            digits,
            of,
            ..
        } in METRICS
            .into_iter()
            .filter(|figure| workload.is_goal || !figure.of_goals)
        {
            let row = format!("{}, {name}", workload.name);
            let [nginx, own] =
                Competitor::ALL.map(|competitor| of(&line.medians[competitor as usize]));
            let ratio = of(&line.ratios[Competitor::Ratekeeper as usize]);
            printed.push(vec![
                row.clone(),
                format!("{nginx:.digits$}"),
                format!("{own:.digits$} ({ratio:.3})"),
            ]);
            let params = object(json!({ "connections": CONNECTIONS, "statistic": "median" }));
            let to_nginx = Ratio {
                competitor: Competitor::Nginx.name().into(),
                ratio,
            };
            for (competitor, value, ratio_to) in [
                (Competitor::Nginx, nginx, None),
                (Competitor::Ratekeeper, own, Some(to_nginx)),
            ] {
                let (row, params) = (row.clone(), params.clone());
                rows.push(Row {
                    group,
                    row,
                    competitor: competitor.name().into(),
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
            &["", Competitor::Nginx.name(), Competitor::Ratekeeper.name()],
            printed.into_iter()
        )
    );
    Findings {
        goals: goals(Some(&lines)),
        rows,
        ..Findings::default()
    }
}

fn goals(lines: Option<&WorkloadResults>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (at, Workload { name, is_goal, .. }) in WORKLOADS.iter().enumerate() {
        let ratio = |figure: fn(&Run) -> f64| {
            lines.map(|lines| figure(&lines[at].ratios[Competitor::Ratekeeper as usize]))
        };
        let times = [
            ("p99", Bound::AtMost(1.0), ratio(|run| run.p99)),
            ("p99 at a pace", Bound::AtMost(1.0), ratio(|run| run.paced)),
        ];
        let rate = ("requests/s", Bound::AtLeast(0.85), ratio(|run| run.rate));
        let times = times.into_iter().filter(|_| *is_goal);
        for (what, bound, measured) in [rate].into_iter().chain(times) {
            let text = format!("the gateway, {name}: {what} / nginx with limit_req");
            goals.push(Goal {
                text,
                bound,
                measured,
                because: "it could not run",
            });
        }
    }
    goals
}

fn measured() -> Result<WorkloadResults, String> {
    let upstream = Upstream::start()?;
    let loader = Loader::find(&upstream.directory)?;
    let mut lines = [WorkloadResult::default(); WORKLOADS.len()];
    let workloads = if is_quick() { &QUICK[..] } else { &WORKLOADS };
    for (workload, line) in workloads.iter().zip(&mut lines) {
        let mut rounds = Vec::new();
        while rounds
            .iter()
            .filter(|round: &&Round| round.stolen <= MIN_CORE_SHARE)
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
        if worst > MIN_CORE_SHARE {
            println!(
                "{}: not a quiet machine: in the least disturbed {} of {all} rounds others had up to {:.1} % of its time\n",
                workload.name,
                workload.rounds,
                worst * 100.0
            );
        }
        for competitor in Competitor::ALL {
            let of: Vec<Run> = rounds
                .iter()
                .map(|round| round.runs[competitor as usize])
                .collect();
            let ratios = rounds.iter().map(|round| {
                let (of, to) = (
                    round.runs[competitor as usize],
                    round.runs[Competitor::Nginx as usize],
                );
                of_each(|figure| figure(&of) / figure(&to))
            });
            line.ratios[competitor as usize] = medians(&ratios.collect::<Vec<_>>());
            line.medians[competitor as usize] = medians(&of);
        }
    }
    Ok(lines)
}

/// The runs of each contestant in a round.
struct Round {
    runs: [Run; Competitor::ALL.len()],
    /// The part of the machine's time that others had meanwhile.
    stolen: f64,
}

/// Runs the turns of each, one after the other's, beginning with `first`.
fn round(
    workload: &Workload,
    upstream: &Upstream,
    loader: &Loader,
    first: usize,
) -> Result<Round, String> {
    // New processes each time: where its memory happens to be makes a process faster or slower for
    // as long as it runs.
    let start = |competitor| Server::start(competitor, upstream, workload);
    let servers = [start(Competitor::Nginx)?, start(Competitor::Ratekeeper)?];
    for server in &servers {
        loader.warm_up(server, workload)?;
    }
    let before = Ticks::now();
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..workload.runs_per_round {
        for at in [first, 1 - first] {
            runs[at].push(loader.measure(&servers[at], workload)?);
        }
    }
    let runs = runs.map(|runs| medians(&runs));
    Ok(Round {
        runs,
        stolen: Ticks::now().stolen_since(&before),
    })
}

/// The median of each value by itself.
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
