//! Sends a request on to an upstream, and its answer back, both as they come.

use super::access_log::Notes;
use super::body::{BodyError, FromUpstream, Reply, Sent};
use super::client::Client;
use super::upstream::{Link, NotAnswered, Picked, Timer, Times, Tried, Trouble};
use super::{Local, headers, tunnel};
use crate::http::{Code, Problem};
use axum::body::Bytes;
use axum::http::header::{HOST, RETRY_AFTER};
use axum::http::uri::{PathAndQuery, Scheme};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use tokio::time::Instant;
use tollgate_policy::Attribute;
use tollgate_policy::config::Upstream;
use tollgate_tower::NotReached;
use tower_service::Service;

/// Sends the requests of one client on. Clones are of the same client.
#[derive(Clone)]
pub(super) struct Forward {
    pub(super) local: Arc<Local>,
    pub(super) client: Arc<Client>,
}

impl Service<Request<Incoming>> for Forward {
    type Response = Response<Reply>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Reply>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.forward(request).await) })
    }
}

/// Why there is no answer of the upstream that was asked.
enum Failed {
    /// Nothing of the request was sent: another may be asked.
    NotSent(Box<(Request<Sent>, Trouble)>),
    Trouble(Trouble),
    /// It is the client's own body.
    Body(Problem),
}

