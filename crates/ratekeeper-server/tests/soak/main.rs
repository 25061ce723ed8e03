//! The soak test: every protocol, a reload every second, clients that disconnect in the middle of a
//! frame, and a Redis that is killed repeatedly, all at once. All answers are counted, and in the
//! end the totals match the limit of each key and the metrics of the servers. `make soak` does it
//! for ten minutes and prints the results.

mod clients;
mod disconnects;
#[path = "../../proto/mod.rs"]
mod proto;
mod resources;
#[path = "../support/mod.rs"]
mod support;
mod tally;

use clients::{Auth, Check, DecisionClient, Envoy, Forwarded, Reserve, Resp, Throttle};
use ratekeeper_testkit::RedisServer;
use resources::ProcessMonitor;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use support::{Server, config_file, directory, eventually, ratekeeper};
use tally::{KeyCounts, Tally};

/// The capacity of each key. It refills one unit in 72 minutes, so none during a test.
const CAPACITY: u64 = 20;

/// Less than the time in which a unit is refilled.
const MAX_SECONDS: u64 = 3600;

/// `max_keys`: far more than are used, and few enough that all their memory is touched early.
const MAX_KEYS: usize = 20 * tally::KEYS;

const SECOND: Duration = Duration::from_secs(1);

fn seconds() -> u64 {
    let variable = std::env::var("RATEKEEPER_SOAK_SECONDS");
    let seconds = variable.map_or(8, |text| {
        text.parse()
            .expect("RATEKEEPER_SOAK_SECONDS is a number of seconds")
    });
    assert!(
        (1..=MAX_SECONDS).contains(&seconds),
        "RATEKEEPER_SOAK_SECONDS is from 1 to {MAX_SECONDS}"
    );
    seconds
}

/// The configuration of the service, which is rewritten every second. `revision` changes policies
/// that the totals do not depend on.
fn policies(revision: u64) -> String {
    let gone = 1000 + revision % 7;
    let sometimes = if revision.is_multiple_of(2) {
        "[[policy]]\nname = \"sometimes\"\nmatch = { path = \"/never-asked\" }\nlimit = \"1/h sliding_log\"\n"
    } else {
        ""
    };
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n\
         [store]\nmax_keys = {MAX_KEYS}\n\
         [[policy]]\nname = \"check\"\nmatch = {{ path = \"/check\" }}\nkey = [\"user\"]\nlimit = \"{CAPACITY}/d\"\n\
         [[policy]]\nname = \"auth\"\nmatch = {{ path = \"/auth\" }}\nkey = [\"ip\"]\nlimit = \"{CAPACITY}/d\"\n\
         [[policy]]\nname = \"reserve\"\nmatch = {{ path = \"/reserve\" }}\nkey = [\"user\"]\nlimit = \"{CAPACITY}/d\"\n\
         [[policy]]\nname = \"gone\"\nmatch = {{ path = \"/gone\" }}\nkey = [\"user\"]\nlimit = \"{gone}/s\"\n{sometimes}"
    )
}

const ENVOY: &str = "
domain: soak
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 20, algorithm: token_bucket }
";

fn gateway_config(upstream: SocketAddr) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[gateway]\nupstreams = [\"http://{upstream}\"]\n\
         [store]\nmax_keys = {MAX_KEYS}\n\
         [[policy]]\nname = \"forwarded\"\nkey = [\"header:x-user\"]\nlimit = \"{CAPACITY}/d\"\n"
    )
}

fn fleet_config(redis: &RedisServer) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"250ms\"\non_failure = \"closed\"\n\
         [[policy]]\nname = \"check\"\nkey = [\"user\"]\nlimit = \"{CAPACITY}/d\"\n",
        redis.url()
    )
}

fn serve_command(file: &Path, limits: &Path) -> Command {
    let mut command = ratekeeper();
    command.env_remove("RATEKEEPER_SERVER__RESP");
    command
        .arg("serve")
        .arg("--config")
        .arg(file)
        .arg("--envoy-config")
        .arg(limits);
    command
}

fn command_with_config(verb: &str, text: &str) -> Command {
    let mut command = ratekeeper();
    command.arg(verb).arg("--config").arg(config_file(text));
    command
}

/// Replaces the file atomically.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, file).unwrap();
}

/// How many reloads succeeded and were rejected.
struct ReloadCounts {
    succeeded: u64,
    rejected: u64,
}

