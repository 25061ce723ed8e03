//! [`Decision`]: the result of a call on a limit, and the errors that carry one.

use crate::algorithm::{StepResult, pacing};
use crate::limit::{Algorithm, Kind, TickLimit};
use core::fmt;
use core::time::Duration;

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The call was allowed and charged.
    Allowed,
    /// The call was denied; the same call is allowed later.
    Denied,
    /// The call was denied and waiting will not help: the cost is more than the limit ever holds,
    /// or nothing refills.
    Never,
}

/// The result of one call: whether it is allowed, and the exact numbers of the limit at that
/// moment.
///
/// Small and `Copy`; the numbers are computed on demand.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limit, Limiter, ManualClock};
///
/// let limiter = Limiter::with_clock(Limit::per_second(2).burst(5), ManualClock::new());
/// let decision = limiter.check_n(4);
/// assert!(decision.is_allowed());
/// assert_eq!((decision.capacity(), decision.remaining()), (5, 1));
/// assert_eq!(decision.reset_after(), Duration::from_secs(2));
///
/// let decision = limiter.check_n(2);
/// assert!(decision.is_denied());
/// assert_eq!(decision.retry_after(), Some(Duration::from_millis(500)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a decision that is not checked limits nothing"]
pub struct Decision {
    /// How far the state is ahead of the clock after the call; for windows: nanoseconds until it is
    /// fresh.
    ahead: u64,
    /// Ticks until the call's tokens are there; for windows: nanoseconds until the same call is
    /// allowed.
    wait: u64,
    /// Ticks per token; for windows: what remains.
    token: u64,
    capacity: u64,
    /// Ticks per nanosecond, or per microsecond.
    ticks: u32,
    micros: bool,
    kind: Kind,
    outcome: Outcome,
}

impl Decision {
    #[inline]
    pub(crate) fn new(limit: &TickLimit, outcome: Outcome, ahead: u64, wait: u64) -> Self {
        let TickLimit {
            ticks,
            token,
            capacity,
            kind,
        } = *limit;
        Self {
            ahead,
            wait,
            token,
            capacity,
            ticks: ticks as u32,
            micros: false,
            kind,
            outcome,
        }
    }

    /// A decision of a window or log at `now`.
    #[inline(always)]
    pub(crate) fn windowed<S>(limit: &TickLimit, result: &StepResult<S>, now: u64) -> Self {
        let (outcome, info, retry_at) = match result {
            StepResult::Admit(_, info) => (Outcome::Allowed, info, 0),
            StepResult::Deny { info, retry_at } => (Outcome::Denied, info, *retry_at),
            StepResult::Never(info) => (Outcome::Never, info, 0),
        };
        Self {
            ahead: info.reset_at.saturating_sub(now),
            wait: retry_at.saturating_sub(now),
            token: info.remaining,
            capacity: limit.capacity,
            ticks: 1,
            micros: false,
            kind: limit.kind,
            outcome,
        }
    }

    /// A decision of a store that counts in microseconds.
    #[cfg(feature = "std")]
    pub(crate) fn in_micros(
        kind: Kind,
        outcome: Outcome,
        [ahead, wait, token, capacity]: [u64; 4],
        per_micro: u32,
    ) -> Self {
        Self {
            ahead,
            wait,
            token,
            capacity,
            ticks: per_micro,
            micros: true,
            kind,
            outcome,
        }
    }

    /// The same decision for a caller that waits up to `max_wait` nanoseconds for its tokens, and
    /// so is allowed that much sooner.
    #[cfg(feature = "std")]
    pub(crate) fn with_max_wait(self, max_wait: u64) -> Self {
        match (self.outcome, self.kind) {
            // A pacing queue has its own longest wait.
            (Outcome::Denied, Kind::Bucket) => Self {
                wait: self
                    .wait
                    .saturating_sub(max_wait.saturating_mul(u64::from(self.ticks))),
                ..self
            },
            _ => self,
        }
    }

