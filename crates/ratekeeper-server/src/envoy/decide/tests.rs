use super::*;
use crate::envoy::proto::{DescriptorStatus, Entry, RateLimitOverride};
use crate::envoy::rules::Settings;
use ratekeeper::{ManualClock, MemoryStore, store::OnFailure};
use ratekeeper_testkit::poll::assert_ready;

pub(super) const OK: i32 = 1;
pub(super) const OVER: i32 = 2;

pub(super) const FREE: Settings = Settings {
    enabled: true,
    denied_hits_consume: false,
    response_headers: false,
    dynamic_metadata: false,
    on_failure: OnFailure::LocalShare,
};

const YAML: &str = "
domain: d
descriptors:
  - key: minute
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: hour
    rate_limit: { unit: hour, requests_per_unit: 10, name: hourly }
  - key: shadow
    rate_limit: { unit: minute, requests_per_unit: 1 }
    shadow_mode: true
  - key: free
    rate_limit: { unlimited: true }
  - key: instead
    rate_limit: { unit: minute, requests_per_unit: 5, replaces: [{ name: hourly }] }
  - key: one
    rate_limit: { unit: minute, requests_per_unit: 1 }
    quota_mode: true
  - key: two
    rate_limit: { unit: minute, requests_per_unit: 2 }
    quota_mode: true
  - key: watched
    rate_limit: { unit: minute, requests_per_unit: 5 }
    quota_mode: true
    shadow_mode: true
  - key: bucket
    rate_limit: { unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 4 }
  - key: never
    rate_limit: { unit: minute, requests_per_unit: 0 }
";

const AFTER: &str = "
domain: d
descriptors:
  - key: tokens
    rate_limit: { unit: day, requests_per_unit: 50 }
  - key: hour
    rate_limit: { unit: hour, requests_per_unit: 100 }
  - key: few
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: shadow
    rate_limit: { unit: minute, requests_per_unit: 3 }
    shadow_mode: true
  - key: one
    rate_limit: { unit: minute, requests_per_unit: 1 }
    quota_mode: true
    metadata: { tier: [gold, 1, true], of: { a: 1 } }
  - key: two
    rate_limit: { unit: minute, requests_per_unit: 2 }
    quota_mode: true
    metadata: { tier: silver, of: { a: 2, b: 2 } }
  - key: slow
    rate_limit: { unit: day, requests_per_unit: 1 }
    quota_mode: true
  - key: free
    rate_limit: { unlimited: true }
    metadata: { tier: none, free: true }
  - key: bucket
    rate_limit: { unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 5 }
";

pub(super) struct TestEnvoy {
    pub(super) envoy: Envoy<ManualClock>,
    pub(super) clock: ManualClock,
}

impl TestEnvoy {
    fn new(settings: Settings) -> Self {
        Self::of(YAML, settings)
    }

    pub(super) fn of(yaml: &str, settings: Settings) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        let envoy = Envoy::new(AnyStore::Memory(store));
        envoy.replace(config(yaml), settings).unwrap();
        // In the middle of a minute, 30 s before its end.
        let past = clock.now().as_unix_nanos() % 60_000_000_000;
        clock.advance(Duration::from_nanos(90_000_000_000 - past));
        Self { envoy, clock }
    }

    pub(super) fn decide(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, DecideError> {
        assert_ready(self.envoy.decide(request, None))
    }

    /// Code and remaining of all descriptors.
    fn codes_and_remaining(&self, descriptors: &[RateLimitDescriptor]) -> (i32, Vec<(i32, u32)>) {
        let response = self.decide(&request(descriptors)).unwrap();
        let statuses = response
            .statuses
            .iter()
            .map(|status| (status.code, status.limit_remaining))
            .collect();
        (response.overall_code, statuses)
    }
}

fn config(yaml: &str) -> EnvoyConfig {
    let mut config = EnvoyConfig::default();
    config
        .add("test.yaml", yaml)
        .unwrap_or_else(|error| panic!("{error}"));
    config
}

fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "d".into(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

fn of(key: &str) -> RateLimitDescriptor {
    let entries = vec![Entry {
        key: key.into(),
        value: "v".into(),
    }];
    RateLimitDescriptor {
        entries,
        limit: None,
        hits_addend: None,
        is_negative_hits: false,
    }
}

fn hits(key: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(hits),
        ..of(key)
    }
}

fn refund(key: &str, count: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(key, count)
    }
}

#[test]
fn statuses_are_complete_and_in_order() {
    let envoy = TestEnvoy::new(FREE);
    let response = envoy
        .decide(&request(&[
            of("hour"),
            of("unknown"),
            of("free"),
            of("minute"),
        ]))
        .unwrap();
    let limit = |requests_per_unit, unit, name: &str| {
        use crate::envoy::proto::RateLimit;
        Some(RateLimit {
            name: name.into(),
            requests_per_unit,
            unit,
        })
    };
    let [hour, unknown, free, minute] = &response.statuses[..] else {
        panic!("{response:?}")
    };
    assert_eq!((hour.code, hour.limit_remaining), (OK, 9));
    assert_eq!(hour.current_limit, limit(10, 3, "hourly"));
    assert_eq!(
        *unknown,
        DescriptorStatus {
            code: OK,
            ..Default::default()
        }
    );
    assert_eq!(
        *free,
        DescriptorStatus {
            code: OK,
            limit_remaining: u32::MAX,
            ..Default::default()
        }
    );
    assert_eq!((minute.code, minute.limit_remaining), (OK, 2));
    assert_eq!(minute.current_limit, limit(3, 2, ""));
    assert_eq!(minute.duration_until_reset.unwrap().seconds, 30);
    assert!(response.response_headers_to_add.is_empty() && response.dynamic_metadata.is_none());
}

