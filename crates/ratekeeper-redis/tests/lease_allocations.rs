//! Decisions from leases allocate no memory.

mod common;

use common::{MAX_WAIT, connect, limit, run};
use ratekeeper::{Ask, Store, Verdict, store::LimitHandle, store::LimitOptions, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Many tokens with a long TTL.
async fn node(url: &str) -> (RedisStore, [LimitHandle; 2]) {
    let store = connect(url).await;
    let limits = ["wide", "narrow"].map(|name| {
        let handle = store.limit(name, limit("8000000/d burst 8000000")).unwrap();
        store.configure(
            &handle,
            LimitOptions::new().lease(Some(Duration::from_secs(3_600))),
        );
        handle
    });
    (store, limits)
}

#[test]
fn a_decision_on_leases_allocates_nothing() {
    run(async {
        let server = RedisServer::start();
        let (store, [wide, narrow]) = node(server.url()).await;
        let asks = [Ask::new(&wide, "ann"), Ask::new(&narrow, "ann")];
        for asks in [&asks[..1], &asks[..]] {
            let begin = Instant::now();
            loop {
                // Until it has so many tokens that none are requested meanwhile.
                for _ in 0..1_000 {
                    let _ = store.decide(asks).await;
                }
                let calls = store.status().counts.leases.calls;
                let mut here = 0;
                let mut verdict = Verdict::new(Source::Open);
                let allocated = allocation_counter::measure(|| {
                    for _ in 0..100 {
                        here += u64::from(store.try_decide(asks, store.now(), &mut verdict));
                        black_box(&verdict);
                    }
                });
                if here == 100 && allocated.count_total == 0 {
                    break;
                }
                let fetched = store.status().counts.leases.calls - calls;
                assert!(
                    begin.elapsed() < MAX_WAIT,
                    "{here} of 100 here, {fetched} fetched, {allocated:?}"
                );
            }
        }
    });
}
