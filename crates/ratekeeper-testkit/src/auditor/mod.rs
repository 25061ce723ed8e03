//! The auditor: an independent check of everything that all nodes allowed against a bound.
//!
//! ```
//! use ratekeeper_testkit::auditor::{Admission, Bound};
//!
//! let bucket = Bound::TokenBucket { count: 1, period: 100, burst: 2 };
//! let admitted = [Admission::at(0, 1), Admission::at(10, 1), Admission::between(70, 90, 1)];
//! let violation = bucket.check(&admitted, 0).unwrap_err();
//! assert_eq!((violation.from, violation.to, violation.excess()), (0, 90, 1));
//! ```
//!
//! Every interval is checked, none is sampled, in O(n log n). A client knows only that the server
//! decided between when it sent a request and when it got the answer, so an [`Admission`] is an
//! interval. A violation is reported only if it is one wherever in their intervals the admissions
//! lie. (The reverse does not hold: if each placement breaks the bound in another way, that is not
//! detected.) With exact times the check is exact.
//!
//! Times are in whole units of one clock, and the caller chooses the unit: µs in the tests of a fleet,
//! ns in those of one process. Products of a cost and a period are below 2^120. A cost of 0 is
//! ignored.

mod fenwick_tree;
mod pacing;
mod permits;
mod suffix_tree;
pub(crate) mod tightest_interval;
pub(crate) mod token_bucket;
mod windows;

pub use permits::{PermitInterval, check_permits};

use std::collections::BTreeMap;
use std::fmt;
use tightest_interval::TightestInterval;

/// A call admitted by the server, at some time from `earliest` to `latest`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// When it was sent.
    pub earliest: u64,
    /// When it was answered.
    pub latest: u64,
    /// Its cost.
    pub cost: u64,
}

impl Admission {
    /// An admission at a known time.
    pub fn at(time: u64, cost: u64) -> Self {
        Self {
            earliest: time,
            latest: time,
            cost,
        }
    }

    /// An admission between two times.
    ///
    /// # Panics
    ///
    /// If `latest` is before `earliest`.
    pub fn between(earliest: u64, latest: u64, cost: u64) -> Self {
        assert!(
            earliest <= latest,
            "answered at {latest}, before it was sent at {earliest}"
        );
        Self {
            earliest,
            latest,
            cost,
        }
    }
}

