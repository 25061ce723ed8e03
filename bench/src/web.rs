//! The web services under test: each with another layer in front, or none.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;
use governor::middleware::StateInformationMiddleware;
use ratekeeper::{Clock, Keyed, Limit, MemoryStore};
use ratekeeper_policy::{Engine, Match, Policies, Policy};
use ratekeeper_tower::{
    Dialects, Key, RateLimit, RateLimitLayer, decider::LimitDecider, rate_limit::AxumBody,
};
use std::convert::Infallible;
use std::time::Duration;
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_layer::Layer;
use tower_service::Service;

/// The burst of all limits: a number of digits as people write them in headers.
const BURST: u32 = 100;
/// The time in nanoseconds in which one unit refills: faster than requests arrive.
const AGAIN: u64 = 10;

/// The number of policies; two of them apply.
const POLICIES: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Competitor {
    Bare,
    PerIp,
    Around,
    AroundSilent,
    Policies,
    Governor,
    GovernorAround,
    Headers,
}

/// A generic operation on a web service of any type.
pub trait AppVisitor {
    type Into;

    fn put<S: Web>(self, app: S) -> Self::Into;

    /// For a service that knows the peer of a connection by itself where axum serves it.
    fn put_around<C: Clock>(self, app: RateLimit<Router, LimitDecider<C>, AxumBody>) -> Self::Into
    where
        Self: Sized,
    {
        self.put(app)
    }
}

/// What axum serves.
pub trait Web:
    Service<Request, Response = Response, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<
    S: Service<Request, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
> Web for S
{
}

impl Competitor {
    pub const ALL: [Self; 8] = [
        Self::Bare,
        Self::PerIp,
        Self::Around,
        Self::AroundSilent,
        Self::Policies,
        Self::Governor,
        Self::GovernorAround,
        Self::Headers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::PerIp => "ratekeeper per_ip",
            Self::Around => "ratekeeper per_ip, around",
            Self::AroundSilent => "ratekeeper per_ip, around, no headers",
            Self::Policies => "ratekeeper, 2 of 10 policies",
            Self::Governor => "tower_governor",
            Self::GovernorAround => "tower_governor, around",
            Self::Headers => "three headers, no limit",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// As in a usual web service, except for our clock.
    pub fn app<P: AppVisitor>(self, clock: impl Clock, to: P) -> Result<P::Into, String> {
        let app = Router::new().route("/", get(async || "Hello, World!"));
        // As servers do, once: otherwise axum builds every route anew for each request.
        let routed = |app: Router| app.with_state(());
        Ok(match self {
            Self::Bare => to.put(routed(app)),
            Self::PerIp => to.put(routed(app.layer(per_ip(clock).for_axum()))),
            Self::Around => to.put_around(per_ip(clock).around(app)),
            Self::AroundSilent => {
                to.put_around(per_ip(clock).headers(Dialects::none()).around(app))
            }
            Self::Policies => to.put(routed(
                app.layer(RateLimitLayer::new(engine(clock)?).for_axum()),
            )),
            Self::Governor => to.put(routed(app.layer(governor()?))),
            Self::GovernorAround => to.put(governor()?.layer(routed(app))),
            Self::Headers => to.put(routed(app.layer(MapResponseLayer::new(with_three_headers)))),
        })
    }
}

fn per_ip<C: Clock>(clock: C) -> RateLimitLayer<LimitDecider<C>> {
    RateLimitLayer::keyed(Keyed::with_clock(wide(), clock), Key::ip())
}

/// A layer that writes constant rate limit headers, without a limit: the minimum cost of a layer.
fn with_three_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(
        HeaderName::from_static("x-ratelimit-limit"),
        HeaderValue::from_static("100"),
    );
    headers.insert(
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderValue::from_static("99"),
    );
    headers.insert(
        HeaderName::from_static("x-ratelimit-reset"),
        HeaderValue::from_static("1794828043"),
    );
    response
}

fn governor() -> Result<GovernorLayer<PeerIpKeyExtractor, StateInformationMiddleware, Body>, String>
{
    let mut config = GovernorConfigBuilder::default();
    config.period(Duration::from_nanos(AGAIN)).burst_size(BURST);
    let config = config
        .use_headers()
        .finish()
        .ok_or("tower_governor does not take that limit")?;
    Ok(GovernorLayer::new(config))
}

fn wide() -> Limit {
    Limit::per_second(1_000_000_000 / AGAIN).burst(BURST.into())
}

/// Two policies apply to every request, the others to paths that are never requested.
fn engine<C: Clock>(clock: C) -> Result<Engine<MemoryStore<C>>, String> {
    let mut policies = Policies::new()
        .policy(Policy::new("each").key("ip").limit(wide()))
        .policy(Policy::new("all").limit(wide()));
    for number in 2..POLICIES {
        let path = format!("/service{number}/**")
            .parse()
            .map_err(|error| format!("{error:?}"))?;
        let of_path = Policy::new(format!("service{number}"))
            .matching(Match::new().path(path))
            .key("ip");
        policies = policies.policy(of_path.limit(wide()));
    }
    let store = MemoryStore::builder().max_keys(10_000).clock(clock).build();
    Engine::new(store, policies).map_err(|error| error.to_string())
}
