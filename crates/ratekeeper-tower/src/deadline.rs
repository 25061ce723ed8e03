//! Until when somebody waits for an answer, and how requests say so.

use http::{HeaderMap, HeaderName};
use ratekeeper::Timestamp;
use std::time::Duration;

/// `grpc-timeout`, as gRPC's clients send it.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Until when somebody waits for the answer to a request: an extension of the request.
///
/// [`ShedLayer`](crate::ShedLayer) drops what comes after it, and
/// [`ClientLayer`](crate::client::ClientLayer) neither waits nor tries again beyond it. Take it
/// from the request that came in and put it into those that go out on its behalf.
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
    /// From then on nobody waits.
    pub Timestamp,
);

/// How long a gRPC client waits. None if it does not say, or nonsense.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    ratekeeper_policy::request::grpc_timeout(headers.get(GRPC_TIMEOUT)?.as_bytes())
}
