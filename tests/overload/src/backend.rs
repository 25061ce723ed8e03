//! The backend: a service that waits instead of working, and does not notice that a client has
//! left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Up to 10 concurrent requests take 100 ms each: 100 a second. More requests share that capacity,
/// with contention: 200 more make each take twice as long again.
const CAPACITY: f64 = 10.0;
const LATENCY: Duration = Duration::from_millis(100);
const CONTENTION: f64 = 200.0;
/// The longest latency.
const MAX_LATENCY: Duration = Duration::from_secs(20);

pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    /// The thread ends when this is dropped.
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Backend {
    pub(crate) fn start() -> Result<Self, String> {
        let listener =
            std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        listener
            .set_nonblocking(true)
            .map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    _ = serve(listener) => {}
                }
            });
        });
        Ok(Self {
            address,
            _stop: stop,
        })
    }
}

async fn serve(listener: std::net::TcpListener) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let in_flight = Arc::new(AtomicU64::new(0));
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream, in_flight.clone()));
    }
}

/// The latency at this concurrency.
fn latency(in_flight: u64) -> Duration {
    let load = in_flight as f64 / CAPACITY;
    let factor = if load <= 1.0 {
        1.0
    } else {
        load * (1.0 + (in_flight as f64 - CAPACITY) / CONTENTION)
    };
    LATENCY.mul_f64(factor).min(MAX_LATENCY)
}

async fn answer(mut stream: TcpStream, in_flight: Arc<AtomicU64>) {
    let _ = stream.set_nodelay(true);
    let mut head = Vec::new();
    let mut bytes = [0; 2048];
    loop {
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(read) => head.extend_from_slice(&bytes[..read]),
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        head.clear();
        let in_flight = Arc::clone(&in_flight);
        // The work goes on when the client is gone, which makes overload last.
        let work = tokio::spawn(async move {
            let now = in_flight.fetch_add(1, Ordering::Relaxed) + 1;
            sleep(latency(now)).await;
            in_flight.fetch_sub(1, Ordering::Relaxed);
        });
        tokio::select! {
            _ = work => {}
            // A read before the answer means that the client has left.
            _ = stream.read(&mut bytes) => return,
        }
        if stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
            .await
            .is_err()
        {
            return;
        }
    }
}
