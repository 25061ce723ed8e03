//! Where the counters are.

use super::settings::settings;
use super::{Reader, Section, scalar};
use crate::config::StoreConfig;
use crate::config::redis::RedisConfig;
use ratekeeper::store::OnFailure;

/// The keys that say something whatever the kind.
const OF_EVERY_KIND: [&str; 4] = ["kind", "max_keys", "max_bytes", "key_secret"];

/// The store, and what becomes of requests while it cannot be reached: that is up to the policies.
pub(super) fn store(
    reader: &mut Reader<'_>,
    file: &mut Section<'_>,
) -> Option<(StoreConfig, OnFailure)> {
    let mut section = settings(reader, file, "store")?;
    let kind = section.get(reader, "kind", scalar::word);
    let max_keys = section.get(reader, "max_keys", scalar::number);
    let max_bytes = section.get(reader, "max_bytes", scalar::number);
    let key_secret = section.get(reader, "key_secret", scalar::secret);
    let redis = redis(reader, &mut section);
    let on_failure = section.get(reader, "on_failure", scalar::on_failure);
    if kind == Some("redis") && !section.has("url") {
        let message =
            "`kind = \"redis\"` in [store] needs `url`, as in `url = \"redis://127.0.0.1:6379\"`";
        reader.error(section.spot("kind"), message);
    }
    if let (
        Some("redis"),
        Some(RedisConfig {
            url,
            ca_file: Some(_),
            ..
        }),
    ) = (kind, &redis)
        && !url.is_tls()
    {
        let message = "`ca_file` in [store] says nothing while `url` is not a rediss:// one; write that or leave it out";
        reader.warn(section.spot("ca_file"), message);
    }
    if let (Some("redis"), Some(RedisConfig { url, .. })) = (kind, &redis)
        && !url.has_sentinels()
    {
        for name in ["sentinel_user", "sentinel_password"]
            .into_iter()
            .filter(|name| section.has(name))
        {
            let message = format!(
                "`{name}` in [store] says nothing while `url` is not a redis+sentinel:// one; write that or leave it out"
            );
            reader.warn(section.spot(name), message);
        }
    }
    if section.has("sentinel_user") && !section.has("sentinel_password") {
        let message = "`sentinel_user` in [store] needs `sentinel_password`; write both, or the password alone";
        reader.error(section.spot("sentinel_user"), message);
    }
    if kind == Some("memory") {
        let ignored = section
            .entries
            .iter()
            .filter(|entry| section.table.key(&entry.name).is_some());
        for entry in ignored.filter(|entry| !OF_EVERY_KIND.contains(&&*entry.name)) {
            reader.warn(entry.at, ignored_in_memory(&entry.name, "in [store]"));
        }
    }
    section.close();
    let (redis, on_failure) = match kind? {
        "redis" => (Some(redis?), on_failure?),
        _ => (None, OnFailure::default()),
    };
    Some((
        StoreConfig {
            max_keys: max_keys?,
            max_bytes,
            key_secret,
            redis,
        },
        on_failure,
    ))
}

/// Of a key that says something only where the store can be out of reach.
pub(super) fn ignored_in_memory(key: &str, place: &str) -> String {
    format!(
        "`{key}` {place} is ignored while the store is in memory; set `kind = \"redis\"` in [store] or leave it out"
    )
}

/// None if it is not said where Redis is, or if something is wrong.
fn redis(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Option<RedisConfig> {
    let url = section.get(reader, "url", scalar::redis_url);
    let timeout = section.get(reader, "timeout", scalar::duration);
    let prefix = section.get(reader, "prefix", scalar::prefix);
    let nodes = section.get(reader, "nodes", scalar::number);
    let rollout_grace = section.get(reader, "rollout_grace", scalar::duration);
    let connections = section.get(reader, "connections", scalar::number);
    let ca_file = section.get(reader, "ca_file", scalar::text);
    let sentinel_user = section.get(reader, "sentinel_user", scalar::text);
    let sentinel_password = section.get(reader, "sentinel_password", scalar::secret);
    Some(RedisConfig {
        url: url?,
        timeout: timeout?,
        prefix: prefix?,
        nodes: u32::try_from(nodes?).ok()?,
        rollout_grace: rollout_grace?,
        connections: usize::try_from(connections?).ok()?,
        ca_file: ca_file.map(Into::into),
        sentinel_user,
        sentinel_password,
    })
}
