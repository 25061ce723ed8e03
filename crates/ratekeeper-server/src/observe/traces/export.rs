//! Sends spans to a collector, from a thread of its own. What it does not take is dropped and
//! counted.

use super::{EndedSpan, Shared, wire};
use crate::gateway::Connector;
use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ratekeeper_policy::config::Upstream;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

/// The most spans of one call.
const MOST: usize = 512;

/// So long spans are gathered, and so long an answer is waited for.
const EVERY: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(10);

/// So long the last spans may take when the service ends.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// The thread, until this is dropped.
pub(crate) struct ExporterThread(Option<JoinHandle<()>>);

impl Drop for ExporterThread {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        // It ends once nobody is left who could trace; a collector may hang.
        let until = Instant::now() + LAST_SPANS;
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where spans go.
pub(super) struct Collector {
    pub(super) endpoint: Upstream,
    pub(super) connector: Connector,
}

pub(super) fn start(
    collector: Collector,
    shared: Arc<Shared>,
    ended: Receiver<EndedSpan>,
) -> io::Result<ExporterThread> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || runtime.block_on(run(&collector, &shared, ended));
    Ok(ExporterThread(Some(
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(run)?,
    )))
}

async fn run(collector: &Collector, shared: &Shared, mut ended: Receiver<EndedSpan>) {
    let mut batch = Vec::with_capacity(MOST);
    // None is left and nobody will send one.
    while ended.recv_many(&mut batch, MOST).await > 0 {
        let gather =
            async { while batch.len() < MOST && ended.recv_many(&mut batch, MOST).await > 0 {} };
        tokio::select! {
            () = gather => {}
            () = sleep(EVERY) => {}
        }
        let many = batch.len() as u64;
        let body = wire::request(&shared.resource, &batch);
        batch.clear();
        let sent = timeout(WITHIN, send(collector, body)).await;
        match sent.unwrap_or_else(|_| Err(format!("it has not answered within {WITHIN:?}"))) {
            Ok(()) => shared.sent.fetch_add(many, Relaxed),
            Err(why) => {
                tracing::warn!(
                    "{many} spans are lost: the collector at {} did not take them: {why}",
                    collector.endpoint
                );
                shared.lost.fetch_add(many, Relaxed)
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
        .map_err(|trouble| trouble.to_string())?;
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
    let answer = send
        .send_request(request)
        .await
        .map_err(|error| error.to_string());
    connection.abort();
    match answer?.status().as_u16() {
        200..=299 => Ok(()),
        status => Err(format!("it answers {status}")),
    }
}
