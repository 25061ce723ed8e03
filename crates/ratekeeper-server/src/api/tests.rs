//! The HTTP API on connections in memory, with a small store and manual clocks.

use super::router;
use crate::api::throttle_buckets::Buckets;
use crate::app::App;
use crate::config::Config;
use crate::net::worker::connection;
use crate::store::AnyStore;
use ratekeeper::{ManualClock, MemoryStore};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// A server; every call opens its own connection.
struct Server {
    app: axum::Router,
    clock: ManualClock,
}

impl Server {
    fn new(max_limits: usize) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        let app = App::new(&Config::default(), AnyStore::Memory(store.clone())).unwrap();
        Self {
            app: router(
                Arc::new(App {
                    buckets: Buckets::new(
                        AnyStore::Memory(store),
                        max_limits,
                        &Config::default().store,
                    ),
                    ..app
                }),
                true,
            ),
            clock,
        }
    }

    /// A server on the policies of a file.
    fn on(config: &str) -> Self {
        let loaded = Config::parse("ratekeeper.toml", config, []);
        let config = loaded
            .config
            .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        Self {
            app: router(
                Arc::new(App::new(&config, AnyStore::Memory(store)).unwrap()),
                true,
            ),
            clock,
        }
    }

    fn connect(&self) -> DuplexStream {
        self.connect_from(Some("127.0.0.1"))
    }

    /// Connects from an address, or over a Unix socket if there is none.
    fn connect_from(&self, peer: Option<&str>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let peer = peer.map(|peer| (peer.parse::<IpAddr>().unwrap(), 1).into());
        let connection = connection(theirs, peer, self.app.clone(), &Arc::default());
        tokio::spawn(async { drop(connection.await) });
        ours
    }

    async fn throttle(&self, body: Value) -> (String, Value) {
        self.post("/v1/throttle", body).await
    }

    async fn check(&self, body: Value) -> (String, Value) {
        self.post("/v1/check", body).await
    }

    /// Status line and headers, and the body.
    async fn post(&self, path: &str, body: Value) -> (String, Value) {
        self.post_from(Some("127.0.0.1"), path, body).await
    }

    async fn post_from(&self, peer: Option<&str>, path: &str, body: Value) -> (String, Value) {
        let body = body.to_string();
        let mut stream = self.connect_from(peer);
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_all(&mut stream).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), serde_json::from_str(body).unwrap())
    }
}

