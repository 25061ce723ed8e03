//! Refundable limits: the unused part of a charge comes back in full, and never more than that.

mod interfaces;
mod traces;

use interfaces::{Bucket, all_buckets};
use ratekeeper::{
    Algorithm, Clock, Limit, Limiter, ManualClock, decision::ReserveError, limiter::Carry,
};
use std::time::Duration;

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Nothing is used and at most `most` are pending: how many of 50,000 calls are denied.
fn denials(bucket: &mut dyn Bucket, clock: &ManualClock, most: usize) -> u64 {
    let mut numbers = Numbers(7);
    let (mut pending, mut denied) = (Vec::new(), 0);
    for _ in 0..100_000 {
        clock.advance(Duration::from_millis(numbers.below(5_000)));
        if pending.len() < most && numbers.below(2) == 0 {
            match bucket.take(1) {
                (decision, Some(charge)) if decision.is_allowed() => pending.push(charge),
                _ => denied += 1,
            }
        } else if !pending.is_empty() {
            let which = numbers.below(pending.len() as u64) as usize;
            bucket.settle(pending.swap_remove(which), 0);
        }
    }
    denied
}

#[test]
fn with_nothing_used_and_less_than_a_burst_pending_nothing_is_denied() {
    for text in [
        "5/h refundable",
        "5/h burst 5 leaky_bucket refundable",
        "100/s burst 5 refundable",
    ] {
        for make in all_buckets() {
            let clock = ManualClock::new();
            let mut bucket = make(text.parse().unwrap(), &clock);
            assert_eq!(
                denials(&mut *bucket, &clock, 5),
                0,
                "{text}, {}",
                bucket.name()
            );
        }
    }
    // The same with a plain bucket, for comparison.
    let clock = ManualClock::new();
    let mut plain = all_buckets()[0](Limit::per_hour(5), &clock);
    assert!(denials(&mut *plain, &clock, 5) > 1_000);
}

/// Threads read the clock before they take the lock: a call may come with an earlier instant than
/// the charge before it.
#[test]
fn a_stale_instant_denies_nothing() {
    for make in all_buckets() {
        let clock = ManualClock::new();
        let mut bucket = make(Limit::per_hour(5).refundable(), &clock);
        let mut numbers = Numbers(11);
        clock.advance(Duration::from_secs(3_600));
        let (mut now, mut pending) = (clock.now(), Vec::new());
        for _ in 0..10_000 {
            now = now + Duration::from_micros(numbers.below(2_000));
            clock.set(now - Duration::from_micros(numbers.below(20_000)));
            let (decision, charge) = bucket.take(1);
            assert!(decision.is_allowed(), "{}", bucket.name());
            pending.extend(charge);
            if pending.len() == 5 {
                clock.set(now - Duration::from_micros(numbers.below(20_000)));
                bucket.settle(pending.swap_remove(numbers.below(5) as usize), 0);
            }
        }
        // Denied, and allowed at the end of retry_after, not before.
        pending.extend(bucket.take(1).1);
        clock.set(now - Duration::from_secs(1));
        let wait = bucket.peek(1).retry_after().unwrap();
        assert!(wait > Duration::from_secs(1));
        clock.advance(wait - Duration::from_nanos(1));
        assert!(!bucket.peek(1).is_allowed(), "{}", bucket.name());
        clock.advance(Duration::from_nanos(1));
        assert!(bucket.peek(1).is_allowed(), "{}", bucket.name());
    }
}

/// Charges that are dropped count in full, until the time they took has come back: also while
/// others come and go.
#[test]
fn a_charge_that_is_never_settled_expires() {
    for make in all_buckets() {
        let clock = ManualClock::new();
        let mut bucket = make(Limit::per_hour(5).refundable(), &clock);
        for _ in 0..3 {
            assert!(bucket.take(1).0.is_allowed());
        }
        let take_and_return = |bucket: &mut dyn Bucket| {
            let (decision, charge) = bucket.take(1);
            clock.advance(Duration::from_secs(1));
            if let Some(charge) = charge {
                bucket.settle(charge, 0);
            }
            clock.advance(Duration::from_secs(9));
            decision
        };
        let most_left =
            |bucket: &mut dyn Bucket| (0..360).map(|_| take_and_return(bucket).remaining()).max();
        // At first two are left beside the three, of which one is taken.
        assert_eq!(
            take_and_return(&mut *bucket).remaining(),
            1,
            "{}",
            bucket.name()
        );
        for _ in 0..2 {
            assert!(most_left(&mut *bucket) > Some(0));
        }
        assert_eq!(most_left(&mut *bucket), Some(4), "{}", bucket.name());
        let five: Vec<_> = (0..5).map(|_| bucket.take(1)).collect();
        assert!(
            five.iter().all(|(decision, _)| decision.is_allowed()),
            "{}",
            bucket.name()
        );
        assert!(bucket.take(1).0.is_denied());
    }
}

