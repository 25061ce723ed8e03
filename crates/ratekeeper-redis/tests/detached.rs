//! Verdicts that are detached and settled once, by any node.

mod common;

use common::{connect, limit, run, until, until_redis};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratekeeper::{
    Ask, Mode, Store, Verdict, store::AskOutcome, store::LimitHandle, store::SettleError,
    store::Source,
};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::{Fault, FaultProxy, RedisServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

async fn remaining(store: &RedisStore, limit: &LimitHandle) -> u64 {
    let seen = store
        .decide(&[Ask::new(limit, "ann").cost(0).mode(Mode::Peek)])
        .await;
    assert_eq!(seen.source(), Source::Redis);
    seen.results().next().unwrap().decision().remaining()
}

#[test]
fn any_node_settles_a_receipt_once() {
    run(async {
        let server = RedisServer::start();
        let [first, second] = [connect(server.url()).await, connect(server.url()).await];
        let [here, there] = [&first, &second].map(|store| {
            (
                store.limit("tokens", limit("10/d")).unwrap(),
                store.limit("all", limit("10/d sliding_log")).unwrap(),
            )
        });
        let asks = [
            Ask::new(&here.0, "ann").cost(4),
            Ask::new(&here.1, "").cost(2),
        ];
        let verdict = first.decide(&asks).await;
        let receipt = first.detach(verdict, first.now() + MINUTE).await.unwrap();
        assert_eq!(remaining(&second, &there.0).await, 6);
        // Many concurrent settles on both nodes: exactly one of them succeeds.
        let settling: Vec<_> = (0..16)
            .map(|at| {
                let store = if at % 2 == 0 {
                    first.clone()
                } else {
                    second.clone()
                };
                let receipt = receipt.clone();
                tokio::spawn(async move { store.settle_detached(&receipt, &[1, 2]).await })
            })
            .collect();
        let mut settled = Vec::new();
        for one in settling {
            settled.push(one.await.unwrap());
        }
        assert_eq!(
            settled.iter().filter(|one| one.is_ok()).count(),
            1,
            "{settled:?}"
        );
        assert!(
            settled
                .iter()
                .all(|one| matches!(one, Ok(()) | Err(SettleError::AlreadySettled))),
            "{settled:?}"
        );
        assert_eq!(
            (
                remaining(&first, &here.0).await,
                remaining(&second, &there.0).await
            ),
            (9, 9)
        );
        let marks = server.command(&["KEYS", "ratekeeper:settled:*"]);
        assert_eq!(marks.items().len(), 2, "{marks:?}");
    });
}

#[test]
fn a_charge_equal_to_the_cost_is_settled_too() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let tokens = store.limit("tokens", limit("10/d")).unwrap();
        let verdict = store.decide(&[Ask::new(&tokens, "ann").cost(4)]).await;
        let receipt = store.detach(verdict, store.now() + MINUTE).await.unwrap();
        assert_eq!(store.settle_detached(&receipt, &[4]).await, Ok(()));
        assert_eq!(
            store.settle_detached(&receipt, &[0]).await,
            Err(SettleError::AlreadySettled)
        );
        assert_eq!(remaining(&store, &tokens).await, 6);
        // Also an empty verdict.
        let nothing = store.decide(&[]).await;
        let receipt = store.detach(nothing, store.now() + MINUTE).await.unwrap();
        assert_eq!(store.settle_detached(&receipt, &[]).await, Ok(()));
        assert_eq!(
            store.settle_detached(&receipt, &[]).await,
            Err(SettleError::AlreadySettled)
        );
    });
}

#[test]
fn a_limit_that_differs_on_the_settling_node_is_not_refunded() {
    run(async {
        let server = RedisServer::start();
        let [first, second] = [connect(server.url()).await, connect(server.url()).await];
        let here = first.limit("tokens", limit("10/d")).unwrap();
        drop(second.limit("tokens", limit("10/d burst 8")).unwrap());
        let verdict = first.decide(&[Ask::new(&here, "ann").cost(4)]).await;
        let receipt = first.detach(verdict, first.now() + MINUTE).await.unwrap();
        assert_eq!(second.settle_detached(&receipt, &[0]).await, Ok(()));
        assert_eq!(
            (
                remaining(&first, &here).await,
                second.status().counts.not_returned
            ),
            (6, 4)
        );
    });
}

