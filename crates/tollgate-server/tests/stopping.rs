//! Stopping: no new connections, the requests in flight are answered, exit code 0.

mod support;

use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;
use support::{Server, config_file, pipe, send_signal, tollgate};

#[test]
fn a_signal_stops_it_cleanly() {
    for signal in ["TERM", "INT"] {
        let server = Server::start();
        assert_eq!(server.throttle(r#"{"key":"a","limit":"5/d"}"#).status(), 200);
        server.signal(signal);
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{status} {log}");
        assert!(log.contains(&format!("INFO SIG{signal}: stopping")), "{log}");
    }
}

/// A supervisor that rolls out a config may send SIGHUP before the service has read the one it starts with.
#[test]
fn a_hang_up_while_it_starts_ends_nothing() {
    let pipe = pipe();
    let mut command = tollgate();
    command.arg("serve").arg("--config").arg(&pipe).env("TOLLGATE_SERVER__HTTP", "127.0.0.1:0");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // Opens once the other side reads.
    let mut early = fs::File::options().write(true).open(&pipe).unwrap();
    send_signal("HUP", child.id());
    early.write_all(b"# early\n").unwrap();
    drop(early);
    // However often it is read, it is told as much. The last one waits for a reader until the tests end.
    std::thread::spawn(move || while fs::write(&pipe, "# late\n").is_ok() {});
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("serves HTTP"), "it ended: {line}");
}

#[test]
fn a_configuration_that_never_comes_does_not_hold_up_a_stop() {
    let pipe = pipe();
    let mut command = tollgate();
    command.arg("serve").arg("--config").arg(&pipe);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Opens once the other side reads, and keeps it waiting.
    let _pipe = fs::File::options().write(true).open(&pipe).unwrap();
    send_signal("TERM", child.id());
    assert!(!child.wait().unwrap().success());
}

#[test]
fn connections_without_a_request_do_not_hold_it_up() {
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
fn a_request_in_flight_is_answered_before_it_ends() {
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
    assert_eq!((answer.status(), &answer.json()["remaining"]), (200, &json!(4)));
    connection.closed();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains("cut off"), "{log}");
}

/// Keys are people: not even the most talkative log has them.
#[test]
fn keys_are_not_logged() {
    let mut command = tollgate();
    command.env("RUST_LOG", "trace").args(["serve", "--config"]);
    command.arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let server = Server::run(command);
    for limit in ["1/d", "1/d", "nonsense"] {
        server.throttle(&format!(r#"{{"key":"someone-in-particular","limit":"{limit}"}}"#));
    }
    server.signal("TERM");
    let (_, log) = server.ended();
    assert!(log.contains("SIGTERM") && !log.contains("someone-in-particular"), "{log}");
}

#[test]
fn a_rust_log_that_makes_no_sense_is_said_and_ignored() {
    let mut command = tollgate();
    command.env("RUST_LOG", "tollgate=loud").arg("--config").arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let server = Server::run(command);
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("WARN RUST_LOG is ignored: "), "{log}");
}

#[test]
fn it_serves_though_nobody_reads_what_it_prints() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = tollgate();
    command.env("RUST_LOG", "debug").arg("--config").arg(config_file("[server]\nhttp = \"127.0.0.1:0\"\n"));
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let listening =
        log.find_map(|line| line.unwrap().split_once("listening address=").map(|(_, rest)| rest.to_owned()));
    let address = listening.unwrap().split(' ').next().unwrap().to_owned();
    assert!(TcpStream::connect(address).is_ok());
    send_signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
