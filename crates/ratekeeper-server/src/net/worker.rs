//! A worker: one single-threaded runtime with its own listener. It accepts and serves connections
//! until a stop is requested.

use crate::api::NO_SNIFF;
use crate::net::connections::{Activity, Connections, CountInFlight};
use crate::net::listen::{BoundSocket, Listener};
use crate::net::stream::Stream;
use crate::net::tls::ServerCertificate;
use crate::net::worker_health::Heartbeat;
use crate::net::write_timeout::WriteTimeoutStream;
use axum::Router;
use axum::body::Body;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pin_project_lite::pin_project;
use ratekeeper_tower::identity::PeerAddr;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tower_service::Service;

/// How long a client may take to send the head of a request; also how long an idle connection is
/// kept open.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest head of a request.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The read buffer of a connection: a head and some bytes after it.
const MAX_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// Shutdown grace: how long requests in flight may take to end after a stop.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// The minimum time that a connection without a request is kept open; the maximum is twice that.
/// HTTP/1 has its own, shorter timeout.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a connection without a request may take to end after a stop.
const LINGER: Duration = Duration::from_secs(1);

/// How long the TLS handshake of a client may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker that is not running yet: its runtime and its listener.
pub(crate) struct Worker {
    runtime: Runtime,
    listener: Listener,
    /// If set, the listener uses TLS.
    certificate: Option<Arc<ServerCertificate>>,
    /// The most connections at once; beyond them, a new one replaces the one that has been idle for
    /// longest.
    max_connections: usize,
}

impl Worker {
    pub(crate) fn new(
        listener: BoundSocket,
        certificate: Option<&Arc<ServerCertificate>>,
        max_connections: usize,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            listener.listener()?
        };
        Ok(Self {
            runtime,
            listener,
            certificate: certificate.cloned(),
            max_connections,
        })
    }

    /// Serves until `stop` changes, then until the requests in flight have ended.
    pub(crate) fn run<G>(
        self,
        heartbeat: Arc<Heartbeat>,
        connect: impl Connect<G>,
        stop: watch::Receiver<bool>,
    ) where
        G: GracefulConnection + Send + 'static,
    {
        self.run_with(heartbeat, |listener, certificate, max_connections| {
            serve(listener, certificate, max_connections, connect, stop)
        });
    }

    /// Serves another protocol on the runtime of the worker.
    pub(crate) fn run_with<F: Future<Output = ()>>(
        self,
        heartbeat: Arc<Heartbeat>,
        serve: impl FnOnce(Listener, Option<Arc<ServerCertificate>>, usize) -> F,
    ) {
        let Self {
            runtime,
            listener,
            certificate,
            max_connections,
        } = self;
        runtime.spawn(heartbeat.run());
        runtime.block_on(serve(listener, certificate, max_connections));
        // A thread that still resolves a name ends with the process.
        runtime.shutdown_background();
    }
}

/// Makes a connection of the protocol from a stream and its peer address. Its requests are counted.
pub(crate) trait Connect<G>:
    Fn(WriteTimeoutStream, Option<SocketAddr>, &Arc<Activity>) -> G + Clone + Send + 'static
{
}

impl<G, F: Fn(WriteTimeoutStream, Option<SocketAddr>, &Arc<Activity>) -> G + Clone + Send + 'static>
    Connect<G> for F
{
}

