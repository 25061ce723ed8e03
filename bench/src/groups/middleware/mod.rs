//! A web service with a limit in front of it, beside the same service without: requests per second,
//! and processor time per request.

mod in_process;
mod load;
mod server;

pub(crate) use in_process::{CHILD as NO_SOCKET, run as no_socket};

use super::Group;
use crate::harness::{is_quick, median};
use crate::instructions;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use crate::web::Competitor;
use load::Pair;
use serde_json::{Value, json};
use server::ProgramCopy;

pub(super) const GROUP: Group = Group {
    name: "middleware",
    about: "an axum hello world behind a limit that is never reached; in brackets: / bare",
    run,
};

/// How often every contestant is started (three times in each position), and how many turns it has
/// each time.
const ROUNDS: usize = 3 * Competitor::ALL.len();
const TURNS: usize = 6;

/// One value for each contestant.
type PerCompetitor<T> = [T; Competitor::ALL.len()];

/// The result of one run.
#[derive(Clone, Copy)]
struct Run {
    /// Requests per second.
    rate: f64,
    /// Microseconds of processor time of the server per request.
    micros: f64,
    /// For which part of the run the server waited for its core, because another process had it.
    waited: f64,
}

/// If a server waits for its core for more than this part, requests per second depend more on the
/// machine than on the server.
const MIN_CORE_SHARE: f64 = 0.02;

fn run(group: &'static str) -> Findings {
    let mut found = Findings::default();
    match without_sockets(group) {
        Ok(rows) => found.rows.extend(rows),
        Err(error) => println!("without a socket: skipped: {error}\n"),
    }
    match over_sockets() {
        Ok(runs) => {
            let medians = runs.each_ref().map(|runs| Run {
                rate: median(runs.iter().map(|run| run.rate)),
                micros: median(runs.iter().map(|run| run.micros)),
                waited: median(runs.iter().map(|run| run.waited)),
            });
            print(&runs, &medians);
            let disturbed = runs
                .iter()
                .flatten()
                .filter(|run| run.waited > MIN_CORE_SHARE)
                .count();
            if disturbed > 0 {
                let all = ROUNDS * Competitor::ALL.len();
                println!(
                    "not a quiet machine: in {disturbed} of {all} runs other processes used the server's core\n"
                );
            }
            found.rows.extend(
                Competitor::ALL
                    .into_iter()
                    .flat_map(|competitor| rows(group, competitor, &runs, &medians)),
            );
            found.goals = goals(Some(&runs));
        }
        Err(error) => {
            println!("over sockets: skipped: {error}\n");
            found.goals = goals(None);
        }
    }
    found
}

/// Returns rows of nanoseconds and, if valgrind is installed, instructions.
fn without_sockets(group: &'static str) -> Result<Vec<Row>, String> {
    let nanos = in_process::nanos()?;
    let cold = in_process::nanos_after_a_socket()?;
    let counted = if instructions::can_be_counted() && !is_quick() {
        Some(in_process::instructions()?)
    } else {
        None
    };
    let figures = |of: &[f64], competitor: Competitor| {
        let (own, bare) = (of[competitor as usize], of[Competitor::Bare as usize]);
        let beyond = if competitor == Competitor::Bare {
            String::new()
        } else {
            format!("{:.0}", own - bare)
        };
        [format!("{own:.0}"), beyond]
    };
    let lines = Competitor::ALL.iter().map(|&competitor| {
        let counted = counted
            .as_ref()
            .map_or_else(|| ["–".into(), String::new()], |of| figures(of, competitor));
        let timed = figures(&nanos, competitor)
            .into_iter()
            .chain(figures(&cold, competitor));
        [competitor.name().to_owned()]
            .into_iter()
            .chain(timed)
            .chain(counted)
            .collect()
    });
    let header = [
        "no socket, 1 thread",
        "ns a request",
        "beyond bare",
        "cold",
        "beyond bare",
        "instructions",
        "beyond bare",
    ];
    println!("{}\n", table(&header, lines));
    let rows = |of: Vec<f64>, what: &str, unit, statistic| {
        let bare = of[Competitor::Bare as usize];
        let row = |&competitor: &Competitor| {
            let params = json!({ "threads": 1, "statistic": statistic });
            row(
                group,
                what,
                competitor,
                (of[competitor as usize], of[competitor as usize] / bare),
                unit,
                params,
            )
        };
        Competitor::ALL.iter().map(row).collect::<Vec<_>>()
    };
    let warm = "a request, no socket";
    let counted = counted.map(|of| rows(of, warm, "instructions", "counted"));
    let timed = rows(nanos, warm, "ns", "best").into_iter();
    let timed = timed.chain(rows(cold, "a request, no socket, cold", "ns", "median"));
    Ok(timed.chain(counted.into_iter().flatten()).collect())
}

