//! Leased mode on a real Redis: decided by the node, within the bound of one bucket, for every load
//! and through every failure.

mod common;

use common::{LONG, connect, limit, now, run};
use ratekeeper::{
    Ask, Mode, Store, Verdict, store::LimitHandle, store::LimitOptions, store::OnFailure,
    store::Source,
};
use ratekeeper_policy::config::Config;
use ratekeeper_policy::{Attribute, Engine, Policies, Policy, Subject, engine::MaybeReady};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use ratekeeper_testkit::auditor::{Admission, Bound, Report};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000;
const STALENESS: Duration = Duration::from_millis(100);

/// A node with one leased limit.
async fn node(url: &str, text: &str) -> (RedisStore, LimitHandle) {
    let store = connect(url).await;
    let handle = store.limit("leased", limit(text)).unwrap();
    store.configure(&handle, LimitOptions::new().lease(Some(STALENESS)));
    (store, handle)
}

/// Asks until it is decided by a lease.
async fn until_leased(store: &RedisStore, handle: &LimitHandle, key: &str) {
    let begin = Instant::now();
    while store.decide(&[Ask::new(handle, key)]).await.source() != Source::Lease {
        assert!(
            begin.elapsed() < common::MAX_WAIT,
            "nothing is leased: {:?}",
            store.status()
        );
    }
}

/// Whether the store decides without asking Redis.
fn is_known(store: &RedisStore, asks: &[Ask<'_>]) -> bool {
    store.try_decide(asks, store.now(), &mut Verdict::new(Source::Open))
}

#[test]
fn a_hot_key_is_decided_by_leases_and_a_cold_one_by_redis() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = node(server.url(), "100000/s burst 200000").await;
        assert_eq!(
            store.decide(&[Ask::new(&handle, "once")]).await.source(),
            Source::Redis
        );
        let mut here = 0;
        for _ in 0..20_000 {
            let verdict = store.decide(&[Ask::new(&handle, "hot")]).await;
            assert!(verdict.is_allowed());
            here += u64::from(verdict.source() == Source::Lease);
        }
        let counts = store.status().counts;
        println!("{here} of 20,000 decided here; {counts:?}");
        assert!(here > 15_000, "{here} of 20,000 decided here; {counts:?}");
        assert!(counts.leases.calls < 500, "{counts:?}");
        assert!(counts.leases.spent <= counts.leases.granted, "{counts:?}");
        assert_eq!(counts.leases.spent, here);
        // Redis knows of everything that was taken or may still be.
        let peek = store
            .decide(&[Ask::new(&handle, "hot").mode(Mode::Peek)])
            .await;
        assert_eq!(peek.source(), Source::Redis);
    });
}

