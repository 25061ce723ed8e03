//! The head of a request for hooks: everything but the body.

use crate::identity::Client;
use http::header::{HeaderName, HeaderValue, Keys};
use http::{Extensions, HeaderMap, Method, Request, Uri};
use ratekeeper_policy::request::RequestParts;
use std::net::IpAddr;

/// The head of a request, with its client.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions that other layers inserted.
    pub extensions: &'a Extensions,
    /// The client, as found by the layer's [`Identity`](crate::Identity).
    pub client: Client,
}

impl<'a> Head<'a> {
    pub(crate) fn of<B>(request: &'a Request<B>, client: Client) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            client,
        }
    }

    /// The client's address; `None` if it is unknown.
    pub fn ip(&self) -> Option<IpAddr> {
        self.client.ip()
    }

    /// Whether the request came through a trusted proxy, whose headers are trusted.
    pub fn is_from_trusted_proxy(&self) -> bool {
        self.client.via_proxy()
    }

    /// The parts that are validated before the request is decided on.
    pub(crate) fn parts(&self) -> RequestParts<'a, impl Fn() -> HeaderPairs<'a>> {
        let all = self.headers;
        RequestParts {
            path: self.uri.path().as_bytes(),
            authority: self
                .uri
                .authority()
                .map(|authority| authority.as_str().as_bytes()),
            headers: move || HeaderPairs(all.iter()),
        }
    }

    /// The value of the cookie with this name; the first, if there are several.
    pub fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        self.cookies(name).next()
    }

    /// All values of a cookie, from all headers and in their order. Spaces around names are ignored,
    /// as many services do.
    pub(crate) fn cookies<'n>(
        &self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let lines = self.headers.get_all(http::header::COOKIE).into_iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        pairs.filter_map(move |pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let is_named = pair[..at].trim_ascii() == name.as_bytes();
            is_named.then(|| pair[at + 1..].trim_ascii())
        })
    }
}

/// The headers of a request as pairs of text and bytes.
pub(crate) struct HeaderPairs<'a>(http::header::Iter<'a, HeaderValue>);

impl<'a> Iterator for HeaderPairs<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.0
            .next()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
    }
}

/// Finds the first header that has one of these names.
// With few headers, a scan is faster than lookups. Never inlined or unrolled: one copy stays in the
// instruction cache, where a server leaves little of it between two requests.
#[inline(never)]
pub(crate) fn find_header<'a>(
    mut headers: Keys<'a, HeaderValue>,
    names: &[HeaderName],
) -> Option<&'a HeaderName> {
    headers.find(|there| names.contains(there))
}
