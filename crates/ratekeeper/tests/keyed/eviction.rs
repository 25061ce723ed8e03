//! Charges of an evicted key are not refunded, whichever slots the key has been in since.
//!
//! The table has one cache line of four slots, and helper keys that are far from fresh push the key
//! from slot to slot.

use super::common::traces::cases;
use proptest::prelude::*;
use ratekeeper::{
    Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore, Verdict, limiter::Carry,
    store::LimitHandle,
};
use std::time::Duration;

const WINDOWS_AND_BUCKETS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
    Algorithm::FixedWindowFirstHit,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
    Algorithm::SlidingLog,
];

struct FullTable {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    limit: LimitHandle,
    /// One unit refills in a second.
    helpers: LimitHandle,
}

impl FullTable {
    fn new(limit: Limit) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(2)
            .clock(clock.clone())
            .build();
        let limit = store.limit("limit", limit).unwrap();
        let helpers = store
            .limit("helpers", Limit::per_second(1).burst(1_000_000))
            .unwrap();
        Self {
            store,
            clock,
            limit,
            helpers,
        }
    }

    fn take_from(&self, limit: &LimitHandle, key: &str, cost: u64) -> Verdict {
        let verdict = self
            .store
            .decide_now(&[Ask::new(limit, key).cost(cost)], self.clock.now());
        assert!(verdict.is_allowed(), "{cost} of {key}");
        verdict
    }

    /// The key takes `cost`; the key nearest to fresh is evicted for it.
    fn take(&self, cost: u64) -> Verdict {
        self.take_from(&self.limit, "key", cost)
    }

    /// A helper is inserted, `seconds` from fresh; the key nearest to fresh is evicted for it.
    fn insert_helper(&self, name: &str, seconds: u64) {
        drop(self.take_from(&self.helpers, name, seconds));
    }

    fn settle(&self, verdict: Verdict) {
        self.store.settle_now(verdict, &[0], self.clock.now());
    }

    /// Returns how many more units are allowed.
    fn take_one_by_one(&self, max: u64) -> u64 {
        let is_allowed = || {
            self.store
                .decide_now(&[Ask::new(&self.limit, "key")], self.clock.now())
                .is_allowed()
        };
        (0..max).take_while(|_| is_allowed()).count() as u64
    }
}

#[test]
fn a_refund_in_another_slot_is_not_repeated_in_the_first() {
    let table = FullTable::new(Limit::per_second(1).burst(100));
    let first = table.take(50);
    table.insert_helper("a", 200);
    table.insert_helper("b", 1_000);
    table.insert_helper("c", 1_000);
    table.insert_helper("d", 300); // where the key was
    let second = table.take(49); // where a was
    table.insert_helper("e", 400);
    drop(table.take(1)); // where d was
    table.settle(first);
    table.clock.advance(Duration::from_secs(50));
    let mut allowed = table.take_one_by_one(1_000);
    table.insert_helper("f", 500);
    table.clock.advance(Duration::from_secs(1));
    allowed += table.take_one_by_one(1); // where e was
    table.settle(second);
    allowed += table.take_one_by_one(1_000);
    assert!(allowed <= 101, "{allowed}");
}

#[test]
fn a_reset_while_a_key_is_evicted_invalidates_earlier_charges() {
    for algorithm in WINDOWS_AND_BUCKETS {
        let table = FullTable::new(Limit::per_minute(6).algorithm(algorithm));
        let before = table.take(5);
        table.insert_helper("a", 500);
        table.insert_helper("b", 1_000);
        table.insert_helper("c", 1_000);
        table.insert_helper("d", 600); // where the key was
        table.store.reset(&table.limit, b"key"); // where a was
        drop(table.take(5));
        table.insert_helper("e", 2_000);
        let mut allowed = 5 + table.take_one_by_one(1); // where d was
        table.settle(before);
        allowed += table.take_one_by_one(100);
        assert!(allowed <= 6, "{algorithm}: {allowed}");
    }
}

/// It is counted, unless it has refilled by itself.
#[test]
fn a_refund_lost_to_an_evicted_key_is_counted() {
    for algorithm in WINDOWS_AND_BUCKETS {
        for (later, counted) in [(0, 2), (7_200, 0)] {
            let table = FullTable::new(Limit::per_hour(10).burst(5).algorithm(algorithm));
            let charged = table.take(2);
            for helper in ["a", "b", "c", "d"] {
                table.insert_helper(helper, 100_000);
            }
            table.clock.advance(Duration::from_secs(later));
            let left = table.take_one_by_one(0);
            table.settle(charged);
            assert_eq!(
                (
                    table.take_one_by_one(0),
                    table.store.adjustments(&table.limit).not_returned
                ),
                (left, counted),
                "{algorithm}"
            );
        }
    }
}

