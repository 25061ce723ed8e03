//! Rate limits, concurrency limits, circuit breakers and shedding as tower layers, for axum, hyper
//! and tonic; and a layer for clients that behave.
//!
//! One line for axum, with the feature `axum`:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use ratekeeper::Limit;
//! use ratekeeper_tower::RateLimitLayer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let app = Router::new().route("/", get(async || "hello"));
//! let app = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20)).around(app);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app).await
//! # }
//! ```
//!
//! [Around](RateLimitLayer::around) the whole router it costs least. For some routes only, or to know which route it is, give it to
//! `layer` of a router or of a route:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! # use axum::{Router, routing::get};
//! # use std::net::SocketAddr;
//! # use ratekeeper::Limit;
//! # use ratekeeper_tower::RateLimitLayer;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! let layer = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20)).for_axum(); let app =
//! Router::new().route("/", get(async || "hello")).route("/search", get(async ||
//! "found").layer(layer));
//!
//! // With connect info: without it nobody knows who is calling, and all callers share one bucket.
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! Call 21 is a 429 that says when to come again. All clones of a layer share its buckets: give one layer to several routes
//! and they share them, give each its own and they do not.
//!
//! With hyper, insert [`PeerAddr`] into the extensions of each request, or, where this layer is the only one that asks who is
//! calling, say it to [`RateLimit::call_from`]; with tonic, take the feature `tonic` and
//! `Server::builder().layer(…)`. Whole programs for all three are in the `examples` of the repository.
//!
//! # By what to count
//!
//! ```
//! use http::header::HeaderName;
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{Key, RateLimitLayer};
//!
//! # #[derive(Clone)]
//! # struct User { id: String }
//! # let limit = Limit::per_minute(100);
//! RateLimitLayer::per_ip(limit); // each address; of IPv6 each /56 RateLimitLayer::global(limit);
//! // all together RateLimitLayer::by(Key::header(HeaderName::from_static("x-api-key")), limit);
//! RateLimitLayer::by(Key::cookie("session"), limit); RateLimitLayer::by(Key::extension(|user:
//! &User| user.id.clone()), limit); // left by the layer that knows the user RateLimitLayer::by(
//!     Key::function(|head, key| {
//!         let Some(tenant) = head.headers.get("x-tenant") else { return false };
//!         key.part(tenant).part(head.method.as_str());
//!         true
//!     }),
//!     limit,
//! );
//! ```
//!
//! A request without that header, cookie or extension is counted by its address: leaving it out is no way round. But who
//! may *choose* the value has as many buckets as there are values: count by a header only behind something that checks it.
//!
//! # Behind a proxy
//!
//! Nobody is believed about the client's address unless you say so. Behind a proxy say which, and what it writes:
//!
//! ```
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{identity::Forwarding, Identity, RateLimitLayer};
//!
//! let identity =
//! Identity::direct().trust("10.0.0.0/8".parse()?).header(Forwarding::XForwardedFor); let layer =
//! RateLimitLayer::per_ip(Limit::per_minute(100)).identity(identity);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The header is walked from the right, past those who are trusted; what a client writes into it itself is never reached.
//! See [`Identity`]. If the address is missing, or a stranger sends such a header, that is logged once.
//!
//! # What clients are told
//!
//! ```
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{Dialect, Dialects, RateLimitLayer};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layer = RateLimitLayer::per_ip(Limit::per_hour(1))
//!     .headers(Dialects::default().and(Dialect::Ietf))
//!     .expose_headers(); // to scripts in browsers
//! let app = Router::new().route("/", get(async || "hello")).layer(layer);
//!
//! let response = app.clone().oneshot(Request::new(Body::empty())).await?;
//! assert_eq!(response.headers()["x-ratelimit-limit"], "1");
//! assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
//! assert_eq!(response.headers()["ratelimit-policy"], r#""default";q=1;w=3600"#);
//!
//! let response = app.oneshot(Request::new(Body::empty())).await?;
//! assert_eq!(response.status(), 429);
//! assert_eq!(response.headers()["retry-after"], "3600");
//! assert_eq!(response.headers()["content-type"], "application/problem+json");
//! # Ok(())
//! # }
//! ```
//!
//! Who accepts text or HTML rather than JSON gets that; a gRPC call gets RESOURCE_EXHAUSTED with a RetryInfo.
//! [`denied`](RateLimitLayer::denied) makes the response your own, [`on_verdict`](RateLimitLayer::on_verdict) sees every
//! verdict, [`jitter`](RateLimitLayer::jitter) spreads those who come back.
//!
//! # What to count
//!
//! ```
//! use ratekeeper::{Algorithm, Limit};
//! use ratekeeper_tower::{Count, RateLimitLayer};
//!
//! let api = RateLimitLayer::per_ip(Limit::per_minute(100))
//!     .skip_paths(["/healthz"]) // preflight requests of browsers have a limit of their own: `preflight`
//!     .skip(|head| head.headers.contains_key("x-internal-probe"))
//!     .cost(|head| if head.uri.path().starts_with("/export") { 10 } else { 1 });
//!
//! // Guessing passwords: whoever knows the password is never in the way of this one. let login =
//! RateLimitLayer::per_ip(Limit::per_hour(5).algorithm(Algorithm::SlidingLog)).count(Count::Failures);
//! ```
//!
//! Where only failures count, a request is charged when it comes and given back when it ends well: however many come at
//! once, no more than the limit can fail. A failure is a status from 400 up; a client that hangs up counts too, since
//! nobody knows how it would have ended.
//!
//! # Wait instead of turning away; turn nobody away
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{DenialStatus, RateLimitLayer};
//!
//! let all = RateLimitLayer::global(Limit::per_second(500).burst(50))
//!     .delay(Duration::from_millis(500)) // then …
//!     .max_waiting(200)
//!     .status(DenialStatus::ServiceUnavailable); // … 503: it is not the caller who asked too much
//! let watched = RateLimitLayer::per_ip(Limit::per_minute(10)).shadow();
//! ```
//!
//! Who waits holds its connection and its request, so both the time and the number are bounded. Token buckets and queues
//! can be waited for; windows and logs say yes or no.
//!
//! # Policies
//!
//! Which limits apply may follow from the request: routes, users, plans, several limits at once, all or nothing, changed
//! while the service runs. That is an [`Engine`](ratekeeper_policy::Engine), by code or by the same file that the server reads:
//!
//! ```
//! use http::header::HeaderName;
//! use ipnet::IpNet;
//! use ratekeeper::{Limit, MemoryStore};
//! use ratekeeper_policy::{Attribute, Engine, Match, Plan, Policies, Policy, PolicyLimit};
//! use ratekeeper_tower::RateLimitLayer;
//!
//! # #[derive(Clone)]
//! # struct Account { plan: &'static str }
//! let policies = Policies::new()
//!     .plan(Plan::new("free").limit(Limit::per_minute(60).burst(10)))
//!     .plan(Plan::new("pro").limit(Limit::per_minute(600).burst(100)).limit(PolicyLimit::Concurrent(20)))
//!     .policy(Policy::new("visitors").key(Attribute::Ip).limit(Limit::per_minute(300)))
//!     .policy(
//!         Policy::new("api")
//!             .matching(Match::new().path("/api/**".parse()?))
//!             .key(Attribute::User)
//!             .plan(Attribute::Plan, Some("free")),
//!     );
//! let layer = RateLimitLayer::new(Engine::new(MemoryStore::new(), policies)?)
//!     .user_header(HeaderName::from_static("x-user"), "10.0.0.0/8".parse::<IpNet>()?) // set by the proxies there
//!     .attributes(|head, subject| match head.extensions.get::<Account>() {
//!         Some(account) => subject.plan(account.plan),
//!         None => subject,
//!     });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Unlike a [`Key`], a policy does not apply to a request that lacks what it counts by: hence `visitors`, for everybody.
//! With the feature `axum`, a layer given to a router or a route of axum knows the template of the route (`/users/{id}`) as
//! [`Attribute::Endpoint`](ratekeeper_policy::Attribute::Endpoint). One that is put around a router does not: there each path
//! is a bucket of its own.
//!
//! # The order of layers
//!
//! First who is shed (503), then limits (429), then permits (429, or 503 where they are adaptive), then the breaker (503), then
//! the service:
//!
//! ```
//! use axum::{Router, routing::get}; use ratekeeper::Limit; use
//! ratekeeper_tower::{AdaptiveConcurrencyLayer, CircuitBreakerLayer, RateLimitLayer, ShedLayer};
//!
//! // Of axum's layers the last one is the first to be asked.
//! let app: Router = Router::new()
//!     .route("/", get(async || "hello"))
//!     .layer(CircuitBreakerLayer::default())
//!     .layer(AdaptiveConcurrencyLayer::default()) // or ConcurrencyLayer::new(100)
//!     .layer(RateLimitLayer::per_ip(Limit::per_minute(100)))
//!     .layer(ShedLayer::default());
//! ```
//!
//! What one of them turns away has not reached the service, so those further out give back what they counted; the response
//! carries [`NotReached`] to tell them. Insert it into a response of your own for the same. Layers that answer browsers about
//! CORS belong outside of all of these, or a 429 would be hidden from scripts.
//!
//! - [`ShedLayer`]: when there is too much, the least important goes first; what comes after its deadline is dropped. [`shed`]
//! - [`ConcurrencyLayer`]: so many at once, until the body of the response has ended. [`concurrency`]
//! - [`AdaptiveConcurrencyLayer`]: as many at once as the service is seen to take, which changes.
//! - [`CircuitBreakerLayer`]: when a service fails, leaves it alone for a while. [`breaker`]
//!
//! # Under pressure
//!
//! A number that was right yesterday is wrong when the machine or a backend slows down. An [`AdaptiveConcurrencyLayer`] finds
//! it by how long requests take, to the end of their bodies, and by those that are dropped. Told the [`Class`](ratekeeper::adaptive::Class) of a
//! request, it keeps room for the more important, `sheddable` making room first and `critical_plus` last. A [`ShedLayer`] outside of
//! it says the class, and sheds by what a limit cannot see; where no class is said, it sheds by who finds no room:
//!
//! ```
//! use ratekeeper::{adaptive::AdaptiveConcurrency, adaptive::Class};
//! use ratekeeper_tower::concurrency::Queue;
//! use ratekeeper_tower::{AdaptiveConcurrencyLayer, ShedLayer};
//!
//! let gate = AdaptiveConcurrency::builder().min(5).max(500).build(); let adaptive =
//! AdaptiveConcurrencyLayer::new(gate).queue(Queue::of(100)); // a short line for bursts, if you
//! like let shed = ShedLayer::default()
//!     .class(|head| head.uri.path().starts_with("/report").then_some(Class::Sheddable))
//!     .extension(); // the class goes on to the limit
//! ```
//!
//! # Calls that go out
//!
//! [`client`] is for the other end: it waits or fails before a limit, heeds Retry-After and RateLimit, sends less to who turns
//! most away, and bounds its retries.
//!
//! # What it promises
//!
//! Each line names the test that shows it.
//!
//! - A limit holds across clones, routes and tasks: of 1,500 requests at once a cap of 5 admits 5
//!   (`a_limit_holds_across_clones_routes_and_tasks`).
//! - The service that was ready is the one that is called, also after a wait
//!   (`the_service_that_was_ready_is_the_one_that_is_called`).
//! - No header is believed from a stranger (`a_stranger_speaks_for_itself_only`); nobody without an address is exempt
//!   (`without_an_address_all_share_one_bucket`).
//! - Around a router of axum a request that passes allocates nothing but the digits of what it is told, from 1,000 up
//!   (`around_a_router_it_allocates_digits_and_nothing_else`).
//! - Allowed and denied responses tell the limit (`headers_are_on_every_response`); what the service itself said stays
//!   (`what_the_origin_said_stays`).
//! - Who obeys Retry-After and comes alone is admitted (`answer/tests/properties.rs`).
//! - Where failures count, slow ones at once are never more than the limit
//!   (`slow_failures_at_once_are_never_more_than_the_limit`), and hanging up is no way round
//!   (`only_failures_count_and_who_hangs_up_counts_too`).
//! - No more than [`max_waiting`](RateLimitLayer::max_waiting) wait (`only_so_many_wait_and_who_leaves_makes_room`).
//! - What the breaker (`what_the_breaker_turns_away_is_given_back`) or a limit further in
//!   (`a_limit_for_all_waits_and_then_answers_503_in_front_of_one_for_each`) turns away is given back.
//! - A permit lives until the body has ended, failed or was dropped (`concurrency_layer.rs`).
//! - Critical requests lose less than 1 % while ten times what fits is sheddable, if the shedder is told how much of the gate is in
//!   use, and less than 2 % if it only learns who found no room; what is shed changes its direction at most 12 times a minute
//!   (`shed.rs` of the crate `ratekeeper`). A class or a start time is believed from trusted proxies only
//!   (`a_header_is_believed_from_trusted_proxies_only`).
//! - In the line of an adaptive limit nobody is forgotten, passed or woken for nothing
//!   (`nobody_is_forgotten_passed_or_woken_for_nothing`, `under_threads_everybody_is_served`).
//! - A client that heeds what it is told is not turned away (`after_the_first_answers_nobody_is_turned_away`), and all its attempts
//!   are at most 1.1 times its requests (`the_budget_bounds_what_all_tries_amount_to`).
//! - A breaker is never stuck half-open (`dropped_probes_never_wedge_it`, `after_any_amount_of_chaos_it_recovers`).
//!
//! # Features
//!
//! - `axum`: the peer's address from `ConnectInfo<SocketAddr>`, the template of the route from `MatchedPath`, and
//!   [`around`](RateLimitLayer::around).
//! - `tonic`: the peer's address from `TcpConnectInfo`, which tonic's server inserts by itself.
//!
//! Neither is on unless you say so; without them insert [`PeerAddr`].
#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
pub mod breaker;
pub mod client;
pub mod concurrency;
mod deadline;
pub mod decider;
mod head;
pub mod identity;
pub mod key;
pub mod rate_limit;
pub mod response;
mod route;
pub mod shed;

pub use body::ResponseBody;
pub use breaker::{CircuitBreaker, CircuitBreakerLayer};
pub use concurrency::{AdaptiveConcurrencyLayer, ConcurrencyLayer};
pub use deadline::Deadline;
pub use head::Head;
pub use identity::{Client, Identity};
pub use key::Key;
pub use rate_limit::{RateLimit, RateLimitLayer};
pub use response::{Denial, Dialect, Dialects};
pub use shed::ShedLayer;
// Types that the options of a layer take.
pub use ratekeeper_policy::{
    Count, policy::DenialStatus, request::Preflight, request::TrustedPeers,
};
