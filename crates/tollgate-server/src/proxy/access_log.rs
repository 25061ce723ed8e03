//! A line of JSON for each request. It is written by a thread of its own; lines that it cannot keep up with are left out,
//! and counted.

use crate::traces::Decided;
use axum::http::{Method, Uri};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use tollgate_policy::config;
use tollgate_tower::{Denial, Head};

/// Lines that may wait to be written.
const WAITING: usize = 8192;

/// How long the last lines may take when the gateway stops.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Where lines go. Clones are of the same.
#[derive(Clone)]
pub(crate) struct AccessLog {
    lines: SyncSender<String>,
    every: u64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seen: AtomicU64,
    lost: AtomicU64,
}

/// Waits for the last lines when it is dropped.
pub(crate) struct Writing(Option<JoinHandle<()>>);

impl AccessLog {
    /// None if nothing is to be logged.
    pub(crate) fn open(to: &config::AccessLog, every: u64) -> io::Result<Option<(Self, Writing)>> {
        let out: Box<dyn Write + Send> = match to {
            config::AccessLog::Stdout => Box::new(io::stdout()),
            config::AccessLog::File(path) => Box::new(File::options().append(true).create(true).open(path)?),
            _ => return Ok(None),
        };
        let (lines, waiting) = sync_channel(WAITING);
        let writer = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || write(out, &waiting))?;
        Ok(Some((Self { lines, every, shared: Arc::default() }, Writing(Some(writer)))))
    }

    /// Lines that were left out because they came too fast.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    fn log(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Whether one that went well is logged: one in so many is.
    fn is_turn(&self) -> bool {
        self.shared.seen.fetch_add(1, Relaxed).is_multiple_of(self.every)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        // It ends once everybody who could log is gone; somebody may hang on to a connection that was cut off.
        let until = std::time::Instant::now() + LAST_LINES;
        while !thread.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write(out: impl Write, lines: &Receiver<String>) {
    let mut out = BufWriter::new(out);
    while let Ok(line) = lines.recv() {
        let mut next = Some(line);
        // All that are there in one go.
        while let Some(line) = next {
            if let Err(error) = out.write_all(line.as_bytes()) {
                tracing::warn!("the access log cannot be written: {error}");
                return;
            }
            next = lines.try_recv().ok();
        }
        if let Err(error) = out.flush() {
            tracing::warn!("the access log cannot be written: {error}");
            return;
        }
    }
}

/// What others find out about a request while it is under way.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Found>>);

#[derive(Default)]
struct Found {
    verdict: Option<&'static str>,
    policies: Vec<String>,
    retry_after_ms: Option<u64>,
    client: Option<IpAddr>,
    upstream: Option<String>,
}

impl Notes {
    /// What the limits said; for the hook of the layer.
    pub(crate) fn verdict(head: &Head<'_>, denial: Option<&Denial<'_>>) {
        let Some(notes) = head.extensions.get::<Self>() else { return };
        let mut found = notes.found();
        found.client = head.ip();
        found.verdict = Some(match denial {
            None => "allowed",
            Some(denial) if denial.is_shadow() => "shadow_denied",
            Some(_) => "denied",
        });
        if let Some(denial) = denial {
            found.policies = denial.policies().map(ToOwned::to_owned).collect();
            found.retry_after_ms = denial.retry_after().map(crate::http::millis);
        }
    }

    /// What was found, for a span.
    pub(crate) fn decided(&self) -> Decided {
        let found = self.found();
        let (policies, upstream) = (found.policies.clone(), found.upstream.clone());
        Decided { outcome: found.verdict, source: None, policies, upstream }
    }

    pub(crate) fn upstream(&self, name: &impl ToString) {
        self.found().upstream = Some(name.to_string());
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request on its way into the log: written when it is dropped.
pub(crate) struct Entry {
    log: AccessLog,
    notes: Notes,
    begun: Instant,
    peer: Option<IpAddr>,
    method: Method,
    /// Without its query, which may have secrets in it.
    path: String,
    host: Option<String>,
    version: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) whole: bool,
}

impl Entry {
    pub(crate) fn new(
        log: &AccessLog,
        (method, uri, host): (&Method, &Uri, Option<&str>),
        peer: Option<IpAddr>,
        version: &'static str,
    ) -> Self {
        Self {
            log: log.clone(),
            notes: Notes::default(),
            begun: Instant::now(),
            peer,
            method: method.clone(),
            path: uri.path().to_owned(),
            host: host.map(ToOwned::to_owned),
            version,
            status: 0,
            bytes: 0,
            whole: false,
        }
    }

    pub(crate) fn notes(&self) -> Notes {
        self.notes.clone()
    }
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    /// Neither on a Unix socket, unless a proxy says who it is.
    client: Option<IpAddr>,
    peer: Option<IpAddr>,
    method: &'a str,
    host: Option<&'a str>,
    path: &'a str,
    version: &'static str,
    /// 0 if the client left before there was one.
    status: u16,
    bytes: u64,
    /// Whether all of the answer was sent.
    whole: bool,
    duration_ms: f64,
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    policies: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    upstream: Option<&'a str>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let found = self.notes.found();
        let went_well = matches!(self.status, 100..=499) && self.whole && found.verdict == Some("allowed");
        if went_well && !self.log.is_turn() {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = Line {
            time: time.as_millis() as f64 / 1e3,
            client: found.client.or(self.peer),
            peer: self.peer,
            method: self.method.as_str(),
            host: self.host.as_deref(),
            path: &self.path,
            version: self.version,
            status: self.status,
            bytes: self.bytes,
            whole: self.whole,
            duration_ms: self.begun.elapsed().as_micros() as f64 / 1e3,
            verdict: found.verdict,
            policies: &found.policies,
            retry_after_ms: found.retry_after_ms,
            upstream: found.upstream.as_deref(),
        };
        // Structs of text and numbers always have a JSON form.
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        self.log.log(text);
    }
}
