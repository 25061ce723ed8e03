//! Leased mode when Redis fails: only leases are spent, no caller hangs, and it continues when
//! Redis is back. A fault can add as much as in exact mode: a burst for each key that Redis lost.

mod common;

use common::{MAX_WAIT, limit, load_time, now, run, until};
use ratekeeper::{
    Ask, Store, store::LimitHandle, store::LimitOptions, store::OnFailure, store::Source,
};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::auditor::{Admission, Bound};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisSentinels, RedisServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const NODES: usize = 3;
const BURST: u64 = 500;
const LIMITS: [(&str, Bound); 2] = [
    (
        "2000/s burst 500",
        Bound::TokenBucket {
            count: 2_000,
            period: 1_000_000,
            burst: BURST,
        },
    ),
    (
        "500/250ms fixed_window",
        Bound::FixedWindow {
            limit: BURST,
            window: 250_000,
        },
    ),
];
/// A busy machine answers within this.
const TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Caller {
    ended: AtomicU64,
    /// When Redis or a lease last allowed a request.
    admitted: AtomicU64,
    longest: AtomicU64,
}

/// Three nodes at these URLs under load, through a fault. `lost`: how often Redis may have lost its
/// keys.
async fn run_fault(
    urls: [&str; NODES],
    begin: impl AsyncFnOnce(),
    end: impl AsyncFnOnce(),
    lost: u64,
) {
    let mut nodes: Vec<(RedisStore, Vec<LimitHandle>)> = Vec::new();
    for url in urls {
        let store = RedisStore::builder(url)
            .timeout(TIMEOUT)
            .on_failure(OnFailure::Closed)
            .connect()
            .await
            .unwrap();
        let limits = LIMITS
            .map(|(text, _)| store.limit(text, limit(text)).unwrap())
            .to_vec();
        let options = LimitOptions::new().lease(Some(Duration::from_millis(100)));
        for limit in &limits {
            store.configure(limit, options.clone());
        }
        nodes.push((store, limits));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<Arc<Caller>> = (0..2 * NODES).map(|_| Arc::default()).collect();
    let tasks: Vec<_> = callers
        .iter()
        .enumerate()
        .map(|(number, caller)| {
            let (store, limits) = nodes[number % NODES].clone();
            let caller = Arc::clone(caller);
            let stop = Arc::clone(&stop);
            tokio::spawn(call(store, limits, caller, stop))
        })
        .collect();
    let all_admitted = async |what: &str| {
        let since = now();
        until(what, || {
            callers
                .iter()
                .all(|caller| caller.admitted.load(Relaxed) > since)
        })
        .await
    };
    all_admitted("every caller is admitted").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    begin().await;
    tokio::time::sleep(load_time(Duration::from_millis(400))).await;
    let before: Vec<u64> = callers
        .iter()
        .map(|caller| caller.ended.load(Relaxed))
        .collect();
    let go_on = || {
        callers
            .iter()
            .zip(&before)
            .all(|(caller, before)| caller.ended.load(Relaxed) > before + 3)
    };
    until("every caller is answered during the fault", go_on).await;
    end().await;
    let recovered = all_admitted("every caller is admitted again").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Relaxed);
    let mut admitted = [Vec::new(), Vec::new()];
    for task in tasks {
        let log = task.await.unwrap();
        log.into_iter()
            .for_each(|(at, admission)| admitted[at].push(admission));
    }
    let longest = callers
        .iter()
        .map(|caller| caller.longest.load(Relaxed))
        .max()
        .unwrap_or(0);
    println!("recovered after {recovered:.1?}, the longest decision took {longest} µs");
    let leases: Vec<_> = nodes
        .iter()
        .map(|(store, _)| store.status().counts.leases)
        .collect();
    for ((text, bound), admitted) in LIMITS.into_iter().zip(&admitted) {
        let report = bound
            .check(admitted, lost * BURST)
            .unwrap_or_else(|broken| panic!("{text}: {broken}"));
        println!("{text}: {report:?}");
        assert!(report.admitted > BURST, "{text}: {report:?}");
    }
    assert!(
        leases
            .iter()
            .all(|leases| leases.spent <= leases.granted && leases.spent > 0),
        "{leases:?}"
    );
    assert!(longest < MAX_WAIT.as_micros() as u64);
}

