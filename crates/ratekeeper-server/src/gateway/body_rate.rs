//! Minimum rate of request bodies. A body may keep the gateway waiting for a fixed time in all, and
//! each byte of it gives some of that time back: in the long run it must come at the minimum rate.
//!
//! Only time spent waiting for the client counts, not time in which the upstream takes nothing.

use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The limits of one body.
#[derive(Clone, Copy)]
pub(crate) struct BodyRate {
    /// How long a body may keep the gateway waiting.
    pub(crate) timeout: Duration,
    /// How many bytes give back one second of that time.
    pub(crate) min_rate: NonZero<u64>,
}

/// The remaining waiting time of one body.
pub(crate) struct BodyTimer {
    rate: BodyRate,
    left: Duration,
    /// The time at which the gateway began to wait for the client.
    waiting_since: Option<Instant>,
    /// Stays armed from one wait to the next. Not created until the first wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyTimer {
    pub(crate) fn new(rate: BodyRate) -> Self {
        Self {
            rate,
            left: rate.timeout,
            waiting_since: None,
            timer: None,
        }
    }

    /// Adds the time that these bytes give back.
    pub(crate) fn received(&mut self, bytes: u64) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        if self.left < self.rate.timeout {
            let worth = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.min_rate.get());
            let worth = Duration::from_nanos(u64::try_from(worth).unwrap_or(u64::MAX));
            self.left = self.left.saturating_add(worth).min(self.rate.timeout);
        }
    }

    /// Waits for more of the body; ready when the time is used up.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = since + self.left;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            // The timer was armed for an earlier wait.
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::{sleep, timeout};

    const RATE: BodyRate = BodyRate {
        timeout: Duration::from_secs(30),
        min_rate: NonZero::new(240).unwrap(),
    };
    const HOUR: Duration = Duration::from_secs(3_600);

    /// For how many seconds, at most 3,600, the gateway waits for a client that sends `bytes` bytes
    /// after each pause.
    async fn lasts(bytes: u64, pause: Duration) -> u64 {
        let (start, mut timer) = (Instant::now(), BodyTimer::new(RATE));
        while start.elapsed() < HOUR && timeout(pause, poll_fn(|cx| timer.poll(cx))).await.is_err()
        {
            timer.received(bytes);
        }
        start.elapsed().min(HOUR).as_secs()
    }

    /// Tokio's clock is paused: it advances to the next timer when every task waits.
    #[tokio::test(start_paused = true)]
    async fn a_body_below_the_minimum_rate_ends_and_one_above_does_not() {
        let seconds = Duration::from_secs;
        assert_eq!(lasts(1, HOUR).await, 30, "nothing comes");
        assert_eq!(lasts(1, seconds(20)).await, 30, "a byte every 20 s");
        assert_eq!(lasts(100, seconds(1)).await, 50, "100 bytes a second");
        assert_eq!(lasts(250, seconds(1)).await, 3_600, "250 bytes a second");
        assert_eq!(
            lasts(64 * 1024, seconds(29)).await,
            3_600,
            "64 KiB after each pause of 29 s"
        );
        assert_eq!(
            lasts(1 << 40, seconds(31)).await,
            30,
            "much of it at once earns no longer pause"
        );
    }

    /// While the upstream takes nothing, the client is not waited for.
    #[tokio::test(start_paused = true)]
    async fn only_waiting_for_the_client_counts() {
        let mut timer = BodyTimer::new(RATE);
        for _ in 0..10 {
            assert!(
                timeout(Duration::from_secs(2), poll_fn(|cx| timer.poll(cx)))
                    .await
                    .is_err()
            );
            timer.received(1);
            sleep(HOUR).await;
        }
        let start = Instant::now();
        poll_fn(|cx| timer.poll(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }
}
