//! The keys of `[gateway]`.

use super::tls::TLS;
use super::{DefaultValue, KeySpec, KeyType, MAX_INTEGER, TableSpec, key};
use crate::preflight::Preflight;
use std::time::Duration;

/// A timeout or interval.
const WAIT: KeyType = KeyType::DurationWithin {
    min: Duration::from_millis(1),
    max: Duration::from_secs(24 * 60 * 60),
};

const fn wait(
    name: &'static str,
    doc: &'static str,
    default: &'static str,
    example: &'static str,
) -> KeySpec {
    key(name, WAIT, doc, example).or(DefaultValue::Text(default))
}

pub(super) static GATEWAY: TableSpec = TableSpec {
    doc: "Upstreams and settings of `ratekeeper proxy`.",
    keys: &[
        key(
            "upstreams",
            KeyType::OneOrMany(&KeyType::Upstream),
            "Services that requests are forwarded to.",
            "[\"http://127.0.0.1:3000\", \"https://app.internal\"]",
        )
        .or(DefaultValue::Empty),
        key(
            "balance",
            KeyType::OneOf(&["least", "round_robin", "by_key"]),
            "How an upstream is chosen: \"least\" takes the one with the fewest requests in \
             flight, \"round_robin\" each in turn, \"by_key\" always the same one for a key.",
            "\"least\"",
        )
        .or(DefaultValue::Text("least")),
        key(
            "balance_by",
            KeyType::Attribute,
            "Key of `balance = \"by_key\"`: ip, path or a header.",
            "\"header:x-tenant\"",
        )
        .or(DefaultValue::Text("ip")),
        key(
            "http2",
            KeyType::Bool,
            "Whether HTTP/2 is used to the upstreams.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
        key(
            "ca_file",
            KeyType::Text,
            "File with the CA certificates (PEM) for https:// upstreams. If not set, those of the \
             system.",
            "\"/etc/ratekeeper/ca.pem\"",
        ),
        key(
            "retries",
            KeyType::Number { min: 0, max: 10 },
            "Number of retries, on other upstreams, of a request that could not be sent.",
            "2",
        )
        .or(DefaultValue::Number(2)),
        key(
            "breaker",
            KeyType::Bool,
            "Circuit breaker: whether an upstream that keeps failing gets no requests for a while.",
            "true",
        )
        .or(DefaultValue::Bool(true)),
        key(
            "health_path",
            KeyType::Path,
            "Path of health checks on each upstream. If not set, there are none.",
            "\"/healthz\"",
        ),
        wait(
            "health_interval",
            "Interval of health checks.",
            "5s",
            "\"5s\"",
        ),
        key(
            "tls",
            KeyType::Table(&TLS),
            "Certificate of the gateway. If set, it listens for HTTPS.",
            "{ cert = \"cert.pem\", key = \"key.pem\" }",
        ),
        key(
            "hosts",
            KeyType::OneOrMany(&KeyType::Host),
            "Hosts that are served. If empty, all.",
            "[\"example.com\", \"*.example.com\"]",
        )
        .or(DefaultValue::Empty),
        key(
            "preflight",
            KeyType::Preflight,
            "CORS preflight requests: a limit of their own per address, \"count\" to count them as \
             other requests, or \"exempt\".",
            "\"600/min burst 100\"",
        )
        .or(DefaultValue::Text(Preflight::DEFAULT)),
        key(
            "proxy_protocol",
            KeyType::Bool,
            "Whether connections from trusted proxies begin with the PROXY protocol, version 1 or \
             2.",
            "true",
        )
        .or(DefaultValue::Bool(false)),
        wait(
            "header_timeout",
            "Timeout for a client to send the head of a request.",
            "10s",
            "\"10s\"",
        ),
        wait(
            "keep_alive",
            "How long a client connection without a request is kept open.",
            "60s",
            "\"60s\"",
        ),
        wait(
            "connect_timeout",
            "Timeout for connecting to an upstream.",
            "5s",
            "\"5s\"",
        ),
        wait(
            "idle_timeout",
            "Timeout of a request during which neither side sends anything, or an HTTP/2 client \
             reads nothing of the response.",
            "60s",
            "\"60s\"",
        ),
        key(
            "total_timeout",
            WAIT,
            "Timeout of a whole request. If not set, unlimited.",
            "\"5min\"",
        ),
        wait(
            "body_timeout",
            "Total time that the gateway waits for the body of a request. Each `min_body_rate` \
             bytes give a second back.",
            "30s",
            "\"30s\"",
        ),
        key(
            "min_body_rate",
            KeyType::Number {
                min: 0,
                max: 1 << 32,
            },
            "Minimum rate, in bytes per second, at which the body of a request must arrive in the \
             long run, until it is answered. 0 is off.",
            "240",
        )
        .or(DefaultValue::Number(240)),
        key(
            "abandoned_timeout",
            KeyType::DurationWithin {
                min: Duration::ZERO,
                max: Duration::from_secs(60 * 60),
            },
            "How long a request that holds a permit of a concurrency limit is kept after its \
             client has left. \"0s\" ends it at once.",
            "\"5s\"",
        )
        .or(DefaultValue::Text("5s")),
        wait(
            "upgrade_timeout",
            "Idle timeout of a WebSocket or another upgraded connection.",
            "1h",
            "\"1h\"",
        ),
        key(
            "max_head",
            KeyType::Number {
                min: 1024,
                max: 1 << 20,
            },
            "Maximum size of the head of a request, in bytes.",
            "16_384",
        )
        .or(DefaultValue::Number(16_384)),
        key(
            "max_headers",
            KeyType::Number { min: 1, max: 1_000 },
            "Maximum number of headers of a request.",
            "100",
        )
        .or(DefaultValue::Number(100)),
        key(
            "max_body",
            KeyType::Number {
                min: 0,
                max: MAX_INTEGER,
            },
            "Maximum size of the body of a request, in bytes. If not set, unlimited.",
            "10_000_000",
        ),
        key(
            "max_connections",
            KeyType::Number {
                min: 1,
                max: 1 << 24,
            },
            "Maximum number of client connections.",
            "32_768",
        )
        .or(DefaultValue::Number(32_768)),
        key(
            "max_connections_per_address",
            KeyType::Number {
                min: 0,
                max: 1 << 24,
            },
            "Maximum number of connections from one address; from one `ipv6_prefix` if it is IPv6. \
             Trusted proxies are exempt. 0 is off.",
            "1_024",
        )
        .or(DefaultValue::Number(1_024)),
        key(
            "access_log",
            KeyType::Text,
            "Access log, a line of JSON per request: \"off\", \"stdout\", or the path of a file.",
            "\"stdout\"",
        )
        .or(DefaultValue::Text("off")),
        key(
            "access_log_every",
            KeyType::Number {
                min: 1,
                max: 1 << 32,
            },
            "Log one in this many requests. Denied and failed requests are always logged.",
            "100",
        )
        .or(DefaultValue::Number(1)),
        wait(
            "drain_delay",
            "How long /readyz responds 503 after SIGTERM before the listeners close.",
            "1s",
            "\"5s\"",
        ),
        wait(
            "drain_timeout",
            "Shutdown grace: how long requests may continue after the listeners have closed.",
            "30s",
            "\"30s\"",
        ),
    ],
    extends: None,
};
