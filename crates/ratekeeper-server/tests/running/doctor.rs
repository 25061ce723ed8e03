//! `ratekeeper doctor`: each finding with its real cause.

use crate::support::{config_file, service};
use crate::{RunningServer, TempDir, curl, plain};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisServer};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// No admin listener, so that servers on this machine do not affect a test.
const NO_ADMIN: &str = "[server]\nadmin = \"off\"\n";

fn of_config(config: &str) -> (i32, Vec<(String, String)>) {
    let file = config_file(config);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap()]);
    (code, findings)
}

/// The exit code, the messages by code, and the whole output.
fn doctor(arguments: &[&str]) -> (i32, Vec<(String, String)>, Value) {
    let output = plain()
        .args(["doctor", "--format", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    // The limit of file descriptors depends on this machine, and has its own test.
    let findings: Vec<_> = findings
        .map(|finding| (text(&finding["code"]), text(&finding["message"])))
        .collect();
    let findings = findings
        .into_iter()
        .filter(|(code, _)| code != "descriptors")
        .collect();
    (output.status.code().unwrap(), findings, report)
}

#[track_caller]
fn finds((code, findings): (i32, Vec<(String, String)>), name: &str, message: &str) {
    assert_eq!(code, 1, "{findings:?}");
    let found = findings
        .iter()
        .find(|(code, _)| code == name)
        .unwrap_or_else(|| panic!("no {name} in {findings:?}"));
    assert!(
        found.1.contains(message) && found.1.contains("; "),
        "{found:?}"
    );
    assert_eq!(found.1.lines().count(), 1, "{found:?}");
}

fn codes((_, findings): (i32, Vec<(String, String)>)) -> Vec<String> {
    findings.into_iter().map(|(code, _)| code).collect()
}

fn on_redis(url: &str) -> String {
    format!("{NO_ADMIN}[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"2s\"\n")
}

#[test]
fn a_correct_setup_has_no_findings() {
    let redis = RedisServer::builder()
        .aof(true)
        .maxmemory(100 << 20, "volatile-ttl")
        .start();
    assert_eq!(of_config(&on_redis(redis.url())), (0, Vec::new()));
    let mut command = plain();
    let output = command
        .args(["doctor", "--config"])
        .arg(config_file(NO_ADMIN))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "skipped: the admin listener is off, so the server was not checked\nOK\n"
    );
}

#[test]
fn mistakes_in_a_configuration() {
    let all_off = "[server]\nhttp = \"off\"\ngrpc = \"off\"\nresp = \"off\"\nadmin = \"off\"\n";
    finds(
        of_config(all_off),
        "nothing_served",
        "every listener is off",
    );
    finds(
        of_config("[server]\nadmin = \"0.0.0.0:0\"\n"),
        "admin_open",
        "0.0.0.0:0",
    );
    let token = "[server]\nadmin = \"0.0.0.0:0\"\nadmin_token = \"0123456789abcdef\"\n";
    assert!(!codes(of_config(token)).contains(&"admin_open".to_owned()));
    let everybody = format!("{NO_ADMIN}[identity]\ntrusted_proxies = \"0.0.0.0/0\"\n");
    finds(of_config(&everybody), "config", "trusts every peer");
    let memory =
        format!("{NO_ADMIN}[store]\nmax_keys = 4_000_000_000\nmax_bytes = 9_000_000_000_000\n");
    finds(of_config(&memory), "memory", "lower max_keys");
    let unix = format!(
        "{NO_ADMIN}http = \"unix:/run/x.sock\"\n[gateway]\nupstreams = \"http://127.0.0.1:1\"\n"
    );
    finds(
        of_config(&unix),
        "one_bucket",
        "add \"unix\" to trusted_proxies",
    );
    finds(
        of_config("nonsense = 1"),
        "config",
        "unknown key `nonsense`",
    );
    let few = format!(
        "ulimit -n 256; exec {:?} doctor --config {:?}",
        plain().get_program(),
        config_file(NO_ADMIN)
    );
    let output = Command::new("sh").arg("-c").arg(few).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("descriptors: a process may have 256 files and connections here")
            && text.contains("LimitNOFILE"),
        "{text}"
    );
    let output = plain()
        .args(["doctor", "--config", "/nowhere.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn keys_and_certificates() {
    let authority = crate::authority::Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let tls = |key: &Path| format!("{NO_ADMIN}[server.tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    finds(
        of_config(&tls(&key)),
        "key_readable",
        "every user on this machine can read the private key",
    );
    mode(0o600);
    assert_eq!(of_config(&tls(&key)).0, 0);
    finds(
        of_config(&tls(&authority.sign("localhost", 2100).1)),
        "certificate",
        "cannot be used together",
    );
    let file = config_file(&format!("{NO_ADMIN}id_secret = \"0123456789abcdef\"\n"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap()]);
    finds((code, findings.clone()), "config_readable", "secrets in");
    assert!(!findings[0].1.contains("0123456789abcdef"));
}

#[test]
fn mistakes_in_redis() {
    let redis = RedisServer::builder().clock_file(true).aof(false).start();
    let url = on_redis(redis.url());
    // It may be intended, so it is a note.
    let (code, findings) = of_config(&url);
    assert!(
        code == 0 && findings[0].0 == "redis_persistence" && findings[0].1.contains("appendonly"),
        "{findings:?}"
    );
    assert!(!codes(of_config(&url)).contains(&"redis_eviction".to_owned()));
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert!(
        !codes(of_config(&url)).contains(&"redis_eviction".to_owned()),
        "without maxmemory nothing is evicted"
    );
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    for policy in ["allkeys-lru", "volatile-lru", "allkeys-random"] {
        redis.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        finds(
            of_config(&url),
            "redis_eviction",
            &format!("maxmemory-policy {policy}"),
        );
        finds(
            of_config(&url),
            "redis_eviction",
            "set maxmemory-policy to volatile-ttl",
        );
    }
    // It loses nothing, so it is a note.
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let (code, findings) = of_config(&url);
    let found = findings.iter().find(|(code, _)| code == "redis_eviction");
    assert!(
        code == 0
            && found.is_some_and(
                |(_, message)| message.contains("set maxmemory-policy to volatile-ttl")
            ),
        "{findings:?}"
    );
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    assert!(!codes(of_config(&url)).contains(&"redis_eviction".to_owned()));
    assert!(!codes(of_config(&url)).contains(&"clock_skew".to_owned()));
    redis.step_clock(Duration::from_secs(3600), true);
    finds(of_config(&url), "clock_skew", "ahead of this machine's");
    let replica = RedisServer::builder().replica_of(&redis).start();
    finds(
        of_config(&on_redis(replica.url())),
        "redis_replica",
        "set `url` to its primary",
    );
    let far = FaultProxy::to(redis.port());
    far.set(Fault::Delay(Duration::from_millis(50)));
    let hasty = on_redis(&far.url()).replace("timeout = \"2s\"", "timeout = \"10ms\"");
    finds(
        of_config(&hasty),
        "redis_latency",
        "more than `timeout` (10 ms)",
    );
    // It accepts connections and does not answer.
    redis.stop_signal();
    finds(of_config(&url), "redis_unreachable", "cannot use redis://");
    redis.cont();
    redis.kill();
    finds(of_config(&url), "redis_unreachable", "cannot use redis://");
}

/// A configuration whose Redis user has one more ACL rule.
fn of_user(redis: &RedisServer, rule: &str) -> String {
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all", rule,
    ];
    assert!(!redis.command(&rules).is_error());
    on_redis(&format!("redis://app:pass@127.0.0.1:{}", redis.port()))
}

#[test]
fn a_redis_that_cannot_decide() {
    let redis = RedisServer::builder().aof(true).start();
    for rule in ["-evalsha", "-eval", "-@scripting"] {
        let found = of_user(&redis, rule);
        finds(
            of_config(&found),
            "redis_decision",
            "the Redis user lacks a permission",
        );
        finds(
            of_config(&found),
            "redis_decision",
            &format!("redis://app:***@127.0.0.1:{}", redis.port()),
        );
    }
    assert_eq!(of_config(&of_user(&redis, "+@all")), (0, Vec::new()));
    let other = of_user(&redis, "+@all").replace("url = ", "prefix = \"other\"\nurl = ");
    assert!(
        !redis
            .command(&["ACL", "SETUSER", "app", "resetkeys", "~ratekeeper:*"])
            .is_error()
    );
    finds(
        of_config(&other),
        "redis_decision",
        "the Redis user lacks a permission",
    );
    let url = on_redis(redis.url());
    let replica = RedisServer::builder().aof(true).replica_of(&redis).start();
    finds(
        of_config(&on_redis(replica.url())),
        "redis_replica",
        "set `url` to its primary",
    );
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    finds(of_config(&url), "redis_decision", "Redis is out of memory");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let far = FaultProxy::to(redis.port());
    // Close enough for each reply, and too far for a decision.
    far.set(Fault::Delay(Duration::from_millis(50)));
    let hasty = on_redis(&far.url()).replace("timeout = \"2s\"", "timeout = \"10ms\"");
    let found = codes(of_config(&hasty));
    assert_eq!(found, ["redis_latency"], "one finding for one cause");
}

#[test]
fn the_test_decision_leaves_nothing_in_redis() {
    let redis = RedisServer::builder().aof(true).start();
    let config = on_redis(redis.url()).replace("url = ", "prefix = \"mine\"\nurl = ");
    redis.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(of_config(&config), (0, Vec::new()));
    let stats = redis.command(&["INFO", "commandstats"]);
    let stats = stats.text().unwrap();
    assert!(stats.contains("cmdstat_evalsha:"), "{stats}");
    // It does not register as a node of the fleet, and its keys expire.
    crate::support::eventually("its keys expire", || {
        let keys = redis.command(&["KEYS", "*"]);
        keys.items()
            .iter()
            .filter_map(|key| key.text())
            .all(|key| key == "mine:secret")
    });
    assert_eq!(redis.command(&["EXISTS", "mine:nodes"]).int(), Some(0));
}

#[test]
fn a_cluster_with_uncovered_slots() {
    let cluster = RedisCluster::start();
    let config = on_redis(&cluster.url());
    assert!(!codes(of_config(&config)).contains(&"redis_slots".to_owned()));
    let slot = cluster.slot("a");
    cluster
        .primary(slot)
        .command(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
    crate::support::eventually("a slot is missing", || {
        codes(of_config(&config)).contains(&"redis_slots".to_owned())
    });
    finds(
        of_config(&config),
        "redis_slots",
        "only 16383 of the Cluster's 16384 slots",
    );
}

fn running(config: &str) -> (RunningServer, String) {
    let server = RunningServer::serve(config);
    let url = format!("http://{}", server.text_after("Live page: http://"));
    (server, url)
}

fn of_server(url: &str) -> (i32, Vec<(String, String)>) {
    let file = config_file(NO_ADMIN);
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap(), "--url", url]);
    (code, findings)
}

