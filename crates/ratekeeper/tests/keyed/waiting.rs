//! Waiting on keys.

use ratekeeper::{Algorithm, Clock, Keyed, Limit, ManualClock, Timestamp, limiter::WaitError};
use std::sync::Mutex;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn keyed(limit: Limit, max_keys: usize) -> (Keyed<u64, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Keyed::builder(limit)
            .max_keys(max_keys)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

/// One queue per key: waits on one key are served in order, and waits on another key are
/// independent.
#[test]
fn waiters_of_a_key_are_served_in_order_and_delay_no_other_key() {
    // A full queue turns waiters away.
    for algorithm in Algorithm::ALL
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Pacing)
    {
        let (keyed, clock) = keyed(Limit::per_minute(1).algorithm(algorithm), 100);
        while keyed.check(&0).is_allowed() {}
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for i in 0..3 {
                let (keyed, served) = (&keyed, &served);
                scope.spawn(move || {
                    keyed.key(&0).wait().blocking().unwrap();
                    served.lock().unwrap().push(i);
                });
                while clock.sleepers() < i + 1 {
                    std::thread::yield_now();
                }
                assert_eq!(
                    keyed.key(&(10 + i as u64)).wait().blocking(),
                    Ok(()),
                    "{algorithm}: another key"
                );
            }
            // One step of the clock each; the next comes once this one has been served.
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

/// A waiter owns its slot, also if its key is evicted while it waits.
#[test]
fn a_waiters_slot_counts_after_its_key_is_evicted() {
    let (keyed, clock) = keyed(Limit::per_second(1).burst(1), 1);
    let start = clock.now();
    assert!(keyed.check(&0).is_allowed());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| keyed.key(&0).wait().blocking());
        while clock.sleepers() == 0 {
            std::thread::yield_now();
        }
        for other in 1..500 {
            let _ = keyed.check(&other);
        }
        assert!(
            keyed.key(&0).at(start + SECOND).peek().is_denied(),
            "that second is the waiter's"
        );
        clock.advance(SECOND);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(keyed.check(&0).is_denied());
    });
}

#[test]
fn a_wait_beyond_its_deadline_takes_nothing_and_close_ends_all() {
    // A full queue turns waiters away.
    for algorithm in Algorithm::ALL
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Pacing)
    {
        let limit = Limit::per_minute(2).algorithm(algorithm);
        let (keyed, clock) = keyed(limit, 100);
        while keyed.check(&0).is_allowed() {}
        let before = keyed.key(&0).peek();
        let late = keyed
            .key(&0)
            .wait()
            .within(Duration::from_millis(1))
            .blocking();
        assert!(
            matches!(late, Err(WaitError::Deadline { .. })),
            "{algorithm}: {late:?}"
        );
        let never = keyed.key(&0).wait_n(100).blocking();
        assert_eq!(
            never,
            Err(WaitError::ExceedsBurst {
                cost: 100,
                burst: limit.capacity()
            }),
            "{algorithm}"
        );
        assert_eq!(keyed.key(&0).peek(), before, "{algorithm}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| keyed.key(&0).wait().blocking());
            while clock.sleepers() == 0 {
                std::thread::yield_now();
            }
            keyed.close();
            assert_eq!(
                waiter.join().unwrap(),
                Err(WaitError::Closed),
                "{algorithm}"
            );
        });
        assert!(
            keyed.check(&1).is_allowed(),
            "{algorithm}: the other verbs go on"
        );
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_wait_that_is_dropped_gives_its_slot_back() {
    use ratekeeper_testkit::poll::poll_once;

    let (keyed, clock) = keyed(Limit::per_second(1).burst(1), 100);
    assert!(keyed.check(&0).is_allowed());
    let mut wait = Box::pin(keyed.key(&0).wait());
    assert!(poll_once(&mut wait).is_pending());
    assert_eq!(keyed.key(&0).tokens(), -1.0);
    drop(wait);
    assert_eq!(keyed.key(&0).tokens(), 0.0);
    assert_eq!(clock.sleepers(), 0);
}

/// Compares the time of many waiters with that of few, a hundred times over: the same where each
/// takes constant time, a hundred times as much where each looks at all others.
#[cfg(feature = "tokio")]
#[test]
fn a_wait_takes_no_longer_among_many_waiters() {
    use ratekeeper_testkit::poll::poll_once;

    const FEW: u64 = 200;
    const MANY: u64 = 100 * FEW;
    // Waits on this many keys, or this many times on one key; drops the waits in the order in which
    // they came.
    let time = |waiters: u64, keys: u64| {
        let (keyed, _) = keyed(
            Limit::per_minute(1).algorithm(Algorithm::FixedWindow),
            MANY as usize,
        );
        (0..keys).for_each(|key| assert!(keyed.check(&key).is_allowed()));
        let start = std::time::Instant::now();
        let mut waits: Vec<_> = (0..waiters)
            .map(|nth| Box::pin(keyed.key(&(nth % keys)).wait()))
            .collect();
        for wait in &mut waits {
            assert!(poll_once(wait).is_pending());
        }
        drop(waits);
        start.elapsed()
    };
    for of_one_key in [false, true] {
        let keys = |waiters| if of_one_key { 1 } else { waiters };
        let few: Duration = (0..MANY / FEW).map(|_| time(FEW, keys(FEW))).sum();
        let many = time(MANY, keys(MANY));
        assert!(
            many < few * 20,
            "{MANY} waiters, all on one key: {of_one_key}: {many:?}; {FEW} at a time: {few:?}"
        );
    }
}
