//! What all nodes of a fleet say of keys. They tell each other by names, which say nothing of whose key it is.

use super::Engine;
use super::operator::find;
use super::overrides::{Override, OverrideError, Said, Shown, What};
use super::rules::Ruling;
use crate::attribute::Attribute;
use crate::policy_limit::PolicyLimit;
use crate::subject::Subject;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use tollgate::{Instant, Store};

/// What nodes call a key of a policy: a hash of both, with a secret that they share.
pub type KeyName = [u8; 16];

/// Makes the name of a key, from the name of its policy and its bytes. It is called for every request that a policy applies to of
/// which something is said.
pub type NameKey = Arc<dyn Fn(&str, &[u8]) -> KeyName + Send + Sync>;

/// A ban or other limits, as nodes tell each other.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedOverride {
    /// The key.
    pub name: KeyName,
    /// Its policy.
    pub policy: String,
    /// What that counted by when it was said.
    pub by: Vec<Attribute>,
    /// The limits that stand in for those of the policy; none if it is a ban.
    pub limits: Option<Vec<PolicyLimit>>,
    /// Until when.
    pub until: Instant,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// The node that said it.
    pub node: Option<String>,
    /// The key in words, where this node knows them.
    pub words: Option<String>,
}

/// A key of a policy, as an operator means it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PolicyKey {
    /// The policy.
    pub policy: String,
    /// What it counts by.
    pub by: Vec<Attribute>,
    /// In words, such as `user=42`; what opens doors is shown by its fingerprint.
    pub words: String,
    /// The same letters as in the lists of the heaviest keys.
    pub fingerprint: String,
    key: Box<[u8]>,
}

impl PolicyKey {
    /// What nodes call it.
    pub fn name(&self, name_key: &NameKey) -> KeyName {
        name_key(&self.policy, &self.key)
    }
}

/// How a key is shown of which only the name is known.
pub fn fingerprint_of(name: &KeyName) -> String {
    name.iter().take(8).fold("#".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// # A fleet
///
/// What is said of a key holds on this node. Where nodes tell each other, this is what they say and hear.
impl<S: Store> Engine<S> {
    /// The key that a subject has under a policy.
    pub fn key_of(&self, policy: &str, subject: &Subject<'_>) -> Result<PolicyKey, OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = find(&rules, policy, subject)?;
        Ok(PolicyKey {
            policy: ruling.policy.name.clone(),
            by: ruling.policy.key.clone(),
            words: self.shown(ruling, &key),
            fingerprint: self.fingerprint(ruling, &key),
            key: key.as_slice().into(),
        })
    }

    /// Goes by what all nodes say, in place of what they said before; what was said here alone stays. What is said of a policy
    /// that this node does not have is left out: tell it again when the policies have changed.
    pub fn share_overrides(&self, name_key: NameKey, said: &[SharedOverride]) -> Result<(), OverrideError> {
        let rules = self.inner.rules.load();
        let by_name: HashMap<&str, &Ruling> =
            rules.policies.iter().map(|ruling| (ruling.policy.name.as_str(), ruling)).collect();
        let mut shared = Shared { name_key: Some(name_key), ..Shared::default() };
        for one in said {
            // Where it counts by something else the same name is another key.
            let ruling = by_name.get(one.policy.as_str()).filter(|ruling| ruling.policy.key == one.by);
            let Some(ruling) = ruling else { continue };
            let what = match &one.limits {
                None => What::Ban,
                Some(limits) => self.stand_in(ruling, limits)?,
            };
            let key =
                Shown { words: one.words.as_deref().map(Into::into), fingerprint: fingerprint_of(&one.name).into() };
            let entry = Override::new(&ruling.policy, key, what, one.until, one.reason.as_deref());
            shared.add(ruling.number, one.name, Arc::new(entry.said_by(one.node.as_deref())));
        }
        self.inner.overrides.share(shared, self.inner.store.now());
        Ok(())
    }

    /// These limits of a policy in place of its own.
    pub(super) fn stand_in(&self, ruling: &Ruling, limits: &[PolicyLimit]) -> Result<What, OverrideError> {
        let mut registry = self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is there twice would be charged twice.
        let once =
            limits.iter().enumerate().filter(|(at, limit)| !limits[..*at].contains(limit)).map(|(_, limit)| limit);
        let slots = once.map(|limit| registry.stand_in(ruling, *limit, &self.inner.store));
        slots.collect::<Result<_, _>>().map(What::Limits).map_err(|_| OverrideError::TooManyLimits)
    }
}

/// What all nodes say, by policy and name.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) name_key: Option<NameKey>,
    by_policy: HashMap<u32, HashMap<KeyName, Said>>,
    len: usize,
}

impl Shared {
    fn add(&mut self, policy: u32, name: KeyName, entry: Arc<Override>) {
        let said = self.by_policy.entry(policy).or_default().entry(name).or_default();
        let place = if entry.limits().is_some() { &mut said.limits } else { &mut said.ban };
        self.len += usize::from(place.replace(entry).is_none());
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        let all = self.by_policy.values().flat_map(HashMap::values);
        all.flat_map(|said| said.ban.iter().chain(&said.limits))
    }

    /// Keys are named only where something is said of a policy.
    #[inline]
    pub(crate) fn said(&self, ruling: &Ruling, key: &[u8], now: Instant) -> Said {
        let (Some(names), Some(name_key)) = (self.by_policy.get(&ruling.number), &self.name_key) else {
            return Said::default();
        };
        let Some(said) = names.get(&name_key(&ruling.policy.name, key)) else { return Said::default() };
        let holds = |entry: &Option<Arc<Override>>| entry.clone().filter(|entry| entry.holds(ruling, now));
        Said { ban: holds(&said.ban), limits: holds(&said.limits) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("len", &self.len).finish_non_exhaustive()
    }
}