#[test]
fn detached_permits_are_held_until_settled_without_their_node() {
    run(async {
        let server = RedisServer::start();
        let second = connect(server.url()).await;
        let there = second.concurrency("slots", 2).unwrap();
        let mut receipts = Vec::new();
        {
            let first = connect(server.url()).await;
            let here = first.concurrency("slots", 2).unwrap();
            for _ in 0..2 {
                let verdict = first.decide(&[Ask::new(&here, "ann")]).await;
                assert!(verdict.is_allowed());
                receipts.push(
                    first
                        .detach(verdict, first.now() + 60 * MINUTE)
                        .await
                        .unwrap(),
                );
            }
        }
        let slots = server.command(&["KEYS", "ratekeeper:slots:c:*"]);
        let lives = || {
            server
                .command(&["PTTL", slots.items()[0].text().unwrap()])
                .int()
                .unwrap()
        };
        let lives_so = lives();
        assert!(
            lives_so > 3_000_000,
            "{lives_so} ms: they are not renewed and are held for an hour"
        );
        // A request that takes and releases a permit, and one that is denied, do not affect them.
        second.set_concurrency(&there, 3);
        drop(second.decide(&[Ask::new(&there, "ann")]).await);
        assert!(
            second
                .decide(&[Ask::new(&there, "ann").cost(2)])
                .await
                .is_denied()
        );
        assert!(lives() > 3_000_000, "{} ms", lives());
        for (receipt, left) in receipts.iter().zip([2, 3]) {
            assert_eq!(second.settle_detached(receipt, &[]).await, Ok(()));
            assert_eq!(
                second.settle_detached(receipt, &[]).await,
                Err(SettleError::AlreadySettled)
            );
            assert_eq!(remaining(&second, &there).await, left);
        }
    });
}

#[test]
fn a_receipt_expires_by_the_clock_of_the_settling_node() {
    run(async {
        let server = RedisServer::start();
        let store = connect(server.url()).await;
        let slots = store.concurrency("slots", 1).unwrap();
        let verdict = store.decide(&[Ask::new(&slots, "ann")]).await;
        let receipt = store.detach(verdict, store.now()).await.unwrap();
        assert_eq!(
            store.settle_detached(&receipt, &[]).await,
            Err(SettleError::Expired)
        );
        assert_eq!(
            store.settle_detached(b"", &[]).await,
            Err(SettleError::InvalidReceipt)
        );
        assert_eq!(
            remaining(&store, &slots).await,
            1,
            "it was given back by itself"
        );
    });
}

#[test]
fn without_redis_only_the_deciding_node_settles() {
    run(async {
        let server = RedisServer::start();
        let [first, second] = [connect(server.url()).await, connect(server.url()).await];
        let here = first.limit("tokens", limit("1000/s fixed_window")).unwrap();
        drop(
            second
                .limit("tokens", limit("1000/s fixed_window"))
                .unwrap(),
        );
        let shared = first.decide(&[Ask::new(&here, "ann").cost(4)]).await;
        let shared = first.detach(shared, first.now() + MINUTE).await.unwrap();
        server.kill();
        let verdict = first.decide(&[Ask::new(&here, "ann").cost(4)]).await;
        assert_eq!(verdict.source(), Source::LocalShare);
        let receipt = first.detach(verdict, first.now() + MINUTE).await.unwrap();
        assert_eq!(
            second.settle_detached(&receipt, &[0]).await,
            Err(SettleError::UnknownCharge)
        );
        assert_eq!(first.settle_detached(&receipt, &[0]).await, Ok(()));
        assert_eq!(
            first.settle_detached(&receipt, &[0]).await,
            Err(SettleError::AlreadySettled)
        );
        assert_eq!(
            second.settle_detached(&shared, &[0]).await,
            Err(SettleError::Unreachable)
        );
    });
}

/// The connection breaks after Redis has settled and before it has answered: the repeated call
/// finds it done.
#[test]
fn a_settle_sent_twice_is_executed_once() {
    run(async {
        let server = RedisServer::start();
        let proxy = FaultProxy::to(server.port());
        let store = connect(&proxy.url()).await;
        let tokens = store.limit("tokens", limit("10/d")).unwrap();
        // Redis has loaded the script.
        store.grant(&tokens, b"ann", 0).await;
        let verdict = store.decide(&[Ask::new(&tokens, "ann").cost(4)]).await;
        let receipt = store.detach(verdict, store.now() + MINUTE).await.unwrap();
        proxy.set(Fault::DropReplies);
        let settling = {
            let store = store.clone();
            let receipt = receipt.clone();
            tokio::spawn(async move { store.settle_detached(&receipt, &[1]).await })
        };
        until("Redis has settled it", || {
            !server
                .command(&["KEYS", "ratekeeper:settled:*"])
                .items()
                .is_empty()
        })
        .await;
        proxy.set(Fault::None);
        // On a machine that takes a second for this, the settle times out.
        let settled = settling.await.unwrap();
        assert!(
            matches!(settled, Ok(()) | Err(SettleError::Unreachable)),
            "{settled:?}"
        );
        until_redis(&store, &tokens).await;
        assert_eq!(
            store.settle_detached(&receipt, &[0]).await,
            Err(SettleError::AlreadySettled)
        );
        assert_eq!(remaining(&store, &tokens).await, 9);
    });
}

