//! The URL of an upstream.

use super::address::{port, split_port};
use ratekeeper_policy::text_kind;
use std::fmt;
use std::str::FromStr;

/// The URL of an upstream: `http://host:port/path` or `https://…`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Upstream {
    text: String,
    tls: bool,
    host: String,
    port: u16,
    prefix: String,
}

impl Upstream {
    /// Whether it is `https://`.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host name or address; an IPv6 address has no brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port; by default 80 or 443.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path that is prepended to the path of requests, without a trailing slash.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The error for text that is not an [`Upstream`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UpstreamUrlError;

impl fmt::Display for UpstreamUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "must be the URL of a service, such as http://127.0.0.1:3000 or https://app.internal",
        )
    }
}

impl std::error::Error for UpstreamUrlError {}

impl FromStr for Upstream {
    type Err = UpstreamUrlError;

    fn from_str(text: &str) -> Result<Self, UpstreamUrlError> {
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(UpstreamUrlError),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // User and password would only end up in the log, and a query belongs to a request.
        let is_path = |c: char| c.is_ascii_graphic() && !"?#\"<>\\^`{|}".contains(c);
        if !path.chars().all(is_path) {
            return Err(UpstreamUrlError);
        }
        let default_port = if tls { 443 } else { 80 };
        let (host, port_text) = split_port(authority).ok_or(UpstreamUrlError)?;
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(UpstreamUrlError);
        }
        let port = port_text
            .map_or(Some(default_port), port)
            .ok_or(UpstreamUrlError)?;
        let prefix = path.trim_end_matches('/').to_owned();
        Ok(Self {
            text: text.to_owned(),
            tls,
            host: host.to_owned(),
            port,
            prefix,
        })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_kind!(
    Upstream,
    "the URL of a service, such as \"http://127.0.0.1:3000\" or \"https://app.internal\"",
    "^https?://[^?#@]+$"
);
