//! Connections that are closed or fall silent between two decisions, while Redis is healthy.

mod common;

use common::{LONG, limit, run, until, until_redis};
use ratekeeper::{Ask, Store, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Closes all client connections except the one that sends this.
fn close_all(server: &RedisServer) {
    assert!(
        !server
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .is_error()
    );
}

#[test]
fn closed_while_idle() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("100000/h")).unwrap();
        let few = store.concurrency("few", 3).unwrap();
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
        for round in 0..20 {
            let held = store.decide(&[Ask::new(&few, "key")]).await;
            assert!(held.is_allowed(), "{round}: {held:?}");
            close_all(&server);
            assert_eq!(
                common::source(&store, &handle, "key").await,
                Source::Redis,
                "{:?}",
                store.status()
            );
            close_all(&server);
            drop(held);
            let after = until("the permit is given back", || permits() == 0).await;
            assert!(after < Duration::from_secs(8), "after {after:?}");
        }
        let status = store.status();
        assert_eq!(status.counts.fallbacks, 0, "{status:?}");
    });
}

/// A proxy to Redis whose connections can fall silent, like those that a firewall has forgotten. Of
/// the connections made before `silent`, all but the first are dropped silently; those made later
/// work.
struct Firewall {
    port: u16,
    made: Arc<AtomicUsize>,
    silent: Arc<AtomicUsize>,
}

impl Firewall {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let made = Arc::new(AtomicUsize::new(0));
        let silent = Arc::new(AtomicUsize::new(0));
        let shared = (Arc::clone(&made), Arc::clone(&silent));
        // Its threads end with the connections, or with the process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let number = shared.0.fetch_add(1, Relaxed);
                let client = client.unwrap();
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ] {
                    to.set_nodelay(true).unwrap();
                    let silent = Arc::clone(&shared.1);
                    std::thread::spawn(move || {
                        let mut buffer = [0; 65_536];
                        while let Ok(read @ 1..) = from.read(&mut buffer) {
                            if !(1..silent.load(Relaxed)).contains(&number)
                                && to.write_all(&buffer[..read]).is_err()
                            {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { port, made, silent }
    }
}

#[test]
fn forgotten_by_a_firewall() {
    run(async {
        let server = RedisServer::start();
        let firewall = Firewall::before(server.port());
        let builder = RedisStore::builder(format!("redis://127.0.0.1:{}", firewall.port));
        let store = builder
            .timeout(Duration::from_millis(100))
            .connections(1)
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("100000/h")).unwrap();
        until_redis(&store, &handle).await;
        // The first connection carries the heartbeats, whose traffic keeps it alive.
        firewall.silent.store(firewall.made.load(Relaxed), Relaxed);
        let begin = Instant::now();
        let mut asked = 0;
        // Rarely, so that the node finds Redis healthy in between.
        while common::source(&store, &handle, "key").await != Source::Redis {
            asked += 1;
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "{asked} were asked by a connection that is dead"
            );
            tokio::time::sleep(Duration::from_millis(1_300)).await;
        }
        println!("{asked} fell back");
        assert!(asked > 0, "nothing was silent");
    });
}
