//! The naive counter is right alone and wrong in company: so a test that finds it right in company
//! finds nothing.

use ratekeeper_testkit::{Fault, FaultProxy, RedisServer, naive};
use std::sync::Barrier;
use std::thread;

const LIMIT: u64 = 10;

#[test]
fn alone_it_keeps_its_limit() {
    let redis = RedisServer::start();
    let mut connection = redis.connect().unwrap();
    assert_eq!(
        (0..20)
            .filter(|_| naive::take(&mut connection, "key", LIMIT))
            .count() as u64,
        LIMIT
    );
}

#[test]
fn two_clients_together_get_too_much() {
    const THREADS: usize = 2;
    let redis = RedisServer::start();
    // Both read before either has written: their replies take longer than they need to begin.
    let proxy = FaultProxy::to(redis.port());
    proxy.set(Fault::Delay(std::time::Duration::from_millis(5)));
    let together = Barrier::new(THREADS);
    let worst = (0..20).map(|round| {
        let admitted = thread::scope(|threads| {
            let racing: Vec<_> = (0..THREADS)
                .map(|_| {
                    threads.spawn(|| {
                        let mut connection =
                            ratekeeper_testkit::Connection::tcp(proxy.port()).unwrap();
                        together.wait();
                        (0..20)
                            .filter(|_| naive::take(&mut connection, &format!("key{round}"), LIMIT))
                            .count() as u64
                    })
                })
                .collect();
            racing
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<u64>()
        });
        (round, admitted)
    });
    // One round is enough nearly always; the others are there so that luck cannot fail the test.
    assert!(
        worst.into_iter().any(|(_, admitted)| admitted > LIMIT),
        "no race in any round"
    );
}
