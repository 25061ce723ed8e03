//! What a request has that a policy can ask about: its name, and what it is in a subject.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The name of something a request has: `ip`, `user`, `header:x-tenant`, or a name of your own.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Attribute {
    /// `ip`: the client's address.
    Ip,
    /// `user`: who is signed in.
    User,
    /// `api_key`: the key the client showed.
    ApiKey,
    /// `plan`: what the client pays for.
    Plan,
    /// `tenant`: whose customer the client is.
    Tenant,
    /// `method`: GET, POST and so on.
    Method,
    /// `path`: as the client wrote it.
    Path,
    /// `host`: the host the client asked for.
    Host,
    /// `endpoint`: the route of the framework where it names one, else method and path.
    Endpoint,
    /// `header:NAME`: a header of the request.
    Header(Box<str>),
    /// Any other name.
    Custom(Box<str>),
}

/// Those with a name of their own.
pub(crate) const KNOWN: [Attribute; 9] = [
    Attribute::Ip,
    Attribute::User,
    Attribute::ApiKey,
    Attribute::Plan,
    Attribute::Tenant,
    Attribute::Method,
    Attribute::Path,
    Attribute::Host,
    Attribute::Endpoint,
];

const HEADER: &str = "header:";

impl Attribute {
    /// The attribute of that name. Any name is one; header names are compared without regard to case.
    pub fn named(name: &str) -> Self {
        if let Some(known) = KNOWN.into_iter().find(|known| known.name() == name) {
            return known;
        }
        match name.strip_prefix(HEADER) {
            Some(header) => Self::header(header),
            None => Self::Custom(name.into()),
        }
    }

    /// A header of the request.
    pub fn header(name: &str) -> Self {
        Self::Header(name.to_ascii_lowercase().into())
    }

    /// Its name, for a header without what stands before it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Ip => "ip",
            Self::User => "user",
            Self::ApiKey => "api_key",
            Self::Plan => "plan",
            Self::Tenant => "tenant",
            Self::Method => "method",
            Self::Path => "path",
            Self::Host => "host",
            Self::Endpoint => "endpoint",
            Self::Header(name) | Self::Custom(name) => name,
        }
    }

    /// Whether its value opens doors, and so is never shown.
    pub(crate) fn is_secret(&self) -> bool {
        match self {
            Self::ApiKey => true,
            Self::Header(name) => {
                let name = &**name;
                matches!(name, "authorization" | "proxy-authorization" | "cookie")
                    || ["token", "secret", "api-key", "apikey"].iter().any(|part| name.contains(part))
            }
            _ => false,
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self, Self::Header(_)) {
            f.write_str(HEADER)?;
        }
        f.write_str(self.name())
    }
}

impl FromStr for Attribute {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(Self::named(name))
    }
}

impl From<&str> for Attribute {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}
