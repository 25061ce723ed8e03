//! Test helpers: nodes, callers that never pause for long, and a log of allowed requests.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]

use ratekeeper::{Ask, Limit, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::auditor::{Admission, Bound, Report, Violation};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nothing here takes this long, however slow the machine.
pub const MAX_WAIT: Duration = Duration::from_secs(10);
/// Long enough for a busy machine to answer, so that no request falls back without a fault.
pub const LONG: Duration = Duration::from_secs(5);

/// Every algorithm as users write it, at a rate that a few callers exceed on any machine, with its
/// bound.
pub const ALGORITHMS: [(&str, Bound); 8] = [
    (
        "150/s burst 20",
        Bound::TokenBucket {
            count: 150,
            period: SECOND,
            burst: 20,
        },
    ),
    (
        "150/s burst 20 leaky_bucket",
        Bound::TokenBucket {
            count: 150,
            period: SECOND,
            burst: 20,
        },
    ),
    (
        "150/s wait 100ms",
        Bound::Pacing {
            count: 150,
            period: SECOND,
        },
    ),
    (
        "30/200ms fixed_window",
        Bound::FixedWindow {
            limit: 30,
            window: SECOND / 5,
        },
    ),
    (
        "30/200ms fixed_window_first_hit",
        Bound::FirstHitWindow {
            limit: 30,
            window: SECOND / 5,
        },
    ),
    (
        "30/200ms sliding_window",
        Bound::SlidingCounter {
            limit: 30,
            window: SECOND / 5,
        },
    ),
    (
        "30/200ms sliding_window_strict",
        Bound::SlidingLog {
            limit: 30,
            window: SECOND / 5,
        },
    ),
    (
        "30/200ms sliding_log",
        Bound::SlidingLog {
            limit: 30,
            window: SECOND / 5,
        },
    ),
];
const SECOND: u64 = 1_000_000;

/// How long a load lasts: `RATEKEEPER_FAULTS_SECONDS`, or a time long enough to be of use.
pub fn load_time(enough: Duration) -> Duration {
    let seconds = std::env::var("RATEKEEPER_FAULTS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    seconds.map_or(enough, Duration::from_secs_f64)
}

/// Runs a test on two threads, and fails if it does not end.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let limit = Duration::from_secs(120) + 20 * load_time(Duration::ZERO);
    let result = runtime.block_on(async {
        tokio::time::timeout(limit, test)
            .await
            .expect("the test hangs")
    });
    runtime.shutdown_background();
    result
}

/// Waits until the condition holds. Returns how long it took.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < MAX_WAIT, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begin.elapsed()
}

/// Microseconds of the clock that Redis on this machine uses, so that windows are the same ones.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64
}

/// A store with limits of its own.
pub async fn connect(url: &str) -> RedisStore {
    RedisStore::builder(url)
        .timeout(LONG)
        .connect()
        .await
        .unwrap()
}

pub fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// The source of a decision about one unit of that key.
pub async fn source(store: &RedisStore, limit: &LimitHandle, key: &str) -> Source {
    store.decide(&[Ask::new(limit, key)]).await.source()
}

/// Waits until Redis decides. Returns how long it took.
pub async fn until_redis(store: &RedisStore, limit: &LimitHandle) -> Duration {
    let begin = Instant::now();
    while source(store, limit, "whether it is back").await != Source::Redis {
        assert!(
            begin.elapsed() < MAX_WAIT,
            "Redis is not asked again: {:?}",
            store.status()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begin.elapsed()
}

/// A request that a node allowed.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub node: usize,
    pub limit: usize,
    pub key: usize,
    pub source: Source,
    pub sent: u64,
    pub answered: u64,
    /// When it may begin, after it was decided.
    pub delay: u64,
}

impl Event {
    pub fn admission(&self) -> Admission {
        Admission::between(self.sent + self.delay, self.answered + self.delay, 1)
    }
}

/// The pace of the callers of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Each caller asks again as soon as it was answered.
    Saturated,
    /// All of them send several requests at once, then pause.
    Bursts,
}

/// Callers of several nodes, until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    pub callers: Vec<Arc<Caller>>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Event>>>,
    pub began: u64,
}

