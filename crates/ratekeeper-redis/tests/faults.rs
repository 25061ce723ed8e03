//! P7 and the price of a failure: under load from three nodes, each thing that can go wrong with
//! Redis or the way to it. Every decision ends while the fault lasts, what is admitted keeps the
//! bound with what docs/spec/stores.md adds for the fault, and Redis decides again when it can.

mod common;

use common::{Event, LONG, Load, Pace, judge, limit, load_time, now, run, until};
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
        period_us: 1_000_000,
        burst: BURST,
    },
);
const LOG: (&str, Bound) = (
    "30/200ms sliding_log",
    Bound::SlidingLog {
        limit: 30,
        window_us: 200_000,
    },
);
const NODES: usize = 3;
/// A busy machine answers within this, and a caller who waits as long is still told in time.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Three nodes, under load.
struct Fleet {
    nodes: Vec<(RedisStore, Vec<LimitHandle>)>,
    load: Load,
}

impl Fleet {
    /// Each node at a url of its own, or all at the same.
    async fn start(urls: [&str; NODES]) -> Self {
        Self::patient(urls, TIMEOUT).await
    }

    async fn patient(urls: [&str; NODES], timeout: Duration) -> Self {
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

    /// One fault, from beginning to end: nobody waits until it is over, and Redis is asked again
    /// soon after.
    async fn suffers(self, begin: impl AsyncFnOnce(), end: impl AsyncFnOnce()) -> Aftermath {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let fallbacks =
            |(store, _): &(RedisStore, Vec<LimitHandle>)| store.status().counts.fallbacks > 0;
        let began_before = self.nodes.iter().map(fallbacks).collect();
        let from = now();
        begin().await;
        tokio::time::sleep(load_time(Duration::from_millis(400))).await;
        // Whoever was waiting when it began, and whoever has come since, is told before it ends.
        self.load.until_all_go_on(3).await;
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

/// What is left to judge.
struct Aftermath {
    /// When it began, when it ended, and when all nodes knew.
    from: u64,
    until: u64,
    back: u64,
    events: Vec<Event>,
    /// Which nodes had fallen back before it, as one does on a slow machine: their shares had
    /// begun.
    began_before: Vec<bool>,
    statuses: Vec<ratekeeper_redis::RedisStatus>,
}

impl Aftermath {
    fn of(&self, limit: usize) -> impl Iterator<Item = &Event> + Clone {
        self.events.iter().filter(move |event| event.limit == limit)
    }

    /// What Redis has admitted keeps the bound by itself. `lost`: how often it may have forgotten a
    /// key.
    fn redis_keeps(&self, lost: u64) -> &Self {
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            let by_redis = self.of(at).filter(|event| event.source == Source::Redis);
            let report = judge(bound, by_redis, lost * BURST)
                .unwrap_or_else(|broken| panic!("{text}: {broken}"));
            assert!(report.admitted > 0, "{text}: Redis admitted nothing");
        }
        self
    }

    /// The longest time around the fault in which Redis admitted nothing. (Without memory it may
    /// admit now and then.)
    fn dark(&self) -> (u64, u64) {
        let mut by_redis: Vec<&Event> = self
            .events
            .iter()
            .filter(|event| event.source == Source::Redis)
            .collect();
        by_redis.sort_unstable_by_key(|event| event.sent);
        let mut dark = (0, 0);
        let mut last = u64::MAX;
        for event in by_redis {
            let around = last < self.back && event.sent > self.from;
            if around && event.sent.saturating_sub(last) > dark.1 - dark.0 {
                dark = (last, event.sent);
            }
            last = if last == u64::MAX {
                event.answered
            } else {
                last.max(event.answered)
            };
        }
        dark
    }

    /// What all have admitted keeps the bound, with a burst for the return and what nodes admitted
    /// by themselves while Redis served others.
    fn all_keep(&self, lost: u64) -> &Self {
        let (text, bound) = BUCKET;
        let (from, until) = self.dark();
        let beside = |event: &&Event| {
            event.source != Source::Redis && (event.sent < from || event.answered > until)
        };
        // A share that had begun before the fault has something in it when Redis is gone.
        let begun =
            self.began_before.iter().filter(|begun| **begun).count() as u64 * BURST / NODES as u64;
        for key in 0..2 {
            let of_key = || self.of(0).filter(|event| event.key == key);
            let allowance = BURST + begun + lost * BURST + of_key().filter(beside).count() as u64;
            judge(bound, of_key(), allowance).unwrap_or_else(|broken| panic!("{text}: {broken}"));
        }
        self
    }

    /// During the fault every node went by its own share: r/m, started empty.
    fn shares_keep(&self) -> &Self {
        let m = NODES as u64;
        let share = Bound::TokenBucket {
            count: RATE,
            period_us: m * 1_000_000,
            burst: BURST / m,
        };
        let mut shared = 0;
        for node in 0..NODES {
            let own = self
                .of(0)
                .filter(|event| event.source == Source::LocalShare && event.node == node);
            judge(share, own, 0)
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
        assert!(shared > 0, "nobody admitted anything during the fault");
        self
    }

    /// Which troubles were counted, on whichever node.
    fn troubles(&self) -> Vec<&'static str> {
        let counts = self
            .statuses
            .iter()
            .flat_map(|status| status.counts.troubles);
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(name, _)| name)
            .collect()
    }
}

async fn nothing() {}

#[test]
fn killed_and_empty_when_it_is_back() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .suffers(async || server.kill(), async || server.restart())
            .await;
        after.redis_keeps(1).all_keep(1).shares_keep();
    });
}

