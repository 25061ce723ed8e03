//! Serves one request of a client: validates it, applies the limits, forwards it, logs it.

use super::abandoned::{
    self, Exchange, MAX_ABANDONED, take_permit_if_broken, take_permit_if_upload_failed,
};
use super::request_body::{DiscardBody, Http1Body, UnreadBody, UnreadBodySlot};
use super::state::{Client, InFlightRequest};
use super::streams::StreamProgress;
use crate::api::{Code, Problem};
use crate::gateway::access_log::{LogEntry, RequestRecord};
use crate::gateway::body::{IncomingBody, ProxyBody};
use crate::gateway::forward::{self, Forward};
use crate::gateway::{GatewayDecider, WorkerState, headers};
use crate::observe::traces::{Span, TRACEPARENT};
use axum::body::Bytes;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use axum::http::uri::PathAndQuery;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use ratekeeper_tower::{RateLimit, ResponseBody, rate_limit::Pending, rate_limit::ResponseFuture};
use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a client.
const MAX_REQUEST_ID: usize = 128;

/// The service for the requests of one connection.
pub(super) struct ClientService {
    worker: Arc<WorkerState>,
    client: Arc<Client>,
    /// Called for one request after the other.
    limited: RefCell<RateLimit<Forward, GatewayDecider>>,
}

impl ClientService {
    pub(super) fn new(worker: &Arc<WorkerState>, client: &Arc<Client>) -> Self {
        let forward = Forward {
            worker: Arc::clone(worker),
            client: Arc::clone(client),
        };
        let limited = RefCell::new(worker.shared.layer.layer(forward));
        Self {
            worker: Arc::clone(worker),
            client: Arc::clone(client),
            limited,
        }
    }

    /// Validates a request before the limits decide on it, and removes headers that are not
    /// forwarded.
    fn validate(&self, request: &mut Request<IncomingBody>) -> Result<(), Problem> {
        let gateway = &self.worker.shared.gateway;
        if self.client.abandoned.is_full() {
            let detail = format!(
                "{MAX_ABANDONED} requests that this connection reset are still running at an upstream; wait until they have ended"
            );
            return Err(Problem::new(Code::Unavailable, detail));
        }
        if request.method() == Method::CONNECT || request.uri().path_and_query().is_none() {
            return Err(forward::bad_target());
        }
        add_root_path(request.uri_mut());
        let (authority, version) = (request.uri().authority().cloned(), request.version());
        // Over HTTP/1 they were counted when the head was read.
        if version == Version::HTTP_2 && headers::count(request.headers()) > gateway.max_headers {
            return Err(Problem::new(
                Code::HeadTooLarge,
                "the request has more headers than this gateway allows",
            ));
        }
        headers::validate_host(
            request.headers_mut(),
            authority.as_ref(),
            version,
            &gateway.hosts,
        )?;
        if let Some(user) = &self.worker.shared.user {
            user.strip(
                self.client.peer.map(|peer| peer.ip()),
                request.headers_mut(),
            );
        }
        if headers::has_other_codings(request.headers()) {
            return Err(Problem::new(
                Code::UnknownCoding,
                "the only supported Transfer-Encoding is chunked",
            ));
        }
        if let Some(max) = gateway.max_body {
            let length = request
                .headers()
                .get(CONTENT_LENGTH)
                .and_then(|length| length.to_str().ok()?.parse().ok());
            if length.is_some_and(|length: u64| length > max) {
                return Err(forward::too_large());
            }
        }
        headers::strip_request(
            request.headers_mut(),
            version == Version::HTTP_11 && !gateway.http2,
        );
        if version == Version::HTTP_2 {
            headers::join_cookies(request.headers_mut());
        }
        Ok(())
    }
}

/// Adds the path `/` to a target with a query and no path, such as `http://example.com?q=1`.
fn add_root_path(uri: &mut Uri) {
    let Some(query) = uri
        .path_and_query()
        .map(PathAndQuery::as_str)
        .filter(|path| path.starts_with('?'))
    else {
        return;
    };
    let mut parts = uri.clone().into_parts();
    // A query is still valid after a slash.
    parts.path_and_query = PathAndQuery::try_from(format!("/{query}")).ok();
    if let Ok(whole) = Uri::from_parts(parts) {
        *uri = whole;
    }
}

impl hyper::service::Service<Request<Incoming>> for ClientService {
    type Response = Response<ClientResponseBody>;
    type Error = Infallible;
    type Future = ClientResponseFuture;

