//! The server's clock is set back or forward, using a time that the test brings: no caller is
//! denied for as long as the step, and no more is allowed than a step forward adds.

mod common;

use common::{LONG, limit, run};
use ratekeeper::{Ask, Store, store::LimitHandle};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND + 123_456;

/// Each allows five at once, and all of it again after a minute or two.
const LIMITS: [&str; 7] = [
    "5/min",
    "5/min wait 48s",
    "5/min fixed_window",
    "5/min fixed_window_first_hit",
    "5/min sliding_window",
    "5/min sliding_window_strict",
    "5/min sliding_log",
];

async fn allowed(store: &RedisStore, handle: &LimitHandle) -> u64 {
    let mut allowed = 0;
    for _ in 0..7 {
        allowed += u64::from(store.decide(&[Ask::new(handle, "key")]).await.is_allowed());
    }
    allowed
}

fn step(back: bool, by: u64) {
    run(async move {
        let server = RedisServer::start();
        let time = Arc::new(AtomicU64::new(START));
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .given_time(Arc::clone(&time));
        let store = store.connect().await.unwrap();
        for text in LIMITS {
            time.store(START, Relaxed);
            let handle = store.limit(text, limit(text)).unwrap();
            assert_eq!(allowed(&store, &handle).await, 5, "{text}");
            let stepped = if back { START - by } else { START + by };
            time.store(stepped, Relaxed);
            let at_once = allowed(&store, &handle).await;
            assert!(
                at_once <= if back { 0 } else { 5 },
                "{text}: {at_once} after the step"
            );
            // The longest wait that a caller may get, and the minute or two of the limit itself.
            let waited = if back && by <= 60 * SECOND { by } else { 0 };
            time.store(stepped + waited + 121 * SECOND, Relaxed);
            assert_eq!(
                allowed(&store, &handle).await,
                5,
                "{text}: {by} µs, back {back}"
            );
        }
    });
}

#[test]
fn back_by_an_hour() {
    step(true, 3_600 * SECOND);
}

#[test]
fn back_by_half_a_minute() {
    step(true, 30 * SECOND);
}

#[test]
fn forward_by_an_hour() {
    step(false, 3_600 * SECOND);
}

#[test]
fn permits_from_before_the_clock_was_set_back_expire() {
    run(async {
        let server = RedisServer::start();
        let time = Arc::new(AtomicU64::new(START));
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .given_time(Arc::clone(&time));
        let store = store.connect().await.unwrap();
        let few = store.concurrency("few", 2).unwrap();
        // Creates a key whose permits belong to a node that is gone.
        let held = store.decide(&[Ask::new(&few, "key").cost(2)]).await;
        assert!(held.is_allowed());
        let keys = server.command(&["KEYS", "ratekeeper:few:*"]);
        let key = keys.items()[0].text().unwrap().to_owned();
        server.command(&["DEL", &key]);
        server.command(&[
            "ZADD",
            &key,
            &(START + 3_600 * SECOND).to_string(),
            "one",
            &(START + 3_600 * SECOND).to_string(),
            "two",
        ]);
        assert!(store.decide(&[Ask::new(&few, "key")]).await.is_denied());
        time.store(START + 11 * SECOND, Relaxed);
        assert!(
            store
                .decide(&[Ask::new(&few, "key").cost(2)])
                .await
                .is_allowed()
        );
    });
}
