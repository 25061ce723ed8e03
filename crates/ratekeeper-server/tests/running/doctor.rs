//! `ratekeeper doctor`, each finding with the real thing.

use crate::support::{config_file, service};
use crate::{Place, Started, curl, plain};
use ratekeeper_testkit::{Fault, FaultProxy, RedisCluster, RedisServer};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where nobody listens: what runs on this machine is no part of a test.
const NOWHERE: &str = "[server]\nadmin = \"off\"\n";

fn of_config(config: &str) -> (i32, Vec<(String, String)>) {
    let file = config_file(config);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap()]);
    (code, findings)
}

/// The code it ends with, what it finds by code, and all it says.
fn doctor(arguments: &[&str]) -> (i32, Vec<(String, String)>, Value) {
    let output = plain()
        .args(["doctor", "--format", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = said["findings"].as_array().unwrap().iter();
    // How many files a process may have is this machine's, and has a test of its own.
    let findings: Vec<_> = findings
        .map(|one| (text(&one["code"]), text(&one["says"])))
        .collect();
    let findings = findings
        .into_iter()
        .filter(|(code, _)| code != "descriptors")
        .collect();
    (output.status.code().unwrap(), findings, said)
}

#[track_caller]
fn finds((code, findings): (i32, Vec<(String, String)>), name: &str, says: &str) {
    assert_eq!(code, 1, "{findings:?}");
    let found = findings
        .iter()
        .find(|(code, _)| code == name)
        .unwrap_or_else(|| panic!("no {name} in {findings:?}"));
    assert!(
        found.1.contains(says) && found.1.contains("; "),
        "{found:?}"
    );
    assert_eq!(found.1.lines().count(), 1, "{found:?}");
}

fn codes((_, findings): (i32, Vec<(String, String)>)) -> Vec<String> {
    findings.into_iter().map(|(code, _)| code).collect()
}

fn on_redis(url: &str) -> String {
    format!("{NOWHERE}[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"2s\"\n")
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let redis = RedisServer::builder()
        .aof(true)
        .maxmemory(100 << 20, "volatile-ttl")
        .start();
    assert_eq!(of_config(&on_redis(redis.url())), (0, Vec::new()));
    let mut command = plain();
    let output = command
        .args(["doctor", "--config"])
        .arg(config_file(NOWHERE))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said,
        "not looked at: the admin listener is off, so no server can be asked\nnothing to complain of\n"
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
    let everybody = format!("{NOWHERE}[identity]\ntrusted_proxies = \"0.0.0.0/0\"\n");
    finds(of_config(&everybody), "config", "trusts every peer");
    let memory =
        format!("{NOWHERE}[store]\nmax_keys = 4_000_000_000\nmax_bytes = 9_000_000_000_000\n");
    finds(of_config(&memory), "memory", "lower max_keys");
    let unix = format!(
        "{NOWHERE}http = \"unix:/run/x.sock\"\n[gateway]\nupstreams = \"http://127.0.0.1:1\"\n"
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
        config_file(NOWHERE)
    );
    let output = Command::new("sh").arg("-c").arg(few).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("descriptors: a process may have 256 files and connections here")
            && said.contains("LimitNOFILE"),
        "{said}"
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
    let tls = |key: &Path| format!("{NOWHERE}[server.tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    finds(
        of_config(&tls(&key)),
        "key_readable",
        "everybody on this machine can read the private key",
    );
    mode(0o600);
    assert_eq!(of_config(&tls(&key)).0, 0);
    finds(
        of_config(&tls(&authority.sign("localhost", 2100).1)),
        "certificate",
        "cannot be used together",
    );
    let file = config_file(&format!("{NOWHERE}id_secret = \"0123456789abcdef\"\n"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap()]);
    finds((code, findings.clone()), "config_readable", "secrets in");
    assert!(!findings[0].1.contains("0123456789abcdef"));
}

#[test]
fn mistakes_in_redis() {
    let redis = RedisServer::builder().clock_file(true).aof(false).start();
    let url = on_redis(redis.url());
    // Whoever only caches may mean it.
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
    // Nothing is lost by it: a note.
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let (code, findings) = of_config(&url);
    let found = findings.iter().find(|(code, _)| code == "redis_eviction");
    assert!(
        code == 0
            && found.is_some_and(|(_, says)| says.contains("set maxmemory-policy to volatile-ttl")),
        "{findings:?}"
    );
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    assert!(!codes(of_config(&url)).contains(&"redis_eviction".to_owned()));
    assert!(!codes(of_config(&url)).contains(&"clock_skew".to_owned()));
    redis.step_clock(Duration::from_secs(3600), true);
    finds(of_config(&url), "clock_skew", "ahead of the one here");
    let replica = RedisServer::builder().replica_of(&redis).start();
    finds(
        of_config(&on_redis(replica.url())),
        "redis_replica",
        "give the url of its primary",
    );
    let far = FaultProxy::to(redis.port());
    far.set(Fault::Delay(Duration::from_millis(50)));
    let hasty = on_redis(&far.url()).replace("timeout = \"2s\"", "timeout = \"10ms\"");
    finds(
        of_config(&hasty),
        "redis_latency",
        "longer than the 10 ms a decision waits for it",
    );
    // One that is there and does not answer.
    redis.stop_signal();
    finds(of_config(&url), "redis_unreachable", "cannot be used");
    redis.cont();
    redis.kill();
    finds(of_config(&url), "redis_unreachable", "cannot be used");
}

/// The url of a server where the user may do everything but that.
fn of_user(redis: &RedisServer, rule: &str) -> String {
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all", rule,
    ];
    assert!(!redis.command(&rules).is_error());
    on_redis(&format!("redis://app:pass@127.0.0.1:{}", redis.port()))
}

#[test]
fn a_redis_that_makes_no_decisions() {
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
        "give the url of its primary",
    );
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    finds(of_config(&url), "redis_decision", "Redis is out of memory");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let far = FaultProxy::to(redis.port());
    // Near enough for each answer, and too far for a decision.
    far.set(Fault::Delay(Duration::from_millis(50)));
    let hasty = on_redis(&far.url()).replace("timeout = \"2s\"", "timeout = \"10ms\"");
    let found = codes(of_config(&hasty));
    assert_eq!(found, ["redis_latency"], "one finding for one cause");
}

