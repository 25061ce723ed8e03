//! Windows, logs and queues against the model with the whole history.

use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit, Limiter, ManualClock, Timestamp};
use ratekeeper_testkit::auditor::{Admission, Bound};
use ratekeeper_testkit::{DecisionInfo, Model};
use std::time::Duration;

/// Midnight: every window that divides a day begins here.
const START: u64 = 1_577_836_800_000_000_000;

fn windowed() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![
        Algorithm::FixedWindow,
        Algorithm::FixedWindowFirstHit,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowStrict,
        Algorithm::SlidingLog,
    ])
}

/// Windows that pack into a word and windows that do not, with steps that do and do not divide
/// them.
fn windows() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1),
        1..50u64,
        Just(1_000),
        Just(1_000_000_007),
        Just(60_000_000_000),
        Just(3_600_000_000_000)
    ]
}

/// Calls: how far after the last one in 64ths of a window, and the cost.
fn calls() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![4 => Just(0u64), 8 => 0..20u64, 2 => 20..200u64];
    let cost = prop_oneof![6 => Just(1u64), 2 => 0..5u64, 1 => Just(u64::MAX)];
    prop::collection::vec((step, cost), 1..80)
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_unix_nanos(nanos)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// FW1, SC1, SL2, SL3 and the reported numbers: the same decisions and numbers as the
    /// definition, at every call.
    #[test]
    fn every_window_decides_as_its_definition_says(
        algorithm in windowed(), most in prop_oneof![0..6u64, Just(100_000u64)], window in windows(), calls in calls(),
    ) {
        let limit = Limit::of(most, Duration::from_nanos(window)).algorithm(algorithm);
        let limiter = Limiter::with_clock(limit, ManualClock::new());
        let mut model = Model::new(limit);
        let mut now = START;
        for (step, cost) in calls {
            now += step * window.div_ceil(64);
            // A limit of 100,000 is reached in large bites.
            let cost = if most > 1_000 && cost < 5 { cost * 20_000 } else { cost };
            let peeked = limiter.at(at(now)).peek_n(cost);
            let decision = limiter.at(at(now)).check_n(cost);
            prop_assert_eq!(DecisionInfo::from(peeked), model.peek(now, cost));
            prop_assert_eq!(DecisionInfo::from(decision), model.check(now, cost));
        }
    }

    /// SL1 and the strict counter: never more than N in any window, for instants in any order.
    #[test]
    fn logs_and_strict_counters_never_hold_more_than_n_in_any_window(
        strict in any::<bool>(), most in 1..6u64, window in windows(),
        calls in prop::collection::vec((0..500u64, 1..4u64), 1..80),
    ) {
        let algorithm = if strict { Algorithm::SlidingWindowStrict } else { Algorithm::SlidingLog };
        let limit = Limit::of(most, Duration::from_nanos(window)).algorithm(algorithm);
        let limiter = Limiter::with_clock(limit, ManualClock::new());
        // An instant behind the newest is judged as the newest: it counts there.
        let (mut admissions, mut newest) = (Vec::new(), 0);
        for (offset, cost) in calls {
            let now = START + offset * window.div_ceil(64);
            if limiter.at(at(now)).check_n(cost).is_allowed() {
                newest = newest.max(now);
                admissions.push(Admission::at(newest, cost));
            }
        }
        let found = Bound::SlidingLog { limit: most, window }.check(&admissions, 0);
        prop_assert!(found.is_ok(), "{found:?}: {admissions:?}");
    }

    /// FW2: over any length at most N for each window it touches, and 2N in an instant at the
    /// boundary is reached.
    #[test]
    fn fixed_windows_allow_twice_the_limit_at_a_boundary_and_never_more(most in 1..50u64, window in 2..10_000u64) {
        let limit = Limit::of(most, Duration::from_nanos(window)).algorithm(Algorithm::FixedWindow);
        let limiter = Limiter::with_clock(limit, ManualClock::new());
        let edge = START.next_multiple_of(window);
        let pass = |now: u64| (0..3 * most).filter(|_| limiter.at(at(now)).check().is_allowed()).count() as u64;
        prop_assert_eq!(pass(edge - 1) + pass(edge), 2 * most);
        prop_assert_eq!(pass(edge + window - 1), 0);
    }

    /// LQ1 to LQ5: starts are an interval apart, no call waits longer than M, first come first
    /// served, idle starts at once.
    #[test]
    fn a_queue_starts_one_call_every_interval(
        count in 1..100u64, period in prop_oneof![1..1_000u64, Just(1_000_000_000)], longest in 0..5_000u64,
        calls in prop::collection::vec((0..3_000u64, 1..4u64), 1..60),
    ) {
        let limit = Limit::of(count, Duration::from_nanos(period)).paced_max_wait(Duration::from_nanos(longest));
        prop_assume!(limit.effective().is_none());
        let limiter = Limiter::with_clock(limit, ManualClock::new());
        let mut model = Model::paced_max_wait(limit, longest);
        let mut now = START;
        for (step, cost) in calls {
            now += step;
            let decision = limiter.at(at(now)).check_n(cost);
            prop_assert_eq!(DecisionInfo::from(decision), model.check(now, cost));
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn limiter(text: &str) -> (Limiter<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Limiter::with_clock(text.parse().unwrap(), clock.clone()),
        clock,
    )
}

const ALL_WINDOWED: [&str; 5] = [
    "fixed_window",
    "fixed_window_first_hit",
    "sliding_window",
    "sliding_window_strict",
    "sliding_log",
];

#[test]
fn a_frozen_clock_and_many_threads_admit_exactly_n() {
    for algorithm in ALL_WINDOWED.into_iter().chain(["pacing"]) {
        for count in [1, 100, 5_000] {
            let (limiter, _) = limiter(&format!("{count}/min {algorithm}"));
            let admitted: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| (0..3_000).filter(|_| limiter.check().is_allowed()).count())
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum()
            });
            assert_eq!(admitted as u64, limiter.burst(), "{count}/min {algorithm}");
        }
    }
}

