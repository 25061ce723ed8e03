//! P7 and the cost of failures: under load from three nodes, each failure of Redis or of the
//! network to it. Every decision ends while the fault lasts; what is allowed keeps the bound plus
//! what docs/spec/stores.md adds for the fault; and Redis decides again when it can.

mod common;

use common::{Event, LONG, Load, Pace, check_bound_by_key, limit, load_time, now, run, until};
use ratekeeper::{Store, store::LimitHandle, store::Source};
use ratekeeper_redis::{RedisStore, StoreError};
use ratekeeper_testkit::auditor::Bound;
use ratekeeper_testkit::{Connection, Fault, FaultProxy, RedisServer, Reply};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const RATE: u64 = 150;
const BURST: u64 = 30;
const BUCKET: (&str, Bound) = (
    "150/s burst 30",
    Bound::TokenBucket {
        count: RATE,
        period: 1_000_000,
        burst: BURST,
    },
);
const LOG: (&str, Bound) = (
    "30/200ms sliding_log",
    Bound::SlidingLog {
        limit: 30,
        window: 200_000,
    },
);
const NODES: usize = 3;
/// A busy machine answers within this, and a caller that waits as long still gets an answer in
/// time.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Three nodes under load.
struct Fleet {
    nodes: Vec<(RedisStore, Vec<LimitHandle>)>,
    load: Load,
}

impl Fleet {
    /// Each node at a URL of its own, or all at the same.
    async fn start(urls: [&str; NODES]) -> Self {
        Self::with_timeout(urls, TIMEOUT).await
    }

    async fn with_timeout(urls: [&str; NODES], timeout: Duration) -> Self {
        let mut nodes: Vec<(RedisStore, Vec<LimitHandle>)> = Vec::new();
        for url in urls {
            let store = RedisStore::builder(url)
                .timeout(timeout)
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
        let load = Load::start(&nodes, 3, 2, Pace::Saturated);
        load.until_redis_answers_all().await;
        Self { nodes, load }
    }

    /// One fault, from beginning to end: no caller waits until it is over, and Redis is used again
    /// soon afterwards.
    async fn run_fault(self, begin: impl AsyncFnOnce(), end: impl AsyncFnOnce()) -> Aftermath {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let fallbacks =
            |(store, _): &(RedisStore, Vec<LimitHandle>)| store.status().counts.fallbacks > 0;
        let began_before = self.nodes.iter().map(fallbacks).collect();
        let from = now();
        begin().await;
        tokio::time::sleep(load_time(Duration::from_millis(400))).await;
        // Callers that waited when it began, and those that came since, are answered before it
        // ends.
        self.load.until_all_answered(3).await;
        let until_ = now();
        end().await;
        let recovered = self.load.until_redis_answers_all().await;
        let back = now();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let longest = self.load.longest();
        let statuses = self.nodes.iter().map(|(store, _)| store.status()).collect();
        let events = self.load.finish().await;
        println!("recovered after {recovered:.1?}, the longest decision took {longest:.1?}");
        println!("{:?}", self.nodes[0].0.status().counts);
        Aftermath {
            from,
            until: until_,
            back,
            events,
            began_before,
            statuses,
        }
    }
}

/// What happened, to be checked.
struct Aftermath {
    /// When the fault began, when it ended, and when Redis had answered every caller again.
    from: u64,
    until: u64,
    back: u64,
    events: Vec<Event>,
    /// Which nodes had fallen back before the fault, as happens on a slow machine: their shares had
    /// begun.
    began_before: Vec<bool>,
    statuses: Vec<ratekeeper_redis::RedisStatus>,
}

impl Aftermath {
    fn of(&self, limit: usize) -> impl Iterator<Item = &Event> + Clone {
        self.events.iter().filter(move |event| event.limit == limit)
    }

    /// What Redis has allowed keeps the bound by itself. `lost`: how often it may have lost a key.
    fn check_redis_bound(&self, lost: u64) -> &Self {
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            let by_redis = self.of(at).filter(|event| event.source == Source::Redis);
            let report = check_bound_by_key(bound, by_redis, lost * BURST)
                .unwrap_or_else(|broken| panic!("{text}: {broken}"));
            assert!(report.admitted > 0, "{text}: Redis allowed nothing");
        }
        self
    }

