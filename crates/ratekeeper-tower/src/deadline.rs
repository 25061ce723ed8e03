//! The deadline of a request, and where it comes from.

use http::{HeaderMap, HeaderName};
use ratekeeper::Timestamp;
use std::time::Duration;

/// `grpc-timeout`, as gRPC clients send it.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The deadline of a request: after it, no client waits for the response. A request extension.
///
/// [`ShedLayer`](crate::ShedLayer) drops requests that arrive after it, and
/// [`ClientLayer`](crate::client::ClientLayer) neither waits nor retries beyond it. Copy it from an
/// incoming request to the outgoing requests made on its behalf.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Clock, clock::SystemClock};
/// use ratekeeper_tower::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline(SystemClock.now() + Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(
    /// The time at which it passes.
    pub Timestamp,
);

/// The timeout that a gRPC client sent; `None` if there is none or it is malformed.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    ratekeeper_policy::request::grpc_timeout(headers.get(GRPC_TIMEOUT)?.as_bytes())
}
