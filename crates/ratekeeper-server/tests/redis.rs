//! The service and the gateway on Redis: several processes hold one limit, and go on without it.

mod support;

use ratekeeper_testkit::{RedisCluster, RedisServer, free_port};
use serde_json::json;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{
    Answer, Server, config_file, directory, eventually, failed_start, ratekeeper, service,
};

/// A file that every node of a fleet may run. The timeout is far longer than a slow machine needs.
fn fleet(url: &str, on_failure: &str) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n\
         [store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"5s\"\non_failure = \"{on_failure}\"\n\
         [[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"10/d\"\n"
    )
}

fn check(node: &Server, user: &str) -> Answer {
    node.check(&json!({"subject": {"user": user}}).to_string())
}

fn source(answer: &Answer) -> String {
    answer.json()["source"].as_str().unwrap().to_owned()
}

#[test]
fn three_nodes_hold_one_limit() {
    let redis = RedisServer::start();
    let nodes = [(); 3].map(|()| Server::with_config(&fleet(redis.url(), "local_share")));
    let answers: Vec<Answer> = (0..30).map(|turn| check(&nodes[turn % 3], "ann")).collect();
    let admitted = answers
        .iter()
        .filter(|answer| answer.status() == 200)
        .count();
    assert_eq!(admitted, 10);
    assert!(
        answers.iter().all(|answer| source(answer) == "redis"),
        "{answers:?}"
    );
    assert!(
        answers
            .iter()
            .filter(|answer| answer.status() == 429)
            .all(|answer| answer.header("retry-after").is_some())
    );
    assert_eq!(nodes[0].request("GET", "/readyz", "").body, "ok\n");

    // Buckets that callers name are shared too.
    let throttle = |node: &Server| {
        node.throttle("{\"key\":\"a\",\"limit\":\"4/d\"}").json()["remaining"].clone()
    };
    assert_eq!(
        [&nodes[0], &nodes[1], &nodes[2]].map(throttle),
        [json!(3), json!(2), json!(1)]
    );

    eventually("all three see each other", || {
        nodes
            .iter()
            .all(|node| node.metric("ratekeeper_store_nodes") == 3.0)
    });
    assert!(nodes[0].metric("ratekeeper_store_decisions_total") >= 10.0);
    assert_eq!(nodes[0].metric("ratekeeper_store_fallback_active"), 0.0);
    // Nothing in Redis tells who asked.
    let keys = redis.command(&["KEYS", "*"]);
    let keys: Vec<&str> = keys.items().iter().filter_map(|key| key.text()).collect();
    assert!(
        keys.iter()
            .any(|key| key.starts_with("ratekeeper:user,user_24h0m0s")
                || key.starts_with("ratekeeper:user")),
        "{keys:?}"
    );
    assert!(keys.iter().all(|key| !key.contains("ann")), "{keys:?}");
}

#[test]
fn a_redis_that_dies_is_told_and_comes_back() {
    let redis = RedisServer::start();
    let node = Server::with_config(&fleet(redis.url(), "local_share"));
    assert_eq!(source(&check(&node, "ann")), "redis");
    redis.kill();
    eventually("the fallback", || {
        source(&check(&node, "bob")) == "local_share"
    });
    eventually("the figure", || {
        node.metric("ratekeeper_store_fallback_active") == 1.0
    });
    let ready = node.request("GET", "/readyz", "");
    assert_eq!(ready.status(), 200);
    assert!(
        ready.body.starts_with("degraded for ")
            && ready.body.contains("deciding by local_share: Redis "),
        "{ready:?}"
    );
    redis.restart();
    eventually("the way back", || source(&check(&node, "carl")) == "redis");
    eventually("the truth", || {
        node.request("GET", "/readyz", "").body == "ok\n"
    });
    node.signal("TERM");
    let (_, log) = node.ended();
    assert!(
        log.contains("decisions fall back until it answers") && log.contains("Redis answers again"),
        "{log}"
    );
}