/// What several nodes allow of one key under constant load, or in bursts.
async fn admitted(
    url: &str,
    text: &str,
    nodes: usize,
    bursts: bool,
    time: Duration,
) -> (Vec<Admission>, Vec<RedisStore>) {
    let mut fleet = Vec::new();
    for _ in 0..nodes {
        fleet.push(node(url, text).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (store, handle) in &fleet {
        for _ in 0..2 {
            let store = store.clone();
            let handle = handle.clone();
            let stop = Arc::clone(&stop);
            tasks.push(tokio::spawn(async move {
                let mut log = Vec::new();
                let mut turn = 0_u32;
                while !stop.load(Relaxed) {
                    turn += 1;
                    let sent = now();
                    let verdict = store.decide(&[Ask::new(&handle, "key")]).await;
                    let answered = now().max(sent);
                    assert!(
                        matches!(verdict.source(), Source::Lease | Source::Redis),
                        "{:?}",
                        store.status()
                    );
                    if verdict.is_allowed() {
                        log.push(Admission::between(sent, answered, 1));
                    }
                    if bursts && turn.is_multiple_of(200) {
                        tokio::time::sleep(Duration::from_millis(90)).await;
                    } else if verdict.is_denied() {
                        tokio::time::sleep(Duration::from_micros(200)).await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                }
                log
            }));
        }
    }
    tokio::time::sleep(time).await;
    stop.store(true, Relaxed);
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    (all, fleet.into_iter().map(|(store, _)| store).collect())
}

/// Every algorithm that can be leased, at a rate that the callers exceed.
const ALGORITHMS: [(&str, Bound); 6] = [
    (
        "2000/s burst 500",
        Bound::TokenBucket {
            count: 2_000,
            period: SECOND,
            burst: 500,
        },
    ),
    (
        "300/s burst 64 leaky_bucket",
        Bound::TokenBucket {
            count: 300,
            period: SECOND,
            burst: 64,
        },
    ),
    (
        "400/200ms fixed_window",
        Bound::FixedWindow {
            limit: 400,
            window: SECOND / 5,
        },
    ),
    (
        "400/200ms sliding_window",
        Bound::SlidingCounter {
            limit: 400,
            window: SECOND / 5,
        },
    ),
    (
        "2000/s sliding_window_strict",
        Bound::SlidingLog {
            limit: 2_000,
            window: SECOND,
        },
    ),
    (
        "500/2s sliding_log",
        Bound::SlidingLog {
            limit: 500,
            window: 2 * SECOND,
        },
    ),
];

/// Checks the bound, with no allowance.
fn audit(text: &str, bound: Bound, all: &[Admission]) -> Report {
    bound
        .check(all, 0)
        .unwrap_or_else(|broken| panic!("{text}: {broken}"))
}

fn check_bound(nodes: usize, bursts: bool) {
    for (text, bound) in ALGORITHMS {
        run(async move {
            let server = RedisServer::start();
            let time = common::load_time(Duration::from_millis(1_200));
            let (all, stores) = admitted(server.url(), text, nodes, bursts, time).await;
            let report = audit(text, bound, &all);
            let leases: Vec<_> = stores
                .iter()
                .map(|store| store.status().counts.leases)
                .collect();
            let here: u64 = leases.iter().map(|leases| leases.decisions).sum();
            println!("{text}, {nodes} nodes, bursts {bursts}: {report:?}, {here} decided here");
            assert!(here > 0, "{text}: nothing was leased: {leases:?}");
        });
    }
}

#[test]
fn one_node_keeps_the_bound() {
    check_bound(1, false);
}

#[test]
fn two_nodes_in_bursts_keep_the_bound() {
    check_bound(2, true);
}

#[test]
fn four_saturated_nodes_keep_the_bound() {
    check_bound(4, false);
}

#[test]
fn eight_nodes_keep_the_bound() {
    check_bound(8, false);
}

/// The environment variable that makes a process of this test a node: where Redis is, and the
/// limit.
const PROCESS: &str = "RATEKEEPER_TEST_NODE";

/// A node of another test, if the variable is set: it prints what it allowed.
#[test]
fn a_node_process() {
    let Ok(told) = std::env::var(PROCESS) else {
        return;
    };
    let (url, text) = told.split_once(' ').unwrap();
    let time = common::load_time(Duration::from_millis(1_500));
    let (all, stores) = run(admitted(url, text, 1, false, time));
    let here = stores[0].status().counts.leases.decisions;
    let said: String = all
        .iter()
        .map(|one| format!("admitted {} {}\n", one.earliest, one.latest))
        .collect();
    print!("\n{said}here {here}\n");
}

#[test]
fn eight_processes_keep_the_bound() {
    let own = std::env::current_exe().unwrap();
    for (text, bound) in ALGORITHMS {
        let server = RedisServer::start();
        let nodes: Vec<_> = (0..8)
            .map(|_| {
                let mut node = std::process::Command::new(&own);
                node.args(["--exact", "a_node_process", "--nocapture"])
                    .env(PROCESS, format!("{} {text}", server.url()));
                node.stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let (mut all, mut here): (Vec<Admission>, u64) = (Vec::new(), 0);
        for node in nodes {
            let said = node.wait_with_output().unwrap();
            assert!(said.status.success(), "{said:?}");
            for line in String::from_utf8(said.stdout).unwrap().lines() {
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["admitted", sent, answered] => {
                        all.push(Admission::between(
                            sent.parse().unwrap(),
                            answered.parse().unwrap(),
                            1,
                        ));
                    }
                    ["here", many] => here += many.parse::<u64>().unwrap(),
                    _ => {}
                }
            }
        }
        let report = audit(text, bound, &all);
        println!("{text}, 8 processes: {report:?}, {here} decided here");
        assert!(
            here > 0 && report.admitted > 0,
            "{text}: nothing was leased"
        );
    }
}

#[test]
fn several_leased_limits_are_charged_together_or_not_at_all() {
    run(async {
        let server = RedisServer::start();
        let (store, wide) = node(server.url(), "1000000/d burst 4000").await;
        let narrow = store.limit("narrow", limit("1000/d burst 800")).unwrap();
        store.configure(
            &narrow,
            LimitOptions::new().lease(Some(Duration::from_secs(60))),
        );
        let mut allowed = 0;
        let mut here = 0;
        for _ in 0..4_000 {
            let verdict = store
                .decide(&[Ask::new(&wide, "x"), Ask::new(&narrow, "x")])
                .await;
            assert_eq!(verdict.results().len(), 2);
            allowed += u64::from(verdict.is_allowed());
            here += u64::from(verdict.source() == Source::Lease);
            if verdict.is_denied() {
                assert_eq!(verdict.binding(), Some(1));
            }
        }
        println!("{allowed} allowed, {here} here");
        assert!(allowed <= 800 && allowed > 400, "{allowed}");
        assert!(here > 1_000, "{here}");
        // As much was taken of both: as much was spent here of each.
        let spent = store.status().counts.leases.spent;
        assert_eq!(spent % 2, 0, "{spent}");
    });
}

#[test]
fn a_partly_leased_request_is_decided_by_redis_and_respects_outstanding_leases() {
    run(async {
        let server = RedisServer::start();
        let (store, leased) = node(server.url(), "16/d burst 1600").await;
        store.configure(
            &leased,
            LimitOptions::new().lease(Some(Duration::from_secs(3_600))),
        );
        let exact = store.limit("exact", limit("1000000/s")).unwrap();
        for _ in 0..100 {
            let _ = store.decide(&[Ask::new(&leased, "x")]).await;
        }
        let granted = store.status().counts.leases.granted;
        assert!(granted > 0);
        let mut together = 0;
        loop {
            let verdict = store
                .decide(&[Ask::new(&leased, "x"), Ask::new(&exact, "x")])
                .await;
            assert_eq!(verdict.source(), Source::Redis);
            if verdict.is_denied() {
                break;
            }
            together += 1;
        }
        let counts = store.status().counts.leases;
        let by_redis = 100 - counts.spent;
        // Outstanding leases and what Redis allowed are the whole burst.
        assert_eq!(together + counts.granted + by_redis, 1_600, "{counts:?}");
        // Leases are spent even though Redis has nothing left.
        let verdict = store.decide(&[Ask::new(&leased, "x")]).await;
        assert!(
            verdict.is_allowed() && verdict.source() == Source::Lease,
            "{verdict:?}"
        );
    });
}

#[test]
fn requests_that_cannot_be_leased_ask_redis() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = node(server.url(), "1000/s burst 2000").await;
        until_leased(&store, &handle, "x").await;
        let ask = Ask::new(&handle, "x");
        for other in [
            ask.mode(Mode::Peek),
            ask.mode(Mode::Shadow),
            ask.cost(0),
            ask.cost(251),
            ask.reserve(5),
            ask.max_wait(Duration::from_millis(1)),
        ] {
            assert_eq!(
                store.decide(&[other]).await.source(),
                Source::Redis,
                "{other:?}"
            );
            assert!(!is_known(&store, &[other]));
        }
        for text in [
            "10/s burst 15",
            "1000/s burst 79",
            "100/s wait 1s",
            "100/s fixed_window_first_hit",
            "0",
        ] {
            let small = store.limit(text, limit(text)).unwrap();
            store.configure(&small, LimitOptions::new().lease(Some(STALENESS)));
            for _ in 0..20 {
                assert_eq!(
                    store.decide(&[Ask::new(&small, "x")]).await.source(),
                    Source::Redis,
                    "{text}"
                );
            }
        }
        let permits = store.concurrency("permits", 100).unwrap();
        store.configure(&permits, LimitOptions::new().lease(Some(STALENESS)));
        for _ in 0..20 {
            assert_eq!(
                store.decide(&[Ask::new(&permits, "x")]).await.source(),
                Source::Redis
            );
        }
    });
}

#[test]
fn a_settle_gives_back_to_the_lease_and_charges_more_in_redis() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = node(server.url(), "16/d burst 1600").await;
        store.configure(
            &handle,
            LimitOptions::new().lease(Some(Duration::from_secs(3_600))),
        );
        until_leased(&store, &handle, "x").await;
        let before = store.status().counts.leases.spent;
        let verdict = store.decide(&[Ask::new(&handle, "x").cost(1)]).await;
        assert_eq!(verdict.source(), Source::Lease);
        assert_eq!(store.status().counts.leases.spent, before + 1);
        store.settle(verdict, &[0]).await;
        assert_eq!(store.status().counts.leases.spent, before);
        let left = async || {
            let peek = store
                .decide(&[Ask::new(&handle, "x").mode(Mode::Peek)])
                .await;
            peek.results().next().unwrap().decision().remaining()
        };
        until_leased(&store, &handle, "x").await;
        let granted = store.status().counts.leases.granted;
        let there = left().await;
        let verdict = store.decide(&[Ask::new(&handle, "x").cost(1)]).await;
        assert_eq!(verdict.source(), Source::Lease);
        store.settle(verdict, &[11]).await;
        if store.status().counts.leases.granted == granted {
            assert_eq!(left().await, there - 10);
        }
        // A charge from before a change is not given back.
        let verdict = store.decide(&[Ask::new(&handle, "x").cost(1)]).await;
        assert_eq!(verdict.source(), Source::Lease);
        store.set_limit(&handle, limit("16/d burst 800"));
        store.settle(verdict, &[0]).await;
        assert_eq!(store.status().counts.not_returned, 1);
    });
}

