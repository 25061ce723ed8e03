//! A fleet during a failover: no caller hangs, the allowed requests keep the bound plus a burst for
//! each replaced primary, and Redis decides again soon.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]

use crate::common::{Event, Load, Pace, check_bound_by_key, limit, now, until};
use ratekeeper::{Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{RedisStatus, RedisStore};
use ratekeeper_testkit::auditor::Bound;
use std::time::{Duration, Instant};

const RATE: u64 = 150;
const BURST: u64 = 30;
pub const BUCKET: (&str, Bound) = (
    "150/s burst 30",
    Bound::TokenBucket {
        count: RATE,
        period: 1_000_000,
        burst: BURST,
    },
);
pub const LOG: (&str, Bound) = (
    "30/200ms sliding_log",
    Bound::SlidingLog {
        limit: 30,
        window: 200_000,
    },
);
const NODES: usize = 3;
const KEYS: usize = 4;
/// A busy machine answers within this, and a caller that waits as long still gets an answer in
/// time.
const TIMEOUT: Duration = Duration::from_millis(100);

pub struct Fleet {
    nodes: Vec<(RedisStore, Vec<LimitHandle>)>,
    load: Load,
}

impl Fleet {
    pub async fn start(url: &str) -> Self {
        Self::made_by(|| RedisStore::builder(url)).await
    }

    pub async fn made_by(builder: impl Fn() -> ratekeeper_redis::RedisStoreBuilder) -> Self {
        let mut nodes: Vec<(RedisStore, Vec<LimitHandle>)> = Vec::new();
        for _ in 0..NODES {
            let store = builder()
                .timeout(TIMEOUT)
                .nodes(NODES as u64)
                .connect()
                .await
                .unwrap();
            let limits = [BUCKET, LOG].map(|(text, _)| store.limit(text, limit(text)).unwrap());
            nodes.push((store, limits.to_vec()));
        }
        until("all nodes know of each other", || {
            nodes
                .iter()
                .all(|(store, _)| store.status().nodes == NODES as u64)
        })
        .await;
        let load = Load::start(&nodes, 3, KEYS, Pace::Saturated);
        load.until_redis_answers_all().await;
        Self { nodes, load }
    }

    /// `recover` returns when a primary takes writes again.
    pub async fn run_fault(self, begin: impl FnOnce(), recover: impl FnOnce() -> u16) -> Aftermath {
        tokio::time::sleep(Duration::from_millis(200)).await;
        begin();
        // Callers that waited when it began, and those that came since, are answered before it
        // ends.
        self.load.until_all_answered(3).await;
        tokio::task::block_in_place(recover);
        let began = Instant::now();
        let since = now();
        let seen = |node: usize| {
            let mut own = self
                .load
                .callers
                .iter()
                .filter(move |caller| caller.node == node);
            own.all(|caller| caller.redis_seen.load(std::sync::atomic::Ordering::Relaxed) >= since)
        };
        until("Redis decides for every caller", || (0..NODES).all(seen)).await;
        let well = || self.nodes.iter().all(|(store, _)| store.is_healthy());
        until("every node finds all of it well", well).await;
        println!(
            "Redis decides everywhere {:.1?} after a primary answered",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
        let longest = self.load.longest();
        let statuses: Vec<RedisStatus> =
            self.nodes.iter().map(|(store, _)| store.status()).collect();
        println!(
            "the longest decision took {longest:.1?}; {:?}",
            statuses[0].counts
        );
        Aftermath {
            events: self.load.finish().await,
            statuses,
        }
    }
}

pub struct Aftermath {
    pub events: Vec<Event>,
    pub statuses: Vec<RedisStatus>,
}

impl Aftermath {
    /// What Redis allowed keeps the bound plus a burst for each key and failover; what all allowed,
    /// plus one more for the return and what nodes allowed by themselves while Redis served that
    /// key for others.
    pub fn check_bound(&self, failovers: u64) {
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            for key in 0..KEYS {
                let of_key = || {
                    self.events
                        .iter()
                        .filter(move |event| event.limit == at && event.key == key)
                };
                let by_redis = of_key().filter(|event| event.source == Source::Redis);
                let lost = failovers * BURST;
                let report = check_bound_by_key(bound, by_redis, lost)
                    .unwrap_or_else(|broken| panic!("{text}, key {key}: {broken}"));
                assert!(
                    report.admitted > 0,
                    "{text}, key {key}: Redis allowed nothing"
                );
                if at == 0 {
                    let (from, until) = longest_gap(of_key());
                    let beside = |event: &&Event| {
                        event.source != Source::Redis
                            && (event.sent < from || event.answered > until)
                    };
                    let allowance = BURST + lost + of_key().filter(beside).count() as u64;
                    check_bound_by_key(bound, of_key(), allowance)
                        .unwrap_or_else(|broken| panic!("{text}, key {key}: {broken}"));
                }
            }
        }
        assert!(
            self.statuses
                .iter()
                .any(|status| status.counts.fallbacks > 0),
            "nothing happened"
        );
    }
}

/// The longest time in which Redis allowed no request.
fn longest_gap<'e>(events: impl Iterator<Item = &'e Event>) -> (u64, u64) {
    let mut by_redis: Vec<&Event> = events
        .filter(|event| event.source == Source::Redis)
        .collect();
    by_redis.sort_unstable_by_key(|event| event.sent);
    let gaps = by_redis
        .windows(2)
        .map(|pair| (pair[0].answered, pair[1].sent));
    gaps.filter(|(from, until)| from < until)
        .max_by_key(|(from, until)| until - from)
        .unwrap_or((0, 0))
}
