//! Detached verdicts: settled later by a receipt, once, as if they had been settled in place.

use proptest::prelude::*;
use ratekeeper::{
    Ask, Clock, Limit, ManualClock, MemoryStore, Mode, Timestamp, Verdict, store::AskOutcome,
    store::LimitHandle, store::SettleError,
};
use std::time::Duration;

type Store = MemoryStore<ManualClock>;

fn store() -> (Store, ManualClock) {
    let clock = ManualClock::new();
    (
        MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

fn later(clock: &ManualClock, seconds: u64) -> Timestamp {
    clock.now() + Duration::from_secs(seconds)
}

fn remaining(store: &Store, limit: &LimitHandle) -> u64 {
    let observed = store.decide_now(
        &[Ask::new(limit, "k").cost(0).mode(Mode::Peek)],
        store.clock().now(),
    );
    observed.results().next().unwrap().decision().remaining()
}

#[test]
fn a_receipt_settles_once() {
    let (store, clock) = store();
    let limit = store.limit("limit", Limit::per_hour(10)).unwrap();
    let verdict = store.decide_now(&[Ask::new(&limit, "k").cost(4)], clock.now());
    let receipt = store
        .detach_now(verdict, later(&clock, 60), clock.now())
        .unwrap();
    assert_eq!(remaining(&store, &limit), 6);
    assert_eq!(
        store.settle_detached_now(&receipt, &[1], clock.now()),
        Ok(())
    );
    assert_eq!(remaining(&store, &limit), 9);
    for _ in 0..3 {
        assert_eq!(
            store.settle_detached_now(&receipt, &[0], clock.now()),
            Err(SettleError::AlreadySettled)
        );
    }
    assert_eq!(remaining(&store, &limit), 9);
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        store.settle_detached_now(&receipt, &[0], clock.now()),
        Err(SettleError::Expired)
    );
}

#[test]
fn an_expired_receipt_refunds_nothing() {
    let (store, clock) = store();
    let limit = store
        .limit("limit", "10/d fixed_window".parse().unwrap())
        .unwrap();
    let verdict = store.decide_now(&[Ask::new(&limit, "k").cost(4)], clock.now());
    let receipt = store
        .detach_now(verdict, later(&clock, 60), clock.now())
        .unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        store.settle_detached_now(&receipt, &[0], clock.now()),
        Err(SettleError::Expired)
    );
    assert_eq!(remaining(&store, &limit), 6);
}

#[test]
fn permits_are_held_until_settled_or_expired() {
    let (store, clock) = store();
    let slots = store.concurrency("slots", 2).unwrap();
    let take = || store.decide_now(&[Ask::new(&slots, "k")], clock.now());
    let [settled, expired] = [10, 20].map(|seconds| {
        let verdict = take();
        assert!(verdict.is_allowed());
        store
            .detach_now(verdict, later(&clock, seconds), clock.now())
            .unwrap()
    });
    assert!(
        take().is_denied(),
        "both are out though both verdicts are gone"
    );
    assert_eq!(
        store.settle_detached_now(&settled, &[], clock.now()),
        Ok(())
    );
    assert_eq!(remaining(&store, &slots), 1);
    clock.advance(Duration::from_nanos(19_999_999_999));
    assert_eq!(remaining(&store, &slots), 1);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(
        remaining(&store, &slots),
        2,
        "the other came back by itself"
    );
    assert_eq!(
        store.settle_detached_now(&expired, &[], clock.now()),
        Err(SettleError::Expired)
    );
    assert_eq!(remaining(&store, &slots), 2);
}

