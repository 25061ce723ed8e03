//! Overrides: bans and other limits that an operator sets on one key, for a while. They are kept in
//! memory.

use super::key;
use super::rules::{Rule, Slot};
use crate::attribute::Attribute;
use crate::fingerprint::{FingerprintSecret, KeyName};
use crate::policy::Policy;
use crate::policy_limit::PolicyLimit;
use crate::stats::KeyBytes;
use arc_swap::{ArcSwap, Guard};
use ratekeeper::Timestamp;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of overrides in force at once.
pub(crate) const MAX_OVERRIDES: usize = 10_000;

/// Maximum duration of an override: none lasts for ever.
pub(crate) const MAX_OVERRIDE_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// A ban or other limits that an operator set on one key, until a time.
#[derive(Clone, Debug)]
pub struct Override {
    policy: Box<str>,
    /// The key attributes of the policy when it was set: with others, the same bytes are another
    /// key.
    key_attributes: Box<[Attribute]>,
    key: KeyDisplay,
    /// The bytes of the key, if known here: needed to rename the key when the secret changes.
    bytes: Option<KeyBytes>,
    kind: OverrideKind,
    until: Timestamp,
    reason: Option<Box<str>>,
    node: Option<Box<str>>,
}

/// The texts that show a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyDisplay {
    /// `None` if this node knows only the fingerprint.
    pub(crate) words: Option<Box<str>>,
    pub(crate) fingerprint: Box<str>,
}

#[derive(Clone, Debug)]
pub(crate) enum OverrideKind {
    Ban,
    Limits(Vec<Slot>),
}

impl Override {
    pub(crate) fn new(
        policy: &Policy,
        key: KeyDisplay,
        kind: OverrideKind,
        until: Timestamp,
        reason: Option<&str>,
    ) -> Self {
        let name = policy.name.as_str().into();
        let key_attributes = policy.key.as_slice().into();
        Self {
            policy: name,
            key_attributes,
            key,
            bytes: None,
            kind,
            until,
            reason: reason.map(Into::into),
            node: None,
        }
    }

    /// Adds the bytes of the key.
    pub(crate) fn with_bytes(self, bytes: Option<&[u8]>) -> Self {
        Self {
            bytes: bytes.map(KeyBytes::new),
            ..self
        }
    }

    /// This override under another fingerprint secret, with the name of its key there; `None` if
    /// the key is not known.
    fn with_secret(&self, secret: &FingerprintSecret) -> Option<(KeyName, Self)> {
        let bytes = self.bytes()?;
        let mut with_secret = self.clone();
        with_secret.key.fingerprint = key::fingerprint(&self.key_attributes, bytes, secret).into();
        with_secret.key.words = Some(key::display(&self.key_attributes, bytes, secret).into());
        Some((
            key::name(&self.policy, &self.key_attributes, bytes, secret),
            with_secret,
        ))
    }

    /// The bytes of the key, if known here.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_ref().map(KeyBytes::as_slice)
    }

    /// Sets the node that it comes from.
    pub(crate) fn with_node(self, node: Option<&str>) -> Self {
        Self {
            node: node.map(Into::into),
            ..self
        }
    }

    /// The attributes that the key is made of.
    pub(crate) fn by(&self) -> &[Attribute] {
        &self.key_attributes
    }

    /// The policy of the key.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The key in plain text, such as `user=42`; secrets are shown as fingerprints, and so is a key
    /// of which this node knows only the fingerprint.
    pub fn key(&self) -> &str {
        self.key.words.as_ref().unwrap_or(&self.key.fingerprint)
    }

    /// The key by its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`: equal values have equal ones,
    /// and they reveal nothing else.
    pub fn fingerprint(&self) -> &str {
        &self.key.fingerprint
    }

    /// The node it was set on, in a fleet.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it applies to `rule` at `now`.
    pub(crate) fn applies(&self, rule: &Rule, now: Timestamp) -> bool {
        now < self.until && *self.key_attributes == *rule.policy.key
    }

    /// The limits that replace those of the policy; `None` for a ban.
    pub fn limits(&self) -> Option<impl Iterator<Item = &PolicyLimit>> {
        match &self.kind {
            OverrideKind::Ban => None,
            OverrideKind::Limits(slots) => Some(slots.iter().map(|slot| &slot.limit)),
        }
    }

    /// When it expires.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Why, in the operator's words.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        match &self.kind {
            OverrideKind::Ban => &[],
            OverrideKind::Limits(slots) => slots,
        }
    }
}

/// Overrides by policy and key name.
#[derive(Clone, Default)]
pub(crate) struct OverrideMap {
    by_policy: HashMap<u32, HashMap<KeyName, KeyOverrides>>,
    len: usize,
}

