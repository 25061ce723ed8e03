//! Every configuration in README.md and below docs, with the real binary: `config check` prints what
//! the page shows, and each policy denies requests above its documented limit, under `serve` and
//! under `proxy`. New blocks are found automatically.

mod blocks;
mod getting_started;
mod policy;
#[path = "../support/mod.rs"]
mod support;

use blocks::Block;
use policy::{DocumentedPolicy, for_this_machine, policies};
use ratekeeper_testkit::RedisServer;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use support::{Server, config_file, directory, for_envoy, ratekeeper};
use toml::Table;

/// Far longer than an immediate answer takes.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

/// The highest limit tested under `proxy`, with as many requests; under `serve` a request may cost
/// that much.
const MAX_REQUESTS: u64 = 1_500;

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

/// The valid configurations.
fn valid_configurations() -> Vec<(Block, Table)> {
    let is_valid = |block: &Block| {
        !block
            .expected_output()
            .iter()
            .any(|line| line.contains(": error: "))
    };
    let all = blocks::all().into_iter().filter(is_valid);
    all.filter_map(|block| Some((block.clone(), block.configuration()?.parse().ok()?)))
        .collect()
}

/// Runs `ratekeeper config check` on a file. Returns its exit code and its output.
fn config_check(text: &str, envoy_config: &Path) -> (Option<i32>, String) {
    let file = config_file(text);
    let mut command = ratekeeper();
    command
        .env_remove("RATEKEEPER_SERVER__ADMIN")
        .env_remove("RATEKEEPER_SERVER__RESP");
    if text.contains("[envoy]") {
        command.env("RATEKEEPER_ENVOY__CONFIG", envoy_config);
    }
    let run = command
        .args(["config", "check"])
        .arg(&file)
        .output()
        .unwrap();
    let output = String::from_utf8(run.stdout).unwrap() + &String::from_utf8(run.stderr).unwrap();
    let name = file.display().to_string();
    (run.status.code(), output.replace(&name, "ratekeeper.toml"))
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}

#[test]
fn config_check_prints_what_the_pages_show() {
    let all = blocks::all();
    let is_of_readme =
        |block: &&Block| block.page() == "README.md" && block.text.contains("[[policy]]");
    assert!(
        all.iter().any(|block| is_of_readme(&block)),
        "README.md has no policies"
    );
    let limits: Vec<(String, &str)> = (0..)
        .zip(all.iter().filter_map(Block::envoy_limits))
        .map(|(at, limits)| (format!("{at}.yaml"), limits))
        .collect();
    let files: Vec<(&str, &str)> = limits.iter().map(|(name, text)| (&**name, *text)).collect();
    let envoy_config = directory(&files);
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for block in &all {
        let Some(text) = block.configuration() else {
            continue;
        };
        seen += 1;
        let (code, output) = config_check(&text, &envoy_config);
        let expected = block.expected_output();
        let is_wrong = expected.iter().any(|line| line.contains(": error: "));
        if code != Some(i32::from(is_wrong)) {
            wrong.push(format!(
                "{}: config check ends with {code:?}: {output}",
                block.location
            ));
        }
        for line in expected {
            if !output.contains(&format!("ratekeeper.toml:{line}\n")) {
                wrong.push(format!(
                    "{}: config check does not print {line:?}: {output}",
                    block.location
                ));
            }
        }
    }
    assert!(seen > 25, "{seen} configurations");
    assert_none(&wrong);
}

#[test]
fn every_policy_denies_above_its_limit_under_serve() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (block, file) in valid_configurations() {
        for policy in policies(&for_this_machine(&file, REDIS.url())) {
            match check_under_serve(&policy).or_else(|_| check_under_serve(&policy.alone())) {
                Ok(limits) => seen += usize::from(limits),
                Err(error) => wrong.push(format!("{}: `{}`: {error}", block.location, policy.name)),
            }
        }
    }
    assert!(seen > 40, "{seen} policies");
    assert_none(&wrong);
}