#[test]
fn a_receipt_of_another_process_is_an_error() {
    let (first, clock) = store();
    let (second, _) = store();
    let limits = [&first, &second].map(|store| store.limit("limit", Limit::per_hour(10)).unwrap());
    let verdict = first.decide_now(&[Ask::new(&limits[0], "k").cost(4)], clock.now());
    let receipt = first
        .detach_now(verdict, later(&clock, 60), clock.now())
        .unwrap();
    drop(second.decide_now(&[Ask::new(&limits[1], "k").cost(4)], clock.now()));
    assert_eq!(
        second.settle_detached_now(&receipt, &[0], clock.now()),
        Err(SettleError::UnknownCharge)
    );
    assert_eq!(remaining(&second, &limits[1]), 6);
    for length in (0..receipt.len()).chain([receipt.len() + 1]) {
        let mut cut = receipt.clone();
        cut.resize(length, 0);
        assert_eq!(
            first.settle_detached_now(&cut, &[0], clock.now()),
            Err(SettleError::InvalidReceipt),
            "{length}"
        );
    }
}

#[test]
fn a_refund_lost_to_a_change_in_between_is_counted() {
    let (store, clock) = store();
    let limit = store.limit("limit", Limit::per_hour(10)).unwrap();
    let verdict = store.decide_now(&[Ask::new(&limit, "k").cost(4)], clock.now());
    let receipt = store
        .detach_now(verdict, later(&clock, 60), clock.now())
        .unwrap();
    store.set_limit(&limit, Limit::per_hour(20));
    assert_eq!(
        store.settle_detached_now(&receipt, &[1], clock.now()),
        Ok(())
    );
    assert_eq!(store.adjustments(&limit).not_returned, 3);
}

/// A limit, a key, a cost, a mode, and how many milliseconds the caller would wait.
type ReferenceAsk = (usize, u8, u64, Mode, Option<u64>);

#[derive(Clone, Debug)]
enum Step {
    Decide(Vec<ReferenceAsk>),
    Settle(usize, Vec<u64>),
    Drop(usize),
    Change(usize, u64),
    Advance(u64),
}

const LIMITS: [&str; 9] = [
    "10/s burst 5",
    "1/min burst 3",
    "10/s wait 250ms",
    "4/s fixed_window",
    "4/s fixed_window_first_hit",
    "5/s sliding_window",
    "6/s sliding_window_strict",
    "4/s sliding_log",
    "unlimited",
];

fn step() -> impl Strategy<Value = Step> {
    let mode =
        prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Peek)];
    let ask = (
        0..4_usize,
        0..2_u8,
        0..4_u64,
        mode,
        prop::option::of(0..2_000_u64),
    );
    prop_oneof![
        8 => prop::collection::vec(ask, 1..4).prop_map(Step::Decide),
        4 => (0..8_usize, prop::collection::vec(0..6_u64, 0..4)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => (0..8_usize).prop_map(Step::Drop),
        1 => (0..3_usize, 1..20_u64).prop_map(|(limit, to)| Step::Change(limit, to)),
        4 => (0..1_500_u64).prop_map(Step::Advance),
    ]
}

fn answer(verdict: &Verdict) -> Vec<(AskOutcome, u64, Option<Duration>, Duration, Duration)> {
    let one = |status: &ratekeeper::store::AskResult| {
        let decision = status.decision();
        (
            status.outcome(),
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
            decision.delay(),
        )
    };
    verdict.results().map(one).collect()
}

/// An unsettled verdict: itself, or its receipt.
#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Unsettled {
    Verdict(Verdict),
    Receipt(Vec<u8>),
}

/// Longer than any limit needs to refill, and a multiple of every window.
const LATER: Duration = Duration::from_secs(10 * 86_400);

/// One store, limits of it, and a clock. If keys share a bucket of its table, they share it in both
/// runs.
struct History {
    store: Store,
    clock: ManualClock,
    limits: Vec<(LimitHandle, Limit)>,
    slots: LimitHandle,
}

