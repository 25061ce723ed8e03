//! Where a listener is, and in which certificate.

use super::gateway::Certificate;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// What a Unix socket begins with.
const UNIX: &str = "unix:";

/// The longest path of a Unix socket, in bytes: systems have no room for more.
const LONGEST_PATH: usize = 107;

/// Where a listener is.
///
/// ```
/// use ratekeeper_policy::config::Listen;
///
/// let socket: Listen = "unix:/run/ratekeeper/http.sock".parse()?;
/// assert_eq!(socket, Listen::Unix("/run/ratekeeper/http.sock".into()));
/// assert_eq!("127.0.0.1:8080".parse::<Listen>()?.to_string(), "127.0.0.1:8080");
/// assert!("unix:http.sock".parse::<Listen>().is_err());
/// # Ok::<_, ratekeeper_policy::config::ListenError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Listen {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket of this machine, by its path.
    Unix(PathBuf),
}

impl Listen {
    /// Whether whoever it serves is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// The address, if it has one.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let Some(path) = text.strip_prefix(UNIX) else {
            return text.parse().map(Self::Tcp).map_err(|_| ListenError);
        };
        let is_good = path.starts_with('/')
            && !path.ends_with('/')
            && path.len() <= LONGEST_PATH
            && !path.chars().any(char::is_control);
        if is_good {
            Ok(Self::Unix(path.into()))
        } else {
            Err(ListenError)
        }
    }
}

/// That is neither an address and a port nor a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListenError;

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "is neither an address and a port, as 127.0.0.1:8080, nor a Unix socket, as unix:/run/ratekeeper/http.sock with \
             a path of at most {LONGEST_PATH} bytes"
        )
    }
}

impl std::error::Error for ListenError {}

/// The certificate of each listener; none where it speaks without TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ListenerTls {
    /// HTTP.
    pub http: Option<Certificate>,
    /// gRPC.
    pub grpc: Option<Certificate>,
    /// RESP.
    pub resp: Option<Certificate>,
    /// Metrics and administration.
    pub admin: Option<Certificate>,
}