#[test]
fn what_was_used_is_booked_when_it_was_charged() {
    for make in all_buckets() {
        let clock = ManualClock::new();
        let mut bucket = make(Limit::per_hour(10).refundable(), &clock);
        let (_, used) = bucket.take(6);
        let (_, unused) = bucket.take(4);
        clock.advance(Duration::from_secs(18 * 60));
        bucket.settle(used.unwrap(), 6);
        // Three of them have come back by now.
        bucket.settle(unused.unwrap(), 0);
        assert_eq!(bucket.check(0).remaining(), 7, "{}", bucket.name());
        // What costs more than it was charged is a debt.
        let (_, more) = bucket.take(2);
        bucket.settle(more.unwrap(), 9);
        let denied = bucket.check(1);
        assert_eq!(
            denied.retry_after(),
            Some(Duration::from_secs(18 * 60)),
            "{}",
            bucket.name()
        );
    }
}

#[test]
fn a_reset_or_a_change_voids_the_refunds_of_before() {
    for make in all_buckets() {
        let clock = ManualClock::new();
        let mut bucket = make(Limit::per_hour(10).refundable(), &clock);
        let (_, before) = bucket.take(4);
        bucket.reset();
        let (_, after) = bucket.take(6);
        bucket.settle(before.unwrap(), 0);
        assert_eq!(bucket.check(0).remaining(), 4, "{}", bucket.name());
        bucket.set_limit(Limit::per_hour(20).refundable());
        bucket.settle(after.unwrap(), 0);
        assert_eq!(bucket.check(0).remaining(), 4, "{}", bucket.name());
        assert_eq!(bucket.not_returned(), 10, "{}", bucket.name());
        // Levels are carried over as those of plain buckets are.
        bucket.set_limit(Limit::per_hour(20));
        assert_eq!(bucket.check(0).remaining(), 4);
        bucket.set_limit(Limit::per_hour(10).refundable());
        assert_eq!(bucket.check(0).remaining(), 4);
        bucket.set_limit(Limit::per_hour(10).algorithm(Algorithm::SlidingLog));
        assert_eq!(bucket.check(0).remaining(), 4);
        bucket.set_limit(Limit::per_hour(10).refundable());
        assert_eq!(bucket.check(0).remaining(), 4, "{}", bucket.name());
    }
}

#[test]
fn a_grant_is_not_taken_back_by_a_settle() {
    for make in all_buckets() {
        let clock = ManualClock::new();
        let mut bucket = make(Limit::per_hour(10).refundable(), &clock);
        let (_, charge) = bucket.take(8);
        bucket.grant(3);
        assert_eq!(bucket.check(0).remaining(), 5, "{}", bucket.name());
        bucket.settle(charge.unwrap(), 8);
        assert_eq!(bucket.check(0).remaining(), 5, "{}", bucket.name());
    }
}

#[test]
fn there_are_no_slots_ahead_of_time() {
    let limiter = Limiter::with_clock(Limit::per_hour(5).refundable(), ManualClock::new());
    assert_eq!(
        limiter.reserve(1).err(),
        Some(ReserveError::NoSlots(Algorithm::TokenBucket))
    );
    limiter.set_limit_with(Limit::per_hour(5), Carry::Keep);
    assert!(limiter.reserve(1).is_ok());
}

#[test]
fn the_word_changes_nothing_where_refunds_are_exact() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_hour(5).algorithm(algorithm);
        let bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        assert_eq!(limit.refundable() != limit, bucket);
        assert_eq!(limit.refundable().is_refundable(), bucket);
        assert_eq!(
            limit.refundable().to_string().ends_with(" refundable"),
            bucket
        );
    }
    assert_eq!(Limit::unlimited().refundable(), Limit::unlimited());
    assert_eq!(Limit::deny_all().refundable(), Limit::deny_all());
    let limit = Limit::per_hour(8).burst(12).refundable();
    assert_eq!(limit.share(4).to_string(), "8/4h burst 3 refundable");
    assert_eq!(
        (limit.burst(3), limit.capacity()),
        (Limit::per_hour(8).burst(3).refundable(), 12)
    );
    assert_eq!(limit.fills_in(), Limit::per_hour(8).burst(12).fills_in());
}
