//! One limit over time: what is in force, and what became of its keys.

use super::wide::{OVERHEAD, REFUNDABLE_WORDS};
use crate::algorithm::state_op::MAX_STATE_WORDS;
use crate::limit::{Kind, Limit, TickLimit};
use crate::limiter::Adjustments;
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering};
use std::boxed::Box;
use std::sync::{Mutex, PoisonError};

/// What is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Rate(Limit),
    /// So many in flight.
    InFlight(u64),
}

impl Rule {
    pub(super) fn normal(&self) -> TickLimit {
        match self {
            Self::Rate(limit) => *limit.tick_limit(),
            Self::InFlight(most) => TickLimit {
                ticks: 0,
                token: 1,
                capacity: *most,
                kind: Kind::InFlight,
            },
        }
    }

    /// What a key takes beside the table, about.
    pub(super) fn large_state_bytes(&self) -> usize {
        let normal = self.normal();
        match normal.kind {
            Kind::Log => OVERHEAD + 8 * normal.capacity.min(32) as usize,
            Kind::Strict => OVERHEAD + 8 * MAX_STATE_WORDS,
            Kind::Refundable => OVERHEAD + 8 * REFUNDABLE_WORDS,
            Kind::FirstHit => OVERHEAD + 16,
            Kind::FixedWindow | Kind::SlidingWindow if normal.ticks == 0 => OVERHEAD + 24,
            _ => 0,
        }
    }

    pub(crate) fn limit(&self) -> Option<Limit> {
        match self {
            Self::Rate(limit) => Some(*limit),
            Self::InFlight(_) => None,
        }
    }
}

/// One limit over time.
pub(crate) struct RegisteredLimit {
    /// The table it is of.
    pub(crate) table: u64,
    /// Sets its keys apart from those of the other lines in the table.
    pub(crate) number: u64,
    pub(crate) name: Box<str>,
    /// For whoever asks; decisions go by the terms.
    rule: Mutex<Rule>,
    /// The terms in force.
    pub(super) current: AtomicU32,
    /// Held by whoever changes it.
    pub(super) changing: Lock,
    pub(super) changes: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) settled_up: AtomicU64,
    pub(super) not_returned: AtomicU64,
    /// How many of its keys were, once one was.
    evicted: OnceBox<[EvictionCounters; EVICTED]>,
}

/// Keys that were evicted. In cache lines of their own, and several: a flood writes to one with
/// every call, from every thread.
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
struct EvictionCounters {
    fresh: AtomicU64,
    live: AtomicU64,
}

#[cfg(not(ratekeeper_loom))]
const EVICTED: usize = 8;
#[cfg(ratekeeper_loom)]
const EVICTED: usize = 1;

impl RegisteredLimit {
    pub(super) fn new(table: u64, number: u64, name: &str, rule: Rule) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            table,
            number,
            name: name.into(),
            rule: Mutex::new(rule),
            current: AtomicU32::new(0),
            changing: Lock::new(),
            changes: zero(),
            granted: zero(),
            settled_up: zero(),
            not_returned: zero(),
            evicted: OnceBox::new(),
        }
    }

    pub(crate) fn rule(&self) -> Rule {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_rule(&self, rule: Rule) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = rule;
    }

    /// Counts a key that was evicted; `any` spreads those that come at once.
    pub(super) fn count_evicted(&self, fresh: bool, any: u64) {
        let zero = || AtomicU64::new(0);
        let make = || {
            Box::new(core::array::from_fn(|_| EvictionCounters {
                fresh: zero(),
                live: zero(),
            }))
        };
        let evicted = &self.evicted.get_or_init(make)[any as usize % EVICTED];
        let count = if fresh { &evicted.fresh } else { &evicted.live };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many keys were evicted that were fresh, and that were live.
    pub(super) fn evicted(&self) -> (u64, u64) {
        let parts = self.evicted.get().map_or(&[][..], |parts| parts);
        let sum = |count: fn(&EvictionCounters) -> &AtomicU64| {
            parts
                .iter()
                .map(|part| count(part).load(Ordering::Relaxed))
                .sum()
        };
        (sum(|part| &part.fresh), sum(|part| &part.live))
    }

    pub(crate) fn counts(&self) -> Adjustments {
        Adjustments {
            granted: self.granted.load(Ordering::Relaxed),
            settled_up: self.settled_up.load(Ordering::Relaxed),
            not_returned: self.not_returned.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
        }
    }
}
