//! The hand-written version of each algorithm: the state behind a Mutex, floating point where it is
//! easier.

use crate::harness::Contestant;
use ratekeeper::{Clock, Limit, clock::SystemClock};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Returns the naive version of an algorithm.
pub(crate) fn contestant(name: &str, limit: &str, allowed: bool) -> Contestant {
    let limit: Limit = limit.parse().expect("a limit");
    let rate = limit.rate().expect("a rate");
    let (most, window) = (rate.count(), rate.period().as_nanos() as u64);
    let competitor = "a Mutex";
    match name {
        "token_bucket" => {
            let (burst, per_nano) = (limit.capacity() as f64, most as f64 / window as f64);
            held(
                competitor,
                allowed,
                (burst, 0),
                move |(tokens, last): &mut (f64, u64), now| {
                    *tokens = (*tokens + (now - *last) as f64 * per_nano).min(burst);
                    *last = now;
                    let fits = *tokens >= 1.0;
                    *tokens -= f64::from(u8::from(fits));
                    fits
                },
            )
        }
        "pacing" => {
            let (interval, longest) = (window as f64 / most as f64, (limit.capacity() - 1) as f64);
            held(competitor, allowed, 0.0, move |free: &mut f64, now| {
                let start = free.max(now as f64);
                let fits = start - now as f64 <= longest * interval;
                if fits {
                    *free = start + interval;
                }
                fits
            })
        }
        "fixed_window" => held(
            competitor,
            allowed,
            (0, 0),
            move |(start, count): &mut (u64, u64), now| {
                let begins = now - now % window;
                if begins != *start {
                    (*start, *count) = (begins, 0);
                }
                let fits = *count < most;
                *count += u64::from(fits);
                fits
            },
        ),
        "fixed_window_first_hit" => held(
            competitor,
            allowed,
            (0, 0),
            move |(start, count): &mut (u64, u64), now| {
                if now - *start >= window {
                    (*start, *count) = (now, 0);
                }
                let fits = *count < most;
                *count += u64::from(fits);
                fits
            },
        ),
        "sliding_window" => held(
            competitor,
            allowed,
            (0, 0, 0),
            move |(index, current, before): &mut (u64, u64, u64), now| {
                let at = now / window;
                if at != *index {
                    *before = if at == *index + 1 { *current } else { 0 };
                    (*index, *current) = (at, 0);
                }
                let inside = 1.0 - (now % window) as f64 / window as f64;
                let fits = *before as f64 * inside + *current as f64 + 1.0 <= most as f64;
                *current += u64::from(fits);
                fits
            },
        ),
        "sliding_window_strict" => held(
            competitor,
            allowed,
            VecDeque::from([(0, 0)]),
            move |steps: &mut VecDeque<(u64, u64)>, now| {
                let at = now / (window / 10);
                while steps.front().is_some_and(|(step, _)| step + 10 < at) {
                    steps.pop_front();
                }
                let fits = steps.iter().map(|(_, count)| count).sum::<u64>() < most;
                if fits {
                    match steps.back_mut() {
                        Some((step, count)) if *step == at => *count += 1,
                        _ => steps.push_back((at, 1)),
                    }
                }
                fits
            },
        ),
        _ => held(
            competitor,
            allowed,
            VecDeque::new(),
            move |times: &mut VecDeque<u64>, now| {
                while times.front().is_some_and(|time| time + window <= now) {
                    times.pop_front();
                }
                let fits = (times.len() as u64) < most;
                if fits {
                    times.push_back(now);
                }
                fits
            },
        ),
    }
}

/// Puts the state behind a lock; the clock is read under it.
fn held<S: Send + 'static>(
    competitor: &str,
    allowed: bool,
    state: S,
    check: impl Fn(&mut S, u64) -> bool + Clone + Send + Sync + 'static,
) -> Contestant {
    let state = Arc::new(Mutex::new(state));
    let call = move || {
        let mut state = state.lock().expect("nothing panics under it");
        check(&mut state, SystemClock.now().as_unix_nanos())
    };
    if !allowed {
        while call() {}
    }
    Contestant::new(competitor, move || call() == allowed)
}
