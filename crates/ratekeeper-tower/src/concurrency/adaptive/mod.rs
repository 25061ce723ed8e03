//! How many at once as the service is seen to take them, as a layer.

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

/// The numbers of gRPC's statuses that say that there was too much to do: DEADLINE_EXCEEDED and
/// UNAVAILABLE.
const OVERLOADED: [&str; 2] = ["4", "14"];

/// So many headers are few.
const FEW_HEADERS: usize = 12;

#[inline]
fn is_overloaded_grpc(headers: &http::HeaderMap) -> bool {
    // To look at each of a few is quicker than to look for one.
    let few = headers.keys_len() <= FEW_HEADERS;
    if few && !headers.keys().any(|name| *name == GRPC_STATUS) {
        return false;
    }
    headers
        .get(GRPC_STATUS)
        .is_some_and(|status| OVERLOADED.iter().any(|code| status == code))
}
