//! Bans and overrides of all nodes that share Redis: published on a notice board there, followed by
//! every node. Decisions read memory only.

use crate::store::{AnyStore, shared_fingerprint_secret};
use ratekeeper::Clock;
use ratekeeper_policy::{
    Attribute, Engine, PolicyLimit, engine::PolicyKey, engine::SharedOverride,
    fingerprint::FingerprintSecret, fingerprint::KeyName,
};
use ratekeeper_redis::{Notices, RedisStore, SharedNotice, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often notices are applied again, because policies may have changed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

/// How long a start waits for the board.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// This node's part in the fleet: publishes and applies bans and overrides.
pub(crate) struct Fleet<C: Clock> {
    engine: Engine<AnyStore<C>>,
    redis: RedisStore,
    node: Option<String>,
    applied: Mutex<AppliedState>,
    /// Values of keys that this node published; other nodes see only fingerprints.
    words: Mutex<HashMap<KeyName, String>>,
}

/// The inputs of the last application to the engine.
#[derive(Default)]
struct AppliedState {
    notices: Notices,
    reload_count: u64,
    secret: Option<FingerprintSecret>,
}

/// The text of a notice.
#[derive(Serialize, Deserialize)]
struct NoticeText {
    policy: String,
    by: Vec<String>,
    /// The fingerprint of the key.
    fingerprint: String,
    /// `None` for a ban.
    limits: Option<Vec<String>>,
    reason: Option<String>,
    node: Option<String>,
}

/// A ban or override to publish.
pub(super) struct OverrideNotice<'a> {
    pub(super) key: &'a PolicyKey,
    /// `None` for a ban.
    pub(super) limits: Option<&'a [PolicyLimit]>,
    pub(super) duration: Duration,
    pub(super) reason: Option<&'a str>,
}

impl<C: Clock> Fleet<C> {
    /// Returns `None` if the store is in memory.
    pub(crate) fn of(engine: &Engine<AnyStore<C>>) -> Option<Arc<Self>> {
        let AnyStore::Redis(redis) = engine.store() else {
            return None;
        };
        Some(Arc::new(Self {
            engine: engine.clone(),
            redis: redis.clone(),
            node: node(),
            applied: Mutex::default(),
            words: Mutex::default(),
        }))
    }

    /// Loads what is in force before the first decision, if Redis is available.
    pub(crate) async fn begin(&self) {
        if !self.redis.is_healthy() {
            // The start has just waited for it.
            tracing::warn!("bans and overrides of other nodes not loaded yet, waiting for Redis");
            return;
        }
        match tokio::time::timeout(START_TIMEOUT, self.redis.read_notices()).await {
            Ok(Ok(_)) => self.catch_up(),
            Ok(Err(error)) => tracing::warn!(
                "bans and overrides of other nodes not loaded yet, waiting for Redis: {error}"
            ),
            Err(_) => {
                tracing::warn!(
                    "bans and overrides of other nodes not loaded yet, waiting for Redis"
                );
            }
        }
    }

