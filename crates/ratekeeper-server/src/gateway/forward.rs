//! Forwards requests to an upstream and streams the responses back.

use super::access_log::RequestRecord;
use super::body::{BodyError, IncomingBody, ProxyBody, RequestBody};
use super::client::{BrokenByClient, Client};
use super::headers::{self, RequestHeaderRewriter};
use super::upstream::{
    ExchangeError, ResponseEvent, SelectedUpstream, Timeouts, TriedPeers, UpstreamBody,
    UpstreamConn, UpstreamError, UpstreamRequest,
};
use super::{WorkerState, tunnel};
use crate::api::{Code, Problem};
use axum::body::Bytes;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Request, Response, StatusCode, Version};
use ratekeeper_policy::Attribute;
use ratekeeper_tower::response::NotReached;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use tower_service::Service;

/// Retry-After where it is unknown when an upstream recovers.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// How often a request is sent again to an upstream that did not process it.
const MAX_REFUSALS: u32 = 10;

/// After this many refusals the request becomes the first one on a new connection: on a shared
/// connection with few streams it could be rejected repeatedly, and pooled ones may all be closed.
const SHARED_REFUSALS: u32 = 3;

/// The service that forwards the requests of one client. Clones share that client.
#[derive(Clone)]
pub(super) struct Forward {
    pub(super) worker: Arc<WorkerState>,
    pub(super) client: Arc<Client>,
}

impl Service<Request<IncomingBody>> for Forward {
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ProxyBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<IncomingBody>) -> Self::Future {
        let this = self.clone();
        let max_bytes = this.worker.shared.gateway.max_body;
        let user = this.worker.shared.user.clone();
        let rate = this.worker.shared.body_rate;
        let mut request = request.map(|body| RequestBody::new(body, max_bytes, rate, user));
        // By reference: otherwise the request would be stored in the future of each function that
        // it passes through.
        Box::pin(async move { Ok(this.forward(&mut request).await) })
    }
}

/// Why the chosen upstream gave no response.
enum ForwardError {
    /// Nothing of the request was sent: another upstream may be tried.
    NotSent(UpstreamError),
    Failed(UpstreamError),
    /// The upstream is healthy but did not process the request, however often it was sent. Unless
    /// `has_body`, its body was used up, and no other upstream can be tried.
    Unprocessed {
        error: UpstreamError,
        has_body: bool,
    },
    /// The request body of the client failed.
    Body(Problem),
}

impl Forward {
    async fn forward(&self, request: &mut Request<RequestBody>) -> Response<ProxyBody> {
        let shared = &self.worker.shared;
        let gateway = &shared.gateway;
        let Some(upstreams) = shared.routes.load().find(request).map(Arc::clone) else {
            return not_reached(no_route().plain());
        };
        let mut key = Vec::new();
        if upstreams.is_by_key() {
            self.key(request, &mut key);
        }
        let record = request.extensions_mut().remove::<RequestRecord>();
        let version = request.version();
        // Only a request that may switch protocols still has the header here.
        let upgrade = headers::upgrade(request.headers());
        let timeouts = Timeouts {
            started: Instant::now(),
            idle: gateway.idle_timeout,
            total: gateway.total_timeout,
            sent: request.body().progress(),
        };
        let mut request = UpstreamRequest {
            request,
            rewriter: RequestHeaderRewriter {
                client: &self.client,
                trusted_header: shared.trusted_header(),
                version,
                upgrade,
            },
            timeouts,
        };
        let mut tried = TriedPeers::new();
        loop {
            let mut selected = match upstreams.pick(&key, &tried) {
                Ok(selected) => selected,
                Err(none) => return unavailable(no_upstream(), none.retry_after),
            };
            if let Some(record) = &record {
                record.upstream(&selected.peer.upstream);
            }
            let index = selected.index;
            match self.exchange(&mut selected, &mut request).await {
                Ok(mut response) => {
                    // After the switch either side may stay silent for any time.
                    if let Some(progress) = &request.timeouts.sent {
                        progress.answered.store(true, Relaxed);
                    }
                    selected.report(!is_failure(response.status()));
                    let spoken = response.version();
                    headers::add_via(response.headers_mut(), spoken);
                    // The version of the response is that of the client's connection.
                    *response.version_mut() = version.max(Version::HTTP_11);
                    return response;
                }
                Err(ForwardError::NotSent(error)) => {
                    selected.report(false);
                    tracing::warn!("upstream {}: {error}", selected.peer.upstream);
                    tried.push(index);
                    if tried.len() > gateway.retries as usize
                        || tried.len() >= upstreams.peers.len()
                    {
                        return not_reached(error.problem().plain());
                    }
                }
                Err(ForwardError::Unprocessed { error, has_body }) => {
                    tracing::warn!("upstream {}: {error}", selected.peer.upstream);
                    tried.push(index);
                    if !has_body
                        || tried.len() > gateway.retries as usize
                        || tried.len() >= upstreams.peers.len()
                    {
                        return unavailable(error.problem(), None);
                    }
                }
                Err(ForwardError::Failed(error)) => {
                    selected.report(false);
                    tracing::warn!("upstream {}: {error}", selected.peer.upstream);
                    return own_response(error.problem().plain());
                }
                Err(ForwardError::Body(problem)) => {
                    let mut response = own_response(problem.plain());
                    // The upstream may go on with the part of the request that it has.
                    response.extensions_mut().insert(BrokenByClient);
                    return response;
                }
            }
        }
    }