/// Returns the median of the ratios of the rounds: slow changes of the machine affect both values
/// of a round.
fn ratio(
    runs: &PerCompetitor<Vec<Run>>,
    of: Competitor,
    to: Competitor,
    figure: fn(&Run) -> f64,
) -> f64 {
    median(ratios(runs, of, to, figure))
}

fn ratios(
    runs: &PerCompetitor<Vec<Run>>,
    of: Competitor,
    to: Competitor,
    figure: fn(&Run) -> f64,
) -> impl Iterator<Item = f64> + Clone {
    runs[of as usize]
        .iter()
        .zip(&runs[to as usize])
        .map(move |(of, to)| figure(of) / figure(to))
}

/// Returns the standard error of that median, from the spread of the ratios of the rounds.
fn uncertainty(ratios: impl Iterator<Item = f64> + Clone) -> f64 {
    // For a normal distribution: the standard deviation from the distance within which half of the
    // values are from the median, and the standard error of a median from that of a mean.
    const DEVIATION: f64 = 1.4826;
    const OF_A_MEDIAN: f64 = 1.2533;
    let (rounds, middle) = (ratios.clone().count() as f64, median(ratios.clone()));
    OF_A_MEDIAN * DEVIATION * median(ratios.map(|ratio| (ratio - middle).abs())) / rounds.sqrt()
}

fn print(runs: &PerCompetitor<Vec<Run>>, medians: &PerCompetitor<Run>) {
    let bare = medians[Competitor::Bare as usize];
    let lines = Competitor::ALL.map(|competitor| {
        let Run { rate, micros, .. } = medians[competitor as usize];
        let name = competitor.name().to_owned();
        if competitor == Competitor::Bare {
            return vec![
                name,
                format!("{rate:.0}"),
                format!("{micros:.2}"),
                String::new(),
            ];
        }
        vec![
            name,
            format!(
                "{rate:.0} ({})",
                of_rates(runs, competitor, Competitor::Bare)
            ),
            format!(
                "{micros:.2} ({:.3})",
                ratio(runs, competitor, Competitor::Bare, |run| run.micros)
            ),
            format!(
                "{:.0}",
                (ratio(runs, competitor, Competitor::Bare, |run| run.micros) - 1.0)
                    * bare.micros
                    * 1e3
            ),
        ]
    });
    let header = [
        "over sockets, 64 connections",
        "requests/s",
        "µs of processor time",
        "ns beyond bare",
    ];
    println!("{}", table(&header, lines.into_iter()));
    let by_layer = of_rates(runs, Competitor::PerIp, Competitor::Governor);
    let around = of_rates(runs, Competitor::Around, Competitor::GovernorAround);
    println!("requests/s, ratekeeper / tower_governor: {by_layer}; around the router: {around}\n");
}

/// Formats a ratio with its standard error.
fn of_rates(runs: &PerCompetitor<Vec<Run>>, of: Competitor, to: Competitor) -> String {
    let rates = ratios(runs, of, to, |run| run.rate);
    format!("{:.3} ± {:.3}", median(rates.clone()), uncertainty(rates))
}