#[test]
fn a_denial_leaves_the_state_as_it_was() {
    for algorithm in ALL_WINDOWED.into_iter().chain(["pacing"]) {
        let (limiter, clock) = limiter(&format!("3/min {algorithm}"));
        while limiter.check().is_allowed() {}
        for _ in 0..20 {
            clock.advance(Duration::from_millis(100));
            let before = limiter.peek();
            let denied = limiter.check();
            if denied.is_denied() {
                assert_eq!(denied, before, "{algorithm}");
                assert_eq!(limiter.peek(), before, "{algorithm}");
            }
        }
    }
}

#[test]
fn a_worked_example_of_the_sliding_window() {
    // At 75 % of the window, 100 before and 80 now count as 80 + 25 = 105.
    let (limiter, clock) = limiter("200/min sliding_window");
    assert!(limiter.check_n(100).is_allowed());
    clock.advance(105 * SECOND);
    let decision = limiter.check_n(80);
    assert_eq!(decision.remaining(), 200 - 105);
}

#[test]
fn windows_cannot_reserve() {
    for algorithm in ALL_WINDOWED {
        let (limiter, _) = limiter(&format!("3/min {algorithm}"));
        let error = limiter.reserve(1).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{algorithm} cannot reserve ahead of time; use check or wait, or another algorithm"
            )
        );
        assert_eq!(limiter.peek().remaining(), 3, "nothing was taken");
    }
}

#[test]
fn settling_gives_back_to_the_window_it_was_charged_in() {
    for algorithm in ALL_WINDOWED {
        let (limiter, clock) = limiter(&format!("10/min {algorithm}"));
        let (here, gone) = (limiter.take(6).unwrap(), limiter.take(2).unwrap());
        here.settle(1);
        assert_eq!(limiter.peek().remaining(), 7, "{algorithm}");
        clock.advance(150 * SECOND);
        assert!(limiter.check_n(4).is_allowed());
        gone.settle(0);
        assert_eq!(
            limiter.peek().remaining(),
            6,
            "{algorithm}: that window is gone"
        );
        let more = limiter.take(1).unwrap();
        more.settle(100);
        assert_eq!(limiter.peek().remaining(), 0, "{algorithm}: marked full");
        assert_eq!(limiter.adjustments().settled_up, 10, "{algorithm}");
    }
}

