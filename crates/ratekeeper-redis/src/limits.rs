//! The limits of a store: what each is called, how it counts, and what becomes of it without the
//! server.

use crate::key::{Stem, Tag};
use crate::lease::eligibility;
use crate::lease::table::LeasedLimit;
use ratekeeper::{Limit, limit::MicrosLimit, store::LimitHandle, store::OnFailure};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// One limit as it is now.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredLimit {
    pub(crate) rule: Rule,
    pub(crate) form: MicrosLimit,
    pub(crate) stem: Stem,
    pub(crate) on_failure: OnFailure,
    /// Where this node counts its share of it.
    pub(crate) share: LimitHandle,
    /// With what others its keys lie, in a Cluster.
    pub(crate) tag: Option<Tag>,
    /// How old what a node knows may be, if it may decide by leases.
    pub(crate) staleness: Option<Duration>,
    /// How it is leased, if it is.
    pub(crate) lease: Option<Arc<LeasedLimit>>,
    /// The longest it was ever leased for: that long a log counts longer.
    leased_for: u64,
    name: Box<str>,
}

impl RegisteredLimit {
    /// Makes it what its rule, its name and its staleness say.
    fn settle(&mut self, number: u64, prefix: &str) {
        let form = self.rule.form();
        let manner = self
            .staleness
            .and_then(|staleness| eligibility::manner(&form, staleness));
        self.leased_for = self.leased_for.max(manner.map_or(0, |manner| manner.lives));
        self.form = eligibility::stretched(form, self.leased_for);
        self.stem = Stem::new(prefix, &self.name, &self.form, self.tag.clone());
        let (form, stem) = (self.form, &self.stem);
        let same = |known: &LeasedLimit, manner| {
            known.form == form && known.manner == manner && known.stem == *stem
        };
        self.lease = manner.map(|manner| match &self.lease {
            Some(known) if same(known, manner) => Arc::clone(known),
            _ => Arc::new(LeasedLimit {
                number,
                form,
                stem: stem.clone(),
                manner,
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
            // More than a double counts are as good as any.
            Self::InFlight(most) => MicrosLimit::InFlight {
                most: most.min(1 << 52),
            },
        }
    }
}

/// All limits of a store, by their number.
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

    /// The same with no limits in it.
    pub(crate) fn none(&self) -> Self {
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
        let tag = self.in_cluster.then(Tag::default);
        let stem = Stem::new(&self.prefix, name, &form, tag.clone());
        let (staleness, lease, leased_for, name) = (None, None, 0, name.into());
        let added = RegisteredLimit {
            rule,
            form,
            stem,
            on_failure,
            share,
            tag,
            staleness,
            lease,
            leased_for,
            name,
        };
        let added = Arc::new(added);
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        // Numbers are given in order, but another thread may be here first with a later one.
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

    /// What all keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether the limit that every node knows as `id` is still this one.
    pub(crate) fn hold(&self, id: u64, form: &MicrosLimit) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .any(|limit| limit.stem.id == id && limit.form == *form)
    }

    pub(crate) fn all(&self) -> Vec<Arc<RegisteredLimit>> {
        self.all
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes a limit; whether what is held of it on lease is of no use any more.
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
        changed.settle(handle.number(), &self.prefix);
        let is_other = match (&known.lease, &changed.lease) {
            (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
            (before, _) => before.is_some(),
        };
        *known = Arc::new(changed);
        is_other
    }
}
