//! 64 concurrent requests on one key, with a clock that stands still: exactly the limit is allowed.
//! And several limits at once are charged all or none.

mod common;

use common::{LONG, limit, run};
use ratekeeper::{Ask, Mode, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer, naive};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

const CLIENTS: usize = 64;
const EACH: usize = 4;

/// A time at which no window begins.
const TIME: u64 = 1_700_000_000_123_456;

/// Stores of a fleet on a clock that stands still.
async fn fleet(server: &RedisServer, nodes: usize) -> Vec<RedisStore> {
    let time = Arc::new(AtomicU64::new(TIME));
    let mut fleet = Vec::new();
    for _ in 0..nodes {
        let store = RedisStore::builder(server.url())
            .timeout(LONG)
            .given_time(Arc::clone(&time));
        fleet.push(store.connect().await.unwrap());
    }
    fleet
}

/// A limit, and how many it allows at once.
const EXACTLY: [(&str, u64); 9] = [
    ("10/s burst 50", 50),
    ("10/s burst 50 leaky_bucket", 50),
    // One that starts now, and those that wait no longer than that.
    ("10/s wait 4s", 41),
    ("50/h fixed_window", 50),
    ("50/h fixed_window_first_hit", 50),
    ("50/h sliding_window", 50),
    ("50/h sliding_window_strict", 50),
    ("50/h sliding_log", 50),
    ("0", 0),
];

#[test]
fn concurrent_requests_are_allowed_exactly_up_to_the_limit() {
    run(async {
        let server = RedisServer::start();
        let fleet = fleet(&server, 4).await;
        for (text, most) in EXACTLY {
            let handles: Vec<LimitHandle> = fleet
                .iter()
                .map(|store| store.limit(text, limit(text)).unwrap())
                .collect();
            let clients = (0..CLIENTS).map(|client| {
                let store = fleet[client % 4].clone();
                let handle = handles[client % 4].clone();
                tokio::spawn(async move {
                    let mut passed = 0;
                    for _ in 0..EACH {
                        let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
                        assert_eq!(verdict.source(), Source::Redis);
                        passed += u64::from(verdict.is_allowed());
                    }
                    passed
                })
            });
            let clients: Vec<_> = clients.collect();
            let mut passed = 0;
            for client in clients {
                passed += client.await.unwrap();
            }
            assert_eq!(passed, most, "{text}");
        }
    });
}

#[test]
fn concurrent_requests_hold_exactly_the_permits_of_the_limit() {
    run(async {
        let server = RedisServer::start();
        let fleet = fleet(&server, 4).await;
        let clients = (0..CLIENTS).map(|client| {
            let store = fleet[client % 4].clone();
            let handle = store.concurrency("few", 50).unwrap();
            tokio::spawn(async move {
                let mut held = Vec::new();
                for _ in 0..EACH {
                    let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
                    held.extend(verdict.is_allowed().then_some(verdict));
                }
                held
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut held = Vec::new();
        for client in clients {
            held.extend(client.await.unwrap());
        }
        assert_eq!(held.len(), 50);
        // All are released, and can be taken again.
        drop(held);
        let handle = fleet[0].concurrency("few", 50).unwrap();
        let begin = std::time::Instant::now();
        loop {
            let verdict = fleet[0].decide(&[Ask::new(&handle, "key").cost(50)]).await;
            if verdict.is_allowed() {
                break;
            }
            assert!(begin.elapsed() < common::MAX_WAIT, "they are not released");
        }
    });
}

/// How many units are charged: the limit less the most that could still be taken.
async fn charged(store: &RedisStore, handle: &LimitHandle, key: &str, most: u64) -> u64 {
    let verdict = store
        .decide(&[Ask::new(handle, key).cost(0).mode(Mode::Peek)])
        .await;
    most - verdict.results().next().unwrap().decision().remaining()
}

#[test]
fn several_limits_are_charged_all_or_none() {
    run(async {
        // One limit of each kind, asked about in pairs; what was charged must add up to the same on
        // both sides.
        let all = EXACTLY
            .iter()
            .filter(|(text, _)| !text.contains("wait") && *text != "0");
        let texts: Vec<(&str, u64)> = all.copied().collect();
        let server = RedisServer::start();
        let fleet = fleet(&server, 4).await;
        let handles: Vec<Vec<LimitHandle>> = fleet
            .iter()
            .map(|store| {
                let named = |(at, (text, _)): (usize, &(&str, u64))| {
                    store.limit(&format!("{at}"), limit(text)).unwrap()
                };
                texts.iter().enumerate().map(named).collect()
            })
            .collect();
        let clients = (0..CLIENTS).map(|client| {
            let store = fleet[client % 4].clone();
            let handles = handles[client % 4].clone();
            tokio::spawn(async move {
                // What was charged to each limit and key, by the answers that this client got.
                let mut result: BTreeMap<(usize, usize), u64> = BTreeMap::new();
                for turn in 0..12 {
                    let first = (client + turn) % handles.len();
                    let second = (first + 1 + turn % (handles.len() - 1)) % handles.len();
                    let keys = ["x", "y"];
                    let one = turn % 2;
                    let two = client % 2;
                    let cost = 1 + (turn as u64 % 3);
                    let asks = [
                        Ask::new(&handles[first], keys[one]).cost(cost),
                        Ask::new(&handles[second], keys[two]).cost(cost),
                    ];
                    let verdict = store.decide(&asks).await;
                    assert_eq!(verdict.source(), Source::Redis);
                    if verdict.is_allowed() {
                        *result.entry((first, one)).or_default() += cost;
                        *result.entry((second, two)).or_default() += cost;
                    }
                }
                result
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut sums: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for client in clients {
            for (place, cost) in client.await.unwrap() {
                *sums.entry(place).or_default() += cost;
            }
        }
        let mut full = 0;
        for ((at, key), result) in sums {
            let (text, most) = texts[at];
            let charged = charged(&fleet[0], &handles[0][at], ["x", "y"][key], most).await;
            assert_eq!(
                charged, result,
                "{text} has charged other than what requests were told"
            );
            assert!(charged <= most);
            full += u64::from(charged >= most - 2);
        }
        assert!(full >= 2, "nothing was ever denied");
    });
}

#[test]
fn the_same_clients_get_too_much_of_a_counter_with_a_race() {
    let server = RedisServer::start();
    // All read before any has written: the delay of their replies is longer than they need to
    // start.
    let proxy = FaultProxy::to(server.port());
    proxy.set(Fault::Delay(std::time::Duration::from_millis(5)));
    let most = 50;
    let too_much = (0..20).any(|round| {
        let together = Barrier::new(CLIENTS);
        let passed = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..CLIENTS {
                threads.spawn(|| {
                    let mut connection = ratekeeper_testkit::Connection::tcp(proxy.port()).unwrap();
                    together.wait();
                    for _ in 0..EACH {
                        passed.fetch_add(
                            u64::from(naive::take(&mut connection, &format!("key{round}"), most)),
                            Relaxed,
                        );
                    }
                });
            }
        });
        passed.load(Relaxed) > most
    });
    assert!(too_much, "not even a counter with a race is caught by this");
}
