//! What an operator says of one key, for a while: other limits, or none at all. Kept in memory, and
//! visible.

use super::key;
use super::rules::{Ruling, Slot};
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

/// How many may be in force at once.
pub(crate) const MOST: usize = 10_000;

/// How long one may last: nothing blocks for ever.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Something an operator said of one key, and until when.
#[derive(Clone, Debug)]
pub struct Override {
    policy: Box<str>,
    /// What the policy counted by when it was said: the same bytes are another key where it counts
    /// by something else.
    by: Box<[Attribute]>,
    key: Shown,
    /// All of the key, where it is known here: with another secret it has another name.
    bytes: Option<KeyBytes>,
    what: What,
    until: Timestamp,
    reason: Option<Box<str>>,
    node: Option<Box<str>>,
}

/// How a key is shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// None where this node knows no more than its fingerprint.
    pub(crate) words: Option<Box<str>>,
    pub(crate) fingerprint: Box<str>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Ban,
    Limits(Vec<Slot>),
}

impl Override {
    pub(crate) fn new(
        policy: &Policy,
        key: Shown,
        what: What,
        until: Timestamp,
        reason: Option<&str>,
    ) -> Self {
        let (name, by) = (policy.name.as_str().into(), policy.key.as_slice().into());
        Self {
            policy: name,
            by,
            key,
            bytes: None,
            what,
            until,
            reason: reason.map(Into::into),
            node: None,
        }
    }

    /// The same of a key that is known here.
    pub(crate) fn of_bytes(self, bytes: Option<&[u8]>) -> Self {
        Self {
            bytes: bytes.map(KeyBytes::new),
            ..self
        }
    }

    /// The same where fingerprints are made with another secret, with its name there; none where
    /// the key is not known.
    fn renamed(&self, secret: &FingerprintSecret) -> Option<(KeyName, Self)> {
        let bytes = self.bytes()?;
        let mut renamed = self.clone();
        renamed.key.fingerprint = key::fingerprint(&self.by, bytes, secret).into();
        renamed.key.words = Some(key::shown(&self.by, bytes, secret).into());
        Some((key::name(&self.policy, &self.by, bytes, secret), renamed))
    }

    /// All of the key, where it is known here.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_ref().map(KeyBytes::as_slice)
    }

    /// The same as another node said it.
    pub(crate) fn said_by(self, node: Option<&str>) -> Self {
        Self {
            node: node.map(Into::into),
            ..self
        }
    }

    /// The attributes that the key is made of.
    pub(crate) fn by(&self) -> &[Attribute] {
        &self.by
    }

    /// The policy it is under.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The key in words, such as `user=42`; what opens doors is shown by its fingerprint, and so is
    /// a key of which this node knows nothing else.
    pub fn key(&self) -> &str {
        self.key.words.as_ref().unwrap_or(&self.key.fingerprint)
    }

    /// The key by its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`: the same value has the same,
    /// and they say nothing else.
    pub fn fingerprint(&self) -> &str {
        &self.key.fingerprint
    }

    /// The node that said it, where nodes tell each other.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it is about this key of a ruling, at that time.
    pub(crate) fn holds(&self, ruling: &Ruling, now: Timestamp) -> bool {
        now < self.until && *self.by == *ruling.policy.key
    }

    /// The limits that stand in for those of the policy; none if it is a ban.
    pub fn limits(&self) -> Option<impl Iterator<Item = &PolicyLimit>> {
        match &self.what {
            What::Ban => None,
            What::Limits(slots) => Some(slots.iter().map(|slot| &slot.limit)),
        }
    }

    /// Until when.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Why, in the operator's words.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        match &self.what {
            What::Ban => &[],
            What::Limits(slots) => slots,
        }
    }
}

/// What is said of keys, by policy and name.
#[derive(Clone, Default)]
pub(crate) struct ByName {
    by_policy: HashMap<u32, HashMap<KeyName, Said>>,
    len: usize,
}