async fn read_all(stream: &mut DuplexStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn numbers_are_exact_and_milliseconds_rounded_up() {
    let server = Server::new(10);
    let call = || server.throttle(json!({"key": "a", "limit": "3/s"}));
    let third = |n: u64| (n * 1000).div_ceil(3);
    for used in 1..=3 {
        let (head, body) = call().await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert_eq!(
            body,
            json!({"allowed": true, "limit": 3, "remaining": 3 - used, "used": used, "delay_ms": 0,
                   "retry_after_ms": null, "reset_after_ms": third(used), "never": false})
        );
    }
    let (head, body) = call().await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
    assert!(
        head.contains("\r\nretry-after: 1\r\n") && head.contains("\r\ncache-control: no-store"),
        "{head}"
    );
    assert_eq!(
        body,
        json!({"allowed": false, "limit": 3, "remaining": 0, "used": 3, "delay_ms": 0,
               "retry_after_ms": 334, "reset_after_ms": 1000, "never": false})
    );
    server.clock.advance(Duration::from_nanos(333_333_333));
    assert_eq!(call().await.1["retry_after_ms"], json!(1));
    server.clock.advance(Duration::from_nanos(1));
    assert_eq!(call().await.1["allowed"], json!(true));
}

#[tokio::test]
async fn retry_after_is_whole_seconds_rounded_up() {
    let server = Server::new(10);
    let call = || server.throttle(json!({"key": "a", "limit": "1/min"}));
    call().await;
    for (advance, seconds) in [(0, 60), (1, 60), (58_998, 2), (1, 1), (999, 1)] {
        server.clock.advance(Duration::from_millis(advance));
        let (head, _) = call().await;
        assert!(
            head.contains(&format!("\r\nretry-after: {seconds}\r\n")),
            "{advance} {head}"
        );
    }
}

#[tokio::test]
async fn any_number_of_limits_is_accepted() {
    let server = Server::new(1);
    let status = async |key: &str, limit: &str| {
        let (head, _) = server.throttle(json!({"key": key, "limit": limit})).await;
        head.split(' ').nth(1).unwrap().to_owned()
    };
    for n in 1..100 {
        assert_eq!(status("a", &format!("0/s burst {n}")).await, "200");
    }
    assert_eq!(status("a", "1/min").await, "200");
    assert_eq!(status("a", "1/min").await, "429");
}

const LOGIN: &str = r#"
[[policy]]
name = "login"
match = { method = ["POST"], path = "/login" }
key = ["ip"]
limit = "5/min"
algorithm = "sliding_log"
"#;

#[tokio::test]
async fn a_check_returns_every_limit() {
    let server = Server::on(LOGIN);
    let call = || {
        server.check(json!({"subject": {"ip": "203.0.113.7", "method": "POST", "path": "/login"}}))
    };
    let limit = |remaining: u64, reset: u64, retry: Value, outcome: &str| {
        json!([{"policy": "login", "key": "ip", "limit": 5, "remaining": remaining, "reset_after_ms": reset,
                "retry_after_ms": retry, "outcome": outcome}])
    };
    for remaining in [4, 3, 2, 1, 0] {
        let (head, body) = call().await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert_eq!(
            body,
            json!({"allowed": true, "source": "memory", "reason": "limits", "policy": null, "retry_after_ms": null,
                   "delay_ms": 0, "never": false, "limits": limit(remaining, 60_000, Value::Null, "allowed")})
        );
    }
    server.clock.advance(Duration::from_millis(59_188));
    let (head, body) = call().await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
    assert!(
        head.contains("\r\nretry-after: 1\r\n") && head.contains("\r\ncache-control: no-store"),
        "{head}"
    );
    assert_eq!(
        body,
        json!({"allowed": false, "source": "memory", "reason": "limits", "policy": "login", "retry_after_ms": 812,
               "delay_ms": 0, "never": false, "limits": limit(0, 812, json!(812), "denied")})
    );
    // The policy does not match other methods.
    let (_, body) = server
        .check(json!({"subject": {"ip": "203.0.113.7", "method": "GET", "path": "/login"}}))
        .await;
    assert_eq!(
        (&body["allowed"], &body["reason"], &body["limits"]),
        (&json!(true), &json!("no_policy"), &json!([]))
    );
}

#[tokio::test]
async fn without_a_file_the_default_policy_applies() {
    let server = Server::new(10);
    let call = || server.check(json!({"subject": {"ip": "::ffff:10.0.0.1"}}));
    for _ in 0..20 {
        assert_eq!(call().await.1["allowed"], json!(true));
    }
    let (head, body) = call().await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
    assert_eq!(
        (&body["policy"], &body["retry_after_ms"]),
        (&json!("default"), &json!(600))
    );
    assert_eq!(
        server
            .check(json!({"subject": {"ip": "10.0.0.1"}, "peek": true}))
            .await
            .1["allowed"],
        json!(false)
    );
    assert_eq!(
        server
            .check(json!({"subject": {"ip": "10.0.0.2"}, "cost": 20}))
            .await
            .1["limits"][0]["remaining"],
        json!(0)
    );
    assert_eq!(
        server
            .check(json!({"subject": {"ip": "10.0.0.3"}, "cost": 21}))
            .await
            .1["never"],
        json!(true)
    );
}

#[tokio::test]
async fn the_status_is_that_of_the_policy() {
    let server = Server::on(
        "[[policy]]\nname = \"all\"\nkey = []\nlimit = \"1/min\"\nstatus = 503\nmatch = { path = \"/x\" }\n",
    );
    let call = || server.check(json!({"subject": {"path": "/x"}}));
    assert!(call().await.0.starts_with("http/1.1 200 "));
    let (head, _) = call().await;
    assert!(
        head.starts_with("http/1.1 503 ") && head.contains("\r\nretry-after: 60\r\n"),
        "{head}"
    );
}

#[tokio::test]
async fn the_deny_list_denies_without_retry_after() {
    let server = Server::on("[[deny]]\nip = \"203.0.113.0/24\"\n");
    let (head, body) = server
        .check(json!({"subject": {"ip": "203.0.113.9"}}))
        .await;
    assert!(
        head.starts_with("http/1.1 429 ") && !head.contains("retry-after"),
        "{head}"
    );
    assert_eq!(
        (&body["reason"], &body["never"]),
        (&json!("deny_list"), &json!(true))
    );
}

#[tokio::test]
async fn permits_are_released_after_each_check() {
    let server = Server::on(
        "[[policy]]\nname = \"slots\"\nkey = []\nlimits = [\"1 concurrent\", \"1/min\"]\nmatch = { path = \"/x\" }\n",
    );
    let (_, body) = server.check(json!({"subject": {"path": "/x"}})).await;
    assert_eq!(body["limits"][0]["outcome"], json!("allowed"));
    let (_, body) = server.check(json!({"subject": {"path": "/x"}})).await;
    assert_eq!(
        (&body["limits"][0]["outcome"], &body["limits"][1]["outcome"]),
        (&json!("allowed"), &json!("denied"))
    );
}

#[tokio::test]
async fn the_user_is_read_only_from_the_configured_header() {
    let server = Server::on(
        "[identity]\nuser = { header = \"X-User\", from = \"127.0.0.1\" }\n[[policy]]\nname = \"user\"\nkey = [\"user\"]\nmissing = \"skip\"\nlimit = \"1/min\"\n",
    );
    let left =
        async |subject: Value| server.check(json!({"subject": subject})).await.1["reason"].clone();
    assert_eq!(
        left(json!({"headers": {"x-user": "ann"}})).await,
        json!("limits")
    );
    assert_eq!(
        left(json!({"headers": {"x-user-id": "ann"}})).await,
        json!("no_policy")
    );
    let (_, body) = server
        .check(json!({"subject": {"user": "bob", "headers": {"X-USER": "ann"}}}))
        .await;
    assert_eq!(
        body["allowed"],
        json!(true),
        "an attribute takes precedence over the header"
    );
}

/// The header of the client at 203.0.113.7 must count on connections from 10.0.0.0/8 and on Unix
/// sockets only.
const USER_FROM: &str = r#"
    [identity]
    trusted_proxies = ["10.0.0.0/8", "192.0.2.0/24"]
    user = { header = "x-user", from = ["10.0.0.0/8", "unix"] }
    [[policy]]
    name = "user"
    key = ["user"]
    missing = "skip"
    limit = "1/min"
"#;

const USER_PEERS: [(Option<&str>, bool); 5] = [
    (Some("10.0.0.1"), true),
    (None, true),
    // Trusted to name clients, not users.
    (Some("192.0.2.1"), false),
    (Some("203.0.113.7"), false),
    (Some("127.0.0.1"), false),
];

#[tokio::test]
async fn only_trusted_peers_may_set_the_user_header() {
    for path in ["/v1/check", "/v1/reserve"] {
        for (peer, is_believed) in USER_PEERS {
            let server = Server::on(USER_FROM);
            let body = json!({"subject": {"ip": "10.0.0.1", "headers": {"X-User": "ann"}}});
            let (_, told) = server.post_from(peer, path, body).await;
            let expected = if is_believed { "limits" } else { "no_policy" };
            assert_eq!(told["reason"], json!(expected), "{path} from {peer:?}");
        }
    }
    // Attributes of the call itself are always accepted.
    let server = Server::on(USER_FROM);
    let (_, told) = server.check(json!({"subject": {"user": "ann"}})).await;
    assert_eq!(told["reason"], json!("limits"));
}

#[tokio::test]
async fn auth_trusts_the_user_header_of_the_proxy_and_not_of_its_client() {
    for (peer, is_believed) in USER_PEERS {
        let server = Server::on(USER_FROM);
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let mut stream = server.connect_from(peer);
            let request = "GET /auth/caddy HTTP/1.1\r\nHost: x\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n\
                           X-Forwarded-For: 10.0.0.1\r\nX-User: ann\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            statuses.push(read_all(&mut stream).await[9..12].to_owned());
        }
        let second = if is_believed { "429" } else { "200" };
        assert_eq!(statuses, ["200", second], "from {peer:?}");
    }
}

