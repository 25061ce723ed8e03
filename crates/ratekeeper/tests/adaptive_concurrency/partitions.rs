//! Partitions: guaranteed shares come out of the limit, never on top, and are free when their owner
//! comes.

use proptest::prelude::*;
use ratekeeper::ManualClock;
use ratekeeper::adaptive::{
    AdaptiveConcurrency, AdaptivePermit, Control, Partition, RequestOutcome,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn shares_come_out_of_the_whole() {
    let builder = || {
        AdaptiveConcurrency::builder()
            .partition("live", 0.6)
            .unwrap()
    };
    let over = builder().partition("batch", 0.5).unwrap_err();
    assert_eq!(
        over.to_string(),
        "the partition batch cannot have 0.5 of the limit; set a share from 0 to 0.4, which is left"
    );
    let twice = builder().partition("live", 0.1).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "the partition live is defined twice; use each name once"
    );
    for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(
            AdaptiveConcurrency::builder()
                .partition("odd", share)
                .is_err(),
            "{share}"
        );
    }
    // Ten times a tenth is all of it, despite float rounding.
    let mut all = AdaptiveConcurrency::builder();
    for i in 0..10 {
        all = all.partition(format!("p{i}"), 0.1).unwrap();
    }
    assert!(all.clone().partition("one too many", 0.000_001).is_err());
    assert!(all.partition("nothing", 0.0).is_ok());
}

#[test]
fn an_unknown_name_is_no_partition() {
    let gate = AdaptiveConcurrency::builder()
        .partition("live", 0.5)
        .unwrap()
        .build();
    assert!(gate.partition("dead").is_none());
    assert_eq!(gate.in_flight_in(gate.partition("live").unwrap()), (0, 10));
}

#[test]
fn borrowed_permits_are_given_back_first() {
    let gate = AdaptiveConcurrency::builder()
        .start(10)
        .partition("live", 0.5)
        .unwrap()
        .build();
    let live = gate.partition("live").unwrap();
    let mut held: Vec<_> = (0..8).map(|_| gate.try_acquire_in(live).unwrap()).collect();
    assert_eq!(gate.in_flight_in(live), (8, 5));
    held.truncate(5);
    // Only its guarantee is left to it, so all the rest is available to others.
    let others: Vec<_> = std::iter::from_fn(|| gate.try_acquire().ok()).collect();
    assert_eq!(others.len(), 5);
    drop(held);
    let refused = gate.try_acquire().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "adaptive concurrency limit reached (5 of 10 in flight, the rest is reserved)"
    );
    let owner: Vec<_> = std::iter::from_fn(|| gate.try_acquire_in(live).ok()).collect();
    assert_eq!(owner.len(), 5);
}

/// A limit that shrinks may leave more permits in flight than it allows; then none is given on top,
/// and the owner of a guarantee comes first.
#[test]
fn after_the_limit_shrank_the_owner_is_served_first() {
    let clock = ManualClock::new();
    let builder = AdaptiveConcurrency::builder()
        .start(20)
        .min(10)
        .control(Control::aimd().backoff(0.5));
    let gate = builder
        .partition("live", 0.5)
        .unwrap()
        .build_with_clock(clock.clone());
    let live = gate.partition("live").unwrap();
    let mut lives: Vec<_> = std::iter::from_fn(|| gate.try_acquire_in(live).ok()).collect();
    assert_eq!(lives.len(), 20);
    lives
        .drain(10..)
        .for_each(|permit| permit.finish(RequestOutcome::Dropped));
    assert_eq!((gate.limit(), gate.in_flight_in(live)), (10, (10, 5)));
    assert!(gate.try_acquire_in(live).is_err());
    assert!(gate.try_acquire().is_err());
    lives.truncate(4);
    assert!(gate.try_acquire_in(live).is_ok());
}

