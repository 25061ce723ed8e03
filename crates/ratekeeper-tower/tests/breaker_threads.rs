//! The breaker under many threads at once.

use ratekeeper::ManualClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::{CallGuard, Force, State};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const THREADS: u64 = 8;

fn half_open() -> (CircuitBreaker<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    (0..20).for_each(|_| breaker.try_acquire().unwrap().failure());
    clock.advance(breaker.try_acquire().unwrap_err().retry_after());
    assert_eq!(breaker.state(), State::HalfOpen);
    (breaker, clock)
}

#[test]
fn counts_add_up() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .min_calls(u64::MAX)
        .clock(clock.clone())
        .build()
        .unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (breaker, clock) = (&breaker, &clock);
            scope.spawn(move || {
                for i in 0..1_000 {
                    let call = breaker.try_acquire().unwrap();
                    match (i + thread) % 4 {
                        0 => call.failure(),
                        1 => call.ignore(),
                        _ => call.success(),
                    }
                    // Nine seconds in all: the buckets change during the test, and all calls still
                    // count.
                    if thread == 0 && i % 100 == 0 && i < 900 {
                        clock.advance(Duration::from_secs(1));
                    }
                }
            });
        }
    });
    let (figures, recent) = (breaker.stats(), breaker.recent());
    assert_eq!(
        (figures.calls, figures.failures),
        (THREADS * 750, THREADS * 250)
    );
    assert_eq!(
        (recent.calls, recent.failures),
        (THREADS * 750, THREADS * 250)
    );
}

#[test]
fn many_failures_at_once_open_it_once() {
    for _ in 0..100 {
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder()
            .clock(clock.clone())
            .build()
            .unwrap();
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let calls: Vec<_> = (0..5).map(|_| breaker.try_acquire().unwrap()).collect();
                    barrier.wait();
                    calls.into_iter().for_each(CallGuard::failure);
                });
            }
        });
        assert_eq!(
            (
                breaker.state(),
                breaker.stats().opened,
                breaker.stats().failures
            ),
            (State::Open, 1, 40)
        );
    }
}

#[test]
fn there_are_never_more_than_three_probes() {
    let (breaker, _) = half_open();
    let (inside, most, rejected) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let before = breaker.stats().rejected;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..5_000 {
                    match breaker.try_acquire() {
                        Ok(probe) => {
                            most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                            thread::yield_now();
                            inside.fetch_sub(1, SeqCst);
                            drop(probe);
                        }
                        Err(_) => _ = rejected.fetch_add(1, SeqCst),
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.into_inner()));
    assert_eq!(breaker.stats().rejected - before, rejected.into_inner());
    [(); 3]
        .map(|()| breaker.try_acquire().unwrap())
        .into_iter()
        .for_each(CallGuard::success);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn exactly_three_calls_are_allowed_when_it_becomes_half_open() {
    for _ in 0..200 {
        let (breaker, _) = half_open();
        let barrier = Barrier::new(THREADS as usize);
        let probes: Vec<_> = thread::scope(|scope| {
            let one = || {
                barrier.wait();
                breaker.try_acquire().ok()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(probes.len(), 3);
    }
}

#[test]
fn probes_that_succeed_at_the_same_moment_close_it_and_one_failure_among_them_does_not() {
    for round in 0..300 {
        let (breaker, _) = half_open();
        let barrier = Barrier::new(3);
        let fails = round % 2 == 0;
        thread::scope(|scope| {
            for (i, probe) in [(); 3]
                .map(|()| breaker.try_acquire().unwrap())
                .into_iter()
                .enumerate()
            {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    if fails && i == 1 {
                        probe.failure();
                    } else {
                        probe.success();
                    }
                });
            }
        });
        assert_eq!(
            breaker.state(),
            if fails { State::Open } else { State::Closed }
        );
    }
}

#[test]
fn after_any_amount_of_chaos_it_recovers() {
    let (breaker, clock) = half_open();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (breaker, clock) = (&breaker, &clock);
            scope.spawn(move || {
                let mut pending = Vec::new();
                for i in 0..3_000u64 {
                    match (breaker.try_acquire(), (i * 7 + thread * 13) % 11) {
                        (Ok(call), 0..=3) => call.failure(),
                        (Ok(call), 4..=7) => call.success(),
                        (Ok(call), 8) => pending.push(call),
                        (Ok(call), _) => drop(call),
                        (Err(open), _) if thread == 0 => clock.advance(open.retry_after()),
                        (Err(_), _) => thread::yield_now(),
                    }
                    if i % 50 == 0 {
                        pending
                            .drain(..pending.len() / 2)
                            .for_each(CallGuard::success);
                    }
                    if thread == 1 && i % 500 == 499 {
                        breaker.force(Force::MetricsOnly);
                        breaker.force(Force::Auto);
                    }
                }
            });
        }
    });
    // Whatever state it was left in, three successful probes after the maximum open time close it.
    clock.advance(Duration::from_secs(70));
    let mut calls = 0;
    while breaker.state() != State::Closed {
        breaker.try_acquire().unwrap().success();
        calls += 1;
    }
    assert!(calls <= 3);
}
