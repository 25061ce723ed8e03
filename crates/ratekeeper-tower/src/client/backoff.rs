//! Exponential backoff with jitter.

use std::time::Duration;

/// The delay before a retry: doubles each time up to a maximum; at random between half of it and
/// all of it.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_tower::client::Backoff;
///
/// let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// assert_eq!(backoff.delay(0, 0.0), Duration::from_millis(50));
/// assert_eq!(backoff.delay(2, 0.5), Duration::from_millis(300));
/// assert!(backoff.delay(u32::MAX, 0.999) < Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
}

impl Backoff {
    /// Up to `first` before the first retry, never more than `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The delay before a retry, counted from 0; `draw` is a random number from 0 up to, but not
    /// including, 1 (NaN counts as 0).
    pub fn delay(&self, retry: u32, draw: f64) -> Duration {
        // Doubled in 128 bits: a `first` of zero stays zero, and one of a nanosecond does not jump
        // to `max`.
        let nanos = self.first.as_nanos().saturating_mul(1 << retry.min(127));
        let whole = if nanos < self.max.as_nanos() {
            from_nanos(nanos)
        } else {
            self.max
        };
        let draw = if draw.is_nan() {
            0.0
        } else {
            draw.clamp(0.0, 1.0)
        };
        whole / 2 + (whole / 2).mul_f64(draw)
    }
}

/// Converts nanoseconds that are known to fit into a `Duration`.
fn from_nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    Duration::new((nanos / SECOND) as u64, (nanos % SECOND) as u32)
}

impl Default for Backoff {
    /// From 100 milliseconds to 10 seconds.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(10))
    }
}
