//! One connection of HTTP/1: reads a request, has it answered, writes the answer, and so on until one side has had enough.
//!
//! The body of a request is read from the socket by whoever sends it on: in the connection's own task, or, to an upstream in HTTP/2, in
//! that of hyper. What the guard refuses never comes that far.

mod answer;
mod body;
mod request;
mod switch;
mod wire;

pub(crate) use body::ClientBody;
pub(super) use request::Bounds;
pub(crate) use switch::{Switch, Switched};
pub(crate) use wire::{Informed, Wire};

use super::service::{Answering, OfClient, ToClient};
use super::state::Client;
use crate::http::Problem;
use crate::proxy::body::FromClient;
use crate::proxy::http1::Outgoing;
use answer::{Framing, write_head};
use axum::body::Bytes;
use axum::http::{Response, StatusCode, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use request::{Asked, Head};
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};
use wire::NoHead;

/// So much of a body that nobody wants is taken, so that the connection can be used again.
const MOST_UNWANTED: usize = 64 * 1024;

/// Who is still sending when its connection ends is listened to for so long, and so many bytes: else it may lose its answer.
const LINGER: Duration = Duration::from_secs(2);
const MOST_LINGERING: usize = 16 << 20;

pin_project! {
    pub(super) struct Http1 {
        wire: Wire,
        client: Arc<Client>,
        service: OfClient,
        out: Outgoing,
        // Whether the request at hand is the last.
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
            future: Answering,
            asked: Asked,
        },
        Answered {
            body: Option<ToClient>,
            framing: Framing,
            asked: Asked,
            switch: Option<Switch>,
        },
        /// The rest of a body that nobody wants is in the way of the next request.
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
    pub(super) fn new(wire: Wire, client: Arc<Client>, service: OfClient) -> Self {
        Self { wire, client, service, out: Outgoing::default(), leaving: false, state: State::Reading }
    }

    /// Ends it once what is under way is answered.
    pub(super) fn leave(self: Pin<&mut Self>) {
        *self.project().leaving = true;
    }
}

