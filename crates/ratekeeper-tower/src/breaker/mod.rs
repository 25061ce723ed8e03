//! Circuit breaker, standalone and as a layer.
//!
//! ```
//! use ratekeeper_tower::{CircuitBreaker, CircuitBreakerLayer};
//!
//! let breaker = CircuitBreaker::new();
//! let layer = CircuitBreakerLayer::new(breaker.clone()); // for `layer` of a router
//! assert_eq!(breaker.state().to_string(), "closed");
//! ```

mod builder;
mod circuit_breaker;
mod future;
mod guard;
mod layer;
mod packed_state;
mod probes;
mod service;
mod state;
mod window;

pub use builder::{CircuitBreakerBuilder, CircuitBreakerError};
pub use circuit_breaker::{CircuitBreaker, CircuitBreakerStats};
pub use future::ResponseFuture;
pub use guard::{CallGuard, CircuitOpenError};
pub use layer::{CallOutcome, CircuitBreakerLayer};
pub use service::CircuitBreakerService;
pub use state::{Force, State};
pub use window::WindowStats;
