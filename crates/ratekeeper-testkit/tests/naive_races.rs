//! The naive counter is correct for one client and wrong for several: a test for races must detect
//! that.

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
fn two_clients_together_exceed_the_limit() {
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
    // One round is nearly always enough; the others make the test reliable.
    assert!(
        worst.into_iter().any(|(_, admitted)| admitted > LIMIT),
        "no race in any round"
    );
}
