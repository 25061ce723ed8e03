//! How many requests at once, as a layer: for all together or for each key.

mod future;
mod gate;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use gate::{Gate, PerKey};
pub use layer::ConcurrencyLayer;
pub use service::ConcurrencyService;
