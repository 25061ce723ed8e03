//! What an operator says of one key, for a while: other limits, or none at all. Kept in memory, and visible.

use super::rules::{Ruling, Slot};
use super::shared::{NameKey, Shared};
use crate::attribute::Attribute;
use crate::policy::Policy;
use crate::policy_limit::PolicyLimit;
use arc_swap::{ArcSwap, Guard};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::Instant;

/// How many may be in force at once.
pub(crate) const MOST: usize = 10_000;

/// How long one may last: nothing blocks for ever.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Something an operator said of one key, and until when.
#[derive(Debug)]
pub struct Override {
    policy: Box<str>,
    /// What the policy counted by when it was said: the same bytes are another key where it counts by something else.
    by: Box<[Attribute]>,
    key: Shown,
    what: What,
    until: Instant,
    reason: Option<Box<str>>,
    node: Option<Box<str>>,
}

/// How a key is shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// None where this node knows no more than the name that another gave it.
    pub(crate) words: Option<Box<str>>,
    pub(crate) fingerprint: Box<str>,
}

#[derive(Debug)]
pub(crate) enum What {
    Ban,
    Limits(Vec<Slot>),
}

impl Override {
    pub(crate) fn new(policy: &Policy, key: Shown, what: What, until: Instant, reason: Option<&str>) -> Self {
        let (name, by) = (policy.name.as_str().into(), policy.key.as_slice().into());
        Self { policy: name, by, key, what, until, reason: reason.map(Into::into), node: None }
    }

    /// The same as another node said it.
    pub(crate) fn said_by(self, node: Option<&str>) -> Self {
        Self { node: node.map(Into::into), ..self }
    }

    /// The policy it is under.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The key in words, such as `user=42`; what opens doors is shown by its fingerprint, and so is a key of which only
    /// another node knows the words.
    pub fn key(&self) -> &str {
        self.key.words.as_ref().unwrap_or(&self.key.fingerprint)
    }

    /// Its fingerprint: the same key is the same letters, and they say nothing else.
    pub fn fingerprint(&self) -> &str {
        &self.key.fingerprint
    }

    /// The node that said it, where nodes tell each other.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it is about this key of a ruling, at that time.
    pub(crate) fn holds(&self, ruling: &Ruling, now: Instant) -> bool {
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
    pub fn until(&self) -> Instant {
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

/// By policy and key.
type ByKey = HashMap<u32, HashMap<Box<[u8]>, Arc<Override>>>;

#[derive(Clone, Default)]
struct Kept {
    bans: ByKey,
    limits: ByKey,
    /// What all nodes say.
    shared: Arc<Shared>,
}

impl Kept {
    fn len(&self) -> usize {
        let many = |map: &ByKey| map.values().map(HashMap::len).sum::<usize>();
        many(&self.bans) + many(&self.limits) + self.shared.len()
    }
}

/// All that are kept.
#[derive(Default)]
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
    pub(crate) fn said(&self, ruling: &Ruling, key: &[u8], now: Instant) -> Said {
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

impl Kept {
    fn said(&self, ruling: &Ruling, key: &[u8], now: Instant) -> Said {
        let find = |map: &ByKey| {
            let found = map.get(&ruling.number)?.get(key)?;
            found.holds(ruling, now).then(|| Arc::clone(found))
        };
        let (ban, limits) = (find(&self.bans), find(&self.limits));
        let shared = self.shared.said(ruling, key, now);
        let ban = ban.into_iter().chain(shared.ban).max_by_key(|ban| ban.until);
        Said { ban, limits: limits.or(shared.limits) }
    }
}

impl Overrides {
    pub(crate) fn in_force(&self) -> InForce {
        InForce(self.any.load(Ordering::Acquire).then(|| self.kept.load()))
    }

    pub(crate) fn put(
        &self,
        policy: u32,
        key: &[u8],
        entry: Override,
        now: Instant,
    ) -> Result<Arc<Override>, OverrideError> {
        let entry = Arc::new(entry);
        self.change(now, |kept| {
            let map = match entry.what {
                What::Ban => &mut kept.bans,
                What::Limits(_) => &mut kept.limits,
            };
            map.entry(policy).or_default().insert(key.into(), Arc::clone(&entry));
            if kept.len() > MOST { Err(OverrideError::TooMany) } else { Ok(()) }
        })?;
        Ok(entry)
    }

    /// Whether there was one.
    pub(crate) fn remove(&self, policy: u32, key: &[u8], now: Instant) -> bool {
        let mut removed = false;
        let _ = self.change(now, |kept| {
            for map in [&mut kept.bans, &mut kept.limits] {
                removed |= map.get_mut(&policy).is_some_and(|keys| keys.remove(key).is_some());
            }
            Ok(())
        });
        removed
    }

    /// What all nodes say, in place of what they said before.
    pub(crate) fn share(&self, shared: Shared, now: Instant) {
        let _ = self.change(now, |kept| {
            kept.shared = Arc::new(shared);
            Ok(())
        });
    }

    /// How nodes name keys, where they do.
    pub(crate) fn name_key(&self) -> Option<NameKey> {
        self.kept.load().shared.name_key.clone()
    }

    /// Whether there is room for one more.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.load().len() >= MOST
    }

    /// Those in force, the first to end first.
    pub(crate) fn list(&self, now: Instant) -> Vec<Arc<Override>> {
        let kept = self.kept.load();
        let all = [&kept.bans, &kept.limits].into_iter().flat_map(|map| map.values().flat_map(HashMap::values));
        let all = all.chain(kept.shared.all());
        let mut all: Vec<_> = all.filter(|entry| now < entry.until).cloned().collect();
        all.sort_by(|a, b| (a.until, &a.policy, a.key()).cmp(&(b.until, &b.policy, b.key())));
        all
    }

    /// A copy, without what has ended, takes the place of what was.
    fn change(
        &self,
        now: Instant,
        change: impl FnOnce(&mut Kept) -> Result<(), OverrideError>,
    ) -> Result<(), OverrideError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Kept::clone(&self.kept.load());
        for map in [&mut kept.bans, &mut kept.limits] {
            for keys in map.values_mut() {
                keys.retain(|_, entry| now < entry.until);
            }
            map.retain(|_, keys| !keys.is_empty());
        }
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
            Self::TooMany => write!(
                f,
                "{MOST} overrides and bans are in force, as many as are kept; lift some, or use the deny list"
            ),
            Self::Duration => f.write_str("it must last longer than nothing and no longer than a year"),
            Self::NoLimits => f.write_str("say which limits stand in for those of the policy"),
            Self::TooManyLimits => {
                f.write_str("the store has had as many limits and changes as it can keep; restart it")
            }
        }
    }
}

impl std::error::Error for OverrideError {}
