//! Decisions on Redis: ours, which share calls, beside one call per decision, pipelined; and the
//! cost of a Redis that hangs.

use super::Group;
use crate::harness::{is_quick, median};
use crate::peers::lua_bucket::LuaBucket;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::{Ask, Limit, Store, store::LimitHandle, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

pub(super) const GROUP: Group = Group {
    name: "redis",
    about: "one Redis, 256 callers, 10,000 keys: decisions a second, round trips, and a Redis that hangs",
    run,
};

const CALLERS: u64 = 256;
const KEYS: u64 = 10_000;
/// The limit: about the rate at which a key is called, so that its bucket is neither full nor
/// empty.
const RATE: u64 = 20;
const BURST: u64 = 100;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1_500);
const TIMEOUT: Duration = Duration::from_millis(10);
/// How long Redis hangs.
const HANGS: Duration = Duration::from_secs(2);

const OURS: &str = "ratekeeper";
const PEER: &str = "one EVALSHA a decision, pipelined";

fn run(group: &'static str) -> Findings {
    if !has_redis() {
        println!("skipped: redis-server is not installed\n");
        return Findings {
            goals: goals(None, None, None),
            ..Findings::default()
        };
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = RedisServer::start();
    let mut found = Findings::default();
    let both = throughput(&runtime, &server);
    let lines = [(OURS, both[0]), (PEER, both[1])].map(
        |(
            competitor,
            Round {
                rate,
                redis,
                client,
            },
        )| {
            let ratio = format!("{:.2}", rate / both[1].rate);
            vec![
                competitor.to_owned(),
                format!("{rate:.0}"),
                ratio,
                format!("{redis:.2}"),
                format!("{client:.2}"),
            ]
        },
    );
    let header = [
        "exact token bucket, 256 callers",
        "decisions/s",
        "ratio",
        "µs of Redis a decision",
        "µs of the client",
    ];
    println!("{}\n", table(&header, lines.into_iter()));
    let [ours, peer] = both.map(|round| round.rate);
    for (competitor, Round { redis, client, .. }) in [(OURS, both[0]), (PEER, both[1])] {
        for (of, value) in [("Redis", redis), ("the client", client)] {
            let row = format!("processor time of {of}, a decision");
            let params = object(json!({ "callers": CALLERS, "keys": KEYS, "statistic": "median" }));
            found.rows.push(Row {
                group,
                row,
                competitor: competitor.into(),
                value,
                unit: "µs",
                ratio_to: None,
                params,
            });
        }
    }
    for (competitor, rate) in [(OURS, ours), (PEER, peer)] {
        let params = json!({ "callers": CALLERS, "keys": KEYS, "statistic": "median", "limit": format!("{RATE}/s burst {BURST}") });
        let ratio_to = (competitor == OURS).then(|| Ratio {
            competitor: PEER.into(),
            ratio: ours / peer,
        });
        let row = "decisions a second".into();
        found.rows.push(Row {
            group,
            row,
            competitor: competitor.into(),
            value: rate,
            unit: "decisions/s",
            ratio_to,
            params: object(params),
        });
    }
    if is_quick() {
        found.goals = goals(Some(ours / peer), None, None);
        return found;
    }

    let trips = round_trips(&runtime, &server);
    let lines = trips
        .iter()
        .map(|(limits, calls)| vec![limits.to_string(), format!("{calls:.2}")]);
    println!(
        "{}\n",
        table(
            &[
                "limits of a request, one caller",
                "calls of Redis a request"
            ],
            lines
        )
    );
    for (limits, calls) in &trips {
        let row = format!("calls of Redis a request, {limits} limits");
        let params = object(json!({ "callers": 1 }));
        found.rows.push(Row {
            group,
            row,
            competitor: OURS.into(),
            value: *calls,
            unit: "calls",
            ratio_to: None,
            params,
        });
    }

    let hanging = hanging(&runtime, &server);
    let lines = [
        ("median", 0.5),
        ("p99", 0.99),
        ("p99.9", 0.999),
        ("slowest", 1.0),
    ]
    .map(|(name, part)| {
        vec![
            name.to_owned(),
            format!("{:.2}", millis(quantile(&hanging, part))),
        ]
    });
    println!(
        "{}\n",
        table(
            &["Redis stopped for 2 s, 64 callers", "ms a decision"],
            lines.into_iter()
        )
    );
    let slowest = quantile(&hanging, 0.999);
    found.rows.push(Row {
        group,
        row: "a decision while Redis hangs, p99.9".into(),
        competitor: OURS.into(),
        value: slowest.as_nanos() as f64,
        unit: "ns",
        ratio_to: None,
        params: object(json!({ "callers": 64, "timeout_ms": 10, "decisions": hanging.len() })),
    });
    let most = trips.iter().map(|(_, calls)| *calls).fold(0.0, f64::max);
    found.goals = goals(Some(ours / peer), Some(most), Some(millis(slowest)));
    found
}

pub(super) fn has_redis() -> bool {
    Command::new("redis-server")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok()
}

/// Returns how many scripts Redis has run by their hash.
pub(super) fn script_calls(server: &RedisServer) -> u64 {
    let text = server.command(&["INFO", "commandstats"]);
    let text = text.text().unwrap_or_default().to_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u64>().ok())
        .unwrap_or(0)
}

