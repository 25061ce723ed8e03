//! Text from clients and servers cannot control the terminal of an operator.

use crate::cli::run;
use crate::support::ratekeeper;
use crate::{check, post, serve};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Clears the screen, in two ways, and reverses the text after it.
const COMMAND: &str = "\u{1b}[2J\u{9b}2J\u{202e}";

/// A proxy to an admin listener that appends terminal commands to all text.
fn malicious(real: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let (request, body) = message(&client);
            let mut server = TcpStream::connect(real).unwrap();
            write!(server, "{request}{body}").unwrap();
            let (head, body) = message(&server);
            let body = serde_json::to_string(&with_commands(serde_json::from_str(&body).unwrap()))
                .unwrap();
            let (status, length) = (head.lines().next().unwrap(), body.len());
            write!(client, "{status}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        }
    });
    url
}

fn message(stream: &TcpStream) -> (String, String) {
    let (mut reader, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = |line: &str| {
        line.to_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    };
    let mut body = vec![0; head.lines().find_map(length).unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// Keeps enum values: anything else would fail to parse.
fn with_commands(value: Value) -> Value {
    match value {
        Value::String(text) if ["done", "rejected", "failed"].contains(&&*text) => {
            Value::String(text)
        }
        Value::String(text) => Value::String(text + COMMAND),
        Value::Array(values) => values.into_iter().map(with_commands).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, with_commands(value)))
            .collect(),
        other => other,
    }
}

#[track_caller]
fn assert_harmless(what: &[&str], text: &str) {
    let is_harmless = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
    assert!(text.chars().all(is_harmless), "{what:?}: {text:?}");
}

#[test]
fn server_responses_cannot_control_the_terminal() {
    let node = serve(
        "",
        "[stats]\nkeys = \"plain\"\n[[policy]]\nname = \"watch\"\nlimit = \"0\"\naction = \"shadow\"\n",
    );
    let key = format!("ann{COMMAND}");
    for _ in 0..6 {
        check(&node, &key);
    }
    let ban = json!({"policy": "user", "subject": {"user": key}, "for": "1h", "reason": format!("because{COMMAND}")});
    assert_eq!(post(&node, "/admin/ban", &ban).status(), 200);
    let url = malicious(node.admin);
    let (_, overrides, _) = run(&url, &["overrides"], None);
    assert!(
        overrides.contains(r"because\u{1b}[2J\u{9b}2J\u{202e}"),
        "{overrides}"
    );
    let user = format!("user={key}");
    let commands: [&[&str]; 13] = [
        &["status"],
        &["policies"],
        &["top"],
        &["overrides"],
        &["shadow"],
        &["audit"],
        &["explain", &user],
        &["override", "user", &user, "--limit", "9/d", "--for", "1h"],
        &["grant", "user", &user, "--tokens", "1"],
        &["lift", "user", &user],
        &["reset", "user", &user],
        &["reload"],
        &["ban", "nobody", &user, "--for", "1h"],
    ];
    for args in commands {
        for format in ["text", "json"] {
            let (code, out, error) = run(&url, &[args, &["--format", format]].concat(), None);
            assert!(
                code < 2 && !(out.is_empty() && error.is_empty()),
                "{args:?} {format}: {code} {error}"
            );
            assert_harmless(args, &(out + &error));
        }
    }
    for args in [
        &["top", "--once"][..],
        &["top", "--once", "--format", "json"],
        &["doctor"],
    ] {
        let output = ratekeeper()
            .args(args)
            .args(["--url", &url])
            .output()
            .unwrap();
        let (out, error) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(!out.is_empty(), "{args:?}: {error}");
        assert_harmless(args, &(out + &error));
    }
}

#[test]
fn nor_can_the_subject_of_explain() {
    let subject = format!("user=\"ann{COMMAND}\" ip=203.0.113.7");
    for format in ["text", "json"] {
        let mut command = ratekeeper();
        command.args(["explain", "--subject", &subject, "--format", format]);
        let file = crate::support::config_file(
            "[[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"5/d\"\n",
        );
        let output = command.arg("--config").arg(file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("ann"), "{text}");
        assert_harmless(&[format], &text);
    }
}
