//! What is wrong with Redis: what it says of itself, and whether it makes a decision.

use super::Finding;
use crate::store;
use ratekeeper::{Ask, Limit, Store, store::Source};
use ratekeeper_policy::config::{Config, RedisConfig};
use ratekeeper_redis::{
    ConnectError, Inspection, InspectionReport, MAXMEMORY_ADVICE, MAXMEMORY_POLICY,
    RedisStoreBuilder, StoreError,
};
use std::time::Duration;

/// Of a Cluster.
const ALL_SLOTS: u64 = 16_384;

/// Clocks that are further apart than that are nobody's intention.
const SKEW: f64 = 1.0;

/// Older ones are not tried by the tests.
const OLDEST: u64 = 6;

/// The limit that is tried: its keys are gone after a millisecond.
const TRIED: &str = "doctor";

/// A busy machine may miss a decision.
const TRIES: usize = 3;

pub(super) async fn look(config: &Config, redis: &RedisConfig) -> Vec<Finding> {
    let builder = || {
        store::redis_builder(&config.store, redis, config.policies.default_on_failure()).uncounted()
    };
    let examined = match builder().inspect().await {
        Ok(examined) => examined,
        Err(error) => {
            let says = format!(
                "{} cannot be used: {error}; mend that, or `url` under [store]",
                redis.url
            );
            return vec![Finding::new("redis_unreachable", says)];
        }
    };
    let mut findings = judge(&examined, redis);
    if let Err(error) = decide(builder()).await
        && !is_explained(&error, &findings)
    {
        findings.push(Finding::new(
            "redis_decision",
            format!("{} makes no decision: {error}", redis.url),
        ));
    }
    findings
}

/// Connects as a server does and makes a decision.
async fn decide(builder: RedisStoreBuilder) -> Result<(), ConnectError> {
    let store = builder.connect().await?;
    let limit = store
        .limit(TRIED, Limit::per_second(1000).burst(1))
        .map_err(|error| ConnectError::Memory(error.to_string()))?;
    let trouble = || store.status().trouble.map(|(_, trouble)| trouble);
    for _ in 0..TRIES {
        if trouble().is_none()
            && store.decide(&[Ask::new(&limit, b"any")]).await.source() == Source::Redis
        {
            return Ok(());
        }
    }
    Err(ConnectError::Unusable(
        trouble().unwrap_or(StoreError::TimedOut),
    ))
}

/// Whether another finding has the cause.
fn is_explained(error: &ConnectError, findings: &[Finding]) -> bool {
    let cause = match error {
        ConnectError::Unusable(StoreError::TimedOut) => "redis_latency",
        ConnectError::Unusable(StoreError::Refused { code, .. }) if code == "READONLY" => {
            "redis_replica"
        }
        _ => return false,
    };
    findings.iter().any(|finding| finding.code == cause)
}

fn judge(found: &InspectionReport, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(slots) = found.slots.filter(|slots| *slots < ALL_SLOTS) {
        let says = format!(
            "only {slots} of the Cluster's {ALL_SLOTS} slots are served, so keys in the others are decided without it; bring \
             the missing primaries back or assign their slots (redis-cli --cluster fix)"
        );
        findings.push(Finding::new("redis_slots", says));
    }
    for server in &found.servers {
        let name = server
            .name
            .clone()
            .unwrap_or_else(|| config.url.to_string());
        findings.extend(of_one(&name, server, config.timeout));
    }
    findings
}

fn of_one(name: &str, server: &Inspection, timeout: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |code: &str, says: String| findings.push(Finding::new(code, says));
    if server.role.as_deref() == Some("slave") {
        found(
            "redis_replica",
            format!(
                "{name} is a replica, which refuses every decision; give the url of its primary, or of the sentinels"
            ),
        );
    }
    findings.extend(eviction(name, server));
    let mut found = |code: &str, says: String| findings.push(Finding::new(code, says));
    let doubt = server.round_trip.unwrap_or_default().as_secs_f64() / 2.0;
    if let Some(ahead) = server.ahead.filter(|ahead| ahead.abs() - doubt > SKEW) {
        let way = if ahead > 0.0 { "ahead of" } else { "behind" };
        found(
            "clock_skew",
            format!(
                "the clock of {name} is {:.1} s {way} the one here, and limits go by that of Redis, so times told to callers and \
                 bans are off by as much; run NTP on both",
                ahead.abs()
            ),
        );
    }
    if let Some(version) = server.version.as_ref().filter(|version| is_old(version)) {
        found(
            "redis_version",
            format!(
                "{name} is version {version}, which is older than any that ratekeeper is tried with; run {OLDEST}.2 or newer"
            ),
        );
    }
    if let Some(took) = server.round_trip.filter(|took| *took > timeout) {
        found(
            "redis_latency",
            format!(
                "the quickest of five answers of {name} took {:.1} ms, longer than the {} ms a decision waits for it; bring it \
                 nearer, or raise `timeout` under [store]",
                took.as_secs_f64() * 1e3,
                timeout.as_millis()
            ),
        );
    }
    if server.append_only == Some(false) {
        let says = format!(
            "{name} forgets what changed since its last snapshot when it ends, and every limit is fresh then; set appendonly yes \
             with appendfsync everysec, unless that is what you want"
        );
        findings.push(Finding::note("redis_persistence", says));
    }
    findings
}

/// What becomes of keys when the memory of Redis is full.
fn eviction(name: &str, server: &Inspection) -> Option<Finding> {
    const CODE: &str = "redis_eviction";
    let policy = server
        .eviction
        .as_deref()
        .filter(|_| server.max_memory.is_some_and(|bytes| bytes > 0))?;
    match policy {
        MAXMEMORY_POLICY => None,
        "noeviction" => Some(Finding::note(
            CODE,
            format!(
                "{name} refuses writes when its memory is full (maxmemory-policy noeviction), and nodes decide without it until \
                 keys have expired; {MAXMEMORY_ADVICE}"
            ),
        )),
        _ => Some(Finding::new(
            CODE,
            format!(
                "{name} forgets limits that are used up when its memory is full (maxmemory-policy {policy}), and they are admitted \
                 anew; {MAXMEMORY_ADVICE}"
            ),
        )),
    }
}

fn is_old(version: &str) -> bool {
    version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u64>().ok())
        .is_some_and(|major| major < OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other findings are tried with real servers, in tests/running/doctor.rs; of old ones
    /// there are none here.
    #[test]
    fn versions_before_the_sixth_are_old() {
        assert!(is_old("5.0.14") && is_old("2.8"));
        assert!(!is_old("6.2.0") && !is_old("8.1.1") && !is_old("unstable") && !is_old(""));
    }
}
