//! The limits of a store: the name, algorithm and failure mode of each.

use crate::key::{KeyPrefix, SlotTag};
use crate::lease::eligibility;
use crate::lease::table::LeasedLimit;
use ratekeeper::{Limit, store::LimitHandle, store::OnFailure, store::backend::MicrosLimit};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// One limit in its current version.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredLimit {
    pub(crate) rule: Rule,
    pub(crate) form: MicrosLimit,
    pub(crate) key_prefix: KeyPrefix,
    pub(crate) on_failure: OnFailure,
    /// This node's share of the limit, for outages.
    pub(crate) share: LimitHandle,
    /// In a Cluster: what the hash tag of its keys is made of.
    pub(crate) tag: Option<SlotTag>,
    /// How stale a node's view may be if it may decide by leases; `None` for exact decisions.
    pub(crate) staleness: Option<Duration>,
    /// How the limit is leased, if it is.
    pub(crate) lease: Option<Arc<LeasedLimit>>,
    /// The longest TTL it was ever leased with, in microseconds: the window of a log is extended by
    /// it.
    longest_lease: u64,
    name: Box<str>,
}

impl RegisteredLimit {
    /// Updates what is derived from the rule, the name and the staleness.
    fn refresh(&mut self, number: u64, prefix: &str) {
        let form = self.rule.form();
        let settings = self
            .staleness
            .and_then(|staleness| eligibility::lease_settings(&form, staleness));
        self.longest_lease = self
            .longest_lease
            .max(settings.map_or(0, |settings| settings.ttl));
        self.form = eligibility::extended_window(form, self.longest_lease);
        self.key_prefix = KeyPrefix::new(prefix, &self.name, &self.form, self.tag.clone());
        let form = self.form;
        let key_prefix = &self.key_prefix;
        let same = |known: &LeasedLimit, settings| {
            known.form == form && known.settings == settings && known.key_prefix == *key_prefix
        };
        self.lease = settings.map(|settings| match &self.lease {
            Some(known) if same(known, settings) => Arc::clone(known),
            _ => Arc::new(LeasedLimit {
                number,
                form,
                key_prefix: key_prefix.clone(),
                settings,
            }),
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Rate(Limit),
    InFlight(u64),
}

impl Rule {
    fn form(&self) -> MicrosLimit {
        match *self {
            Self::Rate(limit) => limit.in_micros(),
            // A double counts exactly up to here, and no limit is reached beyond it.
            Self::InFlight(max) => MicrosLimit::InFlight {
                max: max.min(1 << 52),
            },
        }
    }
}

/// All limits of a store, by number.
pub(crate) struct Limits {
    prefix: Box<str>,
    in_cluster: bool,
    all: RwLock<Vec<Arc<RegisteredLimit>>>,
}

impl Limits {
    pub(crate) fn new(prefix: &str, in_cluster: bool) -> Self {
        Self {
            prefix: prefix.into(),
            in_cluster,
            all: RwLock::default(),
        }
    }

    /// An empty copy, with the same prefix.
    pub(crate) fn empty_copy(&self) -> Self {
        Self {
            prefix: self.prefix.clone(),
            in_cluster: self.in_cluster,
            all: RwLock::default(),
        }
    }

    pub(crate) fn add(
        &self,
        number: u64,
        name: &str,
        rule: Rule,
        share: LimitHandle,
        on_failure: OnFailure,
    ) {
        let form = rule.form();
        let tag = self.in_cluster.then(SlotTag::default);
        let key_prefix = KeyPrefix::new(&self.prefix, name, &form, tag.clone());
        let added = RegisteredLimit {
            rule,
            form,
            key_prefix,
            on_failure,
            share,
            tag,
            staleness: None,
            lease: None,
            longest_lease: 0,
            name: name.into(),
        };
        let added = Arc::new(added);
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // Numbers are given in order, but another thread may add a later one first.
        let at = number as usize;
        while all.len() <= at {
            all.push(Arc::clone(&added));
        }
        all[at] = added;
    }

    pub(crate) fn get(&self, handle: &LimitHandle) -> Option<Arc<RegisteredLimit>> {
        self.numbered(handle.number())
    }

    pub(crate) fn numbered(&self, number: u64) -> Option<Arc<RegisteredLimit>> {
        self.all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(number as usize)
            .cloned()
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether the limit with this id still has this form.
    pub(crate) fn contains(&self, id: u64, form: &MicrosLimit) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .any(|limit| limit.key_prefix.id == id && limit.form == *form)
    }

    pub(crate) fn all(&self) -> Vec<Arc<RegisteredLimit>> {
        self.all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes a limit. Returns whether its leases are of no use any more.
    pub(crate) fn change(
        &self,
        handle: &LimitHandle,
        change: impl FnOnce(&mut RegisteredLimit, &mut Box<str>),
    ) -> bool {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.get_mut(handle.number() as usize) else {
            return false;
        };
        let mut changed = RegisteredLimit::clone(known);
        let mut name = changed.name.clone();
        change(&mut changed, &mut name);
        changed.name = name;
        changed.refresh(handle.number(), &self.prefix);
        let is_other = match (&known.lease, &changed.lease) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (before, _) => before.is_some(),
        };
        *known = Arc::new(changed);
        is_other
    }
}
