use super::*;
use crate::envoy::config::{EnvoyConfig, LimitRef};

/// A descriptor and its expected limit.
pub(super) type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);

/// The limit of a descriptor of `domain` as text, and its bucket key.
fn find_limit(
    config: &EnvoyConfig,
    domain: &str,
    descriptor: &[(&str, &str)],
) -> (Option<String>, Vec<u8>) {
    let mut bucket = Vec::new();
    let index = config
        .domains
        .get(domain)
        .and_then(|level| find(level, descriptor.iter().copied(), &mut bucket));
    let limit = index.map(|RuleIndex(index)| match config.rules[index].limit {
        LimitRef::Unlimited => "unlimited".to_owned(),
        LimitRef::To { limit, .. } => limit.to_string(),
    });
    (limit, bucket)
}

#[track_caller]
pub(super) fn table(yaml: &str, cases: &[Case<'_>]) {
    let mut config = EnvoyConfig::default();
    config
        .add("test.yaml", yaml)
        .unwrap_or_else(|error| panic!("{error}"));
    let domain = config.domains.keys().next().unwrap().clone();
    for (descriptor, limit) in cases {
        assert_eq!(
            find_limit(&config, &domain, descriptor).0.as_deref(),
            *limit,
            "{descriptor:?}"
        );
    }
}

#[test]
fn matching_does_not_backtrack() {
    table(
        "
        domain: d
        descriptors:
          - key: a
            value: x
            descriptors:
              - key: b
                value: only
                rate_limit: { unit: hour, requests_per_unit: 1 }
          - key: a
            descriptors:
              - key: b
                rate_limit: { unit: hour, requests_per_unit: 2 }
          - key: free
            value: me
          - key: free
            rate_limit: { unit: hour, requests_per_unit: 3 }
        ",
        &[
            (&[("a", "x"), ("b", "only")], Some("1/h fixed_window")),
            (&[("a", "x"), ("b", "other")], None),
            (&[("a", "y"), ("b", "other")], Some("2/h fixed_window")),
            // A value without a limit is allowed.
            (&[("free", "me")], None),
            (&[("free", "you")], Some("3/h fixed_window")),
        ],
    );
}

#[test]
fn units_windows_and_algorithms() {
    for (rate_limit, limit) in [
        ("unit: SECOND", "10/s fixed_window"),
        ("unit: Week", "10/w fixed_window"),
        ("unit: month", "10/30d fixed_window"),
        ("unit: year", "10/365d fixed_window"),
        ("unit: 5m", "10/5min fixed_window"),
        ("unit: minute, unit_multiplier: 5", "10/5min fixed_window"),
        ("unit: minute, algorithm: token_bucket", "10/min"),
        ("unit: minute, algorithm: gcra, burst: 3", "10/min burst 3"),
        ("unit: hour, algorithm: sliding_log", "10/h sliding_log"),
    ] {
        let rate_limit = format!("{{ requests_per_unit: 10, {rate_limit} }}");
        let yaml = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {rate_limit}\n");
        table(&yaml, &[(&[("k", "v")], Some(limit))]);
    }
}

#[test]
fn buckets_are_distinct() {
    let yaml = "
        domain: d
        descriptors:
          - key: a
            descriptors:
              - key: b
                rate_limit: { unit: second, requests_per_unit: 1 }
          - key: shared
            value: files/*
            share_threshold: true
            rate_limit: { unit: second, requests_per_unit: 1 }
          - key: own
            value: files/*
            rate_limit: { unit: second, requests_per_unit: 1 }
        ";
    let mut config = EnvoyConfig::default();
    config.add("test.yaml", yaml).unwrap();
    let bucket = |descriptor: &[(&str, &str)]| find_limit(&config, "d", descriptor).1;
    assert_ne!(
        bucket(&[("a", "x"), ("b", "yz")]),
        bucket(&[("a", "xy"), ("b", "z")])
    );
    assert_eq!(
        bucket(&[("shared", "files/a")]),
        bucket(&[("shared", "files/b")])
    );
    assert_ne!(bucket(&[("own", "files/a")]), bucket(&[("own", "files/b")]));
}
