//! `Sometimes`: the traces of Go's, a naive oracle, many threads, panics.

use proptest::prelude::*;
use ratekeeper::{Clock, ManualClock, Sometimes, Timestamp};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How a call on a manual clock went: whether the closure was called.
fn call(
    sometimes: &Sometimes<ManualClock>,
    clock: &ManualClock,
    takes: Duration,
    panics: bool,
) -> bool {
    let mut called = false;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        sometimes.run(|| {
            called = true;
            clock.advance(takes);
            if panics {
                // Unlike `panic!` it prints nothing.
                std::panic::resume_unwind(Box::new(()));
            }
        })
    }));
    match outcome {
        Ok(ran) => assert_eq!(ran.is_some(), called),
        Err(_) => assert!(called && panics),
    }
    called
}

/// The traces of `RATEKEEPER_XTIME_VECTORS`, or of our own file.
#[test]
fn xtime_every_sometimes_trace_passes_as_it_stands() {
    let text = match std::env::var("RATEKEEPER_XTIME_VECTORS") {
        Ok(path) => std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}")),
        Err(_) => include_str!("vectors/xtime_traces.json").to_owned(),
    };
    let vectors: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    let number = |value: &Value| value.as_u64().unwrap_or(0).try_into().unwrap_or(u32::MAX);
    let time =
        |value: &Value| Duration::from_nanos((value.as_f64().unwrap_or(0.0) * 1e6).round() as u64);
    let traces = vectors["sometimes"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let traces: Vec<&Value> = traces
        .iter()
        .filter(|trace| trace["quirk"] != true)
        .collect();
    for trace in &traces {
        let clock = ManualClock::new();
        let start = clock.now();
        let sometimes = Sometimes::with_clock(clock.clone())
            .first(number(&trace["first"]))
            .every(number(&trace["every"]))
            .interval(time(&trace["interval_ms"]));
        for step in trace["calls"].as_array().expect("calls") {
            clock.set(start + time(&step["t_ms"]));
            let ran = call(
                &sometimes,
                &clock,
                time(&step["f_takes_ms"]),
                step["f_panics"] == true,
            );
            assert_eq!(ran, step["ran"] == true, "{}: {step}", trace["id"]);
        }
    }
    assert!(!traces.is_empty(), "no trace was run");
}

/// Go's, line by line, but for the time.
struct Oracle {
    first: u32,
    every: u32,
    interval: Duration,
    count: u64,
    last: Option<Timestamp>,
}

impl Oracle {
    fn call(&mut self, now: Timestamp, takes: Duration, panics: bool) -> bool {
        let passed = self.last.is_none_or(|last| now - last >= self.interval);
        let runs = self.count == 0
            || self.count < u64::from(self.first)
            || (self.every > 0 && self.count.is_multiple_of(u64::from(self.every)))
            || (!self.interval.is_zero() && passed);
        if runs && panics {
            return true;
        }
        if runs {
            self.last = Some(now + takes);
        }
        self.count += 1;
        runs
    }
}

proptest! {
    #[test]
    fn one_thread_agrees_with_the_oracle(
        first in 0_u32..6,
        every in 0_u32..6,
        interval in 0_u64..6,
        calls in prop::collection::vec((0_u64..4, 0_u64..4, prop::bool::weighted(0.2)), 1..60),
    ) {
        let interval = Duration::from_nanos(interval);
        let clock = ManualClock::new();
        let sometimes = Sometimes::with_clock(clock.clone()).first(first).every(every).interval(interval);
        let mut oracle = Oracle { first, every, interval, count: 0, last: None };
        for (pause, takes, panics) in calls {
            clock.advance(Duration::from_nanos(pause));
            let (now, takes) = (clock.now(), Duration::from_nanos(takes));
            prop_assert_eq!(call(&sometimes, &clock, takes, panics), oracle.call(now, takes, panics));
        }
    }
}

#[test]
fn a_static_is_small_and_hands_back_what_the_closure_returned() {
    static ONCE: Sometimes = Sometimes::new()
        .first(1)
        .interval(Duration::from_secs(3600));
    assert!(size_of::<Sometimes>() <= 40, "{}", size_of::<Sometimes>());
    assert_eq!(ONCE.run(|| "ran"), Some("ran"));
    assert_eq!(ONCE.run(|| "ran"), None);
}

#[test]
fn the_clock_is_read_only_if_there_is_an_interval() {
    #[derive(Clone)]
    struct NoClock;
    impl Clock for NoClock {
        fn now(&self) -> Timestamp {
            panic!("the clock was read")
        }
    }
    let sometimes = Sometimes::with_clock(NoClock).first(2).every(3);
    assert_eq!((0..9).filter(|_| sometimes.run(|| {}).is_some()).count(), 4);
    assert!(
        catch_unwind(|| Sometimes::with_clock(NoClock)
            .interval(Duration::from_secs(1))
            .run(|| {}))
        .is_err()
    );
}

