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
use crate::gateway::body::IncomingBody;
use crate::gateway::http1::{MessageSink, MessageWriter, PollBudget, Trailers, WriteBuffer};
use crate::net::stream::yield_to_others;
use axum::body::Bytes;
use axum::http::{Response, StatusCode, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use request::{Head, RequestInfo};
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
const MAX_DISCARDED: usize = 64 * 1024;

/// For how long, and for how many bytes, a client that is still sending is read before its
/// connection is closed: otherwise it may lose the response.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 16 << 20;

/// What one request costs of the poll budget, which bounds how many pipelined requests are served
/// in one poll.
const REQUEST_COST: usize = 4 * 1024;

pin_project! {
    /// The future that serves an HTTP/1 connection.
    pub(super) struct Http1 {
        socket: ClientSocket,
        client: Arc<Client>,
        service: ClientService,
        writer: MessageWriter<ClientResponseBody>,
        // Whether the current request is the last.
        is_last: bool,
        #[pin]
        state: State,
    }
}

pin_project! {
    /// The phase of the connection.
    #[project = StateProjection]
    enum State {
        /// Between requests, or in a head.
        Reading,
        AwaitingResponse {
            #[pin]
            future: ClientResponseFuture,
            info: RequestInfo,
        },
        WritingResponse {
            info: RequestInfo,
            switch: Option<ProtocolSwitch>,
        },
        /// The rest of an unwanted body precedes the next request.
        Discarding {
            left: usize,
        },
        Closing {
            linger: bool,
        },
        Lingering {
            left: usize,
            until: Pin<Box<Sleep>>,
        },
    }
}

impl Http1 {
    pub(super) fn new(socket: ClientSocket, client: Arc<Client>, service: ClientService) -> Self {
        Self {
            socket,
            client,
            service,
            writer: MessageWriter::default(),
            is_last: false,
            state: State::Reading,
        }
    }

    /// Ends the connection once the requests in flight are answered.
    pub(super) fn graceful_shutdown(self: Pin<&mut Self>) {
        *self.project().is_last = true;
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
                    let head = this.socket.lock().poll_head(cx);
                    match head {
                        Poll::Ready(Ok(Some(Head {
                            request,
                            length,
                            info,
                            ..
                        }))) => {
                            budget.spend(REQUEST_COST);
                            let body = this
                                .socket
                                .body(length)
                                .map_or(IncomingBody::None, IncomingBody::Http1);
                            State::AwaitingResponse {
                                future: this.service.respond(request.map(|()| body)),
                                info,
                            }
                        }
                        Poll::Ready(Ok(None)) => State::Closing { linger: false },
                        Poll::Ready(Err(HeadError::Problem(problem))) => {
                            begin_error(this.writer, &problem)
                        }
                        Poll::Ready(Err(HeadError::Io(error))) => return Poll::Ready(Err(error)),
                        Poll::Pending if *this.is_last && this.socket.lock().is_idle() => {
                            State::Closing { linger: false }
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
                StateProjection::AwaitingResponse { future, info } => {
                    let Poll::Ready(Ok(response)) = future.poll(cx) else {
                        return poll_client_gone(this.socket, cx);
                    };
                    begin_response(response, *info, this.socket, this.writer, cx)
                }
                StateProjection::WritingResponse { info, switch } => {
                    ready!(poll_response(
                        this.socket,
                        this.client,
                        this.writer,
                        &mut budget,
                        cx
                    ))?;
                    if let Some(switch) = switch.take() {
                        if !this.socket.lock().can_switch() {
                            return Poll::Ready(Err(io::Error::other(
                                "the client sent bytes of another protocol before the switch",
                            )));
                        }
                        switch.hand_over(UpgradedSocket::new(this.socket.clone()));
                        return Poll::Ready(Ok(()));
                    }
                    let mut state = this.socket.lock();
                    state.end_request(cx);
                    if !info.keep_alive || *this.is_last {
                        State::Closing {
                            linger: state.has_body_left() || !state.is_idle(),
                        }
                    } else if state.has_body_left() {
                        State::Discarding {
                            left: MAX_DISCARDED,
                        }
                    } else {
                        State::Reading
                    }
                }
                StateProjection::Discarding { left } => {
                    if ready!(this.socket.lock().poll_discard(left, cx)) {
                        State::Reading
                    } else {
                        State::Closing { linger: true }
                    }
                }
                StateProjection::Closing { linger } => {
                    ready!(Pin::new(&mut this.socket.lock().stream).poll_shutdown(cx))?;
                    if !*linger {
                        return Poll::Ready(Ok(()));
                    }
                    State::Lingering {
                        left: MAX_LINGER_BYTES,
                        until: Box::pin(sleep(LINGER)),
                    }
                }
                StateProjection::Lingering { left, until } => {
                    if until.as_mut().poll(cx).is_pending() {
                        ready!(this.socket.lock().poll_discard_all(left, cx));
                    }
                    return Poll::Ready(Ok(()));
                }
            };
            this.state.set(next);
        }
    }
}

/// Pending, unless the client has left meanwhile: then the request is dropped.
fn poll_client_gone(socket: &ClientSocket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    socket
        .lock()
        .poll_closed(cx)
        .map(|()| Err(io::ErrorKind::UnexpectedEof.into()))
}

/// Begins a response.
fn begin_response(
    mut response: Response<ClientResponseBody>,
    mut info: RequestInfo,
    socket: &ClientSocket,
    writer: &mut MessageWriter<ClientResponseBody>,
    cx: &mut Context<'_>,
) -> State {
    let switch = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => response.extensions_mut().remove::<ProtocolSwitch>(),
        _ => None,
    };
    let mut state = socket.lock();
    let interim = state.take_interim(switch.is_some());
    // The available part of an unwanted body is discarded now; its rest is not waited for.
    if state.is_unwanted() && state.poll_discard(&mut { MAX_DISCARDED }, cx) != Poll::Ready(true) {
        info.keep_alive = false;
    }
    drop(state);
    let framing = writer.begin(|head| {
        head.extend_from_slice(&interim);
        write_head(head, &response, &mut info)
    });
    let trailers = if info.trailers {
        Trailers::All
    } else {
        Trailers::None
    };
    writer.set_body(response.into_body(), framing, trailers);
    State::WritingResponse { info, switch }
}

