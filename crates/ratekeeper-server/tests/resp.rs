//! RESP with real clients: redis-cli, redis-benchmark, redis-py, ioredis and go-redis; and invalid
//! input on sockets.

mod support;

use ratekeeper_testkit::{RedisServer, tools};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{Server, config_file, ratekeeper};

const CONFIG: &str = r#"
[server]
http = "127.0.0.1:0"

[[policy]]
name = "per-user"
missing = "skip"
key = ["user"]
limit = "3/d"

[[policy]]
name = "per-address"
match = { path = "/login" }
key = ["ip"]
limit = "2/d"

[[policy]]
name = "both"
key = ["ip", "user"]
limit = "5/d"

[[policy]]
name = "all"
match = { path = "/all" }
limit = "2/d"
"#;

struct Resp {
    server: Server,
    at: SocketAddr,
}

impl Resp {
    fn start() -> Self {
        Self::with_config(CONFIG)
    }

    fn with_config(config: &str) -> Self {
        let mut command = ratekeeper();
        command
            .arg("serve")
            .arg("--config")
            .arg(config_file(config))
            .env("RATEKEEPER_SERVER__RESP", "127.0.0.1:0");
        let server = Server::run(command);
        let at = server.resp();
        Self { server, at }
    }

    /// What redis-cli prints.
    #[track_caller]
    fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.at.port().to_string(),
                "--no-raw",
            ])
            .args(arguments);
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("redis-cli (apt-get install redis-tools): {error}"));
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// The replies until the server closes.
    fn replies_until_closed(&self, bytes: &[u8]) -> String {
        let (mut stream, mut answer) = (self.connect(), String::new());
        stream.write_all(bytes).unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn integers(numbers: [i64; 5]) -> String {
    let lines = numbers
        .iter()
        .enumerate()
        .map(|(at, number)| format!("{}) (integer) {number}", at + 1));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn redis_cli_throttles() {
    let resp = Resp::start();
    // A day each, so that the test may be slow.
    assert_eq!(
        resp.cli(&["CL.THROTTLE", "user", "1", "1", "86400"]),
        integers([0, 2, 1, -1, 86_400])
    );
    let second = resp.cli(&["CL.THROTTLE", "user", "1", "1", "86400"]);
    assert!(
        second.starts_with("1) (integer) 0\n2) (integer) 2\n3) (integer) 0\n4) (integer) -1\n"),
        "{second}"
    );
    let third = resp.cli(&["-3", "cl.throttle", "user", "1", "1", "86400"]);
    assert!(
        third.starts_with("1) (integer) 1\n2) (integer) 2\n3) (integer) 0\n4) (integer) 86"),
        "{third}"
    );
    assert_eq!(
        resp.cli(&["CL.THROTTLE", "other", "1", "1", "86400", "3"]),
        integers([1, 2, 2, -1, 0])
    );
    assert!(
        resp.cli(&["CL.THROTTLE", "user", "1"])
            .starts_with("(error) ERR usage: CL.THROTTLE")
    );
    assert_eq!(
        resp.cli(&["GET", "x"]),
        "(error) ERR unknown command 'GET', with args beginning with: 'x'"
    );
    assert_eq!(resp.cli(&["PING"]), "PONG");
    assert!(resp.cli(&["INFO"]).contains("redis_version:7."));
    assert!(
        resp.cli(&["COMMAND", "DOCS", "cl.throttle"])
            .contains("summary")
    );
    assert_eq!(resp.cli(&["-n", "0", "-a", "x", "PING"]), "PONG");
}

#[test]
fn metrics_count_calls_and_not_peeks() {
    let resp = Resp::start();
    for quantity in ["1", "1", "0", "1"] {
        resp.cli(&["CL.THROTTLE", "a", "1", "1", "86400", quantity]);
    }
    resp.cli(&["RATEKEEPER.CHECK", "per-user", "me"]);
    resp.cli(&["RATEKEEPER.PEEK", "per-user", "me"]);
    for (name, many) in [("total", 4.0), ("allowed", 3.0), ("blocked", 1.0)] {
        assert!(
            (resp.server.metric(&format!("ratelimit_requests_{name}")) - many).abs() < 0.1,
            "{name}"
        );
    }
}

#[test]
fn a_policy_is_checked_by_name() {
    let resp = Resp::start();
    let day = 86_400;
    let first = |said: String| {
        said.lines()
            .take(3)
            .map(|line| line[3..].to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        resp.cli(&["RATEKEEPER.CHECK", "per-user", "me", "2"]),
        integers([0, 3, 1, -1, day / 3 * 2])
    );
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.PEEK", "per-user", "me"])),
        "(integer) 0 (integer) 3 (integer) 1"
    );
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-user", "me"])),
        "(integer) 0 (integer) 3 (integer) 0"
    );
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-user", "me"])),
        "(integer) 1 (integer) 3 (integer) 0"
    );
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-user", "you"])),
        "(integer) 0 (integer) 3 (integer) 2"
    );
    assert_eq!(resp.cli(&["RATEKEEPER.RESET", "per-user", "me"]), "OK");
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-user", "me"])),
        "(integer) 0 (integer) 3 (integer) 2"
    );
    // The policy's `match` is not evaluated, and its buckets are those of HTTP.
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-address", "192.0.2.1"])),
        "(integer) 0 (integer) 2 (integer) 1"
    );
    let http = resp
        .server
        .check(r#"{"subject":{"ip":"192.0.2.1","path":"/login"}}"#);
    assert_eq!(http.json()["limits"][0]["remaining"], 0);
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "per-address", "192.0.2.1"])),
        "(integer) 1 (integer) 2 (integer) 0"
    );
    assert_eq!(
        first(resp.cli(&["RATEKEEPER.CHECK", "all", "anybody"])),
        "(integer) 0 (integer) 2 (integer) 1"
    );

    for (command, expected) in [
        (
            &["RATEKEEPER.CHECK", "nope", "me"][..],
            "ERR policy 'nope': no policy has that name",
        ),
        (
            &["RATEKEEPER.CHECK", "both", "me"],
            "ERR policy 'both': the policy counts by ip and user, which is more than one value; send a request with all of them instead",
        ),
        (
            &["RATEKEEPER.PEEK", "per-address", "me"],
            "ERR policy 'per-address': the policy counts by ip, but the key is not an IP address",
        ),
        (
            &["RATEKEEPER.RESET", "per-user", ""],
            "ERR policy 'per-user': the policy counts by user, but the key is empty or invalid",
        ),
        (
            &["RATEKEEPER.CHECK", "per-user", "me", "-1"],
            "ERR cost must be a whole number from 0 on",
        ),
    ] {
        assert_eq!(resp.cli(command), format!("(error) {expected}"));
    }
}

