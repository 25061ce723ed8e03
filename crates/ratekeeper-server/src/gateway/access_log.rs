//! The access log: one JSON line per request. A separate thread writes it, so that no request waits
//! for a disk. Lines that come too fast or cannot be written are dropped and counted.

use crate::config;
use crate::observe::traces::DecisionAttributes;
use crate::store::AnyStore;
use axum::http::{Method, Uri};
use ratekeeper::{Timestamp, clock::SystemClock};
use ratekeeper_policy::{Engine, PolicyVerdict, engine::VerdictSummary};
use ratekeeper_tower::{Denial, Head};
use serde::Serialize;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The most lines that wait to be written.
const MAX_QUEUED: usize = 8192;

/// The size at which a batch is written; it may exceed this by one line.
const MAX_BATCH_BYTES: usize = 64 * 1024;

/// How long writing the last lines may take when the gateway stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle to the access log. Clones share one log.
#[derive(Clone)]
pub(crate) struct AccessLog {
    queue: SyncSender<Message>,
    every: u64,
    shared: Arc<LogState>,
}

/// A message to the writer thread.
enum Message {
    LogLine(String),
    Reopen,
}

/// Counters and flags that the handles share with the writer thread.
#[derive(Default)]
struct LogState {
    sampled: AtomicU64,
    lost: AtomicU64,
    /// Whether to open the file again before the next line.
    reopen: AtomicBool,
}

/// The writer thread. Dropping this waits for the last lines to be written.
pub(crate) struct WriterThread(Option<JoinHandle<()>>);

impl AccessLog {
    /// Opens the log, or returns `None` if it is off.
    pub(crate) fn open(
        to: &config::AccessLog,
        every: u64,
    ) -> io::Result<Option<(Self, WriterThread)>> {
        let (out, path) = match to {
            // Without the buffer of `io::stdout`, which would hide how much of a line was written.
            config::AccessLog::Stdout => {
                (File::from(io::stdout().as_fd().try_clone_to_owned()?), None)
            }
            config::AccessLog::File(path) => (open(path)?, Some(path.clone())),
            _ => return Ok(None),
        };
        let (queue, queued) = sync_channel(MAX_QUEUED);
        let shared = Arc::<LogState>::default();
        let mut writer = Writer::new(out, path, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer.run(&queued))?;
        Ok(Some((
            Self {
                queue,
                every,
                shared,
            },
            WriterThread(Some(thread)),
        )))
    }

    /// The number of lines that came too fast or could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// Opens the file again, after a rename. Does nothing for standard output.
    pub(crate) fn reopen(&self) {
        self.shared.reopen.store(true, Relaxed);
        // If the queue is full, the writer is awake.
        let _ = self.queue.try_send(Message::Reopen);
    }

