//! `[gateway]`: the upstreams and settings of `ratekeeper proxy`.

use super::tls::Certificate;
use super::upstream::Upstream;
use ratekeeper_policy::config::section::{
    ArrayItem, KeyType, MAX_INTEGER, ReadError, Section, Tables, Value, attribute, text,
};
use ratekeeper_policy::matching::{HostPattern, PathPattern};
use ratekeeper_policy::request::Preflight;
use ratekeeper_policy::{Attribute, key_kind, section, text_kind, words};
use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

/// A timeout or interval.
const WAIT: KeyType = KeyType::millis(1, 24 * 60 * 60 * 1000);

section! {
    /// `[gateway]`: the upstreams and settings of `ratekeeper proxy`.
    pub(crate) struct GatewayConfig, check = check_gateway {
        /// Services that requests are forwarded to.
        upstreams: Vec<Upstream> = [] => ["http://127.0.0.1:3000", "https://app.internal"];
        /// Upstreams for some hosts and paths. The first route that matches gets a request; all
        /// others get `upstreams`.
        route: Vec<Route> as Tables<Route> => ();
        /// How an upstream is chosen: "least" takes the one with the fewest requests in flight,
        /// "round_robin" each in turn, "by_key" always the same one for a key.
        balance: Balance = "least" => "least";
        /// Key of `balance = "by_key"`: ip, path or a header.
        balance_by: Attribute as BalanceBy = "ip" => "header:x-tenant";
        /// Whether HTTP/2 is used to the upstreams.
        http2: bool = false => true;
        /// File with the CA certificates (PEM) for https:// upstreams. If not set, those of the
        /// system.
        ca_file: Option<PathBuf> => "/etc/ratekeeper/ca.pem";
        /// Number of retries, on other upstreams, of a request that could not be sent.
        retries: u32 [KeyType::number(0, 10)] = 2 => 2;
        /// Circuit breaker: whether an upstream that keeps failing gets no requests for a while.
        breaker: bool = true => true;
        /// Path of health checks on each upstream. If not set, there are none.
        health_path: Option<String> as Option<HealthPath> => "/healthz";
        /// Interval of health checks.
        health_interval: Duration [WAIT] = "5s" => "5s";
        /// Certificate of the gateway. If set, it listens for HTTPS.
        tls: Option<Certificate> => { cert = "cert.pem", key = "key.pem" };
        /// Hosts that are served. If empty, all.
        hosts: Vec<HostPattern> = [] => ["example.com", "*.example.com"];
        /// CORS preflight requests: a limit of their own per address, "count" to count them as other
        /// requests, or "exempt".
        preflight: Preflight = "600/min burst 100" => "600/min burst 100";
        /// Whether connections from trusted proxies begin with the PROXY protocol, version 1 or 2.
        proxy_protocol: bool = false => true;
        /// Timeout for a client to send the head of a request.
        header_timeout: Duration [WAIT] = "10s" => "10s";
        /// How long a client connection without a request is kept open.
        keep_alive: Duration [WAIT] = "60s" => "60s";
        /// Timeout for connecting to an upstream.
        connect_timeout: Duration [WAIT] = "5s" => "5s";
        /// Timeout of a request during which neither side sends anything, or an HTTP/2 client reads
        /// nothing of the response.
        idle_timeout: Duration [WAIT] = "60s" => "60s";
        /// Timeout of a whole request. If not set, unlimited.
        total_timeout: Option<Duration> [WAIT] => "5min";
        /// How long a request that holds a permit of a concurrency limit is kept after its client
        /// has left. "0s" ends it at once.
        abandoned_timeout: Duration [KeyType::millis(0, 60 * 60 * 1000)] = "5s" => "5s";
        /// Idle timeout of a WebSocket or another upgraded connection.
        upgrade_timeout: Duration [WAIT] = "1h" => "1h";
        /// Maximum size of the head of a request, in bytes.
        max_head: usize [KeyType::number(1024, 1 << 20)] = 16_384 => 16_384;
        /// Maximum number of headers of a request.
        max_headers: usize [KeyType::number(1, 1_000)] = 100 => 100;
        /// Maximum size of the body of a request, in bytes. If not set, unlimited.
        max_body: Option<u64> [KeyType::number(0, MAX_INTEGER)] => 10_000_000;
        /// Total time that the gateway waits for the body of a request. Each `min_body_rate` bytes
        /// give a second back.
        body_timeout: Duration [WAIT] = "30s" => "30s";
        /// Minimum rate, in bytes per second, at which the body of a request must arrive in the long
        /// run, until it is answered. 0 is off.
        min_body_rate: Option<NonZero<u64>> as NonZero<u64> [KeyType::number(0, 1 << 32)]
            = 240 => 240;
        /// Maximum number of client connections.
        max_connections: usize [KeyType::number(1, 1 << 24)] = 32_768 => 32_768;
        /// Maximum number of connections from one address; from one `ipv6_prefix` if it is IPv6.
        /// Trusted proxies are exempt. 0 is off.
        max_connections_per_address: Option<NonZero<usize>> as NonZero<usize>
            [KeyType::number(0, 1 << 24)] = 1_024 => 1_024;
        /// Access log, a line of JSON per request: "off", "stdout", or the path of a file.
        access_log: AccessLog = "off" => "stdout";
        /// Log one in this many requests. Denied and failed requests are always logged.
        access_log_every: u64 [KeyType::number(1, 1 << 32)] = 1 => 100;
        /// How long /readyz responds 503 after SIGTERM before the listeners close.
        drain_delay: Duration [WAIT] = "1s" => "5s";
        /// Shutdown grace: how long requests may continue after the listeners have closed.
        drain_timeout: Duration [WAIT] = "30s" => "30s";
    }
}

