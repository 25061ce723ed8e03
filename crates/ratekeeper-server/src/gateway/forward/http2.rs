//! Forwards a request over HTTP/2, and retries it if the upstream did not process it.

use super::{
    ExchangeError, Forward, ForwardError, bad_target, body_problem, is_retryable, slow_body,
};
use crate::config::Upstream;
use crate::gateway::body::{ProxyBody, RequestBody, UpstreamBody};
use crate::gateway::headers::{self, RequestHeaderRewriter};
use crate::gateway::upstream::{
    Http2Body, Http2Error, Http2Exchange, ResponseEvent, SelectedUpstream, Timeouts, Timer,
    UpstreamError, authority,
};
use axum::http::header::HOST;
use axum::http::response::Parts;
use axum::http::{HeaderValue, Request, Response, Uri, Version};
use http::uri::{PathAndQuery, Scheme};
use std::future::poll_fn;
use std::task::Poll;

/// How often a request is sent again to an upstream that did not process it.
const MAX_REFUSALS: u32 = 10;

/// After this many rejections the request becomes the first one on a new connection: on a shared
/// connection with few streams it could be rejected repeatedly.
const SHARED_REFUSALS: u32 = 3;

impl Forward {
    /// Sends the request over one of this worker's HTTP/2 connections to an upstream.
    pub(super) async fn over_http2(
        &self,
        selected: &mut SelectedUpstream,
        request: &mut Request<RequestBody>,
        rewriter: &RequestHeaderRewriter<'_>,
        timeouts: &Timeouts,
    ) -> Result<Response<ProxyBody>, ForwardError> {
        let shared = &self.worker.shared;
        let pool = &self.worker.http2_pools[selected.index];
        let Some(target) = target(request, &selected.peer.upstream) else {
            return Err(ForwardError::Body(bad_target()));
        };
        let mut timer = Timer::new(timeouts.clone());
        let (mut refusals, mut is_retry) = (0, false);
        loop {
            let upstream = &selected.peer.upstream;
            let opened = pool
                .stream(&shared.connector, upstream, refusals >= SHARED_REFUSALS)
                .await;
            let (stream, was_open) = opened.map_err(ForwardError::NotSent)?;
            let head = head(request, target.clone(), rewriter);
            let mut exchange = match Http2Exchange::send(
                stream,
                head,
                request.body_mut(),
                rewriter.trusted_header,
            ) {
                Ok(exchange) => exchange,
                // The connection has ended since it was checked.
                Err(error) => {
                    refusals += 1;
                    if refusals > MAX_REFUSALS {
                        return Err(ForwardError::NotSent(UpstreamError::Http2(error)));
                    }
                    continue;
                }
            };
            match self
                .http2_response(&mut exchange, &mut timer, rewriter.version)
                .await
            {
                Ok((mut head, mut body)) => {
                    headers::strip(&mut head.headers);
                    let body = match body.take_whole() {
                        Some(whole) => {
                            ProxyBody::Own(Some(whole).filter(|whole| !whole.is_empty()))
                        }
                        None => ProxyBody::Upstream(UpstreamBody::over_http2(
                            body,
                            timer,
                            selected.active.take(),
                        )),
                    };
                    return Ok(Response::from_parts(head, body));
                }
                // Not the upstream's fault.
                Err(ExchangeError::Timeout(_)) if exchange.waits_for_client() => {
                    return Err(ForwardError::Body(slow_body()));
                }
                Err(ExchangeError::Timeout(kind)) => {
                    return Err(ForwardError::Failed(UpstreamError::Timeout(kind)));
                }
                Err(ExchangeError::Broken(Http2Error::Body(error))) => {
                    return Err(ForwardError::Body(body_problem(error)));
                }
                Err(ExchangeError::Broken(Http2Error::Unprocessed(error))) => {
                    let Some(body) = exchange.into_body() else {
                        return Err(ForwardError::Unprocessed {
                            error: UpstreamError::Unprocessed(error),
                            has_body: false,
                        });
                    };
                    *request.body_mut() = body;
                    refusals += 1;
                    if refusals > MAX_REFUSALS {
                        return Err(ForwardError::Unprocessed {
                            error: UpstreamError::Unprocessed(error),
                            has_body: true,
                        });
                    }
                    tracing::debug!(%error, "the upstream {} did not process a request", upstream);
                }
                // A connection that was open before may have ended at that very moment.
                Err(ExchangeError::Broken(Http2Error::Broken(error))) => {
                    if error.is_reset() || !was_open || is_retry || !is_retryable(request, timeouts)
                    {
                        return Err(ForwardError::Failed(UpstreamError::Http2(error)));
                    }
                    is_retry = true;
                }
            }
        }
    }

    /// Waits for a response, up to the timeouts. Informational responses are forwarded at once.
    async fn http2_response(
        &self,
        exchange: &mut Http2Exchange,
        timer: &mut Timer,
        version: Version,
    ) -> Result<(Parts, Http2Body), ExchangeError<Http2Error>> {
        poll_fn(|cx| {
            loop {
                match exchange.poll(cx) {
                    Poll::Ready(Ok(ResponseEvent::Informational(status, mut headers))) => {
                        headers::strip(&mut headers);
                        self.inform(version, status, &headers, cx);
                    }
                    Poll::Ready(Ok(ResponseEvent::Response(head, body))) => {
                        return Poll::Ready(Ok((head, body)));
                    }
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(ExchangeError::Broken(error)));
                    }
                    Poll::Pending => {
                        return timer.poll(cx).map(|kind| Err(ExchangeError::Timeout(kind)));
                    }
                }
            }
        })
        .await
    }
}

/// The head of the request in HTTP/2 form.
fn head(
    request: &Request<RequestBody>,
    target: Uri,
    rewriter: &RequestHeaderRewriter<'_>,
) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    (*head.uri_mut(), *head.version_mut()) = (target, Version::HTTP_2);
    rewriter.for_each(request.headers(), |name, value| {
        // The host is in the target. Header values stay valid.
        if let (true, Ok(value)) = (name != HOST, HeaderValue::from_bytes(value)) {
            head.headers_mut().append(name, value);
        }
    });
    head
}

/// The URI of the request at an HTTP/2 upstream, or `None` if it is not a valid target.
fn target(request: &Request<RequestBody>, upstream: &Upstream) -> Option<Uri> {
    let uri = request.uri();
    let path = uri.path_and_query()?;
    // The target `*` of `OPTIONS *` stands for the whole service and has no path.
    let path = match upstream.prefix() {
        "" => path.clone(),
        _ if path == "*" => path.clone(),
        prefix => PathAndQuery::try_from(format!("{prefix}{path}")).ok()?,
    };
    let scheme = if upstream.is_tls() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    };
    let authority = match uri.authority() {
        Some(authority) => authority.clone(),
        // The host that an HTTP/1.1 client requests.
        None => {
            let host = request
                .headers()
                .get(HOST)
                .and_then(|host| host.to_str().ok()?.parse().ok());
            host.or_else(|| authority(upstream).parse().ok())?
        }
    };
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query(path)
        .build()
        .ok()
}
