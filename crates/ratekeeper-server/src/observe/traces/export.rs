//! Export of spans to a collector, in a separate thread. Spans that the collector does not accept
//! are dropped and counted.

use super::{EndedSpan, ExportState, wire};
use crate::config::Upstream;
use crate::gateway::Connector;
use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

/// Maximum spans of one request.
const MAX_BATCH: usize = 512;

/// Maximum time during which spans are gathered into a batch.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of a request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for exporting the last spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Guard of the thread; dropping it waits until the last spans are exported.
pub(crate) struct ExporterThread(Option<JoinHandle<()>>);

impl Drop for ExporterThread {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        // The thread ends when all tracers are dropped, but the collector may hang.
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The collector of the spans.
pub(super) struct Collector {
    pub(super) endpoint: Upstream,
    pub(super) connector: Connector,
}

pub(super) fn start(
    collector: Collector,
    state: Arc<ExportState>,
    spans: Receiver<EndedSpan>,
) -> io::Result<ExporterThread> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || runtime.block_on(run(&collector, &state, spans));
    Ok(ExporterThread(Some(
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(run)?,
    )))
}

async fn run(collector: &Collector, state: &ExportState, mut spans: Receiver<EndedSpan>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    // It returns 0 when the channel is empty and all senders are dropped.
    while spans.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let gather = async {
            while batch.len() < MAX_BATCH && spans.recv_many(&mut batch, MAX_BATCH).await > 0 {}
        };
        tokio::select! {
            () = gather => {}
            () = sleep(EXPORT_INTERVAL) => {}
        }
        let count = batch.len() as u64;
        let body = wire::request(&state.resource, &batch);
        batch.clear();
        let result = timeout(EXPORT_TIMEOUT, send(collector, body)).await;
        match result.unwrap_or_else(|_| Err(format!("no answer within {EXPORT_TIMEOUT:?}"))) {
            Ok(()) => state.sent.fetch_add(count, Relaxed),
            Err(error) => {
                tracing::warn!(
                    "{count} spans dropped: collector {}: {error}",
                    collector.endpoint
                );
                state.lost.fetch_add(count, Relaxed)
            }
        };
    }
}

async fn send(collector: &Collector, body: Vec<u8>) -> Result<(), String> {
    let Collector {
        endpoint,
        connector,
    } = collector;
    let stream = connector
        .connect(endpoint)
        .await
        .map_err(|error| error.to_string())?;
    let (mut send, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("{}/v1/traces", endpoint.prefix()))
        .header(HOST, format!("{}:{}", endpoint.host(), endpoint.port()))
        .header(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        )
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let response = send
        .send_request(request)
        .await
        .map_err(|error| error.to_string());
    connection.abort();
    match response?.status().as_u16() {
        200..=299 => Ok(()),
        status => Err(format!("status {status}")),
    }
}
