//! Known defects of other limiters, tested on this one. Each test names the peer and the defect.

use ratekeeper::{Clock, Limit, Limiter, ManualClock, Timestamp, limiter::WaitError};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn limiter(limit: Limit) -> (Limiter<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit, clock.clone()), clock)
}

#[test]
fn governor_a_huge_cost_is_never_and_does_not_wrap_to_a_small_one() {
    let (limiter, _) = limiter(Limit::per_hour(1).burst(10));
    for cost in [
        11,
        5_124_097,
        u64::MAX / 3_600_000_000_000 + 1,
        u64::MAX / 2 + 1,
        u64::MAX,
    ] {
        assert!(limiter.check_n(cost).is_never(), "{cost}");
        assert!(limiter.reserve(cost).unwrap_err().is_never(), "{cost}");
        assert!(limiter.take(cost).unwrap_err().is_never(), "{cost}");
        assert!(
            matches!(
                limiter.wait_n(cost).blocking(),
                Err(WaitError::ExceedsBurst { .. })
            ),
            "{cost}"
        );
    }
    assert_eq!(limiter.tokens(), 10.0);
}

#[test]
fn governor_an_interval_is_not_floored_to_whole_nanoseconds() {
    let (limiter, clock) = limiter(Limit::per_second(600_000_000).burst(1_000));
    assert!(limiter.check_n(1_000).is_allowed());
    let mut admitted = 0;
    for _ in 0..10_000 {
        clock.advance(Duration::from_nanos(100));
        admitted += (0..1_000)
            .take_while(|_| limiter.check().is_allowed())
            .count();
    }
    // A millisecond at 600 M/s; governor admits 67 % more.
    assert_eq!(admitted, 600_000);
}

#[test]
fn governor_waiters_queue_instead_of_racing() {
    // The large waiter takes its slot: later small calls come after it. (See waiting.rs for the
    // rest.)
    let (limiter, clock) = limiter(Limit::per_second(1).burst(5));
    assert!(limiter.check_n(5).is_allowed());
    let large = limiter.reserve(5).unwrap();
    let small = limiter.reserve(1).unwrap();
    assert!(small.act_at() > large.act_at());
    clock.advance(5 * SECOND);
    assert_eq!(large.delay(), Duration::ZERO);
}

#[test]
fn xtime_rate_stale_clocks_add_no_tokens_under_contention() {
    let (limiter, clock) = limiter(Limit::per_second(10).burst(1));
    let (stale, fresh) = (clock.now(), clock.now() + SECOND / 10);
    let admitted = (0..100).filter(|i| {
        limiter
            .at(if i % 2 == 0 { fresh } else { stale })
            .check()
            .is_allowed()
    });
    assert_eq!(admitted.count(), 1);
}

#[test]
fn xtime_rate_several_cancels_do_not_give_back_too_much() {
    // Go's rule looks at the newest event only; after one cancel in the middle it gives back
    // promised tokens.
    let (limiter, _) = limiter(Limit::per_second(1).burst(3));
    assert!(limiter.check_n(3).is_allowed());
    let [a, b, c] = [(); 3].map(|()| limiter.reserve(1).unwrap());
    let last = c.act_at();
    a.cancel();
    b.cancel();
    // c still acts at its time: before it, no more than time brings may act.
    let others =
        std::iter::from_fn(|| limiter.reserve_within(1, last - limiter.clock().now()).ok());
    let before_c = others.filter(|other| other.act_at() <= last).count();
    assert!(
        before_c <= 2,
        "{before_c} others and c act within 3 s of a spent bucket"
    );
}

#[test]
fn xtime_rate_not_a_number_is_not_a_rate_that_admits_everything() {
    assert!(Limit::per_second_f64(f64::NAN).is_err());
}

#[test]
fn xtime_rate_a_wait_of_2_to_the_63_ns_does_not_wrap() {
    let century = Duration::from_secs(86_400 * 365 * 100);
    let (limiter, _) = limiter(Limit::every(century));
    assert!(limiter.check().is_allowed());
    let mut slots = Vec::new();
    let refused = loop {
        match limiter.reserve(1) {
            Ok(slot) => slots.push(slot.act_at()),
            Err(denied) => break denied,
        }
        assert!(slots.len() < 10, "no end to the debt");
    };
    assert!(refused.is_never());
    assert!(slots.is_sorted(), "later slots are later");
    assert_eq!(
        limiter.tokens(),
        -(slots.len() as f64),
        "what was refused took nothing"
    );
}

