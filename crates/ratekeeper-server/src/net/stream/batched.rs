//! Write batching: small writes of a worker are deferred until every ready task has run, then made
//! one after the other.
//!
//! A worker that responds as it reads switches between its own code and the kernel's with each
//! request, and wakes a peer each time. Writes in a row cost much less, and peers receive several
//! responses at once. The delay is small: deferred writes are made at the end of the queue of ready
//! tasks, and a worker without other work writes at once.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Writes of this size or more are not deferred.
const LARGE_WRITE: usize = 16 * 1024;

/// How often an unwritable connection is checked for whether its response is still needed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The buffer memory kept for later writes.
const MAX_KEPT_CAPACITY: usize = 4 * 1024;

/// A connection whose small writes are batched with those of others.
pub(crate) struct BatchedStream {
    read: OwnedReadHalf,
    writer: Arc<BatchedWriter>,
}

/// The write half of a connection, and its deferred writes.
struct BatchedWriter {
    write: OwnedWriteHalf,
    deferred: Mutex<DeferredWrites>,
}

/// The bytes still to be written.
#[derive(Default)]
struct DeferredWrites {
    bytes: Vec<u8>,
    /// Whether the connection is in the batch.
    is_batched: bool,
    /// Whether the response is no longer needed: then nothing more is written.
    is_closed: bool,
    error: Option<io::Error>,
    /// The task that waits until the socket is writable, or for the end.
    waker: Option<Waker>,
}

