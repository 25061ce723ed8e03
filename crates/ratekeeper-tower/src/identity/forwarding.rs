//! Forwarding headers: the header in which proxies write the address of their client.

use super::hops::Hops;
use super::node;
use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName};
use std::net::IpAddr;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The well-known forwarding headers.
pub(super) static KNOWN: [HeaderName; 4] = [
    HeaderName::from_static("x-forwarded-for"),
    FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cf-connecting-ip"),
];

/// The header in which proxies write the address of their client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forwarding {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, to which every proxy appends.
    #[default]
    XForwardedFor,
    /// `Forwarded: for="[2001:db8::7]:4711";proto=https, for=10.0.0.2`, by RFC 7239.
    Forwarded,
    /// Any other header, such as `X-Real-IP` or `CF-Connecting-IP`: an address, or a list that is
    /// read like `X-Forwarded-For`.
    Header(HeaderName),
}

impl Forwarding {
    /// The header with this name, in upper or lower case.
    ///
    /// ```
    /// use ratekeeper_tower::identity::Forwarding;
    ///
    /// assert_eq!(Forwarding::named("X-Forwarded-For")?, Forwarding::XForwardedFor);
    /// assert_eq!(Forwarding::named("X-Real-IP")?.name(), "x-real-ip");
    /// assert!(Forwarding::named("no header").is_err());
    /// # Ok::<_, http::header::InvalidHeaderName>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not a valid header name.
    pub fn named(name: &str) -> Result<Self, InvalidHeaderName> {
        Ok(Self::Header(HeaderName::from_bytes(name.as_bytes())?).canonical())
    }

    /// The header's name, in lower case.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Header(name) => name,
        }
    }

    /// The well-known forwarding headers, in lower case.
    pub fn known() -> &'static [HeaderName] {
        &KNOWN
    }

    /// Removes the last hop of this header and returns its address: what the nearest proxy wrote
    /// about its own peer.
    ///
    /// The other hops stay, byte for byte. Returns `None`, and leaves the headers unchanged, if
    /// there is no such header or its last hop is not an address.
    ///
    /// ```
    /// use http::{HeaderMap, HeaderValue};
    /// use ratekeeper_tower::identity::Forwarding;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", HeaderValue::from_static("1.1.1.1, 203.0.113.7"));
    /// assert_eq!(Forwarding::XForwardedFor.take_last(&mut headers), Some("203.0.113.7".parse()?));
    /// assert_eq!(headers["x-forwarded-for"], "1.1.1.1");
    /// # Ok::<_, std::net::AddrParseError>(())
    /// ```
    pub fn take_last(&self, headers: &mut HeaderMap) -> Option<IpAddr> {
        let hop = Hops::new(self, headers).next()?;
        let ip = node::address(self, hop)?;
        let in_hop = hop.len();
        let mut lines: Vec<HeaderValue> = headers.get_all(self.name()).iter().cloned().collect();
        headers.remove(self.name());
        let last = lines.pop()?;
        // The line without the last hop and the comma before it. A prefix of a header value is a
        // valid header value.
        let before = last
            .as_bytes()
            .len()
            .checked_sub(in_hop + 1)
            .map(|end| last.as_bytes()[..end].trim_ascii_end());
        lines.extend(before.and_then(|before| HeaderValue::from_bytes(before).ok()));
        for line in lines {
            headers.append(self.name().clone(), line);
        }
        Some(ip)
    }

    /// Replaces a [`Header`](Self::Header) by the variant for that name, so that `Forwarded` is
    /// never read as a list of plain addresses.
    pub(super) fn canonical(self) -> Self {
        match self {
            Self::Header(name) if name == FORWARDED => Self::Forwarded,
            Self::Header(name) if name == X_FORWARDED_FOR => Self::XForwardedFor,
            other => other,
        }
    }
}
