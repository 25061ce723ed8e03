//! P6, one answer: the memory store and Redis decide the same trace alike, on one connection and on
//! several.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratekeeper::{
    Ask, Clock, Limit, ManualClock, MemoryStore, Mode, Store, Verdict, store::LimitHandle,
    store::Source,
};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::{RedisCluster, RedisServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One server and one store for all cases; each case has limits of its own.
struct Fleet {
    runtime: tokio::runtime::Runtime,
    store: RedisStore,
    time: Arc<AtomicU64>,
    cases: AtomicU64,
    _servers: Box<dyn std::any::Any>,
}

impl Fleet {
    fn start(connections: usize) -> Self {
        let server = RedisServer::start();
        let url = server.url().to_owned();
        Self::on(&url, "ratekeeper", connections, Box::new(server))
    }

    fn on(url: &str, prefix: &str, connections: usize, servers: Box<dyn std::any::Any>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let time = Arc::new(AtomicU64::new(0));
        let store = RedisStore::builder(url)
            .timeout(Duration::from_secs(10))
            .connections(connections);
        let store = store.prefix(prefix).given_time(Arc::clone(&time));
        let store = runtime.block_on(store.connect()).unwrap();
        Self {
            runtime,
            store,
            time,
            cases: AtomicU64::new(0),
            _servers: servers,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Decide(Vec<Asked>),
    Settle { which: usize, actual: Vec<u64> },
    Grant { limit: usize, key: u8, tokens: u64 },
    Reset { limit: usize, key: u8 },
    Advance(u64),
}

#[derive(Clone, Debug)]
struct Asked {
    limit: usize,
    key: u8,
    cost: u64,
    reserve: u64,
    mode: Mode,
    max_wait: Option<u64>,
}

/// Limits of every algorithm, small enough that traces reach all their edges. A dash marks a
/// concurrency limit.
const LIMITS: [&str; 19] = [
    "10/s burst 5 refundable",
    "3/s burst 4 refundable",
    "59/s burst 7 refundable",
    "10/s burst 5",
    "3/s burst 4",
    "7/ms",
    "1/min burst 3",
    "59/s burst 7",
    "10/s wait 250ms",
    "3/s queue 2",
    "4/s fixed_window",
    "4/s fixed_window_first_hit",
    "5/s sliding_window",
    "3/min sliding_window",
    "6/s sliding_window_strict",
    "4/s sliding_log",
    "0",
    "unlimited",
    "- 3",
];

/// How many of them, from the first, are refundable.
const REFUNDABLE: usize = 3;

/// The one that counts permits.
const IN_FLIGHT: usize = LIMITS.len() - 1;

fn asked() -> impl Strategy<Value = Asked> {
    let mode =
        prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Peek)];
    let cost = prop_oneof![6 => Just(1_u64), 3 => 0..5_u64, 1 => Just(u64::MAX)];
    let reserve = prop_oneof![6 => Just(0_u64), 2 => 0..6_u64];
    let max_wait = prop_oneof![4 => Just(None), 1 => (0..3_000_000_u64).prop_map(Some)];
    (0..3_usize, 0..2_u8, cost, reserve, mode, max_wait).prop_map(
        |(limit, key, cost, reserve, mode, max_wait)| Asked {
            limit,
            key,
            cost,
            reserve,
            mode,
            max_wait,
        },
    )
}

/// `settles` is the weight of settling, where deciding has 8.
fn step(settles: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(asked(), 1..4).prop_map(Step::Decide),
        settles => (0..8_usize, prop::collection::vec(0..7_u64, 0..4)).prop_map(|(which, actual)| Step::Settle { which, actual }),
        1 => (0..3_usize, 0..2_u8, 0..6_u64).prop_map(|(limit, key, tokens)| Step::Grant { limit, key, tokens }),
        1 => (0..3_usize, 0..2_u8).prop_map(|(limit, key)| Step::Reset { limit, key }),
        5 => prop_oneof![0..1_000_u64, 0..400_000_u64, 0..3_000_000_u64].prop_map(Step::Advance),
    ]
}

fn key(key: u8) -> [u8; 1] {
    [b'a' + key]
}

fn micros(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000)
}

/// The decision that a caller gets.
fn answer_of(verdict: &Verdict) -> impl PartialEq + std::fmt::Debug + use<> {
    let one = |status: &ratekeeper::store::AskResult| {
        let decision = status.decision();
        (
            status.outcome(),
            decision.capacity(),
            decision.remaining(),
            decision.retry_after().map(micros),
            micros(decision.reset_after()),
            micros(decision.delay()),
        )
    };
    (
        verdict.is_allowed(),
        verdict.binding(),
        verdict.results().map(one).collect::<Vec<_>>(),
    )
}

