//! Serves one HTTP/1 client connection: reads a request, waits for the response, writes it, until
//! one side closes.
//!
//! The body of a request is read from the socket by the task that forwards it: the connection's own
//! task, or hyper's task for an HTTP/2 upstream. Bytes that the smuggling guard rejects never reach
//! the parser.

mod body;
mod request;
mod response;
mod socket;
mod switch;

pub(crate) use body::ClientBody;
pub(super) use request::{HeadLimits, too_many_headers};
pub(crate) use socket::{ClientSocket, InformationalSender};
pub(crate) use switch::{ProtocolSwitch, UpgradedSocket};

use super::service::{ClientResponseBody, ClientResponseFuture, ClientService};
use super::state::Client;
use crate::api::Problem;
use crate::gateway::body::FromClient;
use crate::gateway::http1::{MessageSink, MessageWriter, PollBudget, ResponseWriter, Trailers};
use crate::net::stream::yield_to_others;
use axum::body::Bytes;
use axum::http::{Response, StatusCode, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use request::{Head, ParsedRequest};
use response::write_head;
use socket::HeadError;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};

/// How much of an unwanted body is discarded so that the connection can be reused.
const MOST_UNWANTED: usize = 64 * 1024;

/// For how long, and for how many bytes, a client that is still sending is read before its
/// connection is closed: else it may lose the response.
const LINGER: Duration = Duration::from_secs(2);
const MOST_LINGERING: usize = 16 << 20;

/// What one request costs of the poll budget, which bounds how many pipelined requests are served
/// in one poll.
const REQUEST_COST: usize = 4 * 1024;

