//! Clients that leave after a second.

use ratekeeper_sim::Rng;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

/// A client leaves after this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// What became of the requests that came under measurement.
#[derive(Default)]
pub(crate) struct Counts {
    /// 200 in time.
    pub(crate) good: u64,
    /// 429 or 503.
    pub(crate) refused: u64,
    /// Not answered in time, or not by any of these.
    pub(crate) left: u64,
    /// How long the good ones took.
    took: Vec<Duration>,
}

impl Counts {
    pub(crate) fn offered(&self) -> u64 {
        self.good + self.refused + self.left
    }

    /// How long 99 in 100 of those that were let in took; none if more than one in a hundred left.
    pub(crate) fn p99(&self) -> Option<Duration> {
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get((self.good + self.left) as usize * 99 / 100)
            .copied()
    }

    fn note(&mut self, status: Option<u16>, took: Duration) {
        match status {
            Some(200) => {
                self.good += 1;
                self.took.push(took);
            }
            Some(429 | 503) => self.refused += 1,
            _ => self.left += 1,
        }
    }
}

type Shared = Arc<Mutex<Counts>>;

/// Requests at random, so many a second on average, whatever became of the earlier ones.
pub(crate) fn open(
    to: SocketAddr,
    rate: f64,
    settles: Duration,
    measured: Duration,
) -> Result<Counts, String> {
    within(async move |counts: Shared| {
        let mut chance = Rng::new(1);
        let start = Instant::now();
        let mut next = Duration::ZERO;
        let mut asked = Vec::new();
        while next < settles + measured {
            sleep_until((start + next).into()).await;
            let counts = (next >= settles).then(|| counts.clone());
            asked.push(tokio::spawn(one(to, counts)));
            next += Duration::from_secs_f64(chance.exponential() / rate);
        }
        for asked in asked {
            let _ = asked.await;
        }
    })
}

/// So many clients, each asking again as soon as it has its answer.
pub(crate) fn closed(
    to: SocketAddr,
    clients: usize,
    settles: Duration,
    measured: Duration,
) -> Result<Counts, String> {
    within(async move |counts: Shared| {
        let start = Instant::now();
        let client = move |counts: Shared| async move {
            while start.elapsed() < settles {
                one(to, None).await;
            }
            while start.elapsed() < settles + measured {
                one(to, Some(counts.clone())).await;
            }
        };
        let asking: Vec<_> = (0..clients)
            .map(|_| tokio::spawn(client(counts.clone())))
            .collect();
        for asking in asking {
            let _ = asking.await;
        }
    })
}

fn within<F: AsyncFnOnce(Shared)>(work: F) -> Result<Counts, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let counts = Shared::default();
    runtime.block_on(work(counts.clone()));
    Ok(std::mem::take(
        &mut *counts.lock().unwrap_or_else(PoisonError::into_inner),
    ))
}

async fn one(to: SocketAddr, counts: Option<Shared>) {
    let start = Instant::now();
    let status = timeout(PATIENCE, ask(to)).await.ok().and_then(Result::ok);
    if let Some(counts) = counts {
        counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(status, start.elapsed());
    }
}

/// One request on a connection of its own, to the end: its status.
async fn ask(to: SocketAddr) -> std::io::Result<u16> {
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