fn register(store: &impl Store, name: &str, limit: &str) -> LimitHandle {
    match limit.strip_prefix("- ") {
        Some(most) => store.concurrency(name, most.parse().unwrap()).unwrap(),
        None => store.limit(name, limit.parse::<Limit>().unwrap()).unwrap(),
    }
}

fn run(
    fleet: &Fleet,
    limits: [usize; 3],
    start: u64,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let case = fleet.cases.fetch_add(1, Ordering::Relaxed);
    let clock = ManualClock::new();
    let memory = memory(&clock);
    let redis = &fleet.store;
    let ours = limits.map(|limit| register(&memory, "x", LIMITS[limit]));
    let mut numbers = 0..3;
    let theirs = limits.map(|limit| {
        register(
            redis,
            &format!("{case}-{}", numbers.next().unwrap()),
            LIMITS[limit],
        )
    });
    // A time in a year at which no window begins.
    let mut now = 1_700_000_000_000_000 + start;
    let mut verdicts: Vec<(Verdict, Verdict)> = Vec::new();
    fleet.runtime.block_on(async {
        for step in steps {
            clock.set(ratekeeper::Timestamp::from_unix(Duration::from_micros(now)));
            fleet.time.store(now, Ordering::Relaxed);
            match step {
                // Permits that their node does not renew expire, and the given time renews none.
                Step::Advance(by) => {
                    now += if limits.contains(&IN_FLIGHT) {
                        by / 16
                    } else {
                        by
                    }
                }
                Step::Decide(asked) => {
                    let keys: Vec<[u8; 1]> = asked.iter().map(|ask| key(ask.key)).collect();
                    let mine = memory.decide_now(&build(&ours, &asked, &keys), clock.now());
                    let fleets = redis.decide(&build(&theirs, &asked, &keys)).await;
                    prop_assert_eq!(fleets.source(), Source::Redis);
                    prop_assert_eq!(
                        answer_of(&mine),
                        answer_of(&fleets),
                        "at {} µs: {:?}",
                        now,
                        asked
                    );
                    verdicts.push((mine, fleets));
                }
                Step::Settle { which, actual } if which < verdicts.len() => {
                    let (mine, fleets) = verdicts.swap_remove(which);
                    memory.settle_now(mine, &actual, clock.now());
                    redis.settle(fleets, &actual).await;
                }
                Step::Settle { .. } => {}
                Step::Grant {
                    limit,
                    key: of,
                    tokens,
                } => {
                    memory.grant(&ours[limit], &key(of), tokens);
                    redis.grant(&theirs[limit], &key(of), tokens).await;
                }
                Step::Reset { limit, key: of } => {
                    memory.reset(&ours[limit], &key(of));
                    redis.reset(&theirs[limit], &key(of)).await;
                    // A log in Redis does not distinguish charges before and after it in the same
                    // microsecond.
                    now += 1;
                }
            }
        }
        Ok(())
    })
}

fn build<'a>(handles: &'a [LimitHandle; 3], asked: &[Asked], keys: &'a [[u8; 1]]) -> Vec<Ask<'a>> {
    let one = |(ask, key): (&Asked, &'a [u8; 1])| Ask {
        limit: &handles[ask.limit],
        key,
        cost: ask.cost,
        reserve: ask.reserve,
        mode: ask.mode,
        max_wait: ask.max_wait.map(Duration::from_micros),
    };
    asked.iter().zip(keys).map(one).collect()
}

#[test]
fn redis_decides_as_memory_decides() {
    let fleet = Fleet::start(2);
    let limits = [0..LIMITS.len(), 0..LIMITS.len(), 0..LIMITS.len()];
    let traces = (
        limits,
        0..120_000_000_u64,
        prop::collection::vec(step(2), 1..40),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    });
    runner
        .run(&traces, |(limits, start, steps)| {
            run(&fleet, limits, start, steps)
        })
        .unwrap();
}

/// Refundable buckets depend on the order of settles, so these traces settle most charges.
#[test]
fn redis_settles_as_memory_settles() {
    let fleet = Fleet::start(1);
    let limits = [0..REFUNDABLE, 0..REFUNDABLE, 0..REFUNDABLE];
    let traces = (
        limits,
        0..120_000_000_u64,
        prop::collection::vec(step(8), 1..80),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    });
    runner
        .run(&traces, |(limits, start, steps)| {
            run(&fleet, limits, start, steps)
        })
        .unwrap();
}

