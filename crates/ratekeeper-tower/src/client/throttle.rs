//! Adaptive throttling: rejects locally what the server would deny.

use ratekeeper::Timestamp;
use std::time::Duration;

/// Rejects a request before it is sent with the probability max(0, (requests − K · accepts) /
/// (requests + 1)) over the last two minutes.
///
/// As long as the server accepts at least one in K requests, all are sent. When it accepts less,
/// about K times what it accepts is still sent, so that its recovery is noticed. Locally rejected
/// requests count as requests, too.
///
/// ```
/// use ratekeeper::Timestamp;
/// use ratekeeper_tower::client::Throttle;
///
/// let (mut throttle, now) = (Throttle::new(2.0), Timestamp::UNIX_EPOCH);
/// for _ in 0..99 {
///     throttle.request(now, 0.999); // sent, and never accepted
/// }
/// assert_eq!(throttle.probability(now), 0.99);
/// ```
#[derive(Clone, Debug)]
pub struct Throttle {
    k: f64,
    buckets: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    /// The number of its time interval plus one; 0 if unused.
    interval: u64,
    requests: u64,
    accepts: u64,
}

/// Two minutes in intervals of ten seconds.
const BUCKETS: usize = 12;
const INTERVAL: Duration = Duration::from_secs(10);

impl Throttle {
    /// With this K; 2 is usual, at least 1.
    pub fn new(k: f64) -> Self {
        Self {
            k: k.max(1.0),
            buckets: [Bucket::default(); BUCKETS],
        }
    }

    /// The probability that a request is rejected now.
    pub fn probability(&self, now: Timestamp) -> f64 {
        let oldest = interval(now).saturating_sub(BUCKETS as u64 - 1);
        let recent = self
            .buckets
            .iter()
            .filter(|bucket| bucket.interval >= oldest && bucket.interval > 0);
        let sums = recent.fold((0, 0), |(requests, accepts), bucket| {
            (requests + bucket.requests, accepts + bucket.accepts)
        });
        let (requests, accepts) = (sums.0 as f64, sums.1 as f64);
        ((requests - self.k * accepts) / (requests + 1.0)).max(0.0)
    }

    /// Counts a request. Returns false if it is rejected: `draw` is a random number from 0 up to,
    /// but not including, 1.
    pub fn request(&mut self, now: Timestamp, draw: f64) -> bool {
        let sent = draw >= self.probability(now);
        self.bucket(now).requests += 1;
        sent
    }

    /// Counts a request that the server accepted.
    pub fn accepted(&mut self, now: Timestamp) {
        self.bucket(now).accepts += 1;
    }

    fn bucket(&mut self, now: Timestamp) -> &mut Bucket {
        let interval = interval(now);
        let bucket = &mut self.buckets[interval as usize % BUCKETS];
        // If the clock went back, the newer bucket is kept.
        if bucket.interval < interval {
            *bucket = Bucket {
                interval,
                ..Bucket::default()
            };
        }
        bucket
    }
}

fn interval(now: Timestamp) -> u64 {
    (now.since_unix().as_nanos() / INTERVAL.as_nanos()) as u64 + 1
}
