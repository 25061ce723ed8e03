//! What an operator does to one key: ban it, give it other limits, give it tokens, free it.

use super::key::{self, Keys};
use super::overrides::{LONGEST, Override, OverrideError, Shown, What};
use super::rules::{Rules, Ruling};
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

/// A key of a policy, as an operator names it: by a subject, or by fingerprints of what the
/// operator was shown.
#[derive(Clone, Copy, Debug)]
pub struct KeySelector<'a> {
    subject: &'a Subject<'a>,
    fingerprints: &'a [(Attribute, Fingerprint)],
}

impl<'a> KeySelector<'a> {
    /// A key by a subject; the attributes with a fingerprint need none of it.
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

/// The key that a selector means.
pub(super) struct SelectedKey {
    pub(super) name: KeyName,
    pub(super) words: String,
    pub(super) fingerprint: String,
    /// Whether an address stands for an attribute that the subject lacks.
    pub(super) is_by_address: bool,
    /// None where it is known by fingerprints that were not seen here lately.
    pub(super) bytes: Option<Keys>,
}

/// # One key
///
/// A key is that of a policy, taken from a subject: for a policy that counts by `ip`, the subject's
/// address. Where the value is not known a [fingerprint](KeySelector) of it is enough; what needs
/// its counters then finds them as long as the key is in one of the [lists](Engine::heaviest) of
/// keys.
impl<S: Store> Engine<S> {
    /// Turns a key away for so long.
    pub fn ban<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        lasts: Duration,
        reason: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        self.put(policy, key.into(), lasts, reason, |_| Ok(What::Ban))
    }

