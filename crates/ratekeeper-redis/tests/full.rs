//! What is lost when Redis runs out of memory, for each `maxmemory-policy`.

mod common;

use common::{connect, limit, run, until_redis};
use ratekeeper::{Ask, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{MAXMEMORY_ADVICE, MAXMEMORY_POLICY, RedisStore};
use ratekeeper_testkit::RedisServer;

/// Keys that have used up their daily limit and wait.
const USED_UP_KEYS: usize = 50;

/// Keys that an attacker makes up, one request each: more than there is memory for.
const FLOOD: usize = 5_000;

struct Full {
    server: RedisServer,
    store: RedisStore,
    daily: LimitHandle,
    /// Requests of the flood that Redis decided.
    by_redis: usize,
    by_share: usize,
}

impl Full {
    async fn start(policy: &str) -> Self {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let daily = store.limit("daily", limit("5/d")).unwrap();
        for key in 0..USED_UP_KEYS {
            let key = format!("used up {key}");
            let ask = Ask {
                cost: 5,
                ..Ask::new(&daily, &key)
            };
            assert!(store.decide(&[ask]).await.is_allowed());
        }
        let (by_redis, by_share) = flood(&server, &store, policy).await;
        Self {
            server,
            store,
            daily,
            by_redis,
            by_share,
        }
    }

    fn evicted(&self) -> u64 {
        info(&self.server, "stats", "evicted_keys:")
    }

    /// How many of the keys that have used up their day are allowed again.
    async fn allowed_again(&self) -> usize {
        let mut fresh = 0;
        for key in 0..USED_UP_KEYS {
            fresh += usize::from(
                self.store
                    .decide(&[Ask::new(&self.daily, &format!("used up {key}"))])
                    .await
                    .is_allowed(),
            );
        }
        fresh
    }
}

/// Leaves little memory and floods it with keys. Counts the requests that Redis decided and those
/// that the node decided alone.
async fn flood(server: &RedisServer, store: &RedisStore, policy: &str) -> (usize, usize) {
    let hourly = store.limit("hourly", limit("10/h")).unwrap();
    let most = info(server, "memory", "used_memory:") + 300_000;
    server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
    server.command(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
    let mut by_redis = 0;
    let mut by_share = 0;
    for key in 0..FLOOD {
        match store
            .decide(&[Ask::new(&hourly, &format!("made up {key}"))])
            .await
            .source()
        {
            Source::Redis => by_redis += 1,
            Source::LocalShare => by_share += 1,
            other => panic!("{other:?}"),
        }
    }
    (by_redis, by_share)
}

fn info(server: &RedisServer, section: &str, name: &str) -> u64 {
    let text = server.command(&["INFO", section]);
    let line = text
        .text()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix(name).map(str::to_owned));
    line.unwrap().trim().parse().unwrap()
}

/// A flood only costs itself: its keys expire soonest, so they are evicted first, and Redis decides
/// all the time.
#[test]
fn volatile_ttl_keeps_used_up_limits() {
    run(async {
        let full = Full::start(MAXMEMORY_POLICY).await;
        assert!(full.evicted() > 0);
        assert_eq!(
            (full.by_redis, full.by_share, full.allowed_again().await),
            (FLOOD, 0, 0)
        );
        assert!(full.store.status().error.is_none());
    });
}

/// A waiting key that has used up its limit is used less often than those of the flood: it is
/// evicted, and allowed again.
#[test]
fn lru_evicts_exhausted_limits() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        run(async {
            let full = Full::start(policy).await;
            assert!(full.evicted() > 0 && full.by_share == 0, "{policy}");
            let fresh = full.allowed_again().await;
            assert!(
                fresh > USED_UP_KEYS / 2,
                "{policy}: {fresh} of {USED_UP_KEYS}"
            );
        });
    }
}

#[test]
fn noeviction_loses_nothing_but_nodes_decide_alone() {
    run(async {
        let full = Full::start("noeviction").await;
        assert_eq!((full.evicted(), full.allowed_again().await), (0, 0));
        assert!(full.by_share > 0, "{} by Redis", full.by_redis);
        let (_, error) = full.store.status().error.expect("it is full");
        assert!(error.to_string().ends_with(MAXMEMORY_ADVICE), "{error}");
        full.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        until_redis(&full.store, &full.daily).await;
    });
}

/// The cost of it: keys with the shortest TTL are evicted first, and permits live for seconds after
/// their last renewal.
#[test]
fn volatile_ttl_evicts_permits_first() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let places = store.concurrency("places", 5).unwrap();
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(store.decide(&[Ask::new(&places, "busy")]).await);
        }
        assert!(store.decide(&[Ask::new(&places, "busy")]).await.is_denied());
        flood(&server, &store, MAXMEMORY_POLICY).await;
        assert!(
            store
                .decide(&[Ask::new(&places, "busy")])
                .await
                .is_allowed()
        );
    });
}