impl Forward {
    async fn forward(self, mut request: Request<Incoming>) -> Response<Reply> {
        let Local { shared, .. } = &*self.local;
        let gateway = &shared.gateway;
        let mut key = Vec::new();
        if shared.upstreams.is_by_key() {
            self.key(&request, &mut key);
        }
        let notes = request.extensions_mut().remove::<Notes>();
        let version = request.version();
        let upgrade = match version {
            Version::HTTP_11 if !gateway.http2 => headers::upgrade(request.headers()),
            _ => None,
        };
        let upgrade = upgrade.map(|protocol| (protocol, hyper::upgrade::on(&mut request)));
        if version == Version::HTTP_2 {
            headers::one_cookie(request.headers_mut());
        }
        headers::strip(request.headers_mut());
        headers::forwarded(request.headers_mut(), &self.client, shared.identity_header());
        headers::via(request.headers_mut(), version);
        if let Some((protocol, _)) = &upgrade {
            headers::set_upgrade(request.headers_mut(), protocol.clone());
        }
        let mut on_upgrade = upgrade.map(|(_, on_upgrade)| on_upgrade);
        let asked = request.uri().clone();
        let mut request = request.map(|body| Sent::new(body, gateway.max_body));
        *request.extensions_mut() = Default::default();
        let times = Times {
            begun: Instant::now(),
            idle: gateway.idle_timeout,
            total: gateway.total_timeout,
            sent: request.body().progress(),
        };
        let mut tried = Tried::new();
        loop {
            let mut picked = match shared.upstreams.pick(&key, &tried) {
                Ok(picked) => picked,
                Err(none) => return unavailable(none.retry_after),
            };
            if let Some(notes) = &notes {
                notes.upstream(&picked.peer.upstream);
            }
            let index = picked.index;
            // A prefix and a scheme are of the upstream.
            let Some(target) = target(&asked, &picked.peer.upstream, gateway.http2) else {
                return own(bad_target().plain());
            };
            *request.uri_mut() = target;
            let answered = match gateway.http2 {
                // What few requests need has memory of its own, so that the futures of all others are small to move.
                true => Box::pin(self.over_http2(&mut picked, request, &times)).await,
                false => self.over_link(&mut picked, request, &times, &mut on_upgrade).await,
            };
            match answered {
                Ok(mut response) => {
                    picked.judge(!is_failure(response.status()));
                    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                        headers::strip(response.headers_mut());
                    }
                    let spoken = response.version();
                    headers::via(response.headers_mut(), spoken);
                    // The version of an answer is of its connection.
                    *response.version_mut() = version.max(Version::HTTP_11);
                    return response;
                }
                Err(Failed::NotSent(back)) => {
                    let (back, trouble) = *back;
                    picked.judge(false);
                    tracing::warn!("the upstream {}: {trouble}", picked.peer.upstream);
                    tried.push(index);
                    if tried.len() > gateway.retries as usize || tried.len() >= shared.upstreams.peers.len() {
                        return unreached(trouble.problem().plain());
                    }
                    request = back;
                }
                Err(Failed::Trouble(trouble)) => {
                    picked.judge(false);
                    tracing::warn!("the upstream {}: {trouble}", picked.peer.upstream);
                    return own(trouble.problem().plain());
                }
                Err(Failed::Body(problem)) => return own(problem.plain()),
            }
        }
    }

    /// By what the upstream is chosen.
    fn key(&self, request: &Request<Incoming>, key: &mut Vec<u8>) {
        let shared = &self.local.shared;
        let said = match &shared.gateway.balance_by {
            Attribute::Path => Some(request.uri().path().as_bytes()),
            Attribute::Header(name) => request.headers().get(&**name).map(HeaderValue::as_bytes),
            _ => None,
        };
        match (said, shared.identity.client(self.client.peer.map(|peer| peer.ip()), request.headers()).ip()) {
            (Some(said), _) => key.extend_from_slice(said),
            (None, Some(ip)) => key.extend_from_slice(ip.to_string().as_bytes()),
            (None, None) => {}
        }
    }

    /// Over a connection of HTTP/1.1 that nobody else uses, one that was kept or a new one.
    async fn over_link(
        &self,
        picked: &mut Picked,
        mut request: Request<Sent>,
        times: &Times,
        on_upgrade: &mut Option<OnUpgrade>,
    ) -> Result<Response<Reply>, Failed> {
        let Local { shared, pools, .. } = &*self.local;
        let (pool, upstream) = (&pools[picked.index], &picked.peer.upstream);
        *request.version_mut() = Version::HTTP_11;
        // HTTP/1.0 needs no host, HTTP/1.1 does.
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::try_from(format!("{}:{}", upstream.host(), upstream.port()))
        {
            request.headers_mut().insert(HOST, host);
        }
        loop {
            let kept = pool.take().await;
            let was_kept = kept.is_some();
            let mut link = match kept {
                Some(mut link) => {
                    link.timer.begin(times.clone());
                    link
                }
                None => match Box::pin(self.open(upstream, times)).await {
                    Ok(link) => link,
                    Err(trouble) => return Err(not_sent(request, trouble)),
                },
            };
            match answer(&mut link, request).await {
                Ok(mut response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    let protocol = headers::upgrade(response.headers());
                    let (Some(downstream), Some(protocol)) = (on_upgrade.take(), protocol) else {
                        return Err(Failed::Trouble(Trouble::Strange("changed to a protocol that nobody asked for")));
                    };
                    let upstream = hyper::upgrade::on(&mut response);
                    headers::strip(response.headers_mut());
                    headers::set_upgrade(response.headers_mut(), protocol);
                    self.client.tunnel.store(true, Relaxed);
                    let (idle, client) = (shared.gateway.upgrade_timeout, Arc::clone(&self.client));
                    tokio::spawn(tunnel::run(link, upstream, downstream, idle, client, picked.active.take()));
                    return Ok(response.map(|_| Reply::empty()));
                }
                Ok(response) if headers::has_other_codings(response.headers()) => {
                    return Err(Failed::Trouble(Trouble::Strange("answered in a coding that is of one connection")));
                }
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    let mut body = FromUpstream::over_link(body, link, Arc::clone(pool), picked.active.take());
                    // Nobody may ever ask for a body that has ended already.
                    poll_fn(|cx| {
                        body.finish(cx);
                        Poll::Ready(())
                    })
                    .await;
                    return Ok(Response::from_parts(head, Reply::Upstream(body)));
                }
                // One that was kept may have ended in that very moment.
                Err(Failed::NotSent(back)) if was_kept => request = back.0,
                Err(failed) => return Err(failed),
            }
        }
    }

    async fn open(&self, upstream: &Upstream, times: &Times) -> Result<Box<Link>, Trouble> {
        let stream = self.local.shared.connector.connect(upstream).await?;
        Link::new(stream, times.clone()).await.map_err(Trouble::Broken)
    }

    /// Over the one connection of HTTP/2 that this worker has with an upstream.
    async fn over_http2(
        &self,
        picked: &mut Picked,
        mut request: Request<Sent>,
        times: &Times,
    ) -> Result<Response<Reply>, Failed> {
        *request.version_mut() = Version::HTTP_2;
        // It is in the target.
        request.headers_mut().remove(HOST);
        let shared = &self.local.shared;
        let channel = &self.local.channels[picked.index];
        loop {
            let (mut send, was_kept) = match channel.get(&shared.connector, &picked.peer.upstream).await {
                Ok(send) => send,
                Err(trouble) => return Err(not_sent(request, trouble)),
            };
            let mut timer = Timer::new(times.clone());
            let mut answer = pin!(send.try_send_request(request));
            let answered = poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(answered) => Poll::Ready(Ok(answered)),
                Poll::Pending => timer.poll(cx).map(Err),
            });
            match answered.await {
                Ok(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    let body = FromUpstream::over_http2(body, timer, picked.active.take());
                    return Ok(Response::from_parts(head, Reply::Upstream(body)));
                }
                Ok(Err(error)) => match failed(error.into()) {
                    // A new one is made then.
                    Failed::NotSent(back) if was_kept => {
                        channel.forget();
                        request = back.0;
                    }
                    failed => {
                        channel.forget();
                        return Err(failed);
                    }
                },
                Err(overdue) => return Err(Failed::Trouble(Trouble::Late(overdue))),
            }
        }
    }
}