#[test]
fn all_or_nothing() {
    let envoy = TestEnvoy::new(FREE);
    for left in [2, 1, 0] {
        assert_eq!(
            envoy.codes_and_remaining(&[of("minute")]),
            (OK, vec![(OK, left)])
        );
    }
    // The hour allows it, but is not charged for what the minute denies.
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour"), of("minute")]),
        (OVER, vec![(OK, 10), (OVER, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour")]),
        (OK, vec![(OK, 9)])
    );
    let over = envoy.decide(&request(&[of("minute")])).unwrap();
    let header = &over.response_headers_to_add[0];
    assert_eq!((&*header.key, &*header.value), ("Retry-After", "30"));
    envoy.clock.advance(Duration::from_secs(30));
    assert_eq!(
        envoy.codes_and_remaining(&[of("minute")]),
        (OK, vec![(OK, 2)])
    );
    assert_eq!(envoy.envoy.totals(), (5, 2));
}

#[test]
fn denied_hits_may_consume_as_in_envoyproxy_ratelimit() {
    let envoy = TestEnvoy::new(Settings {
        denied_hits_consume: true,
        ..FREE
    });
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", 2)]),
        (OK, vec![(OK, 1)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour"), hits("minute", 2)]),
        (OVER, vec![(OK, 9), (OVER, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("minute")]),
        (OVER, vec![(OVER, 0)])
    );
}

/// Envoy with 0 hits before a request and the hits that it used, such as tokens of a model, after
/// the response.
#[test]
fn hits_charged_after_the_response_limit_the_next_request() {
    for consume in [false, true] {
        let envoy = TestEnvoy::of(
            AFTER,
            Settings {
                denied_hits_consume: consume,
                ..FREE
            },
        );
        let answered = (0..30).filter(|_| {
            let passes = envoy.codes_and_remaining(&[hits("tokens", 0)]).0 == OK;
            if passes {
                envoy.codes_and_remaining(&[hits("tokens", 20)]);
            }
            passes
        });
        // 20, 40, and the third uses up the last 10.
        assert_eq!(answered.count(), 3, "consume: {consume}");
    }
}

#[test]
fn denied_hits_use_up_the_rest_of_exceeded_limits() {
    let envoy = TestEnvoy::of(AFTER, FREE);
    let left = |key: &str| envoy.codes_and_remaining(&[refund(key, 0)]).1[0].1;
    // The day has less than 60 left; the hour has enough and is not charged, nor is another bucket.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("tokens", 60), hits("hour", 60)]),
        (OVER, vec![(OVER, 0), (OK, 100)])
    );
    assert_eq!((left("tokens"), left("hour")), (0, 100));
    // Two limits without enough hits are both used up.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("few", 11), hits("hour", 101)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    assert_eq!((left("few"), left("hour")), (0, 0));
    // A single denied hit costs nothing.
    let envoy = TestEnvoy::of(AFTER, FREE);
    envoy.codes_and_remaining(&[hits("few", 10)]);
    envoy.codes_and_remaining(&[of("few"), hits("tokens", 20)]);
    assert_eq!(
        envoy.codes_and_remaining(&[hits("tokens", 0)]),
        (OK, vec![(OK, 50)])
    );
    // Nor do two single hits of one bucket with one left; one of several does.
    envoy.codes_and_remaining(&[hits("hour", 99)]);
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour"), of("hour")]),
        (OVER, vec![(OVER, 1), (OVER, 1)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour"), hits("hour", 2)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    // A shadow counts as if enforced, and the request is allowed.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("shadow", 4)]),
        (OK, vec![(OK, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[refund("shadow", 0)]),
        (OK, vec![(OK, 0)])
    );
}

#[test]
fn retry_after_of_a_used_up_limit_is_its_reset() {
    let envoy = TestEnvoy::of(AFTER, FREE);
    let retry_after = |descriptors: &[RateLimitDescriptor]| {
        let headers = envoy
            .decide(&request(descriptors))
            .unwrap()
            .response_headers_to_add;
        headers
            .iter()
            .find(|header| header.key == "Retry-After")
            .map(|header| header.value.clone())
    };
    // 4 of 5 are left; once they are used up it takes 5 s until 5 are.
    assert_eq!(envoy.codes_and_remaining(&[of("bucket")]).0, OK);
    assert_eq!(retry_after(&[hits("bucket", 5)]).as_deref(), Some("5"));
    // One hit waits for one.
    assert_eq!(retry_after(&[of("bucket")]).as_deref(), Some("1"));
    // More than the capacity is never allowed.
    assert_eq!(retry_after(&[hits("bucket", 6)]), None);
}

#[test]
fn consumed_hits_count_in_every_exceeded_limit() {
    let envoy = TestEnvoy::of(
        AFTER,
        Settings {
            denied_hits_consume: true,
            ..FREE
        },
    );
    let left = |key: &str| envoy.codes_and_remaining(&[refund(key, 0)]).1[0].1;
    // A shadow with more hits than are left, in a request that is allowed.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("shadow", 2)]),
        (OK, vec![(OK, 1)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("shadow", 2), of("hour")]),
        (OK, vec![(OK, 0), (OK, 99)])
    );
    assert_eq!(left("shadow"), 0);
    // Two descriptors in one bucket.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("few", 6), hits("few", 6)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    assert_eq!(
        (envoy.codes_and_remaining(&[of("few")]).0, left("few")),
        (OVER, 0)
    );
    // Quotas that deny together.
    for (left_one, left_two, answer) in [(0, 1, OK), (0, 0, OK), (0, 0, OVER), (0, 0, OVER)] {
        assert_eq!(
            envoy
                .codes_and_remaining(&[of("one"), of("two"), of("tokens")])
                .0,
            answer
        );
        assert_eq!((left("one"), left("two")), (left_one, left_two));
    }
    // What they denied was consumed elsewhere: four times one of 50.
    assert_eq!(left("tokens"), 46);
    // A quota without enough hits, where another one has enough.
    envoy.clock.advance(Duration::from_secs(60));
    assert_eq!(
        envoy.codes_and_remaining(&[hits("two", 3), of("one")]),
        (OK, vec![(OVER, 0), (OK, 0)])
    );
    assert_eq!(left("two"), 0);
}

#[test]
fn hits_of_the_request_and_of_a_descriptor() {
    let envoy = TestEnvoy::new(FREE);
    let several = RateLimitRequest {
        hits_addend: 3,
        ..request(&[of("hour"), hits("minute", 1)])
    };
    let response = envoy.decide(&several).unwrap();
    assert_eq!(
        response
            .statuses
            .iter()
            .map(|status| status.limit_remaining)
            .collect::<Vec<_>>(),
        [7, 2]
    );
    // A peek charges nothing, and is over if nothing is left.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", 0)]),
        (OK, vec![(OK, 2)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", 2)]),
        (OK, vec![(OK, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", 0)]),
        (OVER, vec![(OVER, 0)])
    );
    // A refund cannot exceed what was used.
    assert_eq!(
        envoy.codes_and_remaining(&[refund("minute", 1)]),
        (OK, vec![(OK, 1)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[refund("minute", u64::MAX)]),
        (OK, vec![(OK, 3)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", u64::MAX)]),
        (OVER, vec![(OVER, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[refund("minute", 3)]),
        (OK, vec![(OK, 3)])
    );
    // The same bucket twice in a request costs twice.
    assert_eq!(
        envoy
            .codes_and_remaining(&[hits("minute", 2), hits("minute", 2)])
            .0,
        OVER
    );
}

#[test]
fn a_descriptor_may_override_the_limit() {
    let envoy = TestEnvoy::new(FREE);
    let own = |requests_per_unit, unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
        }),
        ..of("minute")
    };
    assert_eq!(envoy.codes_and_remaining(&[own(2, 3)]), (OK, vec![(OK, 1)]));
    assert_eq!(envoy.codes_and_remaining(&[own(2, 3)]), (OK, vec![(OK, 0)]));
    assert_eq!(
        envoy.codes_and_remaining(&[own(2, 3)]),
        (OVER, vec![(OVER, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("minute")]),
        (OK, vec![(OK, 2)])
    );
    let limit = envoy.decide(&request(&[own(7, 6)])).unwrap().statuses[0]
        .current_limit
        .clone()
        .unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (7, 6));
    assert!(matches!(
        envoy.decide(&request(&[own(1, 0)])),
        Err(DecideError::Invalid(_))
    ));
    assert!(matches!(
        envoy.decide(&request(&[own(1, 99)])),
        Err(DecideError::Invalid(_))
    ));
}

#[test]
fn limits_in_requests_are_bounded() {
    let envoy = TestEnvoy::new(FREE);
    let own = |requests_per_unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: 3,
        }),
        ..of("minute")
    };
    let bound = u32::try_from(MAX_OVERRIDES).unwrap();
    for number in 1..=bound {
        envoy.decide(&request(&[own(number)])).unwrap();
    }
    let one_more = envoy.decide(&request(&[own(bound + 1)]));
    assert!(matches!(one_more, Err(DecideError::Unavailable(_))));
    assert_eq!(
        envoy.codes_and_remaining(&[own(2)]).0,
        OK,
        "a limit that was sent before"
    );
}

#[test]
fn shadow_mode_counts_and_never_denies() {
    let envoy = TestEnvoy::new(FREE);
    assert_eq!(
        envoy.codes_and_remaining(&[of("shadow")]),
        (OK, vec![(OK, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("shadow"), of("minute")]),
        (OK, vec![(OK, 0), (OK, 2)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("shadow", 0)]),
        (OK, vec![(OK, 0)])
    );
    let stats = envoy.envoy.stats();
    let shadow = stats.iter().find(|rule| rule.path == "d.shadow").unwrap();
    assert_eq!(
        (shadow.allowed, shadow.denied, shadow.shadow_denied),
        (1, 0, 2)
    );
}

#[test]
fn a_replaced_limit_is_neither_charged_nor_in_the_response() {
    let envoy = TestEnvoy::new(FREE);
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour"), of("minute"), of("instead")]),
        (OK, vec![(OK, 0), (OK, 2), (OK, 4)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("hour")]),
        (OK, vec![(OK, 9)])
    );
}

#[test]
fn quotas_deny_together() {
    let envoy = TestEnvoy::new(FREE);
    let all = [of("one"), of("two"), of("hour")];
    assert_eq!(
        envoy.codes_and_remaining(&all),
        (OK, vec![(OK, 0), (OK, 1), (OK, 9)])
    );
    // An exhausted quota is over, though another one allows the request.
    assert_eq!(
        envoy.codes_and_remaining(&all),
        (OK, vec![(OVER, 0), (OK, 0), (OK, 8)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&all),
        (OVER, vec![(OVER, 0), (OVER, 0), (OK, 8)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[hits("one", 0), hits("two", 0)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    // Another limit still denies alone.
    assert_eq!(
        envoy
            .codes_and_remaining(&[hits("two", 0), hits("minute", 4)])
            .0,
        OVER
    );
    envoy.clock.advance(Duration::from_secs(60));
    assert_eq!(envoy.codes_and_remaining(&[of("one")]).0, OK);
    // In shadow mode a quota is never over, so that it and others never deny together.
    assert_eq!(
        envoy.codes_and_remaining(&[hits("watched", 6), of("one")]),
        (OK, vec![(OK, 0), (OVER, 0)])
    );
    let counts = envoy.envoy.stats();
    let one = counts.iter().find(|rule| rule.path == "d.one").unwrap();
    // Allowed twice; over while another quota allowed it twice; denied twice.
    assert_eq!((one.allowed, one.denied, one.shadow_denied), (2, 2, 2));
}

/// The quota that refills first allows the request again.
#[test]
fn retry_after_of_quotas_is_that_of_the_first_to_refill() {
    let envoy = TestEnvoy::of(AFTER, FREE);
    let both = [of("one"), of("slow")];
    assert_eq!(
        (
            envoy.codes_and_remaining(&both).0,
            envoy.codes_and_remaining(&both).0
        ),
        (OK, OVER)
    );
    let retry_after = |descriptors: &[RateLimitDescriptor]| {
        let headers = envoy
            .decide(&request(descriptors))
            .unwrap()
            .response_headers_to_add;
        headers
            .iter()
            .find(|header| header.key == "Retry-After")
            .map(|header| header.value.clone())
    };
    assert_eq!(retry_after(&both).as_deref(), Some("30"));
    // Denied by a limit while a quota allows it, it waits for the limit, not for the other quota.
    envoy.codes_and_remaining(&[hits("few", 10)]);
    assert_eq!(
        retry_after(&[of("slow"), of("two"), of("few")]).as_deref(),
        Some("30")
    );
}

#[test]
fn dynamic_metadata_merges_that_of_limits_that_are_not_over() {
    let envoy = TestEnvoy::of(
        AFTER,
        Settings {
            dynamic_metadata: true,
            ..FREE
        },
    );
    let metadata = |request: RateLimitRequest| {
        crate::envoy::json::object(&envoy.decide(&request).unwrap().dynamic_metadata.unwrap())
    };
    let own = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 7,
            unit: 6,
        }),
        ..of("hour")
    };
    let asked = [of("one"), hits("two", 1), own, of("unknown"), of("free")];
    let entries = serde_json::json!([
        { "entries": ["one=v"] },
        { "entries": ["two=v"], "hitsAddend": 1 },
        { "entries": ["hour=v"], "limit": "requests_per_unit:7 unit:YEAR" },
        { "entries": ["unknown=v"] },
        { "entries": ["free=v"] },
    ]);
    assert_eq!(
        metadata(request(&asked)),
        serde_json::json!({
            "domain": "d",
            "descriptors": entries,
            // Structures are merged; of other values the first stays. An unlimited descriptor adds
            // nothing.
            "metadata": { "tier": ["gold", 1, true], "of": { "a": 1, "b": 2 } },
        })
    );
    // The first is over its limit now, and adds nothing.
    assert_eq!(
        metadata(RateLimitRequest {
            hits_addend: 1,
            ..request(&asked)
        }),
        serde_json::json!({
            "domain": "d",
            "descriptors": entries,
            "hitsAddend": 1,
            "metadata": { "tier": "silver", "of": { "a": 2, "b": 2 } },
        })
    );
    assert_eq!(
        metadata(request(&[of("one"), of("two")])),
        serde_json::json!({ "domain": "d", "descriptors": [{ "entries": ["one=v"] }, { "entries": ["two=v"] }] })
    );
}

#[test]
fn other_algorithms_and_a_limit_of_zero() {
    let envoy = TestEnvoy::new(Settings {
        response_headers: true,
        ..FREE
    });
    assert_eq!(
        envoy.codes_and_remaining(&[hits("bucket", 4)]),
        (OK, vec![(OK, 0)])
    );
    assert_eq!(
        envoy.codes_and_remaining(&[of("bucket")]),
        (OVER, vec![(OVER, 0)])
    );
    envoy.clock.advance(Duration::from_secs(1));
    assert_eq!(
        envoy.codes_and_remaining(&[of("bucket")]),
        (OK, vec![(OK, 0)])
    );
    let never = envoy.decide(&request(&[of("never"), of("hour")])).unwrap();
    let headers: Vec<_> = never
        .response_headers_to_add
        .iter()
        .map(|one| (&*one.key, &*one.value))
        .collect();
    assert_eq!((never.overall_code, never.statuses[0].code), (OVER, OVER));
    assert!(never.statuses[0].duration_until_reset.unwrap().seconds > 0);
    // Waiting does not help.
    assert_eq!(
        headers[..2],
        [("RateLimit-Limit", "0"), ("RateLimit-Remaining", "0")]
    );
}

#[test]
fn invalid_requests_are_rejected_and_unknown_ones_allowed() {
    let envoy = TestEnvoy::new(FREE);
    let nowhere = RateLimitRequest {
        domain: String::new(),
        ..request(&[of("minute")])
    };
    assert!(matches!(
        envoy.decide(&nowhere),
        Err(DecideError::Invalid(_))
    ));
    assert!(matches!(
        envoy.decide(&request(&[])),
        Err(DecideError::Invalid(_))
    ));
    let elsewhere = RateLimitRequest {
        domain: "e".into(),
        ..request(&[of("minute"), of("never")])
    };
    let response = envoy.decide(&elsewhere).unwrap();
    assert_eq!((response.overall_code, response.statuses.len()), (OK, 2));
    assert!(
        response
            .statuses
            .iter()
            .all(|status| status.code == OK && status.current_limit.is_none())
    );
    envoy
        .envoy
        .replace(
            config(YAML),
            Settings {
                enabled: false,
                ..FREE
            },
        )
        .unwrap();
    assert_eq!(
        envoy.codes_and_remaining(&[of("never")]),
        (OK, vec![(OK, 0)])
    );
}

#[test]
fn a_changed_file_keeps_counts() {
    let envoy = TestEnvoy::new(FREE);
    assert_eq!(
        envoy.codes_and_remaining(&[hits("minute", 2)]),
        (OK, vec![(OK, 1)])
    );
    let more = YAML.replace("requests_per_unit: 3", "requests_per_unit: 5");
    envoy.envoy.replace(config(&more), FREE).unwrap();
    let (_, statuses) = envoy.codes_and_remaining(&[of("minute")]);
    assert!(statuses[0].1 <= 2, "{statuses:?}");
    // Removed for a while, and added again.
    envoy.envoy.replace(config("domain: d"), FREE).unwrap();
    assert_eq!(
        envoy.codes_and_remaining(&[of("minute")]),
        (OK, vec![(OK, 0)])
    );
    envoy.envoy.replace(config(&more), FREE).unwrap();
    assert!(envoy.codes_and_remaining(&[of("minute")]).1[0].1 <= 1);
}
