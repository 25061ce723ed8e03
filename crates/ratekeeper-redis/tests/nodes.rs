//! P1 over a fleet: what 1, 3 or 8 nodes allow together keeps the bound of each algorithm, with no
//! allowance; and they allow what they may.

mod common;

use common::{ALGORITHMS, Event, Load, Pace, check_bound_by_key, connect, limit, load_time, run};
use ratekeeper::{Ask, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use ratekeeper_testkit::auditor::{Bound, PermitInterval, check_permits};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const KEYS: usize = 2;
/// The callers of all nodes together.
const CALLERS: usize = 24;

/// What all nodes have allowed of a limit under a load, and for how long.
async fn admitted(text: &str, nodes: usize, pace: Pace) -> (Vec<Event>, Duration) {
    let server = RedisServer::start();
    let mut fleet: Vec<(RedisStore, Vec<LimitHandle>)> = Vec::new();
    for _ in 0..nodes {
        let store = connect(server.url()).await;
        let handle = store.limit("one", limit(text)).unwrap();
        fleet.push((store, vec![handle]));
    }
    let load = Load::start(&fleet, CALLERS / nodes, KEYS, pace);
    let began = load.began;
    tokio::time::sleep(load_time(Duration::from_millis(500))).await;
    let events = load.finish().await;
    let lasted = Duration::from_micros(common::now() - began);
    (events, lasted)
}

/// The least that a saturating load gets of one key: half of what is allowed.
fn fair_share(bound: Bound, lasted: Duration) -> u64 {
    let micros = lasted.as_micros() as u64;
    match bound {
        Bound::TokenBucket {
            count,
            period,
            burst,
        } => (burst + count * micros / period) / 2,
        Bound::Pacing { count, period } => count * micros / period / 2,
        // A strict window is up to a tenth longer, and a sliding one counts what came before.
        Bound::SlidingLog { limit, window }
        | Bound::FixedWindow { limit, window }
        | Bound::FirstHitWindow { limit, window }
        | Bound::EvictedFirstHitWindow { limit, window }
        | Bound::SlidingCounter { limit, window } => limit * (micros / window) / 2,
    }
}

fn check(nodes: usize) {
    for (text, bound) in ALGORITHMS {
        for pace in [Pace::Saturated, Pace::Bursts] {
            let (events, lasted) = run(admitted(text, nodes, pace));
            assert!(
                events.iter().all(|event| event.source == Source::Redis),
                "{text}: Redis did not decide"
            );
            let report = check_bound_by_key(bound, &events, 0)
                .unwrap_or_else(|violation| panic!("{text}, {nodes} nodes: {violation}"));
            println!("{text}, {nodes} nodes, {pace:?}: {report:?} in {lasted:.1?}");
            if pace == Pace::Saturated {
                let least = KEYS as u64 * fair_share(bound, lasted);
                assert!(
                    report.admitted >= least,
                    "{text}, {nodes} nodes: {report:?}, not even {least}"
                );
            }
            if nodes > 1 {
                let seen = (0..nodes)
                    .filter(|node| events.iter().any(|event| event.node == *node))
                    .count();
                assert!(seen > 1, "{text}: only one node was admitted anything");
            }
        }
    }
}

#[test]
fn one_node_keeps_the_bound() {
    check(1);
}

#[test]
fn three_nodes_together_keep_the_bound() {
    check(3);
}

#[test]
fn eight_nodes_together_keep_the_bound() {
    check(8);
}

/// Permits that were certainly in use, by callers that take one and release it after a while.
async fn held(nodes: usize, most: u64) -> Vec<PermitInterval> {
    let server = RedisServer::start();
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for _ in 0..nodes {
        let store = connect(server.url()).await;
        let handle = store.concurrency("few", most).unwrap();
        for number in 0..CALLERS / nodes {
            let store = store.clone();
            let handle = handle.clone();
            let stop = Arc::clone(&stop);
            callers.push(tokio::spawn(async move {
                let mut holds = Vec::new();
                let cost = 1 + number as u64 % 2;
                while !stop.load(Relaxed) {
                    let verdict = store.decide(&[Ask::new(&handle, "key").cost(cost)]).await;
                    let from = common::now();
                    assert_eq!(verdict.source(), Source::Redis);
                    if verdict.is_allowed() {
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        holds.push(PermitInterval {
                            from,
                            until: common::now(),
                            cost,
                        });
                    }
                }
                holds
            }));
        }
    }
    tokio::time::sleep(load_time(Duration::from_millis(500))).await;
    stop.store(true, Relaxed);
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    all
}

#[test]
fn permits_never_exceed_the_limit() {
    for nodes in [1, 3, 8] {
        let holds = run(held(nodes, 5));
        let report = check_permits(5, &holds, 0)
            .unwrap_or_else(|violation| panic!("{nodes} nodes: {violation}"));
        println!("{nodes} nodes: {report:?}");
        assert!(report.admitted > 20, "hardly anything was held: {report:?}");
        assert!(
            report.slack.is_some_and(|slack| slack <= 2),
            "never nearly all of them: {report:?}"
        );
    }
}
