//! How long to wait before the next try.

use std::time::Duration;

/// Twice as long each time, up to a most; between a half and the whole of it, by chance.
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::client::Backoff;
///
/// let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// assert_eq!(backoff.delay(0, 0.0), Duration::from_millis(50));
/// assert_eq!(backoff.delay(2, 0.5), Duration::from_millis(300));
/// assert!(backoff.delay(u32::MAX, 0.999) < Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// The first time up to `first`, never more than `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// Before which retry, from 0; `draw` is a random number from 0 up to, but not including, 1.
    pub fn delay(&self, retry: u32, draw: f64) -> Duration {
        let whole = 1_u32.checked_shl(retry).map_or(self.most, |times| self.first.saturating_mul(times)).min(self.most);
        whole / 2 + (whole / 2).mul_f64(draw.clamp(0.0, 1.0))
    }
}

impl Default for Backoff {
    /// From 100 milliseconds to 10 seconds.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(10))
    }
}