/// For a queue too: the last slot before a reset is not the last one after it.
#[test]
fn a_paced_slot_from_before_a_reset_is_not_cancelled_after_it() {
    let limit = Limit::per_second(1).algorithm(Algorithm::Pacing);
    let keyed = Keyed::<str, _>::builder(limit)
        .clock(ManualClock::new())
        .build();
    let key = keyed.key("key");
    let before = [key.reserve(1).unwrap(), key.reserve(1).unwrap()];
    key.reset();
    let after = [key.reserve(1).unwrap(), key.reserve(1).unwrap()];
    for slot in before.into_iter().rev() {
        slot.cancel();
    }
    assert_eq!(after.each_ref().map(|slot| slot.delay().as_secs()), [0, 1]);
    assert!(key.reserve(1).is_err(), "two are as many as may wait");
    let [_, last] = after;
    last.cancel();
    assert_eq!(key.reserve(1).unwrap().delay(), Duration::from_secs(1));
}

/// However often a key was reset since: nothing is refunded.
#[test]
fn many_resets_do_not_make_a_reservation_valid_again() {
    // As many ticks as there can be.
    let keyed = Keyed::<str, _>::builder(Limit::per_day(1).burst(50_000))
        .clock(ManualClock::new())
        .build();
    let key = keyed.key("key");
    for resets in 1..5 {
        assert!(key.check_n(50_000).is_allowed());
        let slot = key.reserve(1).unwrap();
        for _ in 0..resets {
            key.reset();
            assert!(key.check_n(50_000).is_allowed());
        }
        let before = key.tokens();
        slot.cancel();
        assert_eq!(key.tokens(), before, "{resets}");
        keyed.set_limit_with(keyed.limit(), Carry::Reset);
    }
}

/// One step: on the key, or on helpers.
#[derive(Clone, Debug)]
enum Step {
    /// Asks for these costs in one request, each by itself.
    Take(Vec<u64>),
    /// Settles one outstanding verdict, at this many eighths.
    Settle(usize, u64),
    HelperComes(u64),
    Pass(u64),
    TakesAll,
}

fn steps(helpers: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(1_u64..=6, 1..3).prop_map(Step::Take),
        4 => (0_usize..8, prop_oneof![3 => Just(0), 1 => 0_u64..8]).prop_map(|(which, eighths)| Step::Settle(which, eighths)),
        helpers => prop_oneof![1_u64..20, 20_u64..2_000].prop_map(Step::HelperComes),
        3 => (1_u64..6).prop_map(Step::Pass),
        1 => Just(Step::TakesAll),
    ]
}

proptest! {
    #![proptest_config(cases(500))]

    /// P1 on the settled cost: in no interval is it more than a burst and what the interval
    /// refills.
    #[test]
    fn refunds_never_exceed_charges_wherever_a_key_has_been(
        steps in prop_oneof![prop::collection::vec(steps(0), 1..60), prop::collection::vec(steps(8), 1..60)],
    ) {
        const BURST: u64 = 10;
        let table = FullTable::new(Limit::per_second(1).burst(BURST));
        let start = table.clock.now();
        let second = || table.clock.now().saturating_since(start).as_secs();
        // When, and the settled cost.
        let mut net: Vec<(u64, u64)> = Vec::new();
        let mut outstanding: Vec<(Verdict, Vec<usize>)> = Vec::new();
        for (number, step) in steps.into_iter().chain([Step::TakesAll]).enumerate() {
            match step {
                Step::Take(costs) => {
                    let asks: Vec<_> = costs.iter().map(|cost| Ask::new(&table.limit, "key").cost(*cost)).collect();
                    let verdict = table.store.decide_now(&asks, table.clock.now());
                    if verdict.is_allowed() {
                        let first = net.len();
                        net.extend(costs.iter().map(|cost| (second(), *cost)));
                        outstanding.push((verdict, (first..net.len()).collect()));
                    }
                }
                Step::Settle(which, eighths) if !outstanding.is_empty() => {
                    let (verdict, of) = outstanding.swap_remove(which % outstanding.len());
                    let actual: Vec<_> = of.iter().map(|at| net[*at].1 * eighths / 8).collect();
                    of.iter().zip(&actual).for_each(|(at, actual)| net[*at].1 = *actual);
                    table.store.settle_now(verdict, &actual, table.clock.now());
                }
                Step::Settle(..) => {}
                Step::HelperComes(seconds) => {
                    let name = format!("helper {number}");
                    let ask = Ask::new(&table.helpers, &name).cost(seconds);
                    drop(table.store.decide_now(&[ask], table.clock.now()));
                }
                Step::Pass(seconds) => table.clock.advance(Duration::from_secs(seconds)),
                Step::TakesAll => net.push((second(), table.take_one_by_one(1_000))),
            }
        }
        for (from, _) in &net {
            for (to, _) in &net {
                let within = net.iter().filter(|(at, _)| (from..=to).contains(&at)).map(|(_, cost)| cost);
                let bound = BURST + to.saturating_sub(*from);
                prop_assert!(from > to || within.clone().sum::<u64>() <= bound, "from {} to {}: {:?}", from, to, net);
            }
        }
    }
}
