//! The refundable token bucket: every charge is settled, and used cost is counted apart from cost
//! that may still come back.
//!
//! The theoretical arrival time (TAT) decides every call, exactly as in
//! [`token_bucket`](super::token_bucket). Two more numbers say how far it may fall when a charge is
//! settled:
//!
//! - `settled`: the TAT of the settled charges alone, each with its actual cost, at the time of its
//!   charge;
//! - the pending ticks: the charges that are not settled yet, in full.
//!
//! A state without the charges that came back is at most max(settled, latest) + pending, where
//! latest is the time of the latest charge, so settling lowers the TAT to that. With nothing
//! settled as used and less than a full bucket pending, no call is denied; and since every pending
//! charge counts in full, no interval ever holds more net cost than the bucket allows.
//!
//! A charge that is never settled stays pending until the time it took has come back, whatever else
//! is charged meanwhile. For that, pending charges are kept in two batches. `mark` is the TAT of
//! everything that was charged before the newer batch began, and of what was settled since. Once
//! the clock has passed it, the older batch has no effect even if all of it is used: it is dropped,
//! its refunds are void, and the newer batch becomes the older.
//!
//! All quantities are ticks of the limit's [`TickLimit`] since the Unix epoch.

use super::{Refund, StateMachine, StepResult};
use crate::decision::{Decision, Outcome};
use crate::limit::TickLimit;

/// The numbers of a bucket: ticks per nanosecond, ticks per token, and ticks in a full bucket.
#[derive(Clone, Copy)]
pub(crate) struct BucketSize {
    ticks: u64,
    token: u64,
    capacity: u64,
}

impl BucketSize {
    fn clock(&self, now: u64) -> u128 {
        u128::from(now) * u128::from(self.ticks)
    }
}

/// The state of one bucket; the default is a full bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RefundableBucket {
    /// When the bucket is full again.
    tat: u128,
    /// The same for the settled charges alone.
    settled: u128,
    /// The same for all charges before the newer batch, and the settled ones of the newer batch.
    mark: u128,
    /// Pending ticks of the older batch and of the newer one.
    pending: [u64; 2],
    /// When each batch began. Refunds of charges before the older batch are void.
    since: [u64; 2],
    /// The latest instant of a charge. A call at an earlier instant is judged and booked at this
    /// one: threads read the clock before they take the lock, and a bucket whose charges are all
    /// pending must not deny because of that.
    latest: u64,
}

impl RefundableBucket {
    /// A state with this TAT in which all charges are settled.
    pub(crate) fn settled_at(tat: u128) -> Self {
        Self {
            tat,
            settled: tat,
            mark: tat,
            ..Self::default()
        }
    }

    pub(crate) fn tat(self) -> u128 {
        self.tat
    }

    fn ahead(self, clock: u128) -> u64 {
        u64::try_from(self.tat.saturating_sub(clock)).unwrap_or(u64::MAX)
    }

    /// Drops pending charges whose time has come back by `now`.
    fn forget_expired(mut self, limit: &BucketSize, now: u64) -> Self {
        let clock = limit.clock(now);
        // Charges of one instant stay in one batch.
        if self.mark > clock || now <= self.latest {
            return self;
        }
        for _ in 0..2 {
            if self.mark <= clock {
                self.settled = self.settled.max(self.mark);
                self.pending = [self.pending[1], 0];
                self.since = [self.since[1], now];
                self.mark = self.tat;
            }
        }
        self.lower_tat(limit)
    }

    /// Lowers the TAT to what the settled and the pending charges account for.
    fn lower_tat(mut self, limit: &BucketSize) -> Self {
        let [older, newer] = self.pending.map(u128::from);
        self.tat = self
            .tat
            .min(self.settled.max(limit.clock(self.latest)) + older + newer);
        self.settled = self.settled.min(self.tat);
        self.mark = self.mark.min(self.tat);
        self
    }

    /// Books what a charge at `charged_at` actually used.
    fn book(mut self, limit: &BucketSize, charged_at: u64, used: u64, is_newer: bool) -> Self {
        if used > 0 {
            let (at, used) = (limit.clock(charged_at), u128::from(used));
            self.settled = self.settled.max(at) + used;
            if is_newer {
                self.mark = self.mark.max(at) + used;
            }
        }
        self
    }
}

impl StateMachine for RefundableBucket {
    type Limit = BucketSize;
    /// How far the state is ahead of the clock, in ticks.
    type Info = u64;

    fn limit(limit: &TickLimit) -> BucketSize {
        let TickLimit {
            ticks,
            token,
            capacity,
            ..
        } = *limit;
        BucketSize {
            ticks,
            token,
            capacity,
        }
    }

    fn fits_a_word(_: &BucketSize) -> bool {
        false
    }

