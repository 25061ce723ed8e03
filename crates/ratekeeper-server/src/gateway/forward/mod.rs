//! Forwards requests to an upstream and streams the responses back.

mod http2;

use super::access_log::RequestRecord;
use super::body::{BodyError, BodyProgressReport, FromClient, FromUpstream, Reply};
use super::client::{BrokenByClient, Client, ProtocolSwitch};
use super::headers::{self, RequestHeaderRewriter};
use super::upstream::{
    H1Error, H1UpstreamConn, Head, SelectedUpstream, TimeoutKind, Timeouts, TriedPeers,
    UpstreamError,
};
use super::{WorkerState, tunnel};
use crate::api::{Code, Problem};
use axum::body::Bytes;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use ratekeeper_policy::Attribute;
use ratekeeper_tower::response::NotReached;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tower_service::Service;

/// Retry-After where it is unknown when an upstream recovers.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// The service that forwards the requests of one client. Clones share that client.
#[derive(Clone)]
pub(super) struct Forward {
    pub(super) local: Arc<WorkerState>,
    pub(super) client: Arc<Client>,
}

impl Service<Request<FromClient>> for Forward {
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Reply>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<FromClient>) -> Self::Future {
        let this = self.clone();
        let most = this.local.shared.gateway.max_body;
        let user = this.local.shared.user.clone();
        let rate = this.local.shared.body_rate;
        let mut request = request.map(|body| BodyProgressReport::new(body, most, rate, user));
        // By reference: else the request would be stored in the future of each function that it
        // passes through.
        Box::pin(async move { Ok(this.forward(&mut request).await) })
    }
}

/// Why the chosen upstream gave no response.
enum ForwardError {
    /// Nothing of the request was sent: another upstream may be tried.
    NotSent(UpstreamError),
    Trouble(UpstreamError),
    /// The upstream is healthy but did not process the request, however often it was sent. With a
    /// body it cannot be sent to another upstream.
    Refused {
        trouble: UpstreamError,
        has_body: bool,
    },
    /// The request body of the client failed.
    Body(Problem),
}

impl Forward {
    async fn forward(&self, request: &mut Request<BodyProgressReport>) -> Response<Reply> {
        let WorkerState { shared, .. } = &*self.local;
        let gateway = &shared.gateway;
        let mut key = Vec::new();
        if shared.upstreams.is_by_key() {
            self.key(request, &mut key);
        }
        let notes = request.extensions_mut().remove::<RequestRecord>();
        let version = request.version();
        // Only a request that may switch protocols still has the header here.
        let upgrade = headers::upgrade(request.headers());
        let onward = RequestHeaderRewriter {
            client: &self.client,
            believed: shared.identity_header(),
            version,
            upgrade,
        };
        let times = Timeouts {
            begun: Instant::now(),
            idle: gateway.idle_timeout,
            total: gateway.total_timeout,
            sent: request.body().progress(),
        };
        let mut tried = TriedPeers::new();
        loop {
            let mut picked = match shared.upstreams.pick(&key, &tried) {
                Ok(picked) => picked,
                Err(none) => return unavailable(recovering(), none.retry_after),
            };
            if let Some(notes) = &notes {
                notes.upstream(&picked.peer.upstream);
            }
            let index = picked.index;
            let answered = match gateway.http2 {
                // Boxed, as few requests need it: the futures of all others are cheaper to move.
                true => Box::pin(self.over_http2(&mut picked, request, &onward, &times)).await,
                false => self.over_link(&mut picked, request, &onward, &times).await,
            };
            match answered {
                Ok(mut response) => {
                    // From now on either side may stay silent, as the two of them agree.
                    if let Some(progress) = &times.sent {
                        progress.answered.store(true, Relaxed);
                    }
                    picked.judge(!is_failure(response.status()));
                    let spoken = response.version();
                    headers::via(response.headers_mut(), spoken);
                    // The version of the response is that of the client's connection.
                    *response.version_mut() = version.max(Version::HTTP_11);
                    return response;
                }
                Err(ForwardError::NotSent(trouble)) => {
                    picked.judge(false);
                    tracing::warn!("the upstream {}: {trouble}", picked.peer.upstream);
                    tried.push(index);
                    if tried.len() > gateway.retries as usize
                        || tried.len() >= shared.upstreams.peers.len()
                    {
                        return unreached(trouble.problem().plain());
                    }
                }
                Err(ForwardError::Refused { trouble, has_body }) => {
                    tracing::warn!("the upstream {}: {trouble}", picked.peer.upstream);
                    tried.push(index);
                    if !has_body
                        || tried.len() > gateway.retries as usize
                        || tried.len() >= shared.upstreams.peers.len()
                    {
                        return unavailable(trouble.problem(), None);
                    }
                }
                Err(ForwardError::Trouble(trouble)) => {
                    picked.judge(false);
                    tracing::warn!("the upstream {}: {trouble}", picked.peer.upstream);
                    return own(trouble.problem().plain());
                }
                Err(ForwardError::Body(problem)) => {
                    let mut response = own(problem.plain());
                    // The upstream may go on with the part of the request that it has.
                    response.extensions_mut().insert(BrokenByClient);
                    return response;
                }
            }
        }
    }

