//! The limits of a store: what each is called, what it says since when, and what becomes of it without the service.

use crate::wire::{self, LimitLine};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate::{InMicros, Limit, LimitHandle, OnFailure};

/// One limit as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) handle: LimitHandle,
    pub(crate) rule: Rule,
    pub(crate) on_failure: OnFailure,
    /// Where this client counts its share of it.
    pub(crate) share: LimitHandle,
    name: Box<str>,
    /// The rate, in words.
    text: Box<str>,
    since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Rate(Limit),
    InFlight(u64),
}

impl Rule {
    fn text(&self) -> Box<str> {
        match self {
            Self::Rate(limit) => limit.to_string().into(),
            Self::InFlight(_) => Box::default(),
        }
    }
}

impl Registered {
    pub(crate) fn form(&self) -> InMicros {
        match self.rule {
            Rule::Rate(limit) => limit.in_micros(),
            Rule::InFlight(most) => InMicros::InFlight { most },
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        matches!(self.rule, Rule::Rate(limit) if limit.is_unlimited())
    }

    /// As the service is told of it.
    pub(crate) fn line(&self) -> LimitLine<'_> {
        let rule = match self.rule {
            Rule::Rate(_) => wire::Rule::Rate(&self.text),
            Rule::InFlight(most) => wire::Rule::InFlight(most),
        };
        let (number, on_failure) = (self.handle.number(), self.on_failure);
        LimitLine { number, name: &self.name, since: self.since, on_failure, rule }
    }
}

/// All limits of a store, by their number.
#[derive(Default)]
pub(crate) struct Limits {
    all: RwLock<Vec<Arc<Registered>>>,
}

impl Limits {
    pub(crate) fn add(&self, handle: &LimitHandle, rule: Rule, share: LimitHandle, on_failure: OnFailure) {
        let (name, text) = (handle.name().into(), rule.text());
        let handle = handle.clone();
        let at = handle.number() as usize;
        let added = Arc::new(Registered { handle, rule, on_failure, share, name, text, since: now() });
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // Numbers are given in order, but another thread may be here first with a later one.
        while all.len() <= at {
            all.push(Arc::clone(&added));
        }
        all[at] = added;
    }

    pub(crate) fn numbered(&self, number: u64) -> Option<Arc<Registered>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(number as usize).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Registered>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what a limit says, from now on.
    pub(crate) fn change(&self, handle: &LimitHandle, change: impl FnOnce(&mut Registered)) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.get_mut(handle.number() as usize) else { return };
        let mut changed = Registered::clone(known);
        change(&mut changed);
        changed.text = changed.rule.text();
        changed.since = now().max(changed.since + 1);
        *known = Arc::new(changed);
    }
}

impl Registered {
    pub(crate) fn text_bytes(&self) -> usize {
        self.name.len() + self.text.len()
    }

    /// What others call it.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }
}

/// Microseconds of the Unix epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
