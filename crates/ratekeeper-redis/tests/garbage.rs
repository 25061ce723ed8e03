//! Foreign data in our keys: requests on such a key are decided by the failure mode of its limit,
//! all others by Redis as before, and no request crashes, hangs or is allowed beyond its limit.

mod common;

use common::{LONG, limit, run};
use ratekeeper::{Ask, Store, store::LimitHandle, store::OnFailure, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::{Connection, RedisServer};

const LIMITS: [&str; 9] = [
    "10/s burst 5",
    "7/h burst 5",
    "10/s wait 5s",
    "5/min fixed_window",
    "5/min fixed_window_first_hit",
    "5/min sliding_window",
    "5/min sliding_window_strict",
    "5/min sliding_log",
    "- 5",
];

fn register(store: &RedisStore, prefix: &str) -> Vec<LimitHandle> {
    let one = |text: &&str| match text.strip_prefix("- ") {
        Some(most) => store
            .concurrency(&format!("{prefix}{text}"), most.parse().unwrap())
            .unwrap(),
        None => store
            .limit(&format!("{prefix}{text}"), limit(text))
            .unwrap(),
    };
    LIMITS.iter().map(one).collect()
}

/// Puts foreign data into a key. Returns its description, for failure messages.
fn corrupt(connection: &mut Connection, key: &[u8], random: &mut fastrand::Rng) -> String {
    connection.command(&[b"DEL", key]).unwrap();
    let now = common::now() as f64;
    let odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        f64::NAN,
        f64::INFINITY,
        -f64::INFINITY,
        f64::MAX,
        1e15,
        9.0e15,
        -9.0e15,
        now,
    ];
    let number = |random: &mut fastrand::Rng| match random.u8(..4) {
        0 => now + random.i64(-100_000_000..100_000_000) as f64,
        1 => random.u32(..100).into(),
        2 => (now / f64::from(random.u32(1..100_000_000))).floor(),
        _ => odd[random.usize(..odd.len())],
    };
    let lengths = [
        0, 1, 7, 8, 16, 23, 24, 25, 32, 40, 48, 56, 57, 104, 112, 113, 120, 5_000,
    ];
    let (command, values): (&str, Vec<Vec<u8>>) = match random.u8(..9) {
        0 => ("SET", vec![b"hello".to_vec()]),
        1 => (
            "SET",
            vec![
                (0..lengths[random.usize(..lengths.len())])
                    .map(|_| random.u8(..))
                    .collect(),
            ],
        ),
        // As long as ours, and of doubles like ours.
        2..=4 => {
            let count = [3, 3, 4, 5, 7, 13, 14][random.usize(..7)];
            let mut values = vec![if random.bool() {
                60_000_000.0
            } else {
                number(random)
            }];
            values.extend((1..count).map(|_| number(random)));
            (
                "SET",
                vec![
                    values
                        .iter()
                        .flat_map(|value| value.to_be_bytes())
                        .collect(),
                ],
            )
        }
        5 => (
            "RPUSH",
            ["a", "b"].map(|word| word.as_bytes().to_vec()).to_vec(),
        ),
        6 => (
            "RPUSH",
            (0..random.u8(1..9))
                .map(|_| number(random).to_string().into_bytes())
                .collect(),
        ),
        7 => ("SADD", vec![b"a".to_vec()]),
        _ => ("HSET", vec![b"a".to_vec(), b"b".to_vec()]),
    };
    let mut words = vec![command.as_bytes().to_vec(), key.to_vec()];
    words.extend(values.iter().cloned());
    let reply = connection.command(&words).unwrap();
    assert!(!reply.is_error(), "{reply:?}");
    format!("{command} {values:02x?}")
}