#[test]
fn killed_and_as_it_was_when_it_is_back() {
    run(async {
        let server = RedisServer::builder().aof(true).start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .suffers(async || server.kill(), async || server.restart())
            .await;
        after.redis_keeps(0).all_keep(0).shares_keep();
    });
}

#[test]
fn stopped_and_let_go_on() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let after = fleet
            .suffers(async || server.stop_signal(), async || server.cont())
            .await;
        after.redis_keeps(0).all_keep(0).shares_keep();
        assert!(
            after.troubles().contains(&"timeout"),
            "{:?}",
            after.troubles()
        );
    });
}

/// All nodes behind one network.
async fn network(fault: Fault) -> Aftermath {
    let server = RedisServer::start();
    let proxy = FaultProxy::to(server.port());
    let fleet = Fleet::start([&proxy.url(); NODES]).await;
    fleet
        .suffers(async || proxy.set(fault), async || proxy.set(Fault::None))
        .await
}

#[test]
fn replies_are_lost() {
    run(async {
        network(Fault::DropReplies)
            .await
            .redis_keeps(0)
            .all_keep(0)
            .shares_keep();
    });
}

#[test]
fn requests_are_lost() {
    run(async {
        network(Fault::DropRequests)
            .await
            .redis_keeps(0)
            .all_keep(0)
            .shares_keep();
    });
}

#[test]
fn replies_are_garbage() {
    run(async {
        let after = network(Fault::Garble).await;
        after.redis_keeps(0).all_keep(0).shares_keep();
    });
}

#[test]
fn replies_end_in_the_middle() {
    run(async {
        network(Fault::HalfReply)
            .await
            .redis_keeps(0)
            .all_keep(0)
            .shares_keep();
    });
}

#[test]
fn replies_take_longer_than_anybody_waits() {
    run(async {
        network(Fault::Delay(Duration::from_millis(700)))
            .await
            .redis_keeps(0)
            .all_keep(0);
    });
}

#[test]
fn the_network_is_cut() {
    run(async {
        network(Fault::Cut)
            .await
            .redis_keeps(0)
            .all_keep(0)
            .shares_keep();
    });
}

#[test]
fn one_of_three_is_cut_off() {
    run(async {
        let server = RedisServer::start();
        let proxy = FaultProxy::to(server.port());
        let fleet = Fleet::start([server.url(), server.url(), &proxy.url()]).await;
        let after = fleet
            .suffers(
                async || proxy.set(Fault::Cut),
                async || proxy.set(Fault::None),
            )
            .await;
        after.redis_keeps(0).shares_keep();
        // The others were served as if nothing had happened.
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
        // At most r·D·k/m more, over the time it was cut off, and what it finds when it is back.
        let cut_off = after.back - after.from;
        let more = RATE * cut_off / 1_000_000 / NODES as u64 + 1;
        judge(BUCKET.1, after.of(0), BURST + more).unwrap_or_else(|broken| panic!("{broken}"));
    });
}

#[test]
fn scripts_are_flushed_all_the_time() {
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
                tokio::runtime::Handle::current().block_on(fleet.suffers(nothing, end))
            });
            let times: u64 = flushing.join().unwrap();
            after.redis_keeps(0).all_keep(0);
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
fn there_is_no_memory_left() {
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
        let after = fleet.suffers(full, room).await;
        after.redis_keeps(0).all_keep(0).shares_keep();
        assert!(
            after.troubles().contains(&"refused"),
            "{:?}",
            after.troubles()
        );
    });
}

#[test]
fn keys_are_evicted_at_random() {
    keys_are_evicted("allkeys-random");
}

#[test]
fn keys_are_evicted_that_were_used_longest_ago() {
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
        // Others fill the memory: what is used least goes, ours among it.
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
        let after = fleet.suffers(full, room).await;
        let evicted = stat("evicted_keys:");
        assert!(evicted > 0);
        after.redis_keeps(evicted).all_keep(evicted);
        let during = |event: &&Event| event.sent > after.from && event.answered < after.until;
        assert!(
            after
                .events
                .iter()
                .filter(during)
                .any(|event| event.source == Source::Redis),
            "it is not asked any more"
        );
    });
}

