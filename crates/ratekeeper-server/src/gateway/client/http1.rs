//! Serves HTTP/1 to a client with hyper, and closes the connection.

use super::io::Io;
use super::service::ClientService;
use super::state::Client;
use super::timeouts::run_with_timeouts;
use crate::api::{Code, Problem};
use crate::gateway::WorkerState;
use crate::gateway::headers::put_header;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// For how long, and for how many bytes, a client is read after its last response before its
/// connection is closed.
const LINGER_AFTER_RESPONSE: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 16 << 20;

/// The most bytes of an HTTP/1 connection that hyper reads at once, and that it gathers to write;
/// more only if a head may be larger.
const MAX_HTTP1_BUFFER: usize = 64 * 1024;

/// Up to this many headers hyper parses without allocating.
const USUAL_HEADERS: usize = 100;

/// Serves HTTP/1. hyper answers a malformed head without a reason, so that response is replaced.
pub(super) async fn serve_http1(
    io: Io,
    service: ClientService,
    worker: &WorkerState,
    client: &Client,
) -> io::Result<()> {
    let gateway = &worker.shared.gateway;
    let mut builder = http1::Builder::new();
    builder
        .max_header_size(gateway.max_head)
        .max_buf_size(gateway.max_head.max(MAX_HTTP1_BUFFER));
    // With any other number hyper allocates for each head.
    if gateway.max_headers != USUAL_HEADERS {
        builder.max_headers(gateway.max_headers);
    }
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = Box::pin(connection.with_upgrades());
    let ended = run_with_timeouts(connection.as_mut(), worker, client).await;
    let Some(parts) = Pin::into_inner(connection).into_parts() else {
        return ended;
    };
    let io = parts.io.into_inner();
    let problem = match (io.rejection(), &ended) {
        (Some(status), Err(error)) => Some(malformed(status, error)),
        (_, Err(_)) => return ended,
        (_, Ok(())) => None,
    };
    // A client that does not read the response will not close its side either.
    let _ = timeout(LINGER_AFTER_RESPONSE, close(io, problem)).await;
    ended
}

/// The problem of a malformed head.
fn malformed(status: StatusCode, error: &io::Error) -> Problem {
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::new(
            Code::HeadTooLarge,
            "the request head is larger, or has more headers, than this gateway allows",
        ),
        StatusCode::URI_TOO_LONG => Problem::new(
            Code::TargetTooLong,
            "the request target is longer than this gateway allows",
        ),
        _ => Problem::new(
            Code::BadRequest,
            format!("malformed HTTP/1.1 request: {error}"),
        ),
    }
}

/// Closes a connection after its last response, which is `problem` if there is one. To close it
/// with unread bytes is to reset it, and a reset can overtake the response: so it is read until the
/// client closes its side.
async fn close(io: Io, problem: Option<Problem>) -> io::Result<()> {
    let is_closed = io.is_closed();
    let mut stream = io.into_stream();
    if let Some(problem) = problem {
        let response = problem.plain();
        let mut bytes = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
        for (name, value) in response.headers() {
            put_header(&mut bytes, name, value.as_bytes());
        }
        let length = response.body().len();
        let date = httpdate::fmt_http_date(SystemTime::now());
        let rest = format!("content-length: {length}\r\nconnection: close\r\ndate: {date}\r\n\r\n");
        bytes.extend_from_slice(rest.as_bytes());
        bytes.extend_from_slice(response.body());
        stream.write_all(&bytes).await?;
    }
    stream.shutdown().await?;
    let (mut buffer, mut left) = (vec![0; 8 * 1024], MAX_LINGER_BYTES);
    while !is_closed && left > 0 {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}
