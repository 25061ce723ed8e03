//! Health follows decisions: while Redis does not decide, or not in time, a store reports it
//! without interruption and its callers do not wait, independent of the heartbeats' outcome.

mod common;

use common::{limit, run, until, until_redis};
use ratekeeper::{Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{RedisStore, StoreError};
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer};
use std::time::{Duration, Instant};

/// Long enough for a busy machine, and less than the delay of a server that is too far away.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Several heartbeats.
const WATCHED: Duration = Duration::from_millis(3_500);

/// Asks until Redis is known not to decide, and then for a while: no caller waits, and it is never
/// reported as healthy.
async fn stays_degraded(store: &RedisStore, handle: &LimitHandle) {
    until("the failure is noticed", || !store.is_healthy()).await;
    let mut fast = 0;
    while fast < 20 {
        let begin = Instant::now();
        assert_eq!(
            common::source(store, handle, "ann").await,
            Source::LocalShare
        );
        fast = if begin.elapsed() < TIMEOUT / 2 {
            fast + 1
        } else {
            0
        };
        assert!(store.status().error.is_some());
    }
    let begin = Instant::now();
    let mut slow = 0;
    let mut asked = 0;
    while begin.elapsed() < WATCHED {
        let sent = Instant::now();
        assert_eq!(
            common::source(store, handle, "ann").await,
            Source::LocalShare
        );
        slow += u64::from(sent.elapsed() >= TIMEOUT);
        asked += 1;
        let status = store.status();
        assert!(
            status.error.is_some(),
            "it is reported as healthy after {:?}: {status:?}",
            begin.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(slow, 0, "of {asked} callers so many waited");
}

#[test]
fn a_redis_that_is_too_far_away() {
    run(async {
        let server = RedisServer::start();
        let proxy = FaultProxy::to(server.port());
        let store = RedisStore::builder(proxy.url())
            .timeout(TIMEOUT)
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("100/s")).unwrap();
        until_redis(&store, &handle).await;
        proxy.set(Fault::Delay(TIMEOUT + TIMEOUT / 2));
        // Heartbeats have more time than decisions, and succeed.
        stays_degraded(&store, &handle).await;
        assert_eq!(
            server.command(&["ZCARD", "ratekeeper:nodes"]).int(),
            Some(1)
        );
        assert_eq!(store.status().error.unwrap().1, StoreError::TimedOut);
        proxy.set(Fault::None);
        println!("found after {:.1?}", until_redis(&store, &handle).await);
        until("it is reported as healthy", || store.is_healthy()).await;
    });
}

#[test]
fn a_redis_that_is_too_far_away_from_the_start() {
    run(async {
        let server = RedisServer::start();
        let proxy = FaultProxy::to(server.port());
        proxy.set(Fault::Delay(TIMEOUT + TIMEOUT / 2));
        let store = RedisStore::builder(proxy.url())
            .timeout(TIMEOUT)
            .connect()
            .await
            .unwrap();
        assert!(!store.is_healthy(), "{:?}", store.status());
        let handle = store.limit("x", limit("100/s")).unwrap();
        stays_degraded(&store, &handle).await;
    });
}

/// Changes the permissions of the store's user.
fn set_user(server: &RedisServer, rule: &str) {
    assert!(!server.command(&["ACL", "SETUSER", "app", rule]).is_error());
}

async fn with_user(server: &RedisServer) -> (RedisStore, LimitHandle) {
    assert!(
        !server
            .command(&["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all"])
            .is_error()
    );
    let url = format!("redis://app:pass@127.0.0.1:{}", server.port());
    let store = RedisStore::builder(url)
        .timeout(TIMEOUT)
        .connect()
        .await
        .unwrap();
    let handle = store.limit("x", limit("100/s")).unwrap();
    until_redis(&store, &handle).await;
    (store, handle)
}

#[test]
fn a_user_that_may_send_heartbeats_but_not_decide() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = with_user(&server).await;
        set_user(&server, "-evalsha");
        while common::source(&store, &handle, "ann").await == Source::Redis {}
        stays_degraded(&store, &handle).await;
        let message = store.status().error.unwrap().1.to_string();
        assert!(
            message.contains("the Redis user lacks a permission"),
            "{message}"
        );
        // What was spent meanwhile was not charged, and is not counted as if it was.
        assert_eq!(store.status().counts.debited, 0);
        set_user(&server, "+evalsha");
        until_redis(&store, &handle).await;
        until("it is reported as healthy", || store.is_healthy()).await;
        until("it is charged", || store.status().counts.debited > 0).await;
    });
}

/// The other way round: other nodes no longer see it, and it decides as before.
#[test]
fn a_user_that_may_decide_but_not_send_heartbeats() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = with_user(&server).await;
        set_user(&server, "-eval");
        until("the failed heartbeat is reported", || {
            store.status().heartbeat.is_some()
        })
        .await;
        let begin = Instant::now();
        while begin.elapsed() < WATCHED {
            assert_eq!(common::source(&store, &handle, "ann").await, Source::Redis);
            assert!(store.is_healthy(), "{:?}", store.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let message = store.status().heartbeat.unwrap().to_string();
        assert!(
            message.contains("the Redis user lacks a permission"),
            "{message}"
        );
        set_user(&server, "+eval");
        until("it has recovered", || store.status().heartbeat.is_none()).await;
    });
}

/// An idle node is probed too.
#[test]
fn an_idle_node() {
    run(async {
        let server = RedisServer::start();
        let (store, _) = with_user(&server).await;
        set_user(&server, "-evalsha");
        until("the error is reported", || store.status().error.is_some()).await;
        set_user(&server, "+evalsha");
        until("it has recovered", || store.is_healthy()).await;
    });
}