    /// Writes the key by which the upstream is chosen.
    fn key(&self, request: &Request<BodyProgressReport>, key: &mut Vec<u8>) {
        let shared = &self.local.shared;
        let said = match &shared.gateway.balance_by {
            Attribute::Path => Some(request.uri().path().as_bytes()),
            Attribute::Header(name) => request.headers().get(&**name).map(HeaderValue::as_bytes),
            _ => None,
        };
        match (
            said,
            shared
                .identity
                .client(self.client.peer.map(|peer| peer.ip()), request.headers())
                .ip(),
        ) {
            (Some(said), _) => key.extend_from_slice(said),
            (None, Some(ip)) => key.extend_from_slice(ip.to_string().as_bytes()),
            (None, None) => {}
        }
    }

    /// Sends the request over an HTTP/1.1 connection, a pooled one or a new one.
    async fn over_link(
        &self,
        picked: &mut SelectedUpstream,
        request: &mut Request<BodyProgressReport>,
        onward: &RequestHeaderRewriter<'_>,
        times: &Timeouts,
    ) -> Result<Response<Reply>, ForwardError> {
        let WorkerState { shared, pools, .. } = &*self.local;
        let (pool, upstream) = (&pools[picked.index], &picked.peer.upstream);
        let mut is_repeated = false;
        loop {
            // A retry uses a new connection: else a request that crashes the upstream would end all
            // pooled ones.
            let kept = if is_repeated { None } else { pool.take().await };
            let was_kept = kept.is_some();
            let mut link = match kept {
                Some(mut link) => {
                    link.timer.begin(times.clone());
                    link
                }
                None => {
                    let opening = Box::pin(shared.connector.connect(upstream));
                    H1UpstreamConn::new(
                        opening.await.map_err(ForwardError::NotSent)?,
                        times.clone(),
                    )
                }
            };
            link.begin(request, upstream, onward);
            let Head {
                status,
                headers,
                is_http10,
                ..
            } = match self.answer(&mut link, onward.version).await {
                Ok(head) => head,
                // Not the upstream's fault.
                Err(ClientGone::Late(_)) if link.waits_for_client() => {
                    return Err(ForwardError::Body(slow_body()));
                }
                Err(ClientGone::Late(overdue)) => {
                    return Err(ForwardError::Trouble(UpstreamError::Late(overdue)));
                }
                Err(ClientGone::Broken(fault)) => {
                    let unsent = link
                        .unsent()
                        .map(|body| *request.body_mut() = body)
                        .is_some();
                    // A safe request may be sent twice.
                    let again = unsent || !link.has_heard() && is_repeatable(request, times);
                    match fault {
                        H1Error::Body(error) => return Err(ForwardError::Body(own_fault(error))),
                        // A pooled connection may have been closed by the upstream at that very
                        // moment.
                        H1Error::Io(_) | H1Error::Closed if again && was_kept => {
                            is_repeated = !unsent;
                            continue;
                        }
                        H1Error::Io(_) | H1Error::Closed if unsent => {
                            return Err(ForwardError::NotSent(UpstreamError::Fault(fault)));
                        }
                        fault => return Err(ForwardError::Trouble(UpstreamError::Fault(fault))),
                    }
                }
            };
            let mut response = Response::new(Reply::empty());
            *response.status_mut() = status;
            *response.version_mut() = if is_http10 {
                Version::HTTP_10
            } else {
                Version::HTTP_11
            };
            *response.headers_mut() = headers;
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let protocol = headers::upgrade(response.headers());
                let (Some(_), Some(protocol)) = (&onward.upgrade, protocol) else {
                    return Err(ForwardError::Trouble(UpstreamError::Strange(
                        "switched to a protocol that was not requested",
                    )));
                };
                headers::strip(response.headers_mut());
                headers::set_upgrade(response.headers_mut(), protocol);
                self.client.tunnel.store(true, Relaxed);
                let (idle, client) = (shared.gateway.upgrade_timeout, Arc::clone(&self.client));
                let (switch, downstream) = ProtocolSwitch::new();
                response.extensions_mut().insert(switch);
                tokio::spawn(tunnel::run(
                    link,
                    downstream,
                    idle,
                    client,
                    picked.active.take(),
                ));
            } else if let Some(body) = link.whole_body() {
                pool.give(link);
                *response.body_mut() = Reply::Own(Some(body).filter(|body| !body.is_empty()));
            } else {
                let body = FromUpstream::over_link(link, Arc::clone(pool), picked.active.take());
                *response.body_mut() = Reply::Upstream(body);
            }
            return Ok(response);
        }
    }

    /// Waits for the head of the response, up to the timeouts. Informational responses are
    /// forwarded at once.
    async fn answer(
        &self,
        link: &mut H1UpstreamConn,
        version: Version,
    ) -> Result<Head, ClientGone<H1Error>> {
        poll_fn(|cx| {
            loop {
                match link.poll_head(cx) {
                    Poll::Ready(Ok(head)) if head.only_informs() => {
                        self.inform(version, head.status, &head.headers, cx);
                    }
                    Poll::Ready(head) => return Poll::Ready(head.map_err(ClientGone::Broken)),
                    Poll::Pending => {
                        return link
                            .timer
                            .poll(cx)
                            .map(|overdue| Err(ClientGone::Late(overdue)));
                    }
                }
            }
        })
        .await
    }
    /// Forwards an informational response.
    fn inform(
        &self,
        version: Version,
        status: StatusCode,
        headers: &HeaderMap,
        cx: &mut Context<'_>,
    ) {
        // The gateway itself sends 100 Continue; HTTP/1.0 has no informational responses.
        if let (Version::HTTP_11, Some(informed)) = (version, self.client.informed.get())
            && status != StatusCode::CONTINUE
        {
            informed.tell(status, headers, cx);
        }
    }
}

