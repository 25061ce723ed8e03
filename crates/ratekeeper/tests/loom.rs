//! Every interleaving of a few threads on the word, by loom.
//!
//! `make test` runs it with `RUSTFLAGS="--cfg ratekeeper_loom"`; without that there is nothing
//! here.
#![cfg(ratekeeper_loom)]

use loom::thread;
use ratekeeper::{Limit, Limiter, ManualClock, limiter::Carry};
use std::time::Duration;

fn limiter(limit: Limit) -> Limiter<ManualClock> {
    Limiter::with_clock(limit, ManualClock::new())
}

fn passed(limiter: &Limiter<ManualClock>, attempts: usize) -> usize {
    (0..attempts)
        .filter(|_| limiter.check().is_allowed())
        .count()
}

#[test]
fn two_threads_admit_exactly_the_burst() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(3));
        let other = limiter.clone();
        let thread = thread::spawn(move || passed(&other, 2));
        let here = passed(&limiter, 2);
        assert_eq!(here + thread.join().unwrap(), 3);
    });
}

#[test]
fn a_live_change_adds_no_tokens_and_loses_none() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(2));
        let other = limiter.clone();
        let changer = thread::spawn(move || {
            other.set_limit(Limit::per_second(2).burst(3));
            passed(&other, 1)
        });
        let here = passed(&limiter, 2);
        // Two tokens were there; the larger burst brings none.
        assert_eq!(here + changer.join().unwrap(), 2);
        assert!(limiter.check().is_denied());
    });
}

#[test]
fn two_changes_at_once_leave_one_of_them() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(2));
        let other = limiter.clone();
        let thread = thread::spawn(move || other.set_limit(Limit::per_second(1).burst(5)));
        limiter.set_limit_with(Limit::per_second(1).burst(4), Carry::Reset);
        thread.join().unwrap();
        assert!([4, 5].contains(&limiter.burst()));
        let left = passed(&limiter, 6);
        assert!(
            [4, 5].contains(&left) && left <= limiter.burst() as usize,
            "{left}"
        );
    });
}

#[test]
fn a_cancel_beside_a_reservation_gives_back_nothing_twice() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(1));
        assert!(limiter.check().is_allowed());
        let first = limiter.reserve(1).unwrap();
        let other = limiter.clone();
        let thread = thread::spawn(move || {
            let slot = other.reserve(1).unwrap();
            slot.act_at()
        });
        first.cancel();
        let act = thread.join().unwrap();
        // The bucket was empty: the first acts a second later at the earliest, and so on.
        let next = limiter.reserve(1).unwrap();
        assert!(next.act_at() >= act + Duration::from_secs(1));
    });
}

#[test]
fn two_cancels_beside_a_check_never_leave_more_than_the_burst() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(2));
        let [a, b] = [(); 2].map(|()| limiter.reserve(1).unwrap());
        let other = limiter.clone();
        let cancel = thread::spawn(move || a.cancel());
        let check = thread::spawn(move || passed(&other, 1));
        b.cancel();
        cancel.join().unwrap();
        let taken = check.join().unwrap();
        assert!(limiter.tokens() <= 2.0 - taken as f64);
    });
}

#[test]
fn settling_beside_a_check_gives_back_only_what_was_not_needed() {
    loom::model(|| {
        let limiter = limiter(Limit::per_second(1).burst(2));
        let charge = limiter.take(2).unwrap();
        let other = limiter.clone();
        let thread = thread::spawn(move || passed(&other, 2));
        charge.settle(1);
        let there = thread.join().unwrap();
        let rest = passed(&limiter, 2);
        assert_eq!(there + rest, 1);
    });
}
