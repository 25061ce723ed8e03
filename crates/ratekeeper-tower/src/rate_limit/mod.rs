//! Rate limits in front of a service.

#[cfg(feature = "axum")]
mod around;
mod form;
mod future;
mod layer;
mod options;
mod preflight;
mod service;
mod waits;

#[cfg(feature = "axum")]
pub use around::ConnectionRateLimit;
#[cfg(feature = "axum")]
pub use form::AxumBody;
pub use form::{BodyKind, EitherBody};
pub use future::{Pending, ResponseFuture};
pub use layer::RateLimitLayer;
pub use preflight::PreflightStats;
pub use service::RateLimit;
pub use waits::DelayStats;

use options::Options;

/// What all clones of a service share.
#[derive(Clone)]
pub(crate) struct Shared<G> {
    pub(crate) gate: G,
    pub(crate) options: Options,
}