/// Reloads a different configuration every second; every fifth is invalid.
fn reload_repeatedly(server: &Server, file: &Path, stopped: &AtomicBool) -> ReloadCounts {
    let mut reloads = ReloadCounts {
        succeeded: 0,
        rejected: 0,
    };
    for revision in 1.. {
        let (text, expected) = match revision % 5 {
            0 => ("[[policy]]\nname = 7\n".to_owned(), 400..500),
            _ => (policies(revision), 200..201),
        };
        replace(file, &text);
        let status = server.admin("POST", "/admin/reload").status();
        assert!(expected.contains(&status), "revision {revision}: {status}");
        match status {
            200 => reloads.succeeded += 1,
            _ => reloads.rejected += 1,
        }
        if resources::stopped_within(stopped, SECOND) {
            break;
        }
    }
    replace(file, &policies(0));
    assert_eq!(server.admin("POST", "/admin/reload").status(), 200);
    reloads.succeeded += 1;
    reloads
}

/// Kills and restarts Redis until stopped, each time waiting until both nodes use it again.
fn restart_repeatedly(redis: &RedisServer, nodes: &[Server], stopped: &AtomicBool) -> u64 {
    let mut times = 0;
    loop {
        redis.kill();
        let is_stopped = resources::stopped_within(stopped, SECOND / 2);
        redis.restart();
        times += 1;
        eventually("the end of the fallback", || {
            nodes
                .iter()
                .all(|node| node.metric("ratekeeper_store_fallback_active") == 0.0)
        });
        if is_stopped || resources::stopped_within(stopped, 3 * SECOND) {
            return times;
        }
    }
}

/// Sends requests from two threads until stopped.
fn send_requests<'s, C: DecisionClient>(
    scope: &'s Scope<'s, '_>,
    stopped: &'s AtomicBool,
    tally: &'s Tally,
    connect: impl Fn() -> C + Send + Sync + Copy + 's,
) -> [ScopedJoinHandle<'s, ()>; 2] {
    [1, 2].map(|seed| {
        scope.spawn(move || {
            let mut keys = tally::Keys::new(seed);
            while !stopped.load(Relaxed) {
                // A new connection for some hundred requests.
                let mut client = connect();
                for _ in 0..keys.below(500) {
                    if stopped.load(Relaxed) {
                        break;
                    }
                    let key = keys.next();
                    tally.add(key, client.request(key));
                }
            }
        })
    })
}

