//! Reading of `[store]`.

use super::settings::settings;
use super::{Reader, Section, scalar};
use crate::config::StoreConfig;
use crate::config::redis::RedisConfig;
use ratekeeper::store::OnFailure;

/// The keys that apply to every kind of store.
const COMMON_KEYS: [&str; 4] = ["kind", "max_keys", "max_bytes", "key_secret"];

/// Reads the store, and the fallback while it is unavailable, which belongs to the policies.
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
        let message = "`kind = \"redis\"` in [store] needs `url`, for example `url = \
                       \"redis://127.0.0.1:6379\"`";
        reader.error(section.position("kind"), message);
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
        let message = "`ca_file` in [store] has no effect, because `url` is not rediss://; change \
                       `url`, or remove `ca_file`";
        reader.warn(section.position("ca_file"), message);
    }
    if let (Some("redis"), Some(RedisConfig { url, .. })) = (kind, &redis)
        && !url.has_sentinels()
    {
        for name in ["sentinel_user", "sentinel_password"]
            .into_iter()
            .filter(|name| section.has(name))
        {
            let message = format!(
                "`{name}` in [store] has no effect, because `url` is not redis+sentinel://; change \
                 `url`, or remove `{name}`"
            );
            reader.warn(section.position(name), message);
        }
    }
    if section.has("sentinel_user") && !section.has("sentinel_password") {
        let message =
            "`sentinel_user` in [store] needs `sentinel_password`; set both, or the password alone";
        reader.error(section.position("sentinel_user"), message);
    }
    if kind == Some("memory") {
        let ignored = section
            .entries
            .iter()
            .filter(|entry| section.table.key(&entry.name).is_some());
        for entry in ignored.filter(|entry| !COMMON_KEYS.contains(&&*entry.name)) {
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

/// The warning about a key that has an effect only with Redis.
pub(super) fn ignored_in_memory(key: &str, table: &str) -> String {
    format!(
        "`{key}` {table} has no effect with the store in memory; set `kind = \"redis\"` in \
         [store], or remove `{key}`"
    )
}

/// Reads the settings of Redis. `None` without `url`, or if they have errors.
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
