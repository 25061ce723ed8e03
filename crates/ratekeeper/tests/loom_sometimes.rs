//! Every interleaving of a few threads on a `Sometimes`, by loom.
//!
//! Like `loom.rs` it needs `RUSTFLAGS="--cfg ratekeeper_loom"`; without that there is nothing here.
#![cfg(ratekeeper_loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;
use ratekeeper::{ManualClock, Sometimes};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A `Sometimes`, and a counter that its runs increment without synchronization: runs that overlap,
/// or do not see each other, lose increments.
struct WatchedSometimes {
    sometimes: Sometimes<ManualClock>,
    raised: AtomicUsize,
}

impl WatchedSometimes {
    fn new(sometimes: Sometimes<ManualClock>) -> Arc<Self> {
        Arc::new(Self {
            sometimes,
            raised: AtomicUsize::new(0),
        })
    }

    /// How many of `calls` ran.
    fn ran(&self, calls: usize) -> usize {
        let raise = || self.raised.store(self.raised.load(Relaxed) + 1, Relaxed);
        (0..calls)
            .filter(|_| self.sometimes.run(raise).is_some())
            .count()
    }

    /// A call that panics if it runs.
    fn panic(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            self.sometimes.run(|| resume_unwind(Box::new(())))
        }));
    }
}

/// How many of `here` calls on this thread and `there` calls on another ran.
fn ran_on_two(sometimes: &Arc<WatchedSometimes>, here: usize, there: usize) -> usize {
    let (before, other) = (sometimes.raised.load(Relaxed), Arc::clone(sometimes));
    let thread = thread::spawn(move || other.ran(there));
    let ran = sometimes.ran(here) + thread.join().unwrap();
    assert_eq!(sometimes.raised.load(Relaxed) - before, ran);
    ran
}

#[test]
fn two_threads_run_exactly_the_first() {
    loom::model(|| {
        let sometimes = WatchedSometimes::new(Sometimes::with_clock(ManualClock::new()).first(2));
        assert_eq!(ran_on_two(&sometimes, 2, 2), 2);
    });
}

#[test]
fn two_threads_run_exactly_every_second_time() {
    loom::model(|| {
        let sometimes = WatchedSometimes::new(Sometimes::with_clock(ManualClock::new()).every(2));
        assert_eq!(ran_on_two(&sometimes, 2, 1), 2);
    });
}

#[test]
fn two_threads_run_once_an_interval() {
    loom::model(|| {
        let clock = ManualClock::new();
        let sometimes = WatchedSometimes::new(
            Sometimes::with_clock(clock.clone()).interval(Duration::from_secs(1)),
        );
        assert_eq!(sometimes.ran(1), 1);
        clock.advance(Duration::from_secs(1));
        assert_eq!(ran_on_two(&sometimes, 2, 1), 1);
    });
}

#[test]
fn a_run_that_panics_beside_another_thread_is_repeated() {
    loom::model(move || {
        let sometimes = WatchedSometimes::new(Sometimes::with_clock(ManualClock::new()));
        let other = Arc::clone(&sometimes);
        let thread = thread::spawn(move || other.ran(1));
        sometimes.panic();
        let there = thread.join().unwrap();
        // Number 0 runs once without a panic, there or on the next call.
        assert_eq!(there + sometimes.ran(1), 1);
    });
}
