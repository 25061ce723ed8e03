//! `[gateway]`: reading, showing and messages.

use crate::config::{AccessLog, Balance, Certificate, Config, Upstream};
use crate::load;
use ratekeeper_policy::Attribute;
use ratekeeper_policy::config::Configuration;
use std::num::NonZero;
use std::time::Duration;

pub(crate) const EVERYTHING: &str = r#"
[gateway]
upstreams = ["http://127.0.0.1:3000", "https://app.internal/v2"]
balance = "by_key"
balance_by = "header:X-Tenant"
http2 = true
ca_file = "/etc/ca.pem"
retries = 0
breaker = false
health_path = "/healthz?deep"
health_interval = "1s"
tls = { cert = "c.pem", key = "k.pem" }
hosts = ["example.com", "*.example.com"]
proxy_protocol = true
header_timeout = "1s"
keep_alive = "2s"
connect_timeout = "3s"
idle_timeout = "4s"
total_timeout = "5s"
abandoned_timeout = "0s"
upgrade_timeout = "6s"
max_head = 2048
max_headers = 50
max_body = 0
body_timeout = "9s"
min_body_rate = 1000
max_connections = 10
max_connections_per_address = 5
access_log = "/var/log/ratekeeper.jsonl"
access_log_every = 100
drain_delay = "7s"
drain_timeout = "8s"
[[policy]]
name = "all"
match = { path = "/x" }
limit = "10/s"
"#;

#[test]
fn every_key_is_read_and_shown() {
    let loaded = load(EVERYTHING, &[]);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let config = loaded.config.unwrap();
    let gateway = &config.gateway;
    let upstreams: Vec<String> = gateway.upstreams.iter().map(ToString::to_string).collect();
    assert_eq!(
        upstreams,
        ["http://127.0.0.1:3000", "https://app.internal/v2"]
    );
    assert_eq!(
        (gateway.balance, &gateway.balance_by),
        (Balance::ByKey, &Attribute::header("x-tenant"))
    );
    assert_eq!(gateway.tls, Some(Certificate::new("c.pem", "k.pem")));
    assert_eq!(
        (gateway.total_timeout, gateway.max_body),
        (Some(Duration::from_secs(5)), Some(0))
    );
    assert_eq!(
        (gateway.body_timeout, gateway.min_body_rate),
        (Duration::from_secs(9), NonZero::new(1_000))
    );
    assert_eq!(gateway.max_connections_per_address, NonZero::new(5));
    assert_eq!(
        gateway.access_log,
        AccessLog::File("/var/log/ratekeeper.jsonl".into())
    );
    assert_eq!(gateway.abandoned_timeout, Duration::ZERO);
    let shown = config.to_toml();
    assert_eq!(load(&shown, &[]).config, Some(config), "{shown}");
}

#[test]
fn limits_of_0_are_off() {
    let text = EVERYTHING.replace("min_body_rate = 1000", "min_body_rate = 0");
    let text = text.replace(
        "max_connections_per_address = 5",
        "max_connections_per_address = 0",
    );
    let config = load(&text, &[]).config.unwrap();
    assert_eq!(
        (
            config.gateway.min_body_rate,
            config.gateway.max_connections_per_address
        ),
        (None, None)
    );
    assert_eq!(load(&config.to_toml(), &[]).config, Some(config));
    let usual = Config::default().gateway;
    assert_eq!(
        (usual.min_body_rate, usual.max_connections_per_address),
        (NonZero::new(240), NonZero::new(1_024))
    );
}

#[test]
fn without_settings_the_table_is_not_shown() {
    let config = Config::default();
    assert!(
        config.gateway.upstreams.is_empty()
            && config.gateway.breaker
            && config.gateway.tls.is_none()
    );
    assert!(!config.to_toml().contains("[gateway]"));
    let env = [
        ("RATEKEEPER_GATEWAY__UPSTREAMS", "http://a:1, http://b:2"),
        ("RATEKEEPER_GATEWAY__TLS__CERT", "c.pem"),
        ("RATEKEEPER_GATEWAY__TLS__KEY", "k.pem"),
    ];
    let gateway = load("", &env).config.unwrap().gateway;
    assert_eq!(
        (gateway.upstreams.len(), gateway.tls),
        (2, Some(Certificate::new("c.pem", "k.pem")))
    );
}

#[test]
fn errors_and_warnings() {
    for (line, says) in [
        (
            "upstreams = \"localhost:3000\"",
            "must be the URL of a service, such as \"http://127.0.0.1:3000\"",
        ),
        (
            "upstreams = [\"http://user:secret@a\"]",
            "each of `upstreams` in [gateway] must be the URL of a service",
        ),
        ("upstreams = \"http://a:0\"", "must be the URL of a service"),
        ("upstreams = \"http://a?b\"", "must be the URL of a service"),
        (
            "upstreams = \"http://[::1]x\"",
            "must be the URL of a service",
        ),
        ("balance = \"leest\"", "did you mean \"least\"?"),
        (
            "balance = \"by_key\"\nbalance_by = \"user\"",
            "must be \"ip\", \"path\" or a header",
        ),
        (
            "balance_by = \"path\"",
            "has no effect unless `balance = \"by_key\"`",
        ),
        (
            "upstreams = \"http://a\"\nca_file = \"x\"",
            "has no effect, because no upstream is https://",
        ),
        (
            "health_path = \"healthz\"",
            "`health_path` in [gateway] must be a path",
        ),
        (
            "tls = { cert = \"c.pem\" }",
            "`key` is missing in `tls` of [gateway]",
        ),
        (
            "idle_timeout = \"0s\"",
            "must be a duration from \"1ms\" to \"1d\"",
        ),
        (
            "max_head = 10",
            "must be a whole number from 1024 to 1048576",
        ),
        ("upstream = \"http://a\"", "did you mean `upstreams`?"),
    ] {
        let loaded = load(&format!("[gateway]\n{line}\n"), &[]);
        let messages: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        assert!(
            messages.iter().any(|message| message.contains(says)),
            "{line}: {messages:?}"
        );
    }
}

#[test]
fn the_parts_of_an_upstream() {
    let upstream: Upstream = "https://app.internal/v2/".parse().unwrap();
    assert!(upstream.is_tls());
    assert_eq!(
        (upstream.host(), upstream.port(), upstream.prefix()),
        ("app.internal", 443, "/v2")
    );
    let upstream: Upstream = "http://[::1]:3000".parse().unwrap();
    assert_eq!(
        (upstream.is_tls(), upstream.host(), upstream.port()),
        (false, "::1", 3000)
    );
}
