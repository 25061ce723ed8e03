//! Many threads on one limiter: exactly what the limit says, for any interleaving.

use ratekeeper::{
    Clock, Limit, Limiter, ManualClock, clock::CoarseClock, clock::SystemClock, limiter::Carry,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn admitted_by(threads: usize, attempts: u64, limiter: &Limiter<ManualClock>) -> u64 {
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let passed = (0..attempts)
                    .filter(|_| limiter.check().is_allowed())
                    .count();
                admitted.fetch_add(passed as u64, Ordering::Relaxed);
            });
        }
    });
    admitted.into_inner()
}

#[test]
fn a_frozen_clock_admits_exactly_the_burst() {
    for burst in [1, 7, 1_000, 20_000] {
        let limiter = Limiter::with_clock(Limit::per_second(100).burst(burst), ManualClock::new());
        assert_eq!(admitted_by(8, 5_000, &limiter), burst);
        assert_eq!(limiter.tokens(), 0.0);
    }
}

#[test]
fn each_step_of_the_clock_admits_exactly_what_it_brings() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(1_000).burst(50), clock.clone());
    assert_eq!(admitted_by(4, 200, &limiter), 50);
    for _ in 0..20 {
        clock.advance(Duration::from_millis(13));
        assert_eq!(admitted_by(4, 50, &limiter), 13);
    }
}

#[test]
fn live_changes_under_load_add_no_tokens() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(100).burst(10_000), clock.clone());
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let passed = (0..4_000).filter(|_| limiter.check().is_allowed()).count();
                admitted.fetch_add(passed as u64, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            for change in 0..500u64 {
                limiter.set_limit(Limit::per_second(100 + change % 7).burst(10_000));
            }
        });
    });
    // The odd rates round a token to the strict side, by less than one a change.
    let admitted = admitted.into_inner();
    assert!(admitted <= 10_000, "{admitted} of 10,000");
    assert!(admitted >= 10_000 - 500, "{admitted} of 10,000");
}

#[test]
fn reservations_from_many_threads_get_slots_of_their_own() {
    let limiter = Limiter::with_clock(Limit::per_second(1_000).burst(1), ManualClock::new());
    let start = limiter.clock().now();
    let mut acts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    (0..250)
                        .map(|_| limiter.reserve(1).unwrap().act_at())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    acts.sort();
    let expected: Vec<_> = (0..1_000)
        .map(|slot| start + Duration::from_millis(slot))
        .collect();
    assert_eq!(acts, expected);
}

#[test]
fn cancels_and_settles_from_many_threads_give_back_exactly_what_was_not_used() {
    const BURST: u64 = 5_000;
    let limiter = Limiter::with_clock(Limit::per_second(1).burst(BURST), ManualClock::new());
    let used = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiter, used) = (&limiter, &used);
            scope.spawn(move || {
                for i in 0..2_000u64 {
                    match (i + thread) % 4 {
                        0 => limiter.reserve_within(3, Duration::ZERO).unwrap().cancel(),
                        1 => limiter.take(5).unwrap().settle(0),
                        2 => assert!(limiter.peek().remaining() <= BURST),
                        _ => {
                            limiter.take(2).unwrap().settle(1);
                            used.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    // The clock stands still: what is there and what was used are the burst, to the token.
    let used = used.into_inner();
    assert_eq!((used, limiter.tokens()), (2_000, (BURST - used) as f64));
    assert_eq!(
        (0..BURST).filter(|_| limiter.check().is_allowed()).count() as u64,
        BURST - used
    );
}

#[test]
fn handles_share_the_bucket() {
    let limiter = Limiter::with_clock(Limit::per_second(1).burst(2), ManualClock::new());
    let other = limiter.clone();
    assert!(limiter.check().is_allowed());
    assert!(other.check().is_allowed());
    assert!(limiter.check().is_denied());
    other.set_limit_with(Limit::per_second(1).burst(3), Carry::Reset);
    assert_eq!(limiter.burst(), 3);
}

#[test]
fn all_real_clocks_count_from_1970() {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let near =
        |told: ratekeeper::Timestamp| told.since_unix().abs_diff(now) < Duration::from_secs(60);
    assert!(near(SystemClock.now()));
    assert!(near(CoarseClock.now()));
    #[cfg(feature = "fast-clock")]
    assert!(near(ratekeeper::clock::FastClock.now()));
}

#[test]
fn real_clocks_do_not_run_backwards_in_one_thread() {
    fn check(clock: impl Clock) {
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
    check(SystemClock);
    check(CoarseClock);
    #[cfg(feature = "fast-clock")]
    check(ratekeeper::clock::FastClock);
}
