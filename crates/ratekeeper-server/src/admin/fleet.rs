//! Bans and overrides on all nodes that share Redis: left on its board by one, read by all.
//! Decisions read memory only.

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

/// The policies may have changed, and with them what is said of them.
const AGAIN: Duration = Duration::from_millis(500);

/// How long a start waits for the board.
const FIRST_LOOK: Duration = Duration::from_secs(2);

pub(crate) struct Fleet<C: Clock> {
    engine: Engine<AnyStore<C>>,
    redis: RedisStore,
    node: Option<String>,
    applied: Mutex<Applied>,
    /// Keys in words that were said here: nobody else knows them.
    words: Mutex<HashMap<KeyName, String>>,
}

/// What the engine goes by.
#[derive(Default)]
struct Applied {
    notices: Notices,
    replaced: u64,
    secret: Option<FingerprintSecret>,
}

/// What a notice says.
#[derive(Serialize, Deserialize)]
struct Text {
    policy: String,
    by: Vec<String>,
    /// The key, by its fingerprints.
    fingerprint: String,
    /// None if it is a ban.
    limits: Option<Vec<String>>,
    reason: Option<String>,
    node: Option<String>,
}

/// What is said of a key.
pub(super) struct SharedText<'a> {
    pub(super) key: &'a PolicyKey,
    /// None if it is a ban.
    pub(super) limits: Option<&'a [PolicyLimit]>,
    pub(super) lasts: Duration,
    pub(super) reason: Option<&'a str>,
}

impl<C: Clock> Fleet<C> {
    /// None where this node counts for itself.
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

    /// Learns what is in force before anybody is decided on, if Redis answers.
    pub(crate) async fn begin(&self) {
        if !self.redis.is_healthy() {
            // It has just been waited for.
            tracing::warn!(
                "bans and overrides of other nodes are not known yet; they hold when Redis answers"
            );
            return;
        }
        match tokio::time::timeout(FIRST_LOOK, self.redis.read_notices()).await {
            Ok(Ok(_)) => self.catch_up(),
            Ok(Err(trouble)) => tracing::warn!(
                "bans and overrides of other nodes are not known yet: {trouble}; they hold here when it answers"
            ),
            Err(_) => {
                tracing::warn!(
                    "bans and overrides of other nodes are not known yet; they hold when Redis answers"
                );
            }
        }
    }

    /// Keeps up with the board, as long as there is one.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut seen = self.redis.follow_notices();
        while !matches!(
            tokio::time::timeout(AGAIN, seen.changed()).await,
            Ok(Err(_))
        ) {
            self.catch_up();
        }
    }

    /// Goes by what is on the board, as of the last look.
    pub(super) fn catch_up(&self) {
        let Some(secret) = shared_fingerprint_secret(&self.redis) else {
            return;
        };
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let (notices, replaced) = (self.redis.notices(), self.engine.reload_count());
        let same = Arc::ptr_eq(&notices, &applied.notices) && replaced == applied.replaced;
        if same && applied.secret == Some(secret) {
            return;
        }
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let said: Vec<SharedOverride> = notices
            .iter()
            .filter_map(|notice| read(notice, &words))
            .collect();
        words.retain(|name, _| said.iter().any(|one| one.name == *name));
        if let Err(error) = self.engine.share_overrides(secret, &said) {
            tracing::error!("bans and overrides of other nodes do not hold here: {error}");
        }
        *applied = Applied {
            notices,
            replaced,
            secret: Some(secret),
        };
    }

    /// An error while nodes have not agreed on a secret: until then keys have other fingerprints
    /// here than elsewhere.
    pub(super) fn has_secret(&self) -> Result<(), StoreError> {
        shared_fingerprint_secret(&self.redis)
            .map(drop)
            .ok_or(StoreError::NoSecret)
    }

    /// Says it on all nodes.
    pub(super) async fn say(&self, saying: &SharedText<'_>) -> Result<(), StoreError> {
        self.has_secret()?;
        let name = saying.key.name;
        let text = Text {
            policy: saying.key.policy.clone(),
            by: saying.key.by.iter().map(ToString::to_string).collect(),
            fingerprint: saying.key.fingerprint.clone(),
            limits: saying
                .limits
                .map(|limits| limits.iter().map(ToString::to_string).collect()),
            reason: saying.reason.map(ToOwned::to_owned),
            node: self.node.clone(),
        };
        // Structs of text always have a JSON form.
        let text = serde_json::to_string(&text).unwrap_or_default();
        self.redis
            .put_notice(&called(saying.limits.is_none(), &name), &text, saying.lasts)
            .await?;
        self.words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, saying.key.words.clone());
        self.catch_up();
        Ok(())
    }

    /// Ends what was said of a key on all nodes: whether there was something.
    pub(super) async fn lift(&self, key: &PolicyKey) -> Result<bool, StoreError> {
        self.has_secret()?;
        let mut lifted = false;
        for ban in [true, false] {
            lifted |= self.redis.remove_notice(&called(ban, &key.name)).await?;
        }
        self.catch_up();
        Ok(lifted)
    }
}

/// What a notice is known by: a key may have one of each kind.
fn called(ban: bool, name: &KeyName) -> String {
    let kind = if ban { "ban:" } else { "limits:" };
    name.iter()
        .fold(kind.to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// What a notice says, if it is of ours.
fn read(notice: &SharedNotice, words: &HashMap<KeyName, String>) -> Option<SharedOverride> {
    let name = name_of(notice.name.split_once(':')?.1)?;
    let text: Text = serde_json::from_str(&notice.text).ok()?;
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
        // One that is not understood is none, and no ban either.
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

fn name_of(hex: &str) -> Option<KeyName> {
    let mut name = KeyName::default();
    if hex.len() != 2 * name.len() || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(name)
}

/// What this node is called by those who look at what it said: the machine and the process.
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
    fn a_notice_is_known_by_the_name_of_its_key() {
        let name: KeyName = std::array::from_fn(|at| 17 * at as u8);
        assert_eq!(called(true, &name), "ban:00112233445566778899aabbccddeeff");
        assert_eq!(
            called(false, &name)
                .split_once(':')
                .and_then(|(_, hex)| name_of(hex)),
            Some(name)
        );
    }
}