#[test]
fn only_the_last_slot_of_a_queue_can_be_taken_back_and_only_before_it_begins() {
    let (limiter, clock) = limiter("1/s queue 5");
    let [first, second, third] = [(); 3].map(|()| limiter.reserve(1).unwrap());
    assert_eq!(
        [first.delay(), second.delay(), third.delay()],
        [Duration::ZERO, SECOND, 2 * SECOND]
    );
    second.cancel();
    assert_eq!(
        limiter.reserve(1).unwrap().delay(),
        3 * SECOND,
        "the second was not the last"
    );
    third.cancel();
    let last = limiter.reserve(1).unwrap();
    assert_eq!(last.delay(), 4 * SECOND);
    last.cancel();
    assert_eq!(
        limiter.reserve(1).unwrap().delay(),
        4 * SECOND,
        "the last was taken back"
    );
    clock.advance(10 * SECOND);
    let now = limiter.reserve(1).unwrap();
    now.cancel();
    assert_eq!(limiter.reserve(1).unwrap().delay(), SECOND, "it had begun");
}

#[test]
fn a_queue_denies_calls_that_would_wait_too_long() {
    let (limiter, clock) = limiter("10/s wait 300ms");
    let delays: Vec<_> = (0..6)
        .map(|_| limiter.check())
        .map(|d| d.is_allowed().then(|| d.delay().as_millis()))
        .collect();
    assert_eq!(
        delays,
        [Some(0), Some(100), Some(200), Some(300), None, None]
    );
    assert_eq!(
        limiter.check().retry_after(),
        Some(Duration::from_millis(100))
    );
    clock.advance(Duration::from_millis(100));
    assert_eq!(limiter.check().delay(), Duration::from_millis(300));
}

mod live {
    use super::*;
    use ratekeeper::limiter::Carry;

    #[test]
    fn a_window_keeps_its_counts_when_only_the_number_changes() {
        for algorithm in ALL_WINDOWED {
            let (limiter, clock) = limiter(&format!("10/min {algorithm}"));
            assert!(limiter.check_n(4).is_allowed());
            clock.advance(SECOND);
            limiter.set_limit(format!("20/min {algorithm}").parse().unwrap());
            assert_eq!(limiter.peek().remaining(), 16, "{algorithm}");
            limiter.set_limit(format!("3/min {algorithm}").parse().unwrap());
            assert_eq!(limiter.peek().remaining(), 0, "{algorithm}");
            assert!(limiter.check().is_denied());
        }
    }

    /// A count that is larger than the new limit's counters can hold is still a full window, and of
    /// this window.
    #[test]
    fn a_window_that_shrinks_by_far_is_full_and_keeps_its_counts() {
        for algorithm in ALL_WINDOWED {
            for (before, used, after) in [
                (100_000, 65_536, 10),
                (5, 4, 2),
                (1_000, 512, 10),
                (20_000, 16_384, 1),
            ] {
                for window in ["16ns", "s", "min", "d"] {
                    let (limiter, _) = limiter(&format!("{before}/{window} {algorithm}"));
                    assert!(limiter.check_n(used).is_allowed());
                    let resets = limiter.peek().reset_after();
                    let told = format!("{used} of {before}/{window} {algorithm}, then {after}");
                    limiter.set_limit(format!("{after}/{window} {algorithm}").parse().unwrap());
                    assert_eq!(limiter.peek().remaining(), 0, "{told}");
                    assert_eq!(limiter.peek().reset_after(), resets, "{told}");
                    assert!(limiter.check().is_denied(), "{told}");
                }
            }
        }
    }

    #[test]
    fn used_cost_carries_over_to_another_algorithm() {
        for from in [
            "token_bucket",
            "sliding_log",
            "fixed_window",
            "sliding_window",
            "sliding_window_strict",
        ] {
            for to in [
                "token_bucket",
                "sliding_log",
                "fixed_window",
                "fixed_window_first_hit",
                "sliding_window",
            ] {
                let (limiter, _) = limiter(&format!("10/min {from}"));
                assert!(limiter.check_n(4).is_allowed());
                limiter.set_limit(format!("10/h {to}").parse().unwrap());
                assert_eq!(limiter.peek().remaining(), 6, "{from} to {to}");
                limiter.set_limit_with(format!("10/min {from}").parse().unwrap(), Carry::Reset);
                assert_eq!(limiter.peek().remaining(), 10, "{from} to {to} and reset");
            }
        }
    }

