//! Operator API: ban a key, override its limits, grant tokens, reset it.

use super::key::{self, KeyBuffer};
use super::overrides::{KeyDisplay, MAX_OVERRIDE_DURATION, Override, OverrideError, OverrideKind};
use super::rules::{Rule, Rules};
use super::{Engine, PolicyKey, Subject};
use crate::attribute::Attribute;
use crate::fingerprint::{Fingerprint, KeyName};
use crate::policy::Missing;
use crate::policy_limit::PolicyLimit;
use ratekeeper::{Store, store::LimitHandle};
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// Selects a key of a policy: by a subject, or by fingerprints as shown to an operator.
#[derive(Clone, Copy, Debug)]
pub struct KeySelector<'a> {
    subject: &'a Subject<'a>,
    fingerprints: &'a [(Attribute, Fingerprint)],
}

impl<'a> KeySelector<'a> {
    /// Selects a key by a subject; attributes given by fingerprint need not be in the subject.
    pub fn new(subject: &'a Subject<'a>, fingerprints: &'a [(Attribute, Fingerprint)]) -> Self {
        Self {
            subject,
            fingerprints,
        }
    }

    fn fingerprint(&self, attribute: &Attribute) -> Option<Fingerprint> {
        self.fingerprints
            .iter()
            .find(|(known, _)| known == attribute)
            .map(|(_, fingerprint)| *fingerprint)
    }
}

impl<'a, 's: 'a> From<&'a Subject<'s>> for KeySelector<'a> {
    fn from(subject: &'a Subject<'s>) -> Self {
        Self::new(subject, &[])
    }
}

/// What a fingerprint of an attribute stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SeenValue {
    /// A value of the attribute, as keys have it.
    Value(Vec<u8>),
    /// The address that requests without the attribute were counted by instead.
    Address(IpAddr),
    /// The bucket that requests without the attribute share: `unknown` or `shared`.
    Missing,
}

/// The key that a selector resolves to.
pub(super) struct SelectedKey {
    pub(super) name: KeyName,
    pub(super) words: String,
    pub(super) fingerprint: String,
    /// Whether an address replaces an attribute that the subject lacks.
    pub(super) is_by_address: bool,
    /// `None` if it is given by fingerprints that were not seen here lately.
    pub(super) bytes: Option<KeyBuffer>,
}

/// Bans, overrides, grants and resets; see [`Engine::operator`].
///
/// Every method takes a policy and a subject, whose key in that policy is meant: for a policy that
/// counts by `ip`, the address of the subject. If the value is not known, a
/// [fingerprint](KeySelector) of it is enough; methods that need the counters of the key then find
/// them as long as the key is in one of the [lists](super::EngineStats::most_active) of keys.
pub struct Operator<'e, S: Store> {
    pub(super) engine: &'e Engine<S>,
}

impl<S: Store> Engine<S> {
    /// The actions of an operator: bans, overrides, grants, resets.
    pub fn operator(&self) -> Operator<'_, S> {
        Operator { engine: self }
    }
}