pin_project! {
    pub(super) struct Http1 {
        wire: ClientSocket,
        client: Arc<Client>,
        service: ClientService,
        writer: MessageWriter<ClientResponseBody>,
        // Whether the current request is the last.
        leaving: bool,
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State {
        /// Between requests, or in a head.
        Reading,
        Asked {
            #[pin]
            future: ClientResponseFuture,
            asked: ParsedRequest,
        },
        Answered {
            asked: ParsedRequest,
            switch: Option<ProtocolSwitch>,
        },
        /// The rest of an unwanted body precedes the next request.
        Discarding {
            left: usize,
        },
        Leaving {
            lingers: bool,
        },
        Lingering {
            left: usize,
            until: Pin<Box<Sleep>>,
        },
    }
}

impl Http1 {
    pub(super) fn new(wire: ClientSocket, client: Arc<Client>, service: ClientService) -> Self {
        Self {
            wire,
            client,
            service,
            writer: MessageWriter::default(),
            leaving: false,
            state: State::Reading,
        }
    }

    /// Ends the connection once the requests in flight are answered.
    pub(super) fn leave(self: Pin<&mut Self>) {
        *self.project().leaving = true;
    }
}

impl Future for Http1 {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        let mut budget = PollBudget::new();
        loop {
            if budget.is_spent() {
                return yield_to_others(cx);
            }
            let next = match this.state.as_mut().project() {
                StateProjection::Reading => {
                    let head = this.wire.lock().poll_head(cx);
                    match head {
                        Poll::Ready(Ok(Some(Head {
                            request,
                            length,
                            asked,
                            ..
                        }))) => {
                            budget.spend(REQUEST_COST);
                            let body = this
                                .wire
                                .body(length)
                                .map_or(FromClient::None, FromClient::Http1);
                            State::Asked {
                                future: this.service.answer(request.map(|()| body)),
                                asked,
                            }
                        }
                        Poll::Ready(Ok(None)) => State::Leaving { lingers: false },
                        Poll::Ready(Err(HeadError::Problem(problem))) => {
                            refusing(this.writer, &problem)
                        }
                        Poll::Ready(Err(HeadError::Io(error))) => return Poll::Ready(Err(error)),
                        Poll::Pending if *this.leaving && this.wire.lock().is_idle() => {
                            State::Leaving { lingers: false }
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
                StateProjection::Asked { future, asked } => {
                    let Poll::Ready(Ok(response)) = future.poll(cx) else {
                        return gone(this.wire, cx);
                    };
                    answering(response, *asked, this.wire, this.writer, cx)
                }
                StateProjection::Answered { asked, switch } => {
                    ready!(poll_answer(
                        this.wire,
                        this.client,
                        this.writer,
                        &mut budget,
                        cx
                    ))?;
                    if let Some(switch) = switch.take() {
                        if !this.wire.lock().can_switch() {
                            return Poll::Ready(Err(io::Error::other(
                                "the client sent bytes of another protocol before the switch",
                            )));
                        }
                        switch.give(UpgradedSocket::new(this.wire.clone()));
                        return Poll::Ready(Ok(()));
                    }
                    let mut ends = this.wire.lock();
                    ends.end_request(cx);
                    match asked.keep && !*this.leaving {
                        true if ends.is_coming() => State::Discarding {
                            left: MOST_UNWANTED,
                        },
                        true => State::Reading,
                        false => State::Leaving {
                            lingers: ends.is_coming() || !ends.is_idle(),
                        },
                    }
                }
                StateProjection::Discarding { left } => {
                    match ready!(this.wire.lock().poll_discard(left, cx)) {
                        true => State::Reading,
                        false => State::Leaving { lingers: true },
                    }
                }
                StateProjection::Leaving { lingers } => {
                    ready!(Pin::new(&mut this.wire.lock().stream).poll_shutdown(cx))?;
                    if !*lingers {
                        return Poll::Ready(Ok(()));
                    }
                    State::Lingering {
                        left: MOST_LINGERING,
                        until: Box::pin(sleep(LINGER)),
                    }
                }
                StateProjection::Lingering { left, until } => {
                    if until.as_mut().poll(cx).is_pending() {
                        ready!(this.wire.lock().poll_forget(left, cx));
                    }
                    return Poll::Ready(Ok(()));
                }
            };
            this.state.set(next);
        }
    }
}

/// Pending, unless the client has left meanwhile: then the request is dropped.
fn gone(wire: &ClientSocket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    wire.lock()
        .poll_gone(cx)
        .map(|()| Err(io::ErrorKind::UnexpectedEof.into()))
}

/// Begins a response.
fn answering(
    mut response: Response<ClientResponseBody>,
    mut asked: ParsedRequest,
    wire: &ClientSocket,
    writer: &mut MessageWriter<ClientResponseBody>,
    cx: &mut Context<'_>,
) -> State {
    let switch = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => response.extensions_mut().remove::<ProtocolSwitch>(),
        _ => None,
    };
    let mut ends = wire.lock();
    let interim = ends.take_interim(switch.is_some());
    // The available part of an unwanted body is discarded now; its rest is not waited for.
    if ends.is_unwanted() && ends.poll_discard(&mut { MOST_UNWANTED }, cx) != Poll::Ready(true) {
        asked.keep = false;
    }
    drop(ends);
    let framing = writer.begin(|head| {
        head.extend_from_slice(&interim);
        write_head(head, &response, &mut asked)
    });
    let trailers = if asked.trailers {
        Trailers::All
    } else {
        Trailers::None
    };
    writer.set_body(response.into_body(), framing, trailers);
    State::Answered { asked, switch }
}

/// Begins the response to a malformed request, which is the last one.
fn refusing<B>(writer: &mut MessageWriter<B>, problem: &Problem) -> State {
    let mut asked = ParsedRequest {
        version: Version::HTTP_11,
        is_head: false,
        keep: false,
        trailers: false,
    };
    let response = problem.plain().map(http_body_util::Full::new);
    writer.begin(|bytes| {
        write_head(bytes, &response, &mut asked);
        bytes.extend_from_slice(&problem.plain().into_body());
    });
    State::Answered {
        asked,
        switch: None,
    }
}

/// Writes the response as its body comes; ready when all of it is written.
fn poll_answer<B: Body<Data = Bytes, Error = Broken> + Unpin>(
    wire: &ClientSocket,
    client: &Client,
    writer: &mut MessageWriter<B>,
    budget: &mut PollBudget,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let sent = writer.poll(&mut ToSocket { wire, client }, budget, cx);
    if sent.is_pending() && writer.waits_for_body() {
        return gone(wire, cx);
    }
    sent.map_err(io::Error::from)
}

/// The sink for a response. It locks the connection for each write only: in between, the response
/// body may read the request body from it.
struct ToSocket<'a> {
    wire: &'a ClientSocket,
    client: &'a Client,
}

impl MessageSink for ToSocket<'_> {
    fn poll_send(
        &mut self,
        out: &mut ResponseWriter,
        flush: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut ends = self.wire.lock();
        let before = out.left();
        let written = out.poll_write(&mut ends.stream, cx);
        // Even a slow client takes something.
        if out.left() < before {
            self.client.took(true);
        }
        self.client.took(written.is_ready());
        ready!(written)?;
        if !flush {
            return Poll::Ready(Ok(()));
        }
        let flushed = out.poll_flush(&mut ends.stream, cx);
        self.client.took(flushed.is_ready());
        flushed
    }
}

/// Why a response body ended early.
type Broken = Box<dyn Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::http1::Framing;
    use crate::net::stream::Stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    /// An error that occurs while the client is not reading is kept: polled again, that body looks
    /// like one that has ended.
    #[tokio::test]
    async fn an_answer_that_breaks_off_while_nobody_reads_does_not_look_whole() {
        for framing in [Framing::Chunked, Framing::Known(100_000)] {
            let (mut far, near) = UnixStream::pair().unwrap();
            while near.try_write(&[b'x'; 1_000]).is_ok() {}
            let client = Arc::new(Client::new(None, false, false, None));
            let wire = ClientSocket::new(
                Stream::Unix(near),
                Arc::clone(&client),
                HeadLimits {
                    bytes: 1_024,
                    headers: 10,
                },
                b"",
            );
            let frames = [
                Ok(Frame::data(Bytes::from("hello"))),
                Err(Broken::from("it is gone")),
            ];
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let mut writer = MessageWriter::default();
            writer.set_body(body, framing, Trailers::None);
            let ended =
                poll_fn(|cx| poll_answer(&wire, &client, &mut writer, &mut PollBudget::new(), cx))
                    .await;
            assert_eq!(ended.unwrap_err().to_string(), "it is gone");
            drop(wire);
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert!(!read.ends_with(b"0\r\n\r\n"));
        }
    }
}