    /// Gives a key other limits for so long. They start full, unless the key had the same ones
    /// before and was not [freed](Self::free) since; what was left of its own is there again
    /// afterwards.
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
        self.put(policy, key.into(), lasts, reason, |ruling| {
            self.stand_in(ruling, limits)
        })
    }

    /// Whether a ban, or other limits, could be said of a key for so long, and of which; nothing
    /// is.
    pub fn check_override<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        limits: Option<&[PolicyLimit]>,
        lasts: Duration,
    ) -> Result<PolicyKey, OverrideError> {
        check(lasts)?;
        if limits.is_some_and(<[_]>::is_empty) {
            return Err(OverrideError::NoLimits);
        }
        let key = self.key_of(policy, key)?;
        if self.inner.overrides.is_full() {
            Err(OverrideError::TooMany)
        } else {
            Ok(key)
        }
    }

    /// Ends what was said of a key here: whether there was something. Its limits stay as they are.
    pub fn lift<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
    ) -> Result<bool, OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = self.find(&rules, policy, key.into())?;
        Ok(self
            .inner
            .overrides
            .remove(ruling.number, &key.name, self.inner.store.now()))
    }

    /// Gives a key tokens, as far as there is room for them.
    pub async fn grant<'a>(
        &self,
        policy: &str,
        key: impl Into<KeySelector<'a>>,
        tokens: u64,
    ) -> Result<(), OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = self.find(&rules, policy, key.into())?;
        let bytes = key.bytes.ok_or(OverrideError::NotSeen(key.fingerprint))?;
        let instead = self
            .inner
            .overrides
            .said_of(ruling, &key.name, self.inner.store.now())
            .limits;
        let own = ruling.sets.iter().flatten();
        for slot in instead
            .iter()
            .flat_map(|instead| instead.slots())
            .chain(own)
        {
            self.inner.store.grant(&slot.handle, &bytes, tokens).await;
        }
        Ok(())
    }

    /// Lifts whatever was said of a key, bans and penalties too, and makes its limits full again.
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
        let rules = self.inner.rules.load();
        let (ruling, key) = self.find(&rules, policy, key)?;
        let bytes = key.bytes.ok_or(OverrideError::NotSeen(key.fingerprint))?;
        let now = self.inner.store.now();
        let instead = self.inner.overrides.said_of(ruling, &key.name, now).limits;
        if lift {
            self.inner.overrides.remove(ruling.number, &key.name, now);
        }
        let penalty = ruling
            .penalty
            .iter()
            .flat_map(|penalty| penalty.denials.iter().chain([&penalty.ban]));
        let slots = ruling
            .sets
            .iter()
            .flatten()
            .chain(instead.iter().flat_map(|instead| instead.slots()));
        // In a list: held across an await, the closures above would make a future that cannot move
        // to another thread.
        let handles: Vec<&LimitHandle> = slots.map(|slot| &slot.handle).chain(penalty).collect();
        for handle in handles {
            self.inner.store.reset(handle, &bytes).await;
        }
        Ok(())
    }

    /// The value with this fingerprint, if a key with it was seen here lately under any policy, or
    /// is in the list of [overrides](Self::overrides).
    pub fn value_seen(&self, attribute: &Attribute, fingerprint: Fingerprint) -> Option<SeenValue> {
        let (rules, secret) = (self.inner.rules.load(), self.inner.overrides.secret());
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
        let seen = self.find_seen(|number, bytes| {
            let ruling = rules
                .policies
                .iter()
                .find(|ruling| ruling.number == number)?;
            find(&ruling.policy.key, bytes)
        });
        seen.or_else(|| {
            self.overrides()
                .iter()
                .find_map(|entry| find(entry.by(), entry.bytes()?))
        })
    }

    /// The first thing that `find` makes of the keys in the lists of the heaviest, with the numbers
    /// of their policies.
    fn find_seen<T>(&self, mut find: impl FnMut(u32, &[u8]) -> Option<T>) -> Option<T> {
        let figures = &self.inner.figures;
        let lists = [
            &figures.heaviest,
            &figures.most_denied,
            &figures.shadow_denied,
        ];
        lists.into_iter().find_map(|list| list.find(&mut find))
    }

    /// The overrides and bans in force, the first to end first. Bans by a penalty are in the store;
    /// [`explain`](Self::explain) shows them.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        self.inner.overrides.list(self.inner.store.now())
    }

    fn put(
        &self,
        policy: &str,
        key: KeySelector<'_>,
        lasts: Duration,
        reason: Option<&str>,
        what: impl FnOnce(&Ruling) -> Result<What, OverrideError>,
    ) -> Result<Arc<Override>, OverrideError> {
        check(lasts)?;
        let rules = self.inner.rules.load();
        let (ruling, key) = self.find(&rules, policy, key)?;
        let now = self.inner.store.now();
        let shown = Shown {
            words: Some(key.words.into()),
            fingerprint: key.fingerprint.into(),
        };
        let entry = Override::new(&ruling.policy, shown, what(ruling)?, now + lasts, reason);
        self.inner.overrides.put(
            ruling.number,
            key.name,
            entry.of_bytes(key.bytes.as_deref()),
            now,
        )
    }

    /// The policy of that name, and the key of it that is meant.
    pub(super) fn find<'r>(
        &self,
        rules: &'r Rules,
        policy: &str,
        selector: KeySelector<'_>,
    ) -> Result<(&'r Ruling, SelectedKey), OverrideError> {
        let ruling = rules
            .policies
            .iter()
            .find(|ruling| ruling.policy.name == policy)
            .ok_or(OverrideError::NoPolicy)?;
        let (by, secret) = (&ruling.policy.key, self.inner.overrides.secret());
        let path = rules.path_of(selector.subject);
        // A bucket that several callers share is not meant by who leaves the attribute out.
        let missing = match (ruling.policy.missing, selector.subject.address()) {
            (missing @ (Missing::Address | Missing::Deny), Some(_)) => missing,
            _ => Missing::Skip,
        };
        let write = |bytes: &mut Keys, key| {
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
            words: key::shown(by, bytes, &secret),
            fingerprint: key::fingerprint(by, bytes, &secret),
            is_by_address: key::parts(by, bytes).any(|part| part.is_substitute),
            bytes: Some(bytes.into()),
        };
        if !by
            .iter()
            .any(|attribute| selector.fingerprint(attribute).is_some())
        {
            let mut bytes = Keys::new();
            write(&mut bytes, by)?;
            return Ok((ruling, selected(&bytes)));
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
            let (mut bytes, key) = (Keys::new(), slice::from_ref(attribute));
            write(&mut bytes, key)?;
            for part in key::parts(key, &bytes) {
                is_by_address |= part.is_substitute;
                fingerprints.push(part.fingerprint(&secret));
                words.push(part.shown(&secret));
            }
        }
        let name = secret.name(policy, fingerprints.iter().copied());
        let is_it = |bytes: &[u8]| key::name(policy, by, bytes, &secret) == name;
        let seen = self.find_seen(|number, bytes| {
            (number == ruling.number && is_it(bytes)).then(|| bytes.to_vec())
        });
        let said = || {
            let said = self
                .inner
                .overrides
                .said_of(ruling, &name, self.inner.store.now());
            [said.ban, said.limits]
                .into_iter()
                .flatten()
                .find_map(|entry| entry.bytes().map(<[u8]>::to_vec))
        };
        let key = match seen.or_else(said) {
            Some(bytes) => SelectedKey {
                is_by_address,
                ..selected(&bytes)
            },
            None => SelectedKey {
                name,
                words: key::spaced(words.into_iter()),
                fingerprint: key::listed(by.iter().zip(fingerprints)),
                is_by_address,
                bytes: None,
            },
        };
        Ok((ruling, key))
    }
}

fn check(lasts: Duration) -> Result<(), OverrideError> {
    if lasts.is_zero() || lasts > LONGEST {
        Err(OverrideError::Duration)
    } else {
        Ok(())
    }
}