#[test]
fn a_key_is_reset_by_the_fingerprint_that_the_lists_show() {
    let resp = Resp::start();
    let left = || remaining(&resp, "me");
    let spend = || resp.cli(&["RATEKEEPER.CHECK", "per-user", "me", "3"]);
    spend();
    let top = resp.server.admin("GET", "/admin/top").json();
    let rows = top["most_active"].as_array().unwrap();
    let row = rows.iter().find(|row| row["policy"] == "per-user").unwrap();
    let shown = row["fingerprint"].as_str().unwrap();
    let bare = shown.strip_prefix("user=").unwrap();
    for name in [shown, bare] {
        spend();
        assert!(left().ends_with(" 0"), "{}", left());
        assert_eq!(resp.cli(&["RATEKEEPER.RESET", "per-user", name]), "OK");
        assert!(left().ends_with(" 3"), "{name}: {}", left());
    }
    // An unknown fingerprint is an error.
    for (name, expected) in [
        (
            "#0123456789abcdef",
            "(error) ERR policy 'per-user': this node has not seen user=#0123456789abcdef lately",
        ),
        (
            "#f8c0…",
            "(error) ERR policy 'per-user': the key is not a fingerprint of user: a fingerprint is `#` and 16 hexadecimal digits",
        ),
    ] {
        let answer = resp.cli(&["RATEKEEPER.RESET", "per-user", name]);
        assert!(answer.starts_with(expected), "{answer}");
    }
}

/// The remaining units of a user in the policy `per-user`.
fn remaining(resp: &Resp, user: &str) -> String {
    resp.cli(&["RATEKEEPER.PEEK", "per-user", user])
        .lines()
        .nth(2)
        .unwrap()
        .to_owned()
}

const TOKEN: &str = "0123456789abcdef";

fn with_token() -> Resp {
    Resp::with_config(&CONFIG.replacen(
        "[server]",
        &format!("[server]\nadmin_token = \"{TOKEN}\""),
        1,
    ))
}

/// The newest audit entries: action, policy, outcome and detail.
fn audited(resp: &Resp) -> Vec<[String; 4]> {
    let audit = resp.server.admin("GET", "/admin/audit").json();
    let text =
        |entry: &serde_json::Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let entries = audit.as_array().unwrap_or_else(|| panic!("{audit}"));
    let entry = |entry| ["action", "policy", "outcome", "detail"].map(|name| text(entry, name));
    entries.iter().map(entry).collect()
}

