//! Request bodies: reading with a size limit and a timeout.

use super::problem::{Code, Problem};
use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Size limit of a body.
pub(super) const MAX_BODY_BYTES: usize = 16 * 1024;

/// Size limit of a body that is a JSON list, which begins with its bracket.
pub(super) const MAX_LIST_BODY_BYTES: usize = 256 * 1024;

/// Bytes that are read and discarded of a body that is too large: most clients read the response
/// only after they have sent all of the body.
const MAX_DISCARDED_BYTES: u64 = 1024 * 1024;

/// Timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn read(body: Body) -> Result<Bytes, Problem> {
    read_up_to(body, |_| MAX_BODY_BYTES).await
}

/// Reads a body that may be a list.
pub(super) async fn read_maybe_list(body: Body) -> Result<Bytes, Problem> {
    read_up_to(body, |begin| {
        if is_list(begin) {
            MAX_LIST_BODY_BYTES
        } else {
            MAX_BODY_BYTES
        }
    })
    .await
}

/// Whether a body begins like a JSON list. It need not be valid JSON.
pub(super) fn is_list(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// Reads a body whose size limit depends on its first bytes.
pub(super) async fn read_up_to(
    body: Body,
    max_bytes_for: impl Fn(&[u8]) -> usize,
) -> Result<Bytes, Problem> {
    let mut read = pin!(collect(body, max_bytes_for));
    // Most bodies come with their head: those need neither a timer nor the clock.
    if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
        return result;
    }
    match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(result) => result,
        Err(_) => Err(Problem::new(
            Code::BodyTimeout,
            format!(
                "body not received within {} s; send it at once",
                BODY_TIMEOUT.as_secs()
            ),
        )),
    }
}

async fn collect(mut body: Body, max_bytes_for: impl Fn(&[u8]) -> usize) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > MAX_DISCARDED_BYTES {
        return Err(too_large(max_bytes_for(&[])));
    }
    // The first chunk is nearly always the whole body, and is not copied.
    let mut first = Bytes::new();
    let mut copy = Vec::new();
    let mut received = 0u64;
    let mut max_bytes = MAX_BODY_BYTES;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Problem::new(
                Code::BrokenBody,
                "body incomplete or malformed; send it with the framing of HTTP/1.1",
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        received = received.saturating_add(data.len() as u64);
        if received == data.len() as u64 {
            max_bytes = max_bytes_for(&data);
            first = data;
        } else if received <= max_bytes as u64 {
            if copy.is_empty() {
                copy.extend_from_slice(&first);
            }
            copy.extend_from_slice(&data);
        } else if received > MAX_DISCARDED_BYTES {
            break;
        }
    }
    if received > max_bytes as u64 {
        Err(too_large(max_bytes))
    } else if copy.is_empty() {
        Ok(first)
    } else {
        Ok(copy.into())
    }
}

fn too_large(max_bytes: usize) -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("body larger than {max_bytes} bytes; send a smaller one"),
    )
}