impl OverrideMap {
    pub(crate) fn add(&mut self, policy: u32, name: KeyName, entry: Arc<Override>) {
        let entries = self
            .by_policy
            .entry(policy)
            .or_default()
            .entry(name)
            .or_default();
        let slot = if entry.limits().is_some() {
            &mut entries.limits
        } else {
            &mut entries.ban
        };
        self.len += usize::from(slot.replace(entry).is_none());
    }

    /// Removes the overrides of a key; returns whether there were any.
    fn remove(&mut self, policy: u32, name: &KeyName) -> bool {
        let removed = self
            .by_policy
            .get_mut(&policy)
            .and_then(|names| names.remove(name));
        let len = removed.map_or(0, |entries| entries.all().count());
        self.len -= len;
        len > 0
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.by_policy
            .values()
            .flat_map(HashMap::values)
            .flat_map(KeyOverrides::all)
    }

    /// A copy without expired overrides. With `secret`, keys are renamed under it, and overrides
    /// whose key bytes are unknown are dropped.
    fn in_force(&self, now: Timestamp, secret: Option<&FingerprintSecret>) -> Self {
        let mut snapshot = Self::default();
        for (policy, names) in &self.by_policy {
            for (name, entries) in names {
                for entry in entries.all().filter(|entry| now < entry.until) {
                    match secret {
                        None => snapshot.add(*policy, *name, Arc::clone(entry)),
                        Some(secret) => {
                            let with_secret = entry.with_secret(secret);
                            with_secret.into_iter().for_each(|(name, entry)| {
                                snapshot.add(*policy, name, Arc::new(entry));
                            });
                        }
                    }
                }
            }
        }
        snapshot
    }
}

#[derive(Clone)]
struct OverrideSnapshot {
    secret: FingerprintSecret,
    local: OverrideMap,
    /// The overrides of the fleet.
    shared: Arc<OverrideMap>,
}

impl OverrideSnapshot {
    fn len(&self) -> usize {
        self.local.len + self.shared.len
    }
}

/// All overrides of an engine.
pub(crate) struct Overrides {
    snapshot: ArcSwap<OverrideSnapshot>,
    /// Whether there are any overrides: while there are none, requests look no further.
    is_non_empty: AtomicBool,
    write_lock: Mutex<()>,
}

/// The overrides in force while a request is decided.
pub(crate) struct ActiveOverrides(Option<Guard<Arc<OverrideSnapshot>>>);

impl ActiveOverrides {
    /// The overrides of a key: the ban that lasts longest, and other limits.
    #[inline]
    pub(crate) fn for_key(&self, rule: &Rule, key: &[u8], now: Timestamp) -> KeyOverrides {
        match &self.0 {
            None => KeyOverrides::default(),
            Some(snapshot) => snapshot.for_key(rule, key, now),
        }
    }
}

/// The overrides of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyOverrides {
    pub(crate) ban: Option<Arc<Override>>,
    pub(crate) limits: Option<Arc<Override>>,
}

impl KeyOverrides {
    fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.ban.iter().chain(&self.limits)
    }
}

impl OverrideSnapshot {
    /// A key is named (hashed) only if its policy has overrides.
    #[inline]
    fn for_key(&self, rule: &Rule, key: &[u8], now: Timestamp) -> KeyOverrides {
        let [local, shared] =
            [&self.local, &*self.shared].map(|all| all.by_policy.get(&rule.number));
        if local.is_none() && shared.is_none() {
            return KeyOverrides::default();
        }
        self.for_name(
            rule,
            &key::name(&rule.policy.name, &rule.policy.key, key, &self.secret),
            now,
        )
    }

    fn for_name(&self, rule: &Rule, name: &KeyName, now: Timestamp) -> KeyOverrides {
        let [local, shared] =
            [&self.local, &*self.shared].map(|all| all.by_policy.get(&rule.number)?.get(name));
        let applies =
            |entry: &Option<Arc<Override>>| entry.clone().filter(|entry| entry.applies(rule, now));
        let bans = [local, shared].map(|entries| entries.and_then(|entries| applies(&entries.ban)));
        let limits =
            [local, shared].map(|entries| entries.and_then(|entries| applies(&entries.limits)));
        KeyOverrides {
            ban: bans.into_iter().flatten().max_by_key(|ban| ban.until),
            limits: limits.into_iter().flatten().next(),
        }
    }
}