/// Begins the response to a malformed request, which is the last one.
fn begin_error<B>(writer: &mut MessageWriter<B>, problem: &Problem) -> State {
    let mut info = RequestInfo {
        version: Version::HTTP_11,
        is_head: false,
        keep_alive: false,
        trailers: false,
    };
    let response = problem.plain().map(http_body_util::Full::new);
    writer.begin(|bytes| {
        write_head(bytes, &response, &mut info);
        bytes.extend_from_slice(&problem.plain().into_body());
    });
    State::WritingResponse { info, switch: None }
}

/// Writes the response as its body comes; ready when all of it is written.
fn poll_response<B: Body<Data = Bytes, Error = BoxError> + Unpin>(
    socket: &ClientSocket,
    client: &Client,
    writer: &mut MessageWriter<B>,
    budget: &mut PollBudget,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let sent = writer.poll(&mut SocketSink { socket, client }, budget, cx);
    if sent.is_pending() && writer.waits_for_body() {
        return poll_client_gone(socket, cx);
    }
    sent.map_err(io::Error::from)
}

/// The sink for a response. It locks the connection for each write only: in between, the response
/// body may read the request body from it.
struct SocketSink<'a> {
    socket: &'a ClientSocket,
    client: &'a Client,
}

impl MessageSink for SocketSink<'_> {
    fn poll_send(
        &mut self,
        out: &mut WriteBuffer,
        flush: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.socket.lock();
        let before = out.left();
        let written = out.poll_write(&mut state.stream, cx);
        // Even a slow client takes something.
        if out.left() < before {
            self.client.on_write(true);
        }
        self.client.on_write(written.is_ready());
        ready!(written)?;
        if !flush {
            return Poll::Ready(Ok(()));
        }
        let flushed = out.poll_flush(&mut state.stream, cx);
        self.client.on_write(flushed.is_ready());
        flushed
    }
}

/// Why a response body ended early.
type BoxError = Box<dyn Error + Send + Sync>;

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
    async fn a_response_cut_off_while_the_client_does_not_read_is_incomplete() {
        for framing in [Framing::Chunked, Framing::Known(100_000)] {
            let (mut far, near) = UnixStream::pair().unwrap();
            while near.try_write(&[b'x'; 1_000]).is_ok() {}
            let client = Arc::new(Client::new(None, false, false, None));
            let socket = ClientSocket::new(
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
                Err(BoxError::from("it is gone")),
            ];
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let mut writer = MessageWriter::default();
            writer.set_body(body, framing, Trailers::None);
            let ended = poll_fn(|cx| {
                poll_response(&socket, &client, &mut writer, &mut PollBudget::new(), cx)
            })
            .await;
            assert_eq!(ended.unwrap_err().to_string(), "it is gone");
            drop(socket);
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert!(!read.ends_with(b"0\r\n\r\n"));
        }
    }
}
