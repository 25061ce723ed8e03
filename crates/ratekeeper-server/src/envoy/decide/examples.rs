//! The documented examples of envoyproxy/ratelimit with several descriptors or with state: the
//! response to each request.

use super::tests::{FREE, OK, OVER, TestEnvoy};
use crate::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest};

/// A descriptor.
type Entries<'a> = &'a [(&'a str, &'a str)];

struct Example {
    envoy: TestEnvoy,
    domain: &'static str,
}

impl Example {
    fn new(domain: &'static str, descriptors: &str) -> Self {
        Self {
            envoy: TestEnvoy::of(
                &format!("domain: {domain}\ndescriptors:\n{descriptors}"),
                FREE,
            ),
            domain,
        }
    }

    /// The overall code, and the code, limit and remaining hits of each descriptor.
    fn codes_and_limits(&self, descriptors: &[Entries<'_>]) -> (i32, Vec<(i32, Option<u32>, u32)>) {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).into(),
            value: (*value).into(),
        };
        let descriptor = |entries: &Entries<'_>| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        let descriptors = descriptors.iter().map(descriptor).collect();
        let request = RateLimitRequest {
            domain: self.domain.into(),
            descriptors,
            hits_addend: 0,
        };
        let response = self.envoy.decide(&request).unwrap();
        let statuses = response.statuses.iter().map(|status| {
            let limit = status
                .current_limit
                .as_ref()
                .map(|limit| limit.requests_per_unit);
            (status.code, limit, status.limit_remaining)
        });
        (response.overall_code, statuses.collect())
    }

    /// Number of consecutive allowed requests, up to `max`.
    fn passes(&self, descriptor: Entries<'_>, max: usize) -> usize {
        (0..max)
            .take_while(|_| self.codes_and_limits(&[descriptor]).0 == OK)
            .count()
    }
}

#[test]
fn example_2_a_number_is_counted_twice() {
    let example = Example::new(
        "messaging",
        "
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: to_number
    rate_limit: { unit: day, requests_per_unit: 100 }
",
    );
    let marketing: Entries<'_> = &[("message_type", "marketing"), ("to_number", "2061111111")];
    let both = [marketing, &marketing[1..]];
    for left in (0..5).rev() {
        assert_eq!(
            example.codes_and_limits(&both),
            (OK, vec![(OK, Some(5), left), (OK, Some(100), left + 95)])
        );
    }
    // Either limit denies the request, and a denied request is not counted anywhere.
    assert_eq!(
        example.codes_and_limits(&both),
        (OVER, vec![(OVER, Some(5), 0), (OK, Some(100), 95)])
    );
    let other: Entries<'_> = &[("message_type", "marketing"), ("to_number", "2062222222")];
    assert_eq!(
        example.codes_and_limits(&[other]),
        (OK, vec![(OK, Some(5), 4)])
    );
}

#[test]
fn example_3_a_denied_address() {
    let example = Example::new(
        "edge_proxy_per_ip",
        "
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 10 }
  - key: remote_address
    value: 50.0.0.5
    rate_limit: { unit: second, requests_per_unit: 0 }
",
    );
    assert_eq!(
        example.codes_and_limits(&[&[("remote_address", "50.0.0.5")]]),
        (OVER, vec![(OVER, Some(0), 0)])
    );
    assert_eq!(example.passes(&[("remote_address", "50.0.0.1")], 20), 10);
    assert_eq!(example.passes(&[("remote_address", "50.0.0.2")], 20), 10);
}

#[test]
fn example_5_unlimited_differs_from_unknown() {
    let example = Example::new(
        "internal",
        "\n  - key: ldap\n    rate_limit: { unlimited: true }\n",
    );
    let (code, statuses) = example.codes_and_limits(&[&[("ldap", "x")], &[("unknown", "x")]]);
    assert_eq!(code, OK);
    assert_eq!((statuses[0].0, statuses[0].2), (OK, u32::MAX));
    assert_eq!(statuses[1], (OK, None, 0));
}

#[test]
fn example_6_shadow_mode() {
    let example = Example::new(
        "example6",
        "
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
    );
    assert_eq!(
        example.passes(&[("service", "auth-service"), ("user", "user-a")], 50),
        50
    );
    assert_eq!(
        example.passes(&[("service", "auth-service"), ("user", "user-b")], 50),
        20
    );
    let stats = example.envoy.envoy.stats();
    assert!(
        stats
            .iter()
            .any(|rule| (rule.allowed, rule.shadow_denied) == (10, 40))
    );
}

#[test]
fn example_7_a_limit_replaces_another() {
    let example = Example::new(
        "example7",
        "
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
    );
    let first: Entries<'_> = &[("key_1", "value_1"), ("user", "ann")];
    let second: Entries<'_> = &[("key_2", "value_2"), ("user", "ann")];
    for left in (0..10).rev() {
        let (code, statuses) = example.codes_and_limits(&[first, second]);
        assert_eq!((code, statuses[1]), (OK, (OK, Some(10), left)));
    }
    assert_eq!(example.codes_and_limits(&[first, second]).0, OVER);
    // The replaced limit was not charged.
    assert_eq!(example.passes(first, 20), 5);
}

#[test]
fn example_11_a_shared_threshold() {
    let example = Example::new(
        "example11",
        "
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: { unit: hour, requests_per_unit: 10 }
  - key: files_no_share
    value: files_no_share/*
    share_threshold: false
    rate_limit: { unit: hour, requests_per_unit: 10 }
",
    );
    assert_eq!(example.passes(&[("files", "files/a.pdf")], 5), 5);
    assert_eq!(example.passes(&[("files", "files/b.csv")], 20), 5);
    assert_eq!(example.passes(&[("files", "files/c.txt")], 20), 0);
    assert_eq!(
        example.passes(&[("files_no_share", "files_no_share/a.pdf")], 20),
        10
    );
    assert_eq!(
        example.passes(&[("files_no_share", "files_no_share/b.csv")], 20),
        10
    );
}

#[test]
fn quotas_of_the_demonstration() {
    let example = Example::new(
        "quota",
        "
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
",
    );
    let both: [Entries<'_>; 2] = [&[("service", "service_1")], &[("service", "service_2")]];
    // Over only when both are.
    let codes: Vec<i32> = (0..4).map(|_| example.codes_and_limits(&both).0).collect();
    assert_eq!(codes, [OK, OK, OVER, OVER]);
}
