//! Polling futures without a runtime.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// A context whose waker does nothing.
pub fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Polls a future once: a pinned one, or one that need not be.
pub fn poll_once<T>(mut future: impl Future<Output = T> + Unpin) -> Poll<T> {
    Pin::new(&mut future).poll(&mut noop_context())
}

/// The output of a future that is ready when it is first polled, as those of a store in memory are.
///
/// # Panics
///
/// If the future is pending.
#[track_caller]
pub fn assert_ready<T>(future: impl Future<Output = T>) -> T {
    match poll_once(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is pending"),
    }
}

/// Counts how often it is woken. `Waker::from(Arc::clone(&counter))` is a waker that counts in it.
#[derive(Debug, Default)]
pub struct WakeCounter(AtomicUsize);

impl WakeCounter {
    /// How often it was woken.
    pub fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}
