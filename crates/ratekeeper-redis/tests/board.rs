//! The notice board: a notice of one node is read by all, through every failure of Redis.

mod common;

use common::{connect, run};
use ratekeeper::Store;
use ratekeeper_redis::{RedisStore, StoreError};
use ratekeeper_testkit::{RedisSentinels, RedisServer};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3_600);
const BOARD: &str = "ratekeeper:board";

/// The names and texts of the notices that a node has read.
fn notices_of(store: &RedisStore) -> Vec<(String, String)> {
    store
        .notices()
        .iter()
        .map(|notice| (notice.name.to_string(), notice.text.to_string()))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect()
}

#[track_caller]
fn sees(store: &RedisStore, expected: &[(&str, &str)]) {
    assert_eq!(notices_of(store), pairs(expected));
}

/// Waits until a node has read exactly these notices.
async fn until_notices(store: &RedisStore, expected: &[(&str, &str)]) {
    let begin = Instant::now();
    while notices_of(store) != pairs(expected) {
        assert!(
            begin.elapsed() < 3 * common::MAX_WAIT,
            "its notices are {:?}, not {expected:?}",
            notices_of(store)
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn put(store: &RedisStore, name: &str, text: &str) {
    let begin = Instant::now();
    while let Err(error) = store.put_notice(name, text, HOUR).await {
        assert!(begin.elapsed() < 3 * common::MAX_WAIT, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn all_nodes_read_a_notice_until_it_is_removed() {
    run(async {
        let redis = RedisServer::start();
        let one = connect(redis.url()).await;
        let other = connect(redis.url()).await;
        sees(&other, &[]);
        put(&one, "a", "first").await;
        sees(&one, &[("a", "first")]);
        until_notices(&other, &[("a", "first")]).await;
        put(&other, "a", "second").await;
        put(&other, "b", "with spaces\nand \"lines\" – and more").await;
        until_notices(
            &one,
            &[
                ("a", "second"),
                ("b", "with spaces\nand \"lines\" – and more"),
            ],
        )
        .await;
        // A node that starts later reads it at once.
        let late = connect(redis.url()).await;
        assert_eq!(late.read_notices().await.unwrap().len(), 2);
        assert_eq!(one.remove_notice("a").await, Ok(true));
        assert_eq!(one.remove_notice("a").await, Ok(false));
        assert_eq!(one.remove_notice("b").await, Ok(true));
        until_notices(&other, &[]).await;
        until_notices(&late, &[]).await;
    });
}

#[test]
fn a_notice_ends_after_its_duration() {
    run(async {
        let redis = RedisServer::start();
        let store = connect(redis.url()).await;
        store
            .put_notice("short", "x", Duration::from_millis(50))
            .await
            .unwrap();
        store.put_notice("long", "y", HOUR).await.unwrap();
        let left = |name: &str| {
            let notices = store.notices();
            let notice = notices.iter().find(|notice| &*notice.name == name);
            notice.map(|notice| notice.until.saturating_since(store.now()))
        };
        assert!(left("short").is_none_or(|left| left <= Duration::from_millis(51)));
        assert!(
            left("long")
                .is_some_and(|left| left > HOUR / 2 && left <= HOUR + Duration::from_millis(1))
        );
        // It is deleted from Redis when something else changes, and the whole board expires with
        // its last notice.
        let begin = Instant::now();
        while redis.command(&["HLEN", BOARD]).int() != Some(2) {
            assert!(begin.elapsed() < common::MAX_WAIT);
            store.put_notice("long", "y", HOUR).await.unwrap();
        }
        let ends = redis.command(&["PTTL", BOARD]).int().unwrap();
        assert!((1..=3_600_000).contains(&ends), "{ends}");
    });
}

#[test]
fn a_board_that_redis_lost_is_restored() {
    run(async {
        let redis = RedisServer::start();
        let one = connect(redis.url()).await;
        let other = connect(redis.url()).await;
        put(&one, "a", "x").await;
        put(&one, "gone", "y").await;
        until_notices(&other, &[("a", "x"), ("gone", "y")]).await;
        assert_eq!(one.remove_notice("gone").await, Ok(true));
        until_notices(&other, &[("a", "x")]).await;
        let lost = |how: &dyn Fn()| {
            how();
            let begin = Instant::now();
            // A notice, the mark of a removed one, and the version.
            while redis.command(&["HLEN", BOARD]).int() != Some(3) {
                assert!(begin.elapsed() < 3 * common::MAX_WAIT);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        tokio::task::block_in_place(|| lost(&|| drop(redis.command(&["FLUSHALL"]))));
        until_notices(&one, &[("a", "x")]).await;
        until_notices(&other, &[("a", "x")]).await;
        tokio::task::block_in_place(|| {
            lost(&|| {
                redis.kill();
                redis.restart();
            });
        });
        let late = connect(redis.url()).await;
        assert_eq!(late.read_notices().await.unwrap().len(), 1);
        until_notices(&one, &[("a", "x")]).await;
        put(&other, "b", "z").await;
        until_notices(&one, &[("a", "x"), ("b", "z")]).await;
        until_notices(&late, &[("a", "x"), ("b", "z")]).await;
    });
}

/// A replica that becomes the primary may have missed the last changes.
#[test]
fn notices_lost_in_a_failover_are_restored() {
    run(async {
        let redis = RedisServer::start();
        let one = connect(redis.url()).await;
        let other = connect(redis.url()).await;
        put(&one, "a", "x").await;
        put(&one, "b", "y").await;
        until_notices(&other, &[("a", "x"), ("b", "y")]).await;
        redis.command(&[
            "EVAL",
            "redis.call('HDEL', KEYS[1], 'b') redis.call('HSET', KEYS[1], '#version', '1')",
            "1",
            BOARD,
        ]);
        let begin = Instant::now();
        while redis.command(&["HGET", BOARD, "b"]).text().is_none() {
            assert!(begin.elapsed() < 3 * common::MAX_WAIT);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        until_notices(&one, &[("a", "x"), ("b", "y")]).await;
        until_notices(&other, &[("a", "x"), ("b", "y")]).await;
    });
}

#[test]
fn the_board_works_with_sentinels() {
    run(async {
        let all = RedisSentinels::start();
        let one = connect(&all.url()).await;
        let other = connect(&all.url()).await;
        put(&one, "a", "x").await;
        until_notices(&other, &[("a", "x")]).await;
        let victim = &all.servers()[0];
        victim.kill();
        sees(&one, &[("a", "x")]);
        tokio::task::block_in_place(|| all.await_other_primary(victim.port()));
        put(&one, "b", "y").await;
        until_notices(&one, &[("a", "x"), ("b", "y")]).await;
        until_notices(&other, &[("a", "x"), ("b", "y")]).await;
    });
}

#[test]
fn without_redis_puts_fail_and_read_notices_stay() {
    run(async {
        let redis = RedisServer::start();
        let store = connect(redis.url()).await;
        put(&store, "a", "x").await;
        redis.kill();
        assert!(matches!(
            store.put_notice("b", "y", HOUR).await,
            Err(StoreError::Unreachable(_))
        ));
        assert!(store.remove_notice("a").await.is_err());
        sees(&store, &[("a", "x")]);
        redis.restart();
        put(&store, "b", "y").await;
        until_notices(&store, &[("a", "x"), ("b", "y")]).await;
        // A server that hangs is waited for, but not forever.
        redis.stop_signal();
        assert_eq!(
            store.put_notice("c", "z", HOUR).await,
            Err(StoreError::TimedOut)
        );
        redis.cont();
        put(&store, "c", "z").await;
    });
}

#[test]
fn a_board_of_another_type_or_full_is_an_error() {
    run(async {
        let redis = RedisServer::start();
        let store = connect(redis.url()).await;
        redis.command(&["SET", BOARD, "something else"]);
        let error = store.put_notice("a", "x", HOUR).await.unwrap_err();
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        redis.command(&["DEL", BOARD]);
        let fill =
            "for at = 1, 20000 do redis.call('HSET', KEYS[1], 'n' .. at, '99999999999999 x') end";
        redis.command(&["EVAL", fill, "1", BOARD]);
        let error = store.put_notice("a", "x", HOUR).await.unwrap_err();
        assert!(
            error.to_string().contains("the notice board is full"),
            "{error}"
        );
        // An existing notice can still be changed, and foreign fields do no harm.
        put(&store, "n1", "y").await;
        redis.command(&[
            "HSET",
            BOARD,
            "n2",
            "nonsense",
            "n3",
            "",
            "n4",
            "99999999999999999999999999 z",
        ]);
        redis.command(&["HSET", BOARD, "#version", "x"]);
        put(&store, "n1", "z").await;
        assert!(notices_of(&store).contains(&("n1".to_owned(), "z".to_owned())));
    });
}