/// The same file but for a number on one node; then that one is mended.
#[test]
fn nodes_with_other_limits_are_told_everywhere() {
    let redis = RedisServer::start();
    let config = fleet(redis.url(), "local_share")
        .replace("on_failure", "rollout_grace = \"0s\"\non_failure");
    let loose = config_file(&config.replace("10/d", "100/d"));
    let run = |file: &std::path::Path| {
        let mut command = ratekeeper();
        command.args(["serve", "--config"]).arg(file);
        Server::run(command)
    };
    let same = config_file(&config);
    let nodes = [run(&same), run(&same), run(&loose)];
    let others = |node: &Server| node.metric("ratekeeper_store_nodes_with_other_limits");
    eventually("each finds the others", || {
        nodes.each_ref().map(others) == [1.0, 1.0, 2.0]
    });
    let says = "other nodes have had other limits than this one for ";
    let node = &nodes[2];
    eventually("readiness", || {
        let ready = node.request("GET", "/readyz", "");
        ready.status() == 200 && ready.body.starts_with(&format!("ok, but 2 {says}"))
    });
    let status = node.admin("GET", "/admin/status").json();
    let warning = status["store"]["other_limits"].as_str().unwrap();
    assert!(
        warning.starts_with(&format!("2 {says}"))
            && warning.contains("; run the same configuration on all nodes"),
        "{warning}"
    );
    let found = node.admin("GET", "/admin/doctor").json();
    assert_eq!(found["findings"][0]["code"], "limits_differ", "{found}");
    let url = format!("http://{}", node.admin);
    let output = ratekeeper()
        .args(["admin", "status", "--url", &url])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("limits differ: 2 {says}")), "{text}");

    std::fs::copy(&same, &loose).unwrap();
    eventually("all agree", || nodes.each_ref().map(others) == [0.0; 3]);
    assert_eq!(
        nodes
            .each_ref()
            .map(|node| node.request("GET", "/readyz", "").body),
        ["ok\n"; 3]
    );
    assert_eq!(
        node.admin("GET", "/admin/status").json()["store"]["other_limits"],
        json!(null)
    );
    let [first, .., last] = nodes;
    for node in [first, last] {
        node.signal("TERM");
        let (_, log) = node.ended();
        assert_eq!(
            log.matches("had other limits than this one").count(),
            1,
            "{log}"
        );
        assert_eq!(
            log.matches("all nodes have the same limits again").count(),
            1,
            "{log}"
        );
    }
}

/// The limits of Envoy are among those that are compared.
#[test]
fn nodes_with_other_limits_of_envoy_are_told_everywhere() {
    let redis = RedisServer::start();
    let node = |limit: u32| {
        let rule = format!("{{ unit: day, requests_per_unit: {limit} }}");
        let limits = format!("domain: a\ndescriptors: [{{ key: k, rate_limit: {rule} }}]\n");
        let limits = directory(&[("a.yaml", &limits)]);
        let config = fleet(redis.url(), "local_share")
            .replace("on_failure", "rollout_grace = \"0s\"\non_failure");
        let grpc = config_file(&format!(
            "{config}[envoy]\nconfig = \"{}\"\n",
            limits.display()
        ));
        let mut command = ratekeeper();
        command
            .env("RATEKEEPER_SERVER__GRPC", "127.0.0.1:0")
            .args(["serve", "--config"])
            .arg(grpc);
        Server::run(command)
    };
    let others = |node: &Server| node.metric("ratekeeper_store_nodes_with_other_limits");
    let nodes = [node(10), node(10), node(20)];
    eventually("each finds the others", || {
        nodes.each_ref().map(others) == [1.0, 1.0, 2.0]
    });
}

/// A change that reaches one node after the other is no difference that anybody is told of.
#[test]
fn a_change_on_its_way_is_not_told() {
    let redis = RedisServer::start();
    let config = fleet(redis.url(), "local_share");
    let nodes = [config.replace("10/d", "11/d"), config].map(|config| Server::with_config(&config));
    let others = |node: &Server| node.metric("ratekeeper_store_nodes_with_other_limits");
    eventually("each finds the other", || {
        nodes.each_ref().map(others) == [1.0; 2]
    });
    for node in nodes {
        assert_eq!(node.request("GET", "/readyz", "").body, "ok\n");
        assert_eq!(
            node.admin("GET", "/admin/doctor").json()["findings"],
            json!([])
        );
        node.signal("TERM");
        let (_, log) = node.ended();
        assert!(!log.contains("other limits"), "{log}");
    }
}

#[test]
fn closed_means_503_and_not_ready() {
    let redis = RedisServer::start();
    let node = Server::with_config(&fleet(redis.url(), "closed"));
    redis.kill();
    eventually("nobody passes", || check(&node, "ann").status() == 503);
    let answer = check(&node, "ann");
    assert_eq!(
        (source(&answer).as_str(), answer.header("retry-after")),
        ("closed", Some("1"))
    );
    eventually("not ready", || {
        node.request("GET", "/readyz", "").status() == 503
    });
    assert_eq!(
        node.throttle("{\"key\":\"a\",\"limit\":\"4/d\"}").status(),
        503
    );
}

