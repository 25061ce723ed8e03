//! A connection: reads the available bytes, replies to all commands in them, writes once.

use super::RespServer;
use super::session::{MAX_COMMAND_BYTES, Session, Step, Totals, Verb};
use super::{operator, policy};
use crate::net::stream::Stream;
use ratekeeper::{Clock, Timestamp};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Timeout for a client that sends nothing or does not read its replies.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Size of the read buffer.
const READ_BUFFER_BYTES: usize = 64 * 1024;

thread_local! {
    /// Buffers of the active connection of this thread: ten thousand idle ones need none.
    static SPARE: RefCell<Option<Buffers>> = const { RefCell::new(None) };
}

struct Buffers {
    input: Box<[u8]>,
    out: Vec<u8>,
}

impl Buffers {
    fn take() -> Self {
        let spare = SPARE.with_borrow_mut(Option::take);
        spare.unwrap_or_else(|| Self {
            input: vec![0; READ_BUFFER_BYTES].into(),
            out: Vec::with_capacity(READ_BUFFER_BYTES),
        })
    }

    fn give_back(mut self) {
        self.out.clear();
        self.out.shrink_to(2 * READ_BUFFER_BYTES);
        SPARE.set(Some(self));
    }
}

pub(super) struct Connection<C: Clock> {
    stream: Stream,
    /// `None` on a Unix socket.
    peer: Option<SocketAddr>,
    session: Session,
    server: Arc<RespServer<C>>,
    /// A command that is not complete.
    partial: Vec<u8>,
}

impl<C: Clock> Connection<C> {
    pub(super) fn new(
        stream: Stream,
        peer: Option<SocketAddr>,
        id: i64,
        server: Arc<RespServer<C>>,
    ) -> Self {
        let session = Session::new(id, server.password.clone());
        Self {
            stream,
            peer,
            session,
            server,
            partial: Vec::new(),
        }
    }

    /// Serves until the client disconnects, sends invalid bytes or is idle, or `stop` changes.
    pub(super) async fn serve(mut self, mut stop: watch::Receiver<bool>) -> io::Result<()> {
        let server = Arc::clone(&self.server);
        let clock = server.gcra.clock();
        let mut idle = pin!(sleep(IDLE_TIMEOUT));
        let mut stopped = pin!(stop.wait_for(|stop| *stop));
        let mut last_read = clock.now();
        loop {
            let (buffers, read) = tokio::select! {
                biased;
                read = poll_fn(|cx| read(&mut self.stream, cx)) => read?,
                _ = &mut stopped => return Ok(()),
                () = &mut idle => {
                    // The timer is not reset on each read, but checked when it fires.
                    let left = IDLE_TIMEOUT.saturating_sub(clock.now().saturating_since(last_read));
                    if left.is_zero() {
                        return Ok(());
                    }
                    idle.set(sleep(left));
                    continue;
                }
            };
            if read == 0 {
                buffers.give_back();
                return Ok(());
            }
            last_read = clock.now();
            if self.reply_to(buffers, read, last_read).await? == Step::Close {
                return Ok(());
            }
        }
    }

    /// Replies to the commands that were read, and keeps an incomplete one.
    async fn reply_to(
        &mut self,
        mut buffers: Buffers,
        read: usize,
        now: Timestamp,
    ) -> io::Result<Step> {
        let mut totals = Totals::default();
        let mut at = 0;
        let mut partial = std::mem::take(&mut self.partial);
        let had_partial = !partial.is_empty();
        if had_partial {
            partial.extend_from_slice(&buffers.input[..read]);
        }
        let last = loop {
            let input = if had_partial {
                &partial[at..]
            } else {
                &buffers.input[at..read]
            };
            let (consumed, step) =
                self.session
                    .run(input, &self.server.gcra, now, &mut totals, &mut buffers.out);
            at += consumed;
            match step {
                Step::Next => {}
                Step::Read | Step::Close => break step,
                Step::Send => {
                    send(&mut self.stream, &buffers.out).await?;
                    buffers.out.clear();
                }
                Step::Policy(verb) => {
                    let (arguments, length) = self.session.arguments(&input[consumed..]);
                    let mut reply = self.session.reply(&mut buffers.out);
                    let server = &self.server;
                    match verb {
                        Verb::Check | Verb::Peek => {
                            policy::check(
                                &server.app.engine,
                                verb == Verb::Peek,
                                arguments,
                                &mut reply,
                            )
                            .await;
                        }
                        Verb::Reset => {
                            let is_authenticated = self.session.is_authenticated();
                            operator::reset(
                                server,
                                self.peer,
                                is_authenticated,
                                arguments,
                                &mut reply,
                            )
                            .await;
                        }
                    }
                    self.session.policy_done();
                    at += length;
                }
            }
        };
        self.server.app.add_throttle_totals(totals);
        if had_partial {
            partial.drain(..at);
            if partial.is_empty() {
                // Large or split commands are rare: free the memory.
                partial = Vec::new();
            }
        } else if at < read {
            partial.extend_from_slice(&buffers.input[at..read]);
        }
        debug_assert!(
            partial.len() <= MAX_COMMAND_BYTES + READ_BUFFER_BYTES,
            "partial command too long"
        );
        self.partial = partial;
        send(&mut self.stream, &buffers.out).await?;
        buffers.give_back();
        Ok(last)
    }
}

/// Reads into the buffers of this thread. A read that does not fill them has emptied the socket:
/// tokio then waits without another read, which would be one system call in three.
fn read(stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<(Buffers, usize)>> {
    let mut buffers = Buffers::take();
    let mut input = ReadBuf::new(&mut buffers.input);
    let polled = Pin::new(stream).poll_read(cx, &mut input);
    let read = input.filled().len();
    match polled {
        Poll::Ready(Ok(())) => Poll::Ready(Ok((buffers, read))),
        Poll::Ready(Err(error)) => {
            buffers.give_back();
            Poll::Ready(Err(error))
        }
        Poll::Pending => {
            buffers.give_back();
            Poll::Pending
        }
    }
}

/// Writes and flushes all bytes. The timeout is that of an idle client.
async fn send(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match with_timeout(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => bytes = &bytes[sent..],
        }
    }
    // TLS may have buffered some of it.
    with_timeout(|cx| Pin::new(&mut *stream).poll_flush(cx)).await
}

/// Polls once without a timer, since most operations complete at once.
async fn with_timeout<T>(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> io::Result<T> {
    match poll_fn(|cx| Poll::Ready(poll(cx))).await {
        Poll::Ready(done) => done,
        Poll::Pending => timeout(IDLE_TIMEOUT, poll_fn(poll)).await?,
    }
}
