use super::*;
use crate::envoy::config::{EnvoyConfig, Limited};

/// A descriptor, and the limit it meets.
type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);

/// The limit that a descriptor of `domain` meets, as text; none if there is none.
fn met(config: &EnvoyConfig, domain: &str, descriptor: &[(&str, &str)]) -> (Option<String>, Vec<u8>) {
    let mut bucket = Vec::new();
    let place = config.domains.get(domain).and_then(|level| find(level, descriptor.iter().copied(), &mut bucket));
    let limit = place.map(|Place(place)| match config.rules[place].limit {
        Limited::Unlimited => "unlimited".to_owned(),
        Limited::To { limit, .. } => limit.to_string(),
    });
    (limit, bucket)
}

#[track_caller]
fn table(yaml: &str, cases: &[Case<'_>]) {
    let mut config = EnvoyConfig::default();
    config.add("test.yaml", yaml).unwrap_or_else(|wrong| panic!("{wrong}"));
    let domain = config.domains.keys().next().unwrap().clone();
    for (descriptor, limit) in cases {
        assert_eq!(met(&config, &domain, descriptor).0.as_deref(), *limit, "{descriptor:?}");
    }
}

// The documented examples of envoyproxy/ratelimit, by their numbers there.

#[test]
fn example_1_two_values_of_a_key() {
    table(
        "
        domain: mongo_cps
        descriptors:
          - key: database
            value: users
            rate_limit: { unit: second, requests_per_unit: 500 }
          - key: database
            value: default
            rate_limit: { unit: second, requests_per_unit: 501 }
        ",
        &[
            (&[("database", "users")], Some("500/s fixed_window")),
            (&[("database", "default")], Some("501/s fixed_window")),
            (&[("database", "other")], None),
            (&[("Database", "users")], None),
            (&[("data", "base_users")], None),
            (&[], None),
        ],
    );
}

#[test]
fn example_2_nested_and_any_value() {
    table(
        "
        domain: messaging
        descriptors:
          - key: message_type
            value: marketing
            descriptors:
              - key: to_number
                rate_limit: { unit: day, requests_per_unit: 5 }
          - key: to_number
            rate_limit: { unit: day, requests_per_unit: 100 }
        ",
        &[
            (&[("message_type", "marketing"), ("to_number", "2061111111")], Some("5/d fixed_window")),
            (&[("to_number", "2061111111")], Some("100/d fixed_window")),
            (&[("message_type", "marketing")], None),
            (&[("message_type", "other"), ("to_number", "2061111111")], None),
        ],
    );
}

#[test]
fn example_3_a_value_comes_before_the_key_alone() {
    table(
        "
        domain: edge_proxy_per_ip
        descriptors:
          - key: remote_address
            rate_limit: { unit: second, requests_per_unit: 10 }
          - key: remote_address
            value: 50.0.0.5
            rate_limit: { unit: second, requests_per_unit: 0 }
        ",
        &[
            (&[("remote_address", "50.0.0.1")], Some("10/s fixed_window")),
            (&[("remote_address", "50.0.0.5")], Some("0 fixed_window")),
            (&[("remote_address", "")], Some("10/s fixed_window")),
        ],
    );
}

#[test]
fn example_4_as_many_entries_as_levels() {
    let two: &[_] = &[("key", "value"), ("subkey", "subvalue")];
    table(
        "
        domain: example4
        descriptors:
          - key: key
            value: value
            rate_limit: { unit: second, requests_per_unit: 300 }
        ",
        &[(two, None), (&two[..1], Some("300/s fixed_window"))],
    );
    table(
        "
        domain: example4
        descriptors:
          - key: key
            value: value
            descriptors:
              - key: subkey
                rate_limit: { unit: second, requests_per_unit: 300 }
        ",
        &[(two, Some("300/s fixed_window")), (&two[..1], None)],
    );
}

#[test]
fn example_5_unlimited() {
    table(
        "
        domain: internal
        descriptors:
          - key: ldap
            rate_limit: { unlimited: true }
          - key: azure
            rate_limit: { unit: minute, requests_per_unit: 100 }
        ",
        &[(&[("ldap", "x")], Some("unlimited")), (&[("azure", "x")], Some("100/min fixed_window"))],
    );
}

#[test]
fn example_6_any_value_above_a_value() {
    table(
        "
        domain: example6
        descriptors:
          - key: service
            descriptors:
              - key: user
                value: user-a
                rate_limit: { unit: second, requests_per_unit: 10 }
                shadow_mode: true
              - key: user
                value: user-b
                rate_limit: { unit: second, requests_per_unit: 20 }
        ",
        &[
            (&[("service", "auth-service"), ("user", "user-a")], Some("10/s fixed_window")),
            (&[("service", "auth-service"), ("user", "user-b")], Some("20/s fixed_window")),
            (&[("service", "auth-service"), ("user", "user-c")], None),
        ],
    );
}

#[test]
fn example_8_the_settings_of_its_figures_are_accepted() {
    table(
        "
        domain: example8
        descriptors:
          - key: key1
            detailed_metric: true
            rate_limit: { unit: minute, requests_per_unit: 10 }
          - key: key1
            value: value1
            value_to_metric: true
            rate_limit: { unit: minute, requests_per_unit: 20 }
        ",
        &[(&[("key1", "other")], Some("10/min fixed_window")), (&[("key1", "value1")], Some("20/min fixed_window"))],
    );
}

#[test]
fn example_9_values_with_a_star() {
    table(
        "
        domain: example9
        descriptors:
          - key: key1
            value: value*
            rate_limit: { unit: minute, requests_per_unit: 20 }
          - key: key1
            value: value_1*
            rate_limit: { unit: minute, requests_per_unit: 21 }
          - key: key1
            value: value_2
            rate_limit: { unit: minute, requests_per_unit: 22 }
          - key: key1
            rate_limit: { unit: minute, requests_per_unit: 23 }
          - key: midWild
            value: a*b*c
            rate_limit: { unit: minute, requests_per_unit: 24 }
        ",
        &[
            // The first of the file, not the longest.
            (&[("key1", "value_1")], Some("20/min fixed_window")),
            (&[("key1", "value")], Some("20/min fixed_window")),
            (&[("key1", "value_2")], Some("22/min fixed_window")),
            (&[("key1", "val")], Some("23/min fixed_window")),
            (&[("midWild", "abc")], Some("24/min fixed_window")),
            (&[("midWild", "a--b--c")], Some("24/min fixed_window")),
            (&[("midWild", "ac")], None),
            (&[("midWild", "abcd")], None),
        ],
    );
}

#[test]
fn a_way_once_taken_is_not_left() {
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
            // A value without a limit is let through.
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
fn buckets_are_told_apart() {
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
    let bucket = |descriptor: &[(&str, &str)]| met(&config, "d", descriptor).1;
    assert_ne!(bucket(&[("a", "x"), ("b", "yz")]), bucket(&[("a", "xy"), ("b", "z")]));
    assert_eq!(bucket(&[("shared", "files/a")]), bucket(&[("shared", "files/b")]));
    assert_ne!(bucket(&[("own", "files/a")]), bucket(&[("own", "files/b")]));
}
