//! Load generators, whose clients time out after a second.

use ratekeeper_sim::Rng;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

/// The timeout of a client.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Counts of the measured requests.
#[derive(Default)]
pub(crate) struct Counts {
    /// Answered with 200 in time.
    pub(crate) good: u64,
    /// Denied with 429 or 503.
    pub(crate) denied: u64,
    /// Not answered in time, or with another status.
    pub(crate) unanswered: u64,
    /// The latencies of the good ones.
    latencies: Vec<Duration>,
}

impl Counts {
    pub(crate) fn offered(&self) -> u64 {
        self.good + self.denied + self.unanswered
    }

    /// The 99th percentile latency of allowed requests; `None` if more than 1 % timed out.
    pub(crate) fn p99(&self) -> Option<Duration> {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        latencies
            .get((self.good + self.unanswered) as usize * 99 / 100)
            .copied()
    }

    fn record(&mut self, status: Option<u16>, latency: Duration) {
        match status {
            Some(200) => {
                self.good += 1;
                self.latencies.push(latency);
            }
            Some(429 | 503) => self.denied += 1,
            _ => self.unanswered += 1,
        }
    }
}

type SharedCounts = Arc<Mutex<Counts>>;

/// Open loop: requests arrive at random at an average rate, independent of earlier ones.
pub(crate) fn open(
    to: SocketAddr,
    rate: f64,
    warm_up: Duration,
    measurement: Duration,
) -> Result<Counts, String> {
    run(async move |counts: SharedCounts| {
        let mut rng = Rng::new(1);
        let start = Instant::now();
        let mut next = Duration::ZERO;
        let mut requests = Vec::new();
        while next < warm_up + measurement {
            sleep_until((start + next).into()).await;
            let counts = (next >= warm_up).then(|| counts.clone());
            requests.push(tokio::spawn(one(to, counts)));
            next += Duration::from_secs_f64(rng.exponential() / rate);
        }
        for request in requests {
            let _ = request.await;
        }
    })
}

/// Closed loop: each client sends its next request after the answer.
pub(crate) fn closed(
    to: SocketAddr,
    clients: usize,
    warm_up: Duration,
    measurement: Duration,
) -> Result<Counts, String> {
    run(async move |counts: SharedCounts| {
        let start = Instant::now();
        let client = move |counts: SharedCounts| async move {
            while start.elapsed() < warm_up {
                one(to, None).await;
            }
            while start.elapsed() < warm_up + measurement {
                one(to, Some(counts.clone())).await;
            }
        };
        let running: Vec<_> = (0..clients)
            .map(|_| tokio::spawn(client(counts.clone())))
            .collect();
        for client in running {
            let _ = client.await;
        }
    })
}

fn run<F: AsyncFnOnce(SharedCounts)>(work: F) -> Result<Counts, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let counts = SharedCounts::default();
    runtime.block_on(work(counts.clone()));
    Ok(std::mem::take(
        &mut *counts.lock().unwrap_or_else(PoisonError::into_inner),
    ))
}

async fn one(to: SocketAddr, counts: Option<SharedCounts>) {
    let start = Instant::now();
    let status = timeout(CLIENT_TIMEOUT, request(to))
        .await
        .ok()
        .and_then(Result::ok);
    if let Some(counts) = counts {
        counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .record(status, start.elapsed());
    }
}

/// Sends one request on a new connection, and returns its status.
async fn request(to: SocketAddr) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let status = answer
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    status.ok_or_else(|| Error::from(ErrorKind::InvalidData))
}
