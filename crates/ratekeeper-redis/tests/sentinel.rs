//! The primary that sentinels name: found, lost, and found again.

mod common;
mod failover;

use common::{connect, limit, run, source, until_redis};
use failover::Fleet;
use ratekeeper::{Store, store::Source};
use ratekeeper_redis::{RedisStore, StoreError};
use ratekeeper_testkit::{RedisSentinels, RedisServer};
use std::time::Duration;

#[test]
fn a_primary_dies_and_the_sentinels_name_another() {
    run(async {
        let all = RedisSentinels::with_passwords("of-servers", "of-sentinels");
        let url = all.url();
        let fleet =
            Fleet::made_by(|| RedisStore::builder(&url).sentinel_auth("", "of-sentinels")).await;
        let victim = &all.servers()[0];
        let after = fleet
            .run_fault(
                || victim.kill(),
                || all.await_other_primary(victim.port()).port(),
            )
            .await;
        after.check_bound(1);
        let errors: Vec<_> = after
            .statuses
            .iter()
            .flat_map(|status| status.counts.errors)
            .collect();
        println!("{errors:?}");
    });
}

#[test]
fn a_primary_that_hangs_is_replaced() {
    run(async {
        let all = RedisSentinels::start();
        let fleet = Fleet::start(&all.url()).await;
        let victim = &all.servers()[0];
        let after = fleet
            .run_fault(
                || victim.stop_signal(),
                || all.await_other_primary(victim.port()).port(),
            )
            .await;
        after.check_bound(1);
        let store = connect(&all.url()).await;
        let handle = store.limit("x", limit("100000/h")).unwrap();
        assert_eq!(source(&store, &handle, "ann").await, Source::Redis);
        // It takes itself for the primary until a sentinel demotes it, after some seconds; no
        // request goes there.
        victim.cont();
        let late = connect(&all.url()).await;
        let slow = late.limit("slow", limit("1000/w")).unwrap();
        for _ in 0..20 {
            assert_eq!(source(&store, &handle, "ann").await, Source::Redis);
            assert_eq!(source(&late, &slow, "ann").await, Source::Redis);
        }
        assert!(
            victim
                .command(&["KEYS", "ratekeeper:slow*"])
                .items()
                .is_empty()
        );
        assert_eq!(store.status().counts.fallbacks, 0, "{:?}", store.status());
    });
}

/// An operator promotes another server while the old one keeps answering as a replica.
#[test]
fn a_planned_failover() {
    run(async {
        let all = RedisSentinels::start();
        let store = connect(&all.url()).await;
        let handle = store.limit("x", limit("1000/w")).unwrap();
        until_redis(&store, &handle).await;
        let first = all.servers()[0].port();
        assert!(
            !all.sentinels()[0]
                .command(&["SENTINEL", "FAILOVER", "mymaster"])
                .is_error()
        );
        let other = tokio::task::block_in_place(|| all.await_other_primary(first));
        let begin = std::time::Instant::now();
        // Earlier requests have loaded the scripts.
        let handle = store.limit("after", limit("1000/w")).unwrap();
        while other
            .command(&["KEYS", "ratekeeper:after:*"])
            .items()
            .is_empty()
        {
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "it is not asked: {:?}",
                store.status()
            );
            source(&store, &handle, "ann").await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("it is asked {:.1?} after it was named", begin.elapsed());
        until_redis(&store, &handle).await;
    });
}

#[test]
fn one_sentinel_is_enough_and_none_is_an_error() {
    run(async {
        let all = RedisSentinels::start();
        all.sentinels()[0].kill();
        all.sentinels()[1].stop_signal();
        let store = connect(&all.url()).await;
        assert!(store.is_healthy(), "{:?}", store.status());
        let handle = store.limit("x", limit("10/h")).unwrap();
        assert_eq!(source(&store, &handle, "ann").await, Source::Redis);
        all.sentinels()[2].kill();
        // Existing connections keep working.
        assert_eq!(source(&store, &handle, "ann").await, Source::Redis);
        let store = RedisStore::builder(all.url())
            .timeout(Duration::from_millis(50))
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("10/h")).unwrap();
        assert_eq!(source(&store, &handle, "ann").await, Source::LocalShare);
        let message = store.status().error.map(|(_, error)| error);
        assert!(
            matches!(&message, Some(StoreError::Unreachable(why)) if why.contains("the sentinel")),
            "{message:?}"
        );
    });
}

#[test]
fn errors_of_the_sentinels_are_reported() {
    run(async {
        let all = RedisSentinels::with_passwords("of-servers", "of-sentinels");
        let error =
            async |builder: ratekeeper_redis::RedisStoreBuilder| match builder.connect().await {
                Ok(store) => panic!("it is taken: {:?}", store.status()),
                Err(error) => error.to_string(),
            };
        let message = error(RedisStore::builder(all.url())).await;
        assert!(
            message.contains("requires a password; set sentinel_password"),
            "{message}"
        );
        let message = error(RedisStore::builder(all.url()).sentinel_auth("", "wrong")).await;
        assert!(
            message.contains("check sentinel_user and sentinel_password"),
            "{message}"
        );
        let nameless = all.url().replace("mymaster", "nobody");
        let message = error(RedisStore::builder(nameless).sentinel_auth("", "of-sentinels")).await;
        assert!(
            message.contains("knows no primary named nobody"),
            "{message}"
        );
        let wrong = all.url().replace(":of-servers@", "");
        let message = error(RedisStore::builder(wrong).sentinel_auth("", "of-sentinels")).await;
        assert!(message.contains("Redis requires a password"), "{message}");
        let server = RedisServer::start();
        let message = error(RedisStore::builder(format!(
            "redis+sentinel://127.0.0.1:{}/mymaster",
            server.port()
        )))
        .await;
        assert!(message.contains("is not a sentinel"), "{message}");
    });
}
