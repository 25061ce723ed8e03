//! What a key was charged before it was displaced does not come back, wherever it has been since.
//!
//! The table has one line of four slots, and helpers that are far from fresh push the key from slot
//! to slot.

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

struct Crowd {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    limit: LimitHandle,
    /// One unit is a second of it.
    helpers: LimitHandle,
}

impl Crowd {
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

    fn take(&self, limit: &LimitHandle, key: &str, cost: u64) -> Verdict {
        let verdict = self
            .store
            .decide_now(&[Ask::new(limit, key).cost(cost)], self.clock.now());
        assert!(verdict.is_allowed(), "{cost} of {key}");
        verdict
    }

    /// The key takes so much; whoever is nearest to fresh makes room for it.
    fn key_takes(&self, cost: u64) -> Verdict {
        self.take(&self.limit, "key", cost)
    }

    /// A helper comes and is so many seconds from fresh; whoever is nearest makes room for it.
    fn helper_comes(&self, name: &str, seconds: u64) {
        drop(self.take(&self.helpers, name, seconds));
    }

    fn settle(&self, verdict: Verdict) {
        self.store.settle_now(verdict, &[0], self.clock.now());
    }

    /// How many more pass.
    fn passes(&self, most: u64) -> u64 {
        let passes = || {
            self.store
                .decide_now(&[Ask::new(&self.limit, "key")], self.clock.now())
                .is_allowed()
        };
        (0..most).take_while(|_| passes()).count() as u64
    }
}

#[test]
fn what_came_back_in_another_slot_is_not_forgotten_in_the_first() {
    let crowd = Crowd::new(Limit::per_second(1).burst(100));
    let first = crowd.key_takes(50);
    crowd.helper_comes("a", 200);
    crowd.helper_comes("b", 1_000);
    crowd.helper_comes("c", 1_000);
    crowd.helper_comes("d", 300); // where the key was
    let second = crowd.key_takes(49); // where a was
    crowd.helper_comes("e", 400);
    drop(crowd.key_takes(1)); // where d was
    crowd.settle(first);
    crowd.clock.advance(Duration::from_secs(50));
    let mut passed = crowd.passes(1_000);
    crowd.helper_comes("f", 500);
    crowd.clock.advance(Duration::from_secs(1));
    passed += crowd.passes(1); // where e was
    crowd.settle(second);
    passed += crowd.passes(1_000);
    assert!(passed <= 101, "{passed}");
}

#[test]
fn a_reset_while_a_key_is_out_voids_what_it_was_charged_before() {
    for algorithm in WINDOWS_AND_BUCKETS {
        let crowd = Crowd::new(Limit::per_minute(6).algorithm(algorithm));
        let before = crowd.key_takes(5);
        crowd.helper_comes("a", 500);
        crowd.helper_comes("b", 1_000);
        crowd.helper_comes("c", 1_000);
        crowd.helper_comes("d", 600); // where the key was
        crowd.store.reset(&crowd.limit, b"key"); // where a was
        drop(crowd.key_takes(5));
        crowd.helper_comes("e", 2_000);
        let mut passed = 5 + crowd.passes(1); // where d was
        crowd.settle(before);
        passed += crowd.passes(100);
        assert!(passed <= 6, "{algorithm}: {passed}");
    }
}

/// It is counted, unless time has brought it back by itself.
#[test]
fn what_does_not_come_back_to_a_displaced_key_is_counted() {
    for algorithm in WINDOWS_AND_BUCKETS {
        for (later, counted) in [(0, 2), (7_200, 0)] {
            let crowd = Crowd::new(Limit::per_hour(10).burst(5).algorithm(algorithm));
            let charged = crowd.key_takes(2);
            for helper in ["a", "b", "c", "d"] {
                crowd.helper_comes(helper, 100_000);
            }
            crowd.clock.advance(Duration::from_secs(later));
            let left = crowd.passes(0);
            crowd.settle(charged);
            assert_eq!(
                (
                    crowd.passes(0),
                    crowd.store.adjustments(&crowd.limit).not_returned
                ),
                (left, counted),
                "{algorithm}"
            );
        }
    }
}

/// A queue too: the last slot of before a reset is not the last of after.
#[test]
fn a_paced_slot_of_before_a_reset_is_not_taken_from_who_came_after() {
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

/// However often a key was reset since: nothing comes back.
#[test]
fn many_resets_do_not_make_a_reservation_good_again() {
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

/// One thing that happens to the key, or around it.
#[derive(Clone, Debug)]
enum Step {
    /// Asks for so much in one request, each by itself.
    Take(Vec<u64>),
    /// One of those outstanding, at so many eighths.
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

    /// P1 on what it cost in the end: in no time is that more than a burst and what the time
    /// brings.
    #[test]
    fn what_comes_back_is_never_too_much_wherever_a_key_has_been(
        steps in prop_oneof![prop::collection::vec(steps(0), 1..60), prop::collection::vec(steps(8), 1..60)],
    ) {
        const BURST: u64 = 10;
        let crowd = Crowd::new(Limit::per_second(1).burst(BURST));
        let start = crowd.clock.now();
        let second = || crowd.clock.now().saturating_since(start).as_secs();
        // When, and what it cost in the end.
        let mut net: Vec<(u64, u64)> = Vec::new();
        let mut outstanding: Vec<(Verdict, Vec<usize>)> = Vec::new();
        for (number, step) in steps.into_iter().chain([Step::TakesAll]).enumerate() {
            match step {
                Step::Take(costs) => {
                    let asks: Vec<_> = costs.iter().map(|cost| Ask::new(&crowd.limit, "key").cost(*cost)).collect();
                    let verdict = crowd.store.decide_now(&asks, crowd.clock.now());
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
                    crowd.store.settle_now(verdict, &actual, crowd.clock.now());
                }
                Step::Settle(..) => {}
                Step::HelperComes(seconds) => {
                    let name = format!("helper {number}");
                    let ask = Ask::new(&crowd.helpers, &name).cost(seconds);
                    drop(crowd.store.decide_now(&[ask], crowd.clock.now()));
                }
                Step::Pass(seconds) => crowd.clock.advance(Duration::from_secs(seconds)),
                Step::TakesAll => net.push((second(), crowd.passes(1_000))),
            }
        }
        for (from, _) in &net {
            for (to, _) in &net {
                let within = net.iter().filter(|(at, _)| (from..=to).contains(&at)).map(|(_, cost)| cost);
                let most = BURST + to.saturating_sub(*from);
                prop_assert!(from > to || within.clone().sum::<u64>() <= most, "from {} to {}: {:?}", from, to, net);
            }
        }
    }
}