/// Whether a policy has limits; an error unless these deny requests above them at `POST /v1/check`
/// and `/v1/reserve`.
fn check_under_serve(policy: &DocumentedPolicy) -> Result<bool, String> {
    let (limit, concurrent) = (policy.tightest(), policy.concurrent());
    if limit.is_none() && concurrent.is_none() {
        return Ok(false);
    }
    if let Some(many) = concurrent {
        check_reservations(policy, many)?;
    }
    let Some(limit) = limit else { return Ok(true) };
    let node = start(policy, "serve", &[]);
    let has_any = |answer: &Value, outcomes: &[&str]| has_outcome(policy, answer, outcomes);
    let is_denied = |answer: &Value| has_any(answer, &DENIED);
    // A rollout applies to some callers only.
    let request = (0..300)
        .map(|caller| policy.request(caller))
        .find(|request| {
            let body = json!({"subject": request.subject(), "peek": true});
            let answer = node.check(&body.to_string()).json();
            has_any(&answer, &["allowed", "denied", "delayed", "shadow_denied"])
        });
    let Some(request) = request else {
        return Err(format!(
            "it applies to no request like {:?}",
            policy.request(0)
        ));
    };
    let capacity = limit.capacity() / policy.cost();
    let per_second = limit.rate().map_or(0.0, |rate| rate.per_second());
    let ask = |cost: u64| json!({"subject": request.subject(), "cost": cost});
    if let Some(longest) = policy.max_delay() {
        let waiting = (longest.as_secs_f64() * per_second) as u64;
        let calls: Vec<Value> = (0..capacity + waiting + 2).map(|_| ask(1)).collect();
        let answers = node.check(&json!(calls).to_string()).json();
        let allowed = answers
            .as_array()
            .unwrap()
            .iter()
            .take_while(|answer| !is_denied(answer))
            .count() as u64;
        let expected = capacity + waiting..=capacity + waiting + 1;
        return if expected.contains(&allowed) {
            Ok(true)
        } else {
            Err(format!("{allowed} allowed, not {expected:?}: {answers}"))
        };
    }
    if policy.is_leased() {
        return check_leased(&node, &ask(1), limit.capacity(), per_second, is_denied);
    }
    // Not more than this is refilled meanwhile.
    let max_refill = (per_second * 0.5) as u64;
    let answers = node
        .check(&json!([ask(capacity), ask(1 + max_refill)]).to_string())
        .json();
    let denials: Vec<bool> = answers.as_array().unwrap().iter().map(is_denied).collect();
    let passes = answers[0]["allowed"] == true;
    match (passes, denials.as_slice()) {
        (true, [false, true]) => Ok(true),
        _ => Err(format!(
            "it does not allow {capacity} and then none: {answers}"
        )),
    }
}

/// The outcomes of a limit that a request exceeds.
const DENIED: [&str; 3] = ["denied", "shadow_denied", "never"];

/// Whether a limit of the policy has one of these outcomes in an answer.
fn has_outcome(policy: &DocumentedPolicy, answer: &Value, outcomes: &[&str]) -> bool {
    let limits = answer["limits"].as_array().into_iter().flatten();
    limits
        .filter(|limit| limit["policy"] == policy.name)
        .any(|limit| outcomes.contains(&limit["outcome"].as_str().unwrap_or_default()))
}

/// Starts the binary with the file of the policy. Each start has its own counters in Redis.
fn start(policy: &DocumentedPolicy, mode: &str, more: &[&str]) -> Server {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let mut file = policy.file.clone();
    if let Some(toml::Value::Table(store)) = file.get_mut("store")
        && store.get("kind").and_then(toml::Value::as_str) == Some("redis")
    {
        let prefix = format!("documented{}", STARTED.fetch_add(1, Ordering::Relaxed));
        store.insert("prefix".to_owned(), prefix.into());
    }
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
        .args([mode, "--config"]);
    command.arg(config_file(&file.to_string())).args(more);
    Server::run(command)
}

/// Checks that exactly this many can be reserved at once.
fn check_reservations(policy: &DocumentedPolicy, many: u64) -> Result<(), String> {
    let node = start(policy, "serve", &[]);
    let body = json!({"subject": policy.request(0).subject()}).to_string();
    for number in 0..=many {
        let answer = node.request("POST", "/v1/reserve", &body).json();
        if has_outcome(policy, &answer, &DENIED) != (number == many) {
            return Err(format!(
                "call {} of {many} at the same time: {answer}",
                number + 1
            ));
        }
    }
    Ok(())
}