#[test]
fn ratelimit_no_fraction_of_a_token_is_dropped_at_a_refill() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    assert!(limiter.check().is_allowed());
    let (mut admitted, end) = (0, clock.now() + 20 * SECOND);
    while clock.now() + Duration::from_nanos(1_999) <= end {
        clock.advance(Duration::from_nanos(1_999));
        admitted += u32::from(limiter.check().is_allowed());
    }
    // The last token is due within one step of the end.
    assert!(
        (19..=20).contains(&admitted),
        "{admitted} in 20 s at 1/s; ratelimit 2.0 admits 10"
    );
}

#[test]
fn throttlecrab_an_idle_key_admits_its_burst_and_not_more() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(10));
    assert!(limiter.check().is_allowed());
    clock.advance(Duration::from_millis(5_300));
    assert_eq!((0..50).filter(|_| limiter.check().is_allowed()).count(), 10);
}

#[test]
fn throttlecrab_a_caller_that_obeys_retry_after_is_allowed() {
    let (limiter, clock) = limiter(Limit::of(7, 3 * SECOND).burst(1));
    for _ in 0..100 {
        let _ = limiter.check();
        let Some(after) = limiter.check().retry_after() else {
            panic!("denied calls say when")
        };
        clock.advance(after - Duration::from_nanos(1));
        assert!(limiter.check().is_denied(), "a nanosecond early is early");
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.check().is_allowed());
    }
}

#[test]
fn redis_cell_remaining_is_right_for_intervals_below_a_microsecond() {
    let (limiter, _) = limiter(Limit::per_second(3_000_000_000).burst(16));
    assert_eq!(limiter.check().remaining(), 15);
    assert_eq!(limiter.check_n(15).remaining(), 0);
    assert_eq!(limiter.check().remaining(), 0);
}

#[test]
fn bucket4j_a_denial_never_says_wait_zero() {
    let (limiter, clock) = limiter(Limit::per_second(58_000_000_000).burst(1));
    for _ in 0..1_000 {
        let _ = limiter.check();
        let denied = limiter.check();
        assert!(
            denied
                .retry_after()
                .is_some_and(|after| after > Duration::ZERO)
        );
        clock.advance(Duration::from_nanos(1));
    }
}

#[test]
fn tower_governor_per_second_is_a_count_per_second() {
    let (limiter, _) = limiter(Limit::per_second(5));
    assert_eq!((0..20).filter(|_| limiter.check().is_allowed()).count(), 5);
}

#[test]
fn every_clock_reading_is_safe() {
    let (limiter, _) = limiter(Limit::per_second(59).burst(7));
    // A burst whenever time is later than ever before, and nothing where it has run backwards.
    for (nanos, burst) in [
        (0, 0),
        (1, 0),
        (u64::MAX / 2, 7),
        (1_600_000_000_000_000_000, 0),
        (u64::MAX, 7),
        (5, 0),
        (u64::MAX - 1, 0),
    ] {
        let view = limiter.at(Timestamp::from_unix_nanos(nanos));
        assert_eq!(view.peek().remaining(), burst, "at {nanos}");
        // What is not used comes back.
        let before = view.tokens();
        let charges = (
            view.reserve_within(2, Duration::ZERO).ok(),
            view.take(1).ok(),
        );
        assert_eq!(
            (charges.0.is_some(), charges.1.is_some()),
            (burst > 0, burst > 0),
            "at {nanos}"
        );
        charges
            .1
            .into_iter()
            .for_each(|charge| view.settle(charge, 0));
        charges.0.into_iter().for_each(|slot| view.cancel(slot));
        assert_eq!(view.tokens(), before, "at {nanos}");
        assert_eq!(
            (0..20).filter(|_| view.check().is_allowed()).count() as u64,
            burst,
            "at {nanos}"
        );
    }
}
