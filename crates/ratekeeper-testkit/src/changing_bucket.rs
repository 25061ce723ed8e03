//! [`Era`]: TB1 for a token bucket whose limit changes.

use crate::bucket_rule::Event;
use ratekeeper::Limit;

/// Parts of a token, so that every interval from 1 to 10 ns brings whole parts in a nanosecond.
pub const PARTS: i128 = 2_520;

/// A limit that was in force for a while, both ends included: calls at the time of a change may
/// fall on either side.
#[derive(Clone, Copy, Debug)]
pub struct Era {
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// Parts in a nanosecond, and the burst; none when unlimited.
    pub limit: Option<(i128, u64)>,
    /// Parts that the change to it may have added.
    pub added: i128,
}

impl Era {
    /// The era of `limit` from a time on.
    pub fn new(from: u64, limit: &Limit, added: i128) -> Self {
        let limit = limit.rate().map(|rate| {
            let period = rate.period().as_nanos() as i128;
            let per_nano = i128::from(rate.count()) * PARTS / period;
            (per_nano, limit.capacity())
        });
        Self {
            from,
            to: u64::MAX,
            limit,
            added,
        }
    }
}

/// B + the rate of each era times its share of [s, t] + what changes in it may have added; none if
/// there was no limit for a while.
fn bound(eras: &[Era], s: u64, t: u64) -> Option<i128> {
    let mut within = eras.iter().filter(|era| era.from <= t && era.to >= s);
    let first = within.next().expect("an era");
    let mut parts = i128::from(first.limit?.1) * PARTS;
    for era in [first].into_iter().chain(within.clone()) {
        parts += era.limit?.0 * i128::from(t.min(era.to) - s.max(era.from));
    }
    Some(parts + within.map(|era| era.added).sum::<i128>())
}

/// An interval [s, t] that holds more than its bound and `on_top(t)` parts, if there is one.
pub fn violation(eras: &[Era], events: &[Event], on_top: impl Fn(u64) -> i128) -> Option<String> {
    let mut sorted = events.to_vec();
    sorted.sort_unstable();
    let changes = eras.iter().map(|era| era.from);
    let starts = events.iter().map(|event| event.at).chain(changes);
    for s in starts {
        let mut spent = 0;
        for event in sorted.iter().filter(|event| event.at >= s) {
            let t = event.at;
            spent += i128::from(event.cost) * PARTS;
            if let Some(most) = bound(eras, s, t).map(|most| most + on_top(t))
                && spent > most
            {
                return Some(format!("{spent} from {s} to {t}, at most {most}"));
            }
        }
    }
    None
}
