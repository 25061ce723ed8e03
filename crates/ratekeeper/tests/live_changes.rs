//! Changing a limit while it is in use.

use ratekeeper::{Clock, Limit, Limiter, ManualClock, Timestamp, limiter::Carry};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn limiter(limit: Limit) -> (Limiter<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::with_clock(limit, clock.clone()), clock)
}

/// A bucket of 10 with 4 left, changed to a bucket of `burst`.
fn four_of_ten_changed_to(burst: u64, carry: Carry) -> f64 {
    let (limiter, _) = limiter(Limit::per_second(1).burst(10));
    assert!(limiter.check_n(6).is_allowed());
    limiter.set_limit_with(Limit::per_second(2).burst(burst), carry);
    limiter.tokens()
}

#[test]
fn keep_adds_no_tokens_and_clips() {
    assert_eq!(four_of_ten_changed_to(20, Carry::Keep), 4.0);
    assert_eq!(four_of_ten_changed_to(3, Carry::Keep), 3.0);
}

#[test]
fn proportional_stays_as_full_as_it_was() {
    assert_eq!(four_of_ten_changed_to(20, Carry::Proportional), 8.0);
    assert_eq!(four_of_ten_changed_to(5, Carry::Proportional), 2.0);
}

#[test]
fn additive_brings_the_difference() {
    assert_eq!(four_of_ten_changed_to(20, Carry::Additive), 14.0);
    assert_eq!(four_of_ten_changed_to(3, Carry::Additive), 3.0);
}

#[test]
fn reset_starts_full() {
    assert_eq!(four_of_ten_changed_to(20, Carry::Reset), 20.0);
    assert_eq!(four_of_ten_changed_to(3, Carry::Reset), 3.0);
}

#[test]
fn debt_stays_as_tokens_except_after_a_reset() {
    for carry in [Carry::Keep, Carry::Proportional] {
        let (limiter, clock) = limiter(Limit::per_second(1).burst(2));
        let slot = (limiter.reserve(2).unwrap(), limiter.reserve(2).unwrap()).1;
        limiter.set_limit_with(Limit::per_second(4).burst(8), carry);
        assert_eq!(limiter.tokens(), -2.0, "{carry:?}");
        assert_eq!(slot.delay(), 2 * SECOND, "a slot keeps its time");
        clock.advance(SECOND);
        assert_eq!(
            limiter.tokens(),
            2.0,
            "{carry:?}: debt is repaid at the new rate"
        );
    }
}

#[test]
fn what_was_earned_is_settled_at_the_old_rate() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(100));
    assert!(limiter.check_n(100).is_allowed());
    clock.advance(10 * SECOND);
    limiter.set_limit(Limit::per_second(5).burst(100));
    assert_eq!(limiter.tokens(), 10.0);
    clock.advance(10 * SECOND);
    assert_eq!(limiter.tokens(), 60.0);
}

#[test]
fn rate_zero_freezes_the_level_until_the_next_change() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(10));
    assert!(limiter.check_n(10).is_allowed());
    clock.advance(2 * SECOND + SECOND / 2);
    limiter.set_limit(Limit::of(0, SECOND).burst(10));
    clock.advance(100 * SECOND);
    assert_eq!(limiter.tokens(), 2.5);
    assert!(limiter.check_n(2).is_allowed());
    assert!(limiter.check().is_never());
    limiter.set_limit(Limit::per_second(1).burst(10));
    assert_eq!(limiter.tokens(), 0.5);
    clock.advance(SECOND / 2);
    assert!(limiter.check().is_allowed());
}

