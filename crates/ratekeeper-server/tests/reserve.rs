//! Reservations settled on the same and on other nodes, in memory and on Redis.

mod support;

use ratekeeper_testkit::RedisServer;
use serde_json::{Value, json};
use support::{Answer, Server};

const POLICIES: &str = "\
    [identity]\nattributes = \"tokens\"\n[[policy]]\nname = \"tokens\"\nkey = [\"user\"]\nlimit = \"1000/d\"\ncost = { attribute = \"tokens\", default = 100 }\n\
    [[policy]]\nname = \"slots\"\nkey = [\"user\"]\nlimit = \"2 concurrent\"\n\
    [[policy]]\nname = \"tries\"\nkey = [\"user\"]\nlimit = \"5/d\"\ncount = \"failures\"\n";

fn in_memory() -> Server {
    Server::with_config(&format!("[server]\nhttp = \"127.0.0.1:0\"\n{POLICIES}"))
}

fn on_redis(url: &str, more: &str) -> Server {
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"5s\"\n");
    Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{more}{store}{POLICIES}"
    ))
}

fn reserve(node: &Server, body: Value) -> Answer {
    node.request("POST", "/v1/reserve", &body.to_string())
}

fn id(node: &Server, user: &str) -> String {
    let answer = reserve(node, json!({"subject": {"user": user}}));
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn settle(node: &Server, body: Value) -> Answer {
    node.request("POST", "/v1/settle", &body.to_string())
}

fn cancel(node: &Server, id: &str) -> Answer {
    node.request("POST", "/v1/cancel", &json!({"id": id}).to_string())
}

/// What is left of tokens, slots and tries.
fn left(node: &Server, user: &str) -> [u64; 3] {
    let body = json!({"subject": {"user": user}, "cost": 0, "peek": true});
    let answer = node.check(&body.to_string()).json();
    [0, 1, 2].map(|at| {
        answer["limits"][at]["remaining"]
            .as_u64()
            .unwrap_or_else(|| panic!("{answer}"))
    })
}

#[track_caller]
fn is_settled(answer: &Answer) {
    assert_eq!(
        (answer.status(), answer.json()),
        (200, json!({"settled": true}))
    );
}

#[test]
fn one_node_reserves_and_another_settles() {
    let redis = RedisServer::start();
    let [first, second] = [(); 2].map(|()| on_redis(redis.url(), ""));
    let answer = reserve(&first, json!({"subject": {"user": "ann", "tokens": 300}})).json();
    assert_eq!(
        (&answer["allowed"], &answer["source"]),
        (&json!(true), &json!("redis"))
    );
    assert_eq!(left(&second, "ann"), [700, 1, 4]);
    is_settled(&settle(
        &second,
        json!({"id": answer["id"], "cost": 120, "status": 200}),
    ));
    for node in [&first, &second] {
        assert_eq!(
            left(node, "ann"),
            [880, 2, 5],
            "a success is no failure, and 180 come back"
        );
        let again = settle(node, json!({"id": answer["id"], "cost": 0}));
        assert!(again.problem(409, "already_settled").contains("once"));
        cancel(node, answer["id"].as_str().unwrap()).problem(409, "already_settled");
    }
    // The node that decided has ended.
    let receipt = id(&first, "bob");
    drop(first);
    is_settled(&cancel(&second, &receipt));
    assert_eq!(left(&second, "bob"), [1000, 2, 5]);
}

#[test]
fn only_nodes_with_the_configured_secret_accept_ids() {
    let redis = RedisServer::start();
    let [a, b] = [
        "id_secret = \"0123456789abcdef\"\n",
        "id_secret = \"0123456789abcdeF\"\n",
    ];
    let [first, second, other, agreed] = [a, a, b, ""].map(|secret| on_redis(redis.url(), secret));
    let id = id(&first, "ann");
    for stranger in [&other, &agreed] {
        assert!(
            cancel(stranger, &id)
                .problem(403, "forged_id")
                .contains("id_secret")
        );
    }
    is_settled(&cancel(&second, &id));
}

#[test]
fn permits_are_released_by_settle_and_cancel() {
    let redis = RedisServer::start();
    for node in [in_memory(), on_redis(redis.url(), "")] {
        let [one, other] = [id(&node, "ann"), id(&node, "ann")];
        let third = reserve(&node, json!({"subject": {"user": "ann"}}));
        assert_eq!(
            (third.status(), third.header("retry-after")),
            (429, Some("1"))
        );
        let json = third.json();
        assert_eq!(
            (&json["policy"], &json["id"], &json["expires_after_ms"]),
            (&json!("slots"), &json!(null), &json!(null))
        );
        is_settled(&cancel(&node, &one));
        is_settled(&settle(&node, json!({"id": other, "failed": true})));
        assert_eq!(
            left(&node, "ann"),
            [900, 2, 4],
            "one was given back, the other failed"
        );
    }
}

#[test]
fn a_damaged_id_is_rejected() {
    let node = in_memory();
    let id = id(&node, "ann");
    for length in 0..id.len() {
        let answer = cancel(&node, &id[..length]);
        let code = answer.json()["code"].as_str().unwrap().to_owned();
        assert!(
            [("invalid_id", 400), ("forged_id", 403)].contains(&(&*code, answer.status())),
            "{length}: {answer:?}"
        );
    }
    for (at, letter) in id.char_indices() {
        for bit in 0..6 {
            const LETTERS: &[u8] =
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let number = LETTERS
                .iter()
                .position(|known| char::from(*known) == letter)
                .unwrap();
            let other = char::from(LETTERS[number ^ 1 << bit]);
            let changed = format!("{}{other}{}", &id[..at], &id[at + 1..]);
            let answer = cancel(&node, &changed);
            assert!(
                [400, 403].contains(&answer.status()),
                "{at} {bit}: {answer:?}"
            );
        }
    }
    for (strange, code) in [
        ("", "invalid_id"),
        ("???", "invalid_id"),
        ("é", "invalid_id"),
        (&"A".repeat(64), "invalid_id"),
    ] {
        cancel(&node, strange).problem(400, code);
    }
    assert_eq!(left(&node, "ann"), [900, 1, 4], "none of them did anything");
    is_settled(&cancel(&node, &id));
    // An id of another process with the same configuration.
    let before = self::id(&node, "ann");
    drop(node);
    assert!(
        cancel(&in_memory(), &before)
            .problem(403, "forged_id")
            .contains("fleet")
    );
    let config =
        format!("[server]\nhttp = \"127.0.0.1:0\"\nid_secret = \"0123456789abcdef\"\n{POLICIES}");
    let before = self::id(&Server::with_config(&config), "ann");
    cancel(&Server::with_config(&config), &before).problem(410, "lost_id");
}

#[test]
fn a_reservation_returns_its_delay() {
    let policy = "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"slow\"\nlimit = \"1/h\"\n";
    let node = Server::with_config(policy);
    let ask = |wait: u64| {
        reserve(
            &node,
            json!({"subject": {}, "max_wait_ms": wait, "ttl_ms": 1000}),
        )
    };
    assert_eq!(ask(0).json()["delay_ms"], 0);
    assert_eq!(ask(0).status(), 429);
    let waits = ask(3_600_000).json();
    let delay = waits["delay_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&delay), "{waits}");
    assert_eq!(
        (&waits["limits"][0]["outcome"], &waits["expires_after_ms"]),
        (&json!("delayed"), &json!(delay + 1000))
    );
    assert_eq!(ask(3_600_000).status(), 429);
    is_settled(&cancel(&node, waits["id"].as_str().unwrap()));
}

#[test]
fn invalid_requests_get_their_errors() {
    let node = in_memory();
    let post = |path: &str, body: Value| node.request("POST", path, &body.to_string());
    let reserve =
        |field: &str, value: Value| post("/v1/reserve", json!({"subject": {}, field: value}));
    for (field, value) in [
        ("max_wait_ms", json!(3_600_001)),
        ("max_wait_ms", json!(-1)),
        ("ttl_ms", json!(0)),
        ("ttl_ms", json!(3_600_001)),
        ("ttl_ms", json!("1s")),
        ("cost", json!(1.5)),
    ] {
        let detail = reserve(field, value).problem(400, "invalid_field");
        assert!(
            detail.contains(&format!("`{field}` must be a whole number")),
            "{detail}"
        );
    }
    assert!(
        reserve("peek", json!(true))
            .problem(400, "unknown_field")
            .contains("ttl_ms")
    );
    post("/v1/reserve", json!({})).problem(400, "missing_field");
    post("/v1/settle", json!({"cost": 3})).problem(400, "missing_field");
    post("/v1/settle", json!({"id": 3})).problem(400, "invalid_field");
    post("/v1/settle", json!({"id": "x", "status": 99})).problem(400, "invalid_field");
    let both = post(
        "/v1/settle",
        json!({"id": "x", "status": 200, "failed": false}),
    );
    assert!(both.problem(400, "invalid_field").contains("one of them"));
    post("/v1/cancel", json!({"id": "x", "cost": 3})).problem(400, "unknown_field");
    node.request("GET", "/v1/settle", "")
        .problem(405, "method_not_allowed");
}

#[test]
fn a_list_is_decided_in_order() {
    let redis = RedisServer::start();
    let policy = "[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"3/d\"\n";
    let store = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        redis.url()
    );
    for store in ["", &store] {
        let node = Server::with_config(&format!(
            "[server]\nhttp = \"127.0.0.1:0\"\n{store}{policy}"
        ));
        let one = |user: &str, cost: u64| json!({"subject": {"user": user}, "cost": cost});
        let list = json!([
            one("ann", 2),
            one("bob", 1),
            one("ann", 2),
            one("ann", 1),
            one("eve", 4)
        ]);
        let answer = node.check(&list.to_string());
        assert_eq!(answer.status(), 200);
        let json = answer.json();
        let json: Vec<_> = json.as_array().unwrap().iter().collect();
        let seen: Vec<_> = json
            .iter()
            .map(|one| {
                (
                    one["status"].as_u64().unwrap(),
                    one["limits"][0]["remaining"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(seen, [(200, 1), (200, 2), (429, 1), (200, 0), (429, 3)]);
        assert_eq!(
            (&json[2]["policy"], &json[4]["never"]),
            (&json!("user"), &json!(true))
        );
        // Together they take fewer round trips than requests.
        if !store.is_empty() {
            let many = json!(
                (0..100)
                    .map(|user| one(&format!("u{user}"), 1))
                    .collect::<Vec<_>>()
            );
            let before = node.metric("ratekeeper_store_calls_total");
            let answers = node.check(&many.to_string()).json();
            assert!(
                answers
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| one["source"] == "redis" && one["allowed"] == true)
            );
            let trips = node.metric("ratekeeper_store_calls_total") - before;
            assert!(trips < 50.0, "{trips} round trips for 100 requests");
        }
    }
}

#[test]
fn an_invalid_list_charges_nothing() {
    let node = Server::with_config(
        "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"all\"\nlimit = \"3/d\"\n",
    );
    let good = json!({"subject": {}});
    let bad = node
        .check(&json!([good, {"subject": {}, "cots": 3}]).to_string())
        .problem(400, "unknown_field");
    assert!(
        bad.starts_with("request 1 of the list") && bad.contains("`cots`"),
        "{bad}"
    );
    let many = node
        .check(&json!(vec![good.clone(); 101]).to_string())
        .problem(400, "batch_size");
    assert!(many.contains("101") && many.contains("100"), "{many}");
    node.check("[]").problem(400, "batch_size");
    node.check("[1]").problem(400, "not_an_object");
    node.check("[{\"subject\":{}}").problem(400, "invalid_json");
    // Endpoints without lists, and a list that is too long.
    node.request("POST", "/v1/reserve", "[]")
        .problem(400, "not_an_object");
    let long = json!(vec![json!({"subject": {"user": "x".repeat(4_000)}}); 100]).to_string();
    assert!(
        node.check(&long)
            .problem(413, "body_too_large")
            .contains("262144")
    );
    let fits = json!(vec![
        json!({"subject": {"user": "x".repeat(2_000)}, "peek": true});
        100
    ])
    .to_string();
    assert_eq!(node.check(&fits).json().as_array().unwrap().len(), 100);
    assert_eq!(
        node.check(&good.to_string()).json()["limits"][0]["remaining"],
        2
    );
}