impl<S: Store> Operator<'_, S> {
    /// Bans a key for `lasts`.
    pub fn ban<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        lasts: Duration,
        reason: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        self.insert_override(policy, key.into(), lasts, reason, |_| Ok(OverrideKind::Ban))
    }

    /// Gives a key other limits for `lasts`. They start full, or, if the key had the same override
    /// before and was not [reset](Self::reset_key) since, where that one ended. When they expire,
    /// the key's own limits apply again with what was left of them.
    pub fn override_limits<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        limits: &[PolicyLimit],
        lasts: Duration,
        reason: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        if limits.is_empty() {
            return Err(OverrideError::NoLimits);
        }
        self.insert_override(policy, key.into(), lasts, reason, |rule| {
            self.register_replacement(rule, limits)
        })
    }

    /// Validates a ban, or other limits, for a key without setting them; returns the key.
    pub fn check_override<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        limits: Option<&[PolicyLimit]>,
        lasts: Duration,
    ) -> Result<PolicyKey, OverrideError> {
        check_duration(lasts)?;
        if limits.is_some_and(<[_]>::is_empty) {
            return Err(OverrideError::NoLimits);
        }
        let key = self.key_of(policy, key)?;
        if self.engine.inner.overrides.is_full() {
            Err(OverrideError::TooMany)
        } else {
            Ok(key)
        }
    }

    /// Lifts the override or ban that was set on a key on this node; returns whether there was one.
    /// The key's limits keep their counts.
    pub fn lift<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<bool, OverrideError> {
        let rules = self.engine.inner.rules.load();
        let (rule, key) = self.select(&rules, policy, key.into())?;
        Ok(self.engine.inner.overrides.remove(
            rule.number,
            &key.name,
            self.engine.inner.store.now(),
        ))
    }

    /// Grants a key tokens, up to the capacity of its limits.
    pub async fn grant<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        tokens: u64,
    ) -> Result<(), OverrideError> {
        let rules = self.engine.inner.rules.load();
        let (rule, key) = self.select(&rules, policy, key.into())?;
        let bytes = key.bytes.ok_or(OverrideError::NotSeen(key.fingerprint))?;
        let replacement = self
            .engine
            .inner
            .overrides
            .for_name(rule, &key.name, self.engine.inner.store.now())
            .limits;
        let own = rule.sets.iter().flatten();
        for slot in replacement
            .iter()
            .flat_map(|replacement| replacement.slots())
            .chain(own)
        {
            self.engine
                .inner
                .store
                .grant(&slot.handle, &bytes, tokens)
                .await;
        }
        Ok(())
    }

    /// Lifts overrides, bans and penalties of a key, and makes its limits full again.
    pub async fn reset_key<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<(), OverrideError> {
        self.reset(policy, key.into(), true).await
    }

    /// Makes the limits of a key full again and ends bans by a penalty. Bans and overrides by an
    /// operator stay.
    pub async fn reset_limits<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<(), OverrideError> {
        self.reset(policy, key.into(), false).await
    }

    async fn reset(
        &self,
        policy: &str,
        key: KeySelector<'_>,
        lift: bool,
    ) -> Result<(), OverrideError> {
        let rules = self.engine.inner.rules.load();
        let (rule, key) = self.select(&rules, policy, key)?;
        let bytes = key.bytes.ok_or(OverrideError::NotSeen(key.fingerprint))?;
        let now = self.engine.inner.store.now();
        let replacement = self
            .engine
            .inner
            .overrides
            .for_name(rule, &key.name, now)
            .limits;
        if lift {
            self.engine
                .inner
                .overrides
                .remove(rule.number, &key.name, now);
        }
        let penalty = rule
            .penalty
            .iter()
            .flat_map(|penalty| penalty.denials.iter().chain([&penalty.ban]));
        let slots = rule.sets.iter().flatten().chain(
            replacement
                .iter()
                .flat_map(|replacement| replacement.slots()),
        );
        // Collected: held across an await, the closures above would make the future not `Send`.
        let handles: Vec<&LimitHandle> = slots.map(|slot| &slot.handle).chain(penalty).collect();
        for handle in handles {
            self.engine.inner.store.reset(handle, &bytes).await;
        }
        Ok(())
    }

    /// The value with this fingerprint, if a key with it was seen here lately under any policy, or
    /// is in the list of [overrides](Self::overrides).
    pub fn value_seen(&self, attribute: &Attribute, fingerprint: Fingerprint) -> Option<SeenValue> {
        let rules = self.engine.inner.rules.load();
        let secret = self.engine.inner.overrides.secret();
        let find = |by: &[Attribute], bytes: &[u8]| {
            key::parts(by, bytes)
                .filter(|part| part.attribute == attribute)
                .find(|part| part.fingerprint(&secret) == fingerprint)
                .map(|part| match (part.is_substitute, part.address()) {
                    (false, _) => SeenValue::Value(part.value.to_vec()),
                    (true, Some(address)) => SeenValue::Address(address),
                    (true, None) => SeenValue::Missing,
                })
        };
        let seen = self.find_in_top_lists(|number, bytes| {
            let rule = rules.policies.iter().find(|rule| rule.number == number)?;
            find(&rule.policy.key, bytes)
        });
        seen.or_else(|| {
            self.overrides()
                .iter()
                .find_map(|entry| find(entry.by(), entry.bytes()?))
        })
    }

    /// Searches the lists of top keys, by policy number and key.
    fn find_in_top_lists<T>(&self, mut find: impl FnMut(u32, &[u8]) -> Option<T>) -> Option<T> {
        let stats = &self.engine.inner.stats;
        let lists = [&stats.most_active, &stats.most_denied, &stats.shadow_denied];
        lists.into_iter().find_map(|list| list.find(&mut find))
    }

    /// The overrides and bans in force, the first to expire first. Bans by a penalty are in the
    /// store; [`Engine::explain`] shows them.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        self.engine
            .inner
            .overrides
            .list(self.engine.inner.store.now())
    }

    fn insert_override(
        &self,
        policy: &str,
        key: KeySelector<'_>,
        lasts: Duration,
        reason: Option<&str>,
        make_kind: impl FnOnce(&Rule) -> Result<OverrideKind, OverrideError>,
    ) -> Result<Arc<Override>, OverrideError> {
        check_duration(lasts)?;
        let rules = self.engine.inner.rules.load();
        let (rule, key) = self.select(&rules, policy, key)?;
        let now = self.engine.inner.store.now();
        let shown = KeyDisplay {
            words: Some(key.words.into()),
            fingerprint: key.fingerprint.into(),
        };
        let entry = Override::new(&rule.policy, shown, make_kind(rule)?, now + lasts, reason);
        self.engine.inner.overrides.insert(
            rule.number,
            key.name,
            entry.with_bytes(key.bytes.as_deref()),
            now,
        )
    }

    /// The policy of this name, and its selected key.
    pub(super) fn select<'r>(
        &self,
        rules: &'r Rules,
        policy: &str,
        selector: KeySelector<'_>,
    ) -> Result<(&'r Rule, SelectedKey), OverrideError> {
        let rule = rules
            .policies
            .iter()
            .find(|rule| rule.policy.name == policy)
            .ok_or(OverrideError::NoPolicy)?;
        let by = &rule.policy.key;
        let secret = self.engine.inner.overrides.secret();
        let path = rules.path_of(selector.subject);
        // A subject without the attribute must not select the bucket that all such requests share.
        let missing = match (rule.policy.missing, selector.subject.address()) {
            (missing @ (Missing::Address | Missing::Deny), Some(_)) => missing,
            _ => Missing::Skip,
        };
        let write = |bytes: &mut KeyBuffer, key| {
            let written = key::write(
                bytes,
                (key, missing),
                selector.subject,
                path.as_ref(),
                rules.source.ipv6_prefix,
            );
            written.map_err(|missing| OverrideError::NoKey(missing.clone()))
        };
        let selected = |bytes: &[u8]| SelectedKey {
            name: key::name(policy, by, bytes, &secret),
            words: key::display(by, bytes, &secret),
            fingerprint: key::fingerprint(by, bytes, &secret),
            is_by_address: key::parts(by, bytes).any(|part| part.is_substitute),
            bytes: Some(bytes.into()),
        };
        if !by
            .iter()
            .any(|attribute| selector.fingerprint(attribute).is_some())
        {
            let mut bytes = KeyBuffer::new();
            write(&mut bytes, by)?;
            return Ok((rule, selected(&bytes)));
        }
        let (mut fingerprints, mut words) =
            (Vec::with_capacity(by.len()), Vec::with_capacity(by.len()));
        let mut is_by_address = false;
        for attribute in by {
            if let Some(fingerprint) = selector.fingerprint(attribute) {
                fingerprints.push(fingerprint);
                words.push(format!("{attribute}={fingerprint}"));
                continue;
            }
            let mut bytes = KeyBuffer::new();
            let key = slice::from_ref(attribute);
            write(&mut bytes, key)?;
            for part in key::parts(key, &bytes) {
                is_by_address |= part.is_substitute;
                fingerprints.push(part.fingerprint(&secret));
                words.push(part.display(&secret));
            }
        }
        let name = secret.name(policy, fingerprints.iter().copied());
        let is_selected = |bytes: &[u8]| key::name(policy, by, bytes, &secret) == name;
        let seen = self.find_in_top_lists(|number, bytes| {
            (number == rule.number && is_selected(bytes)).then(|| bytes.to_vec())
        });
        let from_overrides = || {
            let key_overrides =
                self.engine
                    .inner
                    .overrides
                    .for_name(rule, &name, self.engine.inner.store.now());
            [key_overrides.ban, key_overrides.limits]
                .into_iter()
                .flatten()
                .find_map(|entry| entry.bytes().map(<[u8]>::to_vec))
        };
        let key = match seen.or_else(from_overrides) {
            Some(bytes) => SelectedKey {
                is_by_address,
                ..selected(&bytes)
            },
            None => SelectedKey {
                name,
                words: key::join_parts(words.into_iter()),
                fingerprint: key::join_attributes(by.iter().zip(fingerprints)),
                is_by_address,
                bytes: None,
            },
        };
        Ok((rule, key))
    }
}

fn check_duration(lasts: Duration) -> Result<(), OverrideError> {
    if lasts.is_zero() || lasts > MAX_OVERRIDE_DURATION {
        Err(OverrideError::Duration)
    } else {
        Ok(())
    }
}
