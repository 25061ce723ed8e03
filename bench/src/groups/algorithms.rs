//! Every algorithm beside a hand-written version with a Mutex, and the adaptive limiter beside the
//! plain one.

use super::Group;
use crate::harness::{self, Contestant};
use crate::peers::mutex_windows as naive;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::{Limit, Limiter, adaptive::Adaptive, adaptive::Load, clock::SystemClock};
use serde_json::json;

pub(super) const GROUP: Group = Group {
    name: "algorithms",
    about: "decisions per second of all threads together, on SystemClock; in brackets ours / the Mutex version of the same",
    run,
};

/// An algorithm, a limit that always allows and one that always denies.
const ALGORITHMS: [(&str, &str, &str); 7] = [
    ("token_bucket", "1/ns burst 4294967295", "1/d"),
    ("pacing", "58/ns queue 4294967295", "1/d queue 0"),
    (
        "fixed_window",
        "4294967295/h fixed_window",
        "1/w fixed_window",
    ),
    (
        "fixed_window_first_hit",
        "4294967295/h fixed_window_first_hit",
        "1/w fixed_window_first_hit",
    ),
    (
        "sliding_window",
        "4294967295/h sliding_window",
        "1/w sliding_window",
    ),
    (
        "sliding_window_strict",
        "4294967295/h sliding_window_strict",
        "1/w sliding_window_strict",
    ),
    // A log that always allows drops its entries as fast as it is called.
    ("sliding_log", "1000/us sliding_log", "1/w sliding_log"),
];

fn run(group: &'static str) -> Findings {
    let mut found = Findings::default();
    let mut lines = Vec::new();
    for (name, open, shut) in ALGORITHMS {
        let mut line = vec![name.to_owned()];
        for (outcome, limit) in [("allowed", open), ("denied", shut)] {
            let contestants = [
                ours(limit, outcome == "allowed"),
                naive::contestant(name, limit, outcome == "allowed"),
            ];
            let one = harness::one_thread(&contestants);
            let two: Vec<f64> = harness::two_threads(&contestants)
                .iter()
                .map(|both| both.quartile)
                .collect();
            for (threads, nanos) in [(1, one), (2, two)] {
                let per_second: Vec<f64> = nanos
                    .iter()
                    .map(|nanos| 1e9 * f64::from(threads) / nanos)
                    .collect();
                line.push(format!(
                    "{:.1} M ({:.2})",
                    per_second[0] / 1e6,
                    per_second[0] / per_second[1]
                ));
                for (at, competitor) in ["ratekeeper", "a Mutex"].into_iter().enumerate() {
                    found.rows.push(Row {
                        group,
                        row: format!(
                            "{name} {outcome}, {threads} thread{}",
                            if threads == 1 { "" } else { "s" }
                        ),
                        competitor: competitor.into(),
                        value: per_second[at],
                        unit: "decisions/s",
                        ratio_to: Some(Ratio {
                            competitor: ["a Mutex", "ratekeeper"][at].into(),
                            ratio: per_second[at] / per_second[1 - at],
                        }),
                        params: object(json!({ "limit": limit, "threads": threads })),
                    });
                }
            }
        }
        lines.push(line);
    }
    let header = [
        "",
        "allowed\n1 thread",
        "allowed\n2 threads",
        "denied\n1 thread",
        "denied\n2 threads",
    ];
    println!("{}\n", table(&header, lines.into_iter()));
    adaptive(group, &mut found);
    found
}

fn ours(limit: &str, allowed: bool) -> Contestant {
    let limiter = Limiter::new(limit.parse().expect("a limit"));
    if !allowed {
        while limiter.check().is_allowed() {}
    }
    Contestant::new("ratekeeper", move || {
        limiter.check().is_allowed() == allowed
    })
}

/// The adaptive limiter once its limit has changed, beside a plain one.
fn adaptive(group: &'static str, found: &mut Findings) {
    let open: Limit = "1/ns burst 4294967295".parse().expect("a limit");
    let plain = Limiter::new(open);
    let moving = Adaptive::between(open, open.burst(4_000_000_000))
        .every(std::time::Duration::from_secs(3_600))
        .build_with_clock(
            || Load {
                cpu: 0.0,
                memory: 0.0,
            },
            SystemClock,
        );
    moving.limiter().set_limit(open.burst(4_100_000_000));
    let moving = std::sync::Arc::new(moving);
    let contestants = [
        Contestant::new("plain", move || plain.check().is_allowed()),
        Contestant::new("adaptive, its limit moved", move || {
            moving.check().is_allowed()
        }),
    ];
    let nanos = harness::one_thread(&contestants);
    let ratio = nanos[1] / nanos[0];
    println!(
        "The adaptive limiter's check: {:.1} ns, the plain one's: {:.1} ns ({ratio:.2})\n",
        nanos[1], nanos[0]
    );
    for (contestant, value) in contestants.iter().zip(&nanos) {
        found.rows.push(Row {
            group,
            row: "adaptive, 1 thread".into(),
            competitor: contestant.name.clone(),
            value: *value,
            unit: "ns",
            ratio_to: Some(Ratio {
                competitor: "plain".into(),
                ratio: value / nanos[0],
            }),
            params: object(json!({ "threads": 1, "statistic": "best" })),
        });
    }
    found.goals.push(Goal {
        text: "adaptive check / plain check, on SystemClock".into(),
        bound: Bound::AtMost(1.1),
        measured: Some(ratio),
        because: "",
    });
}
