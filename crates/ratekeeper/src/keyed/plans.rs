//! Limits that come with a call: the same keys, judged by other numbers.

use super::line::Rule;
use super::table::Table;
use super::terms::Terms;
use crate::chunks::Chunks;
use crate::clock::Clock;
use crate::limit::Limit;
use crate::sync::{AtomicU32, Lock, OnceBox, Ordering};
use std::boxed::Box;
use std::sync::Arc;

/// Limits that judge the same keys: the one a table was made with, and those that came with a call.
pub(crate) struct Plans {
    list: Chunks<OnceBox<Arc<Terms>>>,
    length: AtomicU32,
    /// By the hash of the limit, one more than the index at which it was found last.
    recent: [AtomicU32; RECENT],
    adding: Lock,
}

const RECENT: usize = 64;
const MOST_PLANS: u32 = 1024;

impl Plans {
    pub(crate) fn new(first: Arc<Terms>) -> Self {
        let plans = Self {
            list: Chunks::new(),
            length: AtomicU32::new(1),
            recent: core::array::from_fn(|_| AtomicU32::new(0)),
            adding: Lock::new(),
        };
        plans
            .list
            .get_or_make(0, OnceBox::new)
            .get_or_init(|| Box::new(first));
        plans
    }

    pub(super) fn len(&self) -> u32 {
        self.length.load(Ordering::Acquire)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Terms>> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    fn get(&self, at: u32) -> Option<&Arc<Terms>> {
        self.list.get(u64::from(at))?.get()
    }

    /// The terms of a limit that comes with a call; none if there have been too many.
    pub(crate) fn under<C: Clock>(&self, table: &Table<C>, limit: Limit) -> Option<&Arc<Terms>> {
        let rule = Rule::Rate(limit);
        let recent = &self.recent[table.hash(&limit) as usize % RECENT];
        let known = |at: &u32| *at > 0 && self.get(*at).is_some_and(|terms| terms.rule == rule);
        if let Some(at) = recent.load(Ordering::Acquire).checked_sub(1).filter(known) {
            return self.get(at);
        }
        let _held = self.adding.hold();
        let length = self.len();
        let at = (1..length).find(known).unwrap_or(length);
        if at == length {
            if length > MOST_PLANS {
                return None;
            }
            let terms = table.new_line(u64::from(length), "", rule)?;
            self.list
                .get_or_make(u64::from(at), OnceBox::new)
                .get_or_init(|| Box::new(terms));
            self.length.store(length + 1, Ordering::Release);
        }
        recent.store(at + 1, Ordering::Release);
        self.get(at)
    }
}