const THREADS: usize = 8;
const CALLS: usize = 10_000;

/// How often `THREADS` threads run in `CALLS` calls each, while no two runs may overlap.
fn runs_of_many_threads<C: Clock>(sometimes: &Sometimes<C>) -> usize {
    let inside = AtomicBool::new(false);
    let runs = AtomicUsize::new(0);
    let run = || {
        assert!(!inside.swap(true, Ordering::Relaxed), "two runs at once");
        runs.fetch_add(1, Ordering::Relaxed);
        inside.store(false, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    sometimes.run(run);
                }
            });
        }
    });
    runs.into_inner()
}

#[test]
fn many_threads_run_exactly_the_first() {
    for first in [0, 1, 7, 5_000] {
        assert_eq!(
            runs_of_many_threads(&Sometimes::new().first(first)),
            first.max(1) as usize
        );
    }
}

#[test]
fn many_threads_run_exactly_every_nth() {
    for every in [1, 3, 1_000, 79_999, 80_000] {
        let expected = (THREADS * CALLS).div_ceil(every as usize);
        assert_eq!(
            runs_of_many_threads(&Sometimes::new().every(every)),
            expected
        );
    }
}

#[test]
fn many_threads_run_the_first_and_every_nth_without_counting_one_twice() {
    // Numbers 0 to 9, and of the multiples of 7 those from 14 on.
    let multiples = (THREADS * CALLS).div_ceil(7) - 2;
    assert_eq!(
        runs_of_many_threads(&Sometimes::new().first(10).every(7)),
        10 + multiples
    );
}

#[test]
fn many_threads_run_once_an_interval() {
    let clock = ManualClock::new();
    let sometimes = Sometimes::with_clock(clock.clone()).interval(Duration::from_secs(1));
    for _ in 0..20 {
        assert_eq!(runs_of_many_threads(&sometimes), 1);
        clock.advance(Duration::from_secs(1));
    }
}

/// Keeps a run of `sometimes` in progress on another thread, calls `meanwhile`, and ends the run,
/// optionally by a panic.
fn during_a_run<C: Clock>(sometimes: &Sometimes<C>, panics: bool, meanwhile: impl FnOnce()) {
    let (begun, is_begun) = channel();
    let (end, may_end) = channel::<()>();
    thread::scope(|scope| {
        let runner = scope.spawn(move || {
            catch_unwind(AssertUnwindSafe(|| {
                sometimes.run(|| {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    if panics {
                        std::panic::resume_unwind(Box::new(()));
                    }
                })
            }))
        });
        is_begun.recv().expect("it runs");
        meanwhile();
        end.send(()).unwrap();
        assert_eq!(runner.join().unwrap().is_err(), panics);
    });
}

#[test]
fn a_caller_that_skips_does_not_wait_for_the_one_that_runs() {
    let clock = ManualClock::new();
    let sometimes = Sometimes::with_clock(clock.clone())
        .every(4)
        .interval(Duration::from_secs(1));
    during_a_run(&sometimes, false, || {
        // If this waited, the test would hang: the run ends after it.
        assert!(sometimes.run(|| {}).is_none());
    });
    clock.advance(Duration::from_secs(1));
    during_a_run(&sometimes, false, || {
        clock.advance(Duration::from_secs(5));
        // That run, number 2, is still to end, and the interval counts from there.
        assert!(sometimes.run(|| {}).is_none());
    });
}

#[test]
fn a_call_that_is_to_run_waits_for_the_run_before_it() {
    let sometimes = Sometimes::new().first(2);
    let (order, seen) = channel();
    thread::scope(|scope| {
        during_a_run(&sometimes, false, || {
            let (second, sometimes) = (order.clone(), &sometimes);
            let (called, is_called) = channel();
            scope.spawn(move || {
                called.send(()).unwrap();
                sometimes.run(|| second.send("second").unwrap())
            });
            is_called.recv().unwrap();
            order.send("first").unwrap();
        });
    });
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["first", "second"]);
}

#[test]
fn a_run_that_panics_beside_other_calls_gives_one_number_back() {
    let ran = |sometimes: &Sometimes, calls: usize| -> Vec<bool> {
        (0..calls).map(|_| sometimes.run(|| {}).is_some()).collect()
    };
    // Number 0 panics while number 1 is skipped; the next call is number 1 again.
    let sometimes = Sometimes::new().every(4);
    during_a_run(&sometimes, true, || assert_eq!(ran(&sometimes, 1), [false]));
    assert_eq!(ran(&sometimes, 5), [false, false, false, true, false]);

    let once = Sometimes::new();
    during_a_run(&once, true, || assert_eq!(ran(&once, 3), [false; 3]));
    assert_eq!(ran(&once, 3), [true, false, false]);
}