    fn log(&self, line: String) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::LogLine(line)) {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    /// Whether to log this one of the successful requests: one in `every` is logged.
    fn is_sampled(&self) -> bool {
        self.shared
            .sampled
            .fetch_add(1, Relaxed)
            .is_multiple_of(self.every)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        // The thread ends once every sender is dropped; a connection that was cut off may still
        // hold one.
        let until = std::time::Instant::now() + FLUSH_TIMEOUT;
        while !thread.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Writes lines in batches. After an error it goes on with the next line, and completes a partly
/// written one first.
struct Writer<W> {
    out: W,
    /// The path of the file, or `None` for standard output.
    path: Option<PathBuf>,
    shared: Arc<LogState>,
    /// Whole lines, except that the first may be partly written already.
    batch: Vec<u8>,
    /// Whether the last byte written is inside a line.
    is_torn: bool,
    /// How many lines were lost in the current outage.
    outage: Option<u64>,
}

impl Writer<File> {
    fn run(&mut self, queued: &Receiver<Message>) {
        while let Ok(message) = queued.recv() {
            let mut next = Some(message);
            while let Some(message) = next {
                if self.shared.reopen.swap(false, Relaxed) {
                    self.write_batch();
                    self.reopen();
                }
                if let Message::LogLine(line) = message {
                    self.batch.extend_from_slice(line.as_bytes());
                }
                next = if self.batch.len() < MAX_BATCH_BYTES {
                    queued.try_recv().ok()
                } else {
                    None
                };
            }
            self.write_batch();
        }
        self.drop_lines(self.batch.len());
    }

    /// Opens the file again, after a rename. On failure the old file stays in use.
    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match open(path) {
            Ok(file) => {
                self.out = file;
                // The rest of a line is useless in another file.
                self.drop_lines(self.batch.len());
            }
            Err(error) => {
                tracing::error!(
                    "cannot reopen the access log {}: {error}; lines still go to the old file",
                    path.display()
                );
            }
        }
    }
}

impl<W: Write> Writer<W> {
    fn new(out: W, path: Option<PathBuf>, shared: Arc<LogState>) -> Self {
        Self {
            out,
            path,
            shared,
            batch: Vec::new(),
            is_torn: false,
            outage: None,
        }
    }

    /// Writes the batch. Lines that cannot be written are dropped, except for the rest of a partly
    /// written one.
    fn write_batch(&mut self) {
        while !self.batch.is_empty() {
            match self.out.write(&self.batch) {
                Ok(written @ 1..) => {
                    self.is_torn = self.batch[written - 1] != b'\n';
                    self.batch.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                failed => {
                    let error = failed.err().unwrap_or_else(|| ErrorKind::WriteZero.into());
                    if self.outage.is_none() {
                        let path = self
                            .path
                            .as_deref()
                            .map_or("stdout".into(), Path::to_string_lossy);
                        tracing::error!(
                            "cannot write the access log {path}: {error}; requests are still served, and their log lines are \
                             lost until writing works again"
                        );
                        self.outage = Some(0);
                    }
                    let torn = self
                        .batch
                        .iter()
                        .position(|byte| *byte == b'\n')
                        .filter(|_| self.is_torn);
                    let rest = torn.map(|end| self.batch[..=end].to_vec());
                    let rest_len = rest.as_ref().map_or(0, Vec::len);
                    self.drop_lines(self.batch.len() - rest_len);
                    self.batch = rest.unwrap_or_default();
                    return;
                }
            }
        }
        if let Some(lost) = self.outage.take() {
            tracing::info!("the access log is being written again; {lost} lines were lost");
        }
    }

    /// Counts the lines that end in the last `bytes` bytes of the batch as lost, and drops them. If
    /// that is the whole batch, the next line starts a new one.
    fn drop_lines(&mut self, bytes: usize) {
        let from = self.batch.len() - bytes;
        let lost = self.batch[from..]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count() as u64;
        self.shared.lost.fetch_add(lost, Relaxed);
        if let Some(all) = &mut self.outage {
            *all += lost;
        }
        self.batch.truncate(from);
        self.is_torn &= from > 0;
    }
}

/// What is recorded about a request while it is in flight, for its log line and its span.
#[derive(Clone, Default)]
pub(crate) struct RequestRecord(Arc<Mutex<RecordedDecision>>);

/// The recorded outcome of one request.
#[derive(Default)]
struct RecordedDecision {
    decided_at: Option<Timestamp>,
    verdict: Option<&'static str>,
    policies: Vec<String>,
    summary: Option<VerdictSummary>,
    retry_after_ms: Option<u64>,
    client: Option<IpAddr>,
    upstream: Option<String>,
}

impl RequestRecord {
    /// Records the outcome of the limits; for the layer's hook.
    pub(crate) fn verdict(head: &Head<'_>, denial: Option<&Denial<'_>>) {
        let Some(record) = head.extensions.get::<Self>() else {
            return;
        };
        let mut record = record.lock();
        record.client = head.ip();
        record.verdict = Some(match denial {
            None => "allowed",
            Some(denial) if denial.is_shadow() => "shadow_denied",
            Some(_) => "denied",
        });
        if let Some(denial) = denial {
            record.policies = denial.policies().map(ToOwned::to_owned).collect();
            record.retry_after_ms = denial
                .retry_after()
                .map(ratekeeper_tower::response::whole_millis);
        }
    }

    /// Records the deciding policy and the time; for the layer's hook.
    pub(crate) fn decision(
        head: &Head<'_>,
        engine: &Engine<AnyStore<SystemClock>>,
        verdict: &PolicyVerdict,
    ) {
        let Some(record) = head.extensions.get::<Self>() else {
            return;
        };
        let summary = engine.summary(verdict);
        let mut record = record.lock();
        (record.decided_at, record.summary) = (Some(verdict.decided_at()), summary);
    }

    /// The recorded attributes, for a span.
    pub(crate) fn decided(&self) -> DecisionAttributes {
        let record = self.lock();
        let (policies, upstream) = (record.policies.clone(), record.upstream.clone());
        DecisionAttributes {
            outcome: record.verdict,
            source: None,
            policies,
            upstream,
        }
    }

    /// Records the upstream that the request was sent to.
    pub(crate) fn upstream(&self, name: &impl ToString) {
        self.lock().upstream = Some(name.to_string());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RecordedDecision> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log entry of one request, written when dropped.
pub(crate) struct LogEntry {
    log: AccessLog,
    record: RequestRecord,
    started: Instant,
    started_at: SystemTime,
    pub(crate) request_id: String,
    peer: Option<IpAddr>,
    method: Method,
    /// Without the query, which may contain secrets.
    path: String,
    host: Option<String>,
    version: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) whole: bool,
}

impl LogEntry {
    pub(crate) fn new(
        log: &AccessLog,
        (method, uri, host): (&Method, &Uri, Option<&str>),
        peer: Option<IpAddr>,
        version: &'static str,
    ) -> Self {
        Self {
            log: log.clone(),
            record: RequestRecord::default(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            request_id: String::new(),
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

    pub(crate) fn record(&self) -> RequestRecord {
        self.record.clone()
    }
}

/// One line of the log. Its fields are documented in docs/deploy/gateway.md.
#[derive(Serialize)]
struct LogLine<'a> {
    /// When the request was decided on, or else when it came.
    time: String,
    request_id: &'a str,
    /// Both are null on a Unix socket, unless a proxy names the client.
    client: Option<IpAddr>,
    peer: Option<IpAddr>,
    method: &'a str,
    host: Option<&'a str>,
    path: &'a str,
    version: &'static str,
    /// 0 if the client left before there was a response.
    status: u16,
    bytes: u64,
    /// Whether the whole response was sent.
    whole: bool,
    duration_ms: f64,
    verdict: Option<&'static str>,
    policy: Option<&'a str>,
    plan: Option<&'a str>,
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    policies: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    upstream: Option<&'a str>,
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        let record = self.record.lock();
        let succeeded =
            matches!(self.status, 100..=499) && self.whole && record.verdict == Some("allowed");
        if succeeded && !self.log.is_sampled() {
            return;
        }
        let summary = record.summary.as_ref();
        let line = LogLine {
            time: rfc3339(
                record
                    .decided_at
                    .unwrap_or_else(|| timestamp(self.started_at)),
            ),
            request_id: &self.request_id,
            client: record.client.or(self.peer),
            peer: self.peer,
            method: self.method.as_str(),
            host: self.host.as_deref(),
            path: &self.path,
            version: self.version,
            status: self.status,
            bytes: self.bytes,
            whole: self.whole,
            duration_ms: self.started.elapsed().as_micros() as f64 / 1e3,
            verdict: record.verdict,
            policy: summary.map(|summary| &*summary.policy),
            plan: summary.and_then(|summary| summary.plan.as_deref()),
            key: summary.and_then(|summary| summary.key.as_deref()),
            policies: &record.policies,
            retry_after_ms: record.retry_after_ms,
            upstream: record.upstream.as_deref(),
        };
        // Structs of text and numbers always have a JSON form.
        let mut text = serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
        self.log.log(text);
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let nanos = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    Timestamp::from_unix_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A time in UTC as RFC 3339 text with microseconds: `2026-01-31T12:00:00.000125Z`.
fn rfc3339(time: Timestamp) -> String {
    const NANOS: u64 = 1_000_000_000;
    let nanos = time.as_unix_nanos();
    let seconds = config::timestamp_text(Timestamp::from_unix_nanos(nanos - nanos % NANOS));
    format!(
        "{}.{:06}Z",
        seconds.trim_end_matches('Z'),
        nanos % NANOS / 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_microseconds() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_893_456_000_000_125_999, "2030-01-01T00:00:00.000125Z"),
            (951_827_696_999_999_999, "2000-02-29T12:34:56.999999Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::from_unix_nanos(nanos)), text);
        }
    }

    /// A writer that takes `free` bytes, then fails.
    struct Disk {
        free: usize,
        content: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.free);
            if written == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.free -= written;
            self.content.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Even if only a part of a batch was written, all lines in the file are whole, and the lost
    /// ones are counted.
    #[test]
    fn a_full_disk_tears_no_line() {
        for free in 0..=9 {
            let shared = Arc::<LogState>::default();
            let mut writer = Writer::new(
                Disk {
                    free,
                    content: Vec::new(),
                },
                None,
                Arc::clone(&shared),
            );
            for (line, capacity) in [
                ("a1\nb2\nc3\n", 0),
                ("d4\n", 0),
                ("e5\n", 1),
                ("f6\n", 100),
                ("g7\n", 0),
            ] {
                writer.out.free += capacity;
                writer.batch.extend_from_slice(line.as_bytes());
                writer.write_batch();
            }
            let content = str::from_utf8(&writer.out.content).unwrap();
            assert!(content.ends_with("f6\ng7\n"), "{free}: {content:?}");
            let lines: Vec<&str> = content.lines().collect();
            assert!(
                lines.iter().all(|line| "a1 b2 c3 d4 e5 f6 g7"
                    .split(' ')
                    .any(|known| known == *line)),
                "{lines:?}"
            );
            assert_eq!(
                lines.len() as u64 + shared.lost.load(Relaxed),
                7,
                "{free}: {lines:?}"
            );
        }
    }
}
