//! Sends a request on to the upstream, and its answer back, both as they come.

use super::headers;
use crate::http::{Code, Problem};
use axum::body::{Body, HttpBody};
use axum::http::{Request, Response, StatusCode, Uri, Version};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tollgate_tower::{Identity, PeerAddr};
use tower_service::Service;

/// How long a connection to the upstream may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long the upstream may take to begin its answer, and a client to send the next piece of a body before it.
const ANSWER: Duration = Duration::from_secs(60);

/// How long an idle connection to the upstream is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Sends requests on to one upstream. Clones share its connections.
#[derive(Clone)]
pub(super) struct Forward {
    client: Client<HttpConnector, Body>,
    upstream: Arc<Upstream>,
    identity: Identity,
}

struct Upstream {
    uri: Uri,
    /// What stands before every path, without a slash at its end.
    prefix: String,
}

impl Forward {
    pub(super) fn new(uri: Uri, identity: Identity) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Self { client, upstream: Arc::new(Upstream { uri, prefix }), identity }
    }
}

impl Upstream {
    /// Where the upstream has what was asked for; none if that is not a path, as of CONNECT.
    fn target(&self, asked: &Uri) -> Option<Uri> {
        let path = asked.path_and_query()?.as_str();
        // All of the service, of `OPTIONS *`, is under no path.
        let path = if path == "*" { path.to_owned() } else { format!("{}{path}", self.prefix) };
        let uri = Uri::builder().scheme("http").path_and_query(path);
        uri.authority(self.uri.authority()?.clone()).build().ok()
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { client, upstream, identity } = self.clone();
        Box::pin(async move {
            Ok(send(&client, &upstream, &identity, request).await.unwrap_or_else(IntoResponse::into_response))
        })
    }
}

async fn send(
    client: &Client<HttpConnector, Body>,
    upstream: &Upstream,
    identity: &Identity,
    mut request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let peer = request.extensions().get::<PeerAddr>().map(|peer| peer.0.ip());
    let asked = request.uri().clone();
    let bad =
        || Problem::new(Code::BadTarget, "the target of the request is no path; send it as in GET /path HTTP/1.1");
    *request.uri_mut() = upstream.target(&asked).ok_or_else(bad)?;
    let version = std::mem::replace(request.version_mut(), Version::HTTP_11);
    headers::one_host(request.headers_mut(), asked.authority(), version)?;
    if headers::has_other_codings(request.headers()) {
        return Err(Problem::new(Code::UnknownCoding, "the only Transfer-Encoding that is known here is chunked"));
    }
    headers::strip(request.headers_mut());
    headers::forwarded(request.headers_mut(), peer, peer.is_some_and(|peer| identity.trusts(peer)));
    let sent = Arc::new(AtomicUsize::new(0));
    match patiently(client.request(request.map(|body| counted(body, &sent))), &sent).await {
        // Nobody asked for another protocol, and a body in a coding of one connection cannot be passed on.
        Some(Ok(response))
            if response.status() == StatusCode::SWITCHING_PROTOCOLS
                || headers::has_other_codings(response.headers()) =>
        {
            tracing::warn!(status = %response.status(), upstream = %upstream.uri, "the upstream answered what was not asked for");
            Err(Problem::new(Code::BadUpstream, "the service behind this gateway answered what was not asked for"))
        }
        Some(Ok(mut response)) => {
            headers::strip(response.headers_mut());
            // Its version is of its connection.
            *response.version_mut() = Version::HTTP_11;
            Ok(response.map(Body::new))
        }
        Some(Err(error)) => {
            // Where the upstream is stays between us and the log.
            tracing::warn!(%error, upstream = %upstream.uri, "the upstream did not answer");
            let what = if error.is_connect() { "cannot be reached" } else { "broke off" };
            Err(Problem::new(Code::BadUpstream, format!("the service behind this gateway {what}; try again later")))
        }
        None => {
            tracing::warn!(upstream = %upstream.uri, "the upstream did not answer within {ANSWER:?}");
            let detail = format!("the service behind this gateway did not answer within {} seconds", ANSWER.as_secs());
            Err(Problem::new(Code::SlowUpstream, detail))
        }
    }
}

/// A body that counts its pieces as they are sent on.
fn counted(body: Body, sent: &Arc<AtomicUsize>) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let sent = Arc::clone(sent);
    Body::new(body.map_frame(move |frame| {
        sent.fetch_add(1, Relaxed);
        frame
    }))
}

/// Waits for an answer, none if it does not come in time. That begins again as long as pieces of the request are sent: a long
/// upload is not the upstream's fault.
async fn patiently<T>(answer: impl Future<Output = T>, sent: &AtomicUsize) -> Option<T> {
    let mut answer = pin!(answer);
    loop {
        let before = sent.load(Relaxed);
        match tokio::time::timeout(ANSWER, answer.as_mut()).await {
            Ok(answer) => return Some(answer),
            Err(_) if sent.load(Relaxed) == before => return None,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_long_upload_is_not_cut_off_and_a_silent_upstream_is() {
        let sent = Arc::new(AtomicUsize::new(0));
        let mut body = counted(Body::from("piece"), &sent);
        let upload = async {
            while let Some(piece) = body.frame().await {
                piece.unwrap();
                sleep(ANSWER / 2).await;
            }
            sleep(ANSWER).await;
        };
        assert_eq!(patiently(upload, &sent).await, Some(()));
        assert_eq!(sent.load(Relaxed), 1);
        let start = Instant::now();
        assert_eq!(patiently(std::future::pending::<()>(), &sent).await, None);
        assert_eq!(start.elapsed().as_secs(), ANSWER.as_secs());
    }
}