#[test]
fn it_starts_without_redis_and_heals() {
    let redis = RedisServer::start();
    redis.kill();
    let node = Server::with_config(&fleet(redis.url(), "open"));
    let answer = check(&node, "ann");
    assert_eq!((answer.status(), source(&answer).as_str()), (200, "open"));
    redis.restart();
    eventually("the way to Redis", || {
        source(&check(&node, "ann")) == "redis"
    });
}

/// Whoever connects the moment that it listens is answered as fast as everybody else.
#[test]
fn the_first_request_beside_a_silent_redis_ends_within_the_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(100);
    // It accepts connections, and nobody ever reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for on_failure in ["local_share", "open"] {
        let (url, port) = (
            format!("redis://{}", silent.local_addr().unwrap()),
            free_port(),
        );
        let config = fleet(&url, on_failure).replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        let mut command = ratekeeper();
        command
            .args(["serve", "--config"])
            .arg(config_file(&config.replace("\"5s\"", "\"100ms\"")));
        let mut server = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        let begin = Instant::now();
        let mut connection = Server::connect_to(SocketAddr::from(([127, 0, 0, 1], port)));
        connection.send(
            "POST",
            "/v1/check",
            &json!({"subject": {"user": "ann"}}).to_string(),
        );
        let answer = connection.answer();
        let took = begin.elapsed();
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(source(&answer), on_failure);
        // The rest is for a busy machine.
        assert!(took < TIMEOUT + TIMEOUT, "{took:?}");
    }
}

#[test]
fn a_redis_that_will_not_do_is_code_2_and_one_sentence_without_its_password() {
    let redis = RedisServer::builder().password("right").start();
    let url = format!("redis://:wr0ng@127.0.0.1:{}", redis.port());
    let (code, text) = failed_start(&fleet(&url, "local_share"));
    assert_eq!(code, Some(2));
    assert!(
        text.contains("Redis rejected the user and password; check those in the url"),
        "{text}"
    );
    assert!(!text.contains("wr0ng"), "{text}");
}

#[test]
fn two_gateways_hold_one_limit() {
    let (redis, upstream) = (RedisServer::start(), service());
    let file = config_file(&fleet(redis.url(), "local_share").replace("[\"user\"]", "[\"ip\"]"));
    let gateways = [(); 2].map(|()| {
        let mut command = ratekeeper();
        command
            .args([
                "proxy",
                "--upstream",
                &format!("http://{upstream}"),
                "--config",
            ])
            .arg(&file);
        Server::run(command)
    });
    let mut connections = gateways.each_ref().map(Server::connect);
    let mut statuses = Vec::new();
    for turn in 0..24 {
        let connection = &mut connections[turn % 2];
        connection.send("GET", "/", "");
        let answer = connection.answer();
        assert_eq!(answer.header("x-ratelimit-limit"), Some("10"));
        statuses.push(answer.status());
    }
    assert_eq!(statuses, [&[200; 10][..], &[429; 14][..]].concat());
}

