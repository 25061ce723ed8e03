//! A registered limit: the identity of a limit across live changes, and its counters.

use super::large_state::{LARGE_STATE_OVERHEAD, REFUNDABLE_WORDS};
use crate::adjustments::Adjustments;
use crate::algorithm::state_op::MAX_STATE_WORDS;
use crate::limit::{Kind, Limit, TickLimit};
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering};
use std::boxed::Box;
use std::sync::{Mutex, PoisonError};

/// What a limit counts: a rate, or requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Rate(Limit),
    /// The maximum in flight.
    InFlight(u64),
}

impl Rule {
    pub(super) fn normal(&self) -> TickLimit {
        match self {
            Self::Rate(limit) => *limit.tick_limit(),
            Self::InFlight(max) => TickLimit {
                ticks: 0,
                token: 1,
                capacity: *max,
                kind: Kind::InFlight,
            },
        }
    }

    /// Returns about how many bytes a key takes beside the table.
    pub(super) fn large_state_bytes(&self) -> usize {
        let normal = self.normal();
        match normal.kind {
            Kind::Log => LARGE_STATE_OVERHEAD + 8 * normal.capacity.min(32) as usize,
            Kind::Strict => LARGE_STATE_OVERHEAD + 8 * MAX_STATE_WORDS,
            Kind::Refundable => LARGE_STATE_OVERHEAD + 8 * REFUNDABLE_WORDS,
            Kind::FirstHit => LARGE_STATE_OVERHEAD + 16,
            Kind::FixedWindow | Kind::SlidingWindow if normal.ticks == 0 => {
                LARGE_STATE_OVERHEAD + 24
            }
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

/// One limit over time: its current version, and counters over all versions.
pub(crate) struct RegisteredLimit {
    /// The id of its table.
    pub(crate) table: u64,
    /// Identifies the limit in its table: part of what is hashed, so that keys of different limits
    /// differ.
    pub(crate) number: u64,
    pub(crate) name: Box<str>,
    /// For getters; decisions read the [`LimitVersion`](super::limit_version::LimitVersion).
    rule: Mutex<Rule>,
    /// The id of the version in force.
    pub(super) current: AtomicU32,
    /// Held while the limit is changed.
    pub(super) change_lock: Lock,
    pub(super) changes: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) settled_up: AtomicU64,
    pub(super) not_returned: AtomicU64,
    /// Counts of evicted keys, allocated with the first eviction.
    evicted: OnceBox<[EvictionCounters; EVICTION_SHARDS]>,
}

/// Counts of evicted keys. Sharded, each shard in a cache line of its own: during a flood every
/// call of every thread writes to one.
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
struct EvictionCounters {
    fresh: AtomicU64,
    live: AtomicU64,
}

#[cfg(not(ratekeeper_loom))]
const EVICTION_SHARDS: usize = 8;
#[cfg(ratekeeper_loom)]
const EVICTION_SHARDS: usize = 1;

impl RegisteredLimit {
    pub(super) fn new(table: u64, number: u64, name: &str, rule: Rule) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            table,
            number,
            name: name.into(),
            rule: Mutex::new(rule),
            current: AtomicU32::new(0),
            change_lock: Lock::new(),
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

    /// Counts an evicted key; `any` picks the shard, to spread concurrent calls.
    pub(super) fn count_evicted(&self, fresh: bool, any: u64) {
        let zero = || AtomicU64::new(0);
        let make = || {
            Box::new(core::array::from_fn(|_| EvictionCounters {
                fresh: zero(),
                live: zero(),
            }))
        };
        let evicted = &self.evicted.get_or_init(make)[any as usize % EVICTION_SHARDS];
        let count = if fresh { &evicted.fresh } else { &evicted.live };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many evicted keys were fresh, and how many were live.
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

    pub(crate) fn adjustments(&self) -> Adjustments {
        Adjustments {
            granted: self.granted.load(Ordering::Relaxed),
            settled_up: self.settled_up.load(Ordering::Relaxed),
            not_returned: self.not_returned.load(Ordering::Relaxed),
            changes: self.changes.load(Ordering::Relaxed),
        }
    }
}
