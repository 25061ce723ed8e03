//! The access log: a JSON line for each request, with the verdict.

use crate::gateway;
use crate::service::echo;
use crate::support::{Server, config_file, eventually};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A new path for each call.
fn log_file() -> PathBuf {
    let file = config_file("").with_extension("log");
    let _ = fs::remove_file(&file);
    file
}

/// The lines that have been written in full.
#[track_caller]
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    // A line without its end is still being written.
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn requests_are_logged_with_their_verdict() {
    let (upstream, _requests) = echo();
    let file = config_file("").with_extension("log");
    let _ = fs::remove_file(&file);
    let policies = "[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nlimit = \"1/d\"\n[[policy]]\nname = \"watched\"\n\
                    match = { path = \"/watched\" }\nlimit = \"0\"\naction = \"shadow\"\n[[policy]]\nname = \"rest\"\nlimit = \"unlimited\"\n";
    let server = gateway(
        &[upstream],
        &format!("access_log = {file:?}\naccess_log_every = 3\n{policies}"),
    );
    for path in [
        "/login?secret=1",
        "/login",
        "/watched",
        "/a",
        "/b",
        "/c",
        "/d",
    ] {
        server.request("GET", path, "");
    }
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\n\r\n");
    connection.answer().problem(400, "bad_host");
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    // One in three of the successful ones: /login, /c, and all others.
    eventually("six lines", || lines().len() >= 5);
    let seen: Vec<(String, u64, Value)> = lines()
        .iter()
        .map(|line| {
            (
                line["path"].as_str().unwrap().to_owned(),
                line["status"].as_u64().unwrap(),
                line["verdict"].clone(),
            )
        })
        .collect();
    let line = |path: &str, status, verdict: Option<&str>| {
        (
            path.to_owned(),
            status,
            verdict.map_or(Value::Null, Value::from),
        )
    };
    assert_eq!(
        seen,
        [
            line("/login", 200, Some("allowed")),
            line("/login", 429, Some("denied")),
            line("/watched", 200, Some("shadow_denied")),
            line("/c", 200, Some("allowed")),
            line("/", 400, None),
        ]
    );
    let denied = &lines()[1];
    assert_eq!(denied["policies"], serde_json::json!(["login"]));
    assert!(
        denied["retry_after_ms"].as_u64().unwrap() > 0 && denied["upstream"].is_null(),
        "{denied}"
    );
    let first = &lines()[0];
    assert_eq!(
        (&first["client"], &first["whole"], &first["method"]),
        (&Value::from("127.0.0.1"), &true.into(), &"GET".into())
    );
    assert_eq!(first["upstream"], format!("http://{upstream}"));
    assert!(
        first["bytes"].as_u64().unwrap() > 0 && first["duration_ms"].as_f64().unwrap() > 0.0,
        "{first}"
    );
    server.signal("TERM");
    assert_eq!(server.ended().0.code(), Some(0));
}

const BY_PLAN: &str = "[store]\nkey_secret = \"sixteen bytes at least\"\n[identity]\napi_key = { header = \"x-api-key\" }\n\
    [plans.free]\nlimits = [\"1/d\"]\n[plans.pro]\nlimits = [\"9/d\"]\n\
    [[policy]]\nname = \"keys\"\nmatch = { path = \"/api\" }\nkey = \"api_key\"\n\
    plan = { attribute = \"header:x-plan\", default = \"free\" }\n\
    [[policy]]\nname = \"everybody\"\nlimit = \"100/d\"\n";

