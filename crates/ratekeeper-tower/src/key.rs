//! The key that a single limit counts requests by: address, header, cookie or a function.

use crate::head::Head;
use http::HeaderName;
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The key that requests are counted by.
///
/// A request without that header, cookie or extension is counted by its address, so that leaving it
/// out does not bypass the limit.
#[derive(Clone)]
pub struct Key(KeySource);

#[derive(Clone)]
enum KeySource {
    Ip,
    Header(HeaderName),
    Cookie(Arc<str>),
    Function(Arc<KeyFn>),
    All,
}

type KeyFn = dyn Fn(&Head<'_>, &mut KeyWriter) -> bool + Send + Sync;

/// Collects the parts of a key in a function passed to [`Key::function`].
pub struct KeyWriter(Bytes);

/// Keys up to this length need no allocation.
const INLINE_BYTES: usize = 64;

pub(crate) type Bytes = SmallVec<[u8; INLINE_BYTES]>;

impl KeyWriter {
    fn begin(&mut self) -> &mut Self {
        self.0.push(TAG_OTHER);
        self
    }

    /// Adds a part. Parts are length-prefixed: `a` and `bc` differ from `ab` and `c`.
    pub fn part(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }
}

impl Key {
    /// The client's address; an IPv6 address by its first 56 bits.
    pub fn ip() -> Self {
        Self(KeySource::Ip)
    }

    /// A header, such as an API key. Its value is hashed with a secret and not stored. Requests
    /// without it, or with an empty one, are counted by their address.
    pub fn header(name: HeaderName) -> Self {
        Self(KeySource::Header(name))
    }

    /// A cookie. A request with two different values of it is rejected with 400, because a service
    /// may use either. Values that differ only in quotes around them or in percent-encoding are one
    /// key, because many services treat them as equal.
    pub fn cookie(name: &str) -> Self {
        Self(KeySource::Cookie(name.into()))
    }

    /// A value from a request extension that an earlier layer inserted: a user, a tenant.
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

    /// A function that writes the key. It returns false if the request has no key.
    pub fn function(
        key: impl Fn(&Head<'_>, &mut KeyWriter) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(KeySource::Function(Arc::new(key)))
    }

    /// One bucket for all requests.
    pub fn all() -> Self {
        Self(KeySource::All)
    }

    pub(crate) fn is_ip(&self) -> bool {
        matches!(self.0, KeySource::Ip)
    }

    /// The header, if the key is one. Not for `Cookie`, whose values are one list.
    pub(crate) fn header_name(&self) -> Option<&HeaderName> {
        match &self.0 {
            KeySource::Header(name) if *name != http::header::COOKIE => Some(name),
            _ => None,
        }
    }

    /// The name of the cookie, if the key is a cookie.
    pub(crate) fn cookie_name(&self) -> Option<&str> {
        match &self.0 {
            KeySource::Cookie(name) => Some(name),
            _ => None,
        }
    }

    /// Calls `then` with the key of a request as bytes. The first byte is a tag, so that an address
    /// never equals a header with the same text.
    // Passed to a closure, not returned: it is slow to move.
    pub(crate) fn with_bytes<T>(
        &self,
        head: &Head<'_>,
        ipv6_prefix: u8,
        mut then: impl FnMut(&[u8]) -> T,
    ) -> T {
        let other = match &self.0 {
            KeySource::Ip => None,
            source => source.key_bytes(*head),
        };
        let (address, length);
        then(match &other {
            Some(key) => key,
            None => {
                (address, length) = address_key(head.ip(), ipv6_prefix);
                &address[..length]
            }
        })
    }
}

impl KeySource {
    /// The key of this source; `None` if the request lacks it.
    // Takes a copy of the head: one without references to it need not be in memory.
    fn key_bytes(&self, head: Head<'_>) -> Option<Bytes> {
        let mut writer = KeyWriter(Bytes::new());
        let found = match self {
            KeySource::Ip => false,
            KeySource::All => {
                writer.begin();
                true
            }
            KeySource::Header(name) => head
                .headers
                .get(name)
                .filter(|value| !value.is_empty())
                .map(|value| writer.begin().part(value))
                .is_some(),
            KeySource::Cookie(name) => head
                .cookie(name)
                .map(plain_cookie)
                .filter(|value| !value.is_empty())
                .map(|value| writer.begin().part(value))
                .is_some(),
            KeySource::Function(key) => key(&head, writer.begin()),
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

/// The first byte of a key: its kind.
const TAG_ADDRESS: u8 = 0;
const TAG_OTHER: u8 = 1;

/// The key of an address. All requests without an address share one key.
fn address_key(ip: Option<IpAddr>, ipv6_prefix: u8) -> ([u8; 17], usize) {
    let mut key = [TAG_ADDRESS; 17];
    let length = match ip {
        Some(IpAddr::V4(ip)) => {
            key[..5].copy_from_slice(&ipv4_key(ip));
            5
        }
        Some(IpAddr::V6(ip)) => {
            key = ipv6_key(ip, ipv6_prefix);
            17
        }
        None => 1,
    };
    (key, length)
}

/// The key of an IPv4 address, the same as [`address_key`] makes.
pub(crate) fn ipv4_key(ip: Ipv4Addr) -> [u8; 5] {
    let [a, b, c, d] = ip.octets();
    [TAG_ADDRESS, a, b, c, d]
}

pub(crate) fn ipv6_key(ip: Ipv6Addr, prefix: u8) -> [u8; 17] {
    let mut key = [TAG_ADDRESS; 17];
    if let IpAddr::V6(client) = ratekeeper_policy::address::client(ip.into(), prefix) {
        key[1..].copy_from_slice(&client.octets());
    }
    key
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeySource::Ip => f.write_str("Key(ip)"),
            KeySource::Header(name) => write!(f, "Key(header {name})"),
            KeySource::Cookie(name) => write!(f, "Key(cookie {name})"),
            KeySource::Function(_) => f.write_str("Key(function)"),
            KeySource::All => f.write_str("Key(all)"),
        }
    }
}
