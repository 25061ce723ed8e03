//! The user header: removed from requests of untrusted peers.

use crate::config::IdentityConfig;
use axum::http::{HeaderMap, HeaderName};
use ratekeeper_policy::request::TrustedPeers;
use std::net::IpAddr;

/// The header that names the user, and the peers that may set it. Requests go through
/// [`strip`](Self::strip) before policies and upstreams read them, so the header can be trusted
/// afterwards.
#[derive(Debug)]
pub(crate) struct UserHeader {
    name: HeaderName,
    from: TrustedPeers,
}

impl UserHeader {
    /// The configured user header, if any.
    pub(crate) fn of(identity: &IdentityConfig) -> Option<Self> {
        let user = identity.user.as_ref()?;
        // The configuration accepts only valid header names.
        Some(Self {
            name: HeaderName::try_from(&user.header).ok()?,
            from: user.from.clone(),
        })
    }

    /// Removes the header unless the peer may set it (`None` is a peer on a Unix socket), and
    /// always its aliases: CGI-like upstreams read `_` as `-`.
    pub(crate) fn strip(&self, peer: Option<IpAddr>, headers: &mut HeaderMap) {
        let is_trusted = self.from.contains(peer);
        let is_forged =
            |name: &HeaderName| self.is_alias(name) && !(is_trusted && *name == self.name);
        while let Some(name) = headers.keys().find(|name| is_forged(name)).cloned() {
            headers.remove(name);
        }
    }

    /// Removes the header from trailers, which come too late for a decision.
    pub(crate) fn strip_trailers(&self, trailers: &mut HeaderMap) {
        while let Some(name) = trailers.keys().find(|name| self.is_alias(name)).cloned() {
            trailers.remove(name);
        }
    }

    /// Whether a header is this one, or differs only in `_` and `-`.
    fn is_alias(&self, name: &HeaderName) -> bool {
        let (name, own) = (name.as_str().as_bytes(), self.name.as_str().as_bytes());
        let hyphened = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
        name.len() == own.len() && name.iter().map(hyphened).eq(own.iter().map(hyphened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_the_header_of_a_trusted_peer_is_left() {
        let user = UserHeader {
            name: HeaderName::from_static("x-user-id"),
            from: TrustedPeers::none().network("10.0.0.0/8".parse().unwrap()),
        };
        let all = [
            "x-user-id",
            "x_user-id",
            "x-user_id",
            "x_user_id",
            "x-user-idx",
            "x-api-key",
        ];
        let map = || {
            let mut map = HeaderMap::new();
            for name in all {
                map.append(name, HeaderValue::from_static("a"));
                map.append(name, HeaderValue::from_static("b"));
            }
            map
        };
        let left = |peer: Option<&str>| {
            let mut map = map();
            user.strip(peer.map(|peer| peer.parse().unwrap()), &mut map);
            all.into_iter()
                .filter(|name| map.contains_key(*name))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            left(Some("10.1.2.3")),
            ["x-user-id", "x-user-idx", "x-api-key"]
        );
        for stranger in [Some("203.0.113.7"), Some("::1"), None] {
            assert_eq!(left(stranger), ["x-user-idx", "x-api-key"], "{stranger:?}");
        }
        let mut trailers = map();
        user.strip_trailers(&mut trailers);
        assert_eq!(trailers.keys_len(), 2);
    }
}