section! {
    /// `[[gateway.route]]`: the upstreams of some hosts and paths.
    pub(crate) struct Route, check = check_route {
        /// Hosts of the route. If empty, all.
        hosts: Vec<HostPattern> = [] => ["api.example.com", "*.example.org"];
        /// Path of the route, written as in `match` of a policy. If not set, all.
        path: Option<PathPattern> => "/api/**";
        /// Services that its requests are forwarded to.
        upstreams: Vec<Upstream> => ["http://127.0.0.1:3001"];
    }
}

impl ArrayItem for Route {
    fn title(key: &str, number: usize, _: Option<&Value>) -> String {
        format!("[[{key}]] number {number}")
    }

    fn placeholder(_: Option<&Value>) -> Self {
        Self {
            hosts: Vec::new(),
            path: None,
            upstreams: Vec::new(),
        }
    }
}

impl GatewayConfig {
    /// The upstreams of all routes, and those of the rest.
    pub(crate) fn all_upstreams(&self) -> impl Iterator<Item = &Upstream> {
        let routes = self.route.iter().flat_map(|route| &route.upstreams);
        self.upstreams.iter().chain(routes)
    }

    /// Whether only upstreams and routes differ.
    pub(crate) fn same_except_routes(&self, other: &Self) -> bool {
        let without = |gateway: &Self| Self {
            upstreams: Vec::new(),
            route: Vec::new(),
            ..gateway.clone()
        };
        without(self) == without(other)
    }
}

/// Load balancing: which upstream gets a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Balance {
    /// `least`: the one with the fewest requests in flight.
    #[default]
    Least,
    /// `round_robin`: one after the other.
    RoundRobin,
    /// `by_key`: the same one for the same key, while it is healthy.
    ByKey,
}

words! {
    Balance {
        "least" => Balance::Least,
        "round_robin" => Balance::RoundRobin,
        "by_key" => Balance::ByKey,
    }
}

/// Where requests are logged: the access log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum AccessLog {
    /// `off`: nowhere.
    #[default]
    Off,
    /// `stdout`: on standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

text_kind!(
    AccessLog as Self,
    "a string that is not empty",
    "",
    |text| Ok(match text {
        "off" => Self::Off,
        "stdout" => Self::Stdout,
        path => Self::File(path.into()),
    })
);

/// The attribute of `balance_by`: one that the gateway knows for every request.
struct BalanceBy;

key_kind!(
    BalanceBy as Attribute,
    Attribute::TYPE,
    |_: &_, value: &_| match attribute(value)? {
        known @ (Attribute::Ip | Attribute::Path | Attribute::Header(_)) => Ok(known),
        other => Err(ReadError::message(format!(
            "`balance_by` in [gateway] must be \"ip\", \"path\" or a header such as \
             \"header:x-tenant\", not \"{other}\""
        ))),
    },
    |attribute: &Attribute, _| Some(text(attribute))
);

/// The path of a health check, which is not a pattern.
struct HealthPath;

text_kind!(
    HealthPath as String,
    "a path, such as \"/api/**\"",
    "^/[^?#]*$",
    |path: &str| {
        let is_allowed = |c: char| c.is_ascii_graphic() && !"#\"<>\\^`{|}".contains(c);
        let is_path = path.starts_with('/') && path.chars().all(is_allowed);
        is_path.then(|| path.to_owned()).ok_or(ReadError::WrongType)
    }
);

fn check_gateway(section: &Section<'_>, gateway: Option<&GatewayConfig>) {
    let Some(gateway) = gateway else { return };
    if gateway.balance != Balance::ByKey && section.has("balance_by") {
        let message =
            "{key} {in} has no effect unless `balance = \"by_key\"`; set that, or remove {key}";
        section.warn("balance_by", message);
    }
    check_order(section, &gateway.route);
    let has_none = gateway.all_upstreams().next().is_none();
    let has_https = has_none || gateway.all_upstreams().any(Upstream::is_tls);
    if gateway.ca_file.is_some() && !has_https {
        let message = "{key} {in} has no effect, because no upstream is https://; remove it";
        section.warn("ca_file", message);
    }
}

fn check_route(section: &Section<'_>, route: Option<&Route>) {
    let Some(route) = route else { return };
    if route.upstreams.is_empty() {
        let message = "{key} {in} must name a service, such as [\"http://127.0.0.1:3001\"]";
        section.error("upstreams", message);
    }
}

/// Warns about routes that no request reaches, because one before them takes every request.
fn check_order(section: &Section<'_>, routes: &[Route]) {
    let takes_all = |route: &Route| route.hosts.is_empty() && route.path.is_none();
    if let Some(number) = routes.iter().position(takes_all) {
        let after = routes.len() - number - 1;
        if after > 0 {
            section.warn(
                "route",
                &format!(
                    "[[gateway.route]] number {} has neither hosts nor a path, so the {after} after \
                     it get no requests; move it to the end",
                    number + 1
                ),
            );
        }
    }
}
