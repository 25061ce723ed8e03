//! Batching: concurrent requests share calls, and no caller is delayed or failed by the others in
//! its batch.

mod common;

use common::{LONG, connect, limit, run, until, until_redis};
use ratekeeper::{Ask, Store, store::LimitHandle, store::OnFailure, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often a command was called, as Redis counts.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.text().unwrap().lines().find_map(|line| {
        line.strip_prefix(&format!("cmdstat_{command}:calls="))
            .map(str::to_owned)
    });
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

fn count(store: &RedisStore, error: &str) -> u64 {
    store
        .status()
        .counts
        .errors
        .iter()
        .find(|(name, _)| *name == error)
        .unwrap()
        .1
}

#[test]
fn concurrent_requests_share_calls() {
    const CALLERS: u64 = 100;
    const EACH: u64 = 20;
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let handle = store.limit("x", limit("1000000/s")).unwrap();
        until_redis(&store, &handle).await;
        let before = calls(&server, "evalsha");
        let status = store.status();
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let store = store.clone();
                let handle = handle.clone();
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        let verdict = store
                            .decide(&[Ask::new(&handle, &caller.to_string())])
                            .await;
                        assert!(verdict.is_allowed() && verdict.source() == Source::Redis);
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let called = calls(&server, "evalsha") - before;
        let counts = store.status().counts;
        let decisions = counts.decisions - status.counts.decisions;
        let trips = counts.round_trips - status.counts.round_trips;
        println!("{decisions} decisions, {trips} round trips, {called} calls");
        assert_eq!(decisions, CALLERS * EACH);
        assert_eq!(trips, called);
        assert!(
            called <= decisions / 4,
            "{decisions} decisions took {called} calls"
        );
    });
}

#[test]
fn one_request_with_many_limits_is_one_call() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let texts = [
            "10/s",
            "10/s fixed_window",
            "10/s sliding_window",
            "10/s sliding_log",
            "10/s wait 1s",
        ];
        let handles = texts.map(|text| store.limit(text, limit(text)).unwrap());
        let few = store.concurrency("few", 10).unwrap();
        until_redis(&store, &handles[0]).await;
        let before = calls(&server, "evalsha");
        let mut asks: Vec<Ask<'_>> = handles
            .iter()
            .map(|handle| Ask::new(handle, "key"))
            .collect();
        asks.push(Ask::new(&few, "key"));
        let verdict = store.decide(&asks).await;
        assert!(verdict.is_allowed() && verdict.source() == Source::Redis);
        assert_eq!(calls(&server, "evalsha") - before, 1);
    });
}

#[test]
fn a_dropped_caller_does_not_affect_others() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .connections(1)
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("1000000/s")).unwrap();
        until_redis(&store, &handle).await;
        for round in 0..200 {
            // Some callers start and are dropped; others stay.
            let mut going = Vec::new();
            for number in 0..8 {
                let store = store.clone();
                let handle = handle.clone();
                let mut asking = Box::pin(async move {
                    drop(
                        store
                            .decide(&[Ask::new(&handle, &format!("{number}"))])
                            .await,
                    );
                });
                // Polled once, so that it is queued.
                let polled = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(asking.as_mut().poll(context).is_ready())
                });
                polled.await;
                going.push(asking);
            }
            if round % 2 == 0 {
                drop(going);
                tokio::task::yield_now().await;
                assert_eq!(
                    common::source(&store, &handle, "stays").await,
                    Source::Redis
                );
            } else {
                let stays = [Ask::new(&handle, "stays")];
                let staying = store.decide(&stays);
                drop(going);
                assert_eq!(staying.await.source(), Source::Redis);
            }
        }
        // Only dropped callers, and none that stays.
        for _ in 0..200 {
            let store = store.clone();
            let handle = handle.clone();
            let mut asking =
                Box::pin(async move { drop(store.decide(&[Ask::new(&handle, "goes")]).await) });
            std::future::poll_fn(|context| {
                std::task::Poll::Ready(asking.as_mut().poll(context).is_ready())
            })
            .await;
            drop(asking);
            if fastrand::bool() {
                std::thread::yield_now();
            }
        }
        assert_eq!(
            common::source(&store, &handle, "stays").await,
            Source::Redis
        );
        let status = store.status();
        assert!(
            status.error.is_none() && status.counts.fallbacks == 0,
            "{status:?}"
        );
    });
}

