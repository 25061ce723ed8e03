//! Addresses of the listeners.

use ratekeeper_policy::config::section::{KeyType, ReadError, str_of, text};
use ratekeeper_policy::key_kind;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The prefix of a Unix socket.
const UNIX_PREFIX: &str = "unix:";

/// The longest path of a Unix socket, in bytes, by the limits of operating systems.
const MAX_SOCKET_PATH: usize = 107;

/// The address of a listener: a TCP address or a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Listen {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only clients on this machine can connect: loopback or a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// The TCP address, if it is one.
    pub(crate) fn tcp(&self) -> Option<SocketAddr> {
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
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let Some(path) = text.strip_prefix(UNIX_PREFIX) else {
            return text.parse().map(Self::Tcp).map_err(|_| ListenError);
        };
        let is_good = path.starts_with('/')
            && !path.ends_with('/')
            && path.len() <= MAX_SOCKET_PATH
            && !path.chars().any(char::is_control);
        if is_good {
            Ok(Self::Unix(path.into()))
        } else {
            Err(ListenError)
        }
    }
}

/// The error for text that is neither an address and a port nor a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListenError;

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "must be an address and a port such as 127.0.0.1:8080, or a Unix socket such as \
             unix:/run/ratekeeper/http.sock with a path of at most {MAX_SOCKET_PATH} bytes"
        )
    }
}

impl std::error::Error for ListenError {}

/// A listener, which may be off.
pub(crate) struct Listener;

key_kind!(
    Listener as Option<Listen>,
    KeyType::text(
        "an address and a port such as \"127.0.0.1:8080\", a Unix socket such as \
                   \"unix:/run/ratekeeper/http.sock\", or \"off\"",
        "^(off|.+:[0-9]{1,5}|unix:/.+)$"
    ),
    |_: &_, value: &_| match str_of(value)? {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| ReadError::WrongType),
    },
    |listen: &Option<Listen>, _| Some(listen.as_ref().map_or(text("off"), text))
);
