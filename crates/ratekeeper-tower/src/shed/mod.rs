//! Load shedding as a layer: under overload the least important requests are denied first, and
//! requests whose deadline has passed are dropped before they cost anything.
//!
//! ```
//! use axum::{Router, routing::get};
//! use http::HeaderName;
//! use ratekeeper::{adaptive::Class, adaptive::Shedder};
//! use ratekeeper_tower::{Identity, ShedLayer};
//!
//! let shed = ShedLayer::new(Shedder::new())
//!     .class(|head| head.uri.path().starts_with("/export").then_some(Class::Sheddable))
//!     .header(HeaderName::from_static("x-request-class"))
//!     .identity(Identity::direct().trust("10.0.0.0/8".parse()?));
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(shed);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Put it outside of rate and concurrency limits: requests that it sheds are not counted there.
//!
//! # Where load is reported
//!
//! Load is reported to the [`Shedder`](ratekeeper::adaptive::Shedder) by your code, and by inner
//! limits: a response with the extension [`NoCapacity`](crate::response::NoCapacity), as those of
//! [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) and of
//! [`ConcurrencyLayer::unavailable`](crate::ConcurrencyLayer::unavailable) have it, counts as a
//! denial for lack of capacity. So the two work together without further setup. But then load is
//! noticed only after a request was denied for lack of capacity: in the simulation critical traffic
//! loses between 1 and 2 % under ten times the capacity. If load is reported early, as `in_flight /
//! limit / 0.85` as in the guide of this crate, it loses less than 1 %.
//!
//! # Responses
//!
//! Shed requests get a 503 of the type `temporary-reduced-capacity` with a Retry-After of 5 to 10
//! seconds, spread so that clients do not all come back at once; gRPC calls get UNAVAILABLE.
//! Requests after their deadline get a 504, without Retry-After because the client no longer waits;
//! gRPC calls get DEADLINE_EXCEEDED, the status that their client reports by itself.

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::ShedLayer;
pub use service::Shed;
