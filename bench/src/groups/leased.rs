//! Leased mode beside memory and exact mode: the cost of a decision, how many share a Redis call,
//! and how fairly nodes share a limit.

use super::Group;
use super::redis::{has_redis, script_calls};
use crate::harness::{Contestant, one_thread};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::{
    Ask, Limit, MemoryStore, Store, Verdict, store::LimitHandle, store::LimitOptions, store::Source,
};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub(super) const GROUP: Group = Group {
    name: "leased",
    about: "leases on Redis, 100 hot keys (1,000,000/s burst 2,000,000, staleness 1 s) from 4 nodes: beside memory and exact mode",
    run,
};

const NODES: usize = 4;
const KEYS: usize = 100;
const STALENESS: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_secs(2);
/// Callers of a node: in exact mode they wait together, so that they share calls.
const CALLERS: [usize; 2] = [4, 64];

type Node = (RedisStore, LimitHandle);

fn run(group: &'static str) -> Findings {
    if !has_redis() {
        println!("skipped: redis-server is not installed\n");
        return Findings {
            goals: goals(None, None),
            ..Findings::default()
        };
    }
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let hot = Limit::per_second(1_000_000).burst(2_000_000);
    let fleet = |name: &str, limit, staleness| -> Vec<Node> {
        (0..NODES)
            .map(|_| runtime.block_on(node(&server, name, limit, staleness)))
            .collect()
    };
    let (leased, exact) = (
        fleet("leased", hot, Some(STALENESS)),
        fleet("exact", hot, None),
    );
    let loads = [
        ("leased", &leased, CALLERS[0]),
        ("exact", &exact, CALLERS[1]),
    ]
    .map(|(competitor, nodes, callers)| (competitor, load(&server, nodes, callers)));
    let [memory, lease] = one_decision(&leased[0]);

    let lines = [("memory", memory), ("leased", lease)].map(|(competitor, nanos)| {
        vec![
            competitor.to_owned(),
            format!("{nanos:.1}"),
            format!("{:.2}", nanos / memory),
        ]
    });
    println!(
        "{}\n",
        table(
            &["a decision, one thread, 100 keys", "ns", "ratio"],
            lines.into_iter()
        )
    );
    let lines = loads.iter().map(
        |(
            competitor,
            Load {
                decided,
                calls,
                here,
            },
        )| {
            let rate = *decided as f64 / ROUND.as_secs_f64();
            let share = 100.0 * *here as f64 / (*decided).max(1) as f64;
            let each = *decided as f64 / (*calls).max(1) as f64;
            vec![
                (*competitor).to_owned(),
                format!("{rate:.0}"),
                calls.to_string(),
                format!("{each:.0}"),
                format!("{share:.1} %"),
            ]
        },
    );
    let header = [
        "4 nodes at once, 100 hot keys",
        "decisions/s",
        "calls of Redis",
        "decisions a call",
        "decided here",
    ];
    println!("{}\n", table(&header, lines));
    let fairness: Vec<(u64, f64)> = [20, 100, 500, 2_000]
        .map(|staleness| (staleness, runtime.block_on(fair(&server, staleness))))
        .into();
    let lines = fairness
        .iter()
        .map(|(staleness, index)| vec![format!("{staleness} ms"), format!("{index:.3}")]);
    println!(
        "{}\n",
        table(
            &[
                "4 nodes on one key of 10000/s burst 20000, staleness",
                "Jain's index"
            ],
            lines
        )
    );

    let mut found = Findings::default();
    let params = || object(json!({ "nodes": NODES, "keys": KEYS, "staleness_ms": 1_000 }));
    for (competitor, value) in [("memory", memory), ("leased", lease)] {
        let ratio_to = (competitor == "leased").then(|| Ratio {
            competitor: "memory".into(),
            ratio: lease / memory,
        });
        let row = "a decision, one thread".into();
        found.rows.push(Row {
            group,
            row,
            competitor: competitor.into(),
            value,
            unit: "ns",
            ratio_to,
            params: params(),
        });
    }
    let per_call = |load: &Load| load.decided as f64 / load.calls.max(1) as f64;
    for (competitor, load) in &loads {
        let row = "decisions a call of Redis".into();
        let (competitor, value) = ((*competitor).to_owned(), per_call(load));
        found.rows.push(Row {
            group,
            row,
            competitor,
            value,
            unit: "decisions",
            ratio_to: None,
            params: params(),
        });
    }
    for (staleness, value) in fairness {
        let row = format!("Jain's index of 4 nodes, staleness {staleness} ms");
        let competitor = "leased".into();
        found.rows.push(Row {
            group,
            row,
            competitor,
            value,
            unit: "index",
            ratio_to: None,
            params: params(),
        });
    }
    found.goals = goals(Some(lease / memory), Some(per_call(&loads[0].1)));
    found
}

fn goals(ratio: Option<f64>, per_call: Option<f64>) -> Vec<Goal> {
    let because = "redis-server is not installed";
    let goal = |text: &str, bound, measured| Goal {
        text: text.into(),
        bound,
        measured,
        because,
    };
    vec![
        goal(
            "a decision on a lease / in memory, one thread",
            Bound::AtMost(2.0),
            ratio,
        ),
        goal(
            "decisions a call of Redis, 100 hot keys from 4 nodes",
            Bound::AtLeast(100.0),
            per_call,
        ),
    ]
}