    /// The longest time around the fault in which Redis allowed no request. (Without memory it may
    /// allow some requests now and then.)
    fn longest_gap(&self) -> (u64, u64) {
        let mut by_redis: Vec<&Event> = self
            .events
            .iter()
            .filter(|event| event.source == Source::Redis)
            .collect();
        by_redis.sort_unstable_by_key(|event| event.sent);
        let mut longest_gap = (0, 0);
        let mut last = u64::MAX;
        for event in by_redis {
            let around = last < self.back && event.sent > self.from;
            if around && event.sent.saturating_sub(last) > longest_gap.1 - longest_gap.0 {
                longest_gap = (last, event.sent);
            }
            last = if last == u64::MAX {
                event.answered
            } else {
                last.max(event.answered)
            };
        }
        longest_gap
    }

    /// What all have allowed keeps the bound, plus a burst for the return and what nodes allowed by
    /// themselves while Redis served others.
    fn check_total_bound(&self, lost: u64) -> &Self {
        let (text, bound) = BUCKET;
        let (from, until) = self.longest_gap();
        let beside = |event: &&Event| {
            event.source != Source::Redis && (event.sent < from || event.answered > until)
        };
        // A share that had begun before the fault is not empty when Redis goes down.
        let begun =
            self.began_before.iter().filter(|begun| **begun).count() as u64 * BURST / NODES as u64;
        for key in 0..2 {
            let of_key = || self.of(0).filter(|event| event.key == key);
            let allowance = BURST + begun + lost * BURST + of_key().filter(beside).count() as u64;
            check_bound_by_key(bound, of_key(), allowance)
                .unwrap_or_else(|broken| panic!("{text}: {broken}"));
        }
        self
    }

    /// During the fault every node used its own share: r/m, starting empty.
    fn check_share_bound(&self) -> &Self {
        let m = NODES as u64;
        let share = Bound::TokenBucket {
            count: RATE,
            period: m * 1_000_000,
            burst: BURST / m,
        };
        let mut shared = 0;
        for node in 0..NODES {
            let own = self
                .of(0)
                .filter(|event| event.source == Source::LocalShare && event.node == node);
            check_bound_by_key(share, own, 0)
                .unwrap_or_else(|broken| panic!("the share of node {node}: {broken}"));
            for key in 0..2 {
                let own = || {
                    self.of(0).filter(|event| {
                        event.source == Source::LocalShare && event.node == node && event.key == key
                    })
                };
                let count = own()
                    .filter(|event| event.sent >= self.from && event.answered <= self.until)
                    .count() as u64;
                let begun = if self.began_before[node] {
                    BURST / m
                } else {
                    0
                };
                let most = begun + RATE * (self.until - self.from) / 1_000_000 / m + 1;
                assert!(
                    count <= most,
                    "node {node} began its share with something in it: {count} of {most}"
                );
                shared += count;
            }
        }
        assert!(shared > 0, "nothing was allowed during the fault");
        self
    }

    /// Which errors were counted, on any node.
    fn errors(&self) -> Vec<&'static str> {
        let counts = self.statuses.iter().flat_map(|status| status.counts.errors);
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, _)| name)
            .collect()
    }
}

async fn nothing() {}

#[test]
fn killed_and_restarted_empty() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .run_fault(async || server.kill(), async || server.restart())
            .await;
        after
            .check_redis_bound(1)
            .check_total_bound(1)
            .check_share_bound();
    });
}

#[test]
fn killed_and_restarted_with_its_data() {
    run(async {
        let server = RedisServer::builder().aof(true).start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .run_fault(async || server.kill(), async || server.restart())
            .await;
        after
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn stopped_and_continued() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .run_fault(async || server.stop_signal(), async || server.cont())
            .await;
        after
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
        assert!(after.errors().contains(&"timeout"), "{:?}", after.errors());
    });
}

