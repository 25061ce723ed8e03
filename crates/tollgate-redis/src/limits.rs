//! The limits of a store: what each is called, how it counts, and what becomes of it without the server.

use crate::key::Stem;
use std::sync::{Arc, PoisonError, RwLock};
use tollgate::{InMicros, Limit, LimitHandle, OnFailure};

/// One limit as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) rule: Rule,
    pub(crate) form: InMicros,
    pub(crate) stem: Stem,
    pub(crate) on_failure: OnFailure,
    /// Where this node counts its share of it.
    pub(crate) share: LimitHandle,
    name: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Rate(Limit),
    InFlight(u64),
}

impl Rule {
    fn form(&self) -> InMicros {
        match *self {
            Self::Rate(limit) => limit.in_micros(),
            // More than a double counts are as good as any.
            Self::InFlight(most) => InMicros::InFlight { most: most.min(1 << 52) },
        }
    }
}

/// All limits of a store, by their number.
pub(crate) struct Limits {
    prefix: Box<str>,
    all: RwLock<Vec<Arc<Registered>>>,
}

impl Limits {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into(), all: RwLock::default() }
    }

    pub(crate) fn add(&self, number: u64, name: &str, rule: Rule, share: LimitHandle, on_failure: OnFailure) {
        let form = rule.form();
        let stem = Stem::new(&self.prefix, name, &form);
        let added = Arc::new(Registered { rule, form, stem, on_failure, share, name: name.into() });
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // Numbers are given in order, but another thread may be here first with a later one.
        let at = number as usize;
        while all.len() <= at {
            all.push(Arc::clone(&added));
        }
        all[at] = added;
    }

    pub(crate) fn get(&self, handle: &LimitHandle) -> Option<Arc<Registered>> {
        self.numbered(handle.number())
    }

    pub(crate) fn numbered(&self, number: u64) -> Option<Arc<Registered>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(number as usize).cloned()
    }

    /// What all keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether the limit that every node knows as `id` is still this one.
    pub(crate) fn hold(&self, id: u64, form: &InMicros) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|limit| limit.stem.id == id && limit.form == *form)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Registered>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change(&self, handle: &LimitHandle, change: impl FnOnce(&mut Registered, &mut Box<str>)) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.get_mut(handle.number() as usize) else { return };
        let mut changed = Registered::clone(known);
        let mut name = changed.name.clone();
        change(&mut changed, &mut name);
        changed.form = changed.rule.form();
        changed.stem = Stem::new(&self.prefix, &name, &changed.form);
        changed.name = name;
        *known = Arc::new(changed);
    }
}
