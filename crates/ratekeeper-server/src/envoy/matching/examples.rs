//! The documented examples of envoyproxy/ratelimit by number: a file, descriptors and their limits.

use super::tests::table;

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
            (
                &[("message_type", "marketing"), ("to_number", "2061111111")],
                Some("5/d fixed_window"),
            ),
            (&[("to_number", "2061111111")], Some("100/d fixed_window")),
            (&[("message_type", "marketing")], None),
            (
                &[("message_type", "other"), ("to_number", "2061111111")],
                None,
            ),
        ],
    );
}

#[test]
fn example_3_a_value_takes_precedence_over_the_key_alone() {
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
        &[
            (&[("ldap", "x")], Some("unlimited")),
            (&[("azure", "x")], Some("100/min fixed_window")),
        ],
    );
}

#[test]
fn example_6_any_value_as_parent_of_a_value() {
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
            (
                &[("service", "auth-service"), ("user", "user-a")],
                Some("10/s fixed_window"),
            ),
            (
                &[("service", "auth-service"), ("user", "user-b")],
                Some("20/s fixed_window"),
            ),
            (&[("service", "auth-service"), ("user", "user-c")], None),
        ],
    );
}

#[test]
fn example_7_each_descriptor_has_its_limit() {
    table(
        "
        domain: example7
        descriptors:
          - key: key_1
            value: value_1
            descriptors:
              - key: user
                value: ann
                rate_limit: { name: specific_limit, unit: second, requests_per_unit: 5 }
          - key: key_2
            value: value_2
            descriptors:
              - key: user
                value: ann
                rate_limit: { replaces: [{ name: specific_limit }], unit: second, requests_per_unit: 10 }
        ",
        &[
            (&[("key_1", "value_1"), ("user", "ann")], Some("5/s fixed_window")),
            (&[("key_2", "value_2"), ("user", "ann")], Some("10/s fixed_window")),
            (&[("key_1", "value_1"), ("user", "other")], None),
            (&[("key_1", "value_1"), ("key_2", "value_2"), ("user", "ann")], None),
        ],
    );
}

#[test]
fn example_8_settings_of_statistics_are_accepted() {
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
        &[
            (&[("key1", "other")], Some("10/min fixed_window")),
            (&[("key1", "value1")], Some("20/min fixed_window")),
        ],
    );
}

#[test]
fn example_9_values_with_wildcards() {
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
            // The first match in the file, not the longest.
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
fn example_10_values_in_statistics_change_no_limit() {
    table(
        "
        domain: example10
        descriptors:
          - key: route
            value_to_metric: true
            descriptors:
              - key: http_method
                value_to_metric: true
                descriptors:
                  - key: subject_id
                    rate_limit: { unit: minute, requests_per_unit: 60 }
        ",
        &[
            (
                &[
                    ("route", "api"),
                    ("http_method", "GET"),
                    ("subject_id", "123"),
                ],
                Some("60/min fixed_window"),
            ),
            (
                &[
                    ("route", "web"),
                    ("http_method", "POST"),
                    ("subject_id", "456"),
                ],
                Some("60/min fixed_window"),
            ),
            (&[("route", "api"), ("http_method", "GET")], None),
        ],
    );
    table(
        "
        domain: example10_wildcard
        descriptors:
          - key: user
            value_to_metric: true
            descriptors:
              - key: action
                value: read*
                value_to_metric: true
                descriptors:
                  - key: resource
                    rate_limit: { unit: minute, requests_per_unit: 100 }
        ",
        &[
            (
                &[
                    ("user", "alice"),
                    ("action", "readfile"),
                    ("resource", "documents"),
                ],
                Some("100/min fixed_window"),
            ),
            (
                &[
                    ("user", "alice"),
                    ("action", "write"),
                    ("resource", "documents"),
                ],
                None,
            ),
        ],
    );
}

#[test]
fn example_11_one_bucket_for_a_wildcard() {
    table(
        "
        domain: example11
        descriptors:
          - key: files
            value: files/*
            share_threshold: true
            rate_limit: { unit: hour, requests_per_unit: 10 }
          - key: files_no_share
            value: files_no_share/*
            share_threshold: false
            rate_limit: { unit: hour, requests_per_unit: 10 }
        ",
        &[
            (&[("files", "files/a.pdf")], Some("10/h fixed_window")),
            (&[("files", "other/a.pdf")], None),
            (
                &[("files_no_share", "files_no_share/a.pdf")],
                Some("10/h fixed_window"),
            ),
        ],
    );
    table(
        "
        domain: example11_metrics
        descriptors:
          - key: route
            value: api/*
            share_threshold: true
            value_to_metric: true
            descriptors:
              - key: method
                rate_limit: { unit: minute, requests_per_unit: 60 }
        ",
        &[
            (
                &[("route", "api/v1"), ("method", "GET")],
                Some("60/min fixed_window"),
            ),
            (&[("route", "web"), ("method", "GET")], None),
        ],
    );
}

/// The files of the demonstration in envoyproxy/ratelimit.
#[test]
fn the_demonstration() {
    table(
        "
        domain: rl
        descriptors:
          - key: source_cluster
            value: proxy
            descriptors:
              - key: destination_cluster
                value: mock
                rate_limit: { unit: minute, requests_per_unit: 1 }
          - key: foo
            rate_limit: { unit: minute, requests_per_unit: 2 }
            descriptors:
              - key: bar
                rate_limit: { unit: minute, requests_per_unit: 3 }
              - key: bar
                value: banned
                rate_limit: { unit: minute, requests_per_unit: 0 }
              - key: baz
                rate_limit: { unit: second, requests_per_unit: 1 }
              - key: bay
                rate_limit: { unlimited: true }
              - key: baz
                value: shady
                rate_limit: { unit: minute, requests_per_unit: 1 }
                shadow_mode: true
          - key: qux
            rate_limit: { unlimited: true }
        ",
        &[
            (
                &[("source_cluster", "proxy"), ("destination_cluster", "mock")],
                Some("1/min fixed_window"),
            ),
            (
                &[
                    ("source_cluster", "proxy"),
                    ("destination_cluster", "other"),
                ],
                None,
            ),
            (&[("foo", "foo")], Some("2/min fixed_window")),
            (
                &[("foo", "foo"), ("bar", "bar")],
                Some("3/min fixed_window"),
            ),
            (
                &[("foo", "foo"), ("bar", "banned")],
                Some("0/min fixed_window"),
            ),
            (&[("foo", "foo"), ("baz", "baz")], Some("1/s fixed_window")),
            (
                &[("foo", "foo"), ("baz", "not-so-shady")],
                Some("1/s fixed_window"),
            ),
            (
                &[("foo", "foo"), ("baz", "shady")],
                Some("1/min fixed_window"),
            ),
            (&[("foo", "foo"), ("bay", "bay")], Some("unlimited")),
            (&[("qux", "x")], Some("unlimited")),
        ],
    );
    table(
        "
        domain: quota
        descriptors:
          - key: service
            value: service_1
            quota_mode: true
            rate_limit: { unit: minute, requests_per_unit: 1 }
          - key: service
            value: service_2
            quota_mode: true
            rate_limit: { unit: minute, requests_per_unit: 2 }
        ",
        &[
            (&[("service", "service_1")], Some("1/min fixed_window")),
            (&[("service", "service_2")], Some("2/min fixed_window")),
            (&[("service", "service_3")], None),
        ],
    );
}