    /// Writes the key by which the upstream is chosen.
    fn key(&self, request: &Request<RequestBody>, key: &mut Vec<u8>) {
        let shared = &self.worker.shared;
        let value = match &shared.gateway.balance_by {
            Attribute::Path => Some(request.uri().path().as_bytes()),
            Attribute::Header(name) => request.headers().get(&**name).map(HeaderValue::as_bytes),
            _ => None,
        };
        match (
            value,
            shared
                .identity
                .client(self.client.peer.map(|peer| peer.ip()), request.headers())
                .ip(),
        ) {
            (Some(value), _) => key.extend_from_slice(value),
            (None, Some(ip)) => key.extend_from_slice(ip.to_string().as_bytes()),
            (None, None) => {}
        }
    }

    /// Sends the request to the chosen upstream, again where that is safe, until a response comes.
    async fn exchange(
        &self,
        selected: &mut SelectedUpstream,
        request: &mut UpstreamRequest<'_>,
    ) -> Result<Response<ProxyBody>, ForwardError> {
        let pool = &selected.peer.pools[self.worker.number];
        let (connector, upstream) = (&selected.peer.connector, &selected.peer.upstream);
        let (mut refusals, mut is_retry) = (0, false);
        loop {
            // A retry uses a new connection: otherwise a request that crashes the upstream would
            // end all pooled ones.
            let new = is_retry || refusals >= SHARED_REFUSALS;
            // Where nothing could be sent, the connection was open when it was chosen.
            let (mut was_open, mut has_body) = (true, true);
            let error = match pool.begin(connector, upstream, request, new).await {
                Err(error) => error,
                Ok((mut conn, open)) => match self.head(&mut conn, request).await {
                    Ok(head) => return self.respond(head, conn, selected, request),
                    Err(error) => {
                        let body = conn.into_request_body();
                        (was_open, has_body) = (open, body.is_some());
                        *request.request.body_mut() = body.unwrap_or_else(RequestBody::empty);
                        error
                    }
                },
            };
            match error {
                ExchangeError::Unreachable(error) => return Err(ForwardError::NotSent(error)),
                ExchangeError::Request(problem) => return Err(ForwardError::Body(problem)),
                ExchangeError::Body(error) => return Err(ForwardError::Body(body_problem(error))),
                ExchangeError::Failed(error) => return Err(ForwardError::Failed(error)),
                // The connection may have been closed by the upstream at that very moment.
                ExchangeError::Broken(_) if was_open && !is_retry && request.is_retryable() => {
                    is_retry = true;
                }
                ExchangeError::Broken(error) => return Err(ForwardError::Failed(error)),
                ExchangeError::NotSent(_) if was_open && refusals < MAX_REFUSALS => refusals += 1,
                ExchangeError::NotSent(error) => return Err(ForwardError::NotSent(error)),
                ExchangeError::Unprocessed(error) if has_body && refusals < MAX_REFUSALS => {
                    tracing::debug!(%error, "the upstream {upstream} did not process a request");
                    refusals += 1;
                }
                ExchangeError::Unprocessed(error) => {
                    return Err(ForwardError::Unprocessed { error, has_body });
                }
            }
        }
    }

    /// Waits for the head of the response, up to the timeouts. Informational responses are
    /// forwarded at once.
    async fn head(
        &self,
        conn: &mut UpstreamConn,
        request: &UpstreamRequest<'_>,
    ) -> Result<Response<()>, ExchangeError> {
        let version = request.rewriter.version;
        poll_fn(|cx| {
            loop {
                match ready!(conn.poll_response(cx))? {
                    ResponseEvent::Response(head) => return Poll::Ready(Ok(head)),
                    // hyper sends 100 Continue; HTTP/1.0 has no informational responses, and hyper
                    // sends none over HTTP/2.
                    ResponseEvent::Informational(status, headers) => {
                        if version == Version::HTTP_11 && status != StatusCode::CONTINUE {
                            self.client.informational.push(status, &headers);
                        }
                    }
                }
            }
        })
        .await
    }

