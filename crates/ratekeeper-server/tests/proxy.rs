//! `ratekeeper proxy` in front of a real service, tested with curl and over a socket.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use support::{Server, config_file, eventually, exit_output, ratekeeper};

/// A service that answers every request with its own head, and reports each connection.
fn echo() -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, connections) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = connected.send(());
            let stream = stream.unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    (address, connections)
}

fn serve(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let answer = head + &String::from_utf8_lossy(&body);
        let response = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Own: yes\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n\r\n{answer}",
            answer.len()
        );
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn proxy(upstream: SocketAddr, args: &[&str]) -> Server {
    let mut command = ratekeeper();
    command
        .args([
            "proxy",
            "--upstream",
            &format!("http://{upstream}"),
            "--listen",
            "127.0.0.1:0",
        ])
        .args(args);
    Server::run(command)
}

/// The classic: 5 a second, 10 at once, twenty curls.
#[test]
fn ten_are_allowed_at_once_and_then_it_is_429() {
    let (upstream, _) = echo();
    // One an hour instead of five a second, so that none is refilled on a slow machine.
    let server = proxy(upstream, &["--limit", "1/h burst 10", "--by", "ip"]);
    let curl = format!(
        "for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{}/; done",
        server.address
    );
    let output = Command::new("sh").arg("-c").arg(curl).output().unwrap();
    let statuses = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        statuses.trim(),
        [["200"; 10], ["429"; 10]].concat().join(" ")
    );
    let answer = server.request("GET", "/", "");
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("10"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&after), "{after}");
    assert!(
        answer
            .header("x-ratelimit-reset")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 1_700_000_000
    );
}

#[test]
fn allowed_requests_reach_the_upstream_unchanged() {
    let (upstream, connections) = echo();
    let server = proxy(upstream, &["--limit", "1000/s"]);
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.write(
            "POST /a/b%20c?d=e HTTP/1.1\r\nHost: example.com\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: x-private\r\n\
             X-Private: 1\r\nX-Kept: 2\r\nContent-Length: 5\r\n\r\nhello",
        );
        let answer = connection.answer();
        assert_eq!(
            (
                answer.status(),
                answer.header("x-own"),
                answer.header("x-hop")
            ),
            (200, Some("yes"), None)
        );
        assert_eq!(answer.header("x-ratelimit-limit"), Some("1000"));
        let seen = answer.body.to_ascii_lowercase();
        assert!(seen.starts_with("post /a/b%20c?d=e http/1.1\r\n"), "{seen}");
        for line in [
            "host: example.com\r\n",
            "x-kept: 2\r\n",
            "x-forwarded-for: 127.0.0.1\r\n",
            "x-forwarded-proto: http\r\n",
        ] {
            assert!(seen.contains(line), "{line} in {seen}");
        }
        assert!(
            !seen.contains("x-private") && !seen.contains("1.2.3.4"),
            "{seen}"
        );
        assert!(seen.ends_with("hello"), "{seen}");
    }
    // One connection to the upstream served them all.
    assert_eq!(connections.try_iter().count(), 1);
}

