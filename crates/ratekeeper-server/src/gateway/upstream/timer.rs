//! Timeouts of an upstream exchange. The timer stays armed from one request to the next: most
//! requests never touch it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The progress of a request with a body.
#[derive(Default)]
pub(crate) struct BodyProgress {
    /// Body frames forwarded so far: a long upload is not the upstream's fault.
    pub(crate) sent: AtomicU64,
    /// Whether the response has begun.
    pub(crate) answered: AtomicBool,
}

pub(crate) type Progress = Arc<BodyProgress>;

/// Which timeout passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeoutKind {
    /// Neither side sent anything for this long.
    Idle(Duration),
    /// The whole exchange took longer than this.
    Total(Duration),
}

/// The timeouts of one request.
#[derive(Clone)]
pub(crate) struct Timeouts {
    pub(crate) started: Instant,
    pub(crate) idle: Duration,
    pub(crate) total: Option<Duration>,
    pub(crate) sent: Option<Progress>,
}

/// The timer of an upstream exchange: ready at its idle or total timeout.
pub(crate) struct Timer {
    sleep: Pin<Box<Sleep>>,
    timeouts: Timeouts,
    /// When the idle timeout passes if nothing moves until then.
    deadline: Instant,
    moved: bool,
    seen: u64,
}

impl Timer {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        let deadline = timeouts.started + timeouts.idle;
        let first = timeouts.end().map_or(deadline, |end| end.min(deadline));
        Self {
            sleep: Box::pin(sleep_until(first)),
            timeouts,
            deadline,
            moved: false,
            seen: 0,
        }
    }

    /// Starts over for the next request.
    pub(crate) fn begin(&mut self, timeouts: Timeouts) {
        self.deadline = timeouts.started + timeouts.idle;
        let first = timeouts
            .end()
            .map_or(self.deadline, |end| end.min(self.deadline));
        if self.sleep.deadline() > first {
            self.sleep.as_mut().reset(first);
        }
        (self.moved, self.seen, self.timeouts) = (false, 0, timeouts);
    }

    /// Data came: the idle timeout starts over.
    pub(crate) fn moved(&mut self) {
        self.moved = true;
    }

    /// Ready when a timeout has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TimeoutKind> {
        while self.sleep.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if let (Some(end), Some(total)) = (self.timeouts.end(), self.timeouts.total)
                && end <= now
            {
                return Poll::Ready(TimeoutKind::Total(total));
            }
            let sent = self
                .timeouts
                .sent
                .as_ref()
                .map_or(0, |sent| sent.sent.load(Relaxed));
            if std::mem::take(&mut self.moved) || sent != self.seen {
                self.seen = sent;
                self.deadline = now + self.timeouts.idle;
            }
            if self.deadline <= now {
                return Poll::Ready(TimeoutKind::Idle(self.timeouts.idle));
            }
            let next = self
                .timeouts
                .end()
                .map_or(self.deadline, |end| end.min(self.deadline));
            self.sleep.as_mut().reset(next);
        }
        Poll::Pending
    }
}

impl Timeouts {
    fn end(&self) -> Option<Instant> {
        self.total.map(|total| self.started + total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::sleep;

    const IDLE: Duration = Duration::from_secs(60);

    fn timeouts(total: Option<Duration>, sent: Option<Progress>) -> Timeouts {
        Timeouts {
            started: Instant::now(),
            idle: IDLE,
            total,
            sent,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_upstream_times_out_on_new_and_reused_connections() {
        let mut timer = Timer::new(timeouts(None, None));
        sleep(IDLE / 2).await;
        let start = Instant::now();
        timer.begin(timeouts(None, None));
        assert_eq!(poll_fn(|cx| timer.poll(cx)).await, TimeoutKind::Idle(IDLE));
        assert_eq!(start.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_upload_is_not_cut_off_but_the_total_is() {
        let sent = Progress::default();
        let mut timer = Timer::new(timeouts(Some(IDLE * 5), Some(Arc::clone(&sent))));
        let start = Instant::now();
        let upload = async {
            loop {
                sleep(IDLE / 2).await;
                sent.sent.fetch_add(1, Relaxed);
            }
        };
        tokio::select! {
            kind = poll_fn(|cx| timer.poll(cx)) => assert_eq!(kind, TimeoutKind::Total(IDLE * 5)),
            () = upload => {}
        }
        assert_eq!(start.elapsed().as_secs(), 300);
    }
}
