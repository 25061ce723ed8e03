//! Reads of the admin API.

use crate::support::{Server, config_file, eventually, ratekeeper, service};
use crate::{about, ban, check, get, post, serve};
use serde_json::{Value, json};

#[test]
fn the_status_has_the_numbers_of_the_metrics() {
    let node = serve(
        "",
        "[[policy]]\nname = \"all\"\nlimit = \"100/d\"\n\
         [[policy]]\nname = \"watch\"\nkey = \"user\"\nlimit = \"2/d\"\naction = \"shadow\"\n",
    );
    for _ in 0..7 {
        check(&node, "ann");
    }
    check(&node, "bob");
    node.throttle(r#"{"key":"a","limit":"1/d"}"#);
    post(&node, "/admin/ban", &ban("carl", "1h"));
    check(&node, "carl");
    post(&node, "/admin/reload", &json!({}));

    let status = get(&node, "/admin/status");
    for (pointer, metric) in [
        ("/totals/requests", "ratelimit_requests_total"),
        ("/totals/allowed", "ratelimit_requests_allowed"),
        ("/totals/denied", "ratelimit_requests_blocked"),
        ("/overrides", "ratekeeper_overrides"),
        (
            "/reloads/succeeded",
            "ratekeeper_config_reloads_total{result=\"ok\"}",
        ),
        (
            "/reloads/rejected",
            "ratekeeper_config_reloads_total{result=\"rejected\"}",
        ),
        (
            "/policies/0/allowed",
            "ratekeeper_decisions_total{policy=\"user\",outcome=\"allowed\"}",
        ),
        (
            "/policies/0/denied",
            "ratekeeper_decisions_total{policy=\"user\",outcome=\"denied\"}",
        ),
        ("/policies/0/keys", "ratekeeper_keys{policy=\"user\"}"),
        (
            "/policies/0/usage",
            "ratelimit_current_usage{policy=\"user\"}",
        ),
        (
            "/policies/1/usage",
            "ratelimit_current_usage{policy=\"all\"}",
        ),
        (
            "/policies/2/shadow_denied",
            "ratekeeper_decisions_total{policy=\"watch\",outcome=\"shadow_denied\"}",
        ),
        (
            "/policies/2/bans",
            "ratekeeper_bans_total{policy=\"watch\"}",
        ),
    ] {
        let value = status.pointer(pointer).and_then(Value::as_f64);
        assert_eq!(
            value,
            Some(node.metric(metric)),
            "{pointer} and {metric} in {status}"
        );
    }
    assert_eq!(
        status["totals"],
        json!({"requests": 10, "allowed": 7, "denied": 3})
    );
    let user = &status["policies"][0];
    assert_eq!(
        (&user["mode"], &user["by"], &user["limits"]),
        (&json!("enforce"), &json!(["user"]), &json!(["5/d"]))
    );
    assert_eq!(
        (&user["usage_is"], &status["policies"][1]["usage_is"]),
        (&json!("cost"), &json!("share"))
    );
    assert_eq!(status["policies"][2]["mode"], json!("shadow"));
    assert_eq!(
        (&status["store"]["kind"], &status["store"]["error"]),
        (&json!("memory"), &Value::Null)
    );
    assert_eq!(
        (&status["serving"], &status["ready"]),
        (&json!("decisions"), &json!(true))
    );
}

#[test]
fn a_gateway_reports_its_breakers_and_upstreams() {
    let text = format!(
        "[gateway]\nupstreams = [\"http://{}\"]\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n",
        service()
    );
    let mut command = ratekeeper();
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&text));
    let node = Server::run(command);
    let status = get(&node, "/admin/status");
    assert_eq!(status["serving"], json!("gateway"));
    assert_eq!(status["breakers"][0]["state"], json!("closed"), "{status}");
    let upstream = &status["breakers"][0]["name"];
    assert_eq!(
        status["upstreams"],
        json!([{"upstream": upstream, "healthy": true, "reason": null}])
    );
}

