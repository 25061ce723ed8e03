//! One connection: reads what has come, answers all of it, writes once.

use super::Shared;
use super::session::{LONGEST_COMMAND, Session, Step, Totals, Verb};
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

/// How long a client may be silent, or leave its answers unread.
pub(super) const IDLE: Duration = Duration::from_secs(300);

/// As much is read at once.
const CHUNK: usize = 64 * 1024;

thread_local! {
    /// What one connection at a time needs and the others do not: ten thousand that are idle take
    /// no room.
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
            input: vec![0; CHUNK].into(),
            out: Vec::with_capacity(CHUNK),
        })
    }

    fn give_back(mut self) {
        self.out.clear();
        self.out.shrink_to(2 * CHUNK);
        SPARE.set(Some(self));
    }
}

pub(super) struct Connection<C: Clock> {
    stream: Stream,
    /// None on a Unix socket.
    peer: Option<SocketAddr>,
    session: Session,
    shared: Arc<Shared<C>>,
    /// A command that has not come whole.
    begun: Vec<u8>,
}

impl<C: Clock> Connection<C> {
    pub(super) fn new(
        stream: Stream,
        peer: Option<SocketAddr>,
        id: i64,
        shared: Arc<Shared<C>>,
    ) -> Self {
        let session = Session::new(id, shared.password.clone());
        Self {
            stream,
            peer,
            session,
            shared,
            begun: Vec::new(),
        }
    }

    /// Until the client leaves, says what is no command, falls silent, or `stop` changes.
    pub(super) async fn serve(mut self, mut stop: watch::Receiver<bool>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let clock = shared.arrivals.clock();
        let (mut silent, mut stopped) = (pin!(sleep(IDLE)), pin!(stop.wait_for(|stop| *stop)));
        let mut heard = clock.now();
        loop {
            let (buffers, read) = tokio::select! {
                biased;
                read = poll_fn(|cx| read(&mut self.stream, cx)) => read?,
                _ = &mut stopped => return Ok(()),
                () = &mut silent => {
                    // The timer is not moved whenever something is heard: it looks when it is due.
                    let left = IDLE.saturating_sub(clock.now().saturating_since(heard));
                    if left.is_zero() {
                        return Ok(());
                    }
                    silent.set(sleep(left));
                    continue;
                }
            };
            if read == 0 {
                buffers.give_back();
                return Ok(());
            }
            heard = clock.now();
            if self.answer(buffers, read, heard).await? == Step::Close {
                return Ok(());
            }
        }
    }

    /// Answers what was read, and keeps what is not a whole command.
    async fn answer(
        &mut self,
        mut buffers: Buffers,
        read: usize,
        now: Timestamp,
    ) -> io::Result<Step> {
        let (mut totals, mut at) = (Totals::default(), 0);
        let mut begun = std::mem::take(&mut self.begun);
        let was_begun = !begun.is_empty();
        if was_begun {
            begun.extend_from_slice(&buffers.input[..read]);
        }
        let last = loop {
            let input = if was_begun {
                &begun[at..]
            } else {
                &buffers.input[at..read]
            };
            let (consumed, step) = self.session.run(
                input,
                &self.shared.arrivals,
                now,
                &mut totals,
                &mut buffers.out,
            );
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
                    let shared = &self.shared;
                    match verb {
                        Verb::Check | Verb::Peek => {
                            policy::answer(
                                &shared.app.engine,
                                verb == Verb::Peek,
                                arguments,
                                &mut reply,
                            )
                            .await;
                        }
                        Verb::Reset => {
                            let is_authenticated = self.session.is_authenticated();
                            operator::reset(
                                shared,
                                self.peer,
                                is_authenticated,
                                arguments,
                                &mut reply,
                            )
                            .await;
                        }
                    }
                    self.session.answered();
                    at += length;
                }
            }
        };
        self.shared.app.add_throttle_totals(totals);
        if was_begun {
            begun.drain(..at);
            if begun.is_empty() {
                // It was for a large one, or one that came in pieces: most are neither.
                begun = Vec::new();
            }
        } else if at < read {
            begun.extend_from_slice(&buffers.input[at..read]);
        }
        debug_assert!(
            begun.len() <= LONGEST_COMMAND + CHUNK,
            "a command is never longer"
        );
        self.begun = begun;
        send(&mut self.stream, &buffers.out).await?;
        buffers.give_back();
        Ok(last)
    }
}

/// What has come, in the buffers of this thread. A read that does not fill them has taken all there
/// was: tokio then waits for more without asking again, which would be one call of the system in
/// three.
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

/// All of it. A client that does not read is not waited for any longer than one that does not
/// write.
async fn send(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match within_patience(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => bytes = &bytes[sent..],
        }
    }
    // What is encrypted may be on its way still.
    within_patience(|cx| Pin::new(&mut *stream).poll_flush(cx)).await
}

/// Most is done at once, which takes no timer.
async fn within_patience<T>(
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> io::Result<T> {
    match poll_fn(|cx| Poll::Ready(poll(cx))).await {
        Poll::Ready(done) => done,
        Poll::Pending => timeout(IDLE, poll_fn(poll)).await?,
    }
}