#[test]
fn a_short_deadline_ends_early_and_does_not_affect_others() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(Duration::from_secs(8))
            .connections(1);
        let store = store.on_failure(OnFailure::Closed).connect().await.unwrap();
        let handle = store.limit("x", limit("1000000/s")).unwrap();
        until_redis(&store, &handle).await;
        server.stop_signal();
        // The first call carries one caller with the full timeout; the others time out before it.
        let patient = {
            let store = store.clone();
            let handle = handle.clone();
            tokio::spawn(async move { common::source(&store, &handle, "patient").await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..5 {
            let asks = [Ask::new(&handle, "hasty")];
            let verdict = store
                .decide_within(&asks, Some(Duration::from_millis(20)))
                .await;
            assert_eq!(verdict.source(), Source::Closed);
        }
        assert!(
            !patient.is_finished(),
            "who is in a hurry has spoilt it for who is not"
        );
        server.cont();
        assert_eq!(patient.await.unwrap(), Source::Redis);
        assert!(count(&store, "timeout") >= 5);
        // A short deadline is not a failure of the server.
        for _ in 0..50 {
            let asks = [Ask::new(&handle, "hasty")];
            drop(
                store
                    .decide_within(&asks, Some(Duration::from_nanos(10)))
                    .await,
            );
        }
        assert_eq!(
            common::source(&store, &handle, "patient").await,
            Source::Redis,
            "{:?}",
            store.status()
        );
    });
}

#[test]
fn an_amendment_in_flight_does_not_delay_decisions() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(Duration::from_millis(20))
            .connections(1);
        let store = store.on_failure(OnFailure::Closed).connect().await.unwrap();
        let handle = store.limit("x", limit("1000000/s")).unwrap();
        let few = store.concurrency("few", 3).unwrap();
        until_redis(&store, &handle).await;
        let mut held = store.decide(&[Ask::new(&few, "key")]).await;
        while held.source() != Source::Redis {
            held = store.decide(&[Ask::new(&few, "key")]).await;
        }
        server.stop_signal();
        // Releasing its permit may take a whole second.
        let begin = std::time::Instant::now();
        drop(held);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let giving_back = {
            let store = store.clone();
            let handle = handle.clone();
            tokio::spawn(async move { store.reset(&handle, b"key").await })
        };
        let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
        assert_eq!(verdict.source(), Source::Closed);
        // Compares which ended first, not how long each took: the amendment has a second, the
        // decision 20 ms.
        let first = !giving_back.is_finished();
        println!("answered after {:.1?}", begin.elapsed());
        server.cont();
        giving_back.await.unwrap();
        assert!(first, "the decision waited for the correction");
        until_redis(&store, &handle).await;
    });
}

#[test]
fn beyond_max_waiting_requests_fall_back_at_once() {
    const CALLERS: usize = 200;
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(Duration::from_secs(4))
            .connections(1);
        let store = store
            .max_waiting(50)
            .on_failure(OnFailure::Open)
            .connect()
            .await
            .unwrap();
        let handle = Arc::new(store.limit("x", limit("1000000/s")).unwrap());
        until_redis(&store, &handle).await;
        server.stop_signal();
        let ended = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (store, handle, ended) =
                    (store.clone(), Arc::clone(&handle), Arc::clone(&ended));
                tokio::spawn(async move {
                    let source = common::source(&store, &handle, "key").await;
                    ended.fetch_add(1, Relaxed);
                    source
                })
            })
            .collect();
        until("some callers fell back", || count(&store, "queue_full") > 0).await;
        server.cont();
        let mut open = 0;
        for caller in callers {
            open += u64::from(caller.await.unwrap() == Source::Open);
        }
        println!("{open} were not waited for");
        assert!(open >= 1 && count(&store, "queue_full") >= 1);
        until_redis(&store, &handle).await;
        assert_eq!(ended.load(Relaxed), CALLERS as u64);
    });
}

#[test]
fn a_dropped_store_releases_its_permits() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let few: LimitHandle = store.concurrency("few", 3).unwrap();
        let held = store.decide(&[Ask::new(&few, "key")]).await;
        assert!(held.is_allowed() && held.source() == Source::Redis);
        let permits = || {
            let keys = server.command(&["KEYS", "ratekeeper:few:*"]);
            keys.items()
                .iter()
                .map(|key| {
                    server
                        .command(&["ZCARD", key.text().unwrap()])
                        .int()
                        .unwrap()
                })
                .sum::<i64>()
        };
        assert_eq!(permits(), 1);
        // First the permit is dropped, then, at once, the store: the permit is released all the
        // same, and does not just expire.
        drop(held);
        drop(store);
        let after = until("the permit is given back", || permits() == 0).await;
        assert!(
            after < Duration::from_secs(5),
            "it was released after {after:?}"
        );
        let clients = || {
            server
                .command(&["CLIENT", "LIST"])
                .text()
                .unwrap()
                .lines()
                .count()
        };
        until("its connections are closed", || clients() == 1).await;
    });
}
