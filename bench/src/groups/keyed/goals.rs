//! The performance goals of keyed limiters: times, memory and threads.

use super::child_report::ChildResult;
use super::subject::Competitor;
use super::timings::{Case, Timings, many};
use super::{FAST, LARGE, SMALL};
use crate::keys::{Key, Order};
use crate::report::{Bound, Goal};
use std::net::IpAddr;

/// The bound against governor on the same clock.
const FEW_KEYS: Bound = Bound::AtMost(0.6);
const MANY_STRINGS: Bound = Bound::AtMost(0.5);
/// The bound on the time of two threads divided by that of one, on uniform keys.
const TWO_THREADS: Bound = Bound::AtMost(1.3);
const BYTES_A_KEY: Bound = Bound::AtMost(40.0);
const MEGABYTES: Bound = Bound::AtMost(400.0);

pub(super) fn of(measured: &Timings, bytes: &[ChildResult]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |text: String, bound, measured| {
        goals.push(Goal {
            text,
            bound,
            measured,
            because: "not measured, or on a busy machine",
        });
    };
    let uniform = |keys, kind, threads| Case {
        keys,
        kind,
        clock: FAST,
        order: Order::Uniform,
        allowed: true,
        threads,
    };
    let bounds = [
        (SMALL, u64::NAME, FEW_KEYS),
        (SMALL, IpAddr::NAME, FEW_KEYS),
        (SMALL, String::NAME, FEW_KEYS),
        (LARGE, String::NAME, MANY_STRINGS),
    ];
    for (keys, kind, bound) in bounds {
        let case = uniform(keys, kind, 1);
        let ratio = measured.ratio((case, Competitor::Ratekeeper), (case, Competitor::Governor));
        add(
            format!("{}: ratekeeper / governor on {FAST}", case.name()),
            bound,
            ratio,
        );
    }
    for kind in [u64::NAME, String::NAME] {
        let [one, two] = [1, 2].map(|threads| uniform(LARGE, kind, threads));
        let text = format!(
            "{} {kind} keys, uniform, allowed: ratekeeper, 2 threads / 1, best of each",
            many(LARGE)
        );
        add(
            text,
            TWO_THREADS,
            measured.two_over_one(two, one, Competitor::Ratekeeper),
        );
    }
    for row in bytes
        .iter()
        .filter(|row| row.competitor == Competitor::Ratekeeper)
    {
        let keys = format!("{} {} keys: ratekeeper", many(row.keys), row.kind);
        if row.keys == LARGE {
            add(
                format!("{keys}, bytes a key"),
                BYTES_A_KEY,
                row.figure.map(|bytes| bytes / row.keys as f64),
            );
        } else {
            add(
                format!("{keys}, MB in all"),
                MEGABYTES,
                row.figure.map(|bytes| bytes / 1e6),
            );
        }
    }
    goals
}