    /// Turns the connection into the body of the response, or into a tunnel.
    fn respond(
        &self,
        head: Response<()>,
        mut conn: UpstreamConn,
        selected: &mut SelectedUpstream,
        request: &mut UpstreamRequest<'_>,
    ) -> Result<Response<ProxyBody>, ForwardError> {
        let pool = &selected.peer.pools[self.worker.number];
        let mut response = head.map(|()| ProxyBody::empty());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let protocol = headers::upgrade(response.headers());
            let (Some(_), Some(protocol), Some(stream)) =
                (&request.rewriter.upgrade, protocol, conn.into_stream())
            else {
                return Err(ForwardError::Failed(UpstreamError::InvalidResponse(
                    "switched to a protocol that was not requested",
                )));
            };
            headers::strip(response.headers_mut());
            headers::set_upgrade(response.headers_mut(), protocol);
            self.client.tunnel.store(true, Relaxed);
            let idle_timeout = self.worker.shared.gateway.upgrade_timeout;
            tokio::spawn(tunnel::run(
                stream,
                hyper::upgrade::on(&mut *request.request),
                idle_timeout,
                Arc::clone(&self.client),
                selected.active.take(),
            ));
        } else if let Some(body) = conn.take_whole_body() {
            pool.put(conn);
            *response.body_mut() = ProxyBody::Own(Some(body).filter(|body| !body.is_empty()));
        } else {
            let body = UpstreamBody::new(conn, Arc::clone(pool), selected.active.take());
            *response.body_mut() = ProxyBody::Upstream(body);
        }
        Ok(response)
    }
}

/// The problem that a client gets when its own request body fails.
fn body_problem(error: BodyError) -> Problem {
    match error {
        BodyError::TooLarge => too_large(),
        BodyError::Client(_) | BodyError::LengthMismatch => incomplete_body(),
        BodyError::TooSlow => slow_body(),
    }
}

fn incomplete_body() -> Problem {
    Problem::new(
        Code::BrokenBody,
        "the request body ended early or is malformed; send the request again",
    )
}

fn slow_body() -> Problem {
    Problem::new(
        Code::BodyTimeout,
        "the request body came too slowly; send the request again",
    )
}

/// Whether a status means that the upstream is unhealthy, rather than that one request failed.
fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The problem of a request target that is not a path.
pub(super) fn bad_target() -> Problem {
    Problem::new(
        Code::BadTarget,
        "the request target is not a path; write it as in GET /path HTTP/1.1",
    )
}

/// The problem of a request body larger than `max_body`.
pub(super) fn too_large() -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        "the request body is larger than this gateway allows",
    )
}

/// A response of the gateway's own.
pub(super) fn own_response(response: Response<Bytes>) -> Response<ProxyBody> {
    response.map(|bytes| ProxyBody::Own(Some(bytes).filter(|bytes| !bytes.is_empty())))
}

/// The same for a request that never reached an upstream: the limits refund it.
fn not_reached(mut response: Response<Bytes>) -> Response<ProxyBody> {
    response.extensions_mut().insert(NotReached);
    own_response(response)
}

fn no_route() -> Problem {
    Problem::new(
        Code::NotFound,
        "this gateway has no route for the requested host and path",
    )
}

fn no_upstream() -> Problem {
    let detail = "no upstream is available; try again later";
    Problem::new(Code::Unavailable, detail)
}

/// A response to a request that may be retried after a while.
fn unavailable(problem: Problem, retry_after: Option<Duration>) -> Response<ProxyBody> {
    let mut response = problem.plain();
    let wait = retry_after.unwrap_or(DEFAULT_RETRY_AFTER);
    response.headers_mut().insert(
        RETRY_AFTER,
        ratekeeper_tower::response::retry_after(wait).into(),
    );
    not_reached(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        let retry_after = |wait| {
            unavailable(no_upstream(), wait).headers()[RETRY_AFTER]
                .to_str()
                .unwrap()
                .to_owned()
        };
        let (ten, more) = (Duration::from_secs(10), Duration::from_millis(9_001));
        assert_eq!(
            [
                retry_after(Some(ten)),
                retry_after(Some(more)),
                retry_after(Some(Duration::ZERO)),
                retry_after(None)
            ],
            ["10", "10", "1", "1"]
        );
    }
}
