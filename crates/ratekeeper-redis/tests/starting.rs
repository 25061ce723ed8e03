//! Starting: with Redis, without it, and with a server that cannot be used; and which nodes share
//! buckets.

mod common;

use common::{LONG, limit, run, until, until_redis};
use ratekeeper::{Ask, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{ConnectError, RedisStore, StoreError};
use ratekeeper_testkit::RedisServer;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

async fn connect(url: &str) -> Result<RedisStore, ConnectError> {
    RedisStore::builder(url).timeout(LONG).connect().await
}

/// The error of connecting to that URL.
fn connect_error(url: &str) -> ConnectError {
    run(connect(url)).expect_err("there is a store")
}

/// Checks that Redis decides for a store on that URL.
fn assert_decides(url: &str) {
    run(async {
        let store = connect(url).await.unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        for allowed in [true, true, true, false] {
            let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
            assert_eq!(
                (verdict.source(), verdict.is_allowed()),
                (Source::Redis, allowed),
                "{url}"
            );
        }
        assert!(store.status().error.is_none());
    });
}

fn code(error: &ConnectError) -> &str {
    match error {
        ConnectError::Unusable(StoreError::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn redis_starts_later() {
    run(async {
        let server = RedisServer::start();
        server.kill();
        let store = connect(server.url()).await.unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
        assert_eq!(verdict.source(), Source::LocalShare);
        let status = store.status();
        let (_, error) = status.error.expect("Redis is unreachable");
        assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
        assert!(!store.is_healthy());
        server.restart();
        println!("found after {:.1?}", until_redis(&store, &handle).await);
        assert!(store.status().error.is_none() && store.is_healthy());
        for allowed in [true, true, true, false] {
            let verdict = store.decide(&[Ask::new(&handle, "other")]).await;
            assert_eq!(
                (verdict.source(), verdict.is_allowed()),
                (Source::Redis, allowed)
            );
        }
    });
}

#[test]
fn redis_accepts_and_does_not_answer() {
    run(async {
        let server = RedisServer::start();
        server.stop_signal();
        let store = RedisStore::builder(server.url()).connect().await.unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        assert_eq!(
            common::source(&store, &handle, "key").await,
            Source::LocalShare
        );
        assert!(store.status().error.is_some());
        server.cont();
        println!("found after {:.1?}", until_redis(&store, &handle).await);
    });
}

#[test]
fn a_configured_secret_needs_no_redis_at_the_start() {
    run(async {
        let server = RedisServer::start();
        server.kill();
        let store = RedisStore::builder(server.url())
            .key_secret("ours")
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        assert_eq!(
            common::source(&store, &handle, "key").await,
            Source::LocalShare
        );
        server.restart();
        until_redis(&store, &handle).await;
    });
}

#[test]
fn invalid_urls() {
    for url in [
        "",
        "redis",
        "http://127.0.0.1:6379",
        "redis://127.0.0.1:port",
        "redis://127.0.0.1:6379/first",
    ] {
        let error = connect_error(url);
        assert!(matches!(error, ConnectError::Url(_)), "{url}: {error:?}");
        assert!(
            error.to_string().contains("redis://127.0.0.1:6379"),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_or_missing_password() {
    let server = RedisServer::builder().password("right").start();
    assert_decides(server.url());
    let port = server.port();
    for (url, expected, hint) in [
        (
            format!("redis://:wrong@127.0.0.1:{port}"),
            "WRONGPASS",
            "user and password",
        ),
        (
            format!("redis://nobody:right@127.0.0.1:{port}"),
            "WRONGPASS",
            "user and password",
        ),
        (
            format!("redis://127.0.0.1:{port}"),
            "NOAUTH",
            "requires a password",
        ),
    ] {
        let error = connect_error(&url);
        assert_eq!(code(&error), expected, "{url}");
        assert!(error.to_string().contains(hint), "{error}");
        assert!(
            !error.to_string().contains("right@") && !format!("{error:?}").contains("wrong"),
            "{error:?}"
        );
    }
}

#[test]
fn users_with_different_permissions() {
    let server = RedisServer::start();
    let user = |name: &str, rules: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", name, "on", ">secret"];
        command.extend(rules);
        assert!(!server.command(&command).is_error());
        format!("redis://{name}:secret@127.0.0.1:{}", server.port())
    };
    assert_decides(&user("all", &["~*", "+@all"]));
    server.command(&["FLUSHALL"]);
    // The documented permissions, and no more.
    assert_decides(&user("few", &["~ratekeeper:*", "+@all", "-@dangerous"]));
    let without = connect_error(&user(
        "unscripted",
        &["~ratekeeper:*", "+@all", "-@scripting"],
    ));
    assert_eq!(code(&without), "NOPERM");
    assert!(
        without
            .to_string()
            .contains("the Redis user lacks a permission"),
        "{without}"
    );
    let elsewhere = connect_error(&user("elsewhere", &["~other:*", "+@all"]));
    assert_eq!(code(&elsewhere), "NOPERM");
}

/// A server that sends these bytes to every client, again and again.
fn server_sending(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                    if stream.write_all(words).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}

#[test]
fn a_server_that_is_not_redis() {
    for words in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"\xff\xfe\xfd\r\n",
        b"220 mail.example ESMTP\r\n",
    ] {
        let error = connect_error(&server_sending(words));
        assert!(
            matches!(error, ConnectError::Unusable(StoreError::Protocol(_))),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("not a compatible Redis"),
            "{error}"
        );
    }
    // It speaks the protocol, and knows no commands.
    let error = connect_error(&server_sending(
        b"-ERR unknown command\r\n-ERR unknown command\r\n-ERR unknown command\r\n",
    ));
    assert!(matches!(error, ConnectError::Unusable(_)), "{error:?}");
}

#[test]
fn by_socket_and_database() {
    let server = RedisServer::builder().unix_socket(true).start();
    let path = server.unix_path().display();
    for url in [
        format!("unix://{path}"),
        format!("redis+unix://{path}"),
        format!("redis+unix://{path}?db=2"),
    ] {
        assert_decides(&url);
        assert!(!server.command(&["FLUSHALL"]).is_error());
    }
    assert_decides(&format!("redis://127.0.0.1:{}/3", server.port()));
    let info = server.command(&["INFO", "keyspace"]);
    let info = info.text().unwrap();
    assert!(info.contains("db3:") && !info.contains("db0:"), "{info}");
}

#[test]
fn over_tls() {
    let server = RedisServer::builder().tls(true).password("right").start();
    run(async {
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .ca_file(server.ca_file())
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("3/h")).unwrap();
        assert_eq!(common::source(&store, &handle, "key").await, Source::Redis);
    });
    // A certificate that no trusted CA has signed.
    let error = run(RedisStore::builder(server.url()).timeout(LONG).connect());
    match error {
        Err(error) => println!("{error}"),
        Ok(store) => {
            let (_, error) = store.status().error.expect("it cannot be trusted");
            assert!(
                matches!(&error, StoreError::Unreachable(why) if why.contains("ertificate")),
                "{error:?}"
            );
        }
    }
    let nowhere = RedisStore::builder(server.url()).ca_file("/nowhere/ca.pem");
    let error = run(nowhere.connect()).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Certificates(path, _) if path.ends_with("ca.pem")),
        "{error:?}"
    );
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
    let file = file_of(b"this is no certificate");
    let error = run(RedisStore::builder(server.url()).ca_file(&file).connect());
    let error = error.expect_err("nothing can be trusted by it");
    assert!(matches!(error, ConnectError::Certificates(..)), "{error:?}");
    std::fs::remove_file(file).unwrap();
}

fn file_of(content: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!(
        "ratekeeper-{}-{}.pem",
        std::process::id(),
        fastrand::u64(..)
    ));
    std::fs::write(&path, content).unwrap();
    path
}

/// A store with that secret, or the fleet's.
async fn node(server: &RedisServer, secret: Option<&str>) -> (RedisStore, LimitHandle) {
    let mut builder = RedisStore::builder(server.url()).timeout(LONG);
    if let Some(secret) = secret {
        builder = builder.key_secret(secret);
    }
    let store = builder.connect().await.unwrap();
    let handle = store.limit("x", limit("3/h")).unwrap();
    (store, handle)
}

async fn allowed((store, handle): &(RedisStore, LimitHandle), key: &str) -> bool {
    let verdict = store.decide(&[Ask::new(handle, key)]).await;
    assert_eq!(verdict.source(), Source::Redis);
    verdict.is_allowed()
}

#[test]
fn which_nodes_share_buckets() {
    run(async {
        for (one, two, share) in [
            (None, None, true),
            (Some("ours"), Some("ours"), true),
            (Some("ours"), Some("theirs"), false),
            (Some("ours"), None, false),
            (None, Some("ours"), false),
        ] {
            let server = RedisServer::start();
            let one = node(&server, one).await;
            let two = node(&server, two).await;
            for _ in 0..3 {
                assert!(allowed(&one, "key").await);
            }
            assert!(!allowed(&one, "key").await);
            assert_eq!(allowed(&two, "key").await, !share);
            // Where the operator chose the secret, it cannot be read in Redis.
            let stored = server.command(&["GET", "ratekeeper:secret"]);
            assert!(!stored.text().unwrap().contains("ours"), "{stored:?}");
        }
    });
}

#[test]
fn a_lost_secret_is_agreed_on_again() {
    run(async {
        let server = RedisServer::start();
        let one = node(&server, None).await;
        let two = node(&server, None).await;
        let before = server.command(&["GET", "ratekeeper:secret"]);
        for _ in 0..3 {
            assert!(allowed(&one, "before").await);
        }
        assert!(!allowed(&two, "before").await);
        server.command(&["FLUSHALL"]);
        until("Redis decides again", || {
            server.command(&["EXISTS", "ratekeeper:secret"]).int() == Some(1)
        })
        .await;
        assert_eq!(server.command(&["GET", "ratekeeper:secret"]), before);
        // They and a node that starts now still share one bucket.
        let three = node(&server, None).await;
        let turns = [&one, &two, &three, &one, &two, &three];
        let mut passed = 0;
        for turn in turns {
            passed += u64::from(allowed(turn, "after").await);
        }
        assert_eq!(passed, 3);
        // If another secret was agreed on meanwhile, all adopt it.
        server.command(&["SET", "ratekeeper:secret", "plain:00112233"]);
        let four = node(&server, None).await;
        for _ in 0..3 {
            assert!(allowed(&four, "later").await);
        }
        let begin = std::time::Instant::now();
        let mut number = 0;
        // Each ask of a new key costs what a node with another secret is told.
        loop {
            number += 1;
            let key = format!("probe {number}");
            for _ in 0..3 {
                assert!(allowed(&four, &key).await);
            }
            if !allowed(&one, &key).await && !allowed(&two, &key).await {
                break;
            }
            assert!(begin.elapsed() < common::MAX_WAIT, "they do not agree");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// A script that the server has not loaded is sent again with its text, behind everything queued
/// meanwhile: decisions would not see refunds made before them.
#[test]
fn the_first_refund_is_sent_once() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await.unwrap();
        let handle = store.limit("x", limit("3/h refundable")).unwrap();
        let unknown = || {
            let stats = server.command(&["INFO", "errorstats"]);
            stats
                .text()
                .unwrap()
                .lines()
                .find(|line| line.contains("NOSCRIPT"))
                .map(str::to_owned)
        };
        let before = unknown();
        assert!(before.is_some(), "the server was started with no scripts");
        let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
        assert_eq!(verdict.source(), Source::Redis);
        store.settle(verdict, &[0]).await;
        assert_eq!(unknown(), before);
    });
}
