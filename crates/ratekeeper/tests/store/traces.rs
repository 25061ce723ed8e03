//! Random calls with several asks each, compared with the reference.

use super::common::traces::{Step, any_limits, cases, instant, moved_by, same_kind, steps};
use super::reference::{Reference, ReferenceAsk, ReferenceResult};
use proptest::prelude::*;
use ratekeeper::{
    Algorithm, Ask, Clock, Limit, ManualClock, MemoryStore, Mode, Outcome, Verdict,
    store::AskOutcome, store::LimitHandle, store::Source,
};
use ratekeeper_testkit::DecisionInfo;
use ratekeeper_testkit::bounds::{self, AllowedCall};
use std::collections::BTreeMap;
use std::time::Duration;

type Store = MemoryStore<ManualClock>;

fn store(limits: &[Limit], max_keys: usize) -> (Store, ManualClock, Vec<LimitHandle>) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(max_keys)
        .clock(clock.clone())
        .build();
    let handles = limits
        .iter()
        .enumerate()
        .map(|(i, limit)| store.limit(&format!("limit-{i}"), *limit).unwrap())
        .collect();
    (store, clock, handles)
}

fn decide(store: &Store, handles: &[LimitHandle], asks: &[ReferenceAsk], now: u64) -> Verdict {
    let keys: Vec<_> = asks.iter().map(|ask| ask.key.to_be_bytes()).collect();
    let asks: Vec<_> = asks
        .iter()
        .zip(&keys)
        .map(|(asked, key)| {
            let ask = Ask::new(&handles[asked.limit], key)
                .cost(asked.cost)
                .mode(asked.mode);
            let ask = if asked.reserve > 0 {
                ask.reserve(asked.reserve)
            } else {
                ask
            };
            if asked.max_wait.is_zero() {
                ask
            } else {
                ask.max_wait(asked.max_wait)
            }
        })
        .collect();
    store.decide_now(&asks, instant(now))
}

#[derive(Clone, Copy, Debug)]
struct Pick {
    limit: usize,
    key: u64,
    cost: u64,
    reserve: u64,
    mode: Mode,
    wait: u64,
}

fn picks() -> impl Strategy<Value = Vec<Pick>> {
    let mode =
        prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Peek)];
    let cost = prop_oneof![1 => Just(0_u64), 6 => Just(1_u64), 3 => 2_u64..5, 1 => Just(u64::MAX)];
    let reserve = prop_oneof![5 => Just(0_u64), 1 => 1_u64..5];
    let wait = prop_oneof![3 => Just(0_u64), 1 => 1_u64..200];
    let pick = (0_usize..4, 0_u64..3, cost, reserve, mode, wait).prop_map(
        |(limit, key, cost, reserve, mode, wait)| Pick {
            limit,
            key,
            cost,
            reserve,
            mode,
            wait,
        },
    );
    prop_oneof![6 => prop::collection::vec(pick.clone(), 1..4), 1 => prop::collection::vec(pick, 8..12)]
}

/// Asks of one limit and key have the same parameters; queues and windows have no reserves and no
/// maximum wait.
fn asked(picks: &[Pick], limits: &[Limit]) -> Vec<ReferenceAsk> {
    let mut first: BTreeMap<(usize, u64), Pick> = BTreeMap::new();
    picks
        .iter()
        .map(|pick| {
            let like = *first.entry((pick.limit, pick.key)).or_insert(*pick);
            let bucket = matches!(
                limits[pick.limit].algorithm_kind(),
                Algorithm::TokenBucket | Algorithm::LeakyBucket
            );
            let queue = limits[pick.limit].algorithm_kind() == Algorithm::Pacing;
            let unit = limits[pick.limit]
                .fills_in()
                .map_or(1_000, |fill| fill.as_nanos() as u64 / 64)
                .max(1);
            ReferenceAsk {
                limit: pick.limit,
                key: pick.key,
                cost: pick.cost,
                // What a class that may use nothing sees is not specified.
                reserve: if queue {
                    0
                } else {
                    like.reserve
                        .min(limits[pick.limit].capacity().saturating_sub(1))
                },
                mode: like.mode,
                max_wait: if bucket {
                    Duration::from_nanos(like.wait * unit)
                } else {
                    Duration::ZERO
                },
            }
        })
        .collect()
}

