//! Rate limits in front of a service.

mod future;
mod layer;
mod options;
mod service;

pub use future::{Kept, ResponseFuture};
pub use layer::RateLimitLayer;
pub use service::RateLimit;

use options::Options;

/// What all clones of a service share.
#[derive(Clone)]
pub(crate) struct Shared<G> {
    pub(crate) gate: G,
    pub(crate) options: Options,
}