#[test]
fn the_stream_sends_the_status_every_second_until_the_end() {
    let node = serve("", "");
    let mut connection = Server::connect_to(node.admin);
    connection.send("GET", "/admin/stream", "");
    let head = connection.head();
    assert!(head.contains("text/event-stream"), "{head}");
    check(&node, "ann");
    // The first event comes at once and may be older than the request.
    let mut events = String::new();
    eventually("two events, of which one has the request", || {
        events.push_str(&connection.line());
        events.matches("event: status\n").count() >= 2 && events.contains("\"requests\":1,")
    });
    let data = events
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let status: Value = serde_json::from_str(data).unwrap();
    assert_eq!(status["version"], json!(env!("CARGO_PKG_VERSION")));
    // It ends cleanly with the service, without delaying the shutdown.
    node.signal("TERM");
    assert!(connection.rest().ends_with("0\r\n\r\n"));
    assert!(node.ended().0.success());
}

#[test]
fn the_number_of_streams_is_limited() {
    let node = serve("", "");
    let mut streams: Vec<_> = (0..32)
        .map(|_| {
            let mut connection = Server::connect_to(node.admin);
            connection.send("GET", "/admin/stream", "");
            assert!(connection.head().starts_with("HTTP/1.1 200"));
            connection
        })
        .collect();
    let detail = node
        .admin("GET", "/admin/stream")
        .problem(503, "unavailable");
    assert!(
        detail.starts_with("limit of 32 event streams reached"),
        "{detail}"
    );
    // Other requests are served, and a closed stream frees a permit.
    assert_eq!(node.admin("GET", "/livez").status(), 200);
    drop(streams.pop());
    eventually("a free permit", || {
        let mut connection = Server::connect_to(node.admin);
        connection.send("GET", "/admin/stream", "");
        connection.head().starts_with("HTTP/1.1 200")
    });
}

#[test]
fn explain_uses_the_current_counters_and_charges_nothing() {
    let node = serve("", "");
    for _ in 0..5 {
        assert_eq!(check(&node, "ann").status(), 200);
    }
    let explain = |user: &str, cost: u64| {
        let answer = post(
            &node,
            "/admin/explain",
            &json!({"subject": {"user": user}, "cost": cost}),
        );
        assert_eq!(answer.status(), 200, "{answer:?}");
        answer.json()
    };
    let ann = explain("ann", 1);
    assert_eq!(
        (&ann["allowed"], &ann["policy"]),
        (&json!(false), &json!("user")),
        "{ann}"
    );
    assert_eq!(ann["policies"][0]["limits"][0]["remaining"], json!(0));
    for _ in 0..3 {
        let bob = explain("bob", 5);
        assert_eq!(
            (
                &bob["allowed"],
                &bob["policies"][0]["limits"][0]["remaining"]
            ),
            (&json!(true), &json!(5)),
            "{bob}"
        );
    }
    assert_eq!(node.metric("ratelimit_requests_total"), 5.0);
    post(&node, "/admin/ban", &ban("bob", "1h"));
    assert_eq!(explain("bob", 1)["reason"], json!("ban"));

    for (body, code) in [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("{}", "missing_field"),
        ("[]", "not_an_object"),
    ] {
        crate::post_with(&node, "/admin/explain", "", body).problem(400, code);
    }
    post(
        &node,
        "/admin/explain",
        &json!({"subject": {}, "policy": "user"}),
    )
    .problem(400, "unknown_field");
}

#[test]
fn shadow_reports_have_denials_and_keys() {
    let node = serve(
        "",
        "[[policy]]\nname = \"watch\"\nkey = \"user\"\nlimit = \"1/d\"\naction = \"shadow\"\n\
         [[policy]]\nname = \"idle\"\nkey = \"ip\"\nmissing = \"skip\"\nlimit = \"1/d\"\naction = \"shadow\"\n",
    );
    assert_eq!(get(&node, "/admin/shadow")[0]["would_deny"], json!(0));
    for user in ["someone", "someone", "someone", "bob"] {
        assert_eq!(check(&node, user).status(), 200);
    }
    let shadow = get(&node, "/admin/shadow");
    assert_eq!(shadow.as_array().unwrap().len(), 2, "{shadow}");
    let watch = &shadow[0];
    assert_eq!(
        (&watch["policy"], &watch["mode"]),
        (&json!("watch"), &json!("shadow"))
    );
    assert_eq!(
        (&watch["requests"], &watch["would_deny"], &watch["share"]),
        (&json!(4), &json!(2), &json!(0.5))
    );
    assert_eq!(
        (
            &watch["top"][0]["count"],
            watch["top"].as_array().unwrap().len()
        ),
        (&json!(2), 1)
    );
    assert!(!shadow.to_string().contains("someone"), "{shadow}");
    assert_eq!(shadow[1]["would_deny"], json!(0));
}

