//! Real servers: each option does what it says, and nothing is left behind.

use ratekeeper_testkit::{Connection, RedisCluster, RedisSentinels, RedisServer, Reply};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn simple(text: &str) -> Reply {
    Reply::Simple(text.into())
}

/// The clock of the server in µs.
fn time(redis: &RedisServer) -> i64 {
    let reply = redis.command(&["TIME"]);
    let [seconds, micros] = reply.items() else {
        panic!("{reply:?}")
    };
    seconds.int().unwrap() * 1_000_000 + micros.int().unwrap()
}

fn process_exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn it_answers_on_its_port_and_its_socket() {
    let redis = RedisServer::start();
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert_eq!(redis.command(&["SET", "key", "väl\r\nue"]), simple("OK"));
    assert_eq!(
        Connection::tcp(redis.port())
            .unwrap()
            .command(&["GET", "key"])
            .unwrap(),
        Reply::Bulk("väl\r\nue".into())
    );
    assert_eq!(
        Connection::unix(redis.unix_path())
            .unwrap()
            .command(&["EXISTS", "key"])
            .unwrap(),
        Reply::Int(1)
    );
}

#[test]
fn every_kind_of_reply_is_understood() {
    let redis = RedisServer::start();
    assert_eq!(redis.command(&["INCR", "n"]), Reply::Int(1));
    assert_eq!(redis.command(&["GET", "none"]), Reply::Nil);
    assert_eq!(redis.command(&["SET", "empty", ""]), simple("OK"));
    assert_eq!(
        redis.command(&["MGET", "empty", "none"]),
        Reply::Array(vec![Reply::Bulk(vec![]), Reply::Nil])
    );
    let nested = redis.command(&["EVAL", "return {1, {'two', {}}, false}", "0"]);
    let inner = Reply::Array(vec![Reply::Bulk(b"two".to_vec()), Reply::Array(vec![])]);
    assert_eq!(nested, Reply::Array(vec![Reply::Int(1), inner, Reply::Nil]));
    let error = redis.command(&["NONSENSE"]);
    assert!(
        error.is_error() && error.text().unwrap().starts_with("ERR unknown command"),
        "{error:?}"
    );
}

#[test]
fn a_drop_in_a_panic_removes_process_and_directory() {
    let seen = std::sync::Mutex::new(None);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let redis = RedisServer::builder().aof(true).start();
        *seen.lock().unwrap() = Some((redis.pid(), redis.unix_path().parent().unwrap().to_owned()));
        assert!(redis.unix_path().exists());
        std::panic::resume_unwind(Box::new("the test failed"));
    }));
    assert!(panicked.is_err());
    let (pid, dir) = seen.into_inner().unwrap().unwrap();
    assert!(!process_exists(pid), "redis-server outlived its test");
    assert!(!dir.exists(), "{dir:?} outlived its test");
}

#[test]
fn killed_and_restarted_it_is_empty_on_the_same_port() {
    let redis = RedisServer::start();
    let (pid, port) = (redis.pid(), redis.port());
    redis.command(&["SET", "key", "1"]);
    redis.kill();
    redis.kill();
    assert!(redis.try_command(&["PING"]).is_err());
    redis.restart();
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.port(), port);
    assert_eq!(
        Connection::tcp(port)
            .unwrap()
            .command(&["GET", "key"])
            .unwrap(),
        Reply::Nil
    );
}

#[test]
fn with_aof_answered_writes_survive_a_kill() {
    let redis = RedisServer::builder().aof(true).start();
    for _ in 0..3 {
        redis.command(&["INCR", "key"]);
        redis.kill();
        redis.restart();
    }
    assert_eq!(redis.command(&["GET", "key"]).int(), Some(3));
}

