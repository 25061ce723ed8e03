//! The keys of `[gateway]`.

use super::tls::TLS;
use super::{Default, Key, Kind, MOST, Table, key};
use crate::preflight::Preflight;
use std::time::Duration;

/// A time that somebody or something is waited for.
const WAIT: Kind = Kind::DurationWithin {
    min: Duration::from_millis(1),
    max: Duration::from_secs(24 * 60 * 60),
};

const fn wait(
    name: &'static str,
    doc: &'static str,
    default: &'static str,
    example: &'static str,
) -> Key {
    key(name, WAIT, doc, example).or(Default::Text(default))
}

pub(super) static GATEWAY: Table = Table {
    doc: "What `ratekeeper proxy` stands in front of, and how.",
    keys: &[
        key(
            "upstreams",
            Kind::OneOrMany(&Kind::Upstream),
            "The services that requests are sent on to.",
            "[\"http://127.0.0.1:3000\", \"https://app.internal\"]",
        )
        .or(Default::Empty),
        key(
            "balance",
            Kind::OneOf(&["least", "round_robin", "by_key"]),
            "Which of them gets a request: the least busy, each in turn, or always the same for a key.",
            "\"least\"",
        )
        .or(Default::Text("least")),
        key(
            "balance_by",
            Kind::Attribute,
            "The key of `balance = \"by_key\"`: ip, path or a header.",
            "\"header:x-tenant\"",
        )
        .or(Default::Text("ip")),
        key("http2", Kind::Bool, "Whether the upstreams are spoken to in HTTP/2.", "true").or(Default::Bool(false)),
        key(
            "ca_file",
            Kind::Text,
            "Who signs for https:// upstreams, in PEM form; by default whom the system trusts.",
            "\"/etc/ratekeeper/ca.pem\"",
        ),
        key(
            "retries",
            Kind::Number { min: 0, max: 10 },
            "How often a request that was not sent is tried elsewhere.",
            "2",
        )
        .or(Default::Number(2)),
        key("breaker", Kind::Bool, "Whether an upstream that keeps failing is left alone for a while.", "true")
            .or(Default::Bool(true)),
        key(
            "health_path",
            Kind::Path,
            "What is asked of each upstream to see if it is well; nothing if not said.",
            "\"/healthz\"",
        ),
        wait("health_interval", "How often that is asked.", "5s", "\"5s\""),
        key(
            "tls",
            Kind::Table(&TLS),
            "The certificate of the gateway: with it, it listens for HTTPS.",
            "{ cert = \"cert.pem\", key = \"key.pem\" }",
        ),
        key(
            "hosts",
            Kind::OneOrMany(&Kind::Host),
            "The hosts that are served; all if nothing is said.",
            "[\"example.com\", \"*.example.com\"]",
        )
        .or(Default::Empty),
        key(
            "preflight",
            Kind::Preflight,
            "Preflight requests of CORS: a limit of their own for each address, \"count\" (as other requests), or \"exempt\".",
            "\"600/min burst 100\"",
        )
        .or(Default::Text(Preflight::DEFAULT)),
        key(
            "proxy_protocol",
            Kind::Bool,
            "Whether connections of trusted proxies begin with the PROXY protocol, 1 or 2.",
            "true",
        )
        .or(Default::Bool(false)),
        wait("header_timeout", "How long a client may take to send the head of a request.", "10s", "\"10s\""),
        wait("keep_alive", "How long a connection of a client is kept without a request.", "60s", "\"60s\""),
        wait("connect_timeout", "How long a connection to an upstream may take.", "5s", "\"5s\""),
        wait(
            "idle_timeout",
            "How long neither side may send anything while a request is under way, or a client of HTTP/2 take nothing of its answer.",
            "60s",
            "\"60s\"",
        ),
        key("total_timeout", WAIT, "How long a request may take altogether; for ever if nothing is said.", "\"5min\""),
        wait(
            "body_timeout",
            "How long the body of a request may keep the gateway waiting altogether; each `min_body_rate` bytes give a second back.",
            "30s",
            "\"30s\"",
        ),
        key(
            "min_body_rate",
            Kind::Number { min: 0, max: 1 << 32 },
            "The bytes a second at which the body of a request must come in the long run, until it is answered. 0 is off.",
            "240",
        )
        .or(Default::Number(240)),
        key(
            "abandoned_timeout",
            Kind::DurationWithin { min: Duration::ZERO, max: Duration::from_secs(60 * 60) },
            "How long a request that holds a permit of a concurrency limit is kept after its client has left; \"0s\" is not at all.",
            "\"5s\"",
        )
        .or(Default::Text("5s")),
        wait("upgrade_timeout", "How long a WebSocket or other upgraded connection may be silent.", "1h", "\"1h\""),
        key("max_head", Kind::Number { min: 1024, max: 1 << 20 }, "The largest head of a request, in bytes.", "16_384")
            .or(Default::Number(16_384)),
        key("max_headers", Kind::Number { min: 1, max: 1_000 }, "The most headers of a request.", "100")
            .or(Default::Number(100)),
        key(
            "max_body",
            Kind::Number { min: 0, max: MOST },
            "The largest body of a request, in bytes; any if nothing is said.",
            "10_000_000",
        ),
        key(
            "max_connections",
            Kind::Number { min: 1, max: 1 << 24 },
            "The most connections of clients at once.",
            "32_768",
        )
        .or(Default::Number(32_768)),
        key(
            "max_connections_per_address",
            Kind::Number { min: 0, max: 1 << 24 },
            "The most connections of one address at once, by `ipv6_prefix` where it is IPv6; trusted proxies have any number. 0 is off.",
            "1_024",
        )
        .or(Default::Number(1_024)),
        key("access_log", Kind::Text, "A line of JSON for each request: \"off\", \"stdout\", or a file.", "\"stdout\"")
            .or(Default::Text("off")),
        key(
            "access_log_every",
            Kind::Number { min: 1, max: 1 << 32 },
            "Only one of so many is logged; those that were turned away or failed always are.",
            "100",
        )
        .or(Default::Number(1)),
        wait("drain_delay", "How long /readyz says 503 after SIGTERM before the listeners stop.", "1s", "\"5s\""),
        wait("drain_timeout", "How long requests may go on after that.", "30s", "\"30s\""),
    ],
    also: None,
};