/// Checks a policy whose tokens are leased from Redis.
fn check_leased(
    node: &Server,
    call: &Value,
    capacity: u64,
    per_second: f64,
    is_denied: impl Fn(&Value) -> bool,
) -> Result<bool, String> {
    let (start, mut allowed) = (Instant::now(), 0);
    let calls = json!(vec![call; 100]).to_string();
    loop {
        let answers = node.check(&calls).json();
        let answers = answers.as_array().unwrap();
        allowed += answers
            .iter()
            .filter(|answer| answer["allowed"] == true)
            .count() as u64;
        let most = capacity + (start.elapsed().as_secs_f64() * per_second) as u64 + 1;
        if allowed > most {
            return Err(format!("{allowed} allowed, but at most {most} expected"));
        }
        if allowed >= capacity / 2 && answers.iter().any(&is_denied) {
            return Ok(true);
        }
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("{allowed} allowed in 30 s and none denied"));
        }
    }
}

#[test]
fn every_policy_denies_above_its_limit_under_proxy() {
    let upstream = upstream();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (block, file) in valid_configurations() {
        let file = for_this_machine(&file, REDIS.url());
        let (_, output) = config_check(&file.to_string(), Path::new(""));
        for policy in policies(&file) {
            if has_gateway_warning(&policy.name, &output) {
                continue;
            }
            let result = check_under_proxy(&policy, upstream)
                .or_else(|_| check_under_proxy(&policy.alone(), upstream));
            match result {
                Ok(limits) => seen += usize::from(limits),
                Err(error) => wrong.push(format!("{}: `{}`: {error}", block.location, policy.name)),
            }
        }
    }
    assert!(seen > 30, "{seen} policies");
    assert_none(&wrong);
}

/// Whether `config check` warns that a policy has no effect at the gateway, where no request has an
/// attribute that it needs.
fn has_gateway_warning(name: &str, output: &str) -> bool {
    let warnings = output
        .lines()
        .filter(|line| line.contains(&format!("the policy `{name}` ")));
    warnings
        .filter(|line| line.contains("`ratekeeper proxy`"))
        .any(|line| {
            line.contains("the policy never applies") || line.contains("every request is denied")
        })
}

/// Whether a policy has limits that can be tested at the gateway; an error unless these deny
/// requests above them.
fn check_under_proxy(policy: &DocumentedPolicy, upstream: SocketAddr) -> Result<bool, String> {
    let is_tested_under_serve_only = policy.is_shadow()
        || policy.max_delay().is_some()
        || policy.is_leased()
        || policy.is_rolled_out()
        || !policy.is_of_default_plan();
    if is_tested_under_serve_only {
        return Ok(false);
    }
    let in_flight = policy.concurrent().map(|many| many..=many);
    let in_flight = policy.adaptive().or(in_flight);
    let limit = policy
        .tightest()
        .map(|limit| (limit, limit.capacity() / policy.default_cost()));
    let limit = limit.filter(|(_, requests)| *requests <= MAX_REQUESTS);
    if in_flight.is_none() && limit.is_none() {
        return Ok(false);
    }
    let node = start(
        policy,
        "proxy",
        &["--upstream", &format!("http://{upstream}")],
    );
    if let Some(many) = in_flight {
        return check_in_flight(&node, policy, many);
    }
    let Some((limit, requests)) = limit else {
        return Ok(false);
    };
    let per_second =
        limit.rate().map_or(0.0, |rate| rate.per_second()) / policy.default_cost() as f64;
    let head = head(policy, policy.counted_status(), "");
    let (start, mut connection) = (Instant::now(), node.connect());
    for passed in 0.. {
        connection.write(&head);
        let answer = connection.answer();
        if answer.header("x-upstream").is_none() {
            let most = requests + (start.elapsed().as_secs_f64() * per_second) as u64 + 1;
            let is_denied_by_policy = answer.body.contains(&format!("\"{}\"", policy.name));
            return if is_denied_by_policy && (requests..=most).contains(&passed) {
                Ok(true)
            } else {
                Err(format!(
                    "after {passed} of {requests} it answers {answer:?}"
                ))
            };
        }
        if passed > 4 * MAX_REQUESTS {
            break;
        }
        if answer.header("connection") == Some("close") {
            connection = node.connect();
        }
    }
    Err(format!(
        "{} allowed, but only {requests} expected",
        4 * MAX_REQUESTS
    ))
}