/// What a caller has seen so far.
#[derive(Default)]
pub struct Caller {
    pub node: usize,
    /// Decisions that ended.
    pub ended: AtomicU64,
    /// Decisions by Redis.
    pub by_redis: AtomicU64,
    /// When the last of those was sent.
    pub redis_seen: AtomicU64,
    /// The longest decision, in µs.
    pub longest: AtomicU64,
}

impl Load {
    /// Starts this many callers for each node, each cycling through all limits and keys.
    pub fn start(
        nodes: &[(RedisStore, Vec<LimitHandle>)],
        callers: usize,
        keys: usize,
        pace: Pace,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let began = now();
        let mut load = Self {
            stop,
            callers: Vec::new(),
            tasks: Vec::new(),
            began,
        };
        for (node, (store, limits)) in nodes.iter().enumerate() {
            for number in 0..callers {
                let caller = Arc::new(Caller {
                    node,
                    ..Caller::default()
                });
                load.callers.push(Arc::clone(&caller));
                let store = store.clone();
                let limits = limits.clone();
                let stop = Arc::clone(&load.stop);
                load.tasks.push(tokio::spawn(call(
                    store, limits, caller, stop, number, keys, pace,
                )));
            }
        }
        load
    }

    /// Waits until every caller of these nodes was answered this many times more: none of them
    /// hangs.
    pub async fn until_all_answered(&self, times: u64) {
        let before: Vec<u64> = self
            .callers
            .iter()
            .map(|caller| caller.ended.load(Relaxed))
            .collect();
        let go_on = || {
            self.callers
                .iter()
                .zip(&before)
                .all(|(caller, before)| caller.ended.load(Relaxed) >= before + times)
        };
        until("every caller is answered", go_on).await;
    }

    /// Waits until Redis has answered a request of every caller that was made from now on.
    pub async fn until_redis_answers_all(&self) -> Duration {
        let since = now();
        let all = || {
            self.callers
                .iter()
                .all(|caller| caller.redis_seen.load(Relaxed) >= since)
        };
        until("Redis decides for every caller", all).await
    }

    /// The longest decision of all.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(
            self.callers
                .iter()
                .map(|caller| caller.longest.load(Relaxed))
                .max()
                .unwrap_or(0),
        )
    }

    /// All allowed requests.
    pub async fn finish(self) -> Vec<Event> {
        self.stop.store(true, Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

async fn call(
    store: RedisStore,
    limits: Vec<LimitHandle>,
    caller: Arc<Caller>,
    stop: Arc<AtomicBool>,
    number: usize,
    keys: usize,
    pace: Pace,
) -> Vec<Event> {
    const NAMES: [&str; 4] = ["ann", "bob", "eve", "joe"];
    let mut log = Vec::new();
    for turn in number.. {
        if stop.load(Relaxed) {
            break;
        }
        let at = turn % limits.len();
        let key = turn / limits.len() % keys;
        let sent = now();
        let verdict = store.decide(&[Ask::new(&limits[at], NAMES[key])]).await;
        let answered = now().max(sent);
        caller.longest.fetch_max(answered - sent, Relaxed);
        caller.ended.fetch_add(1, Relaxed);
        if verdict.source() == Source::Redis {
            caller.by_redis.fetch_add(1, Relaxed);
            caller.redis_seen.store(sent, Relaxed);
        }
        if verdict.is_allowed() {
            let delay = verdict.delay().as_micros() as u64;
            let source = verdict.source();
            log.push(Event {
                node: caller.node,
                limit: at,
                key,
                source,
                sent,
                answered,
                delay,
            });
        }
        if pace == Pace::Bursts && turn % 24 == 0 {
            tokio::time::sleep(Duration::from_millis(60)).await;
        } else if verdict.source() != Source::Redis {
            // Local decisions return at once; do not make a million of them.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    log
}

/// Checks the bound on what was allowed of one limit, for each key.
pub fn check_bound_by_key<'e>(
    bound: Bound,
    events: impl IntoIterator<Item = &'e Event>,
    allowance: u64,
) -> Result<Report, Violation> {
    bound.check_by_key(
        events
            .into_iter()
            .map(|event| (event.key, event.admission())),
        allowance,
    )
}