/// Bodies are streamed: the response begins before the request has ended.
#[test]
fn bodies_are_streamed_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = proxy(listener.local_addr().unwrap(), &["--limit", "1000/s"]);
    let mut client = server.connect();
    client.write("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    let (mut upstream, _) = listener.accept().unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 1024];
    while !seen.contains("first") {
        let read = upstream.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    upstream
        .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
        .unwrap();
    assert!(client.head().starts_with("HTTP/1.1 200 OK"));
    client.write("6\r\nsecond\r\n0\r\n\r\n");
    while !seen.contains("second") {
        let read = upstream.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    upstream.write_all(b"0\r\n\r\n").unwrap();
}

#[test]
fn an_unreachable_or_failing_upstream_is_502() {
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let server = proxy(gone, &["--limit", "1000/s"]);
    let detail = server.request("GET", "/", "").problem(502, "bad_upstream");
    assert!(!detail.contains(&gone.port().to_string()), "{detail}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = proxy(listener.local_addr().unwrap(), &["--limit", "1000/s"]);
    let closing = thread::spawn(move || drop(listener.accept().unwrap()));
    server.request("GET", "/", "").problem(502, "bad_upstream");
    closing.join().unwrap();
}

#[test]
fn the_gateway_applies_policies_with_permits_and_outcomes() {
    let (upstream, _) = echo();
    let config = "[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nkey = \
                  [\"ip\"]\nlimit = \"2/h\"\n";
    let file = config_file(config);
    let server = proxy(upstream, &["--config", file.to_str().unwrap()]);
    let from = |ip: &str| {
        let mut connection = server.connect();
        connection.write(&format!(
            "GET /login HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {ip}\r\n\r\n"
        ));
        connection.answer().status()
    };
    assert_eq!(
        [
            from("203.0.113.1"),
            from("203.0.113.1"),
            from("203.0.113.1")
        ],
        [200, 200, 429]
    );
    assert_eq!(from("203.0.113.2"), 200);
    assert_eq!(server.request("GET", "/other", "").status(), 200);
    assert_eq!(
        server.metric("ratekeeper_decisions_total{policy=\"login\",outcome=\"denied\"}"),
        1.0
    );
}

/// The upstream gets the host the policies used: no second host, and no header that the client
/// names as hop-by-hop.
#[test]
fn the_upstream_gets_the_host_the_policies_used() {
    let (upstream, _) = echo();
    let server = proxy(upstream, &["--limit", "1000/s"]);
    let ask = |head: &str| {
        let mut connection = server.connect();
        connection.write(head);
        connection.answer()
    };
    let seen = ask("GET http://b.example:81/p?q HTTP/1.1\r\nHost: B.example\r\n\r\n").body;
    assert!(
        seen.starts_with("GET /p?q HTTP/1.1\r\nhost: b.example:81\r\n")
            && !seen.contains("B.example"),
        "{seen}"
    );
    ask("GET http://b.example:81/p?q HTTP/1.1\r\nHost: a.example\r\n\r\n").problem(400, "bad_host");
    let seen =
        ask("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: host, content-length, x-forwarded-for\r\n\r\n").body;
    assert!(
        seen.contains("\nhost: a.example\r\n") && seen.contains("\nx-forwarded-for: 127.0.0.1\r\n"),
        "{seen}"
    );
    ask("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n").problem(400, "bad_host");
    ask("GET / HTTP/1.1\r\n\r\n").problem(400, "bad_host");
    assert_eq!(ask("GET / HTTP/1.0\r\n\r\n").status(), 200);
    ask("CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n").problem(400, "bad_target");
    ask("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
        .problem(501, "unknown_coding");
}

#[test]
fn options_star_works_for_an_upstream_with_a_path() {
    let (upstream, _) = echo();
    let mut command = ratekeeper();
    let url = format!("http://{upstream}/api/");
    command.args([
        "proxy",
        "--upstream",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--limit",
        "1000/s",
    ]);
    let server = Server::run(command);
    assert!(
        server
            .request("GET", "/x/?q=1", "")
            .body
            .starts_with("GET /api/x/?q=1 HTTP/1.1\r\n")
    );
    assert!(
        server
            .request("OPTIONS", "*", "")
            .body
            .starts_with("OPTIONS * HTTP/1.1\r\n")
    );
}

/// A service that answers the first request with these bytes, and ends.
fn answering(bytes: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
        stream.write_all(bytes.as_bytes()).unwrap();
    });
    address
}

#[test]
fn an_odd_upstream_response_is_handled() {
    let through = |bytes| {
        let server = proxy(answering(bytes), &["--limit", "1000/s"]);
        let mut connection = server.connect();
        connection
            .write("GET / HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n");
        connection.rest()
    };
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
    assert!(
        through(switched).starts_with("HTTP/1.1 502 "),
        "the switch was not requested"
    );
    let gzip = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    assert!(
        through(gzip).starts_with("HTTP/1.1 502 "),
        "only chunked may be forwarded"
    );
    let old = through("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert!(
        old.starts_with("HTTP/1.1 200 OK\r\n") && old.ends_with("\r\n\r\nok"),
        "{old}"
    );
    let two_lengths = through(
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    );
    assert!(
        !two_lengths.contains("content-length") && two_lengths.contains("2\r\nok\r\n0\r\n"),
        "{two_lengths}"
    );
    let trailers = through(
        "HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
    );
    assert!(trailers.contains("x-sum: 7"), "{trailers}");
}

/// The option of docs/getting-started.md, with clients that do not send the header.
#[test]
fn requests_without_the_header_are_counted_by_their_address() {
    for (missing, allowed) in [
        (None, 3),
        (Some("address"), 3),
        (Some("shared"), 3),
        (Some("deny"), 0),
        (Some("skip"), 6),
    ] {
        let (upstream, _) = echo();
        let mut args = vec!["--limit", "3/h", "--by", "header:x-api-key"];
        args.extend(missing.iter().flat_map(|missing| ["--missing", missing]));
        let server = proxy(upstream, &args);
        let statuses: Vec<u16> = (0..6)
            .map(|_| server.request("GET", "/", "").status())
            .collect();
        let expected = [vec![200; allowed], vec![429; 6 - allowed]].concat();
        assert_eq!(statuses, expected, "{missing:?}");
        if missing != Some("deny") {
            let mut connection = server.connect();
            connection.write("GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\n\r\n");
            assert_eq!(connection.answer().status(), 200, "{missing:?}");
        }
    }
}

#[test]
fn an_attribute_that_no_request_has_is_an_error() {
    for (by, message) in [
        (
            "user",
            "--by user: no request has this attribute here; name the header of the user with RATEKEEPER_IDENTITY__USER__",
        ),
        (
            "api_key",
            "name its header with RATEKEEPER_IDENTITY__API_KEY__HEADER, or use --by header:NAME",
        ),
        ("plan", "use --by header:NAME"),
    ] {
        let args = [
            "proxy",
            "--upstream",
            "http://127.0.0.1:1",
            "--limit",
            "1/s",
            "--by",
            by,
        ];
        let (code, text) = exit_output(&ratekeeper().args(args).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(message), "{text}");
    }
    let (upstream, _) = echo();
    let mut command = ratekeeper();
    command.env("RATEKEEPER_IDENTITY__API_KEY__HEADER", "x-key");
    command.args([
        "proxy",
        "--upstream",
        &format!("http://{upstream}"),
        "--listen",
        "127.0.0.1:0",
    ]);
    command.args(["--limit", "1/h", "--by", "api_key"]);
    let server = Server::run(command);
    let ask = |key: &str| {
        let mut connection = server.connect();
        connection.write(&format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Key: {key}\r\n\r\n"
        ));
        connection.answer().status()
    };
    assert_eq!([ask("a"), ask("a"), ask("b")], [200, 429, 200]);
}

/// The warnings, one sentence each, without the time and the location of a log line.
fn warnings(text: &str) -> Vec<String> {
    let sentence = |line: &str| {
        let warning = line
            .split_once("warning: ")
            .or_else(|| line.split_once(" WARN "));
        warning.map(|(_, warning)| warning.to_owned())
    };
    text.lines().filter_map(sentence).collect()
}

#[test]
fn config_check_reports_all_warnings_of_serve_and_proxy() {
    let file = config_file(
        "[server]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n[identity]\nattributes = [\"region\"]\n[plans.free]\nlimit = \"9/min burst 3\"\n\
         [[policy]]\nname = \"api\"\nmatch = { path = \"/api/:id\" }\nkey = \"user\"\nplan = { default = \"free\" }\n\
         [[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nkey = [\"ip\", \"api_key\"]\nmissing = \"skip\"\n\
         limit = \"5/min\"\ncount = \"failures\"\n\
         [[policy]]\nname = \"eu\"\nmatch = { attribute = { region = \"eu\" } }\nlimit = \"2 concurrent\"\n",
    );
    let file = file.to_str().unwrap();
    let output = ratekeeper()
        .args(["config", "check", file])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let checked = warnings(&String::from_utf8(output.stdout).unwrap());
    let expected = [
        "the policy `api` counts by `user`, but no request in `ratekeeper proxy` or at /auth/* has this attribute, so \
         requests are counted by their address instead; name its header as `user` in [identity]",
        "the policy `api` chooses the plan by `plan`, but no request in `ratekeeper proxy` or at /auth/* has this \
         attribute, so every request has the plan `free`; only callers of POST /v1/check and similar \
         APIs can send it",
        "the policy `login` counts by `api_key`, but no request in `ratekeeper proxy` or at /auth/* has this attribute, \
         so the policy never applies; name its header as `api_key` in [identity]",
        "the policy `eu` matches by `region`, but no request in `ratekeeper proxy` or at /auth/* has this attribute, so \
         the policy never applies; only callers of POST /v1/check and similar APIs can send it",
    ];
    for message in expected {
        assert!(
            checked.iter().any(|checked| checked == message),
            "{message}\nis not in {checked:#?}"
        );
    }
    let (upstream, _) = echo();
    let mut serve = ratekeeper();
    serve
        .env_remove("RATEKEEPER_SERVER__GRPC")
        .args(["serve", "--config", file]);
    let mut proxy = ratekeeper();
    proxy.env_remove("RATEKEEPER_SERVER__GRPC");
    proxy.args([
        "proxy",
        "--upstream",
        &format!("http://{upstream}"),
        "--listen",
        "127.0.0.1:0",
        "--config",
        file,
    ]);
    for (command, at_least) in [(serve, 4), (proxy, 6)] {
        let server = Server::run(command);
        server.signal("HUP");
        eventually("the reload", || {
            server.metric("ratekeeper_config_reloads_total{result=\"ok\"}") > 0.5
        });
        server.signal("TERM");
        let logged = warnings(&server.ended().1);
        // At the start, and at the reload.
        assert!(logged.len() >= 2 * at_least, "{logged:#?}");
        for warning in logged {
            assert!(
                checked.contains(&warning),
                "{warning}\nis not in {checked:#?}"
            );
        }
    }
}

#[test]
fn it_stops_cleanly() {
    let (upstream, _) = echo();
    let server = proxy(upstream, &["--limit", "1/s"]);
    assert_eq!(server.request("GET", "/", "").status(), 200);
    server.signal("TERM");
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn an_invalid_command_line_exits_with_code_2() {
    for (args, message) in [
        (
            &["--upstream", "localhost:3000"][..],
            "must be the URL of a service",
        ),
        (
            &["--upstream", "ftp://example.com"],
            "must be the URL of a service",
        ),
        (
            &["--upstream", "http://user:secret@127.0.0.1:1"],
            "must be the URL of a service",
        ),
        (
            &["--upstream", "http://127.0.0.1:1", "--limit", "10 a second"],
            "invalid value '10 a second' for '--limit",
        ),
        (
            &["--upstream", "http://127.0.0.1:1", "--by", "ip"],
            "--limit",
        ),
        (
            &[
                "--upstream",
                "http://127.0.0.1:1",
                "--limit",
                "1/s",
                "--by",
                "apikey",
            ],
            "--by apikey: not a known attribute; did you mean `api_key`? use ip, header:NAME, user, ",
        ),
        (
            &[
                "--upstream",
                "http://127.0.0.1:1",
                "--limit",
                "1/s",
                "--by",
                "something",
            ],
            "--by something: not a known attribute; use ip, header:NAME, user, ",
        ),
        (
            &[
                "--upstream",
                "http://127.0.0.1:1",
                "--limit",
                "1/s",
                "--by",
                "header:",
            ],
            "write the name of a header",
        ),
        (
            &[
                "--upstream",
                "http://127.0.0.1:1",
                "--limit",
                "1/s",
                "--missing",
                "no",
            ],
            "must be address, skip, shared",
        ),
        (&[], "--upstream"),
    ] {
        let (code, text) = exit_output(&ratekeeper().arg("proxy").args(args).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(message), "{text}");
    }
}

/// The body of a denial is machine-readable, too.
#[test]
fn a_denial_is_a_problem_that_names_its_policy() {
    let (upstream, _) = echo();
    let server = proxy(upstream, &["--limit", "1/h"]);
    server.request("GET", "/", "");
    let answer = server.request("GET", "/", "");
    let body: Value = answer.json();
    assert_eq!(body["violated-policies"], serde_json::json!(["limit"]));
    assert_eq!(
        body["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
}