#[test]
fn a_reset_needs_the_admin_token_and_is_audited() {
    let resp = with_token();
    resp.cli(&["RATEKEEPER.CHECK", "per-user", "me", "3"]);
    for (arguments, expected) in [
        (
            &["RATEKEEPER.RESET", "per-user", "me"][..],
            "(error) NOPERM RATEKEEPER.RESET needs the admin_token",
        ),
        (&["RESET"], "RESET"),
        (
            &["-a", "wrong", "RATEKEEPER.RESET", "per-user", "me"],
            "(error) NOPERM RATEKEEPER.RESET needs the admin_token",
        ),
    ] {
        let said = resp.cli(arguments);
        assert!(said.starts_with(expected), "{arguments:?}: {said}");
        assert_eq!(remaining(&resp, "me"), "3) (integer) 0", "{arguments:?}");
    }
    assert_eq!(
        resp.cli(&["-a", TOKEN, "RATEKEEPER.RESET", "nope", "me"]),
        "(error) ERR policy 'nope': no policy has that name"
    );
    assert_eq!(
        resp.cli(&["-a", TOKEN, "RATEKEEPER.RESET", "per-user", "me"]),
        "OK"
    );
    assert_eq!(remaining(&resp, "me"), "3) (integer) 3");
    assert_eq!(
        resp.cli(&[
            "--user",
            "default",
            "--pass",
            TOKEN,
            "-3",
            "RATEKEEPER.RESET",
            "per-user",
            "me"
        ]),
        "OK"
    );
    let entries = audited(&resp);
    let outcomes: Vec<&str> = entries
        .iter()
        .map(|[.., outcome, _]| outcome.as_str())
        .collect();
    assert_eq!(
        outcomes,
        ["done", "done", "rejected", "rejected", "rejected"],
        "{entries:?}"
    );
    assert!(
        entries
            .iter()
            .all(|[action, _, _, detail]| action == "reset"
                && detail.starts_with("RATEKEEPER.RESET")),
        "{entries:?}"
    );
    assert_eq!(
        (entries[0][1].as_str(), entries[2][1].as_str()),
        ("per-user", "nope")
    );
    assert!(entries[3][3].contains("admin_token"), "{entries:?}");
}

#[test]
fn a_reset_lifts_no_ban_of_an_operator() {
    let resp = Resp::start();
    let ban = r#"{"policy":"per-user","subject":{"user":"me"},"for":"1h"}"#;
    let mut admin = Server::connect_to(resp.server.admin);
    admin.send("POST", "/admin/ban", ban);
    let banned = admin.answer();
    assert_eq!(banned.status(), 200, "{}", banned.body);
    assert_eq!(resp.cli(&["RATEKEEPER.RESET", "per-user", "me"]), "OK");
    let checked = resp.cli(&["RATEKEEPER.CHECK", "per-user", "me"]);
    assert!(
        checked.starts_with("1) (integer) 1\n2) (integer) 0\n"),
        "still banned: {checked}"
    );
    assert!(
        resp.server
            .admin("GET", "/admin/overrides")
            .body
            .contains("per-user")
    );
}

#[test]
fn http_requests_are_rejected_and_their_bodies_not_run() {
    let resp = Resp::start();
    let body = "CL.THROTTLE k 1 1 60\r\nRATEKEEPER.RESET per-user me\r\n";
    resp.cli(&["RATEKEEPER.CHECK", "per-user", "me", "3"]);
    for head in [
        "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "Host: x\r\n",
        "PUT / HTTP/1.1\r\n",
    ] {
        let reply = resp.replies_until_closed(format!("{head}{body}").as_bytes());
        assert!(
            reply.starts_with("-ERR Protocol error: this is an HTTP request")
                && reply.lines().count() == 1,
            "{reply}"
        );
    }
    let mut curl = Command::new("curl");
    curl.args(["-s", "--http0.9", "--max-time", "10", "-d", body])
        .arg(format!("http://{}/", resp.at));
    let said = curl.output().unwrap();
    assert!(
        String::from_utf8_lossy(&said.stdout).lines().count() <= 1,
        "{said:?}"
    );
    assert_eq!(remaining(&resp, "me"), "3) (integer) 0");
    assert!(audited(&resp).is_empty());
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    let resp = Resp::start();
    for pipeline in ["1", "16"] {
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-p",
            &resp.at.port().to_string(),
            "-n",
            "10000",
            "-r",
            "100",
            "-P",
            pipeline,
            "--csv",
        ]);
        command.args(["CL.THROTTLE", "key:__rand_int__", "9", "1", "86400"]);
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("redis-benchmark (redis-tools): {error}"));
        assert!(output.status.success(), "{output:?}");
    }
    // A hundred keys, ten each.
    assert!((resp.server.metric("ratelimit_requests_allowed") - 1_000.0).abs() < 0.1);
    assert!((resp.server.metric("ratelimit_requests_total") - 20_000.0).abs() < 0.1);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a client program with the port as argument; it prints "done".
#[track_caller]
fn done(command: Command) {
    done_on(&Resp::start(), command);
}

