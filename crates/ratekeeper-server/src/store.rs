//! The store of the server: in memory, or on Redis with the rest of the fleet.

use crate::config::{RedisConfig, StoreConfig};
use ratekeeper::{
    Ask, Clock, Limit, MemoryStore, Store, Timestamp, Verdict, clock::Sleep,
    keyed::TooManyLimitsError, store::DetachError, store::LimitHandle, store::LimitKeyStats,
    store::LimitOptions, store::OnFailure, store::SettleError,
};
use ratekeeper_policy::fingerprint::FingerprintSecret;
use ratekeeper_redis::{RedisStore, RedisStoreBuilder};
use std::time::Duration;

/// The memory store or the Redis store. Clones share it.
#[derive(Clone)]
pub(crate) enum AnyStore<C: Clock> {
    Memory(MemoryStore<C>),
    Redis(RedisStore),
}

impl<C: Clock> AnyStore<C> {
    /// Name in metrics and messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
        }
    }
}

/// A builder of the Redis store of a configuration.
pub(crate) fn redis_builder(
    StoreConfig {
        max_keys,
        max_bytes,
        key_secret,
        ..
    }: &StoreConfig,
    config: &RedisConfig,
    on_failure: OnFailure,
) -> RedisStoreBuilder {
    let mut builder = RedisStore::builder(config.url.reveal())
        .prefix(&*config.prefix)
        .timeout(config.timeout)
        .on_failure(on_failure)
        .nodes(config.nodes.into())
        .rollout_grace(config.rollout_grace)
        .connections(config.connections)
        .max_keys(usize::try_from(*max_keys).unwrap_or(usize::MAX));
    if let Some(bytes) = max_bytes {
        builder = builder.max_bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
    }
    if let Some(secret) = key_secret {
        builder = builder.key_secret(secret.reveal());
    }
    if let Some(file) = &config.ca_file {
        builder = builder.ca_file(file);
    }
    if let Some(password) = &config.sentinel_password {
        builder = builder.sentinel_auth(
            config.sentinel_user.as_deref().unwrap_or_default(),
            password.reveal(),
        );
    }
    builder
}

/// Purpose for which the secret of fingerprints is derived from `key_secret`.
const FINGERPRINTS: &str = "fingerprints";

/// The secret of fingerprints, if the configuration has `key_secret`; it does not depend on the
/// store.
pub(crate) fn fingerprint_secret(config: &StoreConfig) -> Option<FingerprintSecret> {
    let secret = config.key_secret.as_ref()?;
    Some(FingerprintSecret::new(&ratekeeper_redis::derived_secret(
        secret.reveal(),
        FINGERPRINTS,
    )))
}

/// The secret of fingerprints that all nodes on this Redis share. Returns `None` until they have
/// agreed on one.
pub(crate) fn shared_fingerprint_secret(redis: &RedisStore) -> Option<FingerprintSecret> {
    redis
        .shared_secret(FINGERPRINTS)
        .as_ref()
        .map(FingerprintSecret::new)
}

/// Evaluates an expression with the store of either variant.
macro_rules! either {
    ($store:expr, $name:ident => $call:expr) => {
        match $store {
            AnyStore::Memory($name) => $call,
            AnyStore::Redis($name) => $call,
        }
    };
}

impl<C: Clock> Store for AnyStore<C> {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        either!(self, store => store.limit(name, limit))
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        either!(self, store => store.concurrency(name, limit))
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        either!(self, store => store.set_limit(handle, limit));
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        either!(self, store => store.set_concurrency(handle, limit));
    }

    fn now(&self) -> Timestamp {
        either!(self, store => store.now())
    }

    async fn decide_within(&self, asks: &[Ask<'_>], within: Option<Duration>) -> Verdict {
        either!(self, store => store.decide_within(asks, within).await)
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        either!(self, store => store.try_decide(asks, now, verdict))
    }

    fn is_local(&self) -> bool {
        either!(self, store => store.is_local())
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        either!(self, store => store.sleep_until(at))
    }

    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        either!(self, store => store.configure(handle, options))
    }

    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        either!(self, store => store.try_settle(verdict, actual))
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        either!(self, store => store.settle(verdict, actual).await);
    }

    async fn detach(&self, verdict: Verdict, until: Timestamp) -> Result<Vec<u8>, DetachError> {
        either!(self, store => store.detach(verdict, until).await)
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), SettleError> {
        either!(self, store => store.settle_detached(receipt, actual).await)
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        either!(self, store => Store::grant(store, handle, key, tokens).await);
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        either!(self, store => Store::reset(store, handle, key).await);
    }

    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        either!(self, store => Store::key_stats(store, limits))
    }
}
