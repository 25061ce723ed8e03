//! Permits, outcomes, and the invariants of any order of calls.

use proptest::prelude::*;
use ratekeeper::adaptive::{
    AdaptiveConcurrency, AdaptiveConcurrencyBuilder, Control, RequestOutcome,
};
use ratekeeper::{Clock, ManualClock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn build(builder: AdaptiveConcurrencyBuilder) -> (AdaptiveConcurrency<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (builder.build_with_clock(clock.clone()), clock)
}

/// Fills the limit for `took`, then ends all permits with the same outcome.
fn wave(
    gate: &AdaptiveConcurrency<ManualClock>,
    clock: &ManualClock,
    took: Duration,
    outcome: RequestOutcome,
) -> usize {
    let held: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
    clock.advance(took);
    let count = held.len();
    held.into_iter().for_each(|permit| permit.finish(outcome));
    count
}

#[test]
fn at_most_the_limit_are_in_flight_and_permits_come_back() {
    let (gate, _) = build(AdaptiveConcurrency::builder().min(1).max(3).start(2));
    let (first, second) = (gate.try_acquire().unwrap(), gate.try_acquire().unwrap());
    let refused = gate.try_acquire().unwrap_err();
    assert_eq!((refused.in_flight(), refused.limit()), (2, 2));
    assert_eq!(
        refused.to_string(),
        "adaptive concurrency limit reached (2 of 2 in flight)"
    );
    drop(first);
    assert_eq!(gate.in_flight(), 1);
    second.finish(RequestOutcome::Success);
    assert_eq!(gate.in_flight(), 0);
    assert!(gate.try_acquire().is_ok());
}

#[test]
fn invalid_settings_are_clamped_to_their_range() {
    for (min, max, start, limit) in [
        (0, 0, 0, 1),
        (10, 5, 1, 10),
        (5, 200, 1_000, 200),
        (1, u64::MAX, u64::MAX, u64::from(u32::MAX)),
    ] {
        let (gate, _) = build(
            AdaptiveConcurrency::builder()
                .min(min)
                .max(max)
                .start(start),
        );
        assert_eq!(gate.limit(), limit, "{min} {max} {start}");
    }
    let odd = Control::gradient2()
        .tolerance(f64::NAN)
        .smoothing(f64::INFINITY)
        .queue(-1.0)
        .backoff(f64::NEG_INFINITY);
    let (gate, clock) = build(
        AdaptiveConcurrency::builder()
            .control(odd)
            .tolerate_drops(f64::NAN),
    );
    for _ in 0..100 {
        wave(&gate, &clock, MS, RequestOutcome::Success);
        assert!((5..=200).contains(&gate.limit()));
    }
}

#[test]
fn a_limit_in_use_grows_and_an_idle_one_does_not() {
    for control in [Control::aimd().into(), Control::from(Control::gradient2())] {
        let (gate, clock) = build(AdaptiveConcurrency::builder().control(control));
        for _ in 0..1_000 {
            let permit = gate.try_acquire().unwrap();
            clock.advance(10 * MS);
            permit.finish(RequestOutcome::Success);
        }
        assert_eq!(gate.limit(), 20, "{}", control.name());
        let mut most = 0;
        for _ in 0..500 {
            wave(&gate, &clock, 10 * MS, RequestOutcome::Success);
            most = most.max(gate.limit());
        }
        assert!(most > 40, "{}: {most}", control.name());
    }
}

#[test]
fn drops_shrink_every_control_to_its_least() {
    for control in [Control::aimd().into(), Control::from(Control::gradient2())] {
        let (gate, clock) = build(AdaptiveConcurrency::builder().min(7).control(control));
        for _ in 0..40 {
            wave(&gate, &clock, 60 * MS, RequestOutcome::Dropped);
        }
        assert_eq!(gate.limit(), 7, "{}", control.name());
        assert!(gate.snapshot().drops > 280);
    }
}

#[test]
fn requests_over_the_timeout_count_as_dropped() {
    let (gate, clock) =
        build(AdaptiveConcurrency::builder().control(Control::aimd().timeout(100 * MS)));
    wave(&gate, &clock, 99 * MS, RequestOutcome::Success);
    assert_eq!((gate.limit(), gate.snapshot().drops), (21, 0));
    wave(&gate, &clock, 200 * MS, RequestOutcome::Success);
    assert_eq!((gate.limit(), gate.snapshot().drops), (18, 21));
}

/// A small share of drops is not an overload; the share can be set.
#[test]
fn a_hundredth_may_be_dropped() {
    for (tolerated, limit) in [(None, 202), (Some(0.0), 180)] {
        let mut builder = AdaptiveConcurrency::builder()
            .start(200)
            .max(300)
            .control(Control::aimd());
        if let Some(share) = tolerated {
            builder = builder.tolerate_drops(share);
        }
        let (gate, clock) = build(builder);
        let held: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
        // The last requests saw the limit in full use.
        let mut held = held.into_iter().rev();
        // The first ten close the first window: none of them is dropped.
        held.by_ref()
            .take(10)
            .for_each(|permit| permit.finish(RequestOutcome::Success));
        assert_eq!(gate.limit(), 201);
        held.next().unwrap().finish(RequestOutcome::Dropped);
        held.by_ref()
            .take(150)
            .for_each(|permit| permit.finish(RequestOutcome::Success));
        clock.advance(Duration::from_secs(2));
        held.next().unwrap().finish(RequestOutcome::Success);
        assert_eq!(gate.limit(), limit);
    }
}

#[test]
fn a_permit_that_is_dropped_or_ignored_says_nothing() {
    let (gate, clock) = build(AdaptiveConcurrency::builder().control(Control::aimd().timeout(MS)));
    for _ in 0..50 {
        wave(
            &gate,
            &clock,
            Duration::from_secs(60),
            RequestOutcome::Ignored,
        );
        let held: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
        clock.advance(Duration::from_secs(60));
        drop(held);
    }
    let snapshot = gate.snapshot();
    assert_eq!(
        (snapshot.limit, snapshot.in_flight, snapshot.drops),
        (20, 0, 0)
    );
    assert_eq!((snapshot.short, snapshot.long), (None, None));
}

#[test]
fn a_snapshot_contains_the_latencies() {
    let (gate, clock) = build(AdaptiveConcurrency::builder());
    wave(&gate, &clock, 64 * MS, RequestOutcome::Success);
    let seen = gate.snapshot();
    assert_eq!((seen.short, seen.long), (Some(64 * MS), Some(64 * MS)));
    assert_eq!(
        (seen.min, seen.max, seen.in_flight, seen.probing),
        (5, 200, 0, false)
    );
}

/// Long requests, such as streams, must not keep a probe from ending.
#[test]
fn a_probe_ends_although_nothing_finishes() {
    let (gate, clock) = build(AdaptiveConcurrency::builder());
    let mut probed = false;
    for _ in 0..100 {
        let lasting: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
        clock.advance(60 * MS);
        let mut lasting = lasting.into_iter();
        lasting
            .by_ref()
            .take(10)
            .for_each(|permit| permit.finish(RequestOutcome::Success));
        if gate.snapshot().probing {
            probed = true;
            let (low, held) = (gate.limit(), gate.in_flight());
            assert!(low <= held, "{low} {held}");
            assert!(gate.try_acquire().is_err());
            clock.advance(Duration::from_secs(10));
            assert!(gate.try_acquire().is_err());
            assert!(!gate.snapshot().probing);
            assert!(gate.limit() > low);
            assert!(gate.try_acquire().is_ok());
            break;
        }
        lasting.for_each(|permit| permit.finish(RequestOutcome::Success));
    }
    assert!(probed);
}

#[test]
fn many_threads_never_hold_more_than_the_greatest_limit_and_lose_no_permit() {
    let gate = AdaptiveConcurrency::builder()
        .min(2)
        .max(6)
        .start(4)
        .window(Duration::ZERO)
        .build();
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (gate, inside, most) = (gate.clone(), &inside, &most);
            scope.spawn(move || {
                for i in 0..2_000 {
                    let Ok(permit) = gate.try_acquire() else {
                        continue;
                    };
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    match (i + thread) % 5 {
                        0 => drop(permit),
                        1 => permit.finish(RequestOutcome::Dropped),
                        _ => permit.finish(RequestOutcome::Success),
                    }
                }
            });
        }
    });
    assert!(most.into_inner() <= 6);
    assert_eq!(gate.in_flight(), 0);
    assert!((2..=6).contains(&gate.limit()));
    assert!(gate.snapshot().short.is_some());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    Finish(usize, RequestOutcome),
    Drop(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Acquire),
        4 => (any::<usize>(), prop_oneof![4 => Just(RequestOutcome::Success), 1 => Just(RequestOutcome::Dropped), 1 => Just(RequestOutcome::Ignored)])
            .prop_map(|(which, outcome)| Step::Finish(which, outcome)),
        1 => any::<usize>().prop_map(Step::Drop),
        2 => (0..3_000_000_000_u64).prop_map(Step::Wait),
    ]
}