/// Sends a request over a connection, and waits for the head of its answer.
async fn answer(link: &mut Link, request: Request<Sent>) -> Result<Response<Incoming>, Failed> {
    let mut answer = pin!(link.send(request));
    let answered = poll_fn(|cx| {
        link.drive(cx);
        match answer.as_mut().poll(cx) {
            Poll::Ready(answered) => Poll::Ready(answered.map_err(failed)),
            Poll::Pending => link.timer.poll(cx).map(|overdue| Err(Failed::Trouble(Trouble::Late(overdue)))),
        }
    });
    answered.await
}

fn not_sent(request: Request<Sent>, trouble: Trouble) -> Failed {
    Failed::NotSent(Box::new((request, trouble)))
}

/// Whose fault it is.
fn failed(NotAnswered { request, error }: NotAnswered) -> Failed {
    if let Some(request) = request {
        return not_sent(request, Trouble::Broken(error));
    }
    let mut source = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref::<BodyError>() {
            Some(BodyError::TooLarge) => return Failed::Body(too_large()),
            Some(BodyError::Client(_)) => {
                let detail = "the body of the request broke off, or is malformed; send it again";
                return Failed::Body(Problem::new(Code::BrokenBody, detail));
            }
            None => source = cause.source(),
        }
    }
    Failed::Trouble(Trouble::Broken(error))
}

/// Where the upstream has what was asked for; none if that is not a path, as of CONNECT.
fn target(asked: &Uri, upstream: &Upstream, http2: bool) -> Option<Uri> {
    let path = asked.path_and_query()?;
    // All of the service, of `OPTIONS *`, is under no path.
    let path = match upstream.prefix() {
        "" => path.clone(),
        _ if path == "*" => path.clone(),
        prefix => PathAndQuery::try_from(format!("{prefix}{path}")).ok()?,
    };
    if !http2 {
        return Some(path.into());
    }
    let scheme = if upstream.is_tls() { Scheme::HTTPS } else { Scheme::HTTP };
    let authority = match asked.authority() {
        Some(authority) => authority.clone(),
        None => format!("{}:{}", upstream.host(), upstream.port()).parse().ok()?,
    };
    Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
}

/// Whether an answer says that the upstream is not well, rather than that a request went wrong.
fn is_failure(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

pub(super) fn bad_target() -> Problem {
    Problem::new(Code::BadTarget, "the target of the request is no path; send it as in GET /path HTTP/1.1")
}

pub(super) fn too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, "the body of the request is larger than this gateway takes")
}

/// An answer of our own.
pub(super) fn own(response: Response<Bytes>) -> Response<Reply> {
    response.map(|bytes| Reply::Own(Some(bytes).filter(|bytes| !bytes.is_empty())))
}

/// The same for what never reached an upstream: the limits give back what they counted.
fn unreached(mut response: Response<Bytes>) -> Response<Reply> {
    response.extensions_mut().insert(NotReached);
    own(response)
}

fn unavailable(retry_after: Option<std::time::Duration>) -> Response<Reply> {
    let detail = "the service behind this gateway is failing, and is given time to recover; try again later";
    let mut response = Problem::new(Code::Unavailable, detail).plain();
    let seconds = retry_after.map_or(1, |after| after.as_secs() + 1);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    unreached(response)
}