async fn node(server: &RedisServer, name: &str, limit: Limit, staleness: Option<Duration>) -> Node {
    let store = RedisStore::builder(server.url()).timeout(Duration::from_secs(10));
    let store = store.connect().await.expect("Redis answers");
    let handle = store.limit(name, limit).expect("a limit");
    store.configure(&handle, LimitOptions::new().lease(staleness));
    (store, handle)
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("user:{key}")).collect()
}

/// Returns nanoseconds of a decision in memory, and of one on a lease. What would have to ask Redis
/// does not wait for it here.
fn one_decision((store, handle): &Node) -> [f64; 2] {
    let memory = MemoryStore::new();
    let own = memory
        .limit("hot", Limit::per_second(1_000_000).burst(2_000_000))
        .expect("a limit");
    let keys: Arc<[String]> = keys().into();
    let fallbacks = Arc::new(AtomicU64::new(0));
    let missed = Arc::clone(&fallbacks);
    let (leased, limit, ours) = (store.clone(), handle.clone(), Arc::clone(&keys));
    let next_key = |index: &Cell<usize>| {
        index.set((index.get() + 1) % KEYS);
        index.get()
    };
    thread_local!(static KEY_INDEX: Cell<usize> = const { Cell::new(0) });
    let in_memory = move || {
        let key = &keys[KEY_INDEX.with(next_key)];
        let mut verdict = Verdict::new(Source::Memory);
        memory.try_decide(&[Ask::new(&own, key)], memory.now(), &mut verdict)
            && verdict.is_allowed()
    };
    let on_lease = move || {
        let key = &ours[KEY_INDEX.with(next_key)];
        let mut verdict = Verdict::new(Source::Lease);
        if leased.try_decide(&[Ask::new(&limit, key)], leased.now(), &mut verdict) {
            verdict.is_allowed()
        } else {
            missed.fetch_add(1, Relaxed) < u64::MAX
        }
    };
    let before = store.status().counts.leases.decisions;
    let times = one_thread(&[
        Contestant::new("memory", in_memory),
        Contestant::new("leased", on_lease),
    ]);
    let (here, fallbacks) = (
        store.status().counts.leases.decisions - before,
        fallbacks.load(Relaxed),
    );
    // Between its turns there are no calls, and its leases have expired.
    println!(
        "{fallbacks} of {} decisions had no lease\n",
        here + fallbacks
    );
    [times[0], times[1]]
}

/// The result of a load.
struct Load {
    decided: u64,
    /// Calls of Redis.
    calls: u64,
    /// Decisions without a call of Redis.
    here: u64,
}

/// Runs all nodes at once, each on a thread of its own.
fn load(server: &RedisServer, nodes: &[Node], callers: usize) -> Load {
    let before = script_calls(server);
    let (decided, here) = (AtomicU64::new(0), AtomicU64::new(0));
    let until = Instant::now() + ROUND;
    std::thread::scope(|threads| {
        for (store, handle) in nodes {
            let (decided, here) = (&decided, &here);
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                let keys: Arc<[String]> = keys().into();
                let tasks: Vec<_> = (0..callers)
                    .map(|caller| {
                        let (store, handle, keys) =
                            (store.clone(), handle.clone(), Arc::clone(&keys));
                        runtime.spawn(call(store, handle, keys, caller, until))
                    })
                    .collect();
                for task in tasks {
                    let (all, some) = runtime.block_on(task).expect("a caller");
                    decided.fetch_add(all, Relaxed);
                    here.fetch_add(some, Relaxed);
                }
            });
        }
    });
    Load {
        decided: decided.into_inner(),
        calls: script_calls(server) - before,
        here: here.into_inner(),
    }
}

async fn call(
    store: RedisStore,
    handle: LimitHandle,
    keys: Arc<[String]>,
    caller: usize,
    until: Instant,
) -> (u64, u64) {
    let (mut all, mut here) = (0_u64, 0_u64);
    for call in caller.. {
        if all.is_multiple_of(64) {
            if Instant::now() >= until {
                break;
            }
            tokio::task::yield_now().await;
        }
        let verdict = store.decide(&[Ask::new(&handle, &keys[call % KEYS])]).await;
        all += 1;
        here += u64::from(verdict.source() == Source::Lease);
    }
    (all, here)
}

/// Returns Jain's index of what four nodes allow when all have more demand than the limit: 1 if
/// they allow the same, 1/4 if one node allows everything.
async fn fair(server: &RedisServer, staleness: u64) -> f64 {
    const LONG: Duration = Duration::from_millis(2_500);
    let limit = Limit::per_second(10_000).burst(20_000);
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        let staleness = Duration::from_millis(staleness);
        nodes.push(
            node(
                server,
                &format!("fair {staleness:?}"),
                limit,
                Some(staleness),
            )
            .await,
        );
    }
    let begin = Instant::now();
    let tasks: Vec<_> = nodes
        .into_iter()
        .map(|(store, handle)| {
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while begin.elapsed() < LONG {
                    for _ in 0..20 {
                        let verdict = store.decide(&[Ask::new(&handle, "one")]).await;
                        // Not the first burst: the first node gets most of it.
                        admitted += u64::from(verdict.is_allowed() && begin.elapsed() > LONG / 5);
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                admitted
            })
        })
        .collect();
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.push(task.await.expect("a node") as f64);
    }
    let (sum, squares) = (
        admitted.iter().sum::<f64>(),
        admitted.iter().map(|x| x * x).sum::<f64>(),
    );
    sum * sum / (NODES as f64 * squares)
}