#[test]
fn totals_match_despite_reloads_disconnects_and_restarts() {
    let seconds = seconds();
    let (upstream, forwarded) = clients::counting_service();
    let redis = RedisServer::builder().aof(true).start();
    let file = config_file(&policies(0));
    let limits = directory(&[("soak.yaml", ENVOY)]);
    let mut server = Server::run(serve_command(&file, &limits));
    let mut gateway = Server::run(command_with_config("proxy", &gateway_config(upstream)));
    let mut nodes =
        [(); 2].map(|()| Server::run(command_with_config("serve", &fleet_config(&redis))));
    let logs: Vec<_> = [&mut server, &mut gateway]
        .into_iter()
        .chain(&mut nodes)
        .map(Server::read_log)
        .collect();
    let resp = server.resp();

    let [
        check,
        auth,
        throttle,
        envoy,
        cl_throttle,
        reserve,
        proxied,
        fleet,
    ] = [(); 8].map(|()| Tally::new());
    let monitors = [
        ("service", &server),
        ("gateway", &gateway),
        ("node 1", &nodes[0]),
        ("node 2", &nodes[1]),
    ];
    let monitors = monitors.map(|(name, server)| ProcessMonitor::new(name, server.id()));
    let stopped = &AtomicBool::new(false);
    let (reloads, restarts, cut, gone) = thread::scope(|scope| {
        let (server, gateway, nodes, redis, file) = (&server, &gateway, &nodes, &redis, &file);
        send_requests(scope, stopped, &check, || {
            Check::new(server.address, "/check")
        });
        send_requests(scope, stopped, &auth, || Auth::new(server.address));
        send_requests(scope, stopped, &throttle, || Throttle::new(server.address));
        send_requests(scope, stopped, &envoy, || Envoy::new(server.grpc.unwrap()));
        send_requests(scope, stopped, &cl_throttle, || Resp::new(resp));
        send_requests(scope, stopped, &reserve, || Reserve::new(server.address));
        send_requests(scope, stopped, &proxied, || Forwarded::new(gateway.address));
        for node in nodes {
            send_requests(scope, stopped, &fleet, || Check::new(node.address, "/"));
        }
        let listeners = [
            ("http", server.address),
            ("grpc", server.grpc.unwrap()),
            ("resp", resp),
            ("head", server.admin),
            // Whole heads: the gateway would forward and count requests.
            ("head", gateway.address),
            ("http", nodes[0].address),
        ];
        let cut = scope.spawn(move || disconnects::cut_off_frames(&listeners, stopped));
        let gone = scope.spawn(move || disconnects::leave_before_answers(server.address, stopped));
        let reloads = scope.spawn(move || reload_repeatedly(server, file, stopped));
        let restarts = scope.spawn(move || restart_repeatedly(redis, nodes, stopped));
        let sampling = monitors
            .each_ref()
            .map(|monitor| scope.spawn(|| monitor.run(stopped)));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds)
            && !sampling.iter().any(ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(50));
        }
        stopped.store(true, Relaxed);
        (
            reloads.join().unwrap(),
            restarts.join().unwrap(),
            cut.join().unwrap(),
            gone.join().unwrap(),
        )
    });

    // Each key was allowed exactly its limit, and every answer is in the metrics.
    let in_memory = [
        ("check", &check),
        ("auth", &auth),
        ("throttle", &throttle),
        ("envoy", &envoy),
        ("resp", &cl_throttle),
    ];
    let mut all = KeyCounts::default();
    for (name, tally) in in_memory {
        tally.assert_exact(name, CAPACITY);
        all = all + tally.sum();
    }
    proxied.assert_exact("gateway", CAPACITY);
    assert_eq!(
        proxied.sum().allowed,
        forwarded.load(Relaxed),
        "each request that the gateway allowed reached the service once"
    );
    // Cancelled reservations were refunded: none was denied, and every key has its whole capacity.
    let reserved = reserve.sum();
    assert_eq!((reserved.denied, reserved.undecided), (0, 0));
    reserve.for_each(|key, _| {
        assert_eq!(
            clients::remaining(&server, "/reserve", key),
            CAPACITY,
            "key {key}"
        );
    });
    fleet.assert_never_too_many(CAPACITY);

    let outcome = |policy: &str, outcome: &str| {
        server.metric(&format!(
            "ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"
        )) as u64
    };
    for (policy, tally) in [
        ("check", &check),
        ("auth", &auth),
        ("envoy soak.user", &envoy),
    ] {
        let sum = tally.sum();
        assert_eq!(
            (outcome(policy, "allowed"), outcome(policy, "denied")),
            (sum.allowed, sum.denied),
            "{policy}"
        );
    }
    let abandoned = outcome("gone", "allowed") + outcome("gone", "denied");
    assert!(
        abandoned <= gone,
        "{abandoned} of {gone} abandoned requests decided"
    );
    let allowed = all.allowed + reserved.allowed + outcome("gone", "allowed");
    let denied = all.denied + outcome("gone", "denied");
    assert_eq!(server.metric("ratelimit_requests_allowed") as u64, allowed);
    assert_eq!(server.metric("ratelimit_requests_blocked") as u64, denied);
    assert_eq!(
        gateway.metric("ratelimit_requests_total") as u64,
        proxied.sum().requests()
    );
    let decided: f64 = nodes
        .iter()
        .map(|node| node.metric("ratelimit_requests_total"))
        .sum();
    assert_eq!(decided as u64, fleet.sum().requests());
    assert!(
        server.metric("ratekeeper_config_reloads_total{result=\"ok\"}") as u64 >= reloads.succeeded
    );
    assert!(
        server.metric("ratekeeper_config_reloads_total{result=\"rejected\"}") as u64
            >= reloads.rejected
    );

    println!(
        "{seconds} s, {} reloads and {} rejected files, Redis killed {restarts} times,",
        reloads.succeeded, reloads.rejected
    );
    println!(
        "{cut} connections cut in the middle of a frame, {gone} clients that left before their response\n"
    );
    println!(
        "| protocol | requests | allowed | denied | undecided: Redis was down |\n| --- | --: | --: | --: | --: |"
    );
    let others = [
        ("reserve and cancel", &reserve),
        ("gateway", &proxied),
        ("two nodes on Redis", &fleet),
    ];
    for (name, tally) in in_memory.into_iter().chain(others) {
        let KeyCounts {
            allowed,
            denied,
            undecided,
        } = tally.sum();
        println!(
            "| {name} | {} | {allowed} | {denied} | {undecided} |",
            tally.sum().requests()
        );
    }
    println!(
        "\n| process | memory early | memory late | growth | file descriptors at start and end |\n| --- | --: | --: | --: | --: |"
    );
    for monitor in &monitors {
        monitor.report(seconds);
    }
    for server in [server, gateway].into_iter().chain(nodes) {
        server.signal("TERM");
        assert!(server.ended().0.success());
    }
    for log in logs {
        let log = log.join().unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
}
