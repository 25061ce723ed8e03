use super::*;
use crate::envoy::rules::Settings;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use envoy_types::pb::google::protobuf::UInt64Value;
use ratekeeper::{ManualClock, MemoryStore, store::OnFailure};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

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

pub(super) struct Judge {
    pub(super) envoy: Envoy<ManualClock>,
    pub(super) clock: ManualClock,
}

impl Judge {
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

    /// In memory there is nothing to wait for.
    pub(super) fn answer(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, DecideError> {
        match pin!(self.envoy.judge(request, None)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => unreachable!(),
        }
    }

    /// Code and remaining of all descriptors.
    fn told(&self, descriptors: &[RateLimitDescriptor]) -> (i32, Vec<(i32, u32)>) {
        let response = self.answer(&request(descriptors)).unwrap();
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
        .unwrap_or_else(|wrong| panic!("{wrong}"));
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
        hits_addend: Some(UInt64Value { value: hits }),
        ..of(key)
    }
}

fn refund(key: &str, many: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(key, many)
    }
}

#[test]
fn statuses_are_complete_and_in_order() {
    let judge = Judge::new(FREE);
    let response = judge
        .answer(&request(&[
            of("hour"),
            of("unknown"),
            of("free"),
            of("minute"),
        ]))
        .unwrap();
    let limit = |requests_per_unit, unit, name: &str| {
        use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
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
    let judge = Judge::new(FREE);
    for left in [2, 1, 0] {
        assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, left)]));
    }
    // The hour has room, and is not charged for what the minute turns away.
    assert_eq!(
        judge.told(&[of("hour"), of("minute")]),
        (OVER, vec![(OK, 10), (OVER, 0)])
    );
    assert_eq!(judge.told(&[of("hour")]), (OK, vec![(OK, 9)]));
    let over = judge.answer(&request(&[of("minute")])).unwrap();
    let header = &over.response_headers_to_add[0];
    assert_eq!((&*header.key, &*header.value), ("Retry-After", "30"));
    judge.clock.advance(Duration::from_secs(30));
    assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, 2)]));
    assert_eq!(judge.envoy.totals(), (5, 2));
}

#[test]
fn denied_hits_may_consume_as_in_envoyproxy_ratelimit() {
    let judge = Judge::new(Settings {
        denied_hits_consume: true,
        ..FREE
    });
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 1)]));
    assert_eq!(
        judge.told(&[of("hour"), hits("minute", 2)]),
        (OVER, vec![(OK, 9), (OVER, 0)])
    );
    assert_eq!(judge.told(&[of("minute")]), (OVER, vec![(OVER, 0)]));
}

/// Envoy with 0 hits before a request and the hits that it used, such as tokens of a model, after
/// the response.
#[test]
fn hits_charged_after_the_response_limit_the_next_request() {
    for consume in [false, true] {
        let judge = Judge::of(
            AFTER,
            Settings {
                denied_hits_consume: consume,
                ..FREE
            },
        );
        let answered = (0..30).filter(|_| {
            let passes = judge.told(&[hits("tokens", 0)]).0 == OK;
            if passes {
                judge.told(&[hits("tokens", 20)]);
            }
            passes
        });
        // 20, 40, and the third uses up the last 10.
        assert_eq!(answered.count(), 3, "consume: {consume}");
    }
}

