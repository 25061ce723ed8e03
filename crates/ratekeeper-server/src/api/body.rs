//! Reads a request's body, within bounds of size and time.

use super::problem::{Code, Problem};
use axum::body::{Body, Bytes, HttpBody};
use http_body_util::BodyExt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The largest body that is read.
pub(super) const LARGEST: usize = 16 * 1024;

/// The largest that is a list, which begins with its bracket.
pub(super) const LARGEST_LIST: usize = 256 * 1024;

/// What is read and thrown away of a larger one: a client hears an answer only once it has sent
/// what it had to say.
const PATIENCE: u64 = 1024 * 1024;

/// How long a client may take to send its body.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn read(body: Body) -> Result<Bytes, Problem> {
    read_up_to(body, |_| LARGEST).await
}

/// The same where a list may be sent.
pub(super) async fn read_maybe_list(body: Body) -> Result<Bytes, Problem> {
    read_up_to(body, |begin| {
        if is_list(begin) {
            LARGEST_LIST
        } else {
            LARGEST
        }
    })
    .await
}

/// Whether it is a list, or nothing that can be read.
pub(super) fn is_list(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// The same where it depends on how it begins.
pub(super) async fn read_up_to(
    body: Body,
    largest: impl Fn(&[u8]) -> usize,
) -> Result<Bytes, Problem> {
    let mut collected = pin!(collect(body, largest));
    // Most bodies come with their head: those need no timer, and no look at the clock.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(collected.as_mut().poll(cx))).await {
        return read;
    }
    match tokio::time::timeout(TIMEOUT, collected).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            Code::BodyTimeout,
            format!(
                "the body did not come within {} seconds; send it at once",
                TIMEOUT.as_secs()
            ),
        )),
    }
}

async fn collect(mut body: Body, largest: impl Fn(&[u8]) -> usize) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > PATIENCE {
        return Err(too_large(largest(&[])));
    }
    // The first piece is nearly always all of it, and is kept as it came.
    let (mut first, mut kept, mut seen, mut most) = (Bytes::new(), Vec::new(), 0u64, LARGEST);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Problem::new(
                Code::BrokenBody,
                "the body breaks off or is not framed as HTTP/1.1 has it",
            )
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        seen = seen.saturating_add(data.len() as u64);
        if seen == data.len() as u64 {
            most = largest(&data);
            first = data;
        } else if seen <= most as u64 {
            if kept.is_empty() {
                kept.extend_from_slice(&first);
            }
            kept.extend_from_slice(&data);
        } else if seen > PATIENCE {
            break;
        }
    }
    match seen > most as u64 {
        true => Err(too_large(most)),
        false => Ok(if kept.is_empty() { first } else { kept.into() }),
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("the body is larger than {most} bytes; no request needs as much"),
    )
}
