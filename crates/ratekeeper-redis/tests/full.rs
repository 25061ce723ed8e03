//! What is lost when the memory of Redis is full, by its `maxmemory-policy`.

mod common;

use common::{connect, limit, run, until_redis};
use ratekeeper::{Ask, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{MAXMEMORY_ADVICE, MAXMEMORY_POLICY, RedisStore};
use ratekeeper_testkit::RedisServer;

/// Keys that have used up a day, and wait.
const USED_UP: usize = 50;

/// Keys that somebody makes up, one request each: more than there is memory for.
const FLOOD: usize = 5_000;

struct Full {
    server: RedisServer,
    store: RedisStore,
    daily: LimitHandle,
    /// What was decided in the flood, by whom.
    by_redis: usize,
    by_share: usize,
}

impl Full {
    async fn by(policy: &str) -> Self {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let daily = store.limit("daily", limit("5/d")).unwrap();
        for key in 0..USED_UP {
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

    /// How many of those that have used up a day are admitted again.
    async fn fresh_again(&self) -> usize {
        let mut fresh = 0;
        for key in 0..USED_UP {
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

/// Leaves little memory, and makes up keys: how many requests Redis decided, and how many the node
/// alone.
async fn flood(server: &RedisServer, store: &RedisStore, policy: &str) -> (usize, usize) {
    let hourly = store.limit("hourly", limit("10/h")).unwrap();
    let most = info(server, "memory", "used_memory:") + 300_000;
    server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
    server.command(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
    let (mut by_redis, mut by_share) = (0, 0);
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

/// A flood costs itself: its keys are nearest to fresh, so they go first, and Redis decides all the
/// time.
#[test]
fn by_volatile_ttl_nothing_that_matters_is_lost() {
    run(async {
        let full = Full::by(MAXMEMORY_POLICY).await;
        assert!(full.evicted() > 0);
        assert_eq!(
            (full.by_redis, full.by_share, full.fresh_again().await),
            (FLOOD, 0, 0)
        );
        assert!(full.store.status().error.is_none());
    });
}

/// Whoever has used up a limit and waits is used less than what is made up: it is forgotten, and
/// admitted again.
#[test]
fn by_lru_used_up_limits_are_fresh_again() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        run(async {
            let full = Full::by(policy).await;
            assert!(full.evicted() > 0 && full.by_share == 0, "{policy}");
            let fresh = full.fresh_again().await;
            assert!(fresh > USED_UP / 2, "{policy}: {fresh} of {USED_UP}");
        });
    }
}

#[test]
fn by_noeviction_nothing_is_lost_and_nodes_decide_alone() {
    run(async {
        let full = Full::by("noeviction").await;
        assert_eq!((full.evicted(), full.fresh_again().await), (0, 0));
        assert!(full.by_share > 0, "{} by Redis", full.by_redis);
        let (_, error) = full.store.status().error.expect("it is full");
        assert!(error.to_string().ends_with(MAXMEMORY_ADVICE), "{error}");
        full.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        until_redis(&full.store, &full.daily).await;
    });
}

/// The price of it: what lives shortest goes first, and permits live for seconds after their last
/// renewal.
#[test]
fn by_volatile_ttl_permits_go_first() {
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
