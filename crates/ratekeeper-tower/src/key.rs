//! By what requests are counted, for a layer of one limit.

use crate::head::Head;
use http::HeaderName;
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// By what requests are counted.
///
/// A request that has no such thing is counted by its address: leaving a header out must not be a
/// way round a limit.
#[derive(Clone)]
pub struct Key(By);

#[derive(Clone)]
enum By {
    Ip,
    Header(HeaderName),
    Cookie(Arc<str>),
    Function(Arc<Function>),
    All,
}

type Function = dyn Fn(&Head<'_>, &mut KeyWriter) -> bool + Send + Sync;

/// Where a function of your own writes a key.
pub struct KeyWriter(Bytes);

/// So many bytes need no memory of their own.
const ROOM: usize = 64;

pub(crate) type Bytes = SmallVec<[u8; ROOM]>;

impl KeyWriter {
    fn begin(&mut self) -> &mut Self {
        self.0.push(OTHER);
        self
    }

    /// Adds a part. Parts do not run together: `a` and `bc` are not `ab` and `c`.
    pub fn part(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }
}

impl Key {
    /// The client's address, an IPv6 one by its first 56 bits.
    pub fn ip() -> Self {
        Self(By::Ip)
    }

    /// A header, such as an API key. Its value is hashed with a secret, and kept nowhere. Requests
    /// without it, or with an empty one, are counted by their address.
    pub fn header(name: HeaderName) -> Self {
        Self(By::Header(name))
    }

    /// A cookie. Two different values of it are refused with the status 400: a service may take
    /// either. Values that differ in quotes around them or in percent-encoding are one: many
    /// services take them for the same.
    pub fn cookie(name: &str) -> Self {
        Self(By::Cookie(name.into()))
    }

    /// What an extension says, that a layer before this one left: a user, a tenant.
    pub fn extension<T: Send + Sync + 'static, K: AsRef<[u8]>>(
        key: impl Fn(&T) -> K + Send + Sync + 'static,
    ) -> Self {
        Self::function(move |head, writer| {
            head.extensions
                .get::<T>()
                .map(|there| writer.part(key(there)))
                .is_some()
        })
    }

    /// Whatever you say; false if there is nothing to count by.
    pub fn function(
        key: impl Fn(&Head<'_>, &mut KeyWriter) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(By::Function(Arc::new(key)))
    }

    /// One bucket for all.
    pub fn all() -> Self {
        Self(By::All)
    }

    #[inline]
    pub(crate) fn is_ip(&self) -> bool {
        matches!(self.0, By::Ip)
    }

    /// The header that it is, if it is one. Cookie is none: its values are one list.
    pub(crate) fn header_name(&self) -> Option<&HeaderName> {
        match &self.0 {
            By::Header(name) if *name != http::header::COOKIE => Some(name),
            _ => None,
        }
    }

    /// The cookie that it is, if it is one.
    pub(crate) fn cookie_name(&self) -> Option<&str> {
        match &self.0 {
            By::Cookie(name) => Some(name),
            _ => None,
        }
    }

    /// What `then` says of the key of a request as bytes. What it is of comes first: an address is
    /// not a header that says the same.
    // Handed on, not returned: it is slow to move.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        head: &Head<'_>,
        ipv6_prefix: u8,
        mut then: impl FnMut(&[u8]) -> T,
    ) -> T {
        let other = match &self.0 {
            By::Ip => None,
            by => by.of(*head),
        };
        let (address, length);
        then(match &other {
            Some(key) => key,
            None => {
                (address, length) = of_address(head.ip(), ipv6_prefix);
                &address[..length]
            }
        })
    }
}

impl By {
    /// None if the request has no such thing.
    // A copy of the head: one that nobody points at need not be in memory.
    #[inline(never)]
    fn of(&self, head: Head<'_>) -> Option<Bytes> {
        let mut writer = KeyWriter(Bytes::new());
        let found = match self {
            By::Ip => false,
            By::All => {
                writer.begin();
                true
            }
            By::Header(name) => head
                .headers
                .get(name)
                .filter(|value| !value.is_empty())
                .map(|value| writer.begin().part(value))
                .is_some(),
            By::Cookie(name) => head
                .cookie(name)
                .map(plain_cookie)
                .filter(|value| !value.is_empty())
                .map(|value| writer.begin().part(value))
                .is_some(),
            By::Function(key) => key(&head, writer.begin()),
        };
        found.then_some(writer.0)
    }
}

/// The value of a cookie without quotes around it and percent-encoding.
fn plain_cookie(value: &[u8]) -> Bytes {
    let mut rest = match value {
        [b'"', inner @ .., b'"'] => inner,
        value => value,
    };
    let mut plain = Bytes::new();
    let digit = |byte: u8| Some(char::from(byte).to_digit(16)? as u8);
    while let [byte, after @ ..] = rest {
        rest = after;
        if let (b'%', [high, low, after @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            plain.push(high << 4 | low);
            rest = after;
        } else {
            plain.push(*byte);
        }
    }
    plain
}

/// What a key is of.
const ADDRESS: u8 = 0;
const OTHER: u8 = 1;

/// One bucket for all whose address nobody knows.
#[inline]
fn of_address(ip: Option<IpAddr>, ipv6_prefix: u8) -> ([u8; 17], usize) {
    let mut key = [ADDRESS; 17];
    let length = match ip {
        Some(IpAddr::V4(ip)) => {
            key[..5].copy_from_slice(&of_ipv4(ip));
            5
        }
        Some(IpAddr::V6(ip)) => {
            key = of_ipv6(ip, ipv6_prefix);
            17
        }
        None => 1,
    };
    (key, length)
}

/// The key of an address; both are also what [`of_address`] makes of it.
#[inline]
pub(crate) fn of_ipv4(ip: Ipv4Addr) -> [u8; 5] {
    let [a, b, c, d] = ip.octets();
    [ADDRESS, a, b, c, d]
}

#[inline]
pub(crate) fn of_ipv6(ip: Ipv6Addr, prefix: u8) -> [u8; 17] {
    let mut key = [ADDRESS; 17];
    if let IpAddr::V6(client) = ratekeeper_policy::address::client(ip.into(), prefix) {
        key[1..].copy_from_slice(&client.octets());
    }
    key
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            By::Ip => f.write_str("Key(ip)"),
            By::Header(name) => write!(f, "Key(header {name})"),
            By::Cookie(name) => write!(f, "Key(cookie {name})"),
            By::Function(_) => f.write_str("Key(function)"),
            By::All => f.write_str("Key(all)"),
        }
    }
}