    /// Follows the board until the store is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut notices = self.redis.follow_notices();
        while !matches!(
            tokio::time::timeout(REFRESH_INTERVAL, notices.changed()).await,
            Ok(Err(_))
        ) {
            self.catch_up();
        }
    }

    /// Applies the last notices that were read from the board.
    pub(super) fn catch_up(&self) {
        let Some(secret) = shared_fingerprint_secret(&self.redis) else {
            return;
        };
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let notices = self.redis.notices();
        let reload_count = self.engine.stats().reloads();
        let is_same =
            Arc::ptr_eq(&notices, &applied.notices) && reload_count == applied.reload_count;
        if is_same && applied.secret == Some(secret) {
            return;
        }
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let overrides: Vec<SharedOverride> = notices
            .iter()
            .filter_map(|notice| read(notice, &words))
            .collect();
        words.retain(|name, _| overrides.iter().any(|entry| entry.name == *name));
        if let Err(error) = self.engine.operator().share_overrides(secret, &overrides) {
            tracing::error!("cannot apply the bans and overrides of other nodes: {error}");
        }
        *applied = AppliedState {
            notices,
            reload_count,
            secret: Some(secret),
        };
    }

    /// Fails while nodes have not agreed on a secret. Until then fingerprints differ between nodes.
    pub(super) fn check_secret(&self) -> Result<(), StoreError> {
        shared_fingerprint_secret(&self.redis)
            .map(drop)
            .ok_or(StoreError::NoSecret)
    }

    /// Publishes a ban or override to all nodes.
    pub(super) async fn publish(&self, notice: &OverrideNotice<'_>) -> Result<(), StoreError> {
        self.check_secret()?;
        let name = notice.key.name;
        let text = NoticeText {
            policy: notice.key.policy.clone(),
            by: notice.key.by.iter().map(ToString::to_string).collect(),
            fingerprint: notice.key.fingerprint.clone(),
            limits: notice
                .limits
                .map(|limits| limits.iter().map(ToString::to_string).collect()),
            reason: notice.reason.map(ToOwned::to_owned),
            node: self.node.clone(),
        };
        // Structs of text always have a JSON form.
        let text = serde_json::to_string(&text).unwrap_or_default();
        self.redis
            .put_notice(
                &notice_name(notice.limits.is_none(), &name),
                &text,
                notice.duration,
            )
            .await?;
        self.words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, notice.key.words.clone());
        self.catch_up();
        Ok(())
    }

    /// Ends bans and overrides of a key on all nodes. Returns whether there were any.
    pub(super) async fn lift(&self, key: &PolicyKey) -> Result<bool, StoreError> {
        self.check_secret()?;
        let mut lifted = false;
        for ban in [true, false] {
            lifted |= self
                .redis
                .remove_notice(&notice_name(ban, &key.name))
                .await?;
        }
        self.catch_up();
        Ok(lifted)
    }
}

/// The name of a notice: the kind and the key, so that a key may have one of each kind.
fn notice_name(ban: bool, name: &KeyName) -> String {
    let kind = if ban { "ban:" } else { "limits:" };
    name.iter()
        .fold(kind.to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Parses a notice. Returns `None` if it is malformed or unknown.
fn read(notice: &SharedNotice, words: &HashMap<KeyName, String>) -> Option<SharedOverride> {
    let name = parse_name(notice.name.split_once(':')?.1)?;
    let text: NoticeText = serde_json::from_str(&notice.text).ok()?;
    let limits = text.limits.map(|limits| {
        limits
            .iter()
            .map(|limit| limit.parse().ok())
            .collect::<Option<Vec<_>>>()
    });
    Some(SharedOverride {
        name,
        policy: text.policy,
        fingerprint: text.fingerprint,
        by: text.by.iter().map(|name| Attribute::named(name)).collect(),
        // A limit that cannot be parsed must not turn the override into a ban.
        limits: match limits {
            None => None,
            Some(limits) => Some(limits?),
        },
        until: notice.until,
        reason: text.reason,
        node: text.node,
        words: words.get(&name).cloned(),
    })
}

fn parse_name(hex: &str) -> Option<KeyName> {
    let mut name = KeyName::default();
    if hex.len() != 2 * name.len() || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(name)
}

/// The name of this node in lists: host name and process id.
fn node() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name
        .as_deref()
        .map(str::trim)
        .filter(|name| !name.is_empty())?;
    Some(format!("{name}/{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_name_has_the_kind_and_the_key() {
        let name: KeyName = std::array::from_fn(|at| 17 * at as u8);
        assert_eq!(
            notice_name(true, &name),
            "ban:00112233445566778899aabbccddeeff"
        );
        assert_eq!(
            notice_name(false, &name)
                .split_once(':')
                .and_then(|(_, hex)| parse_name(hex)),
            Some(name)
        );
    }
}
