//! How many retries a client may afford.

use ratekeeper::Timestamp;
use std::time::Duration;

/// Retries are paid from a budget: each request pays in a share of one, each retry takes out a
/// whole one.
///
/// So all attempts together are at most 1.1 times the requests with a share of a tenth, however
/// badly things go, and retries cannot bring down what is overloaded already. A floor of so many a
/// second lets rare requests be tried again as well; it comes on top.
///
/// ```
/// use ratekeeper::Timestamp;
/// use ratekeeper_tower::client::RetryBudget;
///
/// let (mut budget, now) = (RetryBudget::new(0.1, 0), Instant::UNIX_EPOCH);
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
    /// When the floor was last paid in.
    paid: Option<Timestamp>,
}

/// Parts of a retry.
const PARTS: u64 = 1_000_000;
/// No more is saved up.
const MOST: u64 = 1_000 * PARTS;
/// The floor is saved up for no longer.
const FLOOR_FOR: Duration = Duration::from_secs(1);

impl RetryBudget {
    /// Retries for this share of the requests (0 to 1), and so many a second on top.
    pub fn new(share: f64, per_second: u32) -> Self {
        let share = if share > 0.0 {
            (share.min(1.0) * PARTS as f64) as u64
        } else {
            0
        };
        Self {
            share,
            floor: u64::from(per_second),
            balance: 0,
            paid: None,
        }
    }

    /// Counts a request, not a retry.
    pub fn request(&mut self, now: Timestamp) {
        self.pay_floor(now);
        self.balance = (self.balance + self.share).min(MOST);
    }

    /// Takes out a retry; false if there is none.
    pub fn retry(&mut self, now: Timestamp) -> bool {
        self.pay_floor(now);
        let enough = self.balance >= PARTS;
        if enough {
            self.balance -= PARTS;
        }
        enough
    }

    fn pay_floor(&mut self, now: Timestamp) {
        // The first time it is paid in whole.
        let since = self
            .paid
            .map_or(FLOOR_FOR, |paid| now.saturating_since(paid).min(FLOOR_FOR));
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)));
        let paid_in = u128::from(self.floor * PARTS) * since.as_nanos() / FLOOR_FOR.as_nanos();
        let most = MOST.max(self.floor * PARTS);
        self.balance = (self.balance + paid_in as u64).min(most);
    }
}
