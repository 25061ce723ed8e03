//! How many at once as the service is seen to take them, as a layer.

mod body;
mod classify;
mod future;
mod layer;
mod service;
mod serving;

pub use body::Timed;
pub use classify::{ByHead, Classify};
pub use future::AdaptiveResponseFuture;
pub use layer::AdaptiveConcurrencyLayer;
pub use ratekeeper::adaptive::QueueConfig;
pub use service::AdaptiveConcurrencyService;

use crate::response::GRPC_STATUS;

/// The numbers of gRPC's statuses that say that there was too much to do: DEADLINE_EXCEEDED and
/// UNAVAILABLE.
const OVERLOADED: [&str; 2] = ["4", "14"];

/// So many headers are few.
const FEW: usize = 12;

#[inline]
fn says_overloaded(headers: &http::HeaderMap) -> bool {
    // To look at each of a few is quicker than to look for one.
    let few = headers.keys_len() <= FEW;
    if few && !headers.keys().any(|name| *name == GRPC_STATUS) {
        return false;
    }
    headers
        .get(GRPC_STATUS)
        .is_some_and(|status| OVERLOADED.iter().any(|code| status == code))
}
