//! KeySource what requests are counted, for a layer of one limit.

use crate::head::Head;
use http::HeaderName;
use smallvec::SmallVec;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// KeySource what requests are counted.
///
/// A request that has no such thing is counted by its address: leaving a header out must not be a
/// way round a limit.
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

/// Where a function of your own writes a key.
pub struct KeyWriter(Bytes);

/// So many bytes need no memory of their own.
const INLINE_BYTES: usize = 64;

pub(crate) type Bytes = SmallVec<[u8; INLINE_BYTES]>;

impl KeyWriter {
    fn begin(&mut self) -> &mut Self {
        self.0.push(TAG_OTHER);
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
        Self(KeySource::Ip)
    }

    /// A header, such as an API key. Its value is hashed with a secret, and kept nowhere.
    pub fn header(name: HeaderName) -> Self {
        Self(KeySource::Header(name))
    }

    /// A cookie.
    pub fn cookie(name: &str) -> Self {
        Self(KeySource::Cookie(name.into()))
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
        Self(KeySource::Function(Arc::new(key)))
    }

    /// One bucket for all.
    pub fn all() -> Self {
        Self(KeySource::All)
    }

    #[inline]
    pub(crate) fn is_ip(&self) -> bool {
        matches!(self.0, KeySource::Ip)
    }

    /// The header that it is, if it is one. Cookie is none: its values are one list.
    pub(crate) fn header_name(&self) -> Option<&HeaderName> {
        match &self.0 {
            KeySource::Header(name) if *name != http::header::COOKIE => Some(name),
            _ => None,
        }
    }

    /// What `then` says of the key of a request as bytes. What it is of comes first: an address is
    /// not a header that says the same.
    // Handed on, not returned: it is slow to move.
    #[inline]
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
    /// None if the request has no such thing.
    // A copy of the head: one that nobody points at need not be in memory.
    #[inline(never)]
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
                .map(|value| writer.begin().part(value))
                .is_some(),
            KeySource::Cookie(name) => head
                .cookie(name)
                .map(|value| writer.begin().part(value))
                .is_some(),
            KeySource::Function(key) => key(&head, writer.begin()),
        };
        found.then_some(writer.0)
    }
}

/// What a key is of.
const TAG_ADDRESS: u8 = 0;
const TAG_OTHER: u8 = 1;

/// One bucket for all whose address nobody knows.
#[inline]
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

/// The key of an address; both are also what [`address_key`] makes of it.
#[inline]
pub(crate) fn ipv4_key(ip: Ipv4Addr) -> [u8; 5] {
    let [a, b, c, d] = ip.octets();
    [TAG_ADDRESS, a, b, c, d]
}

#[inline]
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