async fn call(
    store: RedisStore,
    limits: Vec<LimitHandle>,
    caller: Arc<Caller>,
    stop: Arc<AtomicBool>,
) -> Vec<(usize, Admission)> {
    let mut log = Vec::new();
    for turn in 0_usize.. {
        if stop.load(Relaxed) {
            break;
        }
        let at = turn % limits.len();
        let sent = now();
        let verdict = store.decide(&[Ask::new(&limits[at], "key")]).await;
        let answered = now().max(sent);
        caller.longest.fetch_max(answered - sent, Relaxed);
        caller.ended.fetch_add(1, Relaxed);
        if verdict.is_allowed() {
            assert!(
                matches!(verdict.source(), Source::Lease | Source::Redis),
                "{verdict:?}"
            );
            caller.admitted.store(sent, Relaxed);
            log.push((at, Admission::between(sent, answered, 1)));
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
    log
}

#[test]
fn killed_and_restarted_empty() {
    run(async {
        let server = RedisServer::start();
        run_fault(
            [server.url(); NODES],
            async || server.kill(),
            async || server.restart(),
            1,
        )
        .await;
    });
}

#[test]
fn killed_and_restarted_with_its_data() {
    run(async {
        let server = RedisServer::builder().aof(true).start();
        run_fault(
            [server.url(); NODES],
            async || server.kill(),
            async || server.restart(),
            0,
        )
        .await;
    });
}

#[test]
fn stopped_and_continued() {
    run(async {
        let server = RedisServer::start();
        run_fault(
            [server.url(); NODES],
            async || server.stop_signal(),
            async || server.cont(),
            0,
        )
        .await;
    });
}

#[test]
fn all_keys_are_flushed() {
    run(async {
        let server = RedisServer::start();
        let flush = async || drop(server.command(&["FLUSHALL"]));
        run_fault([server.url(); NODES], flush, async || {}, 1).await;
    });
}

/// All nodes behind one network, or one of them.
async fn network(fault: Fault, one: bool) {
    let server = RedisServer::start();
    let proxy = FaultProxy::to(server.port());
    let direct = server.url();
    let through = proxy.url();
    let urls = if one {
        [direct, direct, &through]
    } else {
        [&*through; NODES]
    };
    run_fault(
        urls,
        async || proxy.set(fault),
        async || proxy.set(Fault::None),
        0,
    )
    .await;
}

#[test]
fn the_network_is_cut() {
    run(network(Fault::Cut, false));
}

#[test]
fn one_of_three_is_cut_off() {
    run(network(Fault::Cut, true));
}

#[test]
fn replies_are_lost() {
    run(network(Fault::DropReplies, false));
}

#[test]
fn requests_are_lost() {
    run(network(Fault::DropRequests, false));
}

#[test]
fn replies_are_garbage() {
    run(network(Fault::Garble, false));
}

#[test]
fn replies_are_late() {
    run(network(Fault::Delay(Duration::from_millis(50)), false));
}

#[test]
fn replies_take_longer_than_the_timeout() {
    run(network(Fault::Delay(Duration::from_millis(700)), false));
}

/// The clock of Redis is stepped, by a multiple of the window.
fn stepped(by: u64, forward: bool, lost: u64) {
    run(async {
        let server = RedisServer::builder().clock_file(true).start();
        let step = async || server.step_clock(Duration::from_secs(by), forward);
        run_fault([server.url(); NODES], step, async || {}, lost).await;
    });
}

#[test]
fn its_clock_is_stepped_forward() {
    stepped(5, true, 1);
}

#[test]
fn its_clock_is_stepped_back_and_catches_up() {
    stepped(2, false, 0);
}

#[test]
fn its_clock_is_stepped_back_by_an_hour() {
    stepped(3_600, false, 0);
}

/// The slot of the bucket in a Cluster.
fn slot(cluster: &RedisCluster) -> u16 {
    cluster.slot(&cluster.keys("ratekeeper:2000*")[0].1)
}

/// `behind`: whether its replica has missed the last changes.
async fn a_primary_dies(behind: bool) {
    let cluster = RedisCluster::start();
    let url = cluster.url();
    let fate = std::cell::OnceCell::new();
    let begin = async || {
        let slot = slot(&cluster);
        let victim = cluster.primary(slot);
        let replica = cluster.replica_of(victim);
        if behind {
            replica.stop_signal();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        victim.kill();
        replica.cont();
        fate.set((slot, victim.port())).unwrap();
    };
    let end = async || {
        let (slot, port) = fate.get().unwrap();
        tokio::task::block_in_place(|| cluster.await_other_primary(*slot, *port));
    };
    run_fault([&url; NODES], begin, end, 1).await;
}

#[test]
fn a_primary_of_a_cluster_dies() {
    run(a_primary_dies(false));
}

#[test]
fn a_primary_of_a_cluster_dies_whose_replica_is_behind() {
    run(a_primary_dies(true));
}

#[test]
fn the_slots_of_a_cluster_move() {
    run(async {
        let cluster = RedisCluster::start();
        let url = cluster.url();
        let moves = std::cell::OnceCell::new();
        let begin = async || {
            let slot = slot(&cluster);
            let from = cluster.primary(slot).port();
            let to = cluster.nodes()[..3]
                .iter()
                .find(|node| node.port() != from)
                .unwrap();
            cluster.begin_move(slot, to);
            moves.set((slot, to)).unwrap();
        };
        let end = async || {
            let (slot, to) = moves.get().unwrap();
            cluster.end_move(*slot, to);
        };
        run_fault([&url; NODES], begin, end, 0).await;
    });
}

#[test]
fn the_sentinels_name_another_primary() {
    run(async {
        let all = RedisSentinels::start();
        let url = all.url();
        let victim = &all.servers()[0];
        let end = async || {
            tokio::task::block_in_place(|| all.await_other_primary(victim.port()));
        };
        run_fault([&url; NODES], async || victim.kill(), end, 1).await;
    });
}

/// When a stopped Redis continues, it reads the requests sent meanwhile, which have timed out.
/// Leases for them would not be spent, and that much of the rate would be lost.
#[test]
fn a_redis_that_hangs_repeatedly_grants_no_leases_to_expired_requests() {
    const TEXT: &str = "1000/s burst 200";
    const RATE: f64 = 1_000.0;
    const FULL: u64 = 200;
    const HALF: Duration = Duration::from_millis(300);
    run(async {
        let server = RedisServer::start();
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            let builder = RedisStore::builder(server.url()).timeout(Duration::from_millis(20));
            let store = builder.nodes(NODES as u64).connect().await.unwrap();
            let handle = store.limit(TEXT, limit(TEXT)).unwrap();
            store.configure(
                &handle,
                LimitOptions::new().lease(Some(Duration::from_millis(100))),
            );
            nodes.push((store, handle));
        }
        until("all know each other", || {
            nodes
                .iter()
                .all(|(store, _)| store.status().nodes == NODES as u64)
        })
        .await;
        let stop = Arc::new(AtomicBool::new(false));
        let callers = nodes
            .iter()
            .cycle()
            .take(2 * NODES)
            .cloned()
            .map(|(store, handle)| {
                let stop = Arc::clone(&stop);
                tokio::spawn(async move {
                    let mut admitted = 0;
                    while !stop.load(Relaxed) {
                        admitted +=
                            u64::from(store.decide(&[Ask::new(&handle, "key")]).await.is_allowed());
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    admitted
                })
            });
        let callers = callers.collect::<Vec<_>>();
        let began = now();
        let lasts = load_time(Duration::from_secs(4));
        while now() - began < lasts.as_micros() as u64 {
            tokio::time::sleep(HALF).await;
            server.stop_signal();
            tokio::time::sleep(HALF).await;
            server.cont();
        }
        let rate = RATE * (now() - began) as f64 / 1e6;
        stop.store(true, Relaxed);
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.unwrap();
        }
        let part = (admitted - FULL) as f64 / rate;
        println!(
            "{admitted} admitted, a burst of {FULL} and {:.0} % of the rate",
            100.0 * part
        );
        assert!(part > 0.85, "{part}");
    });
}
