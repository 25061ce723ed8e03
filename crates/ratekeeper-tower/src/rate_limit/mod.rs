//! Rate limits as a layer: [`RateLimitLayer`] and its service [`RateLimit`].

#[cfg(feature = "axum")]
mod axum_router;
mod body_kind;
mod delay_stats;
mod future;
mod layer;
mod options;
mod preflight;
mod service;

#[cfg(feature = "axum")]
pub use axum_router::ConnectionRateLimit;
#[cfg(feature = "axum")]
pub use body_kind::AxumBody;
pub use body_kind::{BodyKind, EitherBody};
pub use delay_stats::DelayStats;
pub use future::{Pending, ResponseFuture};
pub use layer::RateLimitLayer;
pub use preflight::PreflightStats;
pub use service::RateLimit;

use options::Options;

/// The state that all services of a layer share.
#[derive(Clone)]
pub(crate) struct RateLimitShared<D> {
    pub(crate) decider: D,
    pub(crate) options: Options,
}
