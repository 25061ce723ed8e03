//! Everything at once: every protocol, a reload every second, clients that hang up in the middle of
//! a frame, and a Redis that is killed again and again. Every answer is written down, and in the
//! end the books agree: with the limits, key by key, and with what the servers say they counted.
//! `make soak` does it for ten minutes and prints the figures.

mod asking;
mod book;
mod nuisance;
#[path = "../support/mod.rs"]
mod support;
mod watching;

use asking::{Ask, Auth, Check, Envoy, Forwarded, Reserve, Resp, Throttle};
use book::{Book, Entry};
use ratekeeper_testkit::RedisServer;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use support::{Server, config_file, directory, eventually, ratekeeper};
use watching::Watched;

/// What each key may have: so little comes back (one in more than an hour) that nothing does while
/// this runs.
const CAPACITY: u64 = 20;

/// One comes back in 72 minutes.
const LONGEST: u64 = 3600;

/// Keys that fit: far more than are asked about, and few enough that all their memory is touched
/// early.
const MOST: usize = 20 * book::KEYS;

const SECOND: Duration = Duration::from_secs(1);

fn seconds() -> u64 {
    let asked = std::env::var("RATEKEEPER_SOAK_SECONDS");
    let seconds = asked.map_or(8, |text| {
        text.parse()
            .expect("RATEKEEPER_SOAK_SECONDS is a number of seconds")
    });
    assert!(
        (1..=LONGEST).contains(&seconds),
        "RATEKEEPER_SOAK_SECONDS is from 1 to {LONGEST}"
    );
    seconds
}

/// The file of the service, which is written again every second. `turn` changes what nobody here
/// counts on.
fn policies(turn: u64) -> String {
    let gone = 1000 + turn % 7;
    let sometimes = if turn.is_multiple_of(2) {
        "[[policy]]\nname = \"sometimes\"\nmatch = { path = \"/never-asked\" }\nlimit = \"1/h sliding_log\"\n"
    } else {
        ""
    };
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n\
         [store]\nmax_keys = {MOST}\n\
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

fn of_gateway(upstream: SocketAddr) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[gateway]\nupstreams = [\"http://{upstream}\"]\n\
         [store]\nmax_keys = {MOST}\n\
         [[policy]]\nname = \"forwarded\"\nkey = [\"header:x-user\"]\nlimit = \"{CAPACITY}/d\"\n"
    )
}

fn of_fleet(redis: &RedisServer) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"250ms\"\non_failure = \"closed\"\n\
         [[policy]]\nname = \"check\"\nkey = [\"user\"]\nlimit = \"{CAPACITY}/d\"\n",
        redis.url()
    )
}

fn serving(file: &Path, limits: &Path) -> Command {
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

fn with_file(verb: &str, text: &str) -> Command {
    let mut command = ratekeeper();
    command.arg(verb).arg("--config").arg(config_file(text));
    command
}

/// The file as a whole or not at all: whoever reads it meanwhile sees the old one.
fn write(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(next, file).unwrap();
}

struct Reloads {
    taken: u64,
    refused: u64,
}

/// Every second another file, and every fifth is none.
fn reload(server: &Server, file: &Path, over: &AtomicBool) -> Reloads {
    let mut reloads = Reloads {
        taken: 0,
        refused: 0,
    };
    for turn in 1.. {
        let (text, expected) = match turn % 5 {
            0 => ("[[policy]]\nname = 7\n".to_owned(), 400..500),
            _ => (policies(turn), 200..201),
        };
        write(file, &text);
        let status = server.admin("POST", "/admin/reload").status();
        assert!(expected.contains(&status), "turn {turn}: {status}");
        match status {
            200 => reloads.taken += 1,
            _ => reloads.refused += 1,
        }
        if watching::over_within(over, SECOND) {
            break;
        }
    }
    write(file, &policies(0));
    assert_eq!(server.admin("POST", "/admin/reload").status(), 200);
    reloads.taken += 1;
    reloads
}

/// Kills Redis and starts it again, and waits until both nodes decide on it again.
fn restart(redis: &RedisServer, nodes: &[Server], over: &AtomicBool) -> u64 {
    let mut times = 0;
    loop {
        redis.kill();
        let gone = watching::over_within(over, SECOND / 2);
        redis.restart();
        times += 1;
        eventually("a decision on Redis", || {
            nodes
                .iter()
                .all(|node| node.figure("ratekeeper_store_fallback_active") == 0.0)
        });
        if gone || watching::over_within(over, 3 * SECOND) {
            return times;
        }
    }
}

/// Asks until it is over, from two threads, about keys of which some are asked for far more often
/// than others.
fn run<'s, A: Ask>(
    scope: &'s Scope<'s, '_>,
    over: &'s AtomicBool,
    book: &'s Book,
    make: impl Fn() -> A + Send + Sync + Copy + 's,
) -> [ScopedJoinHandle<'s, ()>; 2] {
    [1, 2].map(|seed| {
        scope.spawn(move || {
            let mut keys = book::Keys::new(seed);
            while !over.load(Relaxed) {
                // A connection of its own for some hundred asks.
                let mut asker = make();
                for _ in 0..keys.below(500) {
                    if over.load(Relaxed) {
                        break;
                    }
                    let key = keys.next();
                    book.add(key, asker.ask(key));
                }
            }
        })
    })
}