#[test]
fn threads_never_exceed_the_limit_and_lose_no_permit() {
    let builder = AdaptiveConcurrency::builder()
        .min(4)
        .max(12)
        .start(8)
        .window(Duration::ZERO);
    let gate = builder
        .partition("a", 0.5)
        .unwrap()
        .partition("b", 0.25)
        .unwrap()
        .build();
    let parts = [gate.partition("a"), gate.partition("b"), None];
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (gate, inside, most) = (&gate, &inside, &most);
            scope.spawn(move || {
                for i in 0..2_000 {
                    let Ok(permit) = acquire(gate, parts[thread % 3]) else {
                        continue;
                    };
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    permit.finish(if i % 7 == 0 {
                        RequestOutcome::Dropped
                    } else {
                        RequestOutcome::Success
                    });
                }
            });
        }
    });
    assert!(most.into_inner() <= 12);
    assert_eq!(gate.in_flight(), 0);
    for part in parts.into_iter().flatten() {
        assert_eq!(gate.in_flight_in(part).0, 0);
    }
    // Nothing was lost: all of the limit is available again.
    let held: Vec<_> = std::iter::from_fn(|| gate.try_acquire_in(parts[0]?).ok()).collect();
    let rest: Vec<_> = std::iter::from_fn(|| gate.try_acquire_in(parts[1]?).ok()).collect();
    assert_eq!((held.len() + rest.len()) as u64, gate.limit());
}

fn acquire<C: ratekeeper::Clock>(
    gate: &AdaptiveConcurrency<C>,
    partition: Option<Partition>,
) -> Result<AdaptivePermit<C>, ratekeeper::adaptive::AtCapacityError> {
    match partition {
        Some(partition) => gate.try_acquire_in(partition),
        None => gate.try_acquire(),
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(usize),
    Finish(usize, bool),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<usize>().prop_map(Step::Acquire),
        4 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(which, dropped)| Step::Finish(which, dropped)),
        1 => (0..200_000_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// The rule, on a limit that moves: with `n` of `limit` in flight, a caller gets a permit if
    /// its partition is under its guarantee and `n < limit`; beyond it, if the idle guarantees of
    /// others also fit beside it. If the limit has not shrunk, the first of the two always holds:
    /// an idle guarantee is available at once.
    #[test]
    fn guarantees_are_kept(
        shares in prop::collection::vec(0..500_u32, 1..4),
        moving in any::<bool>(),
        steps in prop::collection::vec(steps(), 0..300),
    ) {
        let clock = ManualClock::new();
        let mut builder = AdaptiveConcurrency::builder().min(3).max(40).start(20).control(Control::aimd());
        if !moving {
            builder = builder.min(20).max(20);
        }
        let mut parts = vec![None];
        for (i, share) in shares.iter().enumerate() {
            // A share that does not fit any more is an error.
            if let Ok(with) = builder.clone().partition(format!("p{i}"), f64::from(*share) / 1_000.0) {
                builder = with;
            }
        }
        let gate = builder.build_with_clock(clock.clone());
        parts.extend((0..shares.len()).filter_map(|i| gate.partition(&format!("p{i}"))).map(Some));
        let mut held: Vec<(Option<Partition>, AdaptivePermit<ManualClock>)> = Vec::new();
        for step in steps {
            match step {
                Step::Acquire(which) => {
                    let part = parts[which % parts.len()];
                    let (limit, out) = (gate.limit(), held.len() as u64);
                    let idle: u64 = parts.iter().flatten().map(|part| {
                        let (own, guaranteed) = gate.in_flight_in(*part);
                        guaranteed.saturating_sub(own)
                    }).sum();
                    let under = part.is_some_and(|part| {
                        let (own, guaranteed) = gate.in_flight_in(part);
                        own < guaranteed
                    });
                    let given = acquire(&gate, part);
                    if given.is_ok() {
                        prop_assert!(out < limit);
                        prop_assert!(under || moving || out + 1 + idle <= limit);
                    }
                    if under && out < limit {
                        prop_assert!(given.is_ok(), "a guarantee was not there");
                    }
                    if !moving {
                        prop_assert!(!under || given.is_ok());
                        prop_assert_eq!(given.is_ok(), under || out + 1 + idle <= limit);
                    }
                    held.extend(given.ok().map(|permit| (part, permit)));
                }
                Step::Finish(which, dropped) if !held.is_empty() => {
                    let (_, permit) = held.swap_remove(which % held.len());
                    permit.finish(if dropped { RequestOutcome::Dropped } else { RequestOutcome::Success });
                }
                Step::Wait(nanos) => clock.advance(Duration::from_nanos(nanos)),
                _ => {}
            }
            prop_assert_eq!(gate.in_flight(), held.len() as u64);
            for part in parts.iter().flatten() {
                let mine = held.iter().filter(|(of, _)| of == &Some(*part)).count() as u64;
                prop_assert_eq!(gate.in_flight_in(*part).0, mine);
            }
        }
    }
}