#[test]
fn what_is_tried_in_redis_leaves_nothing_behind() {
    let redis = RedisServer::builder().aof(true).start();
    let config = on_redis(redis.url()).replace("url = ", "prefix = \"mine\"\nurl = ");
    redis.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(of_config(&config), (0, Vec::new()));
    let stats = redis.command(&["INFO", "commandstats"]);
    let stats = stats.text().unwrap();
    assert!(stats.contains("cmdstat_evalsha:"), "{stats}");
    // It is no node of the fleet, and what it charged ends by itself.
    crate::support::eventually("its keys end", || {
        let keys = redis.command(&["KEYS", "*"]);
        keys.items()
            .iter()
            .filter_map(|key| key.text())
            .all(|key| key == "mine:secret")
    });
    assert_eq!(redis.command(&["EXISTS", "mine:nodes"]).int(), Some(0));
}

#[test]
fn a_cluster_with_slots_that_nobody_serves() {
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

fn running(config: &str) -> (Started, String) {
    let server = Started::serve(config);
    let url = format!("http://{}", server.behind("Live page: http://"));
    (server, url)
}

fn of_server(url: &str) -> (i32, Vec<(String, String)>) {
    let file = config_file(NOWHERE);
    let (code, findings, _) = doctor(&["--config", file.to_str().unwrap(), "--url", url]);
    (code, findings)
}

#[test]
fn a_gateway_behind_a_proxy_that_nobody_trusts() {
    let upstream = service();
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[gateway]\nupstreams = \"http://{upstream}\"\n\
         [[policy]]\nname = \"each\"\nkey = \"ip\"\nlimit = \"1000/s\"\n"
    );
    let mut command = plain();
    command
        .args(["proxy", "--config"])
        .arg(config_file(&config));
    let server = Started::run(command);
    let url = format!("http://{}", server.behind("Live page: http://"));
    assert_eq!(of_server(&url), (0, Vec::new()));
    let at = format!(
        "http://{}/?n=[1-120]",
        server.behind("is a gateway on http://")
    );
    curl(&["-o", "/dev/null", "-H", "X-Forwarded-For: 203.0.113.7", &at]);
    let found = of_server(&url);
    finds(
        found.clone(),
        "untrusted_proxy",
        "120 of 120 requests had a forwarding header",
    );
    finds(found, "one_bucket", "one key of the policy `each` has");
    let (_, figures) = curl(&[&format!("{url}/metrics")]);
    assert!(
        figures.contains("ratekeeper_untrusted_forwarding_total 120\n"),
        "{figures}"
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
    let server = Started::run(command);
    let url = format!("http://{}", server.behind("Live page: http://"));
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
        server.behind("is a gateway on http://")
    );
    curl(&["-o", "/dev/null", &at]);
    // It may be meant, so it is a note.
    let (code, found) = of_server(&url);
    let says = "the policy `login` applied to none of 120 requests; run `ratekeeper admin explain`";
    assert_eq!((code, found.len()), (0, 1), "{found:?}");
    assert!(
        found[0].0 == "policy_unmatched" && found[0].1.starts_with(says),
        "{found:?}"
    );
    assert!(
        status().contains("\nthe policy login applied to none of 120 requests\n"),
        "{}",
        status()
    );
}

