//! How many requests at once, as a layer: for all together or for each key, fixed or as many as the
//! service is seen to take.

mod adaptive;
mod future;
mod gate;
mod layer;
mod service;

pub use adaptive::{
    AdaptiveConcurrencyLayer, AdaptiveConcurrencyService, AdaptiveResponseFuture, ByHead, Classify,
    QueueConfig, Timed,
};
pub use future::ResponseFuture;
pub use gate::{Gate, PerKey};
pub use layer::ConcurrencyLayer;
pub use service::ConcurrencyService;