/// All nodes behind one network.
async fn network(fault: Fault) -> Aftermath {
    let server = RedisServer::start();
    let proxy = FaultProxy::to(server.port());
    let fleet = Fleet::start([&proxy.url(); NODES]).await;
    fleet
        .run_fault(async || proxy.set(fault), async || proxy.set(Fault::None))
        .await
}

#[test]
fn replies_are_lost() {
    run(async {
        network(Fault::DropReplies)
            .await
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn requests_are_lost() {
    run(async {
        network(Fault::DropRequests)
            .await
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn replies_are_garbage() {
    run(async {
        let after = network(Fault::Garble).await;
        after
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn replies_are_truncated() {
    run(async {
        network(Fault::HalfReply)
            .await
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn replies_take_longer_than_the_timeout() {
    run(async {
        network(Fault::Delay(Duration::from_millis(700)))
            .await
            .check_redis_bound(0)
            .check_total_bound(0);
    });
}

#[test]
fn the_network_is_cut() {
    run(async {
        network(Fault::Cut)
            .await
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
    });
}

#[test]
fn one_of_three_is_cut_off() {
    run(async {
        let server = RedisServer::start();
        let proxy = FaultProxy::to(server.port());
        let fleet = Fleet::start([server.url(), server.url(), &proxy.url()]).await;
        let after = fleet
            .run_fault(
                async || proxy.set(Fault::Cut),
                async || proxy.set(Fault::None),
            )
            .await;
        after.check_redis_bound(0).check_share_bound();
        // The others were not affected.
        let others = |event: &&Event| {
            event.node < 2 && event.sent > after.from && event.answered < after.until
        };
        assert!(
            after
                .events
                .iter()
                .filter(others)
                .any(|event| event.source == Source::Redis)
        );
        // At most r·D·k/m more over the time it was cut off, plus what it finds when it is back.
        let cut_off = after.back - after.from;
        let more = RATE * cut_off / 1_000_000 / NODES as u64 + 1;
        check_bound_by_key(BUCKET.1, after.of(0), BURST + more)
            .unwrap_or_else(|broken| panic!("{broken}"));
    });
}

#[test]
fn scripts_are_flushed_repeatedly() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let stop = AtomicBool::new(false);
        let flush = |connection: &mut Connection| connection.command(&["SCRIPT", "FLUSH"]).unwrap();
        std::thread::scope(|threads| {
            let flushing = threads.spawn(|| {
                let mut connection = server.connect().unwrap();
                let mut times = 0;
                while !stop.load(Relaxed) {
                    assert_eq!(flush(&mut connection), Reply::Simple("OK".into()));
                    times += 1;
                }
                times
            });
            let end = async || stop.store(true, Relaxed);
            let after = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(fleet.run_fault(nothing, end))
            });
            let times: u64 = flushing.join().unwrap();
            after.check_redis_bound(0).check_total_bound(0);
            let during = after
                .events
                .iter()
                .filter(|event| event.sent > after.from && event.answered < after.until);
            assert!(
                during.clone().any(|event| event.source == Source::Redis),
                "flushed {times} times, and Redis decided nothing"
            );
        });
    });
}

#[test]
fn out_of_memory() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let full = async || {
            server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
            server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        };
        let room = async || {
            server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        };
        let after = fleet.run_fault(full, room).await;
        after
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
        assert!(after.errors().contains(&"refused"), "{:?}", after.errors());
    });
}

#[test]
fn keys_are_evicted_at_random() {
    keys_are_evicted("allkeys-random");
}

#[test]
fn the_least_recently_used_keys_are_evicted() {
    keys_are_evicted("allkeys-lru");
}

fn keys_are_evicted(policy: &str) {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let stat = |name: &str| {
            let info = server.command(&["INFO", "stats"]);
            let line = info
                .text()
                .unwrap()
                .lines()
                .find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.unwrap().trim().parse::<u64>().unwrap()
        };
        // Foreign keys fill the memory: the least used keys are evicted, ours among them.
        let full = async || {
            let used = server.command(&["INFO", "memory"]);
            let line = used
                .text()
                .unwrap()
                .lines()
                .find_map(|line| line.strip_prefix("used_memory:").map(str::to_owned));
            let most = line.unwrap().trim().parse::<u64>().unwrap() + 300_000;
            server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
            server.command(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
            let mut connection = server.connect().unwrap();
            let filling = "x".repeat(2_000);
            for number in 0..400 {
                connection
                    .command(&["SET", &format!("other:{number}"), &filling])
                    .unwrap();
            }
        };
        let room = async || {
            server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        };
        let after = fleet.run_fault(full, room).await;
        let evicted = stat("evicted_keys:");
        assert!(evicted > 0);
        after.check_redis_bound(evicted).check_total_bound(evicted);
        let during = |event: &&Event| event.sent > after.from && event.answered < after.until;
        assert!(
            after
                .events
                .iter()
                .filter(during)
                .any(|event| event.source == Source::Redis),
            "Redis is not asked any more"
        );
    });
}

#[test]
fn it_becomes_a_replica() {
    run(async {
        let server = RedisServer::start();
        let primary = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let port = primary.port().to_string();
        let demote = async || {
            server.command(&["REPLICAOF", "127.0.0.1", &port]);
        };
        let promote = async || {
            server.command(&["REPLICAOF", "NO", "ONE"]);
        };
        let after = fleet.run_fault(demote, promote).await;
        // It has copied the data of its primary, which is empty.
        after
            .check_redis_bound(1)
            .check_total_bound(1)
            .check_share_bound();
        assert!(after.errors().contains(&"refused"), "{:?}", after.errors());
    });
}

#[test]
fn the_user_loses_permissions() {
    run(async {
        let server = RedisServer::start();
        // The test uses another user, or it could not undo it.
        server.command(&[
            "ACL", "SETUSER", "operator", "on", ">pass", "~*", "&*", "+@all",
        ]);
        let fleet = Fleet::start([server.url(); NODES]).await;
        let as_operator = |rule: &'static str| {
            let mut connection = server.connect().unwrap();
            connection.command(&["AUTH", "operator", "pass"]).unwrap();
            assert!(
                !connection
                    .command(&["ACL", "SETUSER", "default", rule])
                    .unwrap()
                    .is_error()
            );
        };
        let after = fleet
            .run_fault(async || as_operator("-@all"), async || as_operator("+@all"))
            .await;
        after
            .check_redis_bound(0)
            .check_total_bound(0)
            .check_share_bound();
        assert!(after.errors().contains(&"refused"), "{:?}", after.errors());
    });
}

#[test]
fn it_is_busy_with_another_script() {
    run(async {
        let server = RedisServer::builder()
            .arg("busy-reply-threshold", "20")
            .start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let mut connection = server.connect().unwrap();
        let after = fleet
            .run_fault(
                async || {
                    connection
                        .send(&["EVAL", "while true do end", "0"])
                        .unwrap();
                },
                async || {
                    until("the script is ended", || {
                        !server.command(&["SCRIPT", "KILL"]).is_error()
                    })
                    .await;
                },
            )
            .await;
        after.check_redis_bound(0).check_total_bound(0);
    });
}

#[test]
fn it_loads_its_data() {
    run(async {
        // A delay for each key, so that loading takes a while, and so short that it answers LOADING
        // within the timeout.
        let slow = RedisServer::builder().aof(true).arg("key-load-delay", "50");
        let server = slow
            .arg("loading-process-events-interval-bytes", "1024")
            .start();
        // Before any request: this takes as long as a decision may.
        let fill = "for i = 1, 20000 do redis.call('SET', 'other:' .. i, i) end";
        assert!(!server.command(&["EVAL", fill, "0"]).is_error());
        let fleet = Fleet::start([server.url(); NODES]).await;
        let store = fleet.nodes[0].0.clone();
        let loading = || matches!(store.status().error, Some((_, StoreError::Refused { code, .. })) if code == "LOADING");
        let mut seen = false;
        let after = fleet
            .run_fault(
                async || server.kill(),
                async || {
                    std::thread::scope(|threads| {
                        let restarting = threads.spawn(|| server.restart());
                        while !restarting.is_finished() {
                            seen |= loading();
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    });
                },
            )
            .await;
        after.check_redis_bound(0).check_total_bound(0);
        assert!(seen, "it was never seen loading");
    });
}

#[test]
fn limits_change_under_load() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::with_timeout([server.url(); NODES], LONG).await;
        let set = |times: u64| {
            for (store, limits) in &fleet.nodes {
                store.set_limit(
                    &limits[0],
                    limit(&format!("{}/s burst {}", RATE * times, BURST * times)),
                );
                store.set_limit(
                    &limits[1],
                    limit(&format!("{}/200ms sliding_log", 30 * times)),
                );
            }
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        let up = now();
        set(10);
        tokio::time::sleep(load_time(Duration::from_millis(400))).await;
        set(1);
        fleet.load.until_redis_answers_all().await;
        let down = now();
        tokio::time::sleep(load_time(Duration::from_millis(500))).await;
        let events = fleet.load.finish().await;
        let of = |limit: usize| events.iter().filter(move |event| event.limit == limit);
        assert!(of(0).all(|event| event.source == Source::Redis));
        let ten = Bound::TokenBucket {
            count: 10 * RATE,
            period: 1_000_000,
            burst: 10 * BURST,
        };
        // Before and after by the small limit, throughout by the large one; growing adds no tokens.
        check_bound_by_key(BUCKET.1, of(0).filter(|event| event.answered < up), 0).unwrap();
        check_bound_by_key(BUCKET.1, of(0).filter(|event| event.sent > down), 0).unwrap();
        check_bound_by_key(ten, of(0), 0).unwrap();
        check_bound_by_key(LOG.1, of(1).filter(|event| event.answered < up), 0).unwrap();
        check_bound_by_key(LOG.1, of(1).filter(|event| event.sent > down), 0).unwrap();
        check_bound_by_key(
            Bound::SlidingLog {
                limit: 300,
                window: 200_000,
            },
            of(1),
            0,
        )
        .unwrap();
        let during = of(0)
            .filter(|event| event.sent > up && event.answered < down)
            .count() as u64;
        let before = RATE * (down - up) / 1_000_000 + BURST;
        assert!(
            during > 2 * before,
            "ten times the limit has admitted {during}, where one time is {before}"
        );
    });
}

/// The clock of Redis is stepped twice under load. Returns what was allowed of the bucket.
async fn stepped(by: Duration, first: bool) -> Vec<Event> {
    let server = RedisServer::builder().clock_file(true).start();
    let fleet = Fleet::with_timeout([server.url(); NODES], LONG).await;
    for forward in [first, !first] {
        tokio::time::sleep(load_time(Duration::from_millis(300))).await;
        server.step_clock(by, forward);
        fleet.load.until_redis_answers_all().await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let last = now();
    // It still refills, and takes no longer than before.
    fleet.load.until_redis_answers_all().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let events = fleet.load.finish().await;
    let status = fleet.nodes[0].0.status();
    assert!(
        events.iter().all(|event| event.source == Source::Redis),
        "{by:?}, {first}: {status:?}"
    );
    // Up to a minute back it waits for the clock; after that it goes on.
    if by > Duration::from_secs(60) {
        assert!(
            events
                .iter()
                .any(|event| event.limit == 0 && event.sent > last),
            "nothing is allowed any more"
        );
    }
    events
}

#[test]
fn its_clock_is_stepped() {
    // A step forward by x adds min(B, r·x), which for a log is what it has forgotten. A step back
    // adds nothing, except that after a large step the gap is forgiven: the time that was gained
    // before is not paid for.
    for (by, first) in [
        (Duration::from_secs(5), true),
        (Duration::from_secs(5), false),
        (Duration::from_secs(3_600), true),
        (Duration::from_secs(3_600), false),
    ] {
        let events = run(stepped(by, first));
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            let of = events.iter().filter(|event| event.limit == at);
            let report = check_bound_by_key(bound, of, BURST)
                .unwrap_or_else(|broken| panic!("{text}, {by:?}, {first}: {broken}"));
            assert!(report.admitted >= BURST, "{text}: {report:?}");
        }
    }
}
