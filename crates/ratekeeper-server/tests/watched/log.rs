//! The log of the real binary.

use crate::support::{Server, config_file, ratekeeper};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// A service that cuts its responses off.
fn broken() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthat is all");
        }
    });
    address
}

/// The log of a gateway whose upstream cuts off 50 responses.
fn flooded(log: &str) -> (f64, String) {
    let file = config_file(&format!(
        "[gateway]\nbreaker = false\n[log]\n{log}\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
    ));
    let mut command = ratekeeper();
    command
        .args([
            "proxy",
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            &format!("http://{}", broken()),
            "--config",
        ])
        .arg(file);
    let server = Server::run(command);
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        // The connection is closed or reset after the response was cut off.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let suppressed = server.metric("ratekeeper_log_suppressed_total");
    server.signal("TERM");
    (suppressed, server.ended().1)
}

#[test]
fn a_repeated_warning_is_sampled_and_the_suppressed_lines_are_counted() {
    let (suppressed, log) = flooded("");
    let lines = log.matches("a response was cut off").count();
    assert!((10..=12).contains(&lines), "{log}");
    assert_eq!(suppressed, (50 - lines) as f64);
    assert!(
        log.contains(&format!("{suppressed} similar log lines were suppressed")),
        "{log}"
    );
}

#[test]
fn without_sampling_all_lines_are_logged() {
    let (suppressed, log) = flooded("sample = false");
    assert_eq!(
        (log.matches("a response was cut off").count(), suppressed),
        (50, 0.0),
        "{log}"
    );
    assert!(!log.contains("were suppressed"), "{log}");
}

#[test]
fn in_json_every_line_is_an_object() {
    let server = Server::with_config(
        "[server]\nhttp = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[[policy]]\nname = \"one\"\nlimit = \"1 concurrent\"\n",
    );
    server.signal("TERM");
    let (_, log) = server.ended();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    let contains = |level: &str, text: &str| {
        lines.iter().any(|line| {
            line["level"] == level
                && line["message"]
                    .as_str()
                    .is_some_and(|message| message.contains(text))
        })
    };
    assert!(
        contains("WARN", "does not learn how requests end")
            && contains("INFO", "SIGTERM: stopping"),
        "{log}"
    );
}

#[test]
fn rust_log_overrides_the_level_of_file_and_environment() {
    let log = |level: &str, rust_log: &str| {
        let mut command = ratekeeper();
        command
            .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
            .env("RATEKEEPER_LOG__LEVEL", level)
            .env("RUST_LOG", rust_log);
        let server = Server::run(command);
        server.signal("TERM");
        server.ended().1
    };
    assert!(log("info", "").contains("INFO SIGTERM: stopping"));
    assert_eq!(log("warn", ""), "");
    assert!(log("debug", "").contains("DEBUG listening"));
    assert!(log("error", "ratekeeper=info").contains("INFO SIGTERM: stopping"));
}
