//! `Concurrency`: permits in flight.

use ratekeeper::{Concurrency, ManualClock, concurrency::AcquireError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn gate(limit: u64) -> (Concurrency<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Concurrency::with_clock(limit, clock.clone()), clock)
}

#[test]
fn at_most_the_limit_is_in_flight_and_a_drop_gives_back() {
    let (gate, _) = gate(3);
    let (two, one) = (gate.try_acquire_n(2).unwrap(), gate.try_acquire().unwrap());
    assert_eq!((gate.in_flight(), two.cost(), one.cost()), (3, 2, 1));
    let busy = gate.try_acquire().unwrap_err();
    assert_eq!(
        (
            busy.in_flight(),
            busy.limit(),
            busy.retry_after(),
            busy.is_never()
        ),
        (3, 3, None, false)
    );
    drop(two);
    assert_eq!(gate.in_flight(), 1);
    assert!(gate.try_acquire_n(3).is_err());
    let never = gate.try_acquire_n(u64::MAX).unwrap_err();
    assert!(never.is_never());
    assert_eq!(
        never.to_string(),
        format!(
            "a cost of {} never fits a limit of 3 in flight; ask for less",
            u64::MAX
        )
    );
}

#[test]
fn many_threads_never_hold_more_than_the_limit() {
    let (gate, _) = gate(5);
    let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (gate, inside, most) = (&gate, &inside, &most);
            scope.spawn(move || {
                for i in 0..500 {
                    let cost = 1 + (i + thread) % 3;
                    let permit = if i % 2 == 0 {
                        gate.acquire_n(cost).blocking().unwrap()
                    } else {
                        match gate.try_acquire_n(cost) {
                            Ok(permit) => permit,
                            Err(_) => continue,
                        }
                    };
                    most.fetch_max(
                        inside.fetch_add(cost, Ordering::SeqCst) + cost,
                        Ordering::SeqCst,
                    );
                    inside.fetch_sub(cost, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= 5);
    assert_eq!(gate.in_flight(), 0);
}

#[test]
fn waiters_are_served_in_order_and_no_call_passes_them() {
    let (gate, clock) = gate(2);
    let held = gate.try_acquire_n(2).unwrap();
    let served = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for i in 0..3 {
            let (gate, served) = (&gate, &served);
            // The first wants both: the others must not pass it.
            let cost = if i == 0 { 2 } else { 1 };
            scope.spawn(move || {
                let permit = gate
                    .acquire_n(cost)
                    .within(Duration::from_secs(60))
                    .blocking()
                    .unwrap();
                served.lock().unwrap().push(i);
                drop(permit);
            });
            while clock.sleepers() < i + 1 {
                std::thread::yield_now();
            }
        }
        assert!(gate.try_acquire_n(0).is_ok());
        assert!(gate.try_acquire().is_err(), "others wait");
        drop(held);
    });
    assert_eq!(served.lock().unwrap()[0], 0);
    assert_eq!(gate.in_flight(), 0);
}

#[test]
fn a_wait_ends_at_its_deadline_and_on_close() {
    let (gate, clock) = gate(1);
    let held = gate.try_acquire().unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            gate.acquire()
                .within(Duration::from_secs(1))
                .blocking()
                .map(drop)
        });
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(1));
        assert_eq!(late.join().unwrap(), Err(AcquireError::Deadline));
        let closed = scope.spawn(|| {
            gate.acquire()
                .within(Duration::from_secs(1))
                .blocking()
                .map(drop)
        });
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        gate.close();
        assert_eq!(closed.join().unwrap(), Err(AcquireError::Closed));
    });
    assert_eq!(
        gate.acquire().blocking().map(drop),
        Err(AcquireError::Closed)
    );
    assert_eq!(
        gate.acquire_n(2).blocking().map(drop),
        Err(AcquireError::ExceedsLimit { cost: 2, limit: 1 })
    );
    drop(held);
    assert_eq!(gate.in_flight(), 0);
}

#[test]
fn a_raised_limit_serves_waiters_and_a_lower_one_revokes_nothing() {
    let (gate, clock) = gate(1);
    let held = gate.try_acquire().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            gate.acquire()
                .within(Duration::from_secs(9))
                .blocking()
                .unwrap()
        });
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        gate.set_limit(2);
        let permit = waiter.join().unwrap();
        gate.set_limit(1);
        assert_eq!(gate.in_flight(), 2, "what is out stays out");
        drop(permit);
        assert!(gate.try_acquire().is_err());
    });
    drop(held);
    assert!(gate.try_acquire().is_ok());
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use super::*;
    use ratekeeper_testkit::poll::poll_once;
    use std::task::Poll;

    #[test]
    fn a_wait_that_is_dropped_after_it_was_served_gives_its_permit_to_the_next() {
        let (gate, _) = gate(1);
        let held = gate.try_acquire().unwrap();
        let (mut first, mut second) = (Box::pin(gate.acquire()), Box::pin(gate.acquire()));
        assert!(poll_once(&mut first).is_pending());
        assert!(poll_once(&mut second).is_pending());
        drop(held);
        // The permit now belongs to the first one, which is not polled again.
        assert!(poll_once(&mut second).is_pending());
        drop(first);
        let Poll::Ready(Ok(permit)) = poll_once(&mut second) else {
            panic!("the second is served")
        };
        assert_eq!(gate.in_flight(), 1);
        drop((permit, second));
        assert_eq!(gate.in_flight(), 0);
    }

    #[tokio::test]
    async fn many_tasks_share_a_limit() {
        let gate = Concurrency::new(3);
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                tokio::spawn(async move {
                    let permit = gate
                        .acquire()
                        .within(Duration::from_secs(60))
                        .await
                        .unwrap();
                    assert!(gate.in_flight() <= 3);
                    tokio::task::yield_now().await;
                    drop(permit);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(gate.in_flight(), 0);
    }
}
