//! Stores with limits of their own on the connections of another store.

mod common;

use common::{connect, limit, run, source, until, until_redis};
use ratekeeper::{Ask, Mode, Store, store::Source};
use ratekeeper_testkit::RedisServer;
use std::time::Instant;

#[test]
fn a_limit_of_one_name_is_one_limit_in_both_stores() {
    run(async {
        let server = RedisServer::start();
        let parent = connect(server.url()).await;
        let in_parent = parent.limit("shared", limit("4/h")).unwrap();
        for round in 0..4 {
            // The previous child is dropped, with its limits.
            let child = parent.with_own_limits().unwrap();
            let handle = child.limit("shared", limit("4/h")).unwrap();
            let verdict = child.decide(&[Ask::new(&handle, "key")]).await;
            assert_eq!(
                (verdict.source(), verdict.is_allowed()),
                (Source::Redis, true),
                "{round}"
            );
            // A limit of another store is not known, and never allows.
            assert!(
                !parent
                    .decide(&[Ask::new(&handle, "other")])
                    .await
                    .is_allowed()
            );
            assert!(
                !child
                    .decide(&[Ask::new(&in_parent, "other")])
                    .await
                    .is_allowed()
            );
        }
        assert!(
            !parent
                .decide(&[Ask::new(&in_parent, "key")])
                .await
                .is_allowed()
        );
    });
}

#[test]
fn a_child_keeps_the_connections_of_its_parent() {
    run(async {
        let server = RedisServer::start();
        let parent = connect(server.url()).await;
        let child = parent.with_own_limits().unwrap();
        let grandchild = child.with_own_limits().unwrap();
        drop(parent);
        drop(child);
        let handle = grandchild.limit("x", limit("4/h")).unwrap();
        assert_eq!(source(&grandchild, &handle, "key").await, Source::Redis);
    });
}

/// What a child spends without Redis is charged when Redis is back, and until then it has its share
/// of the limit.
#[test]
fn a_child_falls_back_by_itself() {
    run(async {
        let server = RedisServer::start();
        let parent = connect(server.url()).await;
        let child = parent.with_own_limits().unwrap();
        let handle = child.limit("x", limit("1000/h fixed_window")).unwrap();
        assert_eq!(source(&child, &handle, "key").await, Source::Redis);
        server.stop_signal();
        for _ in 0..100 {
            assert!(
                child
                    .decide(&[Ask::new(&handle, "spender")])
                    .await
                    .is_allowed()
            );
        }
        server.cont();
        until_redis(&child, &handle).await;
        until("it is charged", || parent.status().counts.debited >= 100).await;
        let elsewhere = parent.limit("x", limit("1000/h fixed_window")).unwrap();
        let begin = Instant::now();
        loop {
            let verdict = parent
                .decide(&[Ask::new(&elsewhere, "spender").cost(0).mode(Mode::Peek)])
                .await;
            // The call that timed out may have been charged as well.
            if (899..=900).contains(&verdict.results().next().unwrap().decision().remaining()) {
                break;
            }
            assert!(begin.elapsed() < common::MAX_WAIT, "{verdict:?}");
        }
    });
}
