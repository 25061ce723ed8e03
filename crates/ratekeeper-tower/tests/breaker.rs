//! The circuit breaker by itself, on a manual clock.

use ratekeeper::ManualClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::{CallGuard, CircuitBreakerBuilder, Force, State};
use std::time::Duration;

type Breaker = CircuitBreaker<ManualClock>;

fn builder() -> (CircuitBreakerBuilder<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        CircuitBreaker::builder()
            .jitter_percent(0)
            .clock(clock.clone()),
        clock,
    )
}

fn breaker() -> (Breaker, ManualClock) {
    let (builder, clock) = builder();
    (builder.build().unwrap(), clock)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn succeed(breaker: &Breaker, times: usize) {
    (0..times).for_each(|_| breaker.try_acquire().unwrap().success());
}

fn fail(breaker: &Breaker, times: usize) {
    (0..times).for_each(|_| breaker.try_acquire().unwrap().failure());
}

/// An open breaker whose open time is over.
fn half_open() -> (Breaker, ManualClock) {
    let (breaker, clock) = breaker();
    fail(&breaker, 20);
    clock.advance(secs(5));
    assert_eq!(breaker.state(), State::HalfOpen);
    (breaker, clock)
}

fn probes(breaker: &Breaker) -> [CallGuard<ManualClock>; 3] {
    [(); 3].map(|()| breaker.try_acquire().unwrap())
}

#[test]
fn it_opens_at_half_of_twenty_calls_and_not_before() {
    let (breaker, _) = breaker();
    fail(&breaker, 10);
    succeed(&breaker, 9);
    assert_eq!(breaker.state(), State::Closed);
    // The twentieth call is a success, and still half of them have failed.
    succeed(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
    let figures = breaker.stats();
    assert_eq!(
        (
            figures.calls,
            figures.failures,
            figures.slow,
            figures.opened
        ),
        (20, 10, 0, 1)
    );
}

#[test]
fn just_under_half_keeps_it_closed() {
    let (breaker, _) = breaker();
    succeed(&breaker, 501);
    fail(&breaker, 500);
    assert_eq!(breaker.state(), State::Closed);
    fail(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn failures_of_more_than_ten_buckets_ago_are_forgotten() {
    let (breaker, clock) = breaker();
    fail(&breaker, 19);
    clock.advance(millis(9_999));
    assert_eq!(breaker.recent().failures, 19);
    clock.advance(millis(1));
    assert_eq!(breaker.recent().calls, 0);
    fail(&breaker, 19);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn four_in_five_slow_calls_open_it_and_exactly_as_long_is_not_slow() {
    let (builder, clock) = builder();
    let breaker = builder.slow_after(millis(100)).build().unwrap();
    let take = |time| {
        let call = breaker.try_acquire().unwrap();
        clock.advance(time);
        call.success();
    };
    (0..4).for_each(|_| take(millis(100)));
    (0..15).for_each(|_| take(millis(101)));
    assert_eq!(
        (breaker.state(), breaker.recent().slow),
        (State::Closed, 15)
    );
    take(millis(101));
    assert_eq!(
        (
            breaker.state(),
            breaker.stats().slow,
            breaker.stats().failures
        ),
        (State::Open, 16, 0)
    );
}

#[test]
fn a_slow_probe_has_failed() {
    let (builder, clock) = builder();
    let breaker = builder.slow_after(millis(100)).build().unwrap();
    fail(&breaker, 20);
    clock.advance(secs(5));
    let probe = breaker.try_acquire().unwrap();
    clock.advance(millis(101));
    probe.success();
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn without_a_time_no_call_is_slow() {
    let (breaker, clock) = breaker();
    for _ in 0..20 {
        let call = breaker.try_acquire().unwrap();
        clock.advance(millis(400));
        call.success();
    }
    assert_eq!((breaker.state(), breaker.stats().slow), (State::Closed, 0));
}

#[test]
fn ignored_and_dropped_calls_do_not_count() {
    let (breaker, _) = breaker();
    for _ in 0..100 {
        breaker.try_acquire().unwrap().ignore();
        drop(breaker.try_acquire().unwrap());
    }
    fail(&breaker, 19);
    assert_eq!(
        (breaker.state(), breaker.stats().calls),
        (State::Closed, 19)
    );
}

#[test]
fn open_returns_the_time_left_and_counts_rejections() {
    let (breaker, clock) = breaker();
    fail(&breaker, 20);
    let open = breaker.try_acquire().unwrap_err();
    assert_eq!(open.retry_after(), secs(5));
    assert_eq!(
        open.to_string(),
        "the circuit breaker is open; retry after 5s"
    );
    clock.advance(millis(4_999));
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), millis(1));
    assert_eq!(
        (breaker.state(), breaker.stats().rejected),
        (State::Open, 2)
    );
    clock.advance(millis(1));
    assert_eq!(breaker.state(), State::HalfOpen);
    assert!(breaker.try_acquire().unwrap().is_probe());
}

#[test]
fn three_probes_that_succeed_close_it_and_the_past_is_forgotten() {
    let (breaker, _) = half_open();
    let [first, second, third] = probes(&breaker);
    let rejected = breaker.try_acquire().unwrap_err();
    assert_eq!(
        rejected.retry_after(),
        secs(1),
        "an answer may come at any moment"
    );
    first.success();
    second.success();
    assert_eq!(breaker.state(), State::HalfOpen);
    assert!(
        breaker.try_acquire().is_err(),
        "two have succeeded and the third is out"
    );
    third.success();
    assert_eq!(
        (breaker.state(), breaker.recent().calls),
        (State::Closed, 0)
    );
    fail(&breaker, 19);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn one_failed_probe_opens_it_again_and_the_others_are_ignored() {
    let (breaker, _) = half_open();
    let [first, second, third] = probes(&breaker);
    first.success();
    second.failure();
    assert_eq!((breaker.state(), breaker.stats().opened), (State::Open, 2));
    third.success();
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), secs(10));
}

#[test]
fn a_probe_does_not_affect_the_next_half_open() {
    let (breaker, clock) = half_open();
    let [late, other, failing] = probes(&breaker);
    failing.failure();
    clock.advance(secs(10));
    let [first, second, third] = probes(&breaker);
    late.failure();
    other.success();
    assert_eq!(breaker.state(), State::HalfOpen);
    assert!(breaker.try_acquire().is_err());
    first.success();
    second.success();
    third.success();
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn a_call_from_before_does_not_affect_half_open() {
    let (breaker, clock) = breaker();
    let (late, later) = (
        breaker.try_acquire().unwrap(),
        breaker.try_acquire().unwrap(),
    );
    fail(&breaker, 20);
    late.failure();
    clock.advance(secs(5));
    let _probes = probes(&breaker);
    later.failure();
    assert_eq!(
        (breaker.state(), breaker.stats().calls),
        (State::HalfOpen, 22)
    );
}

#[test]
fn dropped_probes_never_wedge_it() {
    let (breaker, _) = half_open();
    for _ in 0..1_000 {
        let [first, second, third] = probes(&breaker);
        assert!(breaker.try_acquire().is_err());
        drop(first);
        second.ignore();
        drop(third);
    }
    probes(&breaker).into_iter().for_each(CallGuard::success);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn probes_past_their_deadline_never_wedge_it() {
    let (breaker, clock) = half_open();
    let lost = probes(&breaker);
    clock.advance(millis(9_500));
    assert_eq!(
        breaker.try_acquire().unwrap_err().retry_after(),
        millis(500)
    );
    clock.advance(millis(500));
    let [first, second, third] = probes(&breaker);
    // Guards of probes that have lost their slots do not free them.
    drop(lost);
    assert!(breaker.try_acquire().is_err());
    [first, second, third]
        .into_iter()
        .for_each(CallGuard::success);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn a_late_answer_of_a_probe_still_counts() {
    let (breaker, clock) = half_open();
    let slow = probes(&breaker);
    clock.advance(secs(10));
    let replacements = probes(&breaker);
    slow.into_iter().for_each(CallGuard::success);
    assert_eq!(
        breaker.state(),
        State::Closed,
        "what takes longer than the deadline can close it"
    );
    replacements.into_iter().for_each(CallGuard::failure);
    assert_eq!(breaker.state(), State::Closed);

    let (breaker, clock) = half_open();
    let [timed_out, ..] = probes(&breaker);
    clock.advance(secs(10));
    let _replacements = probes(&breaker);
    timed_out.failure();
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn open_doubles_to_a_minute_and_starts_over_once_closed() {
    let (breaker, clock) = breaker();
    fail(&breaker, 20);
    for seconds in [5, 10, 20, 40, 60, 60, 60] {
        assert_eq!(
            breaker.try_acquire().unwrap_err().retry_after(),
            secs(seconds)
        );
        clock.advance(secs(seconds));
        breaker.try_acquire().unwrap().failure();
    }
    clock.advance(secs(60));
    probes(&breaker).into_iter().for_each(CallGuard::success);
    fail(&breaker, 20);
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), secs(5));
}

#[test]
fn a_hundred_failed_recoveries_are_still_a_minute_each() {
    let (breaker, clock) = breaker();
    fail(&breaker, 20);
    for _ in 0..100 {
        clock.advance(secs(60));
        breaker.try_acquire().unwrap().failure();
    }
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), secs(60));
}

#[test]
fn jitter_makes_open_longer_by_up_to_a_tenth_and_differs_by_seed() {
    let times = |seed| {
        let clock = ManualClock::new();
        let breaker = CircuitBreaker::builder()
            .seed(seed)
            .clock(clock.clone())
            .build()
            .unwrap();
        fail(&breaker, 20);
        [5, 10, 20, 40, 60, 60].map(|seconds| {
            let time = breaker.try_acquire().unwrap_err().retry_after();
            // Times are rounded up to a millisecond.
            assert!(
                (secs(seconds)..=secs(seconds) * 11 / 10 + millis(1)).contains(&time),
                "{time:?}"
            );
            clock.advance(time);
            breaker.try_acquire().unwrap().failure();
            time
        })
    };
    let all: Vec<_> = (0..200).map(times).collect();
    assert_eq!(times(7), all[7], "the same seed, the same times");
    let firsts: Vec<_> = all.iter().map(|times| times[0]).collect();
    assert!(
        firsts.iter().min() < Some(&millis(5_050)) && firsts.iter().max() > Some(&millis(5_450)),
        "{firsts:?}"
    );
    assert_ne!(all[0][4], all[0][5], "each time is drawn anew");
}

#[test]
fn breakers_without_a_seed_differ() {
    let mut times: Vec<_> = (0..20)
        .map(|_| {
            let breaker = CircuitBreaker::builder()
                .clock(ManualClock::new())
                .build()
                .unwrap();
            fail(&breaker, 20);
            breaker.try_acquire().unwrap_err().retry_after()
        })
        .collect();
    times.sort();
    times.dedup();
    assert!(times.len() > 1);
}

#[test]
fn forced_open_rejects_everything() {
    let (breaker, clock) = breaker();
    breaker.force(Force::Open);
    clock.advance(secs(1_000));
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), secs(5));
    assert_eq!(
        (breaker.state(), breaker.stats().rejected),
        (State::ForcedOpen, 1)
    );
    assert_eq!(breaker.stats().opened, 0, "it has not opened by itself");
    breaker.force(Force::Auto);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn forced_closed_allows_everything_and_counts_nothing() {
    let (breaker, _) = breaker();
    fail(&breaker, 20);
    breaker.force(Force::Closed);
    fail(&breaker, 100);
    assert_eq!(
        (breaker.state(), breaker.stats().failures),
        (State::ForcedClosed, 120)
    );
    let late = breaker.try_acquire().unwrap();
    breaker.force(Force::Auto);
    late.failure();
    fail(&breaker, 19);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn metrics_only_counts_and_never_rejects() {
    let (breaker, clock) = breaker();
    breaker.force(Force::MetricsOnly);
    fail(&breaker, 100);
    succeed(&breaker, 50);
    assert_eq!(breaker.state(), State::MetricsOnly);
    assert_eq!(
        (breaker.recent().calls, breaker.recent().failures),
        (150, 100)
    );
    assert_eq!((breaker.stats().rejected, breaker.stats().opened), (0, 0));
    // Forcing the same state again keeps the counts.
    breaker.force(Force::MetricsOnly);
    assert_eq!(breaker.recent().calls, 150);
    breaker.force(Force::Auto);
    fail(&breaker, 19);
    assert_eq!(breaker.state(), State::Closed);
    clock.advance(secs(1));
    fail(&breaker, 1);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn auto_keeps_an_automatic_state() {
    let (breaker, clock) = half_open();
    let _probes = probes(&breaker);
    breaker.force(Force::Auto);
    assert!(breaker.try_acquire().is_err());
    breaker.force(Force::Open);
    breaker.force(Force::Auto);
    fail(&breaker, 20);
    breaker.force(Force::Auto);
    assert_eq!(breaker.state(), State::Open);
    clock.advance(secs(5));
    assert_eq!(breaker.state(), State::HalfOpen);
}

#[test]
fn clones_share_everything() {
    let (breaker, _) = breaker();
    fail(&breaker.clone(), 20);
    assert_eq!(
        (breaker.state(), breaker.stats().failures),
        (State::Open, 20)
    );
}

#[test]
fn tens_of_thousands_of_state_changes_do_not_wrap_around() {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .max_open_for(secs(5))
        .jitter_percent(0)
        .clock(clock.clone())
        .build()
        .unwrap();
    fail(&breaker, 20);
    for _ in 0..40_000 {
        clock.advance(secs(5));
        breaker.try_acquire().unwrap().failure();
    }
    // Two of the slots were not used all that time.
    clock.advance(secs(5));
    probes(&breaker).into_iter().for_each(CallGuard::success);
    assert_eq!(
        (breaker.state(), breaker.stats().opened),
        (State::Closed, 40_001)
    );
    fail(&breaker, 20);
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn invalid_settings_are_errors_that_name_the_range() {
    let message = |builder: CircuitBreakerBuilder| builder.build().unwrap_err().to_string();
    let new = CircuitBreaker::builder;
    assert_eq!(
        message(new().failure_percent(0)),
        "failure_percent is 0; it must be from 1 to 100"
    );
    assert_eq!(
        message(new().slow_percent(101)),
        "slow_percent is 101; it must be from 1 to 100"
    );
    assert_eq!(
        message(new().jitter_percent(101)),
        "jitter_percent is 101; it must be from 0 to 100"
    );
    assert_eq!(
        message(new().min_calls(0)),
        "min_calls is 0; it must be 1 or more"
    );
    assert_eq!(
        message(new().buckets(0)),
        "buckets is 0; it must be from 1 to 1000"
    );
    assert_eq!(
        message(new().probes(0)),
        "probes is 0; it must be from 1 to 1000"
    );
    assert_eq!(
        message(new().open_for(secs(0))),
        "open_for is 0ns; it must be from a millisecond to a year"
    );
    assert_eq!(
        message(new().open_for(secs(61))),
        "open_for is 61s; it must not be longer than max_open_for, 60s"
    );
    assert!(new().bucket_length(Duration::MAX).build().is_err());
    assert!(
        new()
            .probe_timeout(Duration::from_nanos(1))
            .build()
            .is_err()
    );
}

#[test]
fn an_allowed_call_allocates_nothing() {
    let (breaker, _) = breaker();
    let allocated = allocation_counter::measure(|| {
        breaker.try_acquire().unwrap().success();
        breaker.try_acquire().unwrap().failure();
        breaker.try_acquire().unwrap().ignore();
    });
    assert_eq!(allocated.count_total, 0);
}
