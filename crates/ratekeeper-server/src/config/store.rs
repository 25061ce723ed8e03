//! `[store]`: where the counters are, and how much memory they may use.

use super::redis_url::RedisUrl;
use super::secret::{Password, Secret};
use ratekeeper::store::OnFailure;
use ratekeeper_policy::config::section::{
    IGNORED_IN_MEMORY, KeyKind, KeySpec, KeyType, MAX_INTEGER, ReadError, Section, Table, Writer,
};
use ratekeeper_policy::{section, text_kind, words};
use std::path::PathBuf;
use std::time::Duration;

section! {
    /// `[store]`: where the counters are, and how much memory they may use.
    pub(crate) struct StoreConfig, check = check_store {
        /// The store: "memory" counts in each process alone, "redis" counts together with all nodes
        /// that share the Redis.
        kind: StoreKind = "memory" => "memory";
        /// Maximum number of keys in memory. With Redis, of those that are counted here while it is
        /// unavailable.
        max_keys: u64 [KeyType::number(1, 1 << 32)] = 1_000_000 => 1_000_000;
        /// Maximum memory, in bytes, of states that are larger than one word, such as logs. If not
        /// set, 512 bytes per key of `max_keys`.
        max_bytes: Option<u64> [KeyType::number(1, MAX_INTEGER)] => 512_000_000;
        /// Secret with which key names in Redis and fingerprints are hashed; the same on every node.
        /// If not set, the nodes agree on one through Redis; without Redis, a new one is generated
        /// at every start.
        key_secret: Option<Secret> => "…";
        /// The Redis that a fleet shares; `None` if the counters are in memory.
        redis: Option<RedisConfig> as IfRedis => ();
    }
}

section! {
    /// The settings of the Redis that a fleet shares.
    pub(crate) struct RedisConfig {
        /// URL of Redis, such as redis://127.0.0.1:6379. Required for `kind = "redis"`.
        /// redis+sentinel:// and redis+cluster:// take several hosts.
        url: RedisUrl => "redis://127.0.0.1:6379";
        /// Timeout of a request to Redis.
        timeout: Duration [KeyType::millis(1, 10_000)] = "10ms" => "10ms";
        /// Fallback while Redis is unavailable: "local_share" lets each node allow its share of
        /// every limit, "open" allows all requests, "closed" denies all.
        on_failure: OnFailure = "local_share" => "local_share";
        /// Prefix of the key names in Redis.
        prefix: String as Prefix = "ratekeeper" => "ratekeeper";
        /// Number of nodes that share the limits, used until Redis has answered once.
        nodes: u32 [KeyType::number(1, 10_000)] = 1 => 3;
        /// How long nodes with the same prefix may have different limits, as during a rollout,
        /// before this is reported.
        rollout_grace: Duration [KeyType::millis(0, 86_400_000)] = "1m" => "5m";
        /// Number of connections to Redis; in a Cluster, to each primary.
        connections: usize [KeyType::number(1, 64)] = 2 => 2;
        /// File with the CA certificates (PEM) for a rediss:// server. If not set, those of the
        /// system.
        ca_file: Option<PathBuf> => "/etc/ratekeeper/ca.pem";
        /// User name for the sentinels; the one in `url` is for the server.
        sentinel_user: Option<String> => "ratekeeper";
        /// Password for the sentinels; the one in `url` is for the server.
        sentinel_password: Option<Secret> as Option<Password> => "…";
    }
}

/// The kind of store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreKind {
    /// `memory`: each process counts alone.
    Memory,
    /// `redis`: all nodes count together.
    Redis,
}

words! {
    StoreKind { "memory" => StoreKind::Memory, "redis" => StoreKind::Redis }
}

/// The settings of Redis, if the store is Redis. With another store they are only checked.
struct IfRedis;

impl KeyKind for IfRedis {
    type Value = Option<RedisConfig>;
    const TYPE: KeyType = KeyType::Flatten(&RedisConfig::SPEC);

    fn get(section: &Section<'_>, _: &'static KeySpec) -> Option<Self::Value> {
        let redis = RedisConfig::read_fields(section);
        if section.text("kind") == Some("redis") {
            redis.map(Some)
        } else {
            Some(None)
        }
    }

    fn show(_: &Self::Value, _: bool) -> Option<String> {
        None
    }

    fn write(value: &Self::Value, writer: &mut Writer<'_>, _: &'static KeySpec) {
        if let Some(redis) = value {
            redis.write_fields(writer);
        }
    }
}

/// The prefix of key names in Redis.
struct Prefix;

text_kind!(
    Prefix as String,
    "1 to 64 printable ASCII characters without spaces, `{` and `}`, such as \"ratekeeper\"",
    "^[!-z|~]{1,64}$",
    |prefix: &str| {
        const MAX_LEN: usize = 64;
        // Redis Cluster hashes only the part of a key name in braces.
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        let is_prefix = prefix.len() <= MAX_LEN && prefix.bytes().all(is_allowed);
        is_prefix
            .then(|| prefix.to_owned())
            .ok_or(ReadError::WrongType)
    }
);

fn check_store(section: &Section<'_>, store: Option<&StoreConfig>) {
    let in_memory = section.text("kind").is_none_or(|kind| kind == "memory");
    section.reader.in_memory.set(in_memory);
    if section.has("sentinel_user") && !section.has("sentinel_password") {
        let message = "{key} {in} needs `sentinel_password`; set both, or the password alone";
        section.error("sentinel_user", message);
    }
    if in_memory {
        for key in RedisConfig::SPEC
            .keys
            .iter()
            .filter(|key| section.has(key.name))
        {
            section.warn(key.name, IGNORED_IN_MEMORY);
        }
        return;
    }
    let Some(RedisConfig { url, .. }) = store.and_then(|store| store.redis.as_ref()) else {
        return;
    };
    let has_no_effect = |key: &str| match key {
        "ca_file" => (!url.is_tls()).then_some("rediss://"),
        _ => (!url.has_sentinels()).then_some("redis+sentinel://"),
    };
    for key in ["ca_file", "sentinel_user", "sentinel_password"] {
        if let Some(scheme) = has_no_effect(key).filter(|_| section.has(key)) {
            let message = format!(
                "{{key}} {{in}} has no effect, because `url` is not {scheme}; change `url`, or \
                 remove {{key}}"
            );
            section.warn(key, &message);
        }
    }
}
