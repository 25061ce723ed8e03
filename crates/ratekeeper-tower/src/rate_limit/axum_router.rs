//! Around a whole router of axum, which then is served as it is.

use super::{AxumBody, BodyKind, Pending, RateLimit, RateLimitLayer, ResponseFuture, Shared};
use crate::decider::Decider;
use axum::body::Body;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::{ConnectInfo, Request};
use axum::http::Extensions;
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
    /// Puts the limit around all of a router, where it costs less than by [`Router::layer`]: axum
    /// keeps what it layers on its routes in boxes, and what is around the router needs none.
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
    /// axum::serve(listener, app).await // each request with the address of its client, for handlers too
    /// # }
    /// ```
    ///
    /// Which route a request takes is not known there: policies by
    /// [`Attribute::Endpoint`](ratekeeper_policy::Attribute::Endpoint) belong on the router or the
    /// route, and so does a limit that is not for every route. Layers of the router are inside of
    /// this one.
    #[must_use]
    pub fn around(self, router: Router) -> RateLimit<Router, D, AxumBody> {
        // As axum does where a router is served: else it makes every route anew for each request.
        self.for_axum().layer(router.with_state(()))
    }
}

/// For axum's servers.
impl<S, D> RateLimit<S, D, AxumBody>
where
    Self: Service<Request>,
{
    /// The same as of a [`Router`], for servers other than [`axum::serve`](fn@axum::serve), which
    /// takes the service as it is.
    #[must_use]
    pub fn into_make_service_with_connect_info<C>(self) -> IntoMakeServiceWithConnectInfo<Self, C> {
        ServiceExt::<Request>::into_make_service_with_connect_info(self)
    }
}

/// For [`axum::serve`](fn@axum::serve). With connect info, always: without it nobody knows who is
/// calling.
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
        let (shared, extensions) = (Arc::clone(&self.shared), connection_extensions(peer));
        let connection = Connection {
            key: shared.prehash(Some(peer.ip())),
            shared,
            peer,
            extensions,
        };
        ready(Ok(ConnectionRateLimit {
            inner: self.inner.clone(),
            connection: Arc::new(connection),
        }))
    }
}

/// A service behind a limit, for the requests of one connection, whose peer it knows: it need not
/// look for it in each request. [`axum::serve`](fn@axum::serve) makes it from a [`RateLimit`].
///
/// Handlers and layers inside find the peer where axum puts it, as [`ConnectInfo`].
pub struct ConnectionRateLimit<S, D: Decider> {
    inner: S,
    connection: Arc<Connection<D>>,
}

/// What is known of all requests of a connection.
struct Connection<D: Decider> {
    shared: Arc<Shared<D>>,
    peer: SocketAddr,
    key: Option<D::PrehashedKey>,
    /// With who is connected: to clone them costs less than to insert that into those of each
    /// request. Nothing belongs in here that can be changed through a clone: all requests of the
    /// connection have it.
    extensions: Extensions,
}

/// The extensions of a request of this peer, with room for three more: a router of axum tells of
/// the path, its parameters and the route in them, and to make room for these in each request would
/// cost more than all else that is done to them.
fn connection_extensions(peer: SocketAddr) -> Extensions {
    #[derive(Clone)]
    struct Placeholder<const NTH: usize>;

    let mut extensions = Extensions::new();
    extensions.insert(Placeholder::<1>);
    extensions.insert(Placeholder::<2>);
    extensions.insert(Placeholder::<3>);
    extensions.insert(ConnectInfo(peer));
    extensions.remove::<Placeholder<1>>();
    extensions.remove::<Placeholder<2>>();
    extensions.remove::<Placeholder<3>>();
    extensions
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

    #[inline]
    fn call(&mut self, mut request: Request) -> Self::Future {
        let Connection {
            shared,
            peer,
            key,
            extensions,
        } = &*self.connection;
        request.extensions_mut().extend(extensions.clone());
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

#[cfg(test)]
mod tests {
    use super::connection_extensions;
    use allocation_counter::measure;
    use std::net::SocketAddr;

    #[test]
    fn what_a_router_inserts_finds_room() {
        let extensions = connection_extensions(SocketAddr::from(([203, 0, 113, 7], 4711)));
        assert_eq!(extensions.len(), 1);
        let clone = || measure(|| drop(extensions.clone())).count_total;
        let with_three_more = || {
            // They have no size, and so no memory of their own.
            let insert = |mut extensions: http::Extensions| {
                extensions.insert([(); 1]);
                extensions.insert([(); 2]);
                extensions.insert([(); 3]);
                assert_eq!(extensions.len(), 4);
            };
            measure(|| insert(extensions.clone())).count_total
        };
        assert_eq!(with_three_more(), clone());
    }
}