#[test]
fn stopped_it_keeps_connections_and_does_not_answer() {
    let redis = RedisServer::start();
    let mut connection = Connection::tcp(redis.port()).unwrap();
    assert_eq!(connection.command(&["PING"]).unwrap(), simple("PONG"));
    connection.set_timeout(Duration::from_millis(50)).unwrap();
    redis.stop_signal();
    let waited = connection.command(&["PING"]).unwrap_err();
    assert!(
        matches!(
            waited.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        ),
        "{waited}"
    );
    redis.cont();
    // The late reply.
    connection
        .set_timeout(ratekeeper_testkit::resp::TIMEOUT)
        .unwrap();
    assert_eq!(connection.read().unwrap(), simple("PONG"));
}

#[test]
fn a_stopped_server_can_be_dropped() {
    let redis = RedisServer::start();
    let pid = redis.pid();
    redis.stop_signal();
    drop(redis);
    assert!(!process_exists(pid));
}

#[test]
fn a_password_is_required() {
    let redis = RedisServer::builder().password("op\\en \"sesame").start();
    assert_eq!(redis.command(&["PING"]), simple("PONG"));
    let reply = Connection::tcp(redis.port())
        .unwrap()
        .command(&["PING"])
        .unwrap();
    assert!(reply.text().unwrap().starts_with("NOAUTH"), "{reply:?}");
    assert_eq!(
        RedisServer::builder()
            .password("x")
            .start()
            .url()
            .split_once("127")
            .unwrap()
            .0,
        "redis://:x@",
        "the url has the password"
    );
}

#[test]
fn a_unix_url_names_the_socket() {
    let redis = RedisServer::builder().unix_socket(true).start();
    assert_eq!(
        redis.url(),
        format!("unix://{}", redis.unix_path().display())
    );
}

#[test]
fn tls_uses_a_certificate_from_its_ca() {
    let redis = RedisServer::builder().tls(true).start();
    assert!(redis.url().starts_with("rediss://127.0.0.1:"));
    let verify = |more: &[&str]| {
        Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &format!("127.0.0.1:{}", redis.port()),
                "-verify_return_error",
            ])
            .args(more)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
            .status
            .success()
    };
    let ca = redis.ca_file().to_str().unwrap();
    assert!(verify(&["-CAfile", ca, "-verify_ip", "127.0.0.1"]));
    assert!(verify(&["-CAfile", ca, "-verify_hostname", "localhost"]));
    assert!(
        !verify(&["-CAfile", ca, "-verify_hostname", "example.org"]),
        "the wrong name must not do"
    );
    assert!(!verify(&[]), "an unknown authority must not do");
    assert_eq!(redis.command(&["PING"]), simple("PONG"));
}

#[test]
fn memory_and_other_settings_arrive() {
    let redis = RedisServer::builder()
        .maxmemory(3 << 20, "allkeys-lru")
        .arg("--hz", "50")
        .start();
    let setting = |name: &str| {
        redis.command(&["CONFIG", "GET", name]).items()[1]
            .text()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        [setting("maxmemory"), setting("maxmemory-policy")],
        ["3145728", "allkeys-lru"]
    );
    assert_eq!(setting("hz"), "50");
}

#[test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
fn an_unknown_setting_is_reported() {
    RedisServer::builder().arg("no-such-setting", "1").start();
}

#[test]
fn a_replica_has_the_data_of_its_master() {
    let master = RedisServer::builder().password("x").start();
    master.command(&["SET", "before", "1"]);
    let replica = RedisServer::builder().replica_of(&master).start();
    assert_eq!(replica.command(&["GET", "before"]).int(), Some(1));
    master.kill();
    assert!(replica.command(&["SET", "a", "1"]).is_error());
    assert_eq!(replica.command(&["REPLICAOF", "NO", "ONE"]), simple("OK"));
    assert_eq!(replica.command(&["SET", "a", "1"]), simple("OK"));
}

