//! Asks that wait for their tokens, some of them cancelled: what acts never exceeds the limit.

use proptest::prelude::*;
use ratekeeper::{Ask, Clock, Limit, ManualClock, MemoryStore, Timestamp, Verdict};
use std::time::Duration;

const BURST: u64 = 4;

#[derive(Clone, Debug)]
enum Op {
    Decide {
        cost: u64,
        longest: u64,
    },
    /// One of those that wait or have acted is settled at another cost, most of the time 0.
    Settle {
        which: usize,
        actual: u64,
    },
    Advance(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1..=BURST, 0u64..12).prop_map(|(cost, longest)| Op::Decide { cost, longest }),
        3 => (0usize..8, prop_oneof![3 => Just(0), 1 => 1..=BURST]).prop_map(|(which, actual)| Op::Settle { which, actual }),
        3 => (0u64..4).prop_map(Op::Advance),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    /// One per nanosecond, a burst of four: in any interval at most four and its length act, net of
    /// refunds.
    #[test]
    fn reserved_work_keeps_to_the_limit_after_cancellations(ops in ops()) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build();
        let limit = store.limit("x", Limit::of(1, Duration::from_nanos(1)).burst(BURST)).unwrap();
        let start = clock.now();
        let at = |now: Timestamp| now.saturating_since(start).as_nanos() as u64;
        // When it acts, what it costs, and its verdict.
        let mut acts: Vec<(u64, u64, Option<Verdict>)> = Vec::new();
        for op in ops {
            match op {
                Op::Advance(nanos) => clock.advance(Duration::from_nanos(nanos)),
                Op::Decide { cost, longest } => {
                    let ask = Ask::new(&limit, "k").cost(cost).max_wait(Duration::from_nanos(longest));
                    let verdict = store.decide_now(&[ask], clock.now());
                    if verdict.is_allowed() {
                        acts.push((at(clock.now() + verdict.delay()), cost, Some(verdict)));
                    }
                }
                Op::Settle { which, actual } => {
                    let open = acts.iter_mut().filter(|act| act.2.is_some()).nth(which);
                    if let Some((_, cost, verdict)) = open {
                        let actual = actual.min(*cost);
                        store.settle_now(verdict.take().expect("open"), &[actual], clock.now());
                        *cost = actual;
                    }
                }
            }
        }
        for (from, ..) in &acts {
            for (to, ..) in acts.iter().filter(|(to, ..)| to >= from) {
                let within = acts.iter().filter(|(act, ..)| (from..=to).contains(&act));
                let acted: u64 = within.map(|(_, cost, _)| cost).sum();
                prop_assert!(acted <= BURST + (to - from), "{acted} from {from} to {to}");
            }
        }
    }
}

#[test]
fn a_cancelled_wait_gives_its_slot_back() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build();
    let limit = store.limit("x", Limit::per_minute(1)).unwrap();
    let ask = Ask::new(&limit, "k").max_wait(Duration::from_secs(600));
    let decide = || store.decide_now(&[ask], clock.now());
    let delays = [decide(), decide(), decide()].map(|verdict| (verdict.delay().as_secs(), verdict));
    let [(0, _), (60, second), (120, third)] = delays else {
        panic!("{delays:?}")
    };
    // The last one is cancelled: the next one gets its slot.
    store.settle_now(third, &[0], clock.now());
    let again = decide();
    assert_eq!(again.delay().as_secs(), 120);
    // One before it is cancelled: later ones keep their times, so nothing is free.
    store.settle_now(second, &[0], clock.now());
    assert_eq!(decide().delay().as_secs(), 180);
}
