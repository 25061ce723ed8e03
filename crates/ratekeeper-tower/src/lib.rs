//! Rate limits, concurrency limits, circuit breakers and load shedding as tower layers for axum,
//! hyper and tonic, and a client layer that respects the limits of servers.
//!
//! A limit of 100 requests a minute for each client, for a whole axum router (feature `axum`):
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
//! Request 21 of a burst gets a 429 with `Retry-After`. [`around`](RateLimitLayer::around) a whole
//! router costs least. To limit some routes only, or by route, give the layer to `layer` of a
//! router or of a route:
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
//! let layer = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20)).for_axum();
//! let app = Router::new()
//!     .route("/", get(async || "hello"))
//!     .route("/search", get(async || "found").layer(layer));
//!
//! // With connect info: without it clients have no address, and all of them share one bucket.
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! All clones of a layer share its buckets: give one layer to several routes to share them, or each
//! route its own layer to keep them separate.
//!
//! With hyper, insert [`PeerAddr`](identity::PeerAddr) into the extensions of each request, or call
//! [`RateLimit::call_from`]. With tonic, enable the feature `tonic` and use
//! `Server::builder().layer(…)`. The repository's `examples` has a complete program for each.
//!
//! # Keys
//!
//! What requests are counted by:
//!
//! ```
//! use http::header::HeaderName;
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{Key, RateLimitLayer};
//!
//! # #[derive(Clone)]
//! # struct User { id: String }
//! # let limit = Limit::per_minute(100);
//! RateLimitLayer::per_ip(limit); // each address; of IPv6 each /56
//! RateLimitLayer::global(limit); // all requests together
//! RateLimitLayer::by(Key::header(HeaderName::from_static("x-api-key")), limit);
//! RateLimitLayer::by(Key::cookie("session"), limit);
//! // An extension that an authentication layer inserted:
//! RateLimitLayer::by(Key::extension(|user: &User| user.id.clone()), limit);
//! RateLimitLayer::by(
//!     Key::function(|head, key| {
//!         let Some(tenant) = head.headers.get("x-tenant") else { return false };
//!         key.part(tenant).part(head.method.as_str());
//!         true
//!     }),
//!     limit,
//! );
//! ```
//!
//! A request without that header, cookie or extension is counted by its address, so leaving it out
//! does not bypass the limit. But a client that can choose the value gets a bucket for each value:
//! count by a header only behind something that checks it.
//!
//! # Behind a proxy
//!
//! Forwarding headers are ignored by default. Behind a proxy, trust its address and choose the
//! header that it writes:
//!
//! ```
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{Identity, RateLimitLayer, identity::Forwarding};
//!
//! let identity = Identity::direct()
//!     .trust("10.0.0.0/8".parse()?)
//!     .header(Forwarding::XForwardedFor);
//! let layer = RateLimitLayer::per_ip(Limit::per_minute(100)).identity(identity);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! The header is read from the right and skips trusted proxies, so what a client wrote into it is
//! never reached; see [`Identity`]. Requests without a peer address, and forwarding headers from
//! untrusted peers, are logged once.
//!
//! # Responses
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
//! Clients that prefer text or HTML to JSON get that; gRPC calls get RESOURCE_EXHAUSTED with a
//! RetryInfo. [`denied`](RateLimitLayer::denied) replaces the response,
//! [`on_verdict`](RateLimitLayer::on_verdict) is called with every verdict, and
//! [`jitter`](RateLimitLayer::jitter) spreads the retries.
//!
//! # Which requests count
//!
//! ```
//! use ratekeeper::{Algorithm, Limit};
//! use ratekeeper_tower::{Count, RateLimitLayer};
//!
//! let api = RateLimitLayer::per_ip(Limit::per_minute(100))
//!     .skip_paths(["/healthz"])
//!     .skip(|head| head.headers.contains_key("x-internal-probe"))
//!     .cost(|head| if head.uri.path().starts_with("/export") { 10 } else { 1 });
//!
//! // Five wrong passwords an hour; logins with the right password do not count.
//! let login = RateLimitLayer::per_ip(Limit::per_hour(5).algorithm(Algorithm::SlidingLog))
//!     .count(Count::Failures);
//! ```
//!
//! With [`Count::Failures`] a request is charged when it arrives and refunded when it succeeds: of
//! any number of requests at once, no more than the limit can fail. A failure is a status from 400
//! up. A client that hangs up counts, too, because the outcome is unknown. CORS preflight requests
//! have a limit of their own ([`preflight`](RateLimitLayer::preflight)).
//!
//! # Delay or shadow instead of denying
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{DenialStatus, RateLimitLayer};
//!
//! // Up to 200 requests wait up to 500 ms. More get a 503: no single caller is at fault.
//! let delayed = RateLimitLayer::global(Limit::per_second(500).burst(50))
//!     .delay(Duration::from_millis(500))
//!     .max_waiting(200)
//!     .status(DenialStatus::ServiceUnavailable);
//! // Denies nothing, but reports what it would deny.
//! let shadow = RateLimitLayer::per_ip(Limit::per_minute(10)).shadow();
//! ```
//!
//! A waiting request holds its connection and its memory, so time and number are bounded. Token
//! buckets and queues can delay; windows and logs only allow or deny.
//!
//! # Policies
//!
//! To choose limits by route, user or plan, to combine several limits, or to change them at
//! runtime, use an [`Engine`](ratekeeper_policy::Engine). Its policies are code, or the same file
//! that the server reads:
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
//! let free = Plan::new("free").limit(Limit::per_minute(60).burst(10));
//! let pro = Plan::new("pro")
//!     .limit(Limit::per_minute(600).burst(100))
//!     .limit(PolicyLimit::Concurrent(20));
//! let policies = Policies::new()
//!     .plan(free)
//!     .plan(pro)
//!     .policy(Policy::new("visitors").key(Attribute::Ip).limit(Limit::per_minute(300)))
//!     .policy(
//!         Policy::new("api")
//!             .matching(Match::new().path("/api/**".parse()?))
//!             .key(Attribute::User)
//!             .plan(Attribute::Plan, Some("free")),
//!     );
//! let proxies: IpNet = "10.0.0.0/8".parse()?;
//! let layer = RateLimitLayer::new(Engine::new(MemoryStore::new(), policies)?)
//!     .user_header(HeaderName::from_static("x-user"), proxies) // which set this header
//!     .attributes(|head, subject| match head.extensions.get::<Account>() {
//!         Some(account) => subject.plan(account.plan),
//!         None => subject,
//!     });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Unlike a [`Key`], a policy does not apply to a request that lacks its key; the policy `visitors`
//! applies to all. With the feature `axum`, a layer on a router or a route knows the route's
//! template (`/users/{id}`) as [`Attribute::Endpoint`](ratekeeper_policy::Attribute::Endpoint). A
//! layer around a router does not: there each path is its own endpoint.
//!
//! # Order of layers
//!
//! From the outside: shedding (503), rate limits (429), concurrency limits (429, or 503 if
//! adaptive), circuit breaker (503), service:
//!
//! ```
//! use axum::{Router, routing::get};
//! use ratekeeper::Limit;
//! use ratekeeper_tower::{
//!     AdaptiveConcurrencyLayer, CircuitBreakerLayer, RateLimitLayer, ShedLayer,
//! };
//!
//! // In axum the last layer is the outermost.
//! let app: Router = Router::new()
//!     .route("/", get(async || "hello"))
//!     .layer(CircuitBreakerLayer::default())
//!     .layer(AdaptiveConcurrencyLayer::default()) // or ConcurrencyLayer::new(100)
//!     .layer(RateLimitLayer::per_ip(Limit::per_minute(100)))
//!     .layer(ShedLayer::default());
//! ```
//!
//! A request that an inner layer denies is refunded by the outer ones: the response has the
//! extension [`NotReached`](response::NotReached), which your own responses may have, too. Put CORS
//! layers outside of all these, or browsers hide a 429 from scripts.
//!
//! - [`ShedLayer`] ([`shed`]) denies the least important requests first under overload, and drops
//!   requests whose deadline has passed.
//! - [`ConcurrencyLayer`] ([`concurrency`]) limits the number of requests in flight, until the end
//!   of their response bodies.
//! - [`AdaptiveConcurrencyLayer`] adapts that number to what the service can take.
//! - [`CircuitBreakerLayer`] ([`breaker`]) stops calls to a failing service for a while.
//!
//! # Overload
//!
//! A fixed limit is wrong once the machine or a backend slows down. An [`AdaptiveConcurrencyLayer`]
//! finds the limit by how long requests take, to the end of their bodies, and by requests that are
//! dropped. If requests have a [`Class`](ratekeeper::adaptive::Class), it reserves permits for the
//! more important ones: `sheddable` requests are denied first and `critical_plus` last. A
//! [`ShedLayer`] outside of it can set the class:
//!
//! ```
//! use ratekeeper::adaptive::{AdaptiveConcurrency, Class};
//! use ratekeeper_tower::concurrency::QueueConfig;
//! use ratekeeper_tower::{AdaptiveConcurrencyLayer, ShedLayer};
//!
//! let concurrency = AdaptiveConcurrency::builder().min(5).max(500).build();
//! let adaptive = AdaptiveConcurrencyLayer::new(concurrency)
//!     .queue(QueueConfig::of(100)); // optional, for short bursts
//! let shed = ShedLayer::default()
//!     .class(|head| head.uri.path().starts_with("/report").then_some(Class::Sheddable))
//!     .extension(); // passes the class on to the adaptive limit
//! ```
//!
//! The shedder itself sheds by the load that you report to it and, for requests without a class, by
//! how many the adaptive limit denies.
//!
//! # Outgoing calls
//!
//! [`client`] limits calls to other services: it waits or fails before a limit, respects
//! Retry-After and RateLimit headers, sends less to servers that deny most requests, and bounds
//! retries.
//!
//! # Guarantees
//!
//! Each with the test that shows it.
//!
//! - A limit holds across clones, routes and tasks: of 1,500 requests at once a limit of 5 allows 5
//!   (`a_limit_holds_across_clones_routes_and_tasks`).
//! - The service that was ready is the one that is called, also after a wait
//!   (`the_service_that_was_ready_is_the_one_that_is_called`).
//! - No header is believed from untrusted peers (`headers_of_untrusted_peers_are_ignored`); no
//!   request is exempt for lack of an address (`without_an_address_all_share_one_bucket`).
//! - Around an axum router, an allowed request allocates nothing but the digits of header values
//!   from 1,000 up (`around_a_router_it_allocates_digits_and_nothing_else`).
//! - Allowed and denied responses have rate limit headers (`headers_are_on_every_response`);
//!   headers of the service stay (`headers_of_the_service_stay`).
//! - A client that obeys Retry-After and has a bucket of its own is allowed
//!   (`response/tests/properties.rs`).
//! - With [`Count::Failures`], slow failures at once never exceed the limit
//!   (`slow_failures_at_once_are_never_more_than_the_limit`), and hanging up does not bypass it
//!   (`only_failures_and_hangups_count`).
//! - At most [`max_waiting`](RateLimitLayer::max_waiting) requests wait
//!   (`at_most_max_waiting_requests_wait`).
//! - Requests that the breaker (`a_rejection_by_the_breaker_is_refunded`) or an inner limit
//!   (`a_limit_for_all_waits_and_then_answers_503_in_front_of_one_for_each`) denies are refunded.
//! - A permit is held until the body has ended, failed or was dropped (`concurrency_layer.rs`).
//! - Critical requests lose less than 1 % while the sheddable load is ten times the capacity, if
//!   the shedder is told the utilization of the limit, and less than 2 % if it only learns of
//!   denials; the shed level changes direction at most 12 times a minute (`shed.rs` of the crate
//!   `ratekeeper`). A class or a start time is believed from trusted proxies only
//!   (`a_header_is_believed_from_trusted_proxies_only`).
//! - In the queue of an adaptive limit no request is forgotten, overtaken or woken spuriously
//!   (`nobody_is_forgotten_passed_or_woken_for_nothing`, `under_threads_every_request_is_served`).
//! - A client that respects rate limit headers is not denied
//!   (`after_the_first_responses_no_request_is_denied`), and all its attempts are at most 1.1 times
//!   its requests (`the_budget_bounds_all_attempts`).
//! - A breaker is never stuck half-open (`dropped_probes_never_wedge_it`,
//!   `after_any_amount_of_chaos_it_recovers`).
//!
//! # Features
//!
//! - `axum`: the peer address from `ConnectInfo<SocketAddr>`, the route's template from
//!   `MatchedPath`, and [`around`](RateLimitLayer::around).
//! - `tonic`: the peer address from `TcpConnectInfo`, which tonic's server inserts.
//!
//! Both are off by default; without them insert [`PeerAddr`](identity::PeerAddr).
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
// Types of layer options.
pub use ratekeeper_policy::{
    Count, policy::DenialStatus, request::Preflight, request::TrustedPeers,
};