fn goals(ratio: Option<f64>, trips: Option<f64>, hanging: Option<f64>) -> Vec<Goal> {
    let because = "redis-server is not installed";
    let goal = |text: &str, bound, measured| Goal {
        text: text.into(),
        bound,
        measured,
        because,
    };
    vec![
        goal(
            "decisions/s on one Redis, 256 callers / one EVALSHA a decision, pipelined",
            Bound::AtLeast(1.6),
            ratio,
        ),
        goal(
            "round trips a request, whatever the number of limits",
            Bound::AtMost(1.0),
            trips,
        ),
        goal(
            "ms a decision while Redis hangs, p99.9, timeout 10 ms",
            Bound::AtMost(15.0),
            hanging,
        ),
    ]
}

/// The result of a round.
#[derive(Clone, Copy)]
struct Round {
    /// Decisions per second.
    rate: f64,
    /// Microseconds of processor time per decision, of Redis and of this program.
    redis: f64,
    client: f64,
}

/// Runs rounds of each contestant, alternating; returns the medians.
fn throughput(runtime: &Runtime, server: &RedisServer) -> [Round; 2] {
    let (store, limit) = runtime.block_on(connect(server, Duration::from_secs(10)));
    let peer = runtime
        .block_on(LuaBucket::connect(server.url(), BURST, 1_000_000 / RATE))
        .expect("Redis answers");
    let keys: Arc<[String]> = (0..KEYS).map(|key| format!("user:{key}")).collect();
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..=if is_quick() { 2 } else { ROUNDS } {
        let ours = runtime.block_on(load(server, |caller, until| {
            let (store, limit, keys) = (store.clone(), limit.clone(), Arc::clone(&keys));
            async move {
                let (mut decided, mut key) = (0_u64, caller);
                while Instant::now() < until {
                    let verdict = store
                        .decide(&[Ask::new(&limit, &keys[next(&mut key)])])
                        .await;
                    assert_eq!(verdict.source(), Source::Redis);
                    decided += 1;
                }
                decided
            }
        }));
        let theirs = runtime.block_on(load(server, |caller, until| {
            let (mut peer, keys) = (peer.clone(), Arc::clone(&keys));
            async move {
                let (mut decided, mut key) = (0_u64, caller);
                while Instant::now() < until {
                    peer.check(&keys[next(&mut key)]).await;
                    decided += 1;
                }
                decided
            }
        }));
        // The first round is to warm up.
        if round > 0 {
            rates[0].push(ours);
            rates[1].push(theirs);
        }
    }
    rates.map(|rounds: Vec<Round>| Round {
        rate: median(rounds.iter().map(|round| round.rate)),
        redis: median(rounds.iter().map(|round| round.redis)),
        client: median(rounds.iter().map(|round| round.client)),
    })
}