/// Why there is no response head.
enum ClientGone<E> {
    Broken(E),
    Late(TimeoutKind),
}

/// Whether a request without a response may be sent again: its method is safe, and no body was
/// consumed.
fn is_repeatable(request: &Request<BodyProgressReport>, times: &Timeouts) -> bool {
    request.method().is_safe() && times.sent.is_none()
}

/// The problem that a client gets when its own request body fails.
fn own_fault(error: BodyError) -> Problem {
    match error {
        BodyError::TooLarge => too_large(),
        BodyError::Client(_) | BodyError::Length => broken_body(),
        BodyError::Slow => slow_body(),
    }
}

fn broken_body() -> Problem {
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

/// Whether a status says that the upstream is unhealthy, rather than that a request failed.
fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

pub(super) fn bad_target() -> Problem {
    Problem::new(
        Code::BadTarget,
        "the request target is not a path; write it as in GET /path HTTP/1.1",
    )
}

pub(super) fn too_large() -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        "the request body is larger than this gateway allows",
    )
}

/// A response of the gateway's own.
pub(super) fn own(response: Response<Bytes>) -> Response<Reply> {
    response.map(|bytes| Reply::Own(Some(bytes).filter(|bytes| !bytes.is_empty())))
}

/// The same for a request that never reached an upstream: the limits refund it.
fn unreached(mut response: Response<Bytes>) -> Response<Reply> {
    response.extensions_mut().insert(NotReached);
    own(response)
}

fn recovering() -> Problem {
    let detail = "no upstream is available; try again later";
    Problem::new(Code::Unavailable, detail)
}

/// A response to a request that may be retried after a while.
fn unavailable(problem: Problem, retry_after: Option<Duration>) -> Response<Reply> {
    let mut response = problem.plain();
    let wait = retry_after.unwrap_or(UNKNOWN_WAIT);
    response.headers_mut().insert(
        RETRY_AFTER,
        ratekeeper_tower::response::retry_after(wait).into(),
    );
    unreached(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_not_a_second_too_long() {
        let told = |wait| {
            unavailable(recovering(), wait).headers()[RETRY_AFTER]
                .to_str()
                .unwrap()
                .to_owned()
        };
        let (ten, more) = (Duration::from_secs(10), Duration::from_millis(9_001));
        assert_eq!(
            [
                told(Some(ten)),
                told(Some(more)),
                told(Some(Duration::ZERO)),
                told(None)
            ],
            ["10", "10", "1", "1"]
        );
    }
}