#[test]
fn it_becomes_a_replica() {
    run(async {
        let (server, primary) = (RedisServer::start(), RedisServer::start());
        let fleet = Fleet::start([server.url(); NODES]).await;
        let port = primary.port().to_string();
        let demote = async || {
            server.command(&["REPLICAOF", "127.0.0.1", &port]);
        };
        let promote = async || {
            server.command(&["REPLICAOF", "NO", "ONE"]);
        };
        let after = fleet.suffers(demote, promote).await;
        // It has taken over the data of its primary, which is none.
        after.redis_keeps(1).all_keep(1).shares_keep();
        assert!(
            after.troubles().contains(&"refused"),
            "{:?}",
            after.troubles()
        );
    });
}

#[test]
fn the_user_may_not_any_more() {
    run(async {
        let server = RedisServer::start();
        // The test itself is somebody else, or it could not undo it.
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
            .suffers(async || as_operator("-@all"), async || as_operator("+@all"))
            .await;
        after.redis_keeps(0).all_keep(0).shares_keep();
        assert!(
            after.troubles().contains(&"refused"),
            "{:?}",
            after.troubles()
        );
    });
}

#[test]
fn it_is_busy_with_a_script_of_somebody_else() {
    run(async {
        let server = RedisServer::builder()
            .arg("busy-reply-threshold", "20")
            .start();
        let fleet = Fleet::start([server.url(); NODES]).await;
        let mut connection = server.connect().unwrap();
        let after = fleet
            .suffers(
                async || {
                    connection
                        .send(&["EVAL", "while true do end", "0"])
                        .unwrap()
                },
                async || {
                    until("the script is ended", || {
                        !server.command(&["SCRIPT", "KILL"]).is_error()
                    })
                    .await;
                },
            )
            .await;
        after.redis_keeps(0).all_keep(0);
    });
}

#[test]
fn it_loads_its_data() {
    run(async {
        // A moment per key, so that there is a time in which it loads, and so short a one that it
        // says so within the timeout.
        let slow = RedisServer::builder().aof(true).arg("key-load-delay", "50");
        let server = slow
            .arg("loading-process-events-interval-bytes", "1024")
            .start();
        // Before anybody asks: it takes as long as a decision may.
        let fill = "for i = 1, 20000 do redis.call('SET', 'other:' .. i, i) end";
        assert!(!server.command(&["EVAL", fill, "0"]).is_error());
        let fleet = Fleet::start([server.url(); NODES]).await;
        let store = fleet.nodes[0].0.clone();
        let loading = || matches!(store.status().trouble, Some((_, StoreError::Refused { code, .. })) if code == "LOADING");
        let mut seen = false;
        let after = fleet
            .suffers(
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
        after.redis_keeps(0).all_keep(0);
        assert!(seen, "it was never seen loading");
    });
}

#[test]
fn limits_change_while_they_are_asked_about() {
    run(async {
        let server = RedisServer::start();
        let fleet = Fleet::patient([server.url(); NODES], LONG).await;
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
            period_us: 1_000_000,
            burst: 10 * BURST,
        };
        // Before and after by the small one, all of it by the large one; growing gives nothing
        // away.
        judge(BUCKET.1, of(0).filter(|event| event.answered < up), 0).unwrap();
        judge(BUCKET.1, of(0).filter(|event| event.sent > down), 0).unwrap();
        judge(ten, of(0), 0).unwrap();
        judge(LOG.1, of(1).filter(|event| event.answered < up), 0).unwrap();
        judge(LOG.1, of(1).filter(|event| event.sent > down), 0).unwrap();
        judge(
            Bound::SlidingLog {
                limit: 300,
                window_us: 200_000,
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

/// The clock of Redis is stepped twice under load; what was admitted of the bucket, and how long it
/// took.
async fn stepped(by: Duration, first: bool) -> Vec<Event> {
    let server = RedisServer::builder().clock_file(true).start();
    let fleet = Fleet::patient([server.url(); NODES], LONG).await;
    for forward in [first, !first] {
        tokio::time::sleep(load_time(Duration::from_millis(300))).await;
        server.step_clock(by, forward);
        fleet.load.until_redis_answers_all().await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let last = now();
    // It still refills: in a time that is not longer than before.
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
            "nothing passes any more"
        );
    }
    events
}

#[test]
fn its_clock_is_stepped() {
    // Forward by x adds min(B, r·x), which for a log is what it has forgotten. Back adds nothing,
    // except that far back the gap is forgiven: the time that was gained before is not paid for.
    for (by, first) in [
        (Duration::from_secs(5), true),
        (Duration::from_secs(5), false),
        (Duration::from_secs(3_600), true),
        (Duration::from_secs(3_600), false),
    ] {
        let events = run(stepped(by, first));
        for (at, (text, bound)) in [BUCKET, LOG].into_iter().enumerate() {
            let of = events.iter().filter(|event| event.limit == at);
            let report = judge(bound, of, BURST)
                .unwrap_or_else(|broken| panic!("{text}, {by:?}, {first}: {broken}"));
            assert!(report.admitted >= BURST, "{text}: {report:?}");
        }
    }
}