#[test]
fn free_hits_that_do_not_fit_use_up_what_is_left_of_the_limits_that_were_short() {
    let judge = Judge::of(AFTER, FREE);
    let left = |key: &str| judge.told(&[refund(key, 0)]).1[0].1;
    // The day is short of 60, the hour is not and stays as it was; a bucket of its own too.
    assert_eq!(
        judge.told(&[hits("tokens", 60), hits("hour", 60)]),
        (OVER, vec![(OVER, 0), (OK, 100)])
    );
    assert_eq!((left("tokens"), left("hour")), (0, 100));
    // Two that are short are both used up.
    assert_eq!(
        judge.told(&[hits("few", 11), hits("hour", 101)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    assert_eq!((left("few"), left("hour")), (0, 0));
    // One hit that does not fit costs nothing, whatever it waits for.
    let judge = Judge::of(AFTER, FREE);
    judge.told(&[hits("few", 10)]);
    judge.told(&[of("few"), hits("tokens", 20)]);
    assert_eq!(judge.told(&[hits("tokens", 0)]), (OK, vec![(OK, 50)]));
    // Nor do two single hits of one bucket with one left; one of several does.
    judge.told(&[hits("hour", 99)]);
    assert_eq!(
        judge.told(&[of("hour"), of("hour")]),
        (OVER, vec![(OVER, 1), (OVER, 1)])
    );
    assert_eq!(
        judge.told(&[of("hour"), hits("hour", 2)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    // A shadow counts as it would if it were enforced, and the request passes.
    assert_eq!(judge.told(&[hits("shadow", 4)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[refund("shadow", 0)]), (OK, vec![(OK, 0)]));
}

#[test]
fn what_was_used_up_comes_back_when_all_of_it_does() {
    let judge = Judge::of(AFTER, FREE);
    let retry_after = |descriptors: &[RateLimitDescriptor]| {
        let headers = judge
            .answer(&request(descriptors))
            .unwrap()
            .response_headers_to_add;
        headers
            .iter()
            .find(|header| header.key == "Retry-After")
            .map(|header| header.value.clone())
    };
    // 4 of 5 are there; once they are used up it takes 5 s until 5 are.
    assert_eq!(judge.told(&[of("bucket")]).0, OK);
    assert_eq!(retry_after(&[hits("bucket", 5)]).as_deref(), Some("5"));
    // One hit waits for one.
    assert_eq!(retry_after(&[of("bucket")]).as_deref(), Some("1"));
    // More than there ever is never passes.
    assert_eq!(retry_after(&[hits("bucket", 6)]), None);
}

#[test]
fn consumed_hits_count_wherever_they_do_not_fit() {
    let judge = Judge::of(
        AFTER,
        Settings {
            denied_hits_consume: true,
            ..FREE
        },
    );
    let left = |key: &str| judge.told(&[refund(key, 0)]).1[0].1;
    // A shadow with more hits than are left, in a request that passes.
    assert_eq!(judge.told(&[hits("shadow", 2)]), (OK, vec![(OK, 1)]));
    assert_eq!(
        judge.told(&[hits("shadow", 2), of("hour")]),
        (OK, vec![(OK, 0), (OK, 99)])
    );
    assert_eq!(left("shadow"), 0);
    // Two descriptors in one bucket.
    assert_eq!(
        judge.told(&[hits("few", 6), hits("few", 6)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    assert_eq!((judge.told(&[of("few")]).0, left("few")), (OVER, 0));
    // Quotas that deny together.
    for (left_one, left_two, answer) in [(0, 1, OK), (0, 0, OK), (0, 0, OVER), (0, 0, OVER)] {
        assert_eq!(judge.told(&[of("one"), of("two"), of("tokens")]).0, answer);
        assert_eq!((left("one"), left("two")), (left_one, left_two));
    }
    // What they denied was consumed elsewhere: four times one of 50.
    assert_eq!(left("tokens"), 46);
    // A quota that is short, where another has room.
    judge.clock.advance(Duration::from_secs(60));
    assert_eq!(
        judge.told(&[hits("two", 3), of("one")]),
        (OK, vec![(OVER, 0), (OK, 0)])
    );
    assert_eq!(left("two"), 0);
}

#[test]
fn hits_of_the_request_and_of_a_descriptor() {
    let judge = Judge::new(FREE);
    let several = RateLimitRequest {
        hits_addend: 3,
        ..request(&[of("hour"), hits("minute", 1)])
    };
    let response = judge.answer(&several).unwrap();
    assert_eq!(
        response
            .statuses
            .iter()
            .map(|status| status.limit_remaining)
            .collect::<Vec<_>>(),
        [7, 2]
    );
    // A peek charges nothing, and says whether there is room.
    assert_eq!(judge.told(&[hits("minute", 0)]), (OK, vec![(OK, 2)]));
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[hits("minute", 0)]), (OVER, vec![(OVER, 0)]));
    // More than was used does not come back.
    assert_eq!(judge.told(&[refund("minute", 1)]), (OK, vec![(OK, 1)]));
    assert_eq!(
        judge.told(&[refund("minute", u64::MAX)]),
        (OK, vec![(OK, 3)])
    );
    assert_eq!(
        judge.told(&[hits("minute", u64::MAX)]),
        (OVER, vec![(OVER, 0)])
    );
    assert_eq!(judge.told(&[refund("minute", 3)]), (OK, vec![(OK, 3)]));
    // The same bucket twice in a request costs twice.
    assert_eq!(judge.told(&[hits("minute", 2), hits("minute", 2)]).0, OVER);
}

#[test]
fn a_descriptor_may_bring_its_limit() {
    let judge = Judge::new(FREE);
    let own = |requests_per_unit, unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
        }),
        ..of("minute")
    };
    assert_eq!(judge.told(&[own(2, 3)]), (OK, vec![(OK, 1)]));
    assert_eq!(judge.told(&[own(2, 3)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[own(2, 3)]), (OVER, vec![(OVER, 0)]));
    assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, 2)]));
    let limit = judge.answer(&request(&[own(7, 6)])).unwrap().statuses[0]
        .current_limit
        .clone()
        .unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (7, 6));
    assert!(matches!(
        judge.answer(&request(&[own(1, 0)])),
        Err(DecideError::Invalid(_))
    ));
    assert!(matches!(
        judge.answer(&request(&[own(1, 99)])),
        Err(DecideError::Invalid(_))
    ));
}

#[test]
fn shadow_watches_and_turns_nobody_away() {
    let judge = Judge::new(FREE);
    assert_eq!(judge.told(&[of("shadow")]), (OK, vec![(OK, 0)]));
    assert_eq!(
        judge.told(&[of("shadow"), of("minute")]),
        (OK, vec![(OK, 0), (OK, 2)])
    );
    assert_eq!(judge.told(&[hits("shadow", 0)]), (OK, vec![(OK, 0)]));
    let figures = judge.envoy.figures();
    let shadow = figures.iter().find(|rule| rule.path == "d.shadow").unwrap();
    assert_eq!(
        (shadow.allowed, shadow.denied, shadow.shadow_denied),
        (1, 0, 2)
    );
}

#[test]
fn a_limit_that_is_replaced_is_neither_told_nor_charged() {
    let judge = Judge::new(FREE);
    assert_eq!(
        judge.told(&[of("hour"), of("minute"), of("instead")]),
        (OK, vec![(OK, 0), (OK, 2), (OK, 4)])
    );
    assert_eq!(judge.told(&[of("hour")]), (OK, vec![(OK, 9)]));
}

#[test]
fn quotas_turn_away_together() {
    let judge = Judge::new(FREE);
    let all = [of("one"), of("two"), of("hour")];
    assert_eq!(judge.told(&all), (OK, vec![(OK, 0), (OK, 1), (OK, 9)]));
    // An exhausted quota is over, though another has room and the request passes.
    assert_eq!(judge.told(&all), (OK, vec![(OVER, 0), (OK, 0), (OK, 8)]));
    assert_eq!(
        judge.told(&all),
        (OVER, vec![(OVER, 0), (OVER, 0), (OK, 8)])
    );
    assert_eq!(
        judge.told(&[hits("one", 0), hits("two", 0)]),
        (OVER, vec![(OVER, 0), (OVER, 0)])
    );
    // Another limit still turns away alone.
    assert_eq!(judge.told(&[hits("two", 0), hits("minute", 4)]).0, OVER);
    judge.clock.advance(Duration::from_secs(60));
    assert_eq!(judge.told(&[of("one")]).0, OK);
    // In shadow mode a quota is never over, so that it and others never deny together.
    assert_eq!(
        judge.told(&[hits("watched", 6), of("one")]),
        (OK, vec![(OK, 0), (OVER, 0)])
    );
    let counts = judge.envoy.figures();
    let one = counts.iter().find(|rule| rule.path == "d.one").unwrap();
    // Allowed twice; over while another quota had room twice; denied twice.
    assert_eq!((one.allowed, one.denied, one.shadow_denied), (2, 2, 2));
}

/// The quota that comes back first lets the request in again.
#[test]
fn quotas_that_deny_together_say_when_the_first_of_them_is_back() {
    let judge = Judge::of(AFTER, FREE);
    let both = [of("one"), of("slow")];
    assert_eq!((judge.told(&both).0, judge.told(&both).0), (OK, OVER));
    let retry_after = |descriptors: &[RateLimitDescriptor]| {
        let headers = judge
            .answer(&request(descriptors))
            .unwrap()
            .response_headers_to_add;
        headers
            .iter()
            .find(|header| header.key == "Retry-After")
            .map(|header| header.value.clone())
    };
    assert_eq!(retry_after(&both).as_deref(), Some("30"));
    // Denied by a limit while a quota has room, it waits for the limit, not for the other quota.
    judge.told(&[hits("few", 10)]);
    assert_eq!(
        retry_after(&[of("slow"), of("two"), of("few")]).as_deref(),
        Some("30")
    );
}

#[test]
fn dynamic_metadata_has_the_merged_metadata_of_the_limits_that_have_room() {
    let judge = Judge::of(
        AFTER,
        Settings {
            dynamic_metadata: true,
            ..FREE
        },
    );
    let metadata = |request: RateLimitRequest| {
        crate::envoy::json::object(&judge.answer(&request).unwrap().dynamic_metadata.unwrap())
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
    // The first is over its limit now, and has no say.
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
fn other_algorithms_and_a_limit_of_none() {
    let judge = Judge::new(Settings {
        response_headers: true,
        ..FREE
    });
    assert_eq!(judge.told(&[hits("bucket", 4)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[of("bucket")]), (OVER, vec![(OVER, 0)]));
    judge.clock.advance(Duration::from_secs(1));
    assert_eq!(judge.told(&[of("bucket")]), (OK, vec![(OK, 0)]));
    let never = judge.answer(&request(&[of("never"), of("hour")])).unwrap();
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
fn what_cannot_be_answered_is_told_and_what_is_unknown_passes() {
    let judge = Judge::new(FREE);
    let nowhere = RateLimitRequest {
        domain: String::new(),
        ..request(&[of("minute")])
    };
    assert!(matches!(
        judge.answer(&nowhere),
        Err(DecideError::Invalid(_))
    ));
    assert!(matches!(
        judge.answer(&request(&[])),
        Err(DecideError::Invalid(_))
    ));
    let elsewhere = RateLimitRequest {
        domain: "e".into(),
        ..request(&[of("minute"), of("never")])
    };
    let response = judge.answer(&elsewhere).unwrap();
    assert_eq!((response.overall_code, response.statuses.len()), (OK, 2));
    assert!(
        response
            .statuses
            .iter()
            .all(|status| status.code == OK && status.current_limit.is_none())
    );
    judge
        .envoy
        .replace(
            config(YAML),
            Settings {
                enabled: false,
                ..FREE
            },
        )
        .unwrap();
    assert_eq!(judge.told(&[of("never")]), (OK, vec![(OK, 0)]));
}

#[test]
fn a_changed_file_keeps_what_was_counted() {
    let judge = Judge::new(FREE);
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 1)]));
    let more = YAML.replace("requests_per_unit: 3", "requests_per_unit: 5");
    judge.envoy.replace(config(&more), FREE).unwrap();
    let (_, statuses) = judge.told(&[of("minute")]);
    assert!(statuses[0].1 <= 2, "{statuses:?}");
    // Gone for a while, and back.
    judge.envoy.replace(config("domain: d"), FREE).unwrap();
    assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, 0)]));
    judge.envoy.replace(config(&more), FREE).unwrap();
    assert!(judge.told(&[of("minute")]).1[0].1 <= 1);
}
