//! Attributes of a request that policies can match on or count by.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// An attribute: `ip`, `user`, `header:x-tenant`, or a custom name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Attribute {
    /// `ip`: the client's address.
    Ip,
    /// `user`: the authenticated user.
    User,
    /// `api_key`: the API key of the client.
    ApiKey,
    /// `plan`: the plan of the client.
    Plan,
    /// `tenant`: the tenant of the client.
    Tenant,
    /// `method`: GET, POST and so on.
    Method,
    /// `path`: the path as sent.
    Path,
    /// `host`: the host of the request.
    Host,
    /// `endpoint`: the route of the framework where it names one, else method and path.
    Endpoint,
    /// `header:NAME`: a header of the request.
    Header(Box<str>),
    /// A custom attribute.
    Custom(Box<str>),
}

/// The built-in attributes.
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

/// Custom attributes that control how a request is handled.
pub(crate) static HANDLING: [&str; 3] = ["class", "start", "deadline"];

const HEADER: &str = "header:";

/// Parts of names that mark an attribute as secret.
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
    /// The attribute with this name. Every name is valid; header names are case-insensitive.
    pub fn named(name: &str) -> Self {
        if let Some(known) = KNOWN.iter().find(|known| known.name() == name) {
            return known.clone();
        }
        match name.strip_prefix(HEADER) {
            Some(header) => Self::header(header),
            None => Self::Custom(name.into()),
        }
    }

    /// A header attribute.
    pub fn header(name: &str) -> Self {
        Self::Header(name.to_ascii_lowercase().into())
    }

    /// The name; for a header without the prefix `header:`.
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

    /// Whether the name has a built-in meaning.
    pub fn is_built_in(&self) -> bool {
        match self {
            Self::Custom(name) => HANDLING.contains(&&**name),
            _ => true,
        }
    }

    /// Whether it is a header whose value starts with a scheme, which is not part of a key.
    pub fn has_scheme(&self) -> bool {
        matches!(self, Self::Header(name) if matches!(&**name, "authorization" | "proxy-authorization"))
    }

    /// Whether its value is a secret, and so is only shown as a fingerprint.
    pub fn is_secret(&self) -> bool {
        match self {
            Self::ApiKey => true,
            // A custom name may hold anything: `access_token` is as secret as `x-access-token`.
            Self::Header(name) | Self::Custom(name) => {
                let name = name.to_ascii_lowercase().replace('_', "-");
                SECRET_NAMES.iter().any(|part| name.contains(part))
            }
            _ => false,
        }
    }
}

/// The credentials in an `Authorization` header, without the scheme. Case of the scheme and spaces
/// after it make no difference: `bearer  x` is the same key as `Bearer x`, and does not get a limit
/// of its own.
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