/// Returns the seconds of processor time that Redis has used.
fn redis_time(server: &RedisServer) -> f64 {
    let text = server.command(&["INFO", "cpu"]);
    let text = text.text().unwrap_or_default().to_owned();
    let of = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
    };
    of("used_cpu_user:").unwrap_or(0.0) + of("used_cpu_sys:").unwrap_or(0.0)
}

/// Returns the seconds of processor time that this program has used.
fn own_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the next key, in pseudo-random order.
fn next(key: &mut u64) -> usize {
    *key = key
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*key >> 33) as usize % KEYS as usize
}

/// Runs many callers at once.
async fn load<F: Future<Output = u64> + Send + 'static>(
    server: &RedisServer,
    caller: impl Fn(u64, Instant) -> F,
) -> Round {
    let (redis, client) = (redis_time(server), own_time());
    let start = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| tokio::spawn(caller(number, start + ROUND)))
        .collect();
    let mut decided = 0;
    for caller in callers {
        decided += caller.await.expect("a caller");
    }
    let rate = decided as f64 / start.elapsed().as_secs_f64();
    let each = |seconds: f64| seconds * 1e6 / decided as f64;
    Round {
        rate,
        redis: each(redis_time(server) - redis),
        client: each(own_time() - client),
    }
}

async fn connect(server: &RedisServer, timeout: Duration) -> (RedisStore, LimitHandle) {
    let store = RedisStore::builder(server.url()).timeout(timeout);
    let store = store.connect().await.expect("Redis answers");
    let limit = store
        .limit("bench", Limit::per_second(RATE).burst(BURST))
        .expect("a limit");
    (store, limit)
}

/// Returns how many calls Redis counts for a request with this many limits, by one caller.
fn round_trips(runtime: &Runtime, server: &RedisServer) -> Vec<(usize, f64)> {
    const REQUESTS: u64 = 2_000;
    let (store, _) = runtime.block_on(connect(server, Duration::from_secs(10)));
    let limits: Vec<LimitHandle> = (0..8)
        .map(|number| {
            store
                .limit(&format!("limit {number}"), Limit::per_second(1_000_000))
                .expect("a limit")
        })
        .collect();
    let calls = || script_calls(server);
    [1, 2, 5, 8]
        .into_iter()
        .map(|many| {
            let before = calls();
            runtime.block_on(async {
                for key in 0..REQUESTS {
                    let key = key.to_string();
                    let asks: Vec<Ask<'_>> = limits[..many]
                        .iter()
                        .map(|limit| Ask::new(limit, &key))
                        .collect();
                    let _ = store.decide(&asks).await;
                }
            });
            (many, (calls() - before) as f64 / REQUESTS as f64)
        })
        .collect()
}

/// Returns how long decisions take while Redis is stopped, sorted.
fn hanging(runtime: &Runtime, server: &RedisServer) -> Vec<Duration> {
    let (store, limit) = runtime.block_on(connect(server, TIMEOUT));
    server.stop_signal();
    let mut times: Vec<Duration> = runtime.block_on(async {
        let until = Instant::now() + HANGS;
        let callers: Vec<_> = (0..64)
            .map(|number: u64| {
                let (store, limit) = (store.clone(), limit.clone());
                tokio::spawn(async move {
                    let key = number.to_string();
                    let mut times = Vec::new();
                    while Instant::now() < until {
                        let start = Instant::now();
                        let _ = store.decide(&[Ask::new(&limit, &key)]).await;
                        times.push(start.elapsed());
                        // As a caller that does other work in between.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    times
                })
            })
            .collect();
        let mut all = Vec::new();
        for caller in callers {
            all.extend(caller.await.expect("a caller"));
        }
        all
    });
    server.cont();
    times.sort();
    times
}

fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