impl ByName {
    pub(crate) fn add(&mut self, policy: u32, name: KeyName, entry: Arc<Override>) {
        let said = self
            .by_policy
            .entry(policy)
            .or_default()
            .entry(name)
            .or_default();
        let place = if entry.limits().is_some() {
            &mut said.limits
        } else {
            &mut said.ban
        };
        self.len += usize::from(place.replace(entry).is_none());
    }

    /// Whether there was something.
    fn remove(&mut self, policy: u32, name: &KeyName) -> bool {
        let removed = self
            .by_policy
            .get_mut(&policy)
            .and_then(|names| names.remove(name));
        let len = removed.map_or(0, |said| said.all().count());
        self.len -= len;
        len > 0
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.by_policy
            .values()
            .flat_map(HashMap::values)
            .flat_map(Said::all)
    }

    /// The same without what has ended; where fingerprints are made with another secret, by the
    /// names that keys have there.
    fn in_force(&self, now: Timestamp, secret: Option<&FingerprintSecret>) -> Self {
        let mut kept = Self::default();
        for (policy, names) in &self.by_policy {
            for (name, said) in names {
                for entry in said.all().filter(|entry| now < entry.until) {
                    match secret {
                        None => kept.add(*policy, *name, Arc::clone(entry)),
                        Some(secret) => {
                            let renamed = entry.renamed(secret);
                            renamed
                                .into_iter()
                                .for_each(|(name, entry)| kept.add(*policy, name, Arc::new(entry)));
                        }
                    }
                }
            }
        }
        kept
    }
}

#[derive(Clone)]
struct Kept {
    secret: FingerprintSecret,
    here: ByName,
    /// What all nodes say.
    shared: Arc<ByName>,
}

impl Kept {
    fn len(&self) -> usize {
        self.here.len + self.shared.len
    }
}

/// All that are kept.
pub(crate) struct Overrides {
    kept: ArcSwap<Kept>,
    /// Whether there are any: nobody looks further while there are not.
    any: AtomicBool,
    writing: Mutex<()>,
}

/// Those in force while a request is judged.
pub(crate) struct InForce(Option<Guard<Arc<Kept>>>);

impl InForce {
    /// What is said of a key: a ban, the one that lasts longest, and other limits.
    #[inline]
    pub(crate) fn said(&self, ruling: &Ruling, key: &[u8], now: Timestamp) -> Said {
        match &self.0 {
            None => Said::default(),
            Some(kept) => kept.said(ruling, key, now),
        }
    }
}

/// What is said of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) ban: Option<Arc<Override>>,
    pub(crate) limits: Option<Arc<Override>>,
}

impl Said {
    fn all(&self) -> impl Iterator<Item = &Arc<Override>> {
        self.ban.iter().chain(&self.limits)
    }
}

impl Kept {
    /// Keys are named only where something is said of a policy.
    #[inline]
    fn said(&self, ruling: &Ruling, key: &[u8], now: Timestamp) -> Said {
        let [here, shared] =
            [&self.here, &*self.shared].map(|all| all.by_policy.get(&ruling.number));
        if here.is_none() && shared.is_none() {
            return Said::default();
        }
        self.said_of(
            ruling,
            &key::name(&ruling.policy.name, &ruling.policy.key, key, &self.secret),
            now,
        )
    }

    fn said_of(&self, ruling: &Ruling, name: &KeyName, now: Timestamp) -> Said {
        let [here, shared] =
            [&self.here, &*self.shared].map(|all| all.by_policy.get(&ruling.number)?.get(name));
        let holds =
            |entry: &Option<Arc<Override>>| entry.clone().filter(|entry| entry.holds(ruling, now));
        let bans = [here, shared].map(|said| said.and_then(|said| holds(&said.ban)));
        let limits = [here, shared].map(|said| said.and_then(|said| holds(&said.limits)));
        Said {
            ban: bans.into_iter().flatten().max_by_key(|ban| ban.until),
            limits: limits.into_iter().flatten().next(),
        }
    }
}

impl Overrides {
    pub(crate) fn new(secret: FingerprintSecret) -> Self {
        let kept = Kept {
            secret,
            here: ByName::default(),
            shared: Arc::default(),
        };
        Self {
            kept: ArcSwap::from_pointee(kept),
            any: AtomicBool::new(false),
            writing: Mutex::default(),
        }
    }

