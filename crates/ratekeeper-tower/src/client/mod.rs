//! For calls that go out: a client that waits for its turn, heeds what servers say, and does not
//! make overload worse.
//!
//! ```
//! use ratekeeper::{Keyed, Limit};
//! use ratekeeper_tower::client::{ClientLayer, Retries};
//! use tower::Layer;
//!
//! # let http_client = tower::service_fn(|_: http::Request<String>| async { Ok::<_, std::io::Error>(http::Response::new(())) });
//! let layer = ClientLayer::new()
//!     .limit_per_host(Keyed::new(Limit::per_second(10).burst(5))) // what you know of the limits there
//!     .throttle(2.0)
//!     .retry(Retries::default());
//! let client = layer.layer(http_client); // hyper-util's legacy Client, a tonic Channel, whatever is a tower service
//! ```
//!
//! # What it does, in this order
//!
//! 1. A request whose [`Deadline`](crate::Deadline) has passed, or would have before it could be
//!    sent, fails: nothing is sent.
//! 2. [`throttle`](ClientLayer::throttle): what a server that turns most away would reject anyway
//!    is rejected here ([`Throttle`]).
//! 3. [`limit`](ClientLayer::limit): waits for a slot of a limit of your own.
//! 4. Always: heeds what the host said of *its* limits. Whoever must wait for longer than
//!    [`max_wait`](ClientLayer::max_wait) fails at once with a [`ClientError`] that says for
//!    how long.
//! 5. [`retry`](ClientLayer::retry): tries again what may be, after a pause that grows and is
//!    spread by chance, as long as the [budget](RetryBudget) lasts.
//!
//! # What it heeds
//!
//! Retry-After of a 429 or 503, in seconds or as a date; and of every response what is left:
//! `RateLimit` and `RateLimit-Policy` of drafts 6 to 11 and `X-RateLimit-…`. When nothing is left,
//! the host is left alone until the time that it named. Then one request goes ahead while the
//! others wait for its answer, which says how many of them may follow. So whoever comes back after
//! a pause does not run into the next one, however many wait here; and those who wait in other
//! processes come back at other times, spread over a tenth of the pause
//! ([`jitter`](ClientLayer::jitter)).
//!
//! Hosts are told apart by name and port, or by [`key`](ClientLayer::key); 1,024 are remembered.
//!
//! Where it stands does not matter to the body of a response: it is passed on as it is.

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