#[track_caller]
fn done_on(resp: &Resp, mut command: Command) {
    let output = command.arg(resp.at.port().to_string()).output().unwrap();
    let said = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(
        (said.0.trim(), output.status.success()),
        ("done", true),
        "{}",
        said.1
    );
}

fn python(program: &str) -> Command {
    let python = root().join("target/venv/bin/python");
    assert!(
        python.exists(),
        "{} is not there; scripts/venv makes it, and so does make tools",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg(
        root()
            .join("crates/ratekeeper-server/tests/clients")
            .join(program),
    );
    command
}

#[test]
fn redis_py_connects_pipelines_and_throttles() {
    done(python("redis_py.py"));
}

#[test]
fn redis_py_resets_a_key_as_an_operator() {
    let mut command = python("redis_py_operator.py");
    command.env("ADMIN_TOKEN", TOKEN);
    done_on(&with_token(), command);
}

/// A client built by `make tools`, if there is one: see [`tools`].
fn client(name: &str) -> Option<PathBuf> {
    let path = root().join("target/clients").join(name);
    tools::file(&path, "scripts/clients makes it, with npm or go")
}

#[test]
fn ioredis_connects_pipelines_and_throttles() {
    let Some(modules) = client("ioredis/node_modules") else {
        return;
    };
    let Some(mut command) =
        tools::program("node", "install it (on Debian: apt-get install nodejs)")
    else {
        return;
    };
    command
        .env("NODE_PATH", modules)
        .arg(root().join("crates/ratekeeper-server/tests/clients/ioredis/client.cjs"));
    done(command);
}

#[test]
fn go_redis_connects_pipelines_and_throttles() {
    let Some(program) = client("go-redis") else {
        return;
    };
    done(Command::new(program));
}

#[test]
fn malformed_frames_close_the_connection() {
    let resp = Resp::start();
    for (bytes, expected) in [
        (&b"*1\r\n$536870912\r\n"[..], "invalid bulk length"),
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"PING \"\r\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(
            resp.replies_until_closed(bytes),
            format!("-ERR Protocol error: {expected}\r\n")
        );
    }
    assert_eq!(
        resp.replies_until_closed(b"PING\r\nQUIT\r\nPING\r\n"),
        "+PONG\r\n+OK\r\n"
    );
    assert_eq!(resp.cli(&["PING"]), "PONG");
}

/// Each reply arrives before the next byte is sent; replies to pipelined commands are in order.
#[test]
fn input_may_be_split_or_pipelined() {
    let resp = Resp::start();
    let mut stream = resp.connect();
    for byte in b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n" {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$2\r\nhi\r\n");

    let (writer, many) = (stream.try_clone().unwrap(), 50_000);
    let sending = std::thread::spawn(move || {
        let mut writer = writer;
        let all: String = (0..many)
            .map(|at| format!("*2\r\n$4\r\nECHO\r\n$5\r\n{at:05}\r\n"))
            .collect();
        writer.write_all(all.as_bytes()).unwrap();
    });
    let mut answers = vec![0; many * 11];
    stream.read_exact(&mut answers).unwrap();
    sending.join().unwrap();
    for (at, answer) in answers.chunks(11).enumerate() {
        assert_eq!(answer, format!("$5\r\n{at:05}\r\n").as_bytes());
    }
}

#[test]
fn a_stop_closes_connections_that_are_idle() {
    let resp = Resp::start();
    let mut stream = resp.connect();
    stream.write_all(b"PING\r\n").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
    resp.server.signal("TERM");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let (status, log) = resp.server.ended();
    assert!(status.success() && !log.contains("panicked"), "{log}");
}

/// Policies are shared, `CL.THROTTLE` is local to each node, and the log says so.
#[test]
fn on_redis_policies_are_shared() {
    let redis = RedisServer::start();
    let store = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        redis.url()
    );
    let nodes = [(); 2].map(|()| Resp::with_config(&format!("{CONFIG}{store}")));
    let remaining =
        |node: &Resp, command: &[&str]| node.cli(command).lines().nth(2).unwrap().to_owned();
    let check = ["RATEKEEPER.CHECK", "per-user", "me"];
    assert_eq!(
        nodes.each_ref().map(|node| remaining(node, &check)),
        ["3) (integer) 2", "3) (integer) 1"]
    );
    let throttle = ["CL.THROTTLE", "me", "1", "1", "86400"];
    assert_eq!(
        nodes.each_ref().map(|node| remaining(node, &throttle)),
        ["3) (integer) 1", "3) (integer) 1"]
    );
    let [node, _] = nodes;
    node.server.signal("TERM");
    let (_, log) = node.server.ended();
    assert!(
        log.contains("CL.THROTTLE counts on this node only"),
        "{log}"
    );
}

#[test]
fn off_is_off() {
    let server = Server::start();
    assert!(!server.welcome.contains("RESP"), "{}", server.welcome);
}
