//! The target of a request at an upstream.

use super::authority;
use crate::config::Upstream;
use crate::gateway::body::RequestBody;
use crate::gateway::headers;
use axum::http::header::{HOST, HeaderValue};
use axum::http::{Request, Uri};
use http::uri::Scheme;
use std::borrow::Cow;

/// The path and the host that an upstream is asked for.
pub(super) struct RequestTarget<'a> {
    pub(super) path: Cow<'a, str>,
    /// The host of the request: after validation its Host header, which only HTTP/1.0 may lack.
    host: Option<&'a HeaderValue>,
}

impl<'a> RequestTarget<'a> {
    pub(super) fn new(request: &'a Request<RequestBody>, upstream: &Upstream) -> Self {
        let path = request.uri().path_and_query();
        let path = path.map_or("/", |path| path.as_str());
        Self {
            // The target `*` of `OPTIONS *` stands for the whole service and has no path.
            path: match upstream.prefix() {
                "" => Cow::Borrowed(path),
                _ if path == "*" => Cow::Borrowed(path),
                prefix => Cow::Owned(format!("{prefix}{path}")),
            },
            host: headers::first(request.headers(), &HOST),
        }
    }

    /// The host to ask for if the request names none.
    pub(super) fn default_host(&self, upstream: &Upstream) -> Option<String> {
        self.host.is_none().then(|| authority(upstream))
    }

    /// The target as a URI, or `None` if it is not a valid one.
    pub(super) fn uri(&self, upstream: &Upstream) -> Option<Uri> {
        let scheme = if upstream.is_tls() {
            Scheme::HTTPS
        } else {
            Scheme::HTTP
        };
        let builder = Uri::builder().scheme(scheme);
        let builder = match self.host {
            Some(host) => builder.authority(host.as_bytes()),
            None => builder.authority(authority(upstream)),
        };
        builder.path_and_query(&*self.path).build().ok()
    }
}
