//! The access log: a line of JSON for each request, with the verdict.

use crate::gateway;
use crate::service::echo;
use crate::support::{config_file, eventually};
use serde_json::Value;
use std::fs;

#[test]
fn requests_are_logged_with_their_verdict() {
    let (upstream, _requests) = echo();
    let file = config_file("").with_extension("log");
    let _ = fs::remove_file(&file);
    let policies = "[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nlimit = \"1/d\"\n[[policy]]\nname = \"watched\"\n\
                    match = { path = \"/watched\" }\nlimit = \"0\"\naction = \"shadow\"\n[[policy]]\nname = \"rest\"\nlimit = \"unlimited\"\n";
    let server = gateway(&[upstream], &format!("access_log = {file:?}\naccess_log_every = 3\n{policies}"));
    for path in ["/login?secret=1", "/login", "/watched", "/a", "/b", "/c", "/d"] {
        server.request("GET", path, "");
    }
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\n\r\n");
    connection.answer().problem(400, "bad_host");
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // One in three of those that went well: /login, /c, and all others.
    eventually("six lines", || lines().len() >= 5);
    let seen: Vec<(String, u64, Value)> = lines()
        .iter()
        .map(|line| {
            (line["path"].as_str().unwrap().to_owned(), line["status"].as_u64().unwrap(), line["verdict"].clone())
        })
        .collect();
    let line =
        |path: &str, status, verdict: Option<&str>| (path.to_owned(), status, verdict.map_or(Value::Null, Value::from));
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
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0 && denied["upstream"].is_null(), "{denied}");
    let first = &lines()[0];
    assert_eq!(
        (&first["client"], &first["whole"], &first["method"]),
        (&Value::from("127.0.0.1"), &true.into(), &"GET".into())
    );
    assert_eq!(first["upstream"], format!("http://{upstream}"));
    assert!(first["bytes"].as_u64().unwrap() > 0 && first["duration_ms"].as_f64().unwrap() > 0.0, "{first}");
    server.signal("TERM");
    assert_eq!(server.ended().0.code(), Some(0));
}