fn controls() -> impl Strategy<Value = Control> {
    prop_oneof![
        Just(Control::aimd().timeout(Duration::from_millis(700)).into()),
        Just(Control::gradient2().into()),
        Just(
            Control::gradient2()
                .smoothing(1.0)
                .probe_every(Duration::ZERO)
                .into()
        ),
    ]
}

proptest! {
    /// The limit stays in its range, a permit is given if and only if the limit allows it, and none
    /// is lost.
    #[test]
    fn any_order_of_calls_keeps_to_the_limit(
        control in controls(), min in 1..10_u64, more in 0..30_u64, start in 0..50_u64,
        steps in prop::collection::vec(steps(), 0..400),
    ) {
        let builder = AdaptiveConcurrency::builder().min(min).max(min + more).start(start).control(control);
        let (gate, clock) = build(builder);
        let mut held = Vec::new();
        for step in steps {
            let limit = gate.limit();
            prop_assert!((min..=min + more).contains(&limit));
            match step {
                Step::Acquire => match gate.try_acquire() {
                    Ok(permit) => {
                        held.push(permit);
                        prop_assert!(held.len() as u64 <= limit);
                    }
                    Err(_) => prop_assert!(held.len() as u64 >= limit),
                },
                Step::Finish(which, outcome) if !held.is_empty() => {
                    held.swap_remove(which % held.len()).finish(outcome);
                }
                Step::Drop(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                Step::Wait(nanos) => clock.advance(Duration::from_nanos(nanos)),
                _ => {}
            }
            prop_assert_eq!(gate.in_flight(), held.len() as u64);
        }
        drop(held);
        prop_assert_eq!(gate.in_flight(), 0);
    }
}

/// More requests than a window holds: a sample is measured and stands for all of them, with times
/// of the caller or of the clock.
#[test]
fn one_in_twenty_dropped_is_too_many_at_any_rate() {
    const RATE: u64 = 1_000_000;
    for known in [false, true] {
        for (every, shrinks) in [(20, true), (1_000, false)] {
            let (gate, clock) = build(
                AdaptiveConcurrency::builder()
                    .min(5)
                    .max(100)
                    .start(50)
                    .control(Control::aimd()),
            );
            for request in 0..RATE {
                let now = clock.now();
                let permit = if known {
                    gate.try_acquire_at(now)
                } else {
                    gate.try_acquire()
                }
                .expect("room");
                clock.advance(Duration::from_secs(1) / RATE as u32);
                let outcome = if request % every == every - 1 {
                    RequestOutcome::Dropped
                } else {
                    RequestOutcome::Success
                };
                if known {
                    permit.finish_at(outcome, clock.now());
                } else {
                    permit.finish(outcome);
                }
            }
            assert_eq!(
                gate.limit() < 50,
                shrinks,
                "one in {every}, {}",
                gate.limit()
            );
        }
    }
}