#[test]
fn a_cluster_is_one_store_until_a_primary_is_gone() {
    let cluster = RedisCluster::start();
    let file = format!(
        "{}[[policy]]\nname = \"tenant\"\nkey = [\"tenant\", \"user\"]\nmissing = \"skip\"\ntag = [\"tenant\"]\nlimits = [\"6/d\", \"100/w\"]\n",
        fleet(&cluster.url(), "local_share")
    );
    let path = config_file(&file);
    let checked = ratekeeper()
        .args(["config", "check"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
    let nodes = [(); 2].map(|()| Server::with_config(&file));
    for user in ["ann", "bob", "eve", "joe"] {
        let answers: Vec<Answer> = (0..20).map(|turn| check(&nodes[turn % 2], user)).collect();
        assert_eq!(
            answers
                .iter()
                .filter(|answer| answer.status() == 200)
                .count(),
            10,
            "{user}: {answers:?}"
        );
        assert!(
            answers.iter().all(|answer| source(answer) == "redis"),
            "{answers:?}"
        );
    }
    let both = json!({"subject": {"user": "kim", "tenant": "acme"}}).to_string();
    let answers: Vec<Answer> = (0..12).map(|turn| nodes[turn % 2].check(&both)).collect();
    assert_eq!(
        answers
            .iter()
            .filter(|answer| answer.status() == 200)
            .count(),
        6,
        "{answers:?}"
    );
    assert_eq!(nodes[0].request("GET", "/readyz", "").body, "ok\n");
    eventually("both see each other", || {
        nodes
            .iter()
            .all(|node| node.metric("ratekeeper_store_nodes") == 2.0)
    });
    // What was charged where another limit denied has come back.
    let left = |node: &Server| {
        let peek = json!({"subject": {"user": "kim"}, "peek": true}).to_string();
        node.check(&peek).json()["limits"][0]["remaining"].clone()
    };
    eventually("the user has what was not admitted", || {
        left(&nodes[0]) == json!(4)
    });

    // One primary is gone: it is told, and after a while its replica decides.
    let victim = &cluster.nodes()[0];
    victim.kill();
    eventually("it is told", || {
        nodes[0]
            .request("GET", "/readyz", "")
            .body
            .starts_with("degraded")
    });
    assert_eq!(nodes[0].metric("ratekeeper_store_fallback_active"), 1.0);
    eventually("it is over", || {
        nodes
            .iter()
            .all(|node| node.request("GET", "/readyz", "").body == "ok\n")
    });
    assert_eq!(source(&check(&nodes[0], "new")), "redis");
}

/// Heartbeats pass all the while.
#[test]
fn a_redis_that_decides_nothing_is_told_without_a_break() {
    let redis = RedisServer::start();
    assert!(
        !redis
            .command(&["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all"])
            .is_error()
    );
    let node = Server::with_config(&fleet(
        &redis.url().replace("//", "//app:pass@"),
        "local_share",
    ));
    assert_eq!(source(&check(&node, "ann")), "redis");
    assert!(
        !redis
            .command(&["ACL", "SETUSER", "app", "-evalsha"])
            .is_error()
    );
    eventually("the figure", || {
        node.metric("ratekeeper_store_fallback_active") == 1.0
    });
    let heartbeat = || redis.command(&["ZRANGE", "ratekeeper:nodes", "0", "-1", "WITHSCORES"]);
    let mut heartbeats = 0;
    let mut last = heartbeat();
    while heartbeats < 3 {
        assert_eq!(source(&check(&node, "ann")), "local_share");
        assert_eq!(
            node.metric("ratekeeper_store_fallback_active"),
            1.0,
            "after {heartbeats} heartbeats"
        );
        let ready = node.request("GET", "/readyz", "").body;
        assert!(
            ready.starts_with("degraded for ")
                && ready.contains("the Redis user lacks a permission"),
            "{ready}"
        );
        let now = heartbeat();
        heartbeats += u32::from(now != last);
        last = now;
    }
    assert!(
        !redis
            .command(&["ACL", "SETUSER", "app", "+evalsha"])
            .is_error()
    );
    eventually("the way back", || source(&check(&node, "bob")) == "redis");
    eventually("the truth", || {
        node.request("GET", "/readyz", "").body == "ok\n"
    });
    // And the other way round.
    assert!(
        !redis
            .command(&["ACL", "SETUSER", "app", "-eval"])
            .is_error()
    );
    eventually("it is told", || {
        node.request("GET", "/readyz", "")
            .body
            .starts_with("ok, but other nodes do not count")
    });
    assert_eq!(
        (
            source(&check(&node, "bob")),
            node.metric("ratekeeper_store_fallback_active")
        ),
        ("redis".to_owned(), 0.0)
    );
    node.signal("TERM");
    let (_, log) = node.ended();
    assert_eq!(
        log.matches("decisions fall back until it answers").count(),
        1,
        "{log}"
    );
    assert_eq!(
        log.matches("the heartbeat of this node fails").count(),
        1,
        "{log}"
    );
}

/// Without Redis nodes have not agreed on a secret for fingerprints.
#[test]
fn a_start_without_redis_says_that_fingerprints_do_not_last() {
    let redis = RedisServer::start();
    let start = |url: &str, more: &str| {
        let store = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n{more}");
        let server = Server::with_config(&format!("[server]\nhttp = \"127.0.0.1:0\"\n{store}"));
        server.welcome.clone()
    };
    let away = format!("redis://127.0.0.1:{}", free_port());
    let says = "Fingerprints are those of this node only until Redis is available; set key_secret in [store] to keep them\n";
    assert!(start(&away, "").contains(says), "{}", start(&away, ""));
    let secret = "key_secret = \"at least sixteen bytes\"\n";
    for lasting in [start(&away, secret), start(redis.url(), "")] {
        assert!(!lasting.contains("Fingerprints"), "{lasting}");
    }
}
