//! How many requests at once, as a layer: for all together or for each key, fixed or as many as the
//! service is seen to take.

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
