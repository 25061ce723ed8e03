//! How each limit decides while Redis does not answer, and how that spending and those permits are
//! settled.

mod common;

use common::{LONG, limit, run, until, until_redis};
use ratekeeper::{
    Ask, Store, Verdict, store::AskOutcome, store::LimitHandle, store::LimitOptions,
    store::OnFailure, store::Source,
};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::{RedisServer, Reply};
use std::time::{Duration, Instant};

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::builder(server.url())
        .timeout(LONG)
        .connect()
        .await
        .unwrap()
}

/// Asks until Redis no longer decides.
async fn until_fallback(store: &RedisStore, handle: &LimitHandle) {
    let begin = Instant::now();
    while common::source(store, handle, "whether it is gone").await == Source::Redis {
        assert!(begin.elapsed() < common::MAX_WAIT, "it is still asked");
    }
}

async fn decide(store: &RedisStore, handle: &LimitHandle, key: &str) -> Verdict {
    store.decide(&[Ask::new(handle, key)]).await
}

#[test]
fn each_limit_falls_back_by_its_own_on_failure() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .on_failure(OnFailure::Closed)
            .connect()
            .await
            .unwrap();
        let text = "1000/s burst 10";
        let closed = store.limit("closed", limit(text)).unwrap();
        let open = store.limit("open", limit(text)).unwrap();
        store.configure(&open, LimitOptions::new().on_failure(OnFailure::Open));
        let share = store.limit("share", limit(text)).unwrap();
        store.configure(
            &share,
            LimitOptions::new().on_failure(OnFailure::LocalShare),
        );
        let unlimited = store.limit("unlimited", limit("unlimited")).unwrap();
        server.kill();
        until_fallback(&store, &closed).await;
        let verdict = decide(&store, &closed, "key").await;
        assert_eq!(
            (verdict.source(), verdict.is_allowed()),
            (Source::Closed, false)
        );
        assert!(
            verdict
                .retry_after()
                .is_some_and(|after| after > Duration::ZERO)
        );
        for _ in 0..100 {
            let verdict = decide(&store, &open, "key").await;
            assert_eq!(
                (verdict.source(), verdict.is_allowed()),
                (Source::Open, true)
            );
        }
        // It starts empty, and allows some after a while.
        let begin = Instant::now();
        loop {
            let verdict = decide(&store, &share, "key").await;
            assert_eq!(verdict.source(), Source::LocalShare);
            if verdict.is_allowed() {
                break;
            }
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "the share admits nothing"
            );
        }
        // Together: a limit that fails closed denies all, and charges nothing; those that fail open
        // add nothing.
        let both = store
            .decide(&[
                Ask::new(&open, "key"),
                Ask::new(&closed, "key"),
                Ask::new(&share, "other"),
            ])
            .await;
        assert_eq!(
            (both.source(), both.is_allowed(), both.binding()),
            (Source::Closed, false, Some(1))
        );
        let outcomes: Vec<_> = both
            .results()
            .map(ratekeeper::store::AskResult::outcome)
            .collect();
        assert_eq!(outcomes[0], AskOutcome::Allowed);
        assert_eq!(outcomes[1], AskOutcome::Denied);
        let shadow = store
            .decide(&[
                Ask::new(&open, "key"),
                Ask::new(&closed, "key").mode(ratekeeper::Mode::Shadow),
            ])
            .await;
        assert_eq!((shadow.source(), shadow.is_allowed()), (Source::Open, true));
        let begin = Instant::now();
        loop {
            let mixed = store
                .decide(&[
                    Ask::new(&open, "key"),
                    Ask::new(&share, "mixed"),
                    Ask::new(&unlimited, "key"),
                ])
                .await;
            assert_eq!(
                (mixed.source(), mixed.results().len()),
                (Source::LocalShare, 3)
            );
            if mixed.is_allowed() {
                break;
            }
            assert_eq!(mixed.binding(), Some(1));
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "the share admits nothing"
            );
        }
        let status = store.status();
        assert!(
            status.counts.fallbacks > 100 && status.error.is_some(),
            "{status:?}"
        );
        server.restart();
        until_redis(&store, &closed).await;
    });
}