async fn serve<G>(
    listener: Listener,
    certificate: Option<Arc<ServerCertificate>>,
    max_connections: usize,
    connect: impl Connect<G>,
    mut stop: watch::Receiver<bool>,
) where
    G: GracefulConnection + Send + 'static,
{
    let connections = Connections::new(max_connections);
    loop {
        let accepted = async {
            let accepted = listener.accept().await;
            (accepted, connections.admit().await)
        };
        let ((stream, peer), slot) = tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = accepted => accepted,
        };
        let (connect, certificate, stop) = (connect.clone(), certificate.clone(), stop.clone());
        tokio::spawn(async move {
            let activity = Arc::clone(slot.activity());
            let serving = async move {
                match accept_tls(stream, certificate.as_deref(), stop.clone()).await {
                    Ok(Some(stream)) => {
                        let connection = connect(WriteTimeoutStream::new(stream), peer, &activity);
                        serve_connection(connection, &activity, stop)
                            .await
                            .map_err(|error| error.to_string())
                    }
                    Ok(None) => Ok(()),
                    Err(error) => Err(error.to_string()),
                }
            };
            let ended = tokio::select! {
                ended = serving => ended,
                () = slot.activity().closed() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(error, "connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_GRACE, connections.closed())
        .await
        .is_err()
    {
        tracing::warn!("requests still in flight after {SHUTDOWN_GRACE:?} were cut off");
    }
}

/// A connection that can be shut down gracefully, after the requests in flight.
pub(crate) trait GracefulConnection: Future<Output = Result<(), Self::Error>> {
    type Error: fmt::Display;

    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl<I: AsyncRead + AsyncWrite + Unpin + 'static> GracefulConnection for Connection<I> {
    type Error = hyper::Error;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves a connection until it ends, the idle timeout passes, or `stop` changes. After a stop, an
/// HTTP/2 client takes part in closing the connection; one that does not read is not waited for.
pub(crate) async fn serve_connection<G: GracefulConnection>(
    connection: G,
    activity: &Activity,
    mut stop: watch::Receiver<bool>,
) -> Result<(), G::Error> {
    let mut connection = pin!(connection);
    let mut timeout = IDLE_TIMEOUT;
    loop {
        let before = activity.mark();
        tokio::select! {
            ended = connection.as_mut() => return ended,
            _ = stop.wait_for(|stop| *stop), if timeout != LINGER => {}
            () = tokio::time::sleep(timeout) => {
                if !activity.is_idle_since(before) {
                    continue;
                }
                if timeout == LINGER {
                    return Ok(());
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        timeout = LINGER;
    }
}

/// Performs the TLS handshake if TLS is configured; `None` if a stop came first. Unix sockets do
/// not use TLS.
pub(crate) async fn accept_tls(
    stream: Stream,
    certificate: Option<&ServerCertificate>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<Option<Stream>> {
    match (stream, certificate) {
        (Stream::Plain(stream), Some(certificate)) => tokio::select! {
            accept_tls = certificate.handshake(stream, HANDSHAKE_TIMEOUT) => Ok(Some(Stream::Tls(Box::new(accept_tls?)))),
            _ = stop.wait_for(|stop| *stop) => Ok(None),
        },
        (stream, _) => Ok(Some(stream)),
    }
}

type Connection<I> = http1::Connection<TokioIo<I>, TowerToHyperService<CountInFlight<WithPeer>>>;

/// Adds the peer address of a connection to its requests.
#[derive(Clone)]
pub(crate) struct WithPeer {
    app: Router,
    peer: Option<SocketAddr>,
}

impl Service<Request<Incoming>> for WithPeer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = WithPeerFuture<<Router as Service<Request<Incoming>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        <Router as Service<Request<Incoming>>>::poll_ready(&mut self.app, cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(PeerAddr(peer));
        }
        WithPeerFuture {
            response: self.app.call(request),
        }
    }
}

pin_project! {
    /// The response of the routes, with the headers that all responses have.
    pub(crate) struct WithPeerFuture<F> {
        #[pin]
        response: F,
    }
}

impl<F: Future<Output = Result<Response<Body>, Infallible>>> Future for WithPeerFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().response.poll(cx).map_ok(|mut response| {
            response
                .headers_mut()
                .insert(X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
            response
        })
    }
}

/// An HTTP/1.1 connection of a client, with bounded buffers and timeouts.
pub(crate) fn connection<I: AsyncRead + AsyncWrite + Unpin + 'static>(
    io: I,
    peer: Option<SocketAddr>,
    app: Router,
    activity: &Arc<Activity>,
) -> Connection<I> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(
            TokioIo::new(io),
            TowerToHyperService::new(CountInFlight::new(WithPeer { app, peer }, activity)),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Certificate;
    use crate::net::tls::Protocols;
    use axum::routing::get;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::Notify;
    use tokio::time::Instant;

    /// Tokio's clock is paused: it advances to the next timer when every task waits.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_delays_a_stop_by_ten_seconds() {
        let entered = Arc::new(Notify::new());
        let handler = {
            let entered = Arc::clone(&entered);
            || async move {
                entered.notify_one();
                std::future::pending::<()>().await;
            }
        };
        let app = Router::new().route("/", get(handler));
        let connect = move |stream, peer, activity: &Arc<Activity>| {
            connection(stream, peer, app.clone(), activity)
        };
        let bound = crate::net::listen::bind(&"127.0.0.1:0".parse().unwrap(), 1)
            .unwrap()
            .remove(0);
        let address = bound.address().unwrap().tcp().unwrap();
        let listener = bound.listener().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(serve(listener, None, 10, connect, stopped));

        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        entered.notified().await;
        let start = Instant::now();
        stop.send_replace(true);
        server.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), SHUTDOWN_GRACE.as_secs());
    }

    /// A new connection replaces one that is idle, whatever that has begun to send, and waits if
    /// none is idle.
    #[tokio::test(start_paused = true)]
    async fn connections_are_limited() {
        let (entered, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (entered, answer) = (Arc::clone(&entered), Arc::clone(&answer));
            || async move {
                entered.notify_one();
                answer.notified().await;
                "ok"
            }
        };
        let app = Router::new()
            .route("/", get(async || "ok"))
            .route("/slow", get(slow));
        let connect = move |stream, peer, activity: &Arc<Activity>| {
            connection(stream, peer, app.clone(), activity)
        };
        let bound = crate::net::listen::bind(&"127.0.0.1:0".parse().unwrap(), 1)
            .unwrap()
            .remove(0);
        let address = bound.address().unwrap().tcp().unwrap();
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(serve(bound.listener().unwrap(), None, 1, connect, stopped));
        let send = async |text: &str| {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(text.as_bytes()).await.unwrap();
            client
        };
        const ASK: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut buffer = [0; 1024];
        let mut closed = vec![
            send("").await,
            send("GET / HTTP/1.1\r\nX-Slow: ").await,
            send(ASK).await,
        ];
        assert!(closed[2].read(&mut buffer).await.unwrap() > 0);
        let mut asking = send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
        entered.notified().await;
        let mut last = send(ASK).await;
        for client in &mut closed {
            assert_eq!(client.read(&mut buffer).await.unwrap_or(0), 0);
        }
        assert!(
            tokio::time::timeout(Duration::from_secs(1), last.read(&mut buffer))
                .await
                .is_err()
        );
        answer.notify_one();
        assert!(asking.read(&mut buffer).await.unwrap() > 0);
        assert!(last.read(&mut buffer).await.unwrap() > 0);
    }

    /// A stop does not wait for the head timeout.
    #[tokio::test(start_paused = true)]
    async fn an_unfinished_head_does_not_delay_a_stop() {
        let app = Router::new().route("/", get(async || "ok"));
        let connect = move |stream, peer, activity: &Arc<Activity>| {
            connection(stream, peer, app.clone(), activity)
        };
        let bound = crate::net::listen::bind(&"127.0.0.1:0".parse().unwrap(), 1)
            .unwrap()
            .remove(0);
        let address = bound.address().unwrap().tcp().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(serve(bound.listener().unwrap(), None, 10, connect, stopped));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        // The clock advances once every task waits: the bytes have been read then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        stop.send_replace(true);
        server.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), LINGER.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_tls_handshake_times_out() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let dir = std::env::temp_dir().join(format!("ratekeeper-{}-greeting", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let certificate =
            ServerCertificate::load(&Certificate::new(cert, key), Protocols::Http1).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (_stop, stopped) = watch::channel(false);
        let start = Instant::now();
        let accept_tls = accept_tls(Stream::Plain(stream), Some(&certificate), stopped).await;
        assert_eq!(
            accept_tls.err().map(|error| error.kind()),
            Some(io::ErrorKind::TimedOut)
        );
        assert_eq!(start.elapsed().as_secs(), HANDSHAKE_TIMEOUT.as_secs());
    }
}