impl Future for Http1 {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Reading => {
                    let head = this.wire.lock().poll_head(cx);
                    match head {
                        Poll::Ready(Ok(Some(Head { request, length, asked, .. }))) => {
                            let body = this.wire.body(length).map_or(FromClient::None, FromClient::Http1);
                            State::Asked { future: this.service.answer(request.map(|()| body)), asked }
                        }
                        Poll::Ready(Ok(None)) => State::Leaving { lingers: false },
                        Poll::Ready(Err(NoHead::Problem(problem))) => refusing(this.out, &problem),
                        Poll::Ready(Err(NoHead::Io(error))) => return Poll::Ready(Err(error)),
                        Poll::Pending if *this.leaving && this.wire.lock().is_idle() => {
                            State::Leaving { lingers: false }
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
                StateProjection::Asked { future, asked } => {
                    let Poll::Ready(Ok(response)) = future.poll(cx) else { return gone(this.wire, cx) };
                    answering(response, *asked, this.wire, this.out, cx)
                }
                StateProjection::Answered { body, framing, asked, switch } => {
                    let trailers = asked.trailers;
                    ready!(poll_answer(this.wire, this.client, this.out, body, framing, trailers, cx))?;
                    if let Some(switch) = switch.take() {
                        if !this.wire.lock().can_switch() {
                            return Poll::Ready(Err(io::Error::other(
                                "bytes of another protocol came before it was spoken",
                            )));
                        }
                        switch.give(Switched::new(this.wire.clone()));
                        return Poll::Ready(Ok(()));
                    }
                    let mut ends = this.wire.lock();
                    ends.end_request(cx);
                    match asked.keep && !*this.leaving {
                        true if ends.is_coming() => State::Discarding { left: MOST_UNWANTED },
                        true => State::Reading,
                        false => State::Leaving { lingers: ends.is_coming() || !ends.is_idle() },
                    }
                }
                StateProjection::Discarding { left } => match ready!(this.wire.lock().poll_discard(left, cx)) {
                    true => State::Reading,
                    false => State::Leaving { lingers: true },
                },
                StateProjection::Leaving { lingers } => {
                    ready!(Pin::new(&mut this.wire.lock().stream).poll_shutdown(cx))?;
                    if !*lingers {
                        return Poll::Ready(Ok(()));
                    }
                    State::Lingering { left: MOST_LINGERING, until: Box::pin(sleep(LINGER)) }
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

/// Pending, unless the client has left meanwhile: that takes its request along.
fn gone(wire: &Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    wire.lock().poll_gone(cx).map(|()| Err(io::ErrorKind::UnexpectedEof.into()))
}

/// Begins an answer.
fn answering(
    mut response: Response<ToClient>,
    mut asked: Asked,
    wire: &Wire,
    out: &mut Outgoing,
    cx: &mut Context<'_>,
) -> State {
    let switch = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => response.extensions_mut().remove::<Switch>(),
        _ => None,
    };
    let mut ends = wire.lock();
    let interim = ends.take_interim(switch.is_some());
    // What is at hand of a body that nobody wants is not in the way; for the rest of it nobody waits.
    if ends.is_unwanted() && ends.poll_discard(&mut { MOST_UNWANTED }, cx) != Poll::Ready(true) {
        asked.keep = false;
    }
    drop(ends);
    let mut framing = Framing::Empty;
    out.begin(|head| {
        head.extend_from_slice(&interim);
        framing = write_head(head, &response, &mut asked);
    });
    State::Answered { body: Some(response.into_body()), framing, asked, switch }
}

/// Begins the answer to what is no request, which is the last.
fn refusing(out: &mut Outgoing, problem: &Problem) -> State {
    let mut asked = Asked { version: Version::HTTP_11, is_head: false, keep: false, trailers: false };
    let (head, body) = problem.plain().into_parts();
    let framing = Framing::Known(0);
    out.begin(|bytes| {
        let response = Response::from_parts(head, http_body_util::Full::new(body.clone()));
        write_head(bytes, &response, &mut asked);
    });
    out.add(body, false);
    State::Answered { body: None, framing, asked, switch: None }
}

/// Writes the answer, as its body comes; ready when all of it is written.
fn poll_answer<B: Body<Data = Bytes, Error = Broken> + Unpin>(
    wire: &Wire,
    client: &Client,
    out: &mut Outgoing,
    body: &mut Option<B>,
    framing: &mut Framing,
    trailers: bool,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        // As much as is there goes out in one piece.
        let mut taken = Ok(Taken::Piece);
        while out.has_room() && matches!(taken, Ok(Taken::Piece)) {
            taken = take(out, body, framing, trailers, cx);
        }
        let mut ends = wire.lock();
        let before = out.left();
        let written = out.poll_write(&mut ends.stream, cx);
        // Who takes little takes something.
        if out.left() < before {
            client.took(true);
        }
        client.took(written.is_ready());
        // What goes wrong is told now: a body that failed may look like one that has ended when it is asked again.
        let taken = taken?;
        ready!(written)?;
        if let Taken::Piece = taken {
            continue;
        }
        let flushed = out.poll_flush(&mut ends.stream, cx);
        client.took(flushed.is_ready());
        return match taken {
            Taken::All => flushed,
            _ => {
                let _ = flushed?;
                ends.poll_gone(cx).map(|()| Err(io::ErrorKind::UnexpectedEof.into()))
            }
        };
    }
}

/// Why there is no more of the body of an answer.
type Broken = Box<dyn Error + Send + Sync>;

/// What there was of a body.
enum Taken {
    Piece,
    /// It has not come yet.
    Nothing,
    All,
}

/// Takes the next piece of a body, which is gone when it ends.
fn take<B: Body<Data = Bytes, Error = Broken> + Unpin>(
    out: &mut Outgoing,
    body: &mut Option<B>,
    framing: &mut Framing,
    trailers: bool,
    cx: &mut Context<'_>,
) -> io::Result<Taken> {
    let wrong_length = || io::Error::other("an answer is not as long as it was said to be");
    let frame = match body.as_mut().filter(|body| *framing != Framing::Empty && !body.is_end_stream()) {
        Some(coming) => Pin::new(coming).poll_frame(cx),
        None => Poll::Ready(None),
    };
    let frame = match frame {
        Poll::Ready(Some(frame)) => frame.map_err(io::Error::other)?,
        Poll::Ready(None) => {
            if body.take().is_some() {
                match framing {
                    Framing::Known(1..) => return Err(wrong_length()),
                    Framing::Chunked => out.end_chunks([].into_iter()),
                    _ => {}
                }
            }
            return Ok(Taken::All);
        }
        Poll::Pending => return Ok(Taken::Nothing),
    };
    match frame.into_data() {
        Ok(data) => {
            if let Framing::Known(left) = framing {
                *left = left.checked_sub(data.len() as u64).ok_or_else(wrong_length)?;
            }
            out.add(data, *framing == Framing::Chunked);
        }
        Err(frame) => {
            if let (Framing::Chunked, Ok(found)) = (*framing, frame.into_trailers()) {
                out.end_chunks(found.iter().filter(|_| trailers));
                // That was the end.
                *framing = Framing::Empty;
            }
        }
    }
    Ok(Taken::Piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::future::poll_fn;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    /// A head, or pieces that come at once, of more bytes than are gathered before they are written.
    #[tokio::test]
    async fn an_answer_larger_than_what_is_gathered_goes_on() {
        for (head, pieces) in [(16 * 1024, 1), (17 * 1024, 1), (100, 40)] {
            let (mut far, near) = UnixStream::pair().unwrap();
            let client = Arc::new(Client::new(None, false, false, None));
            let wire = Wire::new(Stream::Unix(near), Arc::clone(&client), Bounds { bytes: 1_024, headers: 10 }, b"");
            let frames = (0..pieces).map(|_| Ok::<_, Broken>(Frame::data(Bytes::from(vec![b'x'; 1_000]))));
            let mut body = Some(StreamBody::new(futures_util::stream::iter(frames)));
            let (mut out, mut framing) = (Outgoing::default(), Framing::Known(pieces * 1_000));
            out.begin(|first| first.resize(head, b'h'));
            let writing = tokio::spawn(async move {
                poll_fn(|cx| poll_answer(&wire, &client, &mut out, &mut body, &mut framing, false, cx)).await
            });
            let mut read = vec![0; head + 1_000 * pieces as usize];
            far.read_exact(&mut read).await.unwrap();
            writing.await.unwrap().unwrap();
        }
    }

    /// What went wrong while the client does not read is not forgotten: asked again, that body looks like one that has ended.
    #[tokio::test]
    async fn an_answer_that_breaks_off_while_nobody_reads_does_not_look_whole() {
        for framing in [Framing::Chunked, Framing::Known(100_000)] {
            let (mut far, near) = UnixStream::pair().unwrap();
            while near.try_write(&[b'x'; 1_000]).is_ok() {}
            let client = Arc::new(Client::new(None, false, false, None));
            let wire = Wire::new(Stream::Unix(near), Arc::clone(&client), Bounds { bytes: 1_024, headers: 10 }, b"");
            let frames = [Ok(Frame::data(Bytes::from("hello"))), Err(Broken::from("it is gone"))];
            let mut body = Some(StreamBody::new(futures_util::stream::iter(frames)));
            let (mut out, mut framing) = (Outgoing::default(), framing);
            let told = poll_fn(|cx| poll_answer(&wire, &client, &mut out, &mut body, &mut framing, false, cx)).await;
            assert_eq!(told.unwrap_err().to_string(), "it is gone");
            drop(wire);
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            assert!(!read.ends_with(b"0\r\n\r\n"));
        }
    }
}