    /// In a denial, `retry_at` is the number of ticks that are missing.
    fn decision(limit: &TickLimit, result: &StepResult<Self, u64>, _: u64) -> Decision {
        match *result {
            StepResult::Admit(_, ahead) => Decision::new(limit, Outcome::Allowed, ahead, 0),
            StepResult::Deny { info, retry_at } => {
                Decision::new(limit, Outcome::Denied, info, retry_at)
            }
            StepResult::Never(ahead) => Decision::new(limit, Outcome::Never, ahead, 0),
        }
    }

    fn from_words(word: impl Fn(usize) -> u64) -> Self {
        let large = |at: usize| u128::from(word(at)) << 64 | u128::from(word(at + 1));
        Self {
            tat: large(0),
            settled: large(2),
            mark: large(4),
            pending: [word(6), word(7)],
            since: [word(8), word(9)],
            latest: word(10),
        }
    }

    fn to_words(self, mut word: impl FnMut(usize, u64)) {
        for (at, large) in [self.tat, self.settled, self.mark].into_iter().enumerate() {
            word(2 * at, (large >> 64) as u64);
            word(2 * at + 1, large as u64);
        }
        let [older, newer] = self.pending;
        let [older_since, newer_since] = self.since;
        for (at, value) in [older, newer, older_since, newer_since, self.latest]
            .into_iter()
            .enumerate()
        {
            word(6 + at, value);
        }
    }

    // A state never fits one word: these are not called.
    fn pack(self, _: &BucketSize) -> u64 {
        0
    }

    fn clip(self, _: &BucketSize) -> Self {
        self
    }

    fn unpack(_: &BucketSize, _: u64) -> Self {
        Self::default()
    }

    fn step(self, limit: &BucketSize, now: u64, cost: u64) -> StepResult<Self, u64> {
        let early = self.latest.saturating_sub(now);
        let now = now.max(self.latest);
        let (mut state, clock) = (self.forget_expired(limit, now), limit.clock(now));
        let ahead = state.ahead(clock);
        let need = match cost.checked_mul(limit.token) {
            Some(need) if need <= limit.capacity => need,
            _ => return StepResult::Never(ahead),
        };
        let missing = ahead.saturating_add(need).saturating_sub(limit.capacity);
        if missing > 0 {
            return StepResult::Deny {
                info: ahead,
                retry_at: missing.saturating_add(early.saturating_mul(limit.ticks)),
            };
        }
        state.latest = now;
        state.tat = state.tat.max(clock) + u128::from(need);
        match state.pending[1].checked_add(need) {
            Some(pending) => state.pending[1] = pending,
            None => {
                // More is pending than can be counted: none of it comes back.
                let after = state.latest.saturating_add(1);
                state = Self {
                    since: [after, after],
                    latest: after,
                    ..Self::settled_at(state.tat)
                };
            }
        }
        StepResult::Admit(state, ahead + need)
    }

    fn finalize(mut self, limit: &BucketSize, cost: u64) -> Self {
        let used = cost.saturating_mul(limit.token);
        self.pending[1] = self.pending[1].saturating_sub(used);
        self.book(limit, self.latest, used, true)
    }

    fn charged_in(self) -> u64 {
        self.latest
    }

    fn give_back(mut self, limit: &BucketSize, _: u64, back: &Refund) -> Self {
        let [older_since, newer_since] = self.since;
        if back.charged_in < older_since {
            return self;
        }
        let is_newer = back.charged_in >= newer_since;
        let pending = &mut self.pending[usize::from(is_newer)];
        let worth = back.cost.saturating_mul(limit.token);
        *pending = pending.saturating_sub(worth);
        let used = worth.saturating_sub(back.unused.saturating_mul(limit.token));
        self.book(limit, back.charged_in, used, is_newer)
            .lower_tat(limit)
    }

    fn charge_more(self, limit: &BucketSize, now: u64, extra: u64) -> Self {
        if extra == 0 {
            return self;
        }
        let (mut state, extra) = (
            self.forget_expired(limit, now),
            extra.saturating_mul(limit.token),
        );
        state.tat = state.tat.max(limit.clock(now)) + u128::from(extra);
        state.book(limit, now, extra, true)
    }

    fn grant(mut self, limit: &BucketSize, now: u64, tokens: u64) -> (Self, u64) {
        let granted = self
            .ahead(limit.clock(now))
            .min(tokens.saturating_mul(limit.token));
        for number in [&mut self.tat, &mut self.settled, &mut self.mark] {
            *number = number.saturating_sub(u128::from(granted));
        }
        (self, granted.div_ceil(limit.token))
    }

    fn join(self, _: &BucketSize, other: Self) -> Self {
        let latest = self.latest.max(other.latest);
        Self {
            since: [latest, latest],
            latest,
            ..Self::settled_at(self.tat.max(other.tat))
        }
    }
}
