//! Concurrency limits as layers: fixed, for all requests or for each key, or adaptive.

mod adaptive;
mod future;
mod layer;
mod permit_source;
mod service;

pub use adaptive::{
    AdaptiveConcurrencyLayer, AdaptiveConcurrencyService, AdaptiveResponseFuture, ClassifyResponse,
    HeadClassifier, QueueConfig, TimedBody,
};
pub use future::ResponseFuture;
pub use layer::ConcurrencyLayer;
pub use permit_source::{PerKey, PermitSource};
pub use service::ConcurrencyService;