    pub(crate) fn in_force(&self) -> InForce {
        InForce(self.any.load(Ordering::Acquire).then(|| self.kept.load()))
    }

    /// What is said of a key that is known by its name.
    pub(crate) fn said_of(&self, ruling: &Ruling, name: &KeyName, now: Timestamp) -> Said {
        self.kept.load().said_of(ruling, name, now)
    }

    pub(crate) fn put(
        &self,
        policy: u32,
        name: KeyName,
        entry: Override,
        now: Timestamp,
    ) -> Result<Arc<Override>, OverrideError> {
        let entry = Arc::new(entry);
        self.change(now, |kept| {
            kept.here.add(policy, name, Arc::clone(&entry));
            if kept.len() > MOST {
                Err(OverrideError::TooMany)
            } else {
                Ok(())
            }
        })?;
        Ok(entry)
    }

    /// Whether there was one.
    pub(crate) fn remove(&self, policy: u32, name: &KeyName, now: Timestamp) -> bool {
        let mut removed = false;
        let _ = self.change(now, |kept| {
            removed = kept.here.remove(policy, name);
            Ok(())
        });
        removed
    }

    /// What all nodes say, in place of what they said before; the secret is the one that its names
    /// are made with.
    pub(crate) fn share(&self, secret: FingerprintSecret, shared: ByName, now: Timestamp) {
        let _ = self.change(now, |kept| {
            if kept.secret != secret {
                kept.here = kept.here.in_force(now, Some(&secret));
                kept.secret = secret;
            }
            kept.shared = Arc::new(shared);
            Ok(())
        });
    }

    /// What fingerprints are made with.
    pub(crate) fn secret(&self) -> FingerprintSecret {
        self.kept.load().secret
    }

    /// Whether there is room for one more.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.load().len() >= MOST
    }

    /// Those in force, the first to end first.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<Arc<Override>> {
        let kept = self.kept.load();
        let all = kept.here.all().chain(kept.shared.all());
        let mut all: Vec<_> = all.filter(|entry| now < entry.until).cloned().collect();
        all.sort_by(|a, b| (a.until, &a.policy, a.key()).cmp(&(b.until, &b.policy, b.key())));
        all
    }

    /// A copy, without what has ended, takes the place of what was.
    fn change(
        &self,
        now: Timestamp,
        change: impl FnOnce(&mut Kept) -> Result<(), OverrideError>,
    ) -> Result<(), OverrideError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Kept::clone(&self.kept.load());
        kept.here = kept.here.in_force(now, None);
        change(&mut kept)?;
        let any = kept.len() > 0;
        self.kept.store(Arc::new(kept));
        self.any.store(any, Ordering::Release);
        Ok(())
    }
}

/// Why nothing was said of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OverrideError {
    /// No policy has that name.
    NoPolicy,
    /// The subject lacks what the policy counts by.
    NoKey(Attribute),
    /// No key with this fingerprint was seen here lately, so its counters cannot be found.
    NotSeen(String),
    /// As many as are kept are in force.
    TooMany,
    /// Nothing lasts as long, or nothing is as short.
    Duration,
    /// Limits are to stand in, and there are none.
    NoLimits,
    /// The store keeps no more limits.
    TooManyLimits,
}

impl fmt::Display for OverrideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("no policy has that name"),
            Self::NoKey(name) => write!(f, "the policy counts by {name}; say which"),
            Self::NotSeen(key) => write!(
                f,
                "{key} is none of the keys that this node has seen lately, so its counters cannot be found; give the key itself, or \
                 ask a node that lists it"
            ),
            Self::TooMany => write!(
                f,
                "{MOST} overrides and bans are in force, as many as are kept; lift some, or use the deny list"
            ),
            Self::Duration => {
                f.write_str("it must last longer than nothing and no longer than a year")
            }
            Self::NoLimits => f.write_str("say which limits stand in for those of the policy"),
            Self::TooManyLimits => f.write_str(
                "the store has had as many limits and changes as it can keep; restart it",
            ),
        }
    }
}

impl std::error::Error for OverrideError {}
