//! What the admin API tells.

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
    for (told, figure) in [
        ("/totals/requests", "ratelimit_requests_total"),
        ("/totals/allowed", "ratelimit_requests_allowed"),
        ("/totals/blocked", "ratelimit_requests_blocked"),
        ("/overrides", "ratekeeper_overrides"),
        (
            "/reloads/taken",
            "ratekeeper_config_reloads_total{result=\"ok\"}",
        ),
        (
            "/reloads/refused",
            "ratekeeper_config_reloads_total{result=\"refused\"}",
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
        let value = status.pointer(told).and_then(Value::as_f64);
        assert_eq!(
            value,
            Some(node.figure(figure)),
            "{told} and {figure} in {status}"
        );
    }
    assert_eq!(
        status["totals"],
        json!({"requests": 10, "allowed": 7, "blocked": 3})
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
        (&status["store"]["kind"], &status["store"]["trouble"]),
        (&json!("memory"), &Value::Null)
    );
    assert_eq!(
        (&status["serving"], &status["ready"]),
        (&json!("decisions"), &json!(true))
    );
}

#[test]
fn a_gateway_says_so_and_how_its_breakers_are() {
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
fn the_stream_tells_the_status_every_second_until_the_end() {
    let node = serve("", "");
    let mut connection = Server::connect_to(node.admin);
    connection.send("GET", "/admin/stream", "");
    let head = connection.head();
    assert!(head.contains("text/event-stream"), "{head}");
    check(&node, "ann");
    // The first comes at once and may be of before; others follow.
    let mut seen = String::new();
    eventually("two events, of which one has the request", || {
        seen.push_str(&connection.line());
        seen.matches("event: status\n").count() >= 2 && seen.contains("\"requests\":1,")
    });
    let data = seen
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let status: Value = serde_json::from_str(data).unwrap();
    assert_eq!(status["version"], json!(env!("CARGO_PKG_VERSION")));
    // It ends when the service does, whole, and does not hold that up.
    node.signal("TERM");
    assert!(connection.rest().ends_with("0\r\n\r\n"));
    assert!(node.ended().0.success());
}

#[test]
fn only_so_many_listen_at_once() {
    let node = serve("", "");
    let mut listening: Vec<_> = (0..32)
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
    assert!(detail.starts_with("32 listen already"), "{detail}");
    // The others are served, and a place that is free is taken.
    assert_eq!(node.admin("GET", "/livez").status(), 200);
    drop(listening.pop());
    eventually("a free place", || {
        let mut connection = Server::connect_to(node.admin);
        connection.send("GET", "/admin/stream", "");
        connection.head().starts_with("HTTP/1.1 200")
    });
}

#[test]
fn explain_is_about_the_counters_there_are_and_charges_nothing() {
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
    assert_eq!(node.figure("ratelimit_requests_total"), 5.0);
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
fn what_policies_in_shadow_would_deny_is_told_with_the_keys() {
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
fn keys_are_fingerprints_unless_the_operator_says_otherwise() {
    let told = |stats: &str| {
        let node = serve("", &format!("[stats]\nkeys = \"{stats}\"\n"));
        for _ in 0..6 {
            check(&node, "someone");
        }
        let said = post(&node, "/admin/ban", &ban("someone", "1h")).json();
        post(&node, "/admin/lift", &about("nobody"));
        let all = [
            said,
            get(&node, "/admin/top"),
            get(&node, "/admin/overrides"),
            get(&node, "/admin/audit"),
        ];
        node.signal("TERM");
        (json!(all), node.ended().1)
    };
    let (hidden, log) = told("fingerprint");
    assert!(!hidden.to_string().contains("someone"), "{hidden}");
    assert!(
        !log.contains("someone") && log.contains("operator: ban done"),
        "{log}"
    );
    // It is one key everywhere.
    let key = &hidden[0]["key"];
    assert!(key.as_str().unwrap().starts_with("user=#"));
    assert_eq!(
        (key, key),
        (&hidden[1]["heaviest"][0]["key"], &hidden[2][0]["key"])
    );
    assert_eq!(
        (key, key),
        (&hidden[1]["most_denied"][0]["key"], &hidden[3][1]["key"])
    );
    let (plain, _) = told("plain");
    for pointer in ["/0/key", "/1/heaviest/0/key", "/2/0/key", "/3/1/key"] {
        assert_eq!(
            plain.pointer(pointer),
            Some(&json!("user=someone")),
            "{pointer} in {plain}"
        );
    }
}

#[test]
fn a_path_that_is_not_there_is_told_those_that_are() {
    let node = serve("", "");
    let detail = node.admin("GET", "/admin/statsu").problem(404, "not_found");
    assert!(
        detail.contains("GET /admin/status") && detail.contains("POST /admin/ban"),
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

/// However many connections do nothing, probes and scrapes are served: the one that has been idle
/// for longest makes way.
#[test]
fn idle_connections_do_not_keep_a_probe_out() {
    let node = serve("", "");
    let mut idle = Vec::new();
    for many in [64, 200] {
        while idle.len() < many {
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
            "{many} held it up for {:?}",
            start.elapsed()
        );
    }
}
