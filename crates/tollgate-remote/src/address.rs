//! Where the service is: `http://host:port`, or `https://` with the feature `tls`.

use http::{HeaderValue, Uri};
use std::path::{Path, PathBuf};

/// What a url says.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    #[cfg(feature = "tls")]
    pub(crate) tls: bool,
    /// What requests say they are for.
    pub(crate) authority: HeaderValue,
    pub(crate) path: Uri,
}

impl Address {
    pub(crate) fn read(url: &str) -> Result<Self, ConnectError> {
        let bad = |why: &str| ConnectError::Url(why.to_owned());
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| bad(&error.to_string()))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") if cfg!(feature = "tls") => true,
            Some("https") => return Err(bad("https needs the feature `tls` of tollgate-remote")),
            _ => return Err(bad("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it has a user; who may ask is said by a token"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        if uri.query().is_some() {
            return Err(bad("it has a query"));
        }
        // A service may be behind a proxy that gives it a path.
        let path = format!("{}{}", uri.path().trim_end_matches('/'), crate::wire::PATH);
        let path = path.parse().map_err(|_| bad("its path"))?;
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|_| bad("its host"))?;
        Ok(Self {
            host,
            port,
            #[cfg(feature = "tls")]
            tls,
            authority,
            path,
        })
    }
}

/// Why there is no store.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The url cannot be used.
    Url(String),
    /// The token cannot be sent.
    Token,
    /// The certificates cannot be used.
    Certificates(PathBuf, String),
    /// What answers will not do.
    Unusable(crate::Trouble),
    /// The system has no memory, or no thread, for it.
    Memory(String),
}

impl ConnectError {
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "certificates are of TLS"))]
    pub(crate) fn certificates(path: &Path, why: impl ToString) -> Self {
        Self::Certificates(path.to_owned(), why.to_string())
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(why) => write!(
                f,
                "the url of tollgate cannot be used ({why}); write it like http://127.0.0.1:8080 or https://tollgate.internal"
            ),
            Self::Token => f.write_str("the token has letters that no header can; take printable ASCII"),
            Self::Certificates(path, why) => {
                write!(f, "the certificates in {} cannot be used ({why}); name a PEM file", path.display())
            }
            Self::Unusable(trouble) => trouble.fmt(f),
            Self::Memory(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ConnectError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where() {
        for (url, host, port, path) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, "/v1/store"),
            ("http://tollgate", "tollgate", 80, "/v1/store"),
            ("http://[::1]:9/", "::1", 9, "/v1/store"),
            ("http://proxy/limits/", "proxy", 80, "/limits/v1/store"),
        ] {
            let address = Address::read(url).unwrap();
            assert_eq!((&*address.host, address.port, address.path.path()), (host, port, path), "{url}");
        }
    }

    #[test]
    fn other_urls_are_errors_that_say_what_is_right() {
        for url in
            ["", "127.0.0.1:8080", "redis://127.0.0.1", "http://", "http://me:word@h", "http://h/?a=b", "http://h\n"]
        {
            let told = Address::read(url).unwrap_err().to_string();
            assert!(told.contains("http://127.0.0.1:8080"), "{url}: {told}");
            assert!(!told.contains("word"), "{told}");
        }
    }
}