impl Overrides {
    pub(crate) fn new(secret: FingerprintSecret) -> Self {
        let snapshot = OverrideSnapshot {
            secret,
            local: OverrideMap::default(),
            shared: Arc::default(),
        };
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            is_non_empty: AtomicBool::new(false),
            write_lock: Mutex::default(),
        }
    }

    pub(crate) fn in_force(&self) -> ActiveOverrides {
        ActiveOverrides(
            self.is_non_empty
                .load(Ordering::Acquire)
                .then(|| self.snapshot.load()),
        )
    }

    /// The overrides of a key by its name.
    pub(crate) fn for_name(&self, rule: &Rule, name: &KeyName, now: Timestamp) -> KeyOverrides {
        self.snapshot.load().for_name(rule, name, now)
    }

    pub(crate) fn insert(
        &self,
        policy: u32,
        name: KeyName,
        entry: Override,
        now: Timestamp,
    ) -> Result<Arc<Override>, OverrideError> {
        let entry = Arc::new(entry);
        self.update(now, |snapshot| {
            snapshot.local.add(policy, name, Arc::clone(&entry));
            if snapshot.len() > MAX_OVERRIDES {
                Err(OverrideError::TooMany)
            } else {
                Ok(())
            }
        })?;
        Ok(entry)
    }

    /// Removes the overrides of a key; returns whether there were any.
    pub(crate) fn remove(&self, policy: u32, name: &KeyName, now: Timestamp) -> bool {
        let mut removed = false;
        let _ = self.update(now, |snapshot| {
            removed = snapshot.local.remove(policy, name);
            Ok(())
        });
        removed
    }

    /// Replaces the overrides of the fleet, and the secret that their names are made with.
    pub(crate) fn set_shared(
        &self,
        secret: FingerprintSecret,
        shared: OverrideMap,
        now: Timestamp,
    ) {
        let _ = self.update(now, |snapshot| {
            if snapshot.secret != secret {
                snapshot.local = snapshot.local.in_force(now, Some(&secret));
                snapshot.secret = secret;
            }
            snapshot.shared = Arc::new(shared);
            Ok(())
        });
    }

    /// The fingerprint secret.
    pub(crate) fn secret(&self) -> FingerprintSecret {
        self.snapshot.load().secret
    }

    /// Whether the maximum number is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.snapshot.load().len() >= MAX_OVERRIDES
    }

    /// The overrides in force, the first to expire first.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<Arc<Override>> {
        let snapshot = self.snapshot.load();
        let all = snapshot.local.all().chain(snapshot.shared.all());
        let mut all: Vec<_> = all.filter(|entry| now < entry.until).cloned().collect();
        all.sort_by(|a, b| (a.until, &a.policy, a.key()).cmp(&(b.until, &b.policy, b.key())));
        all
    }

    /// Copies the overrides without expired ones, changes the copy, and publishes it.
    fn update(
        &self,
        now: Timestamp,
        update: impl FnOnce(&mut OverrideSnapshot) -> Result<(), OverrideError>,
    ) -> Result<(), OverrideError> {
        let _writing = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = OverrideSnapshot::clone(&self.snapshot.load());
        snapshot.local = snapshot.local.in_force(now, None);
        update(&mut snapshot)?;
        let is_non_empty = snapshot.len() > 0;
        self.snapshot.store(Arc::new(snapshot));
        self.is_non_empty.store(is_non_empty, Ordering::Release);
        Ok(())
    }
}

/// Why an override was not set, or a key not selected.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OverrideError {
    /// No policy has that name.
    NoPolicy,
    /// The subject lacks an attribute of the key.
    NoKey(Attribute),
    /// No key with this fingerprint was seen here lately, so its counters cannot be found.
    NotSeen(String),
    /// The maximum number of overrides is in force.
    TooMany,
    /// The duration is zero or too long.
    Duration,
    /// The list of replacement limits is empty.
    NoLimits,
    /// The store cannot take more limits.
    TooManyLimits,
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy has that name"),
            Self::NoKey(name) => write!(f, "the policy counts by {name}; give its value"),
            Self::NotSeen(key) => write!(
                f,
                "this node has not seen {key} lately, so its counters cannot be found; give the value itself, or ask a node that lists the key"
            ),
            Self::TooMany => write!(
                f,
                "the maximum of {MAX_OVERRIDES} overrides and bans is reached; lift some, or use the deny list"
            ),
            Self::Duration => {
                f.write_str("the duration must be longer than zero and at most a year")
            }
            Self::NoLimits => f.write_str("there are no limits in the override; give at least one"),
            Self::TooManyLimits => {
                f.write_str("the store cannot take more limits or changes of limits; restart it")
            }
        }
    }
}

impl std::error::Error for OverrideError {}
