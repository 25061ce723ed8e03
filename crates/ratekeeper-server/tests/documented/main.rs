//! Every configuration in README.md and below docs, through the real binary: `config check` says of
//! it what the page says, and each of its policies limits, at the number that it names, under
//! `serve` and under `proxy`. A new block is found by itself.

mod blocks;
mod policy;
#[path = "../support/mod.rs"]
mod support;

use blocks::Block;
use policy::{Documented, for_this_machine, policies};
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

/// Far longer than an answer takes that does not wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// More requests than these are sent to no proxy: under `serve` one request may cost as much.
const MANY: u64 = 1_500;

static REDIS: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

/// The configurations that are right.
fn right() -> Vec<(Block, Table)> {
    let is_right = |block: &Block| !block.said().iter().any(|said| said.contains(": error: "));
    let all = blocks::all().into_iter().filter(is_right);
    all.filter_map(|block| Some((block.clone(), block.configuration()?.parse().ok()?)))
        .collect()
}

/// What `ratekeeper config check` says of a file, and its code.
fn checked(text: &str, envoy_config: &Path) -> (Option<i32>, String) {
    let file = config_file(text);
    let mut command = ratekeeper();
    command
        .env_remove("RATEKEEPER_SERVER__ADMIN")
        .env_remove("RATEKEEPER_SERVER__RESP");
    if text.contains("[envoy]") {
        command.env("RATEKEEPER_ENVOY__CONFIG", envoy_config);
    }
    let output = command
        .args(["config", "check"])
        .arg(&file)
        .output()
        .unwrap();
    let said =
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let name = file.display().to_string();
    (output.status.code(), said.replace(&name, "ratekeeper.toml"))
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}

#[test]
fn config_check_says_what_the_pages_say() {
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
        let (code, said) = checked(&text, &envoy_config);
        let expected = block.said();
        let is_wrong = expected.iter().any(|line| line.contains(": error: "));
        if code != Some(i32::from(is_wrong)) {
            wrong.push(format!(
                "{}: config check ends with {code:?}: {said}",
                block.place
            ));
        }
        for line in expected {
            if !said.contains(&format!("ratekeeper.toml:{line}\n")) {
                wrong.push(format!(
                    "{}: config check does not say {line:?}: {said}",
                    block.place
                ));
            }
        }
    }
    assert!(seen > 25, "{seen} configurations");
    assert_none(&wrong);
}

#[test]
fn every_policy_limits_under_serve() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (block, file) in right() {
        for policy in policies(&for_this_machine(&file, REDIS.url())) {
            match decided(&policy).or_else(|_| decided(&policy.alone())) {
                Ok(limits) => seen += usize::from(limits),
                Err(error) => wrong.push(format!("{}: `{}`: {error}", block.place, policy.name)),
            }
        }
    }
    assert!(seen > 40, "{seen} policies");
    assert_none(&wrong);
}

/// Whether a policy has limits and these deny what is over them, as `POST /v1/check` and
/// `/v1/reserve` answer.
fn decided(policy: &Documented) -> Result<bool, String> {
    let (limit, concurrent) = (policy.tightest(), policy.concurrent());
    if limit.is_none() && concurrent.is_none() {
        return Ok(false);
    }
    if let Some(many) = concurrent {
        reserved(policy, many)?;
    }
    let Some(limit) = limit else { return Ok(true) };
    let node = start(policy, "serve", &[]);
    let of_it = |answer: &Value, outcomes: &[&str]| has_outcome(policy, answer, outcomes);
    let is_denied = |answer: &Value| of_it(answer, &DENIED);
    // A rollout takes some callers only.
    let request = (0..300)
        .map(|caller| policy.request(caller))
        .find(|request| {
            let body = json!({"subject": request.subject(), "peek": true});
            let answer = node.check(&body.to_string()).json();
            of_it(&answer, &["allowed", "denied", "delayed", "shadow_denied"])
        });
    let Some(request) = request else {
        return Err(format!("it applies to none of {:?} …", policy.request(0)));
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
            Err(format!(
                "{allowed} wait or pass, not {expected:?}: {answers}"
            ))
        };
    }
    if policy.is_leased() {
        return leased(&node, &ask(1), limit.capacity(), per_second, is_denied);
    }
    // What comes back meanwhile is not more than this.
    let back = (per_second * 0.5) as u64;
    let answers = node
        .check(&json!([ask(capacity), ask(1 + back)]).to_string())
        .json();
    let told: Vec<bool> = answers.as_array().unwrap().iter().map(is_denied).collect();
    let passes = answers[0]["allowed"] == true;
    match (passes, told.as_slice()) {
        (true, [false, true]) => Ok(true),
        _ => Err(format!(
            "it does not let {capacity} through, and then none: {answers}"
        )),
    }
}

/// What a limit says that a request does not fit in.
const DENIED: [&str; 3] = ["denied", "shadow_denied", "never"];