    /// Whether the call is allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Whether the call is denied, for now or forever.
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.outcome != Outcome::Allowed
    }

    /// Whether waiting will not help: the cost can never fit, or nothing refills.
    #[inline]
    pub fn is_never(&self) -> bool {
        self.outcome == Outcome::Never
    }

    /// The outcome, to match on.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the limit is unlimited.
    pub fn is_unlimited(&self) -> bool {
        self.kind == Kind::Unlimited
    }

    /// The capacity of the limit: how much is allowed at once. [`u64::MAX`] when unlimited.
    pub fn capacity(&self) -> u64 {
        match self.kind {
            Kind::Unlimited => u64::MAX,
            Kind::Bucket | Kind::Refundable | Kind::Frozen => self.capacity / self.token,
            Kind::Pacing => self.capacity / self.token + 1,
            _ => self.capacity,
        }
    }

    /// How much is left after this call. [`u64::MAX`] when unlimited.
    pub fn remaining(&self) -> u64 {
        match self.kind {
            Kind::Unlimited => u64::MAX,
            Kind::Bucket | Kind::Refundable | Kind::Frozen => {
                self.capacity.saturating_sub(self.ahead) / self.token
            }
            Kind::Pacing => pacing::remaining(self.token, self.capacity, self.ahead),
            _ => self.token,
        }
    }

    /// How long until the same call is allowed if there are no other calls: then it is, a
    /// nanosecond earlier it is not. `None` if it is allowed now, never will be, or needs a permit,
    /// whose return time is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            // The return time of a permit is unknown.
            Outcome::Denied if self.kind != Kind::InFlight => Some(self.time(self.wait)),
            _ => None,
        }
    }

    /// How long until everything is available again if there are no other calls. [`Duration::MAX`]
    /// if nothing refills.
    pub fn reset_after(&self) -> Duration {
        if self.ahead > 0 && self.kind == Kind::Frozen {
            Duration::MAX
        } else {
            self.time(self.ahead)
        }
    }

    /// How long until one more unit is available if there are no other calls: zero if all are,
    /// [`Duration::MAX`] if none ever comes. For a sliding window or a log a decision does not know
    /// it, and this is an upper bound. Zero for permits, whose return time is unknown.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Limit, Limiter, ManualClock};
    ///
    /// let limiter = Limiter::with_clock(Limit::per_second(2).burst(5), ManualClock::new());
    /// assert_eq!(limiter.check_n(4).next_after(), Duration::from_millis(500));
    /// ```
    pub fn next_after(&self) -> Duration {
        let remaining = self.remaining();
        match self.kind {
            Kind::Unlimited | Kind::InFlight => Duration::ZERO,
            _ if remaining >= self.capacity() => Duration::ZERO,
            Kind::Frozen => Duration::MAX,
            // Neither overflows: `remaining` is less than the capacity.
            Kind::Bucket | Kind::Refundable => self.time_to((remaining + 1) * self.token),
            // One may always start, so the queue is for the others.
            Kind::Pacing => self.time_to(remaining * self.token),
            _ => self.retry_after().unwrap_or_else(|| self.reset_after()),
        }
    }

    /// How long until `free` ticks of the capacity are free.
    fn time_to(&self, free: u64) -> Duration {
        self.time(
            self.ahead
                .saturating_sub(self.capacity.saturating_sub(free)),
        )
    }

    /// How long an allowed caller must wait before it acts: until its start with pacing, zero for
    /// every other algorithm.
    pub fn delay(&self) -> Duration {
        match self.outcome {
            Outcome::Allowed => self.time(self.wait),
            _ => Duration::ZERO,
        }
    }

    /// The tokens in the bucket; negative while reservations are ahead of it.
    pub(crate) fn level(&self) -> f64 {
        match self.kind {
            Kind::Unlimited => f64::INFINITY,
            Kind::Bucket | Kind::Refundable | Kind::Frozen => {
                (i128::from(self.capacity) - i128::from(self.ahead)) as f64 / self.token as f64
            }
            _ => self.remaining() as f64,
        }
    }

    /// Ticks as time: rounded up, so that no caller comes too early.
    fn time(&self, ticks: u64) -> Duration {
        match self.ticks {
            0 => Duration::ZERO,
            per_micro if self.micros => Duration::from_micros(ticks.div_ceil(u64::from(per_micro))),
            per_nano => Duration::from_nanos(ticks.div_ceil(u64::from(per_nano))),
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("capacity", &self.capacity())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

/// Error: there is no reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReserveError {
    /// The slot would come too late, or never; nothing was taken.
    Denied(DeniedError),
    /// The algorithm cannot assign slots ahead of time: windows and logs allow or deny now. Use
    /// `check` or `wait`.
    NoSlots(Algorithm),
}

impl ReserveError {
    /// The decision, if there was one.
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Denied(denied) => Some(denied.decision()),
            Self::NoSlots(_) => None,
        }
    }

    /// How long until the same call is allowed if there are no other calls; `None` if it never will
    /// be, or that is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(denied) => denied.retry_after(),
            Self::NoSlots(_) => None,
        }
    }

    /// Whether waiting will not help.
    pub fn is_never(&self) -> bool {
        matches!(self, Self::Denied(denied) if denied.is_never())
    }
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denied) => denied.fmt(f),
            Self::NoSlots(algorithm) => {
                write!(
                    f,
                    "{algorithm} cannot reserve ahead of time; use check or wait, or another algorithm"
                )
            }
        }
    }
}

impl core::error::Error for ReserveError {}

/// Error: a call that wanted a charge or a reservation was denied; carries the [`Decision`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeniedError(pub(crate) Decision);

impl DeniedError {
    /// The decision.
    pub fn decision(&self) -> Decision {
        self.0
    }

    /// How long until the same call is allowed if there are no other calls; `None` if it never will
    /// be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }

    /// Whether waiting will not help.
    pub fn is_never(&self) -> bool {
        self.0.is_never()
    }
}

impl fmt::Display for DeniedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(after) => write!(
                f,
                "over the limit of {}; retry after {after:?}",
                self.0.capacity()
            ),
            None => write!(
                f,
                "over the limit of {}, which never allows this cost",
                self.0.capacity()
            ),
        }
    }
}

impl core::error::Error for DeniedError {}
