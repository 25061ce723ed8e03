//! The circuit breaker: by itself, and as a layer.
//!
//! ```
//! use ratekeeper_tower::{CircuitBreaker, CircuitBreakerLayer};
//!
//! let breaker = CircuitBreaker::new();
//! let layer = CircuitBreakerLayer::new(breaker.clone()); // axum: Router::new().route(…).layer(layer)
//! assert_eq!(breaker.state().to_string(), "closed");
//! ```

mod builder;
mod call;
mod future;
mod layer;
mod mode;
mod probes;
mod service;
mod state;
mod window;
mod word;

pub use builder::{CircuitBreakerBuilder, CircuitBreakerError};
pub use call::{Call, CircuitOpenError};
pub use future::ResponseFuture;
pub use layer::{CircuitBreakerLayer, Outcome};
pub use mode::{Force, State};
pub use service::CircuitBreakerService;
pub use state::{CircuitBreaker, CircuitBreakerStats};
pub use window::Recent;