#[test]
fn a_change_of_the_limit_or_back_to_exact_drops_leases() {
    run(async {
        let server = RedisServer::start();
        let (store, handle) = node(server.url(), "1000/s burst 2000").await;
        until_leased(&store, &handle, "x").await;
        store.set_limit(&handle, limit("1000/s burst 4000"));
        assert!(!is_known(&store, &[Ask::new(&handle, "x")]));
        until_leased(&store, &handle, "x").await;
        store.configure(
            &handle,
            LimitOptions::new().lease(Some(Duration::from_millis(200))),
        );
        assert!(!is_known(&store, &[Ask::new(&handle, "x")]));
        until_leased(&store, &handle, "x").await;
        // Setting the same again is not a change.
        store.configure(
            &handle,
            LimitOptions::new().lease(Some(Duration::from_millis(200))),
        );
        store.configure(&handle, LimitOptions::new().on_failure(OnFailure::Open));
        until_leased(&store, &handle, "x").await;
        store.configure(&handle, LimitOptions::new().lease(None));
        for _ in 0..100 {
            assert_eq!(
                store.decide(&[Ask::new(&handle, "x")]).await.source(),
                Source::Redis
            );
        }
    });
}

#[test]
fn leases_are_spent_first_when_redis_is_down() {
    run(async {
        for (then, source) in [
            (OnFailure::Closed, Source::Closed),
            (OnFailure::Open, Source::Open),
            (OnFailure::LocalShare, Source::LocalShare),
        ] {
            let server = RedisServer::start();
            let store = RedisStore::builder(server.url())
                .timeout(LONG)
                .connect()
                .await
                .unwrap();
            let handle = store.limit("leased", limit("100/min burst 8000")).unwrap();
            store.configure(&handle, LimitOptions::new().on_failure(then));
            store.configure(
                &handle,
                LimitOptions::new().lease(Some(Duration::from_secs(600))),
            );
            for _ in 0..2_000 {
                let _ = store.decide(&[Ask::new(&handle, "x")]).await;
            }
            until_leased(&store, &handle, "x").await;
            server.kill();
            let mut held = 0;
            let begin = Instant::now();
            loop {
                let verdict = store.decide(&[Ask::new(&handle, "x")]).await;
                if verdict.source() == source {
                    break;
                }
                assert_eq!(verdict.source(), Source::Lease);
                held += u64::from(verdict.is_allowed());
                assert!(begin.elapsed() < common::MAX_WAIT, "{:?}", store.status());
            }
            println!("{then}: {held} spent without Redis");
            assert!(held > 0);
            let counts = store.status().counts.leases;
            assert!(counts.spent <= counts.granted, "{counts:?}");
        }
    });
}