/// The braces put everything in one slot, where a Cluster is as exact as one server.
#[test]
fn a_cluster_decides_as_memory_decides_in_one_slot() {
    let cluster = RedisCluster::start();
    let url = cluster.url();
    let fleet = Fleet::on(&url, "{one}", 2, Box::new(cluster));
    let limits = [0..LIMITS.len(), 0..LIMITS.len(), 0..LIMITS.len()];
    let traces = (
        limits,
        0..120_000_000_u64,
        prop::collection::vec(step(2), 1..40),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 256,
        max_shrink_iters: 1_000,
        ..ProptestConfig::default()
    });
    runner
        .run(&traces, |(limits, start, steps)| {
            run(&fleet, limits, start, steps)
        })
        .unwrap();
}

/// A table for all keys, so small that they are dense in it.
fn memory(clock: &ManualClock) -> MemoryStore<ManualClock> {
    MemoryStore::builder()
        .max_keys(10)
        .clock(clock.clone())
        .build()
}

/// Concurrent requests share calls, and are decided in order, each as if it had come alone.
fn run_batches(
    fleet: &Fleet,
    limits: [usize; 3],
    batches: Vec<(u64, Vec<Vec<Asked>>)>,
) -> Result<(), TestCaseError> {
    let case = fleet.cases.fetch_add(1, Ordering::Relaxed);
    let clock = ManualClock::new();
    let memory = memory(&clock);
    let ours = limits.map(|limit| register(&memory, "x", LIMITS[limit]));
    let mut numbers = 0..3;
    let theirs = limits.map(|limit| {
        register(
            &fleet.store,
            &format!("{case}-{}", numbers.next().unwrap()),
            LIMITS[limit],
        )
    });
    let theirs = Arc::new(theirs);
    let mut now = 1_700_000_000_000_000;
    for (later, requests) in batches {
        now += if limits.contains(&IN_FLIGHT) {
            later / 16
        } else {
            later
        };
        clock.set(ratekeeper::Timestamp::from_unix(Duration::from_micros(now)));
        fleet.time.store(now, Ordering::Relaxed);
        // Charges are held until all decisions were made.
        let mut held = Vec::new();
        let expected: Vec<_> = requests
            .iter()
            .map(|asked| {
                let keys: Vec<[u8; 1]> = asked.iter().map(|ask| key(ask.key)).collect();
                let verdict = memory.decide_now(&build(&ours, asked, &keys), clock.now());
                let told = answer_of(&verdict);
                held.push(verdict);
                told
            })
            .collect();
        let answers = fleet.runtime.block_on(async {
            // This runtime polls tasks in the order they were spawned, and the connection takes
            // them in that order.
            let tasks: Vec<_> = requests
                .iter()
                .map(|asked| {
                    let (store, theirs, asked) =
                        (fleet.store.clone(), Arc::clone(&theirs), asked.clone());
                    tokio::spawn(async move {
                        let keys: Vec<[u8; 1]> = asked.iter().map(|ask| key(ask.key)).collect();
                        store.decide(&build(&theirs, &asked, &keys)).await
                    })
                })
                .collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap());
            }
            answers
        });
        for ((asked, expected), verdict) in requests.iter().zip(&expected).zip(&answers) {
            prop_assert_eq!(verdict.source(), Source::Redis);
            prop_assert_eq!(
                expected,
                &answer_of(verdict),
                "at {} µs: {:?} among {:?}",
                now,
                asked,
                &requests
            );
        }
        // Both release what was held, and Redis has executed it before the next requests.
        fleet.runtime.block_on(async {
            for verdict in answers {
                fleet.store.settle(verdict, &[]).await;
            }
        });
    }
    Ok(())
}

#[test]
fn a_batch_decides_as_single_requests_do() {
    let fleet = Fleet::start(1);
    let limits = [0..LIMITS.len(), 0..LIMITS.len(), 0..LIMITS.len()];
    let requests = prop::collection::vec(prop::collection::vec(asked(), 1..4), 1..40);
    let batches = prop::collection::vec((0..1_500_000_u64, requests), 1..4);
    let mut runner = TestRunner::new(ProptestConfig {
        max_shrink_iters: 4_000,
        ..ProptestConfig::default()
    });
    runner
        .run(&(limits, batches), |(limits, batches)| {
            run_batches(&fleet, limits, batches)
        })
        .unwrap();
    let counts = fleet.store.status().counts;
    assert!(
        counts.round_trips < counts.decisions,
        "{counts:?}: no calls were shared"
    );
}
