//! The upper bound of each algorithm over every interval, checked against what was admitted.
//! docs/spec/algorithms.md defines each.

use super::oracle::{self, Event, Rule};
use ratekeeper::{Algorithm, Limit};

/// An admission: the caller's instant, and the wait it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: u64,
    pub(crate) delay: u64,
}

/// Finds a violation of the bound of `limit` among the admissions of one key, in the order of its
/// calls; their instants may be in any order.
pub(crate) fn broken(limit: &Limit, admitted: &[Admitted]) -> Option<String> {
    if limit.is_unlimited() {
        return None;
    }
    let rate = limit.rate().expect("a finite rate");
    let (most, window) = (rate.count(), rate.period().as_nanos() as u64);
    match limit.algorithm_kind() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let events: Vec<_> = admitted
                .iter()
                .map(|call| Event {
                    at: call.at,
                    cost: call.cost,
                })
                .collect();
            oracle::broken(&Rule::decided(limit), &events).map(|broken| format!("TB1 {broken:?}"))
        }
        Algorithm::Pacing => broken_queue(limit, admitted),
        Algorithm::FixedWindow => broken_grid("FW1", most, window, admitted),
        Algorithm::FixedWindowFirstHit => broken_first_hits(most, window, admitted),
        Algorithm::SlidingWindow => broken_grid("SC1", most, window, admitted),
        Algorithm::SlidingWindowStrict => {
            let step = window / steps(window);
            broken_sliding(
                "strict",
                most,
                window,
                &judged(admitted, |newest| newest - newest % step),
            )
        }
        Algorithm::SlidingLog => {
            broken_sliding("SL1", most, window, &judged(admitted, |newest| newest))
        }
        other => panic!("{other}"),
    }
}

/// The times at which calls are judged: not before what the key's own past stores.
fn judged(admitted: &[Admitted], stored: impl Fn(u64) -> u64) -> Vec<Event> {
    let mut newest = 0;
    let mut event = |call: &Admitted| {
        newest = call.at.max(stored(newest));
        Event {
            at: newest,
            cost: call.cost,
        }
    };
    admitted.iter().map(&mut event).collect()
}

/// SL1: A(t − W, t] ≤ N.
fn broken_sliding(name: &str, most: u64, window: u64, events: &[Event]) -> Option<String> {
    let inside = |t: u64| oracle::spent(events, (t + 1).saturating_sub(window), t);
    let worst = events
        .iter()
        .map(|event| (inside(event.at), event.at))
        .max()?;
    (worst.0 > i128::from(most))
        .then(|| format!("{name}: {} up to {}, at most {most}", worst.0, worst.1))
}

/// FW1, SC1: at most N in each aligned window.
fn broken_grid(name: &str, most: u64, window: u64, admitted: &[Admitted]) -> Option<String> {
    let events = judged(admitted, |newest| newest - newest % window);
    let inside = |index: u64| oracle::spent(&events, index * window, index * window + (window - 1));
    let worst = events
        .iter()
        .map(|event| (inside(event.at / window), event.at))
        .max()?;
    (worst.0 > i128::from(most)).then(|| {
        format!(
            "{name}: {} in the window of {}, at most {most}",
            worst.0, worst.1
        )
    })
}

/// FW2: over any half-open length L at most N·(ceil(L/W) + 1). The windows are not known once a key
/// was evicted, only that each is at least W long.
fn broken_first_hits(most: u64, window: u64, admitted: &[Admitted]) -> Option<String> {
    let (mut events, mut start): (Vec<Event>, Option<u64>) = (Vec::new(), None);
    for call in admitted {
        let at = start.map_or(call.at, |start| call.at.max(start));
        if start.is_none_or(|start| at - start >= window) {
            start = Some(at);
        }
        events.push(Event {
            at,
            cost: call.cost,
        });
    }
    for first in &events {
        for last in events.iter().filter(|last| last.at >= first.at) {
            let (spent, length) = (
                oracle::spent(&events, first.at, last.at),
                last.at - first.at + 1,
            );
            let most = i128::from(most) * (i128::from(length.div_ceil(window)) + 1);
            if spent > most {
                return Some(format!(
                    "FW2: {spent} from {} to {}, at most {most}",
                    first.at, last.at
                ));
            }
        }
    }
    None
}

/// LQ1, LQ3: the distance of starts is the time of the earlier one, and no call waits longer than
/// M. For limits that are exact and have intervals of whole nanoseconds.
fn broken_queue(limit: &Limit, admitted: &[Admitted]) -> Option<String> {
    let rule = Rule::written(limit);
    assert_eq!(
        (rule.per_nano, limit.effective()),
        (1, None),
        "{limit} starts between nanoseconds"
    );
    let longest = (i128::from(limit.capacity()) - 1) * rule.token;
    if let Some(late) = admitted
        .iter()
        .find(|call| i128::from(call.delay) > longest)
    {
        return Some(format!("LQ3: {late:?} waits longer than {longest}"));
    }
    let paid: Vec<_> = admitted.iter().filter(|call| call.cost > 0).collect();
    paid.windows(2).find_map(|pair| {
        let [first, second] = [pair[0], pair[1]].map(|call| i128::from(call.at + call.delay));
        let apart = i128::from(pair[0].cost) * rule.token;
        (second < first + apart)
            .then(|| format!("LQ1: {:?} and {:?} are not {apart} apart", pair[0], pair[1]))
    })
}

/// SC2: A(t − W, t] ≤ N + prev·e/W. For instants that do not go back.
pub(crate) fn broken_weighted(limit: &Limit, admitted: &[Admitted]) -> Option<String> {
    let rate = limit.rate().expect("a finite rate");
    let (most, window) = (i128::from(rate.count()), rate.period().as_nanos() as u64);
    let events = judged(admitted, |newest| newest);
    events.iter().find_map(|event| {
        let (start, t) = (event.at - event.at % window, event.at);
        let inside = oracle::spent(&events, (t + 1).saturating_sub(window), t) * i128::from(window);
        let before = oracle::spent(
            &events,
            start.saturating_sub(window),
            start.saturating_sub(1),
        );
        let most = most * i128::from(window) + before * i128::from(t - start);
        (inside > most).then(|| format!("SC2: {inside} up to {t}, at most {most}, in 1/{window}"))
    })
}

/// The number of steps of the strict sliding window: the largest up to ten that divides the window,
/// in whole microseconds if it is whole microseconds.
pub(crate) fn steps(window: u64) -> u64 {
    let divided = if window.is_multiple_of(1_000) {
        window / 1_000
    } else {
        window
    };
    (1..=10)
        .rev()
        .find(|steps| divided.is_multiple_of(*steps))
        .expect("1 divides")
}