/// Limits of every algorithm. A dash marks a concurrency limit.
const LIMITS: [&str; 9] = [
    "10/s burst 5",
    "1/min burst 3",
    "10/s wait 250ms",
    "4/s fixed_window",
    "4/s fixed_window_first_hit",
    "5/s sliding_window",
    "6/s sliding_window_strict",
    "4/s sliding_log",
    "- 3",
];

/// A limit, a key, a cost, a mode.
type Asked = (usize, u8, u64, Mode);

#[derive(Clone, Debug)]
enum Step {
    Decide(Vec<Asked>),
    Settle(usize, Vec<u64>),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let mode =
        prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Peek)];
    prop_oneof![
        8 => prop::collection::vec((0..3_usize, 0..2_u8, 0..4_u64, mode), 1..4).prop_map(Step::Decide),
        4 => (0..8_usize, prop::collection::vec(0..6_u64, 0..4)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        // Permits that their node does not renew expire, and the given time renews none.
        4 => (0..150_000_u64).prop_map(Step::Advance),
    ]
}

fn answer_of(verdict: &Verdict) -> Vec<(AskOutcome, u64, Option<Duration>, Duration)> {
    let one = |status: &ratekeeper::store::AskResult| {
        let decision = status.decision();
        (
            status.outcome(),
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
        )
    };
    verdict.results().map(one).collect()
}

/// The same trace twice on the same servers: settled by the same node, and detached and settled by
/// another one.
#[test]
fn settling_later_on_another_node_equals_settling_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = RedisServer::start();
    let time = Arc::new(AtomicU64::new(0));
    let [first, second] = [0, 1].map(|_| {
        let store = RedisStore::builder(server.url()).timeout(Duration::from_secs(10));
        runtime
            .block_on(store.given_time(Arc::clone(&time)).connect())
            .unwrap()
    });
    let cases = AtomicU64::new(0);
    let trace = |limits: [usize; 3], steps: Vec<Step>| {
        let case = cases.fetch_add(1, Ordering::Relaxed);
        let register = |store: &RedisStore, world: &str, at: usize| {
            let name = format!("{case}-{world}-{at}");
            let limit = LIMITS[limits[at]];
            match limit.strip_prefix("- ") {
                Some(most) => store.concurrency(&name, most.parse().unwrap()).unwrap(),
                None => store.limit(&name, limit.parse().unwrap()).unwrap(),
            }
        };
        let here = [0, 1, 2].map(|at| register(&first, "here", at));
        let there = [0, 1, 2].map(|at| register(&first, "there", at));
        // The other node knows the limits by their names.
        drop([0, 1, 2].map(|at| register(&second, "there", at)));
        let mut now = 1_700_000_000_000_000_u64;
        let mut kept: Vec<(Verdict, Vec<u8>)> = Vec::new();
        runtime.block_on(async {
            for step in steps {
                time.store(now, Ordering::Relaxed);
                match step {
                    Step::Advance(by) => now += by,
                    Step::Decide(asked) => {
                        let keys: Vec<[u8; 1]> = asked.iter().map(|(_, key, ..)| [*key]).collect();
                        let asks = |handles| {
                            let ask = |((limit, _, cost, mode), key): (&Asked, _)| {
                                let handles: &[LimitHandle; 3] = handles;
                                Ask::new(&handles[*limit], key).cost(*cost).mode(*mode)
                            };
                            asked.iter().zip(&keys).map(ask).collect::<Vec<_>>()
                        };
                        let mine = first.decide(&asks(&here)).await;
                        let theirs = first.decide(&asks(&there)).await;
                        prop_assert_eq!(answer_of(&mine), answer_of(&theirs));
                        let receipt = first
                            .detach(theirs, first.now() + 60 * MINUTE)
                            .await
                            .unwrap();
                        kept.push((mine, receipt));
                    }
                    Step::Settle(which, actual) if which < kept.len() => {
                        let (mine, receipt) = kept.swap_remove(which);
                        first.settle(mine, &actual).await;
                        prop_assert_eq!(second.settle_detached(&receipt, &actual).await, Ok(()));
                        let again = first.settle_detached(&receipt, &[0; 4]).await;
                        prop_assert_eq!(again, Err(SettleError::AlreadySettled));
                    }
                    Step::Settle(..) => {}
                }
            }
            Ok(())
        })
    };
    let traces = (
        [0..LIMITS.len(), 0..LIMITS.len(), 0..LIMITS.len()],
        prop::collection::vec(step(), 1..40),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 128,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    });
    runner
        .run(&traces, |(limits, steps)| trace(limits, steps))
        .unwrap();
}
