//! What `ratekeeper proxy` stands in front of, and how.

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

/// What the gateway stands in front of, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Gateway {
    /// The services behind it.
    pub upstreams: Vec<Upstream>,
    /// Which of them gets a request.
    pub balance: Balance,
    /// The key of [`Balance::ByKey`]: an address, a path or a header.
    pub balance_by: Attribute,
    /// Whether the upstreams are spoken to in HTTP/2.
    pub http2: bool,
    /// Who signs for `https://` upstreams, in PEM form; if nothing is said, whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// How often a request that was not sent is tried again.
    pub retries: u32,
    /// Whether an upstream that keeps failing is left alone for a while.
    pub breaker: bool,
    /// What is asked of each upstream to see if it is well.
    pub health_path: Option<String>,
    /// How often.
    pub health_interval: Duration,
    /// The certificate to listen with.
    pub tls: Option<Certificate>,
    /// The hosts that are served; all if there are none.
    pub hosts: Vec<HostPattern>,
    /// How CORS preflight requests are counted.
    pub preflight: Preflight,
    /// Whether connections of trusted proxies begin with the PROXY protocol.
    pub proxy_protocol: bool,
    /// How long a client may take to send a head.
    pub header_timeout: Duration,
    /// How long a connection is kept without a request.
    pub keep_alive: Duration,
    /// How long a connection to an upstream may take.
    pub connect_timeout: Duration,
    /// How long nothing may come from either side while a request is under way.
    pub idle_timeout: Duration,
    /// How long a request may take altogether.
    pub total_timeout: Option<Duration>,
    /// How long a request that holds a permit of a concurrency limit is kept after its client has
    /// left; zero is not at all.
    pub abandoned_timeout: Duration,
    /// How long an upgraded connection may be silent.
    pub upgrade_timeout: Duration,
    /// The largest head of a request, in bytes.
    pub max_head: usize,
    /// The most headers of a request.
    pub max_headers: usize,
    /// The largest body of a request, in bytes.
    pub max_body: Option<u64>,
    /// How long a request's body may keep the gateway waiting altogether, beyond
    /// [`min_body_rate`](Self::min_body_rate).
    pub body_timeout: Duration,
    /// The bytes of a request's body that are worth a second of waiting; without it bodies may come
    /// as slowly as [`idle_timeout`](Self::idle_timeout) allows.
    pub min_body_rate: Option<NonZero<u64>>,
    /// The most connections of clients.
    pub max_connections: usize,
    /// The most connections of one address, if there is such a bound.
    pub max_connections_per_address: Option<NonZero<usize>>,
    /// Where requests are logged.
    pub access_log: AccessLog,
    /// One of so many is logged.
    pub access_log_every: u64,
    /// How long the service says that it is not ready before it stops to listen.
    pub drain_delay: Duration,
    /// How long requests may go on after that.
    pub drain_timeout: Duration,
}

impl Default for Gateway {
    fn default() -> Self {
        Config::default().gateway
    }
}

/// A certificate and its key, in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Certificate {
    /// The file of the certificate and those it is signed by.
    pub cert: PathBuf,
    /// The file of the private key.
    pub key: PathBuf,
    /// The file of who signs for clients; without one anybody is served.
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

/// Which of several upstreams gets a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Balance {
    /// `least`: the one with the fewest requests under way.
    #[default]
    Least,
    /// `round_robin`: each in turn.
    RoundRobin,
    /// `by_key`: for the same key the same one, as long as it is well.
    ByKey,
}

impl Balance {
    /// The name users type.
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

/// Where requests are logged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AccessLog {
    /// `off`: nowhere.
    #[default]
    Off,
    /// `stdout`: on standard output.
    Stdout,
    /// At the end of a file.
    File(PathBuf),
}

impl AccessLog {
    pub(crate) fn named(text: &str) -> Self {
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

/// A service to stand in front of: `http://host:port/path` or `https://…`.
///
/// ```
/// use ratekeeper_policy::config::Upstream;
///
/// let upstream: Upstream = "https://app.internal/v2/".parse()?;
/// assert!(upstream.is_tls());
/// assert_eq!((upstream.host(), upstream.port(), upstream.prefix()), ("app.internal", 443, "/v2"));
/// # Ok::<_, ratekeeper_policy::config::UpstreamError>(())
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

    /// Its name or address; of IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port; 80 or 443 if nothing is said.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What stands before every path, without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// A text is no [`Upstream`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpstreamError;

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not where a service can be; write it as in http://127.0.0.1:3000 or https://app.internal")
    }
}

impl std::error::Error for UpstreamError {}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(UpstreamError),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // A name and a password would go nowhere but into the log, and a query belongs to a
        // request.
        let is_path = |c: char| c.is_ascii_graphic() && !"?#\"<>\\^`{|}".contains(c);
        if !path.chars().all(is_path) {
            return Err(UpstreamError);
        }
        let usual = if tls { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or(UpstreamError)?;
                address.parse::<Ipv6Addr>().map_err(|_| UpstreamError)?;
                (
                    address,
                    (!port.is_empty())
                        .then(|| port.strip_prefix(':').ok_or(UpstreamError))
                        .transpose()?,
                )
            }
            None => authority
                .split_once(':')
                .map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(UpstreamError);
        }
        let is_port = |port: &&str| port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            None => usual,
            Some(port) => Some(port)
                .filter(is_port)
                .and_then(|port| port.parse().ok())
                .filter(|port| *port > 0)
                .ok_or(UpstreamError)?,
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
