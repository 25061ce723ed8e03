//! Freshness: how long until a key is back to its full allowance, or since when it is.

use super::judge::CallRequest;
use super::large_state::LargeState;
use super::limit_version::{EntryState, LimitVersion};
use crate::algorithm::tat_word::{Reach, ahead, reach};
use crate::clock::Timestamp;
use crate::limit::{Kind, TickLimit};

/// How close a state is to fresh, in nanoseconds: the greater, the less is lost by evicting it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freshness {
    /// It will be fresh in this time.
    FreshIn(u64),
    /// It has been fresh for at least this time.
    FreshFor(u64),
}

impl Freshness {
    pub(crate) fn in_nanos(until: u64) -> Self {
        if until == 0 {
            Self::FreshFor(0)
        } else {
            Self::FreshIn(until)
        }
    }

    pub(crate) fn is_fresh(self) -> bool {
        matches!(self, Self::FreshFor(_))
    }
}

impl Ord for Freshness {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        match (self, other) {
            (Self::FreshIn(a), Self::FreshIn(b)) => b.cmp(a),
            (Self::FreshFor(a), Self::FreshFor(b)) => a.cmp(b),
            (a, b) => a.is_fresh().cmp(&b.is_fresh()),
        }
    }
}

impl PartialOrd for Freshness {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl LimitVersion {
    pub(crate) fn is_fresh(&self, state: &EntryState, now: Timestamp) -> bool {
        match state {
            EntryState::Word(word) => self.freshness(*word, now).is_some_and(Freshness::is_fresh),
            EntryState::Large(state) => self.large_until_fresh(state, now) == 0,
        }
    }

    pub(crate) fn large_until_fresh(&self, state: &LargeState, now: Timestamp) -> u64 {
        crate::clock::nanos(state.reset_after(&self.normal, now.as_unix_nanos()))
    }

    /// Returns since when a state has been fresh; `None` if it is not, or does not change with
    /// time.
    pub(crate) fn fresh_since(&self, state: &EntryState, now: Timestamp) -> Option<Timestamp> {
        let TickLimit { ticks, kind, .. } = self.normal;
        let since = match (state, kind) {
            (_, Kind::InFlight | Kind::Frozen | Kind::Unlimited) => return None,
            (EntryState::Word(word), Kind::Bucket | Kind::Pacing) => {
                self.origin.saturating_add(word.div_ceil(ticks))
            }
            // Judged at time 0, a window tells how long until it is fresh, counted from its own
            // beginning.
            (EntryState::Word(word), _) => {
                let request = CallRequest::peek(Timestamp::from_unix_nanos(0), 0);
                crate::clock::nanos(self.judge_word(*word, &request).decision.reset_after())
            }
            (EntryState::Large(state), _) => {
                crate::clock::nanos(state.reset_after(&self.normal, 0))
            }
        };
        // Not before this version was in force: what it clipped off is gone.
        Some(Timestamp::from_unix_nanos(since).max(self.since)).filter(|since| *since <= now)
    }

    /// Returns how fresh a one-word state is; `None` if its entry must not be evicted.
    #[inline]
    pub(crate) fn freshness(&self, word: u64, now: Timestamp) -> Option<Freshness> {
        let TickLimit { ticks, kind, .. } = self.normal;
        match kind {
            Kind::InFlight if word > 0 => None,
            Kind::Frozen if word > 0 => Some(Freshness::FreshIn(u64::MAX)),
            Kind::InFlight | Kind::Frozen | Kind::Unlimited => Some(Freshness::FreshFor(0)),
            Kind::Bucket | Kind::Pacing => match reach(&self.normal, self.origin, now) {
                Reach::Clock(clock) if word > clock => {
                    Some(Freshness::FreshIn((word - clock).div_ceil(ticks)))
                }
                Reach::Clock(clock) => Some(Freshness::FreshFor((clock - word) / ticks)),
                _ => Some(Freshness::in_nanos(
                    ahead(&self.normal, self.origin, word, now).div_ceil(ticks),
                )),
            },
            _ => {
                let request = CallRequest::peek(now, 0);
                Some(Freshness::in_nanos(crate::clock::nanos(
                    self.judge_word(word, &request).decision.reset_after(),
                )))
            }
        }
    }

    /// Returns the same state, marked as used now, so that it is not the first to be evicted.
    pub(super) fn mark_used_now(&self, state: EntryState, now: Timestamp) -> EntryState {
        match (
            state,
            self.normal.kind,
            reach(&self.normal, self.origin, now),
        ) {
            (EntryState::Word(word), Kind::Bucket | Kind::Pacing, Reach::Clock(clock)) => {
                EntryState::Word(word.max(clock))
            }
            (state, ..) => state,
        }
    }
}