#[test]
fn a_line_has_the_request_and_its_policy_plan_and_key() {
    let (upstream, requests) = echo();
    let file = log_file();
    let server = gateway(&[upstream], &format!("access_log = {file:?}\n{BY_PLAN}"));
    let mut connection = server.connect();
    let mut send = |head: &str| {
        connection.write(&format!("GET {head}\r\nHost: localhost\r\n\r\n"));
        connection.answer().status()
    };
    assert_eq!(
        send("/api HTTP/1.1\r\nX-Api-Key: s3cret\r\nX-Request-Id: from-client"),
        200
    );
    assert_eq!(send("/api HTTP/1.1\r\nX-Api-Key: s3cret"), 429);
    assert_eq!(
        send("/api HTTP/1.1\r\nX-Api-Key: s3cret\r\nX-Plan: pro"),
        200
    );
    assert_eq!(send("/ HTTP/1.1"), 200);
    assert_eq!(send("/a/../b HTTP/1.1"), 400);
    eventually("five lines", || lines(&file).len() == 5);
    let lines = lines(&file);
    // As `explain` and the lists show it.
    let mut admin = Server::connect_to(server.admin);
    admin.send(
        "POST",
        "/admin/explain",
        r#"{"subject":{"api_key":"s3cret","path":"/api"}}"#,
    );
    let explained = admin.answer().json();
    let key = explained["policies"][0]["fingerprint"]
        .as_str()
        .unwrap_or_else(|| panic!("{explained}"));
    assert!(key.starts_with("api_key=#"), "{key}");
    let of = |line: &Value| json!([line["policy"], line["plan"], line["key"], line["policies"]]);
    assert_eq!(of(&lines[0]), json!(["keys", "free", key, null]));
    assert_eq!(of(&lines[1]), json!(["keys", "free", key, ["keys"]]));
    assert_eq!(of(&lines[2]), json!(["keys", "pro", key, null]));
    assert_eq!(of(&lines[3]), json!(["everybody", null, null, null]));
    assert_eq!(of(&lines[4]), json!([null, null, null, null]));
    for line in &lines {
        let time = line["time"].as_str().unwrap();
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z", "{time}");
    }
    // The upstream gets the same request id.
    let ids: Vec<&str> = lines
        .iter()
        .map(|line| line["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (ids[0], ids.iter().collect::<HashSet<_>>().len()),
        ("from-client", 5),
        "{ids:?}"
    );
    for id in [ids[0], ids[2], ids[3]] {
        let request = requests.recv().unwrap();
        assert!(
            request.contains(&format!("x-request-id: {id}\r\n")),
            "{request}"
        );
    }
}

/// Works like `ulimit -f` and a full disk: a line is written in part, then writing fails.
fn limit_file_size(process: u32, bytes: &str) {
    let status = Command::new("prlimit")
        .args([format!("--pid={process}"), format!("--fsize={bytes}:")])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_full_disk_costs_lines_and_no_requests() {
    let (upstream, _requests) = echo();
    let file = log_file();
    let server = gateway(&[upstream], &format!("access_log = {file:?}\n"));
    let lost = || server.metric("ratekeeper_access_log_lost_total");
    assert_eq!(server.request("GET", "/first", "").status(), 200);
    eventually("the first line", || lines(&file).len() == 1);
    let full = fs::metadata(&file).unwrap().len() + 20;
    limit_file_size(server.id(), &full.to_string());
    for _ in 0..10 {
        assert_eq!(server.request("GET", "/full", "").status(), 200);
    }
    // The first of them is written in part: it is completed when there is space.
    eventually("nine lost lines", || lost() == 9.0);
    assert_eq!(fs::metadata(&file).unwrap().len(), full);
    limit_file_size(server.id(), "unlimited");
    assert_eq!(server.request("GET", "/last", "").status(), 200);
    eventually("three lines", || lines(&file).len() == 3);
    let paths: Vec<Value> = lines(&file)
        .iter()
        .map(|line| line["path"].clone())
        .collect();
    assert_eq!(
        (paths, lost()),
        (vec!["/first".into(), "/full".into(), "/last".into()], 9.0)
    );
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(
        log.matches("cannot write the access log").count(),
        1,
        "{log}"
    );
    assert!(
        log.contains("the access log is being written again; 9 lines were lost"),
        "{log}"
    );
}

#[test]
fn a_device_that_is_full_from_the_start_is_survived() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "access_log = \"/dev/full\"\n");
    for _ in 0..5 {
        assert_eq!(server.request("GET", "/", "").status(), 200);
    }
    eventually("five lost lines", || {
        server.metric("ratekeeper_access_log_lost_total") == 5.0
    });
    server.signal("TERM");
    let (status, log) = server.ended();
    assert_eq!(
        (
            status.code(),
            log.matches("cannot write the access log /dev/full").count()
        ),
        (Some(0), 1),
        "{log}"
    );
}

#[test]
fn a_renamed_file_is_reopened_on_sighup() {
    let (upstream, _requests) = echo();
    let file = log_file();
    let renamed = file.with_extension("log.1");
    let server = gateway(&[upstream], &format!("access_log = {file:?}\n"));
    assert_eq!(server.request("GET", "/before", "").status(), 200);
    eventually("the first line", || lines(&file).len() == 1);
    fs::rename(&file, &renamed).unwrap();
    assert_eq!(server.request("GET", "/renamed", "").status(), 200);
    eventually("the second line", || lines(&renamed).len() == 2);
    server.signal("HUP");
    // At once, for logrotate, which compresses the renamed file.
    eventually("a new file", || file.exists());
    assert_eq!(server.request("GET", "/after", "").status(), 200);
    eventually("a line in the new file", || lines(&file).len() == 1);
    assert_eq!(
        (&lines(&file)[0]["path"], lines(&renamed).len()),
        (&Value::from("/after"), 2)
    );
    assert_eq!(server.metric("ratekeeper_access_log_lost_total"), 0.0);
}

#[test]
fn a_line_has_the_time_of_the_decision() {
    let file = log_file();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    let answers = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        // The decision was made before this, and the answer comes after it.
        thread::sleep(Duration::from_millis(400));
        let between = now();
        thread::sleep(Duration::from_millis(400));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        between
    });
    let server = gateway(
        &[upstream],
        &format!("access_log = {file:?}\n[[policy]]\nname = \"all\"\nlimit = \"9/d\"\n"),
    );
    let before = now();
    assert_eq!(server.request("GET", "/", "").status(), 200);
    let between = answers.join().unwrap();
    eventually("a line", || lines(&file).len() == 1);
    let line = lines(&file).remove(0);
    let time = line["time"].as_str().unwrap();
    assert!(
        *before <= *time && *time < *between,
        "{before} {time} {between}"
    );
    assert!(line["duration_ms"].as_f64().unwrap() > 700.0, "{line}");
}

/// The time as lines have it.
fn now() -> String {
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%dT%H:%M:%S.%6NZ"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