#[test]
fn keys_are_fingerprints_unless_configured_as_plain() {
    let responses = |stats: &str| {
        let node = serve("", &format!("[stats]\nkeys = \"{stats}\"\n"));
        for _ in 0..6 {
            check(&node, "someone");
        }
        let banned = post(&node, "/admin/ban", &ban("someone", "1h")).json();
        post(&node, "/admin/lift", &about("nobody"));
        let all = [
            banned,
            get(&node, "/admin/top"),
            get(&node, "/admin/overrides"),
            get(&node, "/admin/audit"),
        ];
        node.signal("TERM");
        (json!(all), node.ended().1)
    };
    let (hidden, log) = responses("fingerprint");
    assert!(!hidden.to_string().contains("someone"), "{hidden}");
    assert!(
        !log.contains("someone") && log.contains("operator: ban done"),
        "{log}"
    );
    // The key is the same everywhere.
    let key = &hidden[0]["key"];
    assert!(key.as_str().unwrap().starts_with("user=#"));
    assert_eq!(
        (key, key),
        (&hidden[1]["most_active"][0]["key"], &hidden[2][0]["key"])
    );
    assert_eq!(
        (key, key),
        (&hidden[1]["most_denied"][0]["key"], &hidden[3][1]["key"])
    );
    let (plain, _) = responses("plain");
    for pointer in ["/0/key", "/1/most_active/0/key", "/2/0/key", "/3/1/key"] {
        assert_eq!(
            plain.pointer(pointer),
            Some(&json!("user=someone")),
            "{pointer} in {plain}"
        );
    }
}

#[test]
fn an_unknown_path_lists_the_known_ones() {
    let node = serve("", "");
    let detail = node.admin("GET", "/admin/statsu").problem(404, "not_found");
    assert!(
        detail.starts_with("no such path: `/admin/statsu`; available: GET /")
            && detail.contains("GET /admin/status")
            && detail.contains("POST /admin/ban"),
        "{detail}"
    );
    node.admin("GET", "/admin/ban")
        .problem(405, "method_not_allowed");
    let detail = node
        .admin("GET", "/admin/top?n=0")
        .problem(400, "invalid_field");
    assert_eq!(detail, "`n` must be a whole number from 1 to 1000, not `0`");
    node.admin("GET", "/admin/audit?m=1")
        .problem(400, "invalid_field");
}

/// Probes and scrapes are served despite idle connections: the longest idle one is closed.
#[test]
fn idle_connections_do_not_block_probes() {
    let node = serve("", "");
    let mut idle = Vec::new();
    for count in [64, 200] {
        while idle.len() < count {
            let mut connection = Server::connect_to(node.admin);
            match idle.len() % 3 {
                0 => {}
                1 => connection.write("GET /livez HTTP/1.1\r\nX-Slow: "),
                _ => connection.send("GET", "/livez", ""),
            }
            idle.push(connection);
        }
        let start = std::time::Instant::now();
        assert_eq!(node.admin("GET", "/livez").status(), 200);
        assert_eq!(node.admin("GET", "/readyz").status(), 200);
        assert_eq!(node.admin("GET", "/metrics").status(), 200);
        // Idle ones are closed after 30 s by themselves.
        assert!(
            start.elapsed() < std::time::Duration::from_secs(20),
            "delayed by {count} connections for {:?}",
            start.elapsed()
        );
    }
}
