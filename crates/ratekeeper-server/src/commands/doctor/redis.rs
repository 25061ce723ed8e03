//! Checks of Redis: its version, role and settings, and a test decision.

use super::Finding;
use crate::config::{Config, RedisConfig};
use crate::store;
use ratekeeper::{Ask, Limit, Store, store::Source};
use ratekeeper_redis::{
    ConnectError, Inspection, InspectionReport, MAXMEMORY_ADVICE, MAXMEMORY_POLICY,
    RedisStoreBuilder, StoreError,
};
use std::time::Duration;

/// Number of slots of a Cluster.
const ALL_SLOTS: u64 = 16_384;

/// Maximum difference of clocks, in seconds.
const MAX_SKEW_SECONDS: f64 = 1.0;

/// Oldest supported major version; older ones are not tested.
const MIN_VERSION: u64 = 6;

/// Name of the limit of the test decision; its keys expire after a millisecond.
const TEST_LIMIT: &str = "doctor";

/// Attempts of the test decision, because one may time out on a busy machine.
const MAX_ATTEMPTS: usize = 3;

pub(super) async fn check(config: &Config, redis: &RedisConfig) -> Vec<Finding> {
    let builder = || {
        store::redis_builder(&config.store, redis, config.policies.default_on_failure()).uncounted()
    };
    let report = match builder().inspect().await {
        Ok(report) => report,
        Err(error) => {
            let message = format!(
                "cannot use {}: {error}; fix that or `url` under [store]",
                redis.url
            );
            return vec![Finding::new("redis_unreachable", message)];
        }
    };
    let mut findings = report_findings(&report, redis);
    if let Err(error) = decide(builder()).await
        && !is_explained(&error, &findings)
    {
        findings.push(Finding::new(
            "redis_decision",
            format!("a test decision on {} failed: {error}", redis.url),
        ));
    }
    findings
}

/// Connects as a server does and makes a decision.
async fn decide(builder: RedisStoreBuilder) -> Result<(), ConnectError> {
    let store = builder.connect().await?;
    let limit = store
        .limit(TEST_LIMIT, Limit::per_second(1000).burst(1))
        .map_err(|error| ConnectError::Memory(error.to_string()))?;
    let store_error = || store.status().error.map(|(_, error)| error);
    for _ in 0..MAX_ATTEMPTS {
        if store_error().is_none()
            && store.decide(&[Ask::new(&limit, b"any")]).await.source() == Source::Redis
        {
            return Ok(());
        }
    }
    Err(ConnectError::Unusable(
        store_error().unwrap_or(StoreError::TimedOut),
    ))
}

/// Whether another finding already names the cause.
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

fn report_findings(report: &InspectionReport, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(slots) = report.slots.filter(|slots| *slots < ALL_SLOTS) {
        let message = format!(
            "only {slots} of the Cluster's {ALL_SLOTS} slots are served, so keys in the others are \
             decided without it; bring the missing primaries back or assign their slots (redis-cli \
             --cluster fix)"
        );
        findings.push(Finding::new("redis_slots", message));
    }
    for server in &report.servers {
        let name = server
            .name
            .clone()
            .unwrap_or_else(|| config.url.to_string());
        findings.extend(server_findings(&name, server, config.timeout));
    }
    findings
}

fn server_findings(name: &str, server: &Inspection, timeout: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |code: &str, message: String| findings.push(Finding::new(code, message));
    if server.role.as_deref() == Some("slave") {
        found(
            "redis_replica",
            format!(
                "{name} is a replica, which rejects writes; set `url` to its primary or to the \
                 sentinels"
            ),
        );
    }
    findings.extend(eviction(name, server));
    let mut found = |code: &str, message: String| findings.push(Finding::new(code, message));
    let uncertainty = server.round_trip.unwrap_or_default().as_secs_f64() / 2.0;
    if let Some(ahead) = server
        .ahead
        .filter(|ahead| ahead.abs() - uncertainty > MAX_SKEW_SECONDS)
    {
        let direction = if ahead > 0.0 { "ahead of" } else { "behind" };
        found(
            "clock_skew",
            format!(
                "the clock of {name} is {:.1} s {direction} this machine's, and limits use that of \
                 Redis, so retry times and bans are off by as much; run NTP on both",
                ahead.abs()
            ),
        );
    }
    if let Some(version) = server.version.as_ref().filter(|version| is_old(version)) {
        found(
            "redis_version",
            format!(
                "{name} is version {version}, older than the oldest supported version; use \
                 {MIN_VERSION}.2 or newer"
            ),
        );
    }
    if let Some(elapsed) = server.round_trip.filter(|elapsed| *elapsed > timeout) {
        found(
            "redis_latency",
            format!(
                "the fastest of five replies of {name} took {:.1} ms, more than `timeout` ({} ms); \
                 move Redis closer, or raise `timeout` under [store]",
                elapsed.as_secs_f64() * 1e3,
                timeout.as_millis()
            ),
        );
    }
    if server.append_only == Some(false) {
        let message = format!(
            "{name} loses changes since its last snapshot on restart, so limits start full again; \
             set appendonly yes with appendfsync everysec, unless you accept that"
        );
        findings.push(Finding::note("redis_persistence", message));
    }
    findings
}

/// A finding about the eviction policy of a Redis with limited memory.
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
                "{name} rejects writes when full (maxmemory-policy noeviction), and nodes decide \
                 without it until keys have expired; {MAXMEMORY_ADVICE}"
            ),
        )),
        _ => Some(Finding::new(
            CODE,
            format!(
                "{name} evicts exhausted limits when full (maxmemory-policy {policy}), so denied \
                 keys are allowed again; {MAXMEMORY_ADVICE}"
            ),
        )),
    }
}

fn is_old(version: &str) -> bool {
    version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u64>().ok())
        .is_some_and(|major| major < MIN_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tests/running/doctor.rs tests the other findings with real servers; there is no old one
    /// here.
    #[test]
    fn versions_before_the_sixth_are_old() {
        assert!(is_old("5.0.14") && is_old("2.8"));
        assert!(!is_old("6.2.0") && !is_old("8.1.1") && !is_old("unstable") && !is_old(""));
    }
}