/// How many a share allows at once when it is full, which it is after a while.
async fn full_share(store: &RedisStore, handle: &LimitHandle) -> u64 {
    let begin = Instant::now();
    loop {
        let verdict = store
            .decide(&[Ask::new(handle, "key").cost(0).mode(ratekeeper::Mode::Peek)])
            .await;
        assert_eq!(verdict.source(), Source::LocalShare);
        let decision = verdict.results().next().unwrap().decision();
        if decision.remaining() == decision.capacity() {
            return decision.capacity();
        }
        assert!(begin.elapsed() < common::MAX_WAIT, "it is never full");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_share_is_the_limit_divided_by_the_nodes() {
    run(async {
        // By the configured number of nodes, before Redis was reached.
        let server = RedisServer::start();
        server.kill();
        let store = RedisStore::builder(server.url())
            .nodes(4)
            .connect()
            .await
            .unwrap();
        let bucket = store.limit("b", limit("1000/s burst 80")).unwrap();
        let window = store.limit("w", limit("80/h fixed_window")).unwrap();
        assert_eq!(store.status().nodes, 4);
        // The first ask starts it, empty.
        assert!(decide(&store, &bucket, "key").await.is_denied());
        assert_eq!(full_share(&store, &bucket).await, 20);
        let mut allowed = 0;
        for _ in 0..80 {
            allowed += u64::from(decide(&store, &window, "key").await.is_allowed());
        }
        assert_eq!(allowed, 20);
        // By the number of live nodes, since.
        server.restart();
        until_redis(&store, &bucket).await;
        let others = [
            connect(&server).await,
            connect(&server).await,
            connect(&server).await,
            connect(&server).await,
        ];
        until("it knows of five", || store.status().nodes == 5).await;
        server.kill();
        until_fallback(&store, &bucket).await;
        assert_eq!(full_share(&store, &bucket).await, 16);
        drop(others);
    });
}

#[test]
fn spending_during_an_outage_is_charged_afterwards() {
    run(async {
        // It restarts with its data, which has nothing of this key.
        let server = RedisServer::builder().aof(true).start();
        let store = connect(&server).await;
        // It fills in a tenth of a second and is then spent: what is refilled afterwards is little.
        let handle = store.limit("x", limit("100/s burst 10")).unwrap();
        let slow = store.limit("slow", limit("40/h fixed_window")).unwrap();
        until_redis(&store, &handle).await;
        server.kill();
        until_fallback(&store, &handle).await;
        // A window has its share at once.
        let mut allowed = 0;
        for _ in 0..25 {
            allowed += u64::from(decide(&store, &slow, "key").await.is_allowed());
        }
        assert_eq!(allowed, 25);
        server.restart();
        until_redis(&store, &handle).await;
        until("it is charged", || store.status().counts.debited >= 25).await;
        let look = || async {
            let verdict = store
                .decide(&[Ask::new(&slow, "key").cost(0).mode(ratekeeper::Mode::Peek)])
                .await;
            verdict.results().next().unwrap().decision().remaining()
        };
        let begin = Instant::now();
        while look().await != 15 {
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "{} remain, where 25 of 40 were spent",
                look().await
            );
        }
    });
}

#[test]
fn verdicts_of_an_outage_are_settled() {
    run(async {
        let server = RedisServer::start();
        let store = connect(&server).await;
        let slow = store.limit("slow", limit("40/h fixed_window")).unwrap();
        let open = store.limit("open", limit("40/h fixed_window")).unwrap();
        store.configure(&open, LimitOptions::new().on_failure(OnFailure::Open));
        let before = store.decide(&[Ask::new(&slow, "key").cost(10)]).await;
        assert!(before.source() == Source::Redis && before.is_allowed());
        server.kill();
        until_fallback(&store, &slow).await;
        // Verdicts from before the outage cannot be settled now, and no caller waits for it.
        store.settle(before, &[0]).await;
        let remaining = |verdict: &Verdict, at: usize| {
            verdict.results().nth(at).unwrap().decision().remaining()
        };
        let during = store
            .decide(&[Ask::new(&open, "key"), Ask::new(&slow, "key").cost(30)])
            .await;
        assert!(during.source() == Source::LocalShare && during.is_allowed());
        assert_eq!(remaining(&during, 1), 10);
        store.settle(during, &[1, 5]).await;
        let look = store.decide(&[Ask::new(&slow, "key").cost(0)]).await;
        assert_eq!(remaining(&look, 0), 35);
        // And one that is settled when Redis is back.
        let later = store.decide(&[Ask::new(&slow, "key").cost(20)]).await;
        assert!(later.is_allowed());
        let only_open = store.decide(&[Ask::new(&open, "key")]).await;
        assert_eq!(only_open.source(), Source::Open);
        server.restart();
        until_redis(&store, &slow).await;
        store.settle(later, &[0]).await;
        store.settle(only_open, &[0]).await;
        assert_eq!(common::source(&store, &slow, "key").await, Source::Redis);
    });
}

/// When the permits of the only key expire, according to Redis.
fn ends(server: &RedisServer) -> Vec<(Vec<u8>, i64)> {
    let keys = server.command(&["KEYS", "ratekeeper:few:*"]);
    let Some(key) = keys.items().first().and_then(Reply::text) else {
        return Vec::new();
    };
    let reply = server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    let member = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    reply
        .items()
        .chunks(2)
        .map(|pair| {
            (
                member(&pair[0]),
                pair[1].text().unwrap().parse::<f64>().unwrap() as i64,
            )
        })
        .collect()
}

#[test]
fn permits_are_renewed_while_held_and_released_when_dropped() {
    run(async {
        let server = RedisServer::start();
        let store = connect(&server).await;
        let few = store.concurrency("few", 2).unwrap();
        let held = store.decide(&[Ask::new(&few, "key").cost(2)]).await;
        assert!(held.is_allowed());
        let first = ends(&server);
        assert_eq!(first.len(), 2);
        let lives = first[0].1 - common::now() as i64;
        assert!(
            (5_000_000..=10_000_000).contains(&lives),
            "a permit lives for {lives} µs"
        );
        assert!(decide(&store, &few, "key").await.is_denied());
        let all_later = || {
            let now = ends(&server);
            now.len() == 2
                && now
                    .iter()
                    .zip(&first)
                    .all(|(now, first)| now.0 == first.0 && now.1 > first.1 + 1_000_000)
        };
        until("they are renewed", all_later).await;
        drop(held);
        until("they are released", || ends(&server).is_empty()).await;
        assert!(decide(&store, &few, "key").await.is_allowed());
    });
}

#[test]
fn released_permits_can_be_taken_at_once() {
    run(async {
        let server = RedisServer::start();
        let store = connect(&server).await;
        let few = store.concurrency("few", 1).unwrap();
        let rate = store.limit("x", limit("100000/h")).unwrap();
        // So that the server has loaded the script: the first time it is sent twice, and another
        // call may come in between.
        store.reset(&rate, b"key").await;
        // For any connection of the other limit, and any other asks.
        for turn in 0..200 {
            let key = turn.to_string();
            let held = store
                .decide(&[Ask::new(&rate, &key), Ask::new(&few, "key")])
                .await;
            assert!(held.is_allowed(), "{turn}: {held:?}");
        }
        let noise = {
            let store = store.clone();
            let rate = rate.clone();
            tokio::spawn(async move {
                for turn in 0_u32.. {
                    drop(store.decide(&[Ask::new(&rate, &turn.to_string())]).await);
                }
            })
        };
        for turn in 0..200 {
            assert!(decide(&store, &few, "key").await.is_allowed(), "{turn}");
        }
        noise.abort();
    });
}

#[test]
fn permits_of_a_dead_node_expire() {
    run(async {
        let server = RedisServer::start();
        let store = connect(&server).await;
        let few = store.concurrency("few", 1).unwrap();
        let held = decide(&store, &few, "key").await;
        assert!(held.is_allowed());
        let permit = ends(&server).remove(0);
        assert!(decide(&store, &few, "key").await.is_denied());
        // It is no longer renewed: expire it now, as if ten seconds had passed.
        let keys = server.command(&["KEYS", "ratekeeper:few:*"]);
        let key = keys.items()[0].text().unwrap().to_owned();
        let mut connection = server.connect().unwrap();
        let past = (common::now() - 1).to_string();
        connection
            .command(&[b"ZREM", key.as_bytes(), &permit.0])
            .unwrap();
        connection
            .command(&[b"ZADD", key.as_bytes(), past.as_bytes(), b"of nobody"])
            .unwrap();
        let next = decide(&store, &few, "key").await;
        assert!(next.is_allowed(), "a permit that has ended counts");
        // And it is deleted.
        assert!(!ends(&server).iter().any(|(name, _)| name == b"of nobody"));
        drop((held, next));
        // Without further asks, the key itself expires soon afterwards.
        let third = decide(&store, &few, "other").await;
        assert!(third.is_allowed());
        let keys = server.command(&["KEYS", "ratekeeper:few:*"]);
        for key in keys.items() {
            let left = server
                .command(&["PTTL", key.text().unwrap()])
                .int()
                .unwrap();
            assert!((1..=10_001).contains(&left), "{left} ms");
        }
    });
}

#[test]
fn permits_during_an_outage_are_local() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(Duration::from_millis(200))
            .connect()
            .await
            .unwrap();
        let few = store.concurrency("few", 4).unwrap();
        let rate = store.limit("x", limit("100/s")).unwrap();
        let mut before = store.decide(&[Ask::new(&few, "key").cost(3)]).await;
        while before.source() != Source::Redis || before.is_denied() {
            before = store.decide(&[Ask::new(&few, "key").cost(3)]).await;
        }
        server.stop_signal();
        until_fallback(&store, &rate).await;
        let mut held = Vec::new();
        for _ in 0..6 {
            let verdict = decide(&store, &few, "key").await;
            assert_eq!(verdict.source(), Source::LocalShare);
            held.extend(verdict.is_allowed().then_some(verdict));
        }
        assert_eq!(held.len(), 4);
        drop(held.pop());
        assert!(decide(&store, &few, "key").await.is_allowed());
        // Permits from before the outage are released when Redis is back, although it was down when
        // they were dropped.
        drop(before);
        server.cont();
        until_redis(&store, &rate).await;
        let after = until("they are released", || ends(&server).is_empty()).await;
        // Also those that Redis gave after the caller had timed out. A permit that is not released
        // expires after ten seconds.
        assert!(
            after < Duration::from_secs(8),
            "they were released after {after:?}"
        );
        drop(held);
    });
}
