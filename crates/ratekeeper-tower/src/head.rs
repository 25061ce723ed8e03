//! What a hook sees of a request: everything but its body.

use crate::identity::Client;
use http::header::{HeaderName, HeaderValue, Keys};
use http::{Extensions, HeaderMap, Method, Request, Uri};
use ratekeeper_policy::request::RequestParts;
use std::net::IpAddr;

/// A request without its body, and who sent it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What other layers left.
    pub extensions: &'a Extensions,
    /// Who sent it, by those who are believed about it.
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

    /// The client's address; none if nobody knows it.
    pub fn ip(&self) -> Option<IpAddr> {
        self.client.ip()
    }

    /// Whether it came by a proxy that is trusted: what that says of the request is believed.
    pub fn is_from_trusted_proxy(&self) -> bool {
        self.client.via_proxy()
    }

    /// What is checked of it before it is decided on.
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

    /// The value of a cookie of that name.
    pub fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        let lines = self.headers.get_all(http::header::COOKIE).into_iter();
        let mut pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        pairs.find_map(|pair| {
            let (known, value) = pair.trim_ascii().split_at_checked(name.len())?;
            value
                .strip_prefix(b"=")
                .filter(|_| known == name.as_bytes())
        })
    }
}

/// The headers of a request as text and bytes.
pub(crate) struct HeaderPairs<'a>(http::header::Iter<'a, HeaderValue>);

impl<'a> Iterator for HeaderPairs<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.0
            .next()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
    }
}

/// The first of these headers that has one of those names.
// Of few headers: to look at each is quicker than to look for some. There once for all who ask, and
// not unrolled, because what a server does between two requests leaves little of this in the
// nearest cache.
#[inline(never)]
pub(crate) fn find_header<'a>(
    mut headers: Keys<'a, HeaderValue>,
    names: &[HeaderName],
) -> Option<&'a HeaderName> {
    headers.find(|there| names.contains(there))
}