#[test]
fn a_gateway_behind_an_untrusted_proxy() {
    let upstream = service();
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[gateway]\nupstreams = \"http://{upstream}\"\n\
         [[policy]]\nname = \"each\"\nkey = \"ip\"\nlimit = \"1000/s\"\n"
    );
    let mut command = plain();
    command
        .args(["proxy", "--config"])
        .arg(config_file(&config));
    let server = RunningServer::run(command);
    let url = format!("http://{}", server.text_after("Live page: http://"));
    assert_eq!(of_server(&url), (0, Vec::new()));
    let at = format!(
        "http://{}/?n=[1-120]",
        server.text_after("gateway listening on http://")
    );
    curl(&["-o", "/dev/null", "-H", "X-Forwarded-For: 203.0.113.7", &at]);
    let found = of_server(&url);
    finds(
        found.clone(),
        "untrusted_proxy",
        "120 of 120 requests had a forwarding header",
    );
    finds(found, "one_bucket", "one key of the policy `each` has");
    let (_, metrics) = curl(&[&format!("{url}/metrics")]);
    assert!(
        metrics.contains("ratekeeper_untrusted_forwarding_total 120\n"),
        "{metrics}"
    );
}

#[test]
fn a_policy_that_applies_to_no_request() {
    let upstream = service();
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[gateway]\nupstreams = \"http://{upstream}\"\n\
         [[policy]]\nname = \"login\"\nmatch = {{ path = \"/Login\" }}\nlimit = \"5/s\"\n\
         [[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
    );
    let mut command = plain();
    command
        .args(["proxy", "--config"])
        .arg(config_file(&config));
    let server = RunningServer::run(command);
    let url = format!("http://{}", server.text_after("Live page: http://"));
    let status = || {
        String::from_utf8(
            plain()
                .args(["admin", "--url", &url, "status"])
                .output()
                .unwrap()
                .stdout,
        )
        .unwrap()
    };
    assert!(!status().contains("applied to none"), "{}", status());
    let at = format!(
        "http://{}/login?n=[1-120]",
        server.text_after("gateway listening on http://")
    );
    curl(&["-o", "/dev/null", &at]);
    // It may be intended, so it is a note.
    let (code, found) = of_server(&url);
    let message =
        "the policy `login` applied to none of 120 requests; run `ratekeeper admin explain`";
    assert_eq!((code, found.len()), (0, 1), "{found:?}");
    assert!(
        found[0].0 == "policy_unmatched" && found[0].1.starts_with(message),
        "{found:?}"
    );
    assert!(
        status().contains("\nthe policy login applied to none of 120 requests\n"),
        "{}",
        status()
    );
}