fn assert_expected(
    verdict: &Verdict,
    expected: &ReferenceResult,
    asks: &[ReferenceAsk],
) -> Result<(), TestCaseError> {
    prop_assert_eq!(verdict.is_allowed(), expected.allowed, "{:?}", expected);
    prop_assert_eq!(verdict.is_never(), expected.never, "{:?}", expected);
    prop_assert_eq!(
        verdict.retry_after(),
        expected.retry_after,
        "{:?}",
        expected
    );
    prop_assert_eq!(verdict.delay(), expected.delay, "{:?}", expected);
    prop_assert_eq!(verdict.source(), Source::Memory);
    match verdict.binding() {
        None => prop_assert!(expected.allowed, "{:?}", expected),
        Some(index) => prop_assert!(
            expected.binding.contains(&index),
            "{} of {:?}",
            index,
            expected
        ),
    }
    prop_assert_eq!(verdict.results().count(), asks.len());
    for ((status, answer), ask) in verdict.results().zip(&expected.answer).zip(asks) {
        let outcome = match (answer.outcome, ask.mode) {
            (Outcome::Allowed, _) if answer.delay.is_zero() => AskOutcome::Allowed,
            (Outcome::Allowed, _) => AskOutcome::Delayed,
            (_, Mode::Shadow) => AskOutcome::ShadowDenied,
            (Outcome::Denied, _) => AskOutcome::Denied,
            (Outcome::Never, _) => AskOutcome::Never,
        };
        prop_assert_eq!(status.outcome(), outcome, "{:?} of {:?}", ask, expected);
        prop_assert_eq!(
            DecisionInfo::from(status.decision()),
            *answer,
            "{:?} of {:?}",
            ask,
            expected
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    /// Decisions, their numbers and the binding limit, for any asks, with a slot for every key.
    #[test]
    fn the_store_decides_as_the_reference(
        limits in prop::collection::vec(any_limits(), 4),
        changes in prop::collection::vec((0_usize..4, 1_u64..=9, 1_u64..=9), 2),
        calls in prop::collection::vec((picks(), steps(), prop::option::weighted(0.03, 0_usize..2)), 1..60),
    ) {
        let (store, clock, handles) = store(&limits, 4_096);
        let mut limits = limits;
        let mut reference = Reference::new(&limits);
        let mut now = clock.now().as_unix_nanos();
        for (picks, step, change) in calls {
            let Step::On(_) = step else { continue };
            moved_by(&mut now, step, &limits[0]);
            clock.set(instant(now));
            let asks = asked(&picks, &limits);
            if reference.is_silent_on(&asks, now) {
                continue;
            }
            let expected = reference.decide(&asks, now);
            let verdict = decide(&store, &handles, &asks, now);
            assert_expected(&verdict, &expected, &asks)?;
            if let Some((which, count, other)) = change.map(|change| changes[change])
                && let Some(next) = same_kind(&limits[which], (count, other))
                // What a fresh key has after a change depends on whether it was evicted: see the
                // keyed tests.
                && next.capacity() <= limits[which].capacity()
            {
                store.set_limit(&handles[which], next);
                limits[which] = next;
                reference.keep(which, next, now);
            }
        }
    }

    /// With few slots: no key of any limit exceeds its bound, at stale instants neither.
    #[test]
    fn no_key_of_any_limit_exceeds_its_bound(
        counts in prop::collection::vec((prop::sample::select(Algorithm::ALL.to_vec()), 1_u64..5, 40_u64..200), 4),
        max_keys in 1_usize..20,
        calls in prop::collection::vec(
            (prop::collection::vec((0_usize..4, 0_u64..30, 1_u64..3), 1..5), 0_u64..60, prop_oneof![3 => Just(0), 1 => 0_u64..90]),
            1..120,
        ),
    ) {
        let limits: Vec<_> = counts
            .iter()
            .map(|(algorithm, count, window)| match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    Limit::of(1, Duration::from_nanos(window / 4)).burst(*count).algorithm(*algorithm)
                }
                Algorithm::Pacing => Limit::of(1, Duration::from_nanos(window / 4)).paced_max_queue(*count),
                _ => Limit::of(*count, Duration::from_nanos(*window)).algorithm(*algorithm),
            })
            .collect();
        let (store, clock, handles) = store(&limits, max_keys);
        let mut allowed: BTreeMap<(usize, u64), Vec<AllowedCall>> = BTreeMap::new();
        for (asks, pass, back) in calls {
            clock.advance(Duration::from_nanos(pass));
            let now = clock.now().as_unix_nanos() - back;
            let wait = Duration::ZERO;
            let asks: Vec<_> = asks
                .into_iter()
                .map(|(limit, key, cost)| ReferenceAsk { limit, key, cost, reserve: 0, mode: Mode::Enforce, max_wait: wait })
                .collect();
            let verdict = decide(&store, &handles, &asks, now);
            prop_assert_eq!(verdict.is_allowed(), verdict.binding().is_none());
            if !verdict.is_allowed() {
                continue;
            }
            let mut merged: BTreeMap<(usize, u64), AllowedCall> = BTreeMap::new();
            for (ask, status) in asks.iter().zip(verdict.results()) {
                let delay = status.decision().delay().as_nanos() as u64;
                merged.entry((ask.limit, ask.key)).or_insert(AllowedCall { at: now, cost: 0, delay }).cost += ask.cost;
            }
            for (at, call) in merged {
                // A window or log judges a stale call at its stored instant, which is not visible
                // from outside.
                let judged_by = limits[at.0].algorithm_kind();
                let bucket = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Pacing].contains(&judged_by);
                if bucket || back == 0 {
                    allowed.entry(at).or_default().push(call);
                }
            }
        }
        for ((limit, key), allowed) in allowed {
            let limit = &limits[limit];
            prop_assert_eq!(bounds::violation(limit, &allowed), None, "{} key {}: {:?}", limit, key, allowed);
        }
    }

    /// Verdicts that are held and settled later, in a table of few slots: on the net cost no key is
    /// above its bound, and permits in flight never exceed the limit, whatever is evicted.
    #[test]
    fn refunds_of_verdicts_keep_every_bound(
        algorithms in prop::collection::vec(prop::sample::select(vec![
            Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog,
            Algorithm::SlidingWindowStrict,
        ]), 3),
        max_keys in prop_oneof![1_usize..20, Just(500)],
        calls in prop::collection::vec(
            (prop::collection::vec((0_usize..4, 0_u64..12, 1_u64..4), 1..5), 0_u64..60, any::<prop::sample::Index>(), 0_u64..6),
            1..120,
        ),
    ) {
        let limits: Vec<_> = algorithms
            .iter()
            .map(|algorithm| match algorithm {
                Algorithm::TokenBucket => Limit::of(1, Duration::from_nanos(20)).burst(4),
                _ => Limit::of(4, Duration::from_nanos(100)).algorithm(*algorithm),
            })
            .collect();
        let (store, clock, mut handles) = store(&limits, max_keys);
        handles.push(store.concurrency("slots", 3).unwrap());
        let mut allowed: BTreeMap<(usize, u64), Vec<AllowedCall>> = BTreeMap::new();
        let mut flying: BTreeMap<u64, u64> = BTreeMap::new();
        let mut held: Vec<(Verdict, Vec<ReferenceAsk>, Vec<usize>)> = Vec::new();
        for (asks, pass, which, actual) in calls {
            clock.advance(Duration::from_nanos(pass));
            let now = clock.now().as_unix_nanos();
            let mut known = Vec::new();
            let asks: Vec<_> = asks
                .into_iter()
                .map(|(limit, key, cost)| {
                    ReferenceAsk { limit, key, cost, reserve: 0, mode: Mode::Enforce, max_wait: Duration::ZERO }
                })
                .filter(|ask| {
                    let new = !known.contains(&(ask.limit, ask.key));
                    known.push((ask.limit, ask.key));
                    new
                })
                .collect();
            let verdict = decide(&store, &handles, &asks, now);
            if verdict.is_allowed() {
                let mut indices = Vec::new();
                for ask in &asks {
                    if ask.limit == 3 {
                        *flying.entry(ask.key).or_default() += ask.cost;
                        prop_assert!(flying[&ask.key] <= 3, "{} in flight of key {}", flying[&ask.key], ask.key);
                        indices.push(0);
                    } else {
                        let allowed = allowed.entry((ask.limit, ask.key)).or_default();
                        indices.push(allowed.len());
                        allowed.push(AllowedCall { at: now, cost: ask.cost, delay: 0 });
                    }
                }
                held.push((verdict, asks, indices));
            }
            if actual < 4 && !held.is_empty() {
                let (verdict, asks, indices) = held.swap_remove(which.index(held.len()));
                let mut costs = Vec::new();
                for (ask, index) in asks.iter().zip(indices) {
                    let cost = actual.min(ask.cost);
                    costs.push(cost);
                    match ask.limit {
                        3 => *flying.get_mut(&ask.key).expect("in flight") -= ask.cost,
                        _ => allowed.get_mut(&(ask.limit, ask.key)).expect("charged")[index].cost = cost,
                    }
                }
                store.settle_now(verdict, &costs, instant(now));
            }
        }
        for ((limit, key), allowed) in allowed {
            let limit = &limits[limit];
            prop_assert_eq!(bounds::violation(limit, &allowed), None, "{} key {}: {:?}", limit, key, allowed);
        }
        drop(held);
        prop_assert_eq!(store.live_keys(&handles[3]), 0, "every permit is back");
    }
}