#[test]
fn an_engine_decides_leased_keys_without_a_future() {
    run(async {
        let server = RedisServer::start();
        let config = format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\n[[policy]]\nname = \"api\"\nkey = [\"user\"]\n\
             limit = \"16/d burst 1600\"\nmode = \"leased\"\nstaleness = \"60s\"\n\
             [[policy]]\nname = \"login\"\nmatch = {{ path = \"/login\" }}\nkey = [\"user\"]\nlimit = \"1000/s\"\n",
            server.url()
        );
        let config = Config::parse("ratekeeper.toml", &config, [])
            .config
            .unwrap();
        let engine = Engine::new(connect(server.url()).await, config.policies.clone()).unwrap();
        let read = Subject::new().user("ann");
        let login = Subject::new().user("ann").path("/login");
        let begin = Instant::now();
        while engine.try_decide(&read).is_pending() {
            // Waiting callers are answered, and a lease is requested.
            assert!(engine.decide(&read).await.is_allowed());
            assert!(
                begin.elapsed() < common::MAX_WAIT,
                "{:?}",
                engine.store().status()
            );
        }
        let MaybeReady::Ready(verdict) = engine.try_decide(&read) else {
            panic!("it is leased")
        };
        assert_eq!(
            (verdict.is_allowed(), verdict.source()),
            (true, Source::Lease)
        );
        assert_eq!(engine.decide(&read).await.source(), Source::Lease);
        // One of its limits is exact, so all of it is. And a peek asks Redis.
        assert!(engine.try_decide(&login).is_pending());
        assert_eq!(engine.decide(&login).await.source(), Source::Redis);
        assert_eq!(engine.peek(&read).await.source(), Source::Redis);
        // Back to exact.
        let exact = Policies::new().policy(
            Policy::new("api")
                .key(Attribute::User)
                .limit(limit("16/d burst 1600")),
        );
        engine.set_policies(exact).unwrap();
        assert!(engine.try_decide(&read).is_pending());
        assert_eq!(engine.decide(&read).await.source(), Source::Redis);
    });
}
