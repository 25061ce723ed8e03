//! What all nodes of a fleet say of keys. They tell each other by names, which say nothing of whose
//! key it is.

use super::Engine;
use super::operator::KeySelector;
use super::overrides::{KeyDisplay, Override, OverrideError, OverrideKind, OverrideMap};
use super::rules::Rule;
use crate::attribute::Attribute;
use crate::fingerprint::{FingerprintSecret, KeyName};
use crate::policy_limit::PolicyLimit;
use ratekeeper::{Store, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

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
    pub until: Timestamp,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// The node that said it.
    pub node: Option<String>,
    /// The key by its fingerprints.
    pub fingerprint: String,
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
    /// In words, such as `user=42`; what opens doors is shown by its fingerprint, and so is what
    /// only that is known of.
    pub words: String,
    /// By its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`.
    pub fingerprint: String,
    /// What nodes call it that have the same [`FingerprintSecret`].
    pub name: KeyName,
    /// Whether an address stands for an attribute that the subject lacks; see
    /// [`Missing`](crate::Missing).
    pub is_by_address: bool,
    /// Whether its counters can be found: they cannot where it is named by a fingerprint that was
    /// not seen here lately.
    pub is_seen: bool,
}

/// # A fleet
///
/// What is said of a key holds on this node. Where nodes tell each other, this is what they say and
/// hear.
impl<S: Store> Engine<S> {
    /// The key that an operator means.
    pub fn key_of<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<PolicyKey, OverrideError> {
        let rules = self.inner.rules.load();
        let (rule, key) = self.select(&rules, policy, key.into())?;
        Ok(PolicyKey {
            policy: rule.policy.name.clone(),
            by: rule.policy.key.clone(),
            words: key.words,
            fingerprint: key.fingerprint,
            name: key.name,
            is_by_address: key.is_by_address,
            is_seen: key.bytes.is_some(),
        })
    }

    /// Goes by what all nodes say, in place of what they said before; what was said here alone
    /// stays. What is said of a policy that this node does not have is left out: tell it again when
    /// the policies have changed.
    ///
    /// Fingerprints are made with that secret from now on; names are made with it too. What was
    /// said here of a fingerprint that another secret made ends.
    pub fn share_overrides(
        &self,
        secret: FingerprintSecret,
        said: &[SharedOverride],
    ) -> Result<(), OverrideError> {
        let rules = self.inner.rules.load();
        let by_name: HashMap<&str, &Rule> = rules
            .policies
            .iter()
            .map(|rule| (rule.policy.name.as_str(), rule))
            .collect();
        let mut shared = OverrideMap::default();
        for one in said {
            // Where it counts by something else the same name is another key.
            let rule = by_name
                .get(one.policy.as_str())
                .filter(|rule| rule.policy.key == one.by);
            let Some(rule) = rule else { continue };
            let what = match &one.limits {
                None => OverrideKind::Ban,
                Some(limits) => self.register_replacement(rule, limits)?,
            };
            let key = KeyDisplay {
                words: one.words.as_deref().map(Into::into),
                fingerprint: one.fingerprint.as_str().into(),
            };
            let entry = Override::new(&rule.policy, key, what, one.until, one.reason.as_deref());
            shared.add(
                rule.number,
                one.name,
                Arc::new(entry.from_node(one.node.as_deref())),
            );
        }
        self.inner
            .overrides
            .set_shared(secret, shared, self.inner.store.now());
        Ok(())
    }

    /// These limits of a policy in place of its own.
    pub(super) fn register_replacement(
        &self,
        rule: &Rule,
        limits: &[PolicyLimit],
    ) -> Result<OverrideKind, OverrideError> {
        let mut registry = self
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // One that is there twice would be charged twice.
        let once = limits
            .iter()
            .enumerate()
            .filter(|(at, limit)| !limits[..*at].contains(limit))
            .map(|(_, limit)| limit);
        let slots =
            once.map(|limit| registry.register_replacement(rule, *limit, &self.inner.store));
        slots
            .collect::<Result<_, _>>()
            .map(OverrideKind::Limits)
            .map_err(|_| OverrideError::TooManyLimits)
    }
}
