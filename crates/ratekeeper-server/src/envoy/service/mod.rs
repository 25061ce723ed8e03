//! gRPC: the rate limit service, health and reflection, on plain HTTP/2.

use super::decide::DecideError;
use super::health::HealthService;
use super::request_body::RequestBody;
use crate::app::App;
use crate::gateway::{BodyRate, StreamExecutor};
use crate::net::connections::{Activity, CountInFlight};
use crate::net::worker::GracefulConnection;
use crate::net::write_timeout::{WRITE_TIMEOUT, WriteTimeoutStream};
use axum::http::{Request, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer, SERVICE_NAME,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ratekeeper::Clock;
use std::convert::Infallible;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tonic::codegen::BoxFuture;
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic::{Code, Status, body};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as Reflection;
use tower_service::Service;

pub(super) const RATE_LIMIT: &str = SERVICE_NAME;

/// rls.proto and what it needs, as protoc describes them; see the test that makes it.
const DESCRIPTORS: &[u8] = include_bytes!("rls.bin");

/// Far more than a request has.
const LARGEST_MESSAGE: usize = 1024 * 1024;

/// The largest head of a request.
const LARGEST_HEAD: u32 = 16 * 1024;

/// Requests of one connection at once.
const MOST_STREAMS: u32 = 1024;

/// A connection on which nothing comes is asked whether it is still there.
const PING: Duration = Duration::from_secs(30);

/// How long the one message of a request may be waited for.
const ONE_MESSAGE: BodyRate = BodyRate {
    timeout: Duration::from_secs(10),
    min_rate: NonZero::new(1_024).unwrap(),
};

/// The same where messages follow each other, as a person may type them; each gives back a second
/// for a byte.
const MANY_MESSAGES: BodyRate = BodyRate {
    timeout: Duration::from_secs(60),
    min_rate: NonZero::<u64>::MIN,
};

struct ShouldRateLimit<C: Clock>(Arc<App<C>>);

#[tonic::async_trait]
impl<C: Clock> RateLimitService for ShouldRateLimit<C> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let within = timeout(request.metadata());
        match self.0.envoy.judge(request.get_ref(), within).await {
            Ok(response) => Ok(tonic::Response::new(response)),
            Err(DecideError::Invalid(why)) => Err(Status::invalid_argument(why)),
            Err(DecideError::Unavailable(why)) => Err(Status::unavailable(why)),
        }
    }
}

/// How long the caller waits: `grpc-timeout`, up to eight digits and a unit. What is not one is
/// ignored, as gRPC has it.
fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

type Answer = BoxFuture<Response<body::Body>, Infallible>;

/// One of the two versions of the reflection service.
type ReflectionHandler = Arc<dyn Fn(Request<RequestBody>) -> Answer + Send + Sync>;

/// All services of the gRPC listener.
pub(crate) struct Grpc<C: Clock> {
    limits: RateLimitServiceServer<ShouldRateLimit<C>>,
    health: HealthServer<HealthService<C>>,
    reflection: [(&'static str, ReflectionHandler); 2],
}

impl<C: Clock> Clone for Grpc<C> {
    fn clone(&self) -> Self {
        let Self {
            limits,
            health,
            reflection,
        } = self;
        Self {
            limits: limits.clone(),
            health: health.clone(),
            reflection: reflection.clone(),
        }
    }
}

impl<C: Clock> Grpc<C> {
    pub(crate) fn new(app: &Arc<App<C>>, stopped: watch::Receiver<bool>) -> Self {
        let limits = RateLimitServiceServer::new(ShouldRateLimit(Arc::clone(app)));
        let health = HealthServer::new(HealthService {
            app: Arc::clone(app),
            stopped,
        });
        Self {
            limits: limits.max_decoding_message_size(LARGEST_MESSAGE),
            health,
            reflection: reflection(),
        }
    }
}

/// Both versions: clients that are a few years old ask for the alpha one.
fn reflection() -> [(&'static str, ReflectionHandler); 2] {
    let describing = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = describing()
        .build_v1()
        .expect("what was generated can be read");
    let v1alpha = describing()
        .build_v1alpha()
        .expect("what was generated can be read");
    [described(v1), described(v1alpha)]
}

fn described<S>(service: S) -> (&'static str, ReflectionHandler)
where
    S: Service<
            Request<RequestBody>,
            Response = Response<body::Body>,
            Error = Infallible,
            Future = Answer,
        >,
    S: NamedService + Clone + Send + Sync + 'static,
{
    (
        S::NAME,
        Arc::new(move |request| service.clone().call(request)),
    )
}

impl<C: Clock> Service<Request<Incoming>> for Grpc<C> {
    type Response = Response<body::Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answer {
        let service = request
            .uri()
            .path()
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        let within =
            |rate, request: Request<Incoming>| request.map(|body| RequestBody::new(body, rate));
        if service == RATE_LIMIT {
            return self.limits.call(within(ONE_MESSAGE, request));
        }
        if service == HealthServer::<HealthService<C>>::NAME {
            return self.health.call(within(ONE_MESSAGE, request));
        }
        match self.reflection.iter().find(|(name, _)| *name == service) {
            Some((_, described)) => described(within(MANY_MESSAGES, request)),
            None => Box::pin(async {
                Ok(Status::new(Code::Unimplemented, "no such service is served here").into_http())
            }),
        }
    }
}

pub(crate) type Connection<C> = http2::Connection<
    TokioIo<WriteTimeoutStream>,
    TowerToHyperService<CountInFlight<Grpc<C>>>,
    StreamExecutor,
>;

impl<C: Clock> GracefulConnection for Connection<C> {
    type Error = hyper::Error;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// One client's connection: HTTP/2 with bounds on what it may hold and how long.
pub(crate) fn connection<C: Clock>(
    stream: WriteTimeoutStream,
    services: Grpc<C>,
    activity: &Arc<Activity>,
) -> Connection<C> {
    http2::Builder::new(StreamExecutor {
        client: None,
        idle_timeout: WRITE_TIMEOUT,
    })
    .timer(TokioTimer::new())
    .max_concurrent_streams(MOST_STREAMS)
    .max_header_list_size(LARGEST_HEAD)
    .keep_alive_interval(PING)
    .serve_connection(
        TokioIo::new(stream),
        TowerToHyperService::new(CountInFlight::new(services, activity)),
    )
}

#[cfg(test)]
mod tests;
