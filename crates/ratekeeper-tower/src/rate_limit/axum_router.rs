//! A rate limit around a whole axum router, which `axum::serve` accepts directly.

use super::{
    AxumBody, BodyKind, Pending, RateLimit, RateLimitLayer, RateLimitShared, ResponseFuture,
};
use crate::decider::Decider;
use axum::body::Body;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use axum::{Router, ServiceExt};
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

impl<D: Decider, F> RateLimitLayer<D, F> {
    /// Puts the limit around a whole router. This costs less than [`Router::layer`]: axum boxes
    /// what is layered on its routes, and a limit around the router needs no box.
    ///
    /// ```no_run
    /// use axum::{Router, routing::get};
    /// use ratekeeper::Limit;
    /// use ratekeeper_tower::RateLimitLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let app = Router::new().route("/", get(async || "hello"));
    /// let app = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20)).around(app);
    ///
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    /// axum::serve(listener, app).await // handlers find the peer address in `ConnectInfo`
    /// # }
    /// ```
    ///
    /// The route of a request is not known there: policies by
    /// [`Attribute::Endpoint`](ratekeeper_policy::Attribute::Endpoint), and limits that are not for
    /// every route, belong on the router or the route. The router's own layers are inside of this
    /// one.
    #[must_use]
    pub fn around(self, router: Router) -> RateLimit<Router, D, AxumBody> {
        // As axum does when it serves a router: otherwise it would build every route anew for each
        // request.
        self.for_axum().layer(router.with_state(()))
    }
}

/// For axum's servers.
impl<S, D> RateLimit<S, D, AxumBody>
where
    Self: Service<Request>,
{
    /// The same as [`Router::into_make_service_with_connect_info`], for servers other than
    /// [`axum::serve`](fn@axum::serve), which accepts the service directly.
    #[must_use]
    pub fn into_make_service_with_connect_info<C>(self) -> IntoMakeServiceWithConnectInfo<Self, C> {
        ServiceExt::<Request>::into_make_service_with_connect_info(self)
    }
}

/// For [`axum::serve`](fn@axum::serve). Always with connect info: without it the client is unknown.
impl<S, D, L> Service<IncomingStream<'_, L>> for RateLimit<S, D, AxumBody>
where
    S: Clone,
    D: Decider,
    L: Listener<Addr = SocketAddr>,
{
    type Response = ConnectionRateLimit<S, D>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, stream: IncomingStream<'_, L>) -> Self::Future {
        let peer = *stream.remote_addr();
        let shared = Arc::clone(&self.shared);
        let connection = Connection {
            key: shared.prehash(Some(peer.ip())),
            shared,
            peer,
        };
        ready(Ok(ConnectionRateLimit {
            inner: self.inner.clone(),
            connection: Arc::new(connection),
        }))
    }
}

/// A rate limited service for the requests of one connection. It knows the peer, so it need not
/// look it up in each request. [`axum::serve`](fn@axum::serve) makes it from a [`RateLimit`].
///
/// Handlers and inner layers find the peer where axum puts it, as [`ConnectInfo`].
pub struct ConnectionRateLimit<S, D: Decider> {
    inner: S,
    connection: Arc<Connection<D>>,
}

/// The data that all requests of a connection share.
struct Connection<D: Decider> {
    shared: Arc<RateLimitShared<D>>,
    peer: SocketAddr,
    key: Option<D::PrehashedKey>,
}

impl<S, D> Service<Request> for ConnectionRateLimit<S, D>
where
    S: Service<Request, Response = Response> + Clone,
    D: Decider,
    AxumBody: BodyKind<Body, Pending<D>, Body = Body>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, Body, D, AxumBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let Connection { shared, peer, key } = &*self.connection;
        request.extensions_mut().insert(ConnectInfo(*peer));
        shared.call(&mut self.inner, *key, Some(peer.ip()), request)
    }
}

impl<S: Clone, D: Decider> Clone for ConnectionRateLimit<S, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            connection: Arc::clone(&self.connection),
        }
    }
}

impl<S: fmt::Debug, D: Decider> fmt::Debug for ConnectionRateLimit<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, connection } = self;
        f.debug_struct("ConnectionRateLimit")
            .field("inner", inner)
            .field("peer", &connection.peer)
            .finish_non_exhaustive()
    }
}
