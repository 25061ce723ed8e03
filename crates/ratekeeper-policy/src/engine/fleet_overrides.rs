//! Overrides shared by a fleet: bans and other limits that nodes exchange, under names that do not
//! reveal the key.

use super::operator::{KeySelector, Operator};
use super::overrides::{KeyDisplay, Override, OverrideError, OverrideKind, OverrideMap};
use super::rules::Rule;
use crate::attribute::Attribute;
use crate::fingerprint::{FingerprintSecret, KeyName};
use crate::policy_limit::PolicyLimit;
use ratekeeper::{Store, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

/// A ban or other limits, in the form that nodes exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct SharedOverride {
    /// The key.
    pub name: KeyName,
    /// Its policy.
    pub policy: String,
    /// The attributes that the policy counted by at the time.
    pub by: Vec<Attribute>,
    /// The limits that replace those of the policy; `None` for a ban.
    pub limits: Option<Vec<PolicyLimit>>,
    /// When it expires.
    pub until: Timestamp,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// The node it was set on.
    pub node: Option<String>,
    /// The key by its fingerprints.
    pub fingerprint: String,
    /// The key in plain text, if this node knows it.
    pub words: Option<String>,
}

/// A key of a policy, resolved from a [`KeySelector`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PolicyKey {
    /// The policy.
    pub policy: String,
    /// The attributes it counts by.
    pub by: Vec<Attribute>,
    /// In plain text, such as `user=42`; secrets, and values of which only the fingerprint is
    /// known, are shown as fingerprints.
    pub words: String,
    /// By its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`.
    pub fingerprint: String,
    /// Its name among nodes that have the same [`FingerprintSecret`].
    pub name: KeyName,
    /// Whether an address replaces an attribute that the subject lacks; see
    /// [`Missing`](crate::Missing).
    pub is_by_address: bool,
    /// Whether its counters can be found: not if it is given by a fingerprint that this node has
    /// not seen lately.
    pub is_seen: bool,
}

/// # Fleets
///
/// Overrides hold on this node. With these, nodes exchange theirs, and compare their limits.
impl<S: Store> Operator<'_, S> {
    /// The name and parameters of every limit in force. Nodes with equal policies return equal
    /// lists, so that a store can tell whether nodes disagree. Empty while the policies are
    /// disabled.
    pub fn shared_limits(&self) -> Vec<String> {
        self.engine.inner.rules.load().shared_limits()
    }

    /// Resolves a key selector.
    pub fn key_of<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<PolicyKey, OverrideError> {
        let rules = self.engine.inner.rules.load();
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

    /// Replaces the overrides of the fleet; those set on this node alone stay. Overrides for a
    /// policy that this node does not have are left out: share them again when the policies have
    /// changed.
    ///
    /// From now on fingerprints and names are made with this secret. Overrides that were set here
    /// by a fingerprint of another secret end.
    pub fn share_overrides(
        &self,
        secret: FingerprintSecret,
        overrides: &[SharedOverride],
    ) -> Result<(), OverrideError> {
        let rules = self.engine.inner.rules.load();
        let by_name: HashMap<&str, &Rule> = rules
            .policies
            .iter()
            .map(|rule| (rule.policy.name.as_str(), rule))
            .collect();
        let mut shared = OverrideMap::default();
        for shared_override in overrides {
            // With other key attributes, the same name is another key.
            let rule = by_name
                .get(shared_override.policy.as_str())
                .filter(|rule| rule.policy.key == shared_override.by);
            let Some(rule) = rule else { continue };
            let kind = match &shared_override.limits {
                None => OverrideKind::Ban,
                Some(limits) => self.register_replacement(rule, limits)?,
            };
            let key = KeyDisplay {
                words: shared_override.words.as_deref().map(Into::into),
                fingerprint: shared_override.fingerprint.as_str().into(),
            };
            let entry = Override::new(
                &rule.policy,
                key,
                kind,
                shared_override.until,
                shared_override.reason.as_deref(),
            );
            shared.add(
                rule.number,
                shared_override.name,
                Arc::new(entry.with_node(shared_override.node.as_deref())),
            );
        }
        self.engine
            .inner
            .overrides
            .set_shared(secret, shared, self.engine.inner.store.now());
        Ok(())
    }

    /// Registers limits that replace those of a policy.
    pub(super) fn register_replacement(
        &self,
        rule: &Rule,
        limits: &[PolicyLimit],
    ) -> Result<OverrideKind, OverrideError> {
        let mut registry = self
            .engine
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A duplicate would be charged twice.
        let once = limits
            .iter()
            .enumerate()
            .filter(|(at, limit)| !limits[..*at].contains(limit))
            .map(|(_, limit)| limit);
        let slots =
            once.map(|limit| registry.register_replacement(rule, *limit, &self.engine.inner.store));
        slots
            .collect::<Result<_, _>>()
            .map(OverrideKind::Limits)
            .map_err(|_| OverrideError::TooManyLimits)
    }
}
