//! Retry budget: how many retries a client may make.

use ratekeeper::Timestamp;
use std::time::Duration;

/// A budget for retries: each request deposits a fraction of a retry, each retry withdraws a whole
/// one.
///
/// With a fraction of a tenth, all attempts together are at most 1.1 times the requests, however
/// badly things go, so that retries cannot bring down an overloaded server. A floor of some retries
/// a second lets rare requests be retried as well; it comes on top.
///
/// ```
/// use ratekeeper::Timestamp;
/// use ratekeeper_tower::client::RetryBudget;
///
/// let (mut budget, now) = (RetryBudget::new(0.1, 0), Timestamp::UNIX_EPOCH);
/// for _ in 0..10 {
///     budget.request(now);
/// }
/// assert!(budget.retry(now));
/// assert!(!budget.retry(now));
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget {
    share: u64,
    floor: u64,
    balance: u64,
    /// When the floor was last deposited.
    last_refill: Option<Timestamp>,
}

/// The balance is kept in millionths of a retry.
const UNITS_PER_RETRY: u64 = 1_000_000;
/// The maximum balance.
const MAX_BALANCE: u64 = 1_000 * UNITS_PER_RETRY;
/// The floor accumulates for at most this long.
const FLOOR_INTERVAL: Duration = Duration::from_secs(1);

impl RetryBudget {
    /// Retries for this share of the requests (0 to 1), plus `per_second` a second.
    pub fn new(share: f64, per_second: u32) -> Self {
        let share = if share > 0.0 {
            (share.min(1.0) * UNITS_PER_RETRY as f64) as u64
        } else {
            0
        };
        Self {
            share,
            floor: u64::from(per_second),
            balance: 0,
            last_refill: None,
        }
    }

    /// Counts a request, not a retry.
    pub fn request(&mut self, now: Timestamp) {
        self.refill_floor(now);
        self.balance = (self.balance + self.share).min(MAX_BALANCE);
    }

    /// Withdraws a retry; returns false if the budget is used up.
    pub fn retry(&mut self, now: Timestamp) -> bool {
        self.refill_floor(now);
        let enough = self.balance >= UNITS_PER_RETRY;
        if enough {
            self.balance -= UNITS_PER_RETRY;
        }
        enough
    }

    fn refill_floor(&mut self, now: Timestamp) {
        // The first deposit is a full second's.
        let since = self.last_refill.map_or(FLOOR_INTERVAL, |last_refill| {
            now.saturating_since(last_refill).min(FLOOR_INTERVAL)
        });
        self.last_refill = Some(
            self.last_refill
                .map_or(now, |last_refill| last_refill.max(now)),
        );
        let refill =
            u128::from(self.floor * UNITS_PER_RETRY) * since.as_nanos() / FLOOR_INTERVAL.as_nanos();
        let max = MAX_BALANCE.max(self.floor * UNITS_PER_RETRY);
        self.balance = (self.balance + refill as u64).min(max);
    }
}
