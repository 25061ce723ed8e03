//! The header by which proxies tell who called them.

use http::header::{FORWARDED, HeaderName, InvalidHeaderName};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Those that are known to say who called a proxy.
pub(super) static KNOWN: [HeaderName; 4] = [
    HeaderName::from_static("x-forwarded-for"),
    FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cf-connecting-ip"),
];

/// The header by which proxies tell who called them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forwarding {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, to which every proxy appends.
    #[default]
    XForwardedFor,
    /// `Forwarded: for="[2001:db8::7]:4711";proto=https, for=10.0.0.2`, as of RFC 7239.
    Forwarded,
    /// Any other, such as `X-Real-IP` or `CF-Connecting-IP`: an address, or a list that is read like `X-Forwarded-For`.
    Header(HeaderName),
}

impl Forwarding {
    /// The header of this name, in any case.
    ///
    /// ```
    /// use tollgate_tower::Forwarding;
    ///
    /// assert_eq!(Forwarding::named("X-Forwarded-For")?, Forwarding::XForwardedFor);
    /// assert_eq!(Forwarding::named("X-Real-IP")?.name(), "x-real-ip");
    /// assert!(Forwarding::named("no header").is_err());
    /// # Ok::<_, http::header::InvalidHeaderName>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If no header can have that name.
    pub fn named(name: &str) -> Result<Self, InvalidHeaderName> {
        Ok(Self::Header(HeaderName::from_bytes(name.as_bytes())?).normal())
    }

    /// The header's name, in lower case.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Header(name) => name,
        }
    }

    /// The same header, as the variant it has of its own: `Forwarded` is never read as a list of plain addresses.
    pub(super) fn normal(self) -> Self {
        match self {
            Self::Header(name) if name == FORWARDED => Self::Forwarded,
            Self::Header(name) if name == X_FORWARDED_FOR => Self::XForwardedFor,
            other => other,
        }
    }
}
