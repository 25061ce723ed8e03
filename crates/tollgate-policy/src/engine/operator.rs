//! What an operator does to one key: ban it, give it other limits, give it tokens, free it.

use super::key::{self, Keys};
use super::overrides::{LONGEST, Override, OverrideError, Shown, What};
use super::rules::{Rules, Ruling};
use super::{Engine, PolicyKey, Subject};
use crate::policy_limit::PolicyLimit;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{LimitHandle, Store};

/// # One key
///
/// A key is that of a policy, taken from a subject: for a policy that counts by `ip`, the subject's address.
impl<S: Store> Engine<S> {
    /// Turns a key away for so long.
    pub fn ban(
        &self,
        policy: &str,
        subject: &Subject<'_>,
        lasts: Duration,
        reason: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        self.put(policy, subject, lasts, reason, |_| Ok(What::Ban))
    }

    /// Gives a key other limits for so long. They start full, unless the key had the same ones before and was not
    /// [freed](Self::free) since; what was left of its own is there again afterwards.
    pub fn override_limits(
        &self,
        policy: &str,
        subject: &Subject<'_>,
        limits: &[PolicyLimit],
        lasts: Duration,
        reason: Option<&str>,
    ) -> Result<Arc<Override>, OverrideError> {
        if limits.is_empty() {
            return Err(OverrideError::NoLimits);
        }
        self.put(policy, subject, lasts, reason, |ruling| self.stand_in(ruling, limits))
    }

    /// Whether a ban, or other limits, could be said of a key for so long, and of which; nothing is.
    pub fn check_override(
        &self,
        policy: &str,
        subject: &Subject<'_>,
        limits: Option<&[PolicyLimit]>,
        lasts: Duration,
    ) -> Result<PolicyKey, OverrideError> {
        check(lasts)?;
        if limits.is_some_and(<[_]>::is_empty) {
            return Err(OverrideError::NoLimits);
        }
        let key = self.key_of(policy, subject)?;
        if self.inner.overrides.is_full() { Err(OverrideError::TooMany) } else { Ok(key) }
    }

    /// Ends what was said of a key here: whether there was something. Its limits stay as they are.
    pub fn lift(&self, policy: &str, subject: &Subject<'_>) -> Result<bool, OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = find(&rules, policy, subject)?;
        Ok(self.inner.overrides.remove(ruling.number, &key, self.inner.store.now()))
    }

    /// Gives a key tokens, as far as there is room for them.
    pub async fn grant(&self, policy: &str, subject: &Subject<'_>, tokens: u64) -> Result<(), OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = find(&rules, policy, subject)?;
        let instead = self.inner.overrides.in_force().said(ruling, &key, self.inner.store.now()).limits;
        let own = ruling.sets.iter().flatten();
        for slot in instead.iter().flat_map(|instead| instead.slots()).chain(own) {
            self.inner.store.grant(&slot.handle, &key, tokens).await;
        }
        Ok(())
    }

    /// Lifts whatever was said of a key, bans and penalties too, and makes its limits full again.
    pub async fn free(&self, policy: &str, subject: &Subject<'_>) -> Result<(), OverrideError> {
        self.reset(policy, subject, true).await
    }

    /// Makes the limits of a key full again and ends bans by a penalty. Bans and overrides by an operator stay.
    pub async fn reset_limits(&self, policy: &str, subject: &Subject<'_>) -> Result<(), OverrideError> {
        self.reset(policy, subject, false).await
    }

    async fn reset(&self, policy: &str, subject: &Subject<'_>, lift: bool) -> Result<(), OverrideError> {
        let rules = self.inner.rules.load();
        let (ruling, key) = find(&rules, policy, subject)?;
        let now = self.inner.store.now();
        let instead = self.inner.overrides.in_force().said(ruling, &key, now).limits;
        if lift {
            self.inner.overrides.remove(ruling.number, &key, now);
        }
        let penalty = ruling.penalty.iter().flat_map(|penalty| penalty.denials.iter().chain([&penalty.ban]));
        let slots = ruling.sets.iter().flatten().chain(instead.iter().flat_map(|instead| instead.slots()));
        // In a list: held across an await, the closures above would make a future that cannot move to another thread.
        let handles: Vec<&LimitHandle> = slots.map(|slot| &slot.handle).chain(penalty).collect();
        for handle in handles {
            self.inner.store.reset(handle, &key).await;
        }
        Ok(())
    }

    /// The overrides and bans in force, the first to end first. Bans by a penalty are in the store; [`explain`](Self::explain) shows them.
    pub fn overrides(&self) -> Vec<Arc<Override>> {
        self.inner.overrides.list(self.inner.store.now())
    }

    fn put(
        &self,
        policy: &str,
        subject: &Subject<'_>,
        lasts: Duration,
        reason: Option<&str>,
        what: impl FnOnce(&Ruling) -> Result<What, OverrideError>,
    ) -> Result<Arc<Override>, OverrideError> {
        check(lasts)?;
        let rules = self.inner.rules.load();
        let (ruling, key) = find(&rules, policy, subject)?;
        let now = self.inner.store.now();
        let shown =
            Shown { words: Some(self.shown(ruling, &key).into()), fingerprint: self.fingerprint(ruling, &key).into() };
        let entry = Override::new(&ruling.policy, shown, what(ruling)?, now + lasts, reason);
        self.inner.overrides.put(ruling.number, &key, entry, now)
    }
}

fn check(lasts: Duration) -> Result<(), OverrideError> {
    if lasts.is_zero() || lasts > LONGEST { Err(OverrideError::Duration) } else { Ok(()) }
}

pub(super) fn find<'a>(
    rules: &'a Rules,
    policy: &str,
    subject: &Subject<'_>,
) -> Result<(&'a Ruling, Keys), OverrideError> {
    let ruling = rules.policies.iter().find(|ruling| ruling.policy.name == policy).ok_or(OverrideError::NoPolicy)?;
    let (mut key, path) = (Keys::new(), rules.path_of(subject));
    let written = key::write(&mut key, &ruling.policy.key, subject, path.as_ref(), rules.source.ipv6_prefix);
    written.map_err(|missing| OverrideError::NoKey(missing.clone()))?;
    Ok((ruling, key))
}