thread_local! {
    /// The connections that this worker writes to next.
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

/// The connections of one worker that have deferred writes.
#[derive(Default)]
struct Batch {
    streams: Vec<Arc<BatchedWriter>>,
    waker: Option<Waker>,
}

/// Makes the deferred writes of this worker's connections, forever. On a thread without it nothing
/// is deferred.
pub(crate) async fn write_batches() {
    BATCH.set(Some(Batch::default()));
    let mut streams = Vec::new();
    poll_fn(|cx| {
        BATCH.with_borrow_mut(|batch| {
            let batch = batch.get_or_insert_default();
            std::mem::swap(&mut batch.streams, &mut streams);
            match &mut batch.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        });
        for writer in streams.drain(..) {
            writer.write_deferred();
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Adds a connection to the batch; false if there is none.
fn add_to_batch(writer: &Arc<BatchedWriter>) -> bool {
    BATCH.with_borrow_mut(|batch| {
        let Some(batch) = batch else { return false };
        if batch.streams.is_empty()
            && let Some(waker) = &batch.waker
        {
            waker.wake_by_ref();
        }
        batch.streams.push(Arc::clone(writer));
        true
    })
}

impl BatchedWriter {
    fn lock(&self) -> MutexGuard<'_, DeferredWrites> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the deferred writes. What the socket does not take now is written when it is writable.
    fn write_deferred(self: Arc<Self>) {
        if self.lock().is_done(&self.write) {
            return;
        }
        tokio::spawn(async move {
            loop {
                // A peer that does not read may never become writable, so this also checks whether
                // the response is still needed.
                let _ = timeout(CHECK_INTERVAL, self.write.writable()).await;
                if self.lock().is_done(&self.write) {
                    return;
                }
            }
        });
    }
}

impl DeferredWrites {
    /// Whether no further write is needed.
    fn is_done(&mut self, stream: &OwnedWriteHalf) -> bool {
        let done = self.write(stream) || self.is_closed;
        self.is_batched &= !done;
        done
    }

    /// Writes as much as the socket takes; true if that is everything.
    fn write(&mut self, stream: &OwnedWriteHalf) -> bool {
        let mut written = 0;
        while written < self.bytes.len() {
            match stream.try_write(&self.bytes[written..]) {
                Ok(0) => self.error = Some(io::ErrorKind::WriteZero.into()),
                Ok(more) => {
                    written += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.error = Some(error),
            }
            // The peer will never read the rest.
            written = self.bytes.len();
        }
        if written < self.bytes.len() {
            self.bytes.drain(..written);
            return false;
        }
        self.bytes.clear();
        if self.bytes.capacity() > MAX_KEPT_CAPACITY {
            self.bytes = Vec::new();
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        true
    }
}

impl BatchedStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            read,
            writer: Arc::new(BatchedWriter {
                write,
                deferred: Mutex::default(),
            }),
        }
    }

    /// Ready when there is something to read.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.read.readable().await
    }

    /// Ready when no write is deferred any more.
    fn poll_deferred(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut deferred = self.writer.lock();
        if !deferred.write(&self.writer.write) {
            // The rest is in the batch, and writing it wakes this task.
            deferred.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(deferred.error.take().map_or(Ok(()), Err))
    }

    /// Defers these bytes if they are few; returns their number then.
    fn defer(&self, bufs: &[io::IoSlice<'_>]) -> Option<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut deferred = self.writer.lock();
        if let Some(error) = deferred.error.take() {
            return Some(Err(error));
        }
        if deferred.bytes.len() + length >= LARGE_WRITE {
            return None;
        }
        if !deferred.is_batched {
            if !add_to_batch(&self.writer) {
                return None;
            }
            deferred.is_batched = true;
        }
        bufs.iter()
            .for_each(|buf| deferred.bytes.extend_from_slice(buf));
        Some(Ok(length))
    }

    fn poll_write_large(
        &self,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_deferred(cx))?;
        loop {
            ready!(self.writer.write.as_ref().poll_write_ready(cx))?;
            match self.writer.write.try_write_vectored(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl Drop for BatchedStream {
    /// Deferred bytes are still written if the socket takes them at once, without waiting.
    fn drop(&mut self) {
        self.writer.lock().is_closed = true;
    }
}

impl AsyncRead for BatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().read).poll_read(cx, buf)
    }
}

impl AsyncWrite for BatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.defer(bufs) {
            Some(defer) => Poll::Ready(defer),
            None => self.poll_write_large(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Deferred bytes count as written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_deferred(cx))?;
        Poll::Ready(
            socket2::SockRef::from(self.writer.write.as_ref()).shutdown(std::net::Shutdown::Write),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::yield_now;

    async fn pair() -> (BatchedStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        (BatchedStream::new(near.unwrap()), far.unwrap().0)
    }

    fn is_deferred(stream: &BatchedStream) -> bool {
        !stream.writer.lock().bytes.is_empty()
    }

    #[tokio::test]
    async fn small_writes_are_batched_after_other_tasks() {
        let (mut alone, mut far) = pair().await;
        alone.write_all(b"at once").await.unwrap();
        assert!(!is_deferred(&alone), "without a batch nothing is deferred");
        let mut read = [0; 7];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"at once");

        tokio::spawn(write_batches());
        yield_now().await;
        let ((mut one, mut of_one), (mut two, mut of_two)) = (pair().await, pair().await);
        one.write_all(b"a").await.unwrap();
        one.flush().await.unwrap();
        two.write_all(b"b").await.unwrap();
        assert!(is_deferred(&one) && is_deferred(&two));
        yield_now().await;
        assert!(!is_deferred(&one) && !is_deferred(&two));
        assert_eq!(
            (
                of_one.read_u8().await.unwrap(),
                of_two.read_u8().await.unwrap()
            ),
            (b'a', b'b')
        );
    }

    /// More bytes than the kernel buffers for a peer that does not read.
    #[tokio::test]
    async fn a_late_reader_gets_all_bytes_in_order() {
        const PIECE: usize = 1_000;
        const PIECES: usize = 20_000;
        tokio::spawn(write_batches());
        yield_now().await;
        let (mut near, mut far) = pair().await;
        let writing = tokio::spawn(async move {
            for number in 0..PIECES {
                near.write_all(&[number as u8; PIECE]).await.unwrap();
                // Some writes find the batch empty, some do not.
                if number % 7 == 0 {
                    yield_now().await;
                }
            }
            near.shutdown().await.unwrap();
            near
        });
        // The socket is full before anything is read.
        while !writing.is_finished() && far.readable().await.is_ok() {
            yield_now().await;
            let mut some = vec![0; PIECE];
            if far.peek(&mut some).await.unwrap() == PIECE {
                break;
            }
        }
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), PIECE * PIECES);
        assert!(
            read.chunks(PIECE)
                .enumerate()
                .all(|(number, piece)| piece.iter().all(|byte| *byte == number as u8))
        );
        assert!(!is_deferred(&writing.await.unwrap()));
    }

    #[tokio::test]
    async fn deferred_bytes_are_sent_after_drop_and_shutdown() {
        tokio::spawn(write_batches());
        yield_now().await;
        for shut_down in [false, true] {
            let (mut near, mut far) = pair().await;
            near.write_all(b"the last").await.unwrap();
            if shut_down {
                near.shutdown().await.unwrap();
                assert!(!is_deferred(&near));
            }
            drop(near);
            let mut read = String::new();
            far.read_to_string(&mut read).await.unwrap();
            assert_eq!(read, "the last");
        }
    }

    /// A peer that never reads keeps nothing alive once the connection is dropped.
    #[tokio::test]
    async fn unread_bytes_are_dropped_with_the_connection() {
        tokio::spawn(write_batches());
        yield_now().await;
        let (mut near, far) = pair().await;
        // Until the socket is full and deferred bytes wait.
        loop {
            let full = poll_fn(|cx| {
                Poll::Ready(Pin::new(&mut near).poll_write(cx, &[0; 4_096]).is_pending())
            })
            .await;
            if full {
                break;
            }
            yield_now().await;
        }
        let writer = Arc::downgrade(&near.writer);
        drop(near);
        tokio::time::pause();
        while writer.upgrade().is_some() {
            tokio::time::advance(CHECK_INTERVAL).await;
        }
        drop(far);
    }

    #[tokio::test]
    async fn writing_to_a_closed_connection_fails_then_or_next_time() {
        tokio::spawn(write_batches());
        yield_now().await;
        let (mut near, far) = pair().await;
        // Writing to a closed connection is answered with a reset.
        drop(far);
        let mut told = false;
        for _ in 0..100 {
            told = near.write_all(b"x").await.is_err();
            if told {
                break;
            }
            let _ = near.readable().await;
            yield_now().await;
        }
        assert!(told);
    }
}
