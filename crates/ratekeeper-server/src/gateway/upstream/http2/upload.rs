//! Uploads the body of an HTTP/2 request to an upstream.

use crate::gateway::body::{BodyError, RequestBody};
use crate::gateway::headers;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName};
use h2::{Reason, SendStream};
use http_body::{Body, Frame};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The most bytes of a body kept for a replay: an upstream may reject a request unprocessed, until
/// it answers.
const MAX_REPLAY: usize = 64 * 1024;

/// Sends a body as the upstream takes it.
pub(super) struct Upload {
    stream: SendStream<Bytes>,
    body: RequestBody,
    /// Bytes that were read of the body and not sent yet.
    chunk: Bytes,
    /// Whether the whole body was read.
    ended: bool,
    /// Whether nothing more is sent: the body has ended, or the stream has.
    done: bool,
    replay: Replay,
    /// The header in which trusted proxies name the client, which may not be a trailer.
    trusted_header: HeaderName,
}

/// The frames read of a body so far, or `None` if they are too large.
struct Replay(Option<(VecDeque<Frame<Bytes>>, usize)>);

impl Replay {
    fn add(&mut self, frame: impl FnOnce() -> Frame<Bytes>, length: usize) {
        if let Some((frames, bytes)) = &mut self.0 {
            *bytes += length;
            if *bytes > MAX_REPLAY {
                self.0 = None;
            } else {
                frames.push_back(frame());
            }
        }
    }
}

impl Upload {
    pub(super) fn new(
        stream: SendStream<Bytes>,
        body: RequestBody,
        trusted_header: HeaderName,
    ) -> Self {
        Self {
            stream,
            body,
            chunk: Bytes::new(),
            ended: false,
            done: false,
            replay: Replay(Some((VecDeque::new(), 0))),
            trusted_header,
        }
    }

    /// Whether the upload waits for the client to send more of the body.
    pub(super) fn waits_for_client(&self) -> bool {
        !self.done && !self.ended && self.chunk.is_empty()
    }

    /// The upstream has answered: the request will not be sent again.
    pub(super) fn forget_replay(&mut self) {
        self.replay.0 = None;
    }

    /// The whole body again, or `None` if too much of it was sent already.
    pub(super) fn into_body(self) -> Option<RequestBody> {
        let (frames, _) = self.replay.0?;
        Some(self.body.replayed(frames))
    }

    /// Sends as much as the upstream takes; ready at the end of the body, or when the upstream
    /// wants no more. An error is the client's: then the stream is reset.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        let sent = ready!(self.poll_send(cx));
        self.done = true;
        Poll::Ready(sent)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        loop {
            if !self.chunk.is_empty() {
                let capacity = match self.stream.capacity() {
                    0 => ready!(self.stream.poll_capacity(cx)),
                    capacity => Some(Ok(capacity)),
                };
                // If the stream has ended, the response has the reason.
                let Some(Ok(capacity)) = capacity else {
                    return Poll::Ready(Ok(()));
                };
                let data = self.chunk.split_to(capacity.min(self.chunk.len()));
                let last = self.ended && self.chunk.is_empty();
                if self.stream.send_data(data, last).is_err() || last {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // The upstream may need no more of the body, or have closed the connection.
            if self.stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => {
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    let _ = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => return Poll::Pending,
            };
            match frame.into_data() {
                Ok(data) => {
                    self.replay.add(|| Frame::data(data.clone()), data.len());
                    self.ended = self.body.is_end_stream();
                    if data.is_empty() && self.ended {
                        let _ = self.stream.send_data(data, true);
                        return Poll::Ready(Ok(()));
                    }
                    self.stream.reserve_capacity(data.len());
                    self.chunk = data;
                }
                Err(frame) => {
                    self.ended = true;
                    let trailers = self.allowed(frame.into_trailers().unwrap_or_default());
                    let length = trailers
                        .iter()
                        .map(|(name, value)| name.as_str().len() + value.len())
                        .sum();
                    self.replay
                        .add(|| Frame::trailers(trailers.clone()), length);
                    let _ = self.stream.send_trailers(trailers);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Removes trailers that are not allowed.
    fn allowed(&self, trailers: HeaderMap) -> HeaderMap {
        let mut last = None;
        let named = trailers.into_iter().filter_map(|(name, value)| {
            if name.is_some() {
                last = name;
            }
            Some((last.clone()?, value))
        });
        named
            .filter(|(name, _)| headers::may_trail(name) && *name != self.trusted_header)
            .collect()
    }
}