/// The bound for the admissions of one key. A[s, t] is the cost admitted from s to t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// TB1: A[s, t] ≤ floor(burst + count·(t − s)/period) for all s ≤ t.
    TokenBucket {
        /// Tokens in a period.
        count: u64,
        /// The period.
        period: u64,
        /// Tokens at once.
        burst: u64,
    },
    /// SL1: A(t − window, t] ≤ limit for all t. Also for the strict sliding window.
    SlidingLog {
        /// The limit.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// FW1: at most the limit in each window, counted from the Unix epoch.
    FixedWindow {
        /// The limit.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// At most the limit in each window that begins with the first admission after the last one
    /// ended, and at most twice the limit in any half-open interval as long as a window.
    FirstHitWindow {
        /// The limit.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// FW2: over any half-open length L at most limit·(ceil(L/window) + 1). For windows from the
    /// first hit of a key that may have been evicted: of those only the least length is known.
    EvictedFirstHitWindow {
        /// The limit.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// SC1: at most the limit in each window, counted from the Unix epoch; and SC2: A(t − window,
    /// t] ≤ limit + prev·e/window, `prev` being what the window before that of t admitted and e how
    /// far t is into its own.
    SlidingCounter {
        /// The limit.
        limit: u64,
        /// The window.
        window: u64,
    },
    /// LQ1, and so LQ2: after a start of cost c there is no other start for c·period/count. The
    /// admissions are the starts that callers were given. The allowance is a time here: how far a
    /// given start may be off.
    Pacing {
        /// Starts in a period.
        count: u64,
        /// The period.
        period: u64,
    },
}

impl Bound {
    /// Checks the admissions of one key, in any order. `allowance` is added to the bound
    /// everywhere.
    ///
    /// # Panics
    ///
    /// If a period or window is 0.
    pub fn check(&self, admissions: &[Admission], allowance: u64) -> Result<Report, Violation> {
        let trace: Vec<Admission> = admissions
            .iter()
            .filter(|admission| admission.cost > 0)
            .copied()
            .collect();
        let mut tightest = TightestInterval::default();
        match *self {
            Bound::TokenBucket {
                count,
                period,
                burst,
            } => {
                let rate = token_bucket::Rate::new(count, period);
                let full = (u128::from(burst) + u128::from(allowance)) * u128::from(period);
                token_bucket::check(&trace, rate, full, &mut tightest);
            }
            Bound::SlidingLog { limit, window } => {
                windows::sliding(
                    &trace,
                    positive(window),
                    with(limit, allowance),
                    &mut tightest,
                );
            }
            Bound::FixedWindow { limit, window } => {
                windows::aligned(
                    &trace,
                    positive(window),
                    with(limit, allowance),
                    &mut tightest,
                );
            }
            Bound::FirstHitWindow { limit, window } => {
                windows::from_first_hit(
                    &trace,
                    positive(window),
                    with(limit, allowance),
                    &mut tightest,
                );
                windows::sliding(
                    &trace,
                    window,
                    u128::from(limit) + with(limit, allowance),
                    &mut tightest,
                );
            }
            Bound::EvictedFirstHitWindow { limit, window } => {
                windows::any_length(&trace, positive(window), limit, allowance, &mut tightest);
            }
            Bound::SlidingCounter { limit, window } => {
                windows::aligned(
                    &trace,
                    positive(window),
                    with(limit, allowance),
                    &mut tightest,
                );
                windows::weighted(&trace, window, with(limit, allowance), &mut tightest);
            }
            Bound::Pacing { count, period } => {
                pacing::check(
                    trace.clone(),
                    token_bucket::Rate::new(count, period),
                    allowance,
                    &mut tightest,
                );
            }
        }
        let admitted = trace.iter().map(|call| u128::from(call.cost)).sum();
        tightest.verdict("admitted", self, admitted)
    }

    /// Checks each key by itself; the violation is that of the key with the greatest excess.
    pub fn check_by_key<K: Ord + fmt::Display>(
        &self,
        admissions: impl IntoIterator<Item = (K, Admission)>,
        allowance: u64,
    ) -> Result<Report, Violation> {
        let mut keys: BTreeMap<K, Vec<Admission>> = BTreeMap::new();
        for (key, admission) in admissions {
            keys.entry(key).or_default().push(admission);
        }
        let mut whole = Report::default();
        let mut worst: Option<Violation> = None;
        for (key, trace) in keys {
            match self.check(&trace, allowance) {
                Ok(report) => whole.join(report),
                Err(violation)
                    if worst
                        .as_ref()
                        .is_some_and(|worst| worst.excess() >= violation.excess()) => {}
                Err(violation) => {
                    worst = Some(Violation {
                        key: Some(key.to_string()),
                        ..violation
                    });
                }
            }
        }
        worst.map_or(Ok(whole), Err)
    }
}

fn positive(window: u64) -> u64 {
    assert!(window > 0, "a window of 0 holds nothing");
    window
}

fn with(limit: u64, allowance: u64) -> u128 {
    u128::from(limit) + u128::from(allowance)
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::TokenBucket {
                count,
                period,
                burst,
            } => {
                write!(f, "a token bucket of {burst} with {count} per {period}")
            }
            Bound::SlidingLog { limit, window } => {
                write!(f, "a limit of {limit} in any {window}")
            }
            Bound::FixedWindow { limit, window } => {
                write!(f, "a limit of {limit} in each window of {window}")
            }
            Bound::FirstHitWindow { limit, window } => {
                write!(
                    f,
                    "a limit of {limit} in a window of {window} from its first admission"
                )
            }
            Bound::EvictedFirstHitWindow { limit, window } => {
                write!(
                    f,
                    "windows of {limit} in at least {window} each, from any start"
                )
            }
            Bound::SlidingCounter { limit, window } => {
                write!(f, "a sliding counter of {limit} over {window}")
            }
            Bound::Pacing { count, period } => write!(f, "pacing at {count} per {period}"),
        }
    }
}

/// The result of a check without violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The total admitted cost, at most `u64::MAX`.
    pub admitted: u64,
    /// How much more would have been allowed in the interval that was nearest to its bound. `None`
    /// if there was nothing to compare.
    pub slack: Option<u64>,
}

impl Report {
    fn join(&mut self, other: Report) {
        self.admitted += other.admitted;
        self.slack = self.slack.into_iter().chain(other.slack).min();
    }
}

/// A violation of the bound: the interval with the greatest excess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key, if there were several.
    pub key: Option<String>,
    /// Start of the interval.
    pub from: u64,
    /// End of the interval, included.
    pub to: u64,
    /// The cost certainly admitted in it, or the permits certainly in use.
    pub measured: u64,
    /// What the bound allows there, including the allowance.
    pub allowed: u64,
    verb: &'static str,
    bound: String,
}

impl Violation {
    /// The excess over the bound.
    pub fn excess(&self) -> u64 {
        self.measured - self.allowed
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            from,
            to,
            measured,
            allowed,
            verb,
            bound,
        } = self;
        if let Some(key) = key {
            write!(f, "key {key}: ")?;
        }
        let excess = self.excess();
        write!(
            f,
            "{measured} {verb} from {from} to {to}, {excess} more than the {allowed} that {bound} allows there"
        )
    }
}

impl std::error::Error for Violation {}
