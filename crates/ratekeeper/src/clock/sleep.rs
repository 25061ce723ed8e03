//! [`Sleep`]: the timer of an asynchronous wait.

use super::manual::sleepers::SleeperId;
use super::{ManualClock, Timestamp};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
#[cfg(feature = "tokio")]
use std::boxed::Box;

/// A future that is ready at a time of a clock; what
/// [`Clock::sleep_until`](super::Clock::sleep_until) returns.
///
/// It resolves to `false` if there is no timer: without the feature `tokio`, outside a tokio
/// runtime, or on one that was built without `enable_time()`.
pub struct Sleep(Timer);

enum Timer {
    #[cfg(feature = "tokio")]
    Real(Pin<Box<tokio::time::Sleep>>),
    Manual {
        clock: ManualClock,
        at: Timestamp,
        sleeper: SleeperId,
    },
    Missing,
}

impl Sleep {
    /// Ready after `duration` of real time, by tokio's timer.
    #[cfg(feature = "tokio")]
    pub fn real(duration: Duration) -> Self {
        if tokio::runtime::Handle::try_current().is_err() {
            return Self(Timer::Missing);
        }
        // tokio panics on a runtime without timers, and has no way to ask beforehand. The panic
        // hook still prints its message.
        let sleep = std::panic::catch_unwind(|| Box::pin(tokio::time::sleep(duration)));
        Self(sleep.map_or(Timer::Missing, Timer::Real))
    }

    /// Without a timer: it resolves to `false` at once.
    #[cfg(not(feature = "tokio"))]
    pub fn real(_duration: Duration) -> Self {
        Self(Timer::Missing)
    }

    pub(super) fn manual(clock: ManualClock, at: Timestamp) -> Self {
        Self(Timer::Manual {
            clock,
            at,
            sleeper: SleeperId::default(),
        })
    }
}

impl Future for Sleep {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        match &mut self.0 {
            #[cfg(feature = "tokio")]
            Timer::Real(sleep) => sleep.as_mut().poll(cx).map(|()| true),
            Timer::Manual { clock, at, sleeper } => {
                if clock.arm(sleeper, *at, cx.waker()) {
                    Poll::Ready(true)
                } else {
                    Poll::Pending
                }
            }
            Timer::Missing => Poll::Ready(false),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Timer::Manual { clock, sleeper, .. } = &mut self.0 {
            clock.disarm(sleeper);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}
