//! Adaptive concurrency limit as a layer.

mod classify;
mod future;
mod layer;
mod permit_guard;
mod service;
mod timed_body;

pub use classify::{ClassifyResponse, HeadClassifier};
pub use future::AdaptiveResponseFuture;
pub use layer::AdaptiveConcurrencyLayer;
pub use ratekeeper::adaptive::QueueConfig;
pub use service::AdaptiveConcurrencyService;
pub use timed_body::TimedBody;

use crate::response::GRPC_STATUS;

/// The gRPC status codes of overload: DEADLINE_EXCEEDED and UNAVAILABLE.
const OVERLOADED: [&str; 2] = ["4", "14"];

/// Up to this many headers a scan is faster than a lookup.
const FEW_HEADERS: usize = 12;

#[inline]
fn is_overloaded_grpc(headers: &http::HeaderMap) -> bool {
    // A scan of few headers is faster than a lookup.
    let few = headers.keys_len() <= FEW_HEADERS;
    if few && !headers.keys().any(|name| *name == GRPC_STATUS) {
        return false;
    }
    headers
        .get(GRPC_STATUS)
        .is_some_and(|status| OVERLOADED.iter().any(|code| status == code))
}
