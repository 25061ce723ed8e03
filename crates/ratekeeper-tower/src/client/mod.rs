//! Rate limits for outgoing calls: a client that waits before limits, respects what servers
//! announce, and does not make overload worse.
//!
//! ```
//! use ratekeeper::{Keyed, Limit};
//! use ratekeeper_tower::client::{ClientLayer, Retries};
//! use tower::Layer;
//!
//! # let http_client = tower::service_fn(async |_: http::Request<String>| {
//! #     Ok::<_, std::io::Error>(http::Response::new(()))
//! # });
//! let layer = ClientLayer::new()
//!     .limit_per_host(Keyed::new(Limit::per_second(10).burst(5))) // the known limits of the server
//!     .throttle(2.0)
//!     .retry(Retries::default());
//! // hyper-util's legacy Client, a tonic Channel, any tower service:
//! let client = layer.layer(http_client);
//! ```
//!
//! # Order of steps
//!
//! 1. A request whose [`Deadline`](crate::Deadline) has passed, or would pass before it could be
//!    sent, fails without being sent.
//! 2. [`throttle`](ClientLayer::throttle): rejects locally what a server that denies most requests
//!    would deny ([`Throttle`]).
//! 3. [`limit`](ClientLayer::limit): waits for a slot of your own limit.
//! 4. Always: respects the limits that the host announces. A request that would wait for longer
//!    than [`max_wait`](ClientLayer::max_wait) fails immediately with a [`ClientError`] that
//!    contains the wait.
//! 5. [`retry`](ClientLayer::retry): retries after an exponential backoff with jitter, as long as
//!    the [budget](RetryBudget) lasts.
//!
//! # Headers it respects
//!
//! Retry-After of a 429 or 503, in seconds or as a date, and the remaining quota of every response:
//! `RateLimit` and `RateLimit-Policy` of drafts 6 to 11 and `X-RateLimit-…`. When nothing remains,
//! nothing is sent to the host until the announced time. Then one request is sent while the others
//! wait for its response, which determines how many of them may follow. So requests after a pause
//! do not run into the next one, however many are waiting; and clients in other processes come back
//! at other times, spread over a tenth of the pause ([`jitter`](ClientLayer::jitter)).
//!
//! Hosts are distinguished by name and port, or by [`key`](ClientLayer::key); 1,024 are remembered.
//!
//! Response bodies are passed through unchanged.

mod backoff;
mod budget;
mod error;
mod future;
mod host;
mod hosts;
mod layer;
mod rate_limit_headers;
mod retries;
mod service;
mod throttle;

pub use backoff::Backoff;
pub use budget::RetryBudget;
pub use error::ClientError;
pub use future::ClientFuture;
pub use layer::ClientLayer;
pub use retries::{Idempotent, NoRetries, Retries, RetryPolicy};
pub use service::ClientService;
pub use throttle::Throttle;