#[tokio::test]
async fn auth_trusts_class_and_start_only_from_a_trusted_proxy_in_front() {
    let config = r#"
        [identity]
        trusted_proxies = "192.0.2.0/24"
        [shed]
        header = "x-class"
        start_header = "x-start"
        patience = "1h"
        [[policy]]
        name = "critical"
        match = { attribute = { class = "critical" } }
        limit = "1/min"
    "#;
    for (forwarded, is_believed) in [
        ("203.0.113.7, 192.0.2.1", true),
        ("203.0.113.7", false),
        ("192.0.2.1, 203.0.113.7", false),
    ] {
        let server = Server::on(config);
        let ask = async |header: &str| {
            let mut stream = server.connect_from(Some("192.0.2.9"));
            let request = format!(
                "GET /auth/caddy HTTP/1.1\r\nHost: x\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n\
                 X-Forwarded-For: {forwarded}\r\n{header}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            read_all(&mut stream).await[9..12].to_owned()
        };
        let classes = [
            ask("X-Class: critical").await,
            ask("X-Class: critical").await,
        ];
        assert_eq!(
            classes,
            ["200", if is_believed { "429" } else { "200" }],
            "{forwarded}"
        );
        // It began in 1970.
        assert_eq!(
            ask("X-Start: t=1.0").await,
            if is_believed { "504" } else { "200" },
            "{forwarded}"
        );
    }
}

#[tokio::test]
async fn spellings_of_an_authorization_are_one_api_key() {
    let server = Server::on(
        r#"
        [identity]
        api_key = { header = "authorization" }
        [[policy]]
        name = "key"
        key = ["api_key"]
        limit = "2/min"
        "#,
    );
    let with = async |said: &str| {
        let subject = json!({"headers": {"Authorization": said}});
        server.check(json!({"subject": subject})).await.1["allowed"].clone()
    };
    assert_eq!(
        (with("Bearer k").await, with("bearer k").await),
        (json!(true), json!(true))
    );
    assert_eq!(
        (with("BEARER  k ").await, with("Bearer other").await),
        (json!(false), json!(true))
    );
}

/// An object with a number of fields.
fn numbered(count: usize) -> Value {
    (0..count)
        .map(|number| (number.to_string(), json!("")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test]
async fn an_invalid_subject_is_rejected() {
    let server = Server::new(10);
    for (body, code, detail) in [
        (json!({}), "missing_field", "`subject` is missing"),
        (
            json!({"subject": "ip"}),
            "invalid_field",
            "`subject` must be an object",
        ),
        (
            json!({"subject": {}, "costs": 1}),
            "unknown_field",
            "unknown field `costs`; known: subject, cost, peek",
        ),
        (
            json!({"subject": {"IP": "10.0.0.1"}}),
            "invalid_field",
            "`subject.IP` is unknown (names are case-sensitive); use `ip`",
        ),
        (
            json!({"subject": {"ip": "localhost"}}),
            "invalid_field",
            "`subject.ip` `localhost` is not an IP address",
        ),
        (
            json!({"subject": {"ip": 7}}),
            "invalid_field",
            "`subject.ip` must be text, not 7",
        ),
        (
            json!({"subject": {"user": ["a"]}}),
            "invalid_field",
            "`subject.user` must be text",
        ),
        (
            json!({"subject": {"headers": []}}),
            "invalid_field",
            "`subject.headers` must be an object of texts, not a list",
        ),
        (
            json!({"subject": {"headers": {"a": 1}}}),
            "invalid_field",
            "`subject.headers.a` must be text or a list of texts",
        ),
        (
            json!({"subject": {"header:x-a": "1"}}),
            "invalid_field",
            "`subject.header:x-a` is a header; send `x-a` in `subject.headers`",
        ),
        (
            json!({"subject": numbered(129)}),
            "invalid_field",
            "`subject` has more than 128 values",
        ),
        (
            json!({"subject": {"headers": numbered(129)}}),
            "invalid_field",
            "`subject.headers` has more than 128 values",
        ),
        (
            json!({"subject": {"headers": {"a": vec![""; 129]}}}),
            "invalid_field",
            "`subject.headers` has more than 128 values",
        ),
        (
            json!({"subject": {}, "cost": -1}),
            "invalid_field",
            "`cost` must be a whole number",
        ),
        (
            json!({"subject": {}, "peek": "no"}),
            "invalid_field",
            "`peek` must be true or false, not text",
        ),
        (json!(1), "not_an_object", "the body is not a JSON object"),
        (
            json!([]),
            "batch_size",
            "the list has 0 requests; send 1 to 100",
        ),
    ] {
        let (head, told) = server.check(body.clone()).await;
        assert!(head.starts_with("http/1.1 400 "), "{body} {head}");
        assert_eq!(told["code"], json!(code), "{body}");
        assert!(
            told["detail"].as_str().unwrap().starts_with(detail),
            "{body} {told}"
        );
    }
}

/// Tokio's clock is paused in these: it advances to the next timer once all tasks wait.
#[tokio::test(start_paused = true)]
async fn a_slow_head_times_out() {
    let mut stream = Server::new(1).connect();
    stream
        .write_all(b"POST /v1/throttle HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .await
        .unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed() {
    let mut stream = Server::new(1).connect();
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(read_all(&mut stream).await.ends_with("\r\n\r\nok\n"));
}

#[tokio::test(start_paused = true)]
async fn a_missing_body_times_out() {
    let mut stream = Server::new(1).connect();
    stream
        .write_all(b"POST /v1/throttle HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        .await
        .unwrap();
    let start = tokio::time::Instant::now();
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains(r#""code":"body_timeout""#), "{answer}");
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn an_id_expires_after_its_ttl_and_releases_permits() {
    let server = Server::on("[[policy]]\nname = \"slots\"\nlimit = \"1 concurrent\"\n");
    let reserve = || server.post("/v1/reserve", json!({"subject": {}, "ttl_ms": 1500}));
    let (head, told) = reserve().await;
    assert!(
        head.starts_with("http/1.1 200 ") && head.contains("\r\ncache-control: no-store"),
        "{head}"
    );
    assert_eq!(told["expires_after_ms"], json!(1500));
    server.clock.advance(Duration::from_millis(1499));
    assert!(reserve().await.0.starts_with("http/1.1 429 "));
    server.clock.advance(Duration::from_millis(1));
    for path in ["/v1/settle", "/v1/cancel"] {
        let (head, body) = server.post(path, json!({"id": told["id"]})).await;
        assert!(head.starts_with("http/1.1 410 "), "{head}");
        assert_eq!(body["code"], json!("expired_id"));
    }
    let (_, again) = reserve().await;
    assert_eq!(
        again["allowed"],
        json!(true),
        "the permit was released by expiry"
    );
    assert!(
        server
            .post("/v1/cancel", json!({"id": again["id"]}))
            .await
            .0
            .starts_with("http/1.1 200 ")
    );
    assert_eq!(reserve().await.1["allowed"], json!(true));
}

#[tokio::test]
async fn the_ttl_begins_after_the_delay() {
    let server = Server::on("[[policy]]\nname = \"slow\"\nlimit = \"1/s\"\n");
    let reserve = |wait: u64| {
        server.post(
            "/v1/reserve",
            json!({"subject": {}, "max_wait_ms": wait, "ttl_ms": 100}),
        )
    };
    assert_eq!(reserve(0).await.1["delay_ms"], json!(0));
    let (_, told) = reserve(2000).await;
    assert_eq!(
        (&told["delay_ms"], &told["expires_after_ms"]),
        (&json!(1000), &json!(1100))
    );
    assert!(reserve(1999).await.0.starts_with("http/1.1 429 "));
    server.clock.advance(Duration::from_millis(1099));
    assert_eq!(
        server.post("/v1/settle", json!({"id": told["id"]})).await.1,
        json!({"settled": true})
    );
}

/// Health checks run on a worker that is not stalled.
#[tokio::test]
async fn readyz_and_then_livez_report_a_stalled_worker() {
    let store = MemoryStore::builder().max_keys(10).build();
    let app = Arc::new(App::new(&Config::default(), AnyStore::Memory(store)).unwrap());
    let health = Arc::clone(&app.health);
    let _beats = ["http-0", "resp-1"].map(|name| health.register(name));
    let server = Server {
        app: router(app, true),
        clock: ManualClock::new(),
    };
    let ask = async |path: &str| {
        let mut stream = server.connect();
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes(),
            )
            .await
            .unwrap();
        let answer = read_all(&mut stream).await;
        (
            answer[9..12].parse::<u16>().unwrap(),
            answer.split_once("\r\n\r\n").unwrap().1.to_owned(),
        )
    };
    let well = (200, "ok\n".to_owned());
    for (silent, ready, live) in [
        (4, well.clone(), well.clone()),
        (
            5,
            (
                503,
                "not ready: worker resp-1 has not run for 5 s\n".to_owned(),
            ),
            well.clone(),
        ),
        (
            15,
            (
                503,
                "not ready: worker resp-1 has not run for 15 s\n".to_owned(),
            ),
            (
                503,
                "worker resp-1 has not run for 15 s; restart this process\n".to_owned(),
            ),
        ),
        (0, well.clone(), well),
    ] {
        health.silence("resp-1", Duration::from_secs(silent));
        assert_eq!(
            (ask("/readyz").await, ask("/livez").await),
            (ready, live),
            "after {silent} s"
        );
    }
}
