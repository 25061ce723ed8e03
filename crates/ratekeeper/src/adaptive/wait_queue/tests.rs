//! The queue against a model: requests arrive, leave, finish and are served in any order.

use super::{AdaptiveQueue, QueueTicket};
use crate::adaptive::{AdaptiveConcurrency, AdaptivePermit, Class, QueueConfig};
use crate::clock::{Clock, ManualClock, Timestamp};
use proptest::prelude::*;
use ratekeeper_testkit::poll::WakeCounter;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Step {
    Come,
    /// The nth request in flight ends.
    Finish(usize),
    /// The nth waiter hangs up.
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
const MAX_WAITING: usize = 5;

fn poll_ticket(
    ticket: &QueueTicket<ManualClock>,
    alarm: &Arc<WakeCounter>,
) -> Option<AdaptivePermit<ManualClock>> {
    let id = ticket.id.as_ref().expect("it has not left");
    let waker = Waker::from(Arc::clone(alarm));
    ticket.queue.poll_ticket(id, &waker)
}

proptest! {
    #[test]
    fn no_waiter_is_forgotten_overtaken_or_woken_without_a_permit(steps in prop::collection::vec(step(), 1..120)) {
        let clock = ManualClock::new();
        let gate = AdaptiveConcurrency::builder().min(LIMIT).max(LIMIT).start(LIMIT).build_with_clock(clock.clone());
        let queue = AdaptiveQueue::new(gate.clone(), QueueConfig::of(MAX_WAITING));
        // Each with a number of its own.
        let mut waiting: Vec<(u64, QueueTicket<ManualClock>, Arc<WakeCounter>)> = Vec::new();
        let mut flying: Vec<AdaptivePermit<ManualClock>> = Vec::new();
        // The time since the queue was last empty, as far as the queue knows it.
        let mut not_empty_for = 0;
        for (number, step) in (0..).zip(steps) {
            let before: Vec<u64> = waiting.iter().map(|(number, ..)| *number).collect();
            match step {
                Step::Come => {
                    if waiting.is_empty() {
                        not_empty_for = 0;
                    }
                    match queue.is_empty().then(|| gate.try_acquire()) {
                        Some(Ok(permit)) => flying.push(permit),
                        _ => match queue.join(Class::CriticalPlus, None) {
                            None => prop_assert_eq!(waiting.len(), MAX_WAITING),
                            Some(ticket) => {
                                let alarm = Arc::<WakeCounter>::default();
                                prop_assert!(poll_ticket(&ticket, &alarm).is_none());
                                waiting.push((number, ticket, alarm));
                            }
                        },
                    }
                }
                Step::Finish(nth) if nth < flying.len() => {
                    drop(flying.remove(nth));
                    queue.serve();
                }
                Step::Leave(nth) if nth < waiting.len() => {
                    let (_, mut ticket, _) = waiting.remove(nth);
                    prop_assert!(ticket.leave().is_none());
                }
                Step::Pass(millis) => {
                    clock.advance(Duration::from_millis(millis));
                    not_empty_for += millis;
                }
                _ => {}
            }
            // Exactly the woken waiters have a permit.
            let woken: Vec<u64> =
                waiting.iter().filter(|(.., alarm)| alarm.count() > 0).map(|(number, ..)| *number).collect();
            prop_assert!(woken.len() <= 1, "one permit came back and {:?} were woken", woken);
            if let [number] = woken[..] {
                let first = if not_empty_for >= 100 { before.last() } else { before.first() };
                prop_assert_eq!(first, Some(&number), "the next in order");
            }
            for (number, ticket, alarm) in std::mem::take(&mut waiting) {
                match poll_ticket(&ticket, &alarm) {
                    Some(permit) => {
                        prop_assert!(woken.contains(&number));
                        flying.push(permit);
                    }
                    None => {
                        prop_assert!(!woken.contains(&number));
                        waiting.push((number, ticket, alarm));
                    }
                }
            }
            prop_assert_eq!(queue.len(), waiting.len());
            prop_assert_eq!(gate.in_flight(), flying.len() as u64);
            prop_assert!(gate.in_flight() <= LIMIT);
            prop_assert!(waiting.is_empty() || gate.in_flight() == LIMIT, "a request waits and a permit is free");
        }
    }
}

#[test]
fn the_longest_wait_depends_on_the_backlog() {
    let clock = ManualClock::new();
    let gate = AdaptiveConcurrency::builder()
        .min(1)
        .max(1)
        .start(1)
        .build_with_clock(clock.clone());
    let queue = AdaptiveQueue::new(gate.clone(), QueueConfig::of(10));
    let _held = gate.try_acquire().unwrap();
    let join = || queue.join(Class::CriticalPlus, None).unwrap();
    let millis = |until: Timestamp| (until - clock.now()).as_millis();
    let first = join();
    assert_eq!(millis(first.until()), 100);
    clock.advance(Duration::from_millis(99));
    let second = join();
    assert_eq!(millis(second.until()), 100);
    clock.advance(Duration::from_millis(1));
    let third = join();
    assert_eq!(
        millis(third.until()),
        5,
        "it has not been empty for an interval"
    );
    drop((first, second, third));
    assert_eq!(millis(join().until()), 100, "it was empty");
}

#[test]
fn a_new_configuration_applies_to_later_requests() {
    let gate = AdaptiveConcurrency::builder()
        .min(1)
        .max(1)
        .start(1)
        .build_with_clock(ManualClock::new());
    let queue = AdaptiveQueue::new(gate.clone(), QueueConfig::of(1));
    let held = gate.try_acquire().unwrap();
    let join = || queue.join(Class::CriticalPlus, None);
    let first = join().unwrap();
    assert!(join().is_none());
    queue.set_queue(QueueConfig::of(0));
    assert!(join().is_none());
    assert_eq!(queue.len(), 1);
    drop(held);
    queue.serve();
    assert!(
        queue.is_empty() && gate.in_flight() == 1,
        "the waiter was served"
    );
    drop(first);
    assert_eq!(
        gate.in_flight(),
        0,
        "a permit that was not collected is free again"
    );
}

mod waits {
    use super::*;
    use crate::adaptive::{AdaptiveQueueError, RequestOutcome};
    use ratekeeper_testkit::poll::poll_once;
    use std::boxed::Box;
    use std::task::Poll;

    #[test]
    fn a_permit_is_waited_for() {
        let clock = ManualClock::new();
        let gate = AdaptiveConcurrency::builder()
            .min(1)
            .max(1)
            .start(1)
            .build_with_clock(clock.clone());
        let queue = AdaptiveQueue::new(gate.clone(), QueueConfig::of(2));
        let Poll::Ready(Ok(first)) = poll_once(Box::pin(queue.acquire())) else {
            panic!("it is free")
        };
        let mut second = Box::pin(queue.acquire());
        let deadline = clock.now() + Duration::from_millis(30);
        let mut third = Box::pin(queue.acquire_as(Class::Critical, None, Some(deadline)));
        assert!(poll_once(&mut second).is_pending() && poll_once(&mut third).is_pending());
        assert_eq!(queue.len(), 2);
        assert_eq!(
            poll_once(Box::pin(queue.acquire())).map(Result::err),
            Poll::Ready(Some(AdaptiveQueueError::QueueFull))
        );
        clock.advance(Duration::from_millis(30));
        assert_eq!(
            poll_once(&mut third).map(Result::err),
            Poll::Ready(Some(AdaptiveQueueError::DeadlineExceeded))
        );
        let late = queue.acquire_as(Class::Critical, None, Some(deadline));
        assert_eq!(
            poll_once(Box::pin(late)).map(Result::err),
            Poll::Ready(Some(AdaptiveQueueError::DeadlineExceeded))
        );
        first.finish(RequestOutcome::Success);
        let Poll::Ready(Ok(second)) = poll_once(&mut second) else {
            panic!("it is next")
        };
        let mut fourth = Box::pin(queue.acquire());
        assert!(poll_once(&mut fourth).is_pending());
        clock.advance(Duration::from_millis(100));
        assert_eq!(
            poll_once(&mut fourth).map(Result::err),
            Poll::Ready(Some(AdaptiveQueueError::Timeout))
        );
        let mut gone = Box::pin(queue.acquire());
        assert!(poll_once(&mut gone).is_pending());
        drop(gone);
        drop(second);
        assert_eq!((queue.len(), gate.in_flight()), (0, 0));
    }
}