#[test]
fn a_server_without_its_redis_and_with_a_stale_configuration() {
    let redis = RedisServer::builder().aof(true).start();
    let listeners = "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n";
    let config = format!(
        "{listeners}[store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    );
    let file = config_file(&config);
    let mut command = plain();
    command.args(["serve", "--config"]).arg(&file);
    let server = RunningServer::run(command);
    let url = format!("http://{}", server.text_after("Live page: http://"));
    assert_eq!(of_server(&url), (0, Vec::new()));
    redis.kill();
    fs::write(&file, "nonsense").unwrap();
    let has = |name: &str| codes(of_server(&url)).contains(&name.to_owned());
    crate::support::eventually("the fallback", || has("store_fallback"));
    crate::support::eventually("the rejected file", || has("config_stale"));
}

#[test]
fn evicted_keys_and_an_open_breaker() {
    let (server, url) = running(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n[store]\nmax_keys = 16\n\
         [[policy]]\nname = \"each\"\nkey = \"ip\"\nlimit = \"5/d\"\n",
    );
    let at = format!(
        "http://{}/v1/check",
        server.text_after("HTTP listening on http://")
    );
    let subject = |n: usize| format!(r#"{{"subject":{{"ip":"10.0.{}.{}"}}}}"#, n / 256, n % 256);
    let all = (0..100).map(|n| subject(n * 10)).collect::<Vec<_>>();
    curl(&[
        "-o",
        "/dev/null",
        &at,
        "-d",
        &format!("[{}]", all.join(",")),
    ]);
    finds(of_server(&url), "keys_evicted", "raise max_keys");
    drop(server);

    for (more, found) in [
        ("", "breaker"),
        (
            "health_path = \"/\"\nhealth_interval = \"10ms\"\n",
            "upstream_down",
        ),
    ] {
        let config = format!(
            "[server]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[gateway]\nupstreams = \"http://127.0.0.1:1\"\n{more}\
             [[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
        );
        let mut command = plain();
        command
            .args(["proxy", "--config"])
            .arg(config_file(&config));
        let server = RunningServer::run(command);
        let url = format!("http://{}", server.text_after("Live page: http://"));
        let at = format!(
            "http://{}/?n=[1-40]",
            server.text_after("gateway listening on http://")
        );
        curl(&["-o", "/dev/null", &at]);
        crate::support::eventually(found, || codes(of_server(&url)).contains(&found.to_owned()));
        finds(of_server(&url), found, "the upstream http://127.0.0.1:1 ");
    }
}

#[test]
fn the_admin_url_is_that_of_the_configuration() {
    let dir = TempDir::new("doctor");
    let admin = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"unix:{}\"\n",
        dir.file("admin.sock")
    );
    let file = config_file(&admin);
    let probe = || {
        plain()
            .args(["doctor", "--probe", "--config"])
            .arg(&file)
            .output()
            .unwrap()
    };
    let gone = probe();
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&gone.stderr).contains("cannot connect to unix:"),
        "{gone:?}"
    );
    let mut command = plain();
    command.args(["serve", "--config"]).arg(&file);
    let server = RunningServer::run(command);
    let ready = probe();
    assert!(
        ready.status.success() && ready.stdout.is_empty() && ready.stderr.is_empty(),
        "{ready:?}"
    );
    let (code, _, report) = doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!(
        (code, report["skipped"].as_array().unwrap().len()),
        (0, 0),
        "{report}"
    );
    drop(server);
    // With --url, a server that cannot be checked is an error.
    let (code, _, report) = doctor(&[
        "--config",
        file.to_str().unwrap(),
        "--url",
        "http://127.0.0.1:1",
    ]);
    assert_eq!(code, 2, "{report}");
    let (code, ..) = doctor(&["--config", file.to_str().unwrap(), "--url", "nowhere"]);
    assert_eq!(code, 2);
}

#[test]
fn a_server_with_tls_is_checked() {
    let authority = crate::authority::Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n[server.tls]\ncert = {cert:?}\nkey = {key:?}\n\
         [server.tls.admin]\nclient_ca = {:?}\n",
        authority.ca()
    );
    let server = RunningServer::serve(&config);
    let url = format!("https://localhost:{}", server.port("Live page: https://"));
    let file = config_file(NO_ADMIN);
    let with = |more: &[&str]| {
        let all = [&["--config", file.to_str().unwrap(), "--url", &url], more].concat();
        doctor(&all).0
    };
    let (cert, key) = authority.sign("ann", 2100);
    let own = [
        "--client-cert",
        cert.to_str().unwrap(),
        "--client-key",
        key.to_str().unwrap(),
    ];
    let ca = authority.ca();
    assert_eq!(with(&[&["--ca-file", &ca], &own[..]].concat()), 0);
    assert_eq!(with(&["--ca-file", &ca]), 2, "it requires a certificate");
    assert_eq!(with(&own), 2, "the authority is not trusted");
    // Other commands take the same flags.
    let status = plain()
        .args(["admin", "status", "--url", &url, "--ca-file", &ca])
        .args(own)
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
}