    /// Starts answering a request.
    fn call(&self, request: Request<Incoming>) -> ClientResponseFuture {
        let mut unread = None;
        let mut request = request.map(|body| {
            if self.client.is_shared.load(Relaxed) {
                IncomingBody::Http2(body)
            } else if body.is_end_stream() {
                IncomingBody::None
            } else {
                let (body, slot) = Http1Body::new(body);
                unread = Some(slot);
                IncomingBody::Http1(body)
            }
        });
        let in_flight = InFlightRequest::new(&self.client);
        let shared = &self.worker.shared;
        let version = request.version();
        if version != Version::HTTP_2 {
            self.client.on_read(false);
        }
        let is_head = request.method() == Method::HEAD;
        let mut entry = shared.log.as_ref().map(|log| {
            let host = request
                .headers()
                .get(HOST)
                .and_then(|host| host.to_str().ok());
            let host = host.or_else(|| {
                request
                    .uri()
                    .authority()
                    .map(|authority| authority.as_str())
            });
            let head = (request.method(), request.uri(), host);
            Box::new(LogEntry::new(
                log,
                head,
                self.client.peer.map(|peer| peer.ip()),
                version_name(version),
            ))
        });
        if let Some(entry) = &mut entry {
            entry.request_id = request_id(request.headers_mut());
        }
        let mut span = shared
            .traces
            .as_ref()
            .and_then(|tracer| tracer.begin(request.headers(), request.method()));
        let record = entry
            .as_ref()
            .map(|entry| entry.record())
            .or_else(|| span.as_ref().map(|_| RequestRecord::default()));
        if let Some(span) = &mut span {
            span.record.clone_from(&record);
            // The upstream's spans become children of this one.
            if let Some(context) = span.traceparent() {
                request.headers_mut().insert(TRACEPARENT, context);
            }
        }
        // After 100 Continue a client sends the body; without it, that is unknown.
        let mut must_close = false;
        let expects_continue = unread.is_some() && request.headers().contains_key(EXPECT);
        let state = match self.validate(&mut request) {
            Err(problem) => {
                // Another reader may find another end of a body in an unknown coding.
                must_close |= headers::has_other_codings(request.headers());
                State::Rejected { problem }
            }
            Ok(()) => {
                if let Some(record) = record {
                    request.extensions_mut().insert::<RequestRecord>(record);
                }
                // The inner service is always ready.
                let peer = self.client.peer.map(|peer| peer.ip());
                State::LimitedFuture {
                    future: self.limited.borrow_mut().call_from(peer, request),
                }
            }
        };
        let rest = Some((in_flight, (entry, span.map(Box::new))));
        ClientResponseFuture {
            state,
            rest,
            unread,
            expects_continue,
            must_close,
            version,
            is_head,
        }
    }
}

/// The id of a request, also sent to the upstream: the client's, or else a new one.
fn request_id(headers: &mut HeaderMap) -> String {
    let is_usable = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match headers
        .get(REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(is_usable)
    {
        Some(id) => id.to_owned(),
        None => {
            let id = format!("{:032x}", fastrand::u128(..));
            // Hexadecimal digits are a valid value.
            if let Ok(value) = HeaderValue::from_str(&id) {
                headers.insert(REQUEST_ID, value);
            }
            id
        }
    }
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// Where the outcome of a request is recorded: an access log entry and a span.
type RequestRecords = (Option<Box<LogEntry>>, Option<Box<Span>>);

type LimitedResponse = Response<ResponseBody<ProxyBody, Pending<GatewayDecider>>>;

pub(super) type LimitedFuture = ResponseFuture<Forward, IncomingBody, GatewayDecider>;

/// The response to a request.
pub(super) struct ClientResponseFuture {
    state: State,
    rest: Option<(InFlightRequest, RequestRecords)>,
    /// Where the body of an HTTP/1 request goes if it is not read to its end.
    unread: Option<Arc<UnreadBodySlot>>,
    /// Whether the client sends its body after 100 Continue.
    expects_continue: bool,
    /// Whether the connection must end with the response.
    must_close: bool,
    version: Version,
    is_head: bool,
}

/// The phase of a request.
enum State {
    Rejected {
        problem: Problem,
    },
    LimitedFuture {
        future: LimitedFuture,
    },
    /// The rest of the request precedes the next one. It is discarded, as far as it has come.
    Discarding(Box<(LimitedResponse, DiscardBody)>),
    Done,
}

impl Future for ClientResponseFuture {
    type Output = Result<Response<ClientResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut response = match &mut this.state {
            State::Rejected { problem } => {
                forward::own_response(problem.plain()).map(ResponseBody::from)
            }
            State::LimitedFuture { future } => {
                let Poll::Ready(Ok(response)) = Pin::new(future).poll(cx) else {
                    StreamProgress::Waiting.record();
                    return Poll::Pending;
                };
                response
            }
            State::Discarding(discarding) => {
                this.must_close |= !ready!(discarding.1.poll(cx));
                std::mem::take(&mut discarding.0)
            }
            State::Done => return Poll::Pending,
        };
        // Drops what is left of the request.
        this.state = State::Done;
        match this
            .unread
            .take()
            .map_or(UnreadBody::Nothing, |slot| slot.take())
        {
            UnreadBody::Rest(body) if !this.expects_continue => {
                this.state = State::Discarding(Box::new((response, DiscardBody::new(body))));
                return self.poll(cx);
            }
            UnreadBody::Nothing => {}
            UnreadBody::Rest(_) | UnreadBody::Failed => this.must_close = true,
        }
        if let (Some(permit), Some((in_flight, _))) =
            (take_permit_if_broken(&mut response), &this.rest)
        {
            abandoned::keep(in_flight.client(), Exchange::Permit(permit));
        }
        match this.version {
            Version::HTTP_2 if this.is_head => discard_body(&mut response),
            Version::HTTP_2 => {}
            _ => this.must_close |= complete_http1(&mut response, this.version, this.is_head),
        }
        let (in_flight, records) = this.rest.take().unzip();
        let (mut entry, mut span) = records.unwrap_or_default();
        let is_last = in_flight.as_ref().is_some_and(InFlightRequest::is_last);
        if (is_last || this.must_close)
            && this.version != Version::HTTP_2
            && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
            // To a response of a later version hyper adds that the connection is kept.
            *response.version_mut() = this.version;
        }
        if let Some(span) = &mut span {
            span.status = response.status().as_u16();
        }
        if let Some(entry) = &mut entry {
            entry.status = response.status().as_u16();
            entry.whole = response.body().is_end_stream();
        }
        Poll::Ready(Ok(response.map(|body| ClientResponseBody {
            body,
            entry,
            _span: span,
            in_flight,
        })))
    }
}