    #[test]
    fn a_queue_keeps_the_time_at_which_it_is_empty() {
        let (limiter, _) = limiter("10/s queue 50");
        assert!(limiter.check_n(20).is_allowed());
        limiter.set_limit("1/s queue 50".parse().unwrap());
        let delay = limiter.check().delay();
        assert!(
            (2 * SECOND..2 * SECOND + Duration::from_nanos(2)).contains(&delay),
            "{delay:?}"
        );
    }

    #[test]
    fn a_grant_and_a_start_count_for_windows_too() {
        for algorithm in ALL_WINDOWED {
            let (limiter, _) = limiter(&format!("10/min {algorithm}"));
            let limiter = limiter.starting_with(3);
            assert_eq!(limiter.peek().remaining(), 3, "{algorithm}");
            limiter.grant(2);
            assert_eq!(limiter.peek().remaining(), 5, "{algorithm}");
            limiter.grant(100);
            assert_eq!(limiter.peek().remaining(), 10, "{algorithm}");
            assert_eq!(limiter.adjustments().granted, 7, "{algorithm}");
        }
    }
}

mod waiting {
    use super::*;
    use ratekeeper::limiter::WaitError;
    use std::sync::Mutex;

    #[test]
    fn waiters_for_a_window_are_served_in_order() {
        for algorithm in ALL_WINDOWED {
            let (limiter, clock) = limiter(&format!("2/min {algorithm}"));
            assert_eq!(limiter.wait_n(2).blocking(), Ok(()));
            let served = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for i in 0..3 {
                    let (limiter, served) = (&limiter, &served);
                    // The second is large and comes before the third, which would fit beside the
                    // first.
                    let cost = if i == 1 { 2 } else { 1 };
                    scope.spawn(move || {
                        limiter.wait_n(cost).blocking().unwrap();
                        served.lock().unwrap().push(i);
                    });
                    while clock.sleepers() < i + 1 {
                        std::thread::yield_now();
                    }
                }
                // One step of the clock each: `retry_after` is exact. The next comes once this one
                // has been served.
                for served_by_now in 1..=3 {
                    let wake = loop {
                        match clock.next_wake() {
                            Some(at) if at < Timestamp::from_unix_nanos(u64::MAX) => break at,
                            _ => std::thread::yield_now(),
                        }
                    };
                    clock.set(wake);
                    while served.lock().unwrap().len() < served_by_now {
                        std::thread::yield_now();
                    }
                }
            });
            assert_eq!(*served.lock().unwrap(), [0, 1, 2], "{algorithm}");
        }
    }

    #[test]
    fn a_deadline_that_a_window_would_miss_is_an_error_at_once() {
        let (limiter, clock) = limiter("1/min sliding_log");
        assert_eq!(limiter.wait().blocking(), Ok(()));
        clock.advance(10 * SECOND);
        let late = limiter.wait().within(49 * SECOND).blocking();
        assert_eq!(late, Err(WaitError::Deadline { delay: 50 * SECOND }));
        assert_eq!(
            limiter.wait_n(2).blocking(),
            Err(WaitError::ExceedsBurst { cost: 2, burst: 1 })
        );
        limiter.close();
        assert_eq!(limiter.wait().blocking(), Err(WaitError::Closed));
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_waiter_that_leaves_the_queue_lets_the_next_one_continue() {
        use ratekeeper_testkit::poll::poll_once;
        use std::task::Poll;

        let (limiter, clock) = limiter("1/min fixed_window");
        assert!(limiter.check().is_allowed());
        let (mut first, mut second) = (Box::pin(limiter.wait()), Box::pin(limiter.wait()));
        assert!(poll_once(&mut first).is_pending());
        assert!(poll_once(&mut second).is_pending());
        clock.advance(60 * SECOND);
        assert!(poll_once(&mut second).is_pending(), "it is not its turn");
        drop(first);
        assert_eq!(poll_once(&mut second), Poll::Ready(Ok(())));
        drop(second);
        assert_eq!(clock.sleepers(), 0);
    }
}
