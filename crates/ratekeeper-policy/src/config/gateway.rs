//! Configuration of the gateway, `ratekeeper proxy`.

use super::Config;
use crate::attribute::Attribute;
use crate::pattern::HostPattern;
use crate::preflight::Preflight;
use std::fmt;
use std::net::Ipv6Addr;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// `[gateway]`: the upstreams and settings of `ratekeeper proxy`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// The services that requests are forwarded to.
    pub upstreams: Vec<Upstream>,
    /// How an upstream is chosen.
    pub balance: Balance,
    /// The key of [`Balance::ByKey`]: an address, a path or a header.
    pub balance_by: Attribute,
    /// Whether HTTP/2 is used to the upstreams.
    pub http2: bool,
    /// The file with the CA certificates (PEM) for `https://` upstreams; by default those of the
    /// system.
    pub ca_file: Option<PathBuf>,
    /// The number of retries of a request that could not be sent.
    pub retries: u32,
    /// Circuit breaker: whether an upstream that keeps failing gets no requests for a while.
    pub breaker: bool,
    /// The path of health checks on each upstream.
    pub health_path: Option<String>,
    /// The interval of health checks.
    pub health_interval: Duration,
    /// The certificate; with one, the gateway listens for HTTPS.
    pub tls: Option<Certificate>,
    /// The hosts that are served; all if empty.
    pub hosts: Vec<HostPattern>,
    /// How CORS preflight requests are counted.
    pub preflight: Preflight,
    /// Whether connections from trusted proxies begin with the PROXY protocol.
    pub proxy_protocol: bool,
    /// The timeout for a client to send the head of a request.
    pub header_timeout: Duration,
    /// How long a client connection without a request is kept open.
    pub keep_alive: Duration,
    /// The timeout for connecting to an upstream.
    pub connect_timeout: Duration,
    /// The timeout of a request during which neither side sends anything.
    pub idle_timeout: Duration,
    /// The timeout of a whole request.
    pub total_timeout: Option<Duration>,
    /// How long a request with a permit of a concurrency limit continues after its client has left;
    /// zero ends it at once.
    pub abandoned_timeout: Duration,
    /// The idle timeout of an upgraded connection, such as a WebSocket.
    pub upgrade_timeout: Duration,
    /// The maximum size of the head of a request, in bytes.
    pub max_head: usize,
    /// The maximum number of headers of a request.
    pub max_headers: usize,
    /// The maximum size of the body of a request, in bytes.
    pub max_body: Option<u64>,
    /// The total time that the gateway waits for the body of a request, beyond
    /// [`min_body_rate`](Self::min_body_rate).
    pub body_timeout: Duration,
    /// The minimum rate of request bodies, in bytes per second: this many bytes give back a second
    /// of [`body_timeout`](Self::body_timeout). Without it, bodies may arrive as slowly as
    /// [`idle_timeout`](Self::idle_timeout) allows.
    pub min_body_rate: Option<NonZero<u64>>,
    /// The maximum number of client connections.
    pub max_connections: usize,
    /// The maximum number of connections from one address, if limited.
    pub max_connections_per_address: Option<NonZero<usize>>,
    /// Where requests are logged.
    pub access_log: AccessLog,
    /// One in this many requests is logged.
    pub access_log_every: u64,
    /// How long the service reports that it is not ready before the listeners close.
    pub drain_delay: Duration,
    /// Shutdown grace: how long requests may continue after that.
    pub drain_timeout: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Config::default().gateway
    }
}

/// A certificate and its key, in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Certificate {
    /// The file with the certificate and its chain.
    pub cert: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
    /// The file with the CA certificates for clients; without one, no client certificate is
    /// required.
    pub client_ca: Option<PathBuf>,
}

impl Certificate {
    /// The certificate in these files.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            cert: cert.into(),
            key: key.into(),
            client_ca: None,
        }
    }
}

/// Load balancing: which upstream gets a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Balance {
    /// `least`: the one with the fewest requests in flight.
    #[default]
    Least,
    /// `round_robin`: one after the other.
    RoundRobin,
    /// `by_key`: the same one for the same key, while it is healthy.
    ByKey,
}

impl Balance {
    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Least => "least",
            Self::RoundRobin => "round_robin",
            Self::ByKey => "by_key",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Least, Self::RoundRobin, Self::ByKey]
            .into_iter()
            .find(|balance| balance.name() == name)
    }
}

/// Where requests are logged: the access log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AccessLog {
    /// `off`: nowhere.
    #[default]
    Off,
    /// `stdout`: on standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

impl AccessLog {
    /// `off`, `stdout`, or the path of a file.
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "off" => Self::Off,
            "stdout" => Self::Stdout,
            path => Self::File(path.into()),
        }
    }
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

/// The URL of an upstream: `http://host:port/path` or `https://…`.
///
/// ```
/// use ratekeeper_policy::config::Upstream;
///
/// let upstream: Upstream = "https://app.internal/v2/".parse()?;
/// assert!(upstream.is_tls());
/// assert_eq!((upstream.host(), upstream.port(), upstream.prefix()), ("app.internal", 443, "/v2"));
/// # Ok::<_, ratekeeper_policy::config::UpstreamUrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Upstream {
    text: String,
    tls: bool,
    host: String,
    port: u16,
    prefix: String,
}

impl Upstream {
    /// Whether it is `https://`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host name or address; an IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; by default 80 or 443.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path that is prepended to the path of requests, without a trailing slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The error for text that is not an [`Upstream`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpstreamUrlError;

impl fmt::Display for UpstreamUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "must be the URL of a service, such as http://127.0.0.1:3000 or https://app.internal",
        )
    }
}

impl std::error::Error for UpstreamUrlError {}

impl FromStr for Upstream {
    type Err = UpstreamUrlError;

    fn from_str(text: &str) -> Result<Self, UpstreamUrlError> {
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(UpstreamUrlError),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // User and password would only end up in the log, and a query belongs to a request.
        let is_path = |c: char| c.is_ascii_graphic() && !"?#\"<>\\^`{|}".contains(c);
        if !path.chars().all(is_path) {
            return Err(UpstreamUrlError);
        }
        let default_port = if tls { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(UpstreamUrlError)?;
                address.parse::<Ipv6Addr>().map_err(|_| UpstreamUrlError)?;
                (
                    address,
                    (!port.is_empty())
                        .then(|| port.strip_prefix(':').ok_or(UpstreamUrlError))
                        .transpose()?,
                )
            }
            None => authority
                .split_once(':')
                .map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(UpstreamUrlError);
        }
        let is_port = |port: &&str| port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            None => default_port,
            Some(port) => Some(port)
                .filter(is_port)
                .and_then(|port| port.parse().ok())
                .filter(|port| *port > 0)
                .ok_or(UpstreamUrlError)?,
        };
        let prefix = path.trim_end_matches('/').to_owned();
        Ok(Self {
            text: text.to_owned(),
            tls,
            host: host.to_owned(),
            port,
            prefix,
        })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
