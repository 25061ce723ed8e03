//! Waiting: FIFO, deadlines, dropping, closing; on the manual clock.

use ratekeeper::{
    Clock, Concurrency, Limit, Limiter, ManualClock, concurrency::AcquireError, limiter::WaitError,
};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn limiter(limit: Limit) -> (Limiter<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit, clock.clone()), clock)
}

/// Lets other threads run until `asleep` waiters sleep on the clock.
fn until_asleep(clock: &ManualClock, asleep: usize) {
    while clock.sleepers() < asleep {
        std::thread::yield_now();
    }
}

mod blocking {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_free_token_is_not_waited_for() {
        let (limiter, _) = limiter(Limit::per_second(1).burst(2));
        assert_eq!(limiter.wait_n(2).blocking(), Ok(()));
        assert_eq!(limiter.tokens(), 0.0);
    }

    #[test]
    fn waiters_are_served_in_the_order_they_came() {
        let (limiter, clock) = limiter(Limit::per_second(10).burst(1));
        assert!(limiter.check().is_allowed());
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for i in 0..5 {
                let (limiter, served) = (&limiter, &served);
                scope.spawn(move || {
                    limiter.wait().blocking().unwrap();
                    served.lock().unwrap().push(i);
                });
                until_asleep(&clock, i + 1);
            }
            for served_by_now in 1..=5 {
                clock.advance(100 * MS);
                while served.lock().unwrap().len() < served_by_now {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_deadline_before_the_slot_is_an_error_at_once_and_takes_nothing() {
        let (limiter, clock) = limiter(Limit::per_second(10).burst(3));
        assert_eq!(limiter.wait_n(2).within(100 * MS).blocking(), Ok(()));
        let late = limiter.wait_n(3).within(199 * MS).blocking();
        assert_eq!(late, Err(WaitError::Deadline { delay: 200 * MS }));
        assert_eq!(limiter.tokens(), 1.0);
        let past = clock.now() - MS;
        assert!(matches!(
            limiter.wait().until(past).blocking(),
            Err(WaitError::Deadline { .. })
        ));
        assert_eq!(limiter.tokens(), 1.0);
    }

    #[test]
    fn closing_wakes_every_waiter_and_gives_their_tokens_back() {
        let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
        assert!(limiter.check().is_allowed());
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| limiter.wait().blocking()))
                .collect();
            until_asleep(&clock, 3);
            assert_eq!(limiter.tokens(), -3.0);
            limiter.close();
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Err(WaitError::Closed));
            }
        });
        assert_eq!(limiter.wait().blocking(), Err(WaitError::Closed));
        // The last slot comes back in any case; those before it only where all later ones have come
        // back before.
        let tokens = limiter.tokens();
        assert!([-2.0, -1.0, 0.0].contains(&tokens), "{tokens}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(limiter.tokens(), tokens + 1.0, "the other verbs go on");
        assert_eq!(limiter.check().is_allowed(), tokens == 0.0);
    }

    #[test]
    fn the_size_is_checked_before_anything_else() {
        let (limiter, _) = limiter(Limit::per_second(1).burst(3));
        limiter.close();
        assert_eq!(
            limiter.wait_n(4).blocking(),
            Err(WaitError::ExceedsBurst { cost: 4, burst: 3 })
        );
        assert_eq!(limiter.wait_n(3).blocking(), Err(WaitError::Closed));
    }

    #[test]
    fn a_wait_on_a_limit_without_refill_fails() {
        let (limiter, _) = limiter(Limit::deny_all().burst(1));
        assert_eq!(limiter.wait().blocking(), Ok(()));
        assert_eq!(limiter.wait().blocking(), Err(WaitError::Never));
        let (unlimited, _) = super::limiter(Limit::unlimited());
        assert_eq!(unlimited.wait_n(u64::MAX).blocking(), Ok(()));
    }

    #[test]
    fn a_wait_on_the_systems_clock_lasts_as_long_as_the_slot_says() {
        let limiter = Limiter::new(Limit::per_second(100).burst(1));
        let start = limiter.clock().now();
        for _ in 0..3 {
            limiter.wait().blocking().unwrap();
        }
        assert!(limiter.clock().now() - start >= 20 * MS);
    }
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use super::*;
    use ratekeeper_testkit::poll::poll_once;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::Poll;

    #[test]
    fn a_wait_takes_its_slot_when_first_polled() {
        let (limiter, _) = limiter(Limit::per_second(1).burst(1));
        let first = pin!(limiter.wait());
        let second = pin!(limiter.wait());
        assert_eq!(limiter.tokens(), 1.0);
        assert_eq!(poll_once(second), Poll::Ready(Ok(())));
        assert_eq!(poll_once(first), Poll::Pending);
        assert_eq!(limiter.tokens(), -1.0);
    }

    #[test]
    fn a_waiter_that_is_not_polled_blocks_no_other() {
        // leaky-bucket: the waiter that drives the refill holds up everyone else when its task is
        // not polled.
        let (limiter, clock) = limiter(Limit::per_second(10).burst(1));
        assert!(limiter.check().is_allowed());
        let mut forgotten = pin!(limiter.wait());
        let mut polled = pin!(limiter.wait());
        assert!(poll_once(forgotten.as_mut()).is_pending());
        assert!(poll_once(polled.as_mut()).is_pending());
        clock.advance(200 * MS);
        assert_eq!(poll_once(polled), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_large_cost_is_not_starved_by_small_ones() {
        // governor: waiting is a retry loop without a queue; a large n can starve behind a stream
        // of small ones.
        let (limiter, clock) = limiter(Limit::per_second(10).burst(10));
        assert!(limiter.check_n(10).is_allowed());
        let mut large = pin!(limiter.wait_n(10));
        assert!(poll_once(large.as_mut()).is_pending());
        for _ in 0..10 {
            clock.advance(100 * MS);
            assert!(limiter.check().is_denied(), "the large one was first");
        }
        assert_eq!(poll_once(large), Poll::Ready(Ok(())));
    }

    #[test]
    fn dropping_a_wait_gives_back_what_no_later_waiter_was_promised() {
        let (limiter, clock) = limiter(Limit::per_second(10).burst(2));
        assert!(limiter.check_n(2).is_allowed());
        let mut staying = Box::pin(limiter.wait());
        let mut leaving = Box::pin(limiter.wait_n(2));
        assert!(poll_once(staying.as_mut()).is_pending());
        assert!(poll_once(leaving.as_mut()).is_pending());
        assert_eq!(limiter.tokens(), -3.0);
        drop(leaving);
        assert_eq!(limiter.tokens(), -1.0);
        clock.advance(100 * MS);
        assert_eq!(poll_once(staying.as_mut()), Poll::Ready(Ok(())));
        drop(staying);
        assert_eq!(
            limiter.tokens(),
            0.0,
            "a wait that ended keeps what it took"
        );
        assert_eq!(clock.sleepers(), 0);
    }

    #[test]
    fn closing_ends_a_wait_and_leaves_nothing_behind() {
        let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
        assert!(limiter.check().is_allowed());
        let mut wait = pin!(limiter.wait());
        assert!(poll_once(wait.as_mut()).is_pending());
        limiter.close();
        assert_eq!(poll_once(wait), Poll::Ready(Err(WaitError::Closed)));
        assert_eq!(limiter.tokens(), 0.0);
        assert_eq!(clock.sleepers(), 0);
    }

    /// Tokens that no later waiter was promised come back: for waits that end in reverse order,
    /// every token.
    #[test]
    fn closing_gives_back_what_no_later_waiter_was_promised() {
        for (order, left) in [([2, 1, 0], 0.0), ([0, 1, 2], -2.0), ([2, 0, 1], -1.0)] {
            let (limiter, _) = limiter(Limit::per_second(1).burst(1));
            assert!(limiter.check().is_allowed());
            let mut waits: Vec<_> = (0..3).map(|_| Box::pin(limiter.wait())).collect();
            waits
                .iter_mut()
                .for_each(|wait| assert!(poll_once(wait.as_mut()).is_pending()));
            limiter.close();
            for nth in order {
                assert_eq!(
                    poll_once(waits[nth].as_mut()),
                    Poll::Ready(Err(WaitError::Closed))
                );
            }
            assert_eq!(limiter.tokens(), left, "{order:?}");
        }
    }

    #[test]
    fn outside_a_runtime_a_wait_is_a_typed_error_and_takes_nothing() {
        let limiter = Limiter::new(Limit::per_hour(1));
        assert!(limiter.check().is_allowed());
        let before = limiter.tokens();
        let wait = pin!(limiter.wait());
        let ended = poll_once(wait);
        assert_eq!(ended, Poll::Ready(Err(WaitError::NoTimer)));
        assert!(limiter.tokens() >= before);
    }

    #[test]
    fn on_a_runtime_without_timers_a_wait_is_a_typed_error_and_takes_nothing() {
        let current_thread = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let multi_thread = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        for runtime in [current_thread, multi_thread] {
            let limiter = Limiter::new(Limit::per_hour(1));
            assert!(limiter.check().is_allowed());
            let before = limiter.tokens();
            let error = runtime.block_on(limiter.wait().into_future()).unwrap_err();
            assert_eq!(error, WaitError::NoTimer);
            assert!(error.to_string().contains("enable_time()"), "{error}");
            assert!(limiter.tokens() >= before);

            let permits = Concurrency::new(1);
            let _permit = permits.try_acquire().unwrap();
            let acquired = runtime.block_on(
                permits
                    .acquire()
                    .within(Duration::from_secs(1))
                    .into_future(),
            );
            assert_eq!(acquired.unwrap_err(), AcquireError::NoTimer);
        }
    }

    /// Many waiters come and some leave; the rest are served in order, at the rate, and none is
    /// forgotten.
    #[tokio::test]
    async fn no_waiter_is_lost_when_others_are_dropped() {
        let (limiter, clock) = limiter(Limit::per_second(1_000).burst(1));
        assert!(limiter.check().is_allowed());
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..200 {
            let (limiter, served) = (limiter.clone(), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                limiter.wait().await.unwrap();
                served.lock().unwrap().push(i);
            }));
            tokio::task::yield_now().await;
        }
        for task in tasks.iter().skip(1).step_by(3) {
            task.abort();
        }
        tokio::task::yield_now().await;
        for _ in 0..200 {
            clock.advance(MS);
            tokio::task::yield_now().await;
        }
        let mut ended = Vec::new();
        for (i, task) in tasks.into_iter().enumerate() {
            if task.await.is_ok() {
                ended.push(i);
            }
        }
        let expected: Vec<usize> = (0..200).filter(|i| i % 3 != 1).collect();
        assert_eq!(ended, expected);
        assert_eq!(*served.lock().unwrap(), expected, "in the order they came");
    }

    #[tokio::test]
    async fn a_wait_on_tokios_timer_lasts_as_long_as_the_slot_says() {
        let limiter = Limiter::new(Limit::per_second(100).burst(1));
        let start = limiter.clock().now();
        for _ in 0..3 {
            limiter.wait().await.unwrap();
        }
        assert!(limiter.clock().now() - start >= 20 * MS);
    }
}