/// Whether a limit of the policy has one of these outcomes in an answer.
fn has_outcome(policy: &Documented, answer: &Value, outcomes: &[&str]) -> bool {
    let limits = answer["limits"].as_array().into_iter().flatten();
    limits
        .filter(|limit| limit["policy"] == policy.name)
        .any(|limit| outcomes.contains(&limit["outcome"].as_str().unwrap_or_default()))
}

/// Starts the binary with the file of the policy. No two starts share counters on Redis.
fn start(policy: &Documented, mode: &str, more: &[&str]) -> Server {
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

/// Whether so many can be reserved at once, and not one more.
fn reserved(policy: &Documented, many: u64) -> Result<(), String> {
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

/// The same where tokens are taken from Redis in portions.
fn leased(
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
            return Err(format!("{allowed} pass, and {most} may"));
        }
        if allowed >= capacity / 2 && answers.iter().any(&is_denied) {
            return Ok(true);
        }
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("{allowed} pass in 30 s, and none is denied"));
        }
    }
}

#[test]
fn every_policy_limits_under_proxy() {
    let upstream = upstream();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (block, file) in right() {
        let file = for_this_machine(&file, REDIS.url());
        let (_, said) = checked(&file.to_string(), Path::new(""));
        for policy in policies(&file) {
            if is_said_not_to_apply(&policy.name, &said) {
                continue;
            }
            let result =
                forwarded(&policy, upstream).or_else(|_| forwarded(&policy.alone(), upstream));
            match result {
                Ok(limits) => seen += usize::from(limits),
                Err(error) => wrong.push(format!("{}: `{}`: {error}", block.place, policy.name)),
            }
        }
    }
    assert!(seen > 30, "{seen} policies");
    assert_none(&wrong);
}

/// Whether `config check` says that a policy limits nothing in the gateway, as no request there has
/// an attribute that it needs.
fn is_said_not_to_apply(name: &str, said: &str) -> bool {
    let of_it = said
        .lines()
        .filter(|line| line.contains(&format!("the policy `{name}` ")));
    of_it
        .filter(|line| line.contains("`ratekeeper proxy`"))
        .any(|line| {
            line.contains("the policy never applies") || line.contains("every request is denied")
        })
}

/// Whether a policy has limits that can be seen in the gateway, and these deny what is over them.
fn forwarded(policy: &Documented, upstream: SocketAddr) -> Result<bool, String> {
    let is_seen_under_serve_alone = policy.only_watches()
        || policy.max_delay().is_some()
        || policy.is_leased()
        || policy.is_rolled_out()
        || !policy.is_of_default_plan();
    if is_seen_under_serve_alone {
        return Ok(false);
    }
    let in_flight = policy.concurrent().map(|many| many..=many);
    let in_flight = policy.adaptive().or(in_flight);
    let limit = policy
        .tightest()
        .map(|limit| (limit, limit.capacity() / policy.default_cost()));
    let limit = limit.filter(|(_, requests)| *requests <= MANY);
    if in_flight.is_none() && limit.is_none() {
        return Ok(false);
    }
    let node = start(
        policy,
        "proxy",
        &["--upstream", &format!("http://{upstream}")],
    );
    if let Some(many) = in_flight {
        return held(&node, policy, many);
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
        if passed > 4 * MANY {
            break;
        }
        if answer.header("connection") == Some("close") {
            connection = node.connect();
        }
    }
    Err(format!("{} pass, and {requests} may", 4 * MANY))
}

/// Whether only so many are in flight at once.
fn held(node: &Server, policy: &Documented, many: RangeInclusive<u64>) -> Result<bool, String> {
    let mut waiting = Vec::new();
    while waiting.len() <= 500 {
        let mut stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
                "with {} in flight, and {many:?} may be: {answer}",
                waiting.len()
            ))
        };
    }
    Err("hundreds are in flight, and none is denied".to_owned())
}

/// A request that the policy applies to, as text, and what the service is to answer.
fn head(policy: &Documented, status: u16, more: &str) -> String {
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

/// A service that answers with the status that it is told, or not at all for as long as it is held.
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
    let (mut status, mut is_held, mut line) = ("200".to_owned(), false, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 0 {
        let lower = line.trim().to_ascii_lowercase();
        if let Some(told) = lower.strip_prefix("x-answer: ") {
            status = told.to_owned();
        }
        is_held |= lower.starts_with("x-hold:");
        if line == "\r\n" {
            if is_held {
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
fn every_limit_of_envoy_limits() {
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
        assert!(output.status.success(), "{}: {output:?}", block.place);
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
            let place = &block.place;
            assert_eq!(
                (ask(many), ask(1)),
                (200, 429),
                "{place}: {entries:?} has {many}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// The limits below these descriptors, each with the entries that it is asked by and how much fits
/// in it at once.
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