impl History {
    fn new(limits: [usize; 3]) -> Self {
        let (store, clock) = store();
        clock.set(Timestamp::from_unix(Duration::from_secs(1_700_000_000)));
        let limit = |at: usize| {
            let limit: Limit = LIMITS[at].parse().unwrap();
            (store.limit("x", limit).unwrap(), limit)
        };
        let (limits, slots) = (
            limits.map(limit).to_vec(),
            store.concurrency("slots", 3).unwrap(),
        );
        Self {
            store,
            clock,
            limits,
            slots,
        }
    }

    /// Runs a trace and returns its answers and counters; then advances the clock until all keys
    /// are fresh.
    fn run(
        &self,
        steps: &[Step],
        detached: bool,
    ) -> (Vec<impl PartialEq + core::fmt::Debug + use<>>, u64) {
        let Self {
            store,
            clock,
            limits,
            slots,
        } = self;
        let not_returned = || {
            limits
                .iter()
                .map(|(limit, _)| store.adjustments(limit).not_returned)
                .sum::<u64>()
        };
        let (begin, before) = (clock.now(), not_returned());
        let (mut observed, mut unsettled) = (Vec::new(), Vec::new());
        for step in steps {
            let now = clock.now();
            match step {
                Step::Decide(asked) => {
                    let keys: Vec<[u8; 1]> = asked.iter().map(|(_, key, ..)| [*key]).collect();
                    let ask = |(asked, key): (&ReferenceAsk, _)| {
                        let (limit, _, cost, mode, wait) = *asked;
                        let limit = limits.get(limit).map_or(slots, |(limit, _)| limit);
                        Ask {
                            limit,
                            key,
                            cost,
                            reserve: 0,
                            mode,
                            max_wait: wait.map(Duration::from_millis),
                        }
                    };
                    let asks: Vec<Ask<'_>> = asked
                        .iter()
                        .zip(keys.iter().map(|key| &key[..]))
                        .map(ask)
                        .collect();
                    let verdict = store.decide_now(&asks, now);
                    observed.push(answer(&verdict));
                    unsettled.push(match detached {
                        false => Unsettled::Verdict(verdict),
                        true => {
                            Unsettled::Receipt(store.detach_now(verdict, now + LATER, now).unwrap())
                        }
                    });
                }
                Step::Settle(which, actual) if *which < unsettled.len() => {
                    self.settle(unsettled.swap_remove(*which), actual);
                }
                Step::Drop(which) if *which < unsettled.len() => {
                    self.settle(unsettled.swap_remove(*which), &[]);
                }
                Step::Settle(..) | Step::Drop(_) => {}
                Step::Change(limit, to) => {
                    store.set_limit(&limits[*limit].0, Limit::per_second(*to));
                }
                Step::Advance(by) => clock.advance(Duration::from_millis(*by)),
            }
        }
        let counted = not_returned() - before;
        unsettled
            .into_iter()
            .for_each(|unsettled| self.settle(unsettled, &[]));
        limits
            .iter()
            .for_each(|(handle, limit)| store.set_limit(handle, *limit));
        clock.set(begin + LATER);
        (observed, counted)
    }

    fn settle(&self, unsettled: Unsettled, actual: &[u64]) {
        let now = self.clock.now();
        match unsettled {
            Unsettled::Verdict(verdict) => self.store.settle_now(verdict, actual, now),
            Unsettled::Receipt(receipt) => {
                assert_eq!(
                    self.store.settle_detached_now(&receipt, actual, now),
                    Ok(())
                );
                assert_eq!(
                    self.store.settle_detached_now(&receipt, &[0; 4], now),
                    Err(SettleError::AlreadySettled)
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn settling_by_receipt_equals_settling_in_place(
        limits in [0..LIMITS.len(), 0..LIMITS.len(), 0..LIMITS.len()],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let world = History::new(limits);
        // A key in the table keeps its tokens through a change, and one that is not has those of
        // the new limit: so all keys are inserted first.
        drop(world.run(&steps, false));
        let (itself, detached) = (world.run(&steps, false), world.run(&steps, true));
        prop_assert_eq!(itself, detached);
    }
}
