//! One single-threaded runtime with a listener of its own: accepts, serves, and stops when told to.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// How long a client may take to send a request's head; so long an idle connection is kept, too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest head of a request.
const LARGEST_HEAD: usize = 16 * 1024;

/// What a connection buffers at most: a head, and a little of what comes after it.
const BUFFER: usize = 2 * LARGEST_HEAD;

/// How long requests in flight may take to end once the worker is told to stop.
const LAST_CALL: Duration = Duration::from_secs(10);

/// The pause after an accept that failed for want of something, such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Worker {
    runtime: Runtime,
    listener: TcpListener,
}

impl Worker {
    pub(crate) fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        Ok(Self { runtime, listener })
    }

    /// Serves until `stop` changes, then until the requests in flight have ended.
    pub(crate) fn run(self, app: Router, stop: watch::Receiver<bool>) {
        self.runtime.block_on(serve(self.listener, app, stop));
    }
}

async fn serve(listener: TcpListener, app: Router, mut stop: watch::Receiver<bool>) {
    let connections = GracefulShutdown::new();
    loop {
        let stream = tokio::select! {
            biased;
            _ = stop.changed() => break,
            stream = accept(&listener) => stream,
        };
        let connection = connections.watch(connection(stream, app.clone()));
        tokio::spawn(async {
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

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // An answer is one small packet; without this it may wait for the client's acknowledgement.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY");
                }
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Connection<I> = http1::Connection<TokioIo<I>, TowerToHyperService<Router>>;

/// One client's connection: HTTP/1.1 with bounds on what it may hold and how long.
pub(crate) fn connection<I: AsyncRead + AsyncWrite + Unpin + 'static>(io: I, app: Router) -> Connection<I> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(LARGEST_HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(app))
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = tokio::spawn(serve(listener, Router::new().route("/", get(handler)), stopped));

        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        entered.notified().await;
        let start = Instant::now();
        stop.send_replace(true);
        server.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), LAST_CALL.as_secs());
    }
}