fn rows(
    group: &'static str,
    competitor: Competitor,
    runs: &PerCompetitor<Vec<Run>>,
    medians: &PerCompetitor<Run>,
) -> [Row; 2] {
    let own = medians[competitor as usize];
    let params = |figure: fn(&Run) -> f64| {
        let all: Vec<f64> = runs[competitor as usize].iter().map(figure).collect();
        let waited: Vec<f64> = runs[competitor as usize]
            .iter()
            .map(|run| run.waited)
            .collect();
        json!({ "connections": load::CONNECTIONS, "statistic": "median", "runs": all, "waited": waited })
    };
    let (rates, micros) = (params(|run| run.rate), params(|run| run.micros));
    let by_rate = ratio(runs, competitor, Competitor::Bare, |run| run.rate);
    let by_micros = ratio(runs, competitor, Competitor::Bare, |run| run.micros);
    [
        row(
            group,
            "requests a second",
            competitor,
            (own.rate, by_rate),
            "requests/s",
            rates,
        ),
        row(
            group,
            "processor time of a request",
            competitor,
            (own.micros, by_micros),
            "µs",
            micros,
        ),
    ]
}

/// One value, and its ratio to that of the bare service.
fn row(
    group: &'static str,
    row: &str,
    competitor: Competitor,
    (own, ratio): (f64, f64),
    unit: &'static str,
    params: Value,
) -> Row {
    let ratio_to = (competitor != Competitor::Bare).then(|| Ratio {
        competitor: Competitor::Bare.name().into(),
        ratio,
    });
    Row {
        group,
        row: row.into(),
        competitor: competitor.name().into(),
        value: own,
        unit,
        ratio_to,
        params: object(params),
    }
}

/// Returns the runs of each contestant. Its process is new in every round, because its speed
/// depends on where its memory happens to be, and so is the file of its program, which is in memory
/// as well. In a round they take turns, A B C A B C …; another one is the first in each round: the
/// machine may still be cleaning up after the one before.
fn over_sockets() -> Result<PerCompetitor<Vec<Run>>, String> {
    if is_quick() {
        return Err("not with --quick".into());
    }
    load::is_possible()?;
    let program = server::program()?;
    let mut runs = Competitor::ALL.map(|_| Vec::with_capacity(ROUNDS));
    for round in 0..ROUNDS {
        let program = ProgramCopy::of(&program)?;
        let mut order = Competitor::ALL;
        order.rotate_left(round % Competitor::ALL.len());
        let mut pairs = Vec::with_capacity(Competitor::ALL.len());
        for competitor in order {
            pairs.push((competitor, Pair::start(program.path(), competitor)?));
        }
        for _ in 1..TURNS {
            for (_, pair) in &mut pairs {
                pair.go_on()?;
            }
        }
        for (competitor, pair) in pairs {
            runs[competitor as usize].push(pair.end()?);
        }
    }
    Ok(runs)
}

fn goals(runs: Option<&PerCompetitor<Vec<Run>>>) -> Vec<Goal> {
    let ratio = |of: Competitor, to: Competitor| runs.map(|all| ratio(all, of, to, |run| run.rate));
    let goal = |text: &str, bound, measured| Goal {
        text: text.into(),
        bound,
        measured,
        because: "it could not run",
    };
    vec![
        goal(
            "requests/s of axum with our layer / bare",
            Bound::AtLeast(0.95),
            ratio(Competitor::PerIp, Competitor::Bare),
        ),
        goal(
            "requests/s of axum with ours of 10 policies / bare",
            Bound::AtLeast(0.95),
            ratio(Competitor::Policies, Competitor::Bare),
        ),
        goal(
            "requests/s of axum with our layer / with tower_governor",
            Bound::AtLeast(1.0),
            ratio(Competitor::PerIp, Competitor::Governor),
        ),
        goal(
            "requests/s of axum with our layer around it / bare",
            Bound::AtLeast(0.95),
            ratio(Competitor::Around, Competitor::Bare),
        ),
        goal(
            "requests/s of axum with our layer around it / with tower_governor around it",
            Bound::AtLeast(1.0),
            ratio(Competitor::Around, Competitor::GovernorAround),
        ),
    ]
}
