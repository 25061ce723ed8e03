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
pub(crate) static KNOWN: [Attribute; 9] = [
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

/// Those that say how a request is handled.
pub(crate) static HANDLING: [&str; 3] = ["class", "start", "deadline"];

const HEADER: &str = "header:";

/// What is in the name of something that opens doors.
const SECRET_NAMES: [&str; 10] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "credential",
    "session",
    "api-key",
    "apikey",
    "access-key",
];

impl Attribute {
    /// The attribute of that name. Any name is one; header names are compared without regard to
    /// case.
    pub fn named(name: &str) -> Self {
        if let Some(known) = KNOWN.iter().find(|known| known.name() == name) {
            return known.clone();
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

    /// Whether its name has a meaning of its own.
    pub fn is_built_in(&self) -> bool {
        match self {
            Self::Custom(name) => HANDLING.contains(&&**name),
            _ => true,
        }
    }

    /// Whether it is a header that has a scheme before what it says, which is no part of a key.
    pub fn has_scheme(&self) -> bool {
        matches!(self, Self::Header(name) if matches!(&**name, "authorization" | "proxy-authorization"))
    }

    /// Whether its value opens doors, and so is never shown but by a fingerprint.
    pub fn is_secret(&self) -> bool {
        match self {
            Self::ApiKey => true,
            // A name of your own may be anything: `access_token` is as telling as `x-access-token`.
            Self::Header(name) | Self::Custom(name) => {
                let name = name.to_ascii_lowercase().replace('_', "-");
                SECRET_NAMES.iter().any(|part| name.contains(part))
            }
            _ => false,
        }
    }
}

/// What `Authorization` says without its scheme, which is the same in any case, as are the spaces
/// after it: `bearer  x` is the key that `Bearer x` is, and has no limit of its own.
pub fn credentials(authorization: &[u8]) -> &[u8] {
    let value = authorization.trim_ascii();
    match value.iter().position(u8::is_ascii_whitespace) {
        Some(space) => value[space..].trim_ascii_start(),
        None => value,
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
