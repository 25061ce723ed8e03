//! The service behind: it waits, it does not burn the processor, and it does not notice that a
//! client has left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Up to so many at once take this long each: 100 a second. More than that share what there is, and
/// get in each other's way: with 200 more at once everything takes twice as long again.
const KNEE: f64 = 10.0;
const TAKES: Duration = Duration::from_millis(100);
const IN_THE_WAY: f64 = 200.0;
/// Nobody works on anything for longer than this.
const LONGEST: Duration = Duration::from_secs(20);

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
    let at_work = Arc::new(AtomicU64::new(0));
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream, at_work.clone()));
    }
}

/// How long a call takes that has so many beside it.
fn takes(at_work: u64) -> Duration {
    let crowd = at_work as f64 / KNEE;
    let factor = if crowd <= 1.0 {
        1.0
    } else {
        crowd * (1.0 + (at_work as f64 - KNEE) / IN_THE_WAY)
    };
    TAKES.mul_f64(factor).min(LONGEST)
}

async fn answer(mut stream: TcpStream, at_work: Arc<AtomicU64>) {
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
        let at_once = at_work.clone();
        // The work goes on when the client is gone: that is what makes overload last.
        let work = tokio::spawn(async move {
            let now = at_once.fetch_add(1, Ordering::Relaxed) + 1;
            sleep(takes(now)).await;
            at_once.fetch_sub(1, Ordering::Relaxed);
        });
        tokio::select! {
            _ = work => {}
            // Nothing may come before the answer: it is the end.
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
