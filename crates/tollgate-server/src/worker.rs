//! One single-threaded runtime with a listener of its own: accepts, serves, and stops when told to.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tollgate_tower::PeerAddr;
use tower_service::Service;

/// How long a client may take to send a request's head; so long an idle connection is kept, too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest head of a request.
const LARGEST_HEAD: usize = 16 * 1024;

/// What a connection buffers at most: a head, and a little of what comes after it.
const BUFFER: usize = 2 * LARGEST_HEAD;

/// How long requests in flight may take to end once the worker is told to stop.
pub(crate) const LAST_CALL: Duration = Duration::from_secs(10);

/// The pause after an accept that failed for want of something, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Worker {
    runtime: Runtime,
    listener: TcpListener,
    /// How many connections it has at once; others wait to be accepted.
    most: usize,
}

impl Worker {
    pub(crate) fn new(listener: std::net::TcpListener, most: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        Ok(Self { runtime, listener, most })
    }

    /// Serves until `stop` changes, then until the requests in flight have ended.
    pub(crate) fn run<G>(self, connect: impl Fn(TcpStream, SocketAddr) -> G, stop: watch::Receiver<bool>)
    where
        G: GracefulConnection<Error: fmt::Display + Send> + Send + 'static,
    {
        self.runtime.block_on(serve(self.listener, self.most, connect, stop));
    }

    /// The same with another protocol.
    pub(crate) fn run_with<F: Future<Output = ()>>(self, serve: impl FnOnce(TcpListener, usize) -> F) {
        self.runtime.block_on(serve(self.listener, self.most));
    }
}

async fn serve<G>(
    listener: TcpListener,
    most: usize,
    connect: impl Fn(TcpStream, SocketAddr) -> G,
    mut stop: watch::Receiver<bool>,
) where
    G: GracefulConnection<Error: fmt::Display + Send> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(most));
    let connections = GracefulShutdown::new();
    loop {
        let place = Arc::clone(&room).acquire_owned();
        let ((stream, peer), place) = tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = async { (place.await, accept(&listener).await) } => (accepted.1, accepted.0),
        };
        let connection = connections.watch(connect(stream, peer));
        tokio::spawn(async {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(LAST_CALL, connections.shutdown()).await.is_err() {
        tracing::warn!("requests still in flight after {LAST_CALL:?} were cut off");
    }
}

pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // An answer is one small packet; without this it may wait for the client's acknowledgement.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                return (stream, peer);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Connection<I> = http1::Connection<TokioIo<I>, TowerToHyperService<OfPeer>>;

/// Tells the routes who is at the other end of a connection.
#[derive(Clone)]
pub(crate) struct OfPeer {
    app: Router,
    peer: SocketAddr,
}

impl Service<Request<Incoming>> for OfPeer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <Router as Service<Request<Incoming>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        <Router as Service<Request<Incoming>>>::poll_ready(&mut self.app, cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(PeerAddr(self.peer));
        self.app.call(request)
    }
}

/// One client's connection: HTTP/1.1 with bounds on what it may hold and how long.
pub(crate) fn connection<I: AsyncRead + AsyncWrite + Unpin + 'static>(
    io: I,
    peer: SocketAddr,
    app: Router,
) -> Connection<I> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(LARGEST_HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(OfPeer { app, peer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt;
    use tokio::sync::Notify;
    use tokio::time::Instant;

    /// Tokio's clock stands still here, and goes to the next timer once everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_holds_up_a_stop_for_ten_seconds() {
        let entered = Arc::new(Notify::new());
        let handler = {
            let entered = Arc::clone(&entered);
            || async move {
                entered.notify_one();
                std::future::pending::<()>().await;
            }
        };
        let app = Router::new().route("/", get(handler));
        let connect = move |stream, peer| connection(stream, peer, app.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(serve(listener, 10, connect, stopped));

        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        entered.notified().await;
        let start = Instant::now();
        stop.send_replace(true);
        server.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), LAST_CALL.as_secs());
    }
}