#[test]
fn a_server_that_runs_without_its_redis_and_with_an_older_configuration() {
    let redis = RedisServer::builder().aof(true).start();
    let listeners = "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n";
    let config = format!(
        "{listeners}[store]\nkind = \"redis\"\nurl = \"{}\"\n",
        redis.url()
    );
    let file = config_file(&config);
    let mut command = plain();
    command.args(["serve", "--config"]).arg(&file);
    let server = Started::run(command);
    let url = format!("http://{}", server.behind("Live page: http://"));
    assert_eq!(of_server(&url), (0, Vec::new()));
    redis.kill();
    fs::write(&file, "nonsense").unwrap();
    let has = |name: &str| codes(of_server(&url)).contains(&name.to_owned());
    crate::support::eventually("the fallback", || has("store_fallback"));
    crate::support::eventually("the refused file", || has("config_stale"));
}

#[test]
fn keys_that_were_forgotten_and_a_breaker_that_is_open() {
    let (server, url) = running(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n[store]\nmax_keys = 16\n\
         [[policy]]\nname = \"each\"\nkey = \"ip\"\nlimit = \"5/d\"\n",
    );
    let at = format!(
        "http://{}/v1/check",
        server.behind("serves HTTP on http://")
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
        let server = Started::run(command);
        let url = format!("http://{}", server.behind("Live page: http://"));
        let at = format!(
            "http://{}/?n=[1-40]",
            server.behind("is a gateway on http://")
        );
        curl(&["-o", "/dev/null", &at]);
        crate::support::eventually(found, || codes(of_server(&url)).contains(&found.to_owned()));
        finds(of_server(&url), found, "the upstream http://127.0.0.1:1 ");
    }
}

#[test]
fn the_server_is_found_where_the_configuration_has_it() {
    let place = Place::new("doctor");
    let admin = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"unix:{}\"\n",
        place.file("admin.sock")
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
        String::from_utf8_lossy(&gone.stderr).contains("nobody is reached at unix:"),
        "{gone:?}"
    );
    let mut command = plain();
    command.args(["serve", "--config"]).arg(&file);
    let server = Started::run(command);
    let well = probe();
    assert!(
        well.status.success() && well.stdout.is_empty() && well.stderr.is_empty(),
        "{well:?}"
    );
    let (code, _, said) = doctor(&["--config", file.to_str().unwrap()]);
    assert_eq!(
        (code, said["not_looked_at"].as_array().unwrap().len()),
        (0, 0),
        "{said}"
    );
    drop(server);
    // Whoever names a server wants it looked at.
    let (code, _, said) = doctor(&[
        "--config",
        file.to_str().unwrap(),
        "--url",
        "http://127.0.0.1:1",
    ]);
    assert_eq!(code, 2, "{said}");
    let (code, ..) = doctor(&["--config", file.to_str().unwrap(), "--url", "nowhere"]);
    assert_eq!(code, 2);
}

#[test]
fn a_server_in_tls_is_looked_at_too() {
    let authority = crate::authority::Authority::new("an authority");
    let (cert, key) = authority.sign("localhost", 2100);
    let config = format!(
        "[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"127.0.0.1:0\"\n[server.tls]\ncert = {cert:?}\nkey = {key:?}\n\
         [server.tls.admin]\nclient_ca = {:?}\n",
        authority.ca()
    );
    let server = Started::serve(&config);
    let url = format!("https://localhost:{}", server.port("Live page: https://"));
    let file = config_file(NOWHERE);
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
    assert_eq!(with(&["--ca-file", &ca]), 2, "it wants a certificate");
    assert_eq!(with(&own), 2, "nobody trusts that authority");
    // So does every other command that asks it.
    let status = plain()
        .args(["admin", "status", "--url", &url, "--ca-file", &ca])
        .args(own)
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
}
