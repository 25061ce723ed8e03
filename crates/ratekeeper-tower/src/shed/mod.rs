//! Shedding by priority as a layer: under pressure the least important goes first, and what nobody
//! waits for any more is dropped before it costs anything.
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
//! It belongs outside of the limits and the permits: whom it sheds is not counted.
//!
//! # Where the pressure comes from
//!
//! From whatever the [`Shedder`](ratekeeper::adaptive::Shedder) is told, and by itself from the gates inside:
//! a response that carries [`NoRoom`](crate::NoRoom), as those of
//! [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) and of
//! [`ConcurrencyLayer::unavailable`](crate::ConcurrencyLayer::unavailable) do, counts as refused.
//! So the two together work without more. But a request must find no room before that is pressure:
//! in the simulation critical traffic then loses between 1 and 2 % under ten times what fits. Told
//! beforehand, by `in_flight / limit / 0.85` as in the guide of this crate, it loses less than 1 %.
//!
//! # What is answered
//!
//! Whoever is shed gets a 503 of the type `temporary-reduced-capacity` with a Retry-After of 5 to
//! 10 seconds, spread so that not all come back at once; gRPC gets UNAVAILABLE. Whoever comes after
//! its deadline gets a 504, as from a gateway that waited too long, without a Retry-After: nobody
//! is there to read it. gRPC gets DEADLINE_EXCEEDED, as its client reports by itself.

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::ShedLayer;
pub use service::Shed;