#[test]
fn its_clock_steps_forward_and_back() {
    const HOUR: i64 = 3_600_000_000;
    const MINUTE: i64 = 60_000_000;
    let redis = RedisServer::builder().clock_file(true).start();
    let began = Instant::now();
    let start = time(&redis);
    let off_by = |redis: &RedisServer| time(redis) - start - began.elapsed().as_micros() as i64;
    assert!(off_by(&redis).abs() < MINUTE);
    redis.command(&["SET", "key", "1", "PX", "600000"]);
    redis.step_clock(Duration::from_secs(3600), true);
    assert!((off_by(&redis) - HOUR).abs() < MINUTE, "{}", off_by(&redis));
    assert_eq!(
        redis.command(&["GET", "key"]),
        Reply::Nil,
        "keys expire by the same clock"
    );
    redis.step_clock(Duration::from_micros(2 * HOUR as u64 + 500_000), false);
    assert!((off_by(&redis) + HOUR).abs() < MINUTE, "{}", off_by(&redis));
    let in_script = redis.command(&["EVAL", "return redis.call('TIME')", "0"]);
    assert!((in_script.items()[0].int().unwrap() * 1_000_000 - time(&redis)).abs() < MINUTE);
    redis.kill();
    redis.restart();
    assert!(
        (off_by(&redis) + HOUR).abs() < MINUTE,
        "a restart keeps the clock"
    );
}

#[test]
fn a_restart_waits_for_its_port() {
    let redis = RedisServer::start();
    redis.kill();
    let squatter = std::net::TcpListener::bind(("127.0.0.1", redis.port())).unwrap();
    std::thread::scope(|threads| {
        let restarting = threads.spawn(|| redis.restart());
        let give_up = Instant::now() + Duration::from_secs(5);
        while !redis.log().contains("Address already in use") {
            assert!(Instant::now() < give_up, "{}", redis.log());
            std::thread::yield_now();
        }
        drop(squatter);
        restarting.join().unwrap();
    });
    assert_eq!(
        Connection::tcp(redis.port())
            .unwrap()
            .command(&["PING"])
            .unwrap(),
        simple("PONG")
    );
}

#[test]
fn many_start_at_once() {
    let starting: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(RedisServer::start))
        .collect();
    let servers: Vec<_> = starting
        .into_iter()
        .map(|starting| starting.join().unwrap())
        .collect();
    let ports: std::collections::BTreeSet<_> = servers.iter().map(RedisServer::port).collect();
    assert_eq!(ports.len(), servers.len());
}

#[test]
fn a_cluster_forms_moves_a_slot_and_fails_over() {
    let begin = Instant::now();
    let cluster = RedisCluster::start();
    println!("whole after {:.1?}", begin.elapsed());
    let slot = cluster.slot("key");
    let from = cluster.primary(slot);
    assert_eq!(from.command(&["SET", "key", "value"]), simple("OK"));
    let to = cluster.nodes()[..3]
        .iter()
        .find(|node| node.port() != from.port())
        .unwrap();
    cluster.move_slot(slot, to);
    assert_eq!(to.command(&["GET", "key"]), Reply::Bulk(b"value".to_vec()));
    assert!(
        from.command(&["GET", "key"])
            .text()
            .unwrap()
            .starts_with("MOVED")
    );
    cluster.await_whole();
    let begin = Instant::now();
    to.kill();
    let other = cluster.await_other_primary(slot, to.port());
    println!("another primary after {:.1?}", begin.elapsed());
    assert_ne!(other.port(), to.port());
    to.restart();
    cluster.await_whole();
}

#[test]
fn sentinels_name_another_primary() {
    let begin = Instant::now();
    let sentinels = RedisSentinels::with_passwords("of-the-servers", "of-the-sentinels");
    println!("known after {:.1?}", begin.elapsed());
    let first = &sentinels.servers()[0];
    let begin = Instant::now();
    first.kill();
    let other = sentinels.await_other_primary(first.port());
    println!("another primary after {:.1?}", begin.elapsed());
    assert_ne!(other.port(), first.port());
}
