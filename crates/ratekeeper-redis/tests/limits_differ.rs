//! Nodes of one prefix notice different limits; nodes that declare none, or have another prefix, do
//! not count.

mod common;

use common::{LONG, run, until};
use ratekeeper_redis::{RedisStore, RedisStoreBuilder};
use ratekeeper_testkit::{RedisCluster, RedisServer};
use std::time::Duration;

const AT_ONCE: Duration = Duration::ZERO;

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url)
        .timeout(LONG)
        .rollout_grace(AT_ONCE)
}

async fn node(url: &str, limits: &[&str]) -> RedisStore {
    let store = builder(url).connect().await.unwrap();
    declare(&store, limits);
    store
}

fn declare(store: &RedisStore, limits: &[&str]) {
    store.declare_limits(limits.iter().map(|limit| (*limit).to_owned()));
}

/// How many nodes have other limits, and whether that is reported.
fn others(store: &RedisStore) -> Option<(u64, bool)> {
    store
        .status()
        .other_limits
        .map(|others| (others.nodes, others.is_reported))
}

async fn compare(url: &str) {
    let one = node(url, &["a = 1/s", "b = 2/s"]).await;
    let two = node(url, &["b = 2/s", "a = 1/s"]).await;
    let silent = node(url, &[]).await;
    let undeclared = builder(url).connect().await.unwrap();
    let other = builder(url).prefix("other").connect().await.unwrap();
    declare(&other, &["a = 9/s"]);
    let patient = RedisStore::builder(url)
        .timeout(LONG)
        .connect()
        .await
        .unwrap();
    declare(&patient, &["a = 1/s", "b = 2/s"]);
    // No limits at all are other limits.
    until("they differ", || {
        others(&one) == Some((1, true)) && others(&silent) == Some((3, true))
    })
    .await;
    until("it is not reported yet", || {
        others(&patient) == Some((1, false))
    })
    .await;
    assert_eq!(one.status().nodes, 5, "{:?}", one.status());
    declare(&silent, &["a = 1/s", "b = 2/s"]);
    until("they agree", || {
        [&one, &two, &silent, &patient]
            .iter()
            .all(|store| others(store).is_none())
    })
    .await;
    assert_eq!((others(&undeclared), others(&other)), (None, None));
    // A node whose limits changed is still one node.
    assert_eq!(one.status().nodes, 5);
    declare(&two, &["a = 1/s"]);
    until("one differs", || {
        others(&one) == Some((1, true)) && others(&two) == Some((3, true))
    })
    .await;
    drop(two);
    until("it is gone", || others(&one).is_none()).await;
}

#[test]
fn on_one_server() {
    run(async { compare(RedisServer::start().url()).await });
}

#[test]
fn in_a_cluster() {
    run(async { compare(&RedisCluster::start().url()).await });
}