#[test]
fn the_books_agree_whatever_happens_meanwhile() {
    let seconds = seconds();
    let (upstream, forwarded) = asking::counting_service();
    let redis = RedisServer::builder().aof(true).start();
    let file = config_file(&policies(0));
    let limits = directory(&[("soak.yaml", ENVOY)]);
    let mut server = Server::run(serving(&file, &limits));
    let mut gateway = Server::run(with_file("proxy", &of_gateway(upstream)));
    let mut nodes = [(); 2].map(|()| Server::run(with_file("serve", &of_fleet(&redis))));
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
    ] = [(); 8].map(|()| Book::new());
    let watched = [
        ("service", &server),
        ("gateway", &gateway),
        ("node 1", &nodes[0]),
        ("node 2", &nodes[1]),
    ];
    let watched = watched.map(|(name, server)| Watched::new(name, server.id()));
    let over = &AtomicBool::new(false);
    let (reloads, restarts, cut, gone) = thread::scope(|scope| {
        let (server, gateway, nodes, redis, file) = (&server, &gateway, &nodes, &redis, &file);
        run(scope, over, &check, || Check::new(server.address, "/check"));
        run(scope, over, &auth, || Auth::new(server.address));
        run(scope, over, &throttle, || Throttle::new(server.address));
        run(scope, over, &envoy, || Envoy::new(server.grpc.unwrap()));
        run(scope, over, &cl_throttle, || Resp::new(resp));
        run(scope, over, &reserve, || Reserve::new(server.address));
        run(scope, over, &proxied, || Forwarded::new(gateway.address));
        for node in nodes {
            run(scope, over, &fleet, || Check::new(node.address, "/"));
        }
        let listeners = [
            ("http", server.address),
            ("grpc", server.grpc.unwrap()),
            ("resp", resp),
            ("head", server.admin),
            // It forwards what comes after a whole head, and counts it.
            ("head", gateway.address),
            ("http", nodes[0].address),
        ];
        let cut = scope.spawn(move || nuisance::cut(&listeners, over));
        let gone = scope.spawn(move || nuisance::go(server.address, over));
        let reloads = scope.spawn(move || reload(server, file, over));
        let restarts = scope.spawn(move || restart(redis, nodes, over));
        let watching = watched
            .each_ref()
            .map(|watched| scope.spawn(|| watched.until(over)));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds)
            && !watching.iter().any(ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Relaxed);
        (
            reloads.join().unwrap(),
            restarts.join().unwrap(),
            cut.join().unwrap(),
            gone.join().unwrap(),
        )
    });

    // Each key had exactly its limit, and each answer was counted where it was given.
    let in_memory = [
        ("check", &check),
        ("auth", &auth),
        ("throttle", &throttle),
        ("envoy", &envoy),
        ("resp", &cl_throttle),
    ];
    let mut all = Entry::default();
    for (name, book) in in_memory {
        book.assert_exact(name, CAPACITY);
        all = all + book.sum();
    }
    proxied.assert_exact("gateway", CAPACITY);
    assert_eq!(
        proxied.sum().allowed,
        forwarded.load(Relaxed),
        "what passed the gateway reached the service, once"
    );
    // What was cancelled came back: nobody was turned away, and every key is as fresh as it was.
    let reserved = reserve.sum();
    assert_eq!((reserved.denied, reserved.unanswered), (0, 0));
    reserve.for_each(|key, _| {
        assert_eq!(
            asking::left(&server, "/reserve", key),
            CAPACITY,
            "key {key}"
        );
    });
    fleet.assert_never_too_many(CAPACITY);

    let outcome = |policy: &str, outcome: &str| {
        server.figure(&format!(
            "ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"
        )) as u64
    };
    for (policy, book) in [
        ("check", &check),
        ("auth", &auth),
        ("envoy soak.user", &envoy),
    ] {
        let sum = book.sum();
        assert_eq!(
            (outcome(policy, "allowed"), outcome(policy, "denied")),
            (sum.allowed, sum.denied),
            "{policy}"
        );
    }
    let hung_up = outcome("gone", "allowed") + outcome("gone", "denied");
    assert!(
        hung_up <= gone,
        "{hung_up} decided of {gone} whose caller hung up"
    );
    let allowed = all.allowed + reserved.allowed + outcome("gone", "allowed");
    let denied = all.denied + outcome("gone", "denied");
    assert_eq!(server.figure("ratelimit_requests_allowed") as u64, allowed);
    assert_eq!(server.figure("ratelimit_requests_blocked") as u64, denied);
    assert_eq!(
        gateway.figure("ratelimit_requests_total") as u64,
        proxied.sum().asked()
    );
    let decided: f64 = nodes
        .iter()
        .map(|node| node.figure("ratelimit_requests_total"))
        .sum();
    assert_eq!(decided as u64, fleet.sum().asked());
    assert!(
        server.figure("ratekeeper_config_reloads_total{result=\"ok\"}") as u64 >= reloads.taken
    );
    assert!(
        server.figure("ratekeeper_config_reloads_total{result=\"refused\"}") as u64
            >= reloads.refused
    );

    println!(
        "{seconds} s, {} reloads and {} rejected files, Redis killed {restarts} times,",
        reloads.taken, reloads.refused
    );
    println!(
        "{cut} connections cut in the middle of a frame, {gone} callers that left before their response\n"
    );
    println!(
        "| protocol | requests | allowed | denied | undecided: Redis was down |\n| --- | --: | --: | --: | --: |"
    );
    let others = [
        ("reserve and cancel", &reserve),
        ("gateway", &proxied),
        ("two nodes on Redis", &fleet),
    ];
    for (name, book) in in_memory.into_iter().chain(others) {
        let Entry {
            allowed,
            denied,
            unanswered,
        } = book.sum();
        println!(
            "| {name} | {} | {allowed} | {denied} | {unanswered} |",
            book.sum().asked()
        );
    }
    println!(
        "\n| process | memory early | memory late | growth | file descriptors at start and end |\n| --- | --: | --: | --: | --: |"
    );
    for watched in &watched {
        watched.report(seconds);
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
