//! The line against a model: whoever comes, leaves, finishes or is served, in any order.

use super::{Line, Who};
use crate::concurrency::Queue;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;
use tollgate::{AdaptiveConcurrency, AdaptivePermit, ManualClock};

/// Counts how often it is woken.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Come,
    /// The nth of those in flight ends.
    Finish(usize),
    /// The nth of those who wait hangs up.
    Leave(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Come),
        2 => (0_usize..8).prop_map(Step::Finish),
        1 => (0_usize..8).prop_map(Step::Leave),
        1 => (0_u64..60).prop_map(Step::Pass),
    ]
}

const LIMIT: u64 = 3;
const ROOM: usize = 5;

proptest! {
    #[test]
    fn nobody_is_forgotten_passed_or_woken_for_nothing(steps in prop::collection::vec(step(), 1..120)) {
        let clock = ManualClock::new();
        let gate = AdaptiveConcurrency::builder().min(LIMIT).max(LIMIT).start(LIMIT).build_with_clock(clock.clone());
        let line = Line::new(gate.clone(), Queue::of(ROOM), clock.clone());
        let mut waiting: Vec<(u64, Arc<Alarm>)> = Vec::new();
        let mut flying: Vec<AdaptivePermit<ManualClock>> = Vec::new();
        // The time that passed since the line was last empty, as the line may know it.
        let mut not_empty_for = 0;
        for step in steps {
            let before = waiting.clone();
            match step {
                Step::Come => {
                    if waiting.is_empty() {
                        not_empty_for = 0;
                    }
                    match line.is_empty().then(|| gate.try_acquire()) {
                        Some(Ok(permit)) => flying.push(permit),
                        _ => match line.join(Who::default()) {
                            None => prop_assert_eq!(waiting.len(), ROOM),
                            Some((place, _)) => {
                                let alarm = Arc::<Alarm>::default();
                                prop_assert!(line.look(place, &Waker::from(Arc::clone(&alarm))).is_none());
                                waiting.push((place, alarm));
                            }
                        },
                    }
                }
                Step::Finish(nth) if nth < flying.len() => {
                    drop(flying.remove(nth));
                    line.serve();
                }
                Step::Leave(nth) if nth < waiting.len() => {
                    let (place, _) = waiting.remove(nth);
                    prop_assert!(line.leave(place).is_none());
                }
                Step::Pass(millis) => {
                    clock.advance(Duration::from_millis(millis));
                    not_empty_for += millis;
                }
                _ => {}
            }
            // Whoever was woken has a permit, and nobody else has.
            let woken: Vec<u64> =
                waiting.iter().filter(|(_, alarm)| alarm.0.load(SeqCst) > 0).map(|(place, _)| *place).collect();
            prop_assert!(woken.len() <= 1, "one permit came back and {:?} were woken", woken);
            if let [place] = woken[..] {
                let first = if not_empty_for >= 100 { before.last() } else { before.first() };
                prop_assert_eq!(first.map(|(place, _)| *place), Some(place), "whose turn it was");
            }
            for (place, alarm) in std::mem::take(&mut waiting) {
                match line.look(place, &Waker::from(Arc::clone(&alarm))) {
                    Some(permit) => {
                        prop_assert!(woken.contains(&place));
                        flying.push(permit);
                    }
                    None => {
                        prop_assert!(!woken.contains(&place));
                        waiting.push((place, alarm));
                    }
                }
            }
            prop_assert_eq!(line.length(), waiting.len());
            prop_assert_eq!(gate.in_flight(), flying.len() as u64);
            prop_assert!(gate.in_flight() <= LIMIT);
            prop_assert!(waiting.is_empty() || gate.in_flight() == LIMIT, "somebody waits and there is room");
        }
    }
}

#[test]
fn how_long_may_be_waited() {
    let clock = ManualClock::new();
    let gate = AdaptiveConcurrency::builder().min(1).max(1).start(1).build_with_clock(clock.clone());
    let line = Line::new(gate.clone(), Queue::of(10), clock.clone());
    let _held = gate.try_acquire().unwrap();
    let now = || tollgate::Clock::now(&clock);
    let join = || line.join(Who::default()).unwrap();
    let millis = |until: tollgate::Instant| (until - now()).as_millis();
    let first = join();
    assert_eq!(millis(first.1), 100);
    clock.advance(Duration::from_millis(99));
    assert_eq!(millis(join().1), 100);
    clock.advance(Duration::from_millis(1));
    assert_eq!(millis(join().1), 5, "it has not been empty for an interval");
    for place in 0..3 {
        line.leave(place);
    }
    assert_eq!(millis(join().1), 100, "it was empty");
}
