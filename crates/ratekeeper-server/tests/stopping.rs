//! Stopping: no new connections, requests in flight are finished, exit code 0.

mod support;

use serde_json::json;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use support::{Server, config_file, ratekeeper, send_signal};

#[test]
fn a_signal_stops_it_cleanly() {
    for signal in ["TERM", "INT"] {
        let server = Server::start();
        assert_eq!(
            server.throttle(r#"{"key":"a","limit":"5/d"}"#).status(),
            200
        );
        server.signal(signal);
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{status} {log}");
        assert!(
            log.contains(&format!("INFO SIG{signal}: stopping")),
            "{log}"
        );
    }
}

/// A supervisor that rolls out a configuration may send SIGHUP before the server is ready.
#[test]
fn sighup_during_the_start_is_not_fatal() {
    // A Redis that accepts and never answers delays the start, after the configuration is read.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let redis = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://{}\"\n",
        silent.local_addr().unwrap()
    );
    let mut command = ratekeeper();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(&format!(
            "[server]\nhttp = \"127.0.0.1:0\"\n{redis}"
        )));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _connection = silent.accept().unwrap();
    send_signal("HUP", child.id());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains(": HTTP listening on"), "it ended: {line}");
}

#[test]
fn idle_connections_do_not_delay_a_stop() {
    let server = Server::start();
    let mut used = server.connect();
    used.send("GET", "/livez", "");
    assert_eq!(used.answer().status(), 200);
    let silent = server.connect();
    server.signal("TERM");
    used.closed();
    silent.closed();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("cut off"), "{log}");
}

#[test]
fn a_request_in_flight_is_finished() {
    let server = Server::start();
    let body = r#"{"key":"a","limit":"5/d"}"#;
    let mut connection = server.connect();
    let length = body.len();
    connection.write(&format!(
        "POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    ));
    // The server asks for the body: the request is in flight.
    assert_eq!(connection.head(), "HTTP/1.1 100 Continue\r\n\r\n");
    server.signal("TERM");
    while server.accepts() {
        std::thread::yield_now();
    }
    connection.write(body);
    let answer = connection.answer();
    assert_eq!(
        (answer.status(), &answer.json()["remaining"]),
        (200, &json!(4))
    );
    connection.closed();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("cut off"), "{log}");
}

/// Keys may identify people, so not even the most verbose log has them.
#[test]
fn keys_are_not_logged() {
    let mut command = ratekeeper();
    command.env("RUST_LOG", "trace").args(["serve", "--config"]);
    command.arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let server = Server::run(command);
    for limit in ["1/d", "1/d", "nonsense"] {
        server.throttle(&format!(
            r#"{{"key":"someone-in-particular","limit":"{limit}"}}"#
        ));
    }
    server.signal("TERM");
    let (_, log) = server.ended();
    assert!(
        log.contains("SIGTERM") && !log.contains("someone-in-particular"),
        "{log}"
    );
}

#[test]
fn an_invalid_rust_log_is_ignored_with_a_warning() {
    let mut command = ratekeeper();
    command
        .env("RUST_LOG", "ratekeeper=loud")
        .arg("--config")
        .arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let server = Server::run(command);
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("WARN RUST_LOG is ignored: "), "{log}");
}

#[test]
fn it_serves_with_a_closed_standard_output() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = ratekeeper();
    command
        .env("RUST_LOG", "debug")
        .arg("--config")
        .arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let mut child = command
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let listening = log.find_map(|line| {
        line.unwrap()
            .split_once("listening address=")
            .map(|(_, rest)| rest.to_owned())
    });
    let address = listening.unwrap().split(' ').next().unwrap().to_owned();
    assert!(TcpStream::connect(address).is_ok());
    send_signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