/// If the client leaves or is cut off before the upstream has answered, the exchange is abandoned.
impl Drop for ClientResponseFuture {
    fn drop(&mut self) {
        if let Some((in_flight, _)) = &self.rest
            && let State::LimitedFuture { future } = &self.state
            && future.holds_permit()
            && let State::LimitedFuture { future } = mem::replace(&mut self.state, State::Done)
        {
            abandoned::keep(in_flight.client(), Exchange::Unanswered(future));
        }
    }
}

/// Prepares a response for hyper's HTTP/1 server. Returns whether the connection ends with it.
fn complete_http1(response: &mut LimitedResponse, version: Version, is_head: bool) -> bool {
    if response.body().is_end_stream() {
        // hyper sends a length without a body only in response to HEAD, and logs any other.
        if !is_head {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        return false;
    }
    // An HTTP/1.0 client knows no chunks.
    version == Version::HTTP_10 && !is_head && response.body().size_hint().exact().is_none()
}

/// Discards the body of a response to HEAD, which hyper would send over HTTP/2. The Content-Length
/// stays.
fn discard_body(response: &mut LimitedResponse) {
    if response.body().is_end_stream() {
        return;
    }
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    *response.body_mut() = ResponseBody::from(ProxyBody::empty());
}

/// The body of a response on its way to the client. The request ends with it.
pub(super) struct ClientResponseBody {
    body: ResponseBody<ProxyBody, Pending<GatewayDecider>>,
    entry: Option<Box<LogEntry>>,
    _span: Option<Box<Span>>,
    in_flight: Option<InFlightRequest>,
}

/// If the client leaves or is cut off before the end of the response, the exchange is abandoned.
impl Drop for ClientResponseBody {
    fn drop(&mut self) {
        if let Some(in_flight) = &self.in_flight
            && self.body.has_guard()
        {
            abandoned::keep(
                in_flight.client(),
                Exchange::Body(mem::take(&mut self.body)),
            );
        }
    }
}

impl Body for ClientResponseBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame_keeping_guard(cx) else {
            StreamProgress::Waiting.record();
            return Poll::Pending;
        };
        StreamProgress::Moved.record();
        if let Some(entry) = &mut this.entry {
            match &frame {
                Some(Ok(frame)) => {
                    entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                Some(Err(_)) => {}
                None => entry.whole = true,
            }
            entry.whole |= this.body.is_end_stream();
        }
        if let Some(Err(error)) = &frame {
            tracing::warn!("a response was cut off: {error}");
            let permit = take_permit_if_upload_failed(&mut this.body, &**error);
            if let (Some(permit), Some(in_flight)) = (permit, &this.in_flight) {
                abandoned::keep(in_flight.client(), Exchange::Permit(permit));
            }
            // Any other guard is not needed any more.
            drop(this.body.take_guard());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
