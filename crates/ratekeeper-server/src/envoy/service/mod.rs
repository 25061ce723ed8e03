//! gRPC: the rate limit service, health and reflection, on plain HTTP/2.

use super::decide::DecideError;
use super::health::HealthService;
use super::proto::{
    DESCRIPTORS, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
    SERVICE_NAME,
};
use super::request_body::RequestBody;
use crate::app::App;
use crate::gateway::{BodyRate, StreamExecutor};
use crate::net::connections::{Activity, CountInFlight};
use crate::net::worker::GracefulConnection;
use crate::net::write_timeout::{WRITE_TIMEOUT, WriteTimeoutStream};
use axum::http::{Request, Response};
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

/// Size limit of a message, far more than a request needs.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Size limit of the headers of a request.
const MAX_HEAD_BYTES: u32 = 16 * 1024;

/// Number of concurrent requests on one connection.
const MAX_STREAMS: u32 = 1024;

/// Interval of HTTP/2 pings on an idle connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Timeout for the message of a unary request.
const UNARY_BODY_RATE: BodyRate = BodyRate {
    timeout: Duration::from_secs(10),
    min_rate: NonZero::new(1_024).unwrap(),
};

/// Timeout for a stream of messages, which a person may type; each byte extends it by a second.
const STREAM_BODY_RATE: BodyRate = BodyRate {
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
        let timeout = timeout(request.metadata());
        match self.0.envoy.decide(request.get_ref(), timeout).await {
            Ok(response) => Ok(tonic::Response::new(response)),
            Err(DecideError::Invalid(message)) => Err(Status::invalid_argument(message)),
            Err(DecideError::Unavailable(message)) => Err(Status::unavailable(message)),
        }
    }
}

/// The caller's timeout from `grpc-timeout`: up to eight digits and a unit. An invalid value is
/// ignored, as defined by gRPC.
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

type ResponseFuture = BoxFuture<Response<body::Body>, Infallible>;

/// A version of the reflection service.
type ReflectionHandler = Arc<dyn Fn(Request<RequestBody>) -> ResponseFuture + Send + Sync>;

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
            limits: limits.max_decoding_message_size(MAX_MESSAGE_BYTES),
            health,
            reflection: reflection(),
        }
    }
}

/// Both versions of the reflection service: older clients use the alpha one.
fn reflection() -> [(&'static str, ReflectionHandler); 2] {
    let builder = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = builder()
        .build_v1()
        .expect("generated descriptors are valid");
    let v1alpha = builder()
        .build_v1alpha()
        .expect("generated descriptors are valid");
    [handler(v1), handler(v1alpha)]
}

fn handler<S>(service: S) -> (&'static str, ReflectionHandler)
where
    S: Service<
            Request<RequestBody>,
            Response = Response<body::Body>,
            Error = Infallible,
            Future = ResponseFuture,
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
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> ResponseFuture {
        let service = request
            .uri()
            .path()
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        let with_timeout =
            |rate, request: Request<Incoming>| request.map(|body| RequestBody::new(body, rate));
        if service == RATE_LIMIT {
            return self.limits.call(with_timeout(UNARY_BODY_RATE, request));
        }
        if service == HealthServer::<HealthService<C>>::NAME {
            return self.health.call(with_timeout(UNARY_BODY_RATE, request));
        }
        match self.reflection.iter().find(|(name, _)| *name == service) {
            Some((_, handler)) => handler(with_timeout(STREAM_BODY_RATE, request)),
            None => Box::pin(async {
                Ok(Status::new(Code::Unimplemented, "unknown service").into_http())
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

/// A client connection: HTTP/2 with limits and timeouts.
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
    .max_concurrent_streams(MAX_STREAMS)
    .max_header_list_size(MAX_HEAD_BYTES)
    .keep_alive_interval(PING_INTERVAL)
    .serve_connection(
        TokioIo::new(stream),
        TowerToHyperService::new(CountInFlight::new(services, activity)),
    )
}

#[cfg(test)]
mod tests;