/// Checks that this many requests may be in flight at once.
fn check_in_flight(
    node: &Server,
    policy: &DocumentedPolicy,
    many: RangeInclusive<u64>,
) -> Result<bool, String> {
    let mut waiting = Vec::new();
    while waiting.len() <= 500 {
        let mut stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream
            .write_all(head(policy, 200, "X-Hold: yes\r\n").as_bytes())
            .unwrap();
        let mut answer = [0; 4096];
        let Ok(length) = stream.read(&mut answer) else {
            waiting.push(stream);
            continue;
        };
        let answer = String::from_utf8_lossy(&answer[..length]);
        let is_expected = many.contains(&(waiting.len() as u64));
        return if answer.contains(&format!("\"{}\"", policy.name)) && is_expected {
            Ok(true)
        } else {
            Err(format!(
                "with {} in flight of {many:?}: {answer}",
                waiting.len()
            ))
        };
    }
    Err("hundreds are in flight and none is denied".to_owned())
}

/// The head of a request that the policy applies to, with the status that the service is to answer.
fn head(policy: &DocumentedPolicy, status: u16, more: &str) -> String {
    let request = policy.request(0);
    let hosts = policy
        .file
        .get("gateway")
        .and_then(|gateway| gateway.get("hosts")?.as_array());
    let hosts = hosts.into_iter().flatten().filter_map(toml::Value::as_str);
    let host = request.host.as_deref();
    let host = host
        .or(hosts.into_iter().find(|host| !host.contains('*')))
        .unwrap_or("localhost");
    let mut text = format!(
        "{} {} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nX-Answer: {status}\r\n{more}",
        request.method, request.path
    );
    let identity = policy.file.get("identity");
    let mut headers = request.headers;
    for name in ["user", "api_key"] {
        let header = identity.and_then(|identity| identity.get(name));
        let header = header.and_then(|header| header.as_str().or(header.get("header")?.as_str()));
        let value = request.attributes.get(name).filter(|_| header.is_some());
        if let (Some(header), Some(value)) = (header, value) {
            let scheme = if header.eq_ignore_ascii_case("authorization") {
                "Bearer "
            } else {
                ""
            };
            headers
                .entry(header.to_owned())
                .or_insert(format!("{scheme}{value}"));
        }
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text + "\r\n"
}

/// A service that answers with the status in `X-Answer`, or not at all with `X-Hold`.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || serve_upstream(&stream));
        }
    });
    address
}

fn serve_upstream(mut stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    let (mut status, mut is_on_hold, mut line) = ("200".to_owned(), false, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 0 {
        let lower = line.trim().to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("x-answer: ") {
            status = value.to_owned();
        }
        is_on_hold |= lower.starts_with("x-hold:");
        if line == "\r\n" {
            if is_on_hold {
                // Until the gateway hangs up.
                let _ = reader.read_line(&mut line);
                return;
            }
            let answer =
                format!("HTTP/1.1 {status} -\r\nX-Upstream: yes\r\nContent-Length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
        line.clear();
    }
}

#[test]
fn every_envoy_limit_denies() {
    let mut seen = 0;
    for block in blocks::all() {
        let Some(text) = block.envoy_limits() else {
            continue;
        };
        let file = directory(&[("limits.yaml", text)]);
        let output = ratekeeper()
            .args(["config", "check", "--envoy-config"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {output:?}", block.location);
        let document: Value = serde_saphyr::from_str(text).unwrap();
        let mut limits = Vec::new();
        find_limits(&document["descriptors"], &[], &mut limits);
        let node = Server::run(for_envoy(&file));
        for (entries, many) in limits {
            let ask = |hits: u64| {
                let descriptor = json!({"entries": entries, "hitsAddend": hits});
                let body = json!({"domain": document["domain"], "descriptors": [descriptor]});
                node.request("POST", "/json", &body.to_string()).status()
            };
            let location = &block.location;
            assert_eq!(
                (ask(many), ask(1)),
                (200, 429),
                "{location}: {entries:?} has {many}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// Collects the limits below these descriptors, each with its entries and its capacity.
fn find_limits(descriptors: &Value, above: &[Value], limits: &mut Vec<(Vec<Value>, u64)>) {
    for descriptor in descriptors.as_array().into_iter().flatten() {
        let value = descriptor["value"]
            .as_str()
            .unwrap_or("any")
            .replace('*', "x");
        let mut entries = above.to_vec();
        entries.push(json!({"key": descriptor["key"], "value": value}));
        let limit = &descriptor["rate_limit"];
        let is_enforced = descriptor["shadow_mode"] != true && descriptor["quota_mode"] != true;
        let many = limit["burst"]
            .as_u64()
            .or(limit["requests_per_unit"].as_u64());
        if let Some(many) = many.filter(|_| is_enforced) {
            limits.push((entries.clone(), many));
        }
        find_limits(&descriptor["descriptors"], &entries, limits);
    }
}