fn keys(connection: &mut Connection) -> Vec<Vec<u8>> {
    let reply = connection.command(&["KEYS", "ratekeeper:*"]).unwrap();
    let bytes = |item: &ratekeeper_testkit::Reply| match item {
        ratekeeper_testkit::Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    reply.items().iter().map(bytes).collect()
}

#[test]
fn other_keys_are_decided_as_before() {
    let seed = std::env::var("RATEKEEPER_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("RATEKEEPER_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    run(async move {
        let server = RedisServer::start();
        // One connection, so that concurrent requests share calls.
        let builder = RedisStore::builder(server.url())
            .timeout(LONG)
            .connections(1)
            .on_failure(OnFailure::Closed);
        let store = builder.connect().await.unwrap();
        let mut connection = server.connect().unwrap();
        let bad = register(&store, "bad ");
        let good = register(&store, "good ");
        let mut refused = 0;
        for round in 0..300 {
            for handle in &bad {
                drop(store.decide(&[Ask::new(handle, "key")]).await);
            }
            let mut what = Vec::new();
            for key in keys(&mut connection) {
                let name = String::from_utf8_lossy(&key).into_owned();
                if name.contains("bad_") {
                    what.push((name, corrupt(&mut connection, &key, &mut random)));
                }
            }
            let key = format!("{round}");
            let asks = bad.iter().zip(&good).enumerate().map(|(at, (bad, good))| {
                let (store, bad, good, key) =
                    (store.clone(), bad.clone(), good.clone(), key.clone());
                tokio::spawn(async move {
                    let asks = [Ask::new(&bad, "key")];
                    let both = [Ask::new(&good, &key), Ask::new(&bad, "key")];
                    let other = [Ask::new(&good, &key)];
                    let (one, with_good, good) = tokio::join!(
                        store.decide(&asks),
                        store.decide(&both),
                        store.decide(&other)
                    );
                    let result = (good.source(), good.is_allowed());
                    // And amendments of them.
                    store.settle(one, &[0]).await;
                    store.settle(with_good, &[3, 3]).await;
                    store.grant(&bad, b"key", 1).await;
                    store.reset(&bad, b"key").await;
                    (at, result)
                })
            });
            let asks: Vec<_> = asks.collect();
            for ask in asks {
                let (at, result) = ask.await.unwrap();
                assert_eq!(
                    result,
                    (Source::Redis, true),
                    "{}: {:?}\n{what:#?}",
                    LIMITS[at],
                    store.status()
                );
            }
            let status = store.status();
            assert!(status.error.is_none(), "{status:?}\n{what:#?}");
            for (name, count) in status.counts.errors {
                assert!(count == 0 || name == "bad_key", "{status:?}\n{what:#?}");
                refused += count;
            }
        }
        assert!(refused > 0);
        // A deleted key is as good as new.
        for key in keys(&mut connection) {
            if String::from_utf8_lossy(&key).contains("bad_") {
                connection.command(&[b"DEL", &key[..]]).unwrap();
            }
        }
        for handle in &bad {
            let mut held = Vec::new();
            for turn in 0..6 {
                let verdict = store.decide(&[Ask::new(handle, "key")]).await;
                assert_eq!(verdict.source(), Source::Redis);
                assert!(turn == 5 || verdict.is_allowed(), "{handle:?}: {verdict:?}");
                held.push(verdict);
            }
        }
    });
}

/// How many scripts were sent by their text, as heartbeats are.
fn heartbeats(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats
        .text()
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Two nodes, with one key of the fleet itself spoilt for several heartbeats: they continue
/// together.
async fn fleet_continues(spoilt: &'static [&'static str]) {
    let server = RedisServer::start();
    let connect = || RedisStore::builder(server.url()).timeout(LONG).connect();
    let stores = [connect().await.unwrap(), connect().await.unwrap()];
    let handles =
        [&stores[0], &stores[1]].map(|store| store.limit("x", limit("30/h burst 30")).unwrap());
    let mut admitted = 0;
    for turn in 0..3 {
        if turn == 1 {
            server.command(&["DEL", spoilt[1]]);
            assert!(!server.command(spoilt).is_error());
            let before = heartbeats(&server);
            // Three failures in a row would be taken for a server that does not answer.
            common::until("both sent four heartbeats", || {
                heartbeats(&server) >= before + 9
            })
            .await;
        }
        for (store, handle) in stores.iter().zip(&handles) {
            for _ in 0..10 {
                let verdict = store.decide(&[Ask::new(handle, "key")]).await;
                assert_eq!(verdict.source(), Source::Redis, "{:?}", store.status());
                admitted += u64::from(verdict.is_allowed());
            }
        }
    }
    assert_eq!(admitted, 30, "it is not one bucket any more");
    let result = stores.iter().map(|store| {
        store
            .status()
            .counts
            .errors
            .iter()
            .find(|(name, _)| *name == "bad_key")
            .unwrap()
            .1
    });
    assert!(result.sum::<u64>() > 0, "no store counted a bad key");
    // Deleting the key repairs it.
    server.command(&["DEL", spoilt[1]]);
    common::until("both know of each other", || {
        stores.iter().all(|store| store.status().nodes == 2)
    })
    .await;
    let verdict = stores[0].decide(&[Ask::new(&handles[0], "key")]).await;
    assert!(verdict.source() == Source::Redis && verdict.is_denied());
}

#[test]
fn the_secret_is_foreign_text() {
    run(fleet_continues(&["SET", "ratekeeper:secret", "nobody's"]));
}

#[test]
fn the_secret_is_a_list() {
    run(fleet_continues(&["RPUSH", "ratekeeper:secret", "nobody's"]));
}

#[test]
fn the_nodes_are_text() {
    run(fleet_continues(&["SET", "ratekeeper:nodes", "nobody's"]));
}