#[test]
fn leaving_unlimited_is_full_after_any_time_and_unchanged_after_none() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(10));
    assert!(limiter.check_n(10).is_allowed());
    limiter.set_limit(Limit::unlimited());
    assert!(limiter.check_n(u64::MAX).is_allowed());
    assert!(limiter.check().is_unlimited());
    limiter.set_limit(Limit::per_second(1).burst(10));
    assert_eq!(limiter.tokens(), 0.0);
    limiter.set_limit(Limit::unlimited());
    clock.advance(Duration::from_nanos(1));
    limiter.set_limit(Limit::per_second(1).burst(10));
    assert_eq!(limiter.tokens(), 10.0);
}

#[test]
fn a_slot_from_before_a_change_can_still_be_given_back() {
    let (limiter, clock) = limiter(Limit::per_second(5).burst(2));
    let (_now, later) = (limiter.reserve(2).unwrap(), limiter.reserve(2).unwrap());
    clock.advance(SECOND / 5);
    for rate in [10, 3, 7] {
        limiter.set_limit(Limit::per_second(rate).burst(2));
    }
    let before = limiter.tokens();
    assert!((before + 1.0).abs() < 1e-6);
    later.cancel();
    assert!(
        (limiter.tokens() - before - 2.0).abs() < 1e-6,
        "{before} {}",
        limiter.tokens()
    );
}

#[test]
fn after_a_reset_older_charges_and_slots_give_nothing_back() {
    let (limiter, _) = limiter(Limit::per_second(1).burst(10));
    let charge = limiter.take(10).unwrap();
    let slot = limiter.reserve(5).unwrap();
    limiter.reset();
    assert!(limiter.check_n(8).is_allowed());
    charge.settle(0);
    slot.cancel();
    assert_eq!(limiter.tokens(), 2.0);
    assert_eq!(limiter.adjustments().not_returned, 10);
}

#[test]
fn setting_the_limit_in_force_changes_nothing() {
    let (limiter, _) = limiter(Limit::per_second(1).burst(10));
    let charge = limiter.take(10).unwrap();
    limiter.set_limit(Limit::per_second(1).burst(10));
    charge.settle(4);
    assert_eq!(limiter.tokens(), 6.0);
    assert_eq!(limiter.adjustments().changes, 0);
}

#[test]
fn a_grant_adds_up_to_a_full_bucket_and_is_counted() {
    let (limiter, _) = limiter(Limit::per_second(1).burst(10));
    assert!(limiter.check_n(10).is_allowed());
    limiter.grant(4);
    assert_eq!(limiter.tokens(), 4.0);
    limiter.grant(100);
    assert_eq!(limiter.tokens(), 10.0);
    assert_eq!(limiter.adjustments().granted, 10);
}

#[test]
fn a_limiter_outlives_its_horizon() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_day(59).burst(3), clock.clone());
    for _ in 0..60 {
        assert_eq!((0..9).filter(|_| limiter.check().is_allowed()).count(), 3);
        clock.advance(Duration::from_secs(86_400 * 400));
    }
    clock.set(Timestamp::from_unix_nanos(u64::MAX));
    assert_eq!((0..9).filter(|_| limiter.check().is_allowed()).count(), 3);
    assert!(limiter.at(limiter.clock().now()).check().is_denied());
}

#[test]
fn a_bucket_that_takes_a_century_to_fill_survives_its_horizon() {
    let clock = ManualClock::new();
    let year = Duration::from_secs(86_400 * 365);
    let limiter = Limiter::with_clock(Limit::of(1, year).burst(100), clock.clone());
    assert!(limiter.check_n(100).is_allowed());
    clock.advance(20 * year);
    assert_eq!(limiter.peek().remaining(), 20);
    clock.advance(20 * year);
    assert_eq!(limiter.peek().remaining(), 40);
}

#[test]
fn older_instants_of_a_replay_count_like_the_present() {
    let limiter = Limiter::new(Limit::per_second(1));
    let last_year = limiter.clock().now() - Duration::from_secs(86_400 * 365);
    let passed = (0..100)
        .filter(|i| limiter.at(last_year + SECOND / 2 * *i).check().is_allowed())
        .count();
    assert_eq!(passed, 50);
}
