//! Requests without an attribute that a policy counts by: how they are counted, and the warnings.

mod support;

use serde_json::json;
use support::{Answer, Server, eventually, ratekeeper};

fn config(missing: &str) -> String {
    format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"api\"\nkey = \"user\"\nlimit = \"1/d\"\n{missing}"
    )
}

/// Sends what Caddy sends for a request of this address.
fn forwarded(server: &Server, proxy: &str, ip: &str) -> Answer {
    let mut connection = server.connect();
    let (from, method, uri) = match proxy {
        "nginx" => ("X-Real-IP", "X-Original-Method", "X-Original-URI"),
        _ => ("X-Forwarded-For", "X-Forwarded-Method", "X-Forwarded-Uri"),
    };
    connection.write(&format!(
        "GET /auth/{proxy} HTTP/1.1\r\nHost: localhost\r\n{from}: {ip}\r\n{method}: GET\r\n{uri}: /\r\n\r\n"
    ));
    connection.answer()
}

/// Stops the server and counts a warning in its log.
fn warnings(server: Server, warning: &str) -> usize {
    server.signal("TERM");
    let (_, log) = server.ended();
    log.lines()
        .filter(|line| line.contains(" WARN ") && line.contains(warning))
        .count()
}

#[test]
fn auth_requests_without_the_attribute_are_counted_by_missing() {
    let cases = [
        ("", [200, 429, 200, 429]),
        ("missing = \"address\"\n", [200, 429, 200, 429]),
        ("missing = \"skip\"\n", [200, 200, 200, 200]),
        ("missing = \"shared\"\n", [200, 429, 429, 429]),
        ("missing = \"deny\"\n", [429, 429, 429, 429]),
    ];
    for (missing, expected) in cases {
        for proxy in ["caddy", "traefik", "nginx"] {
            let server = Server::with_config(&config(missing));
            let addresses = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"];
            let answers = addresses.map(|ip| forwarded(&server, proxy, ip).status());
            // nginx supports no other denial.
            let denial = |status| match (proxy, status) {
                ("nginx", 429) => 403,
                (_, status) => status,
            };
            assert_eq!(answers, expected.map(denial), "{proxy} {missing}");
        }
    }
}

#[test]
fn requests_that_share_the_bucket_unknown_are_warned_about_once() {
    let warning = "requests with neither `user` nor a client address share one bucket, `unknown`, in the policy `api`; send the \
                   address, or set `missing` of the policy to \"skip\", \"shared\" or \"deny\"";
    for (missing, expected) in [
        ("", 1),
        ("missing = \"skip\"\n", 0),
        ("missing = \"shared\"\n", 0),
    ] {
        let server = Server::with_config(&config(missing));
        let ask = |subject| {
            server
                .check(&json!({"subject": subject}).to_string())
                .status()
        };
        assert_eq!(ask(json!({"user": "ann"})), 200);
        assert_eq!(ask(json!({"ip": "192.0.2.1"})), 200);
        let nobody = [(); 3].map(|()| ask(json!({})));
        if expected == 1 {
            assert_eq!(nobody, [200, 429, 429], "one bucket");
        }
        assert_eq!(warnings(server, warning), expected, "{missing}");
    }
}

#[test]
fn serve_warns_of_attributes_that_auth_requests_cannot_have() {
    let warning = "the policy `api` counts by `user`, but no request in `ratekeeper proxy` or at /auth/* has this attribute, so \
                   requests are counted by their address instead; name its header as `user` in [identity]";
    // Callers of the API may send any attribute: there is no warning before a proxy calls.
    let server = Server::with_config(&config(""));
    server.check(r#"{"subject":{"user":"ann"}}"#);
    assert_eq!(warnings(server, warning), 0);
    let server = Server::with_config(&config(""));
    for _ in 0..3 {
        forwarded(&server, "caddy", "192.0.2.1");
    }
    assert_eq!(warnings(server, warning), 1);
    let identity = "[identity]\nuser = { header = \"x-user\", from = [\"127.0.0.1\"] }\n";
    let server = Server::with_config(&config("").replacen(
        "[[policy]]",
        &format!("{identity}[[policy]]"),
        1,
    ));
    forwarded(&server, "caddy", "192.0.2.1");
    assert_eq!(warnings(server, "but no request in"), 0);
}

#[test]
fn an_empty_header_counts_as_missing() {
    let policy = "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"keys\"\nkey = \"header:x-api-key\"\nlimit = \"1/d\"\n";
    for (missing, expected) in [
        ("", [200, 200, 429]),
        ("missing = \"deny\"\n", [429, 429, 429]),
    ] {
        let server = Server::with_config(&format!("{policy}{missing}"));
        let ask = |ip: &str| {
            let subject = json!({"ip": ip, "headers": {"x-api-key": ""}});
            server
                .check(&json!({"subject": subject}).to_string())
                .status()
        };
        let statuses = [ask("192.0.2.1"), ask("192.0.2.2"), ask("192.0.2.1")];
        assert_eq!(statuses, expected, "{missing}");
    }
}

#[test]
fn an_unknown_attribute_is_reported_to_the_operator() {
    let server = Server::with_config(&config("missing = \"skip\"\n"));
    for _ in 0..3 {
        let answer = server.check(r#"{"subject":{"usr":"ann","ip":"192.0.2.1","plan":"pro"}}"#);
        assert_eq!(answer.status(), 200);
        server.request("POST", "/v1/reserve", r#"{"subject":{"usr":"ann"}}"#);
    }
    let says = "requests with an unknown attribute: unknown attribute `usr`; did you mean `user`?";
    let findings = server.admin("GET", "/admin/doctor").json();
    let found = findings["findings"].as_array().unwrap();
    assert!(
        found
            .iter()
            .any(|finding| finding["code"] == "unknown_attribute"
                && finding["message"].as_str().unwrap().starts_with(says)),
        "{findings}"
    );
    let url = format!("http://{}", server.admin);
    let doctor = || {
        let output = ratekeeper()
            .args(["doctor", "--url", &url])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    eventually("the finding", || doctor().contains("did you mean `user`?"));
    assert_eq!(warnings(server, says), 1);
}
