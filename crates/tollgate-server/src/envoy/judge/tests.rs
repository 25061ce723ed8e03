use super::*;
use crate::envoy::rules::Settings;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use envoy_types::pb::google::protobuf::UInt64Value;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tollgate::{ManualClock, MemoryStore, OnFailure};

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
    metadata: { tier: [gold, 1, true] }
  - key: bucket
    rate_limit: { unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 4 }
  - key: never
    rate_limit: { unit: minute, requests_per_unit: 0 }
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
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        let envoy = Envoy::new(AnyStore::Memory(store));
        envoy.replace(config(yaml), settings).unwrap();
        // In the middle of a minute, 30 s before its end.
        let past = clock.now().as_unix_nanos() % 60_000_000_000;
        clock.advance(Duration::from_nanos(90_000_000_000 - past));
        Self { envoy, clock }
    }

    /// In memory there is nothing to wait for.
    pub(super) fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Trouble> {
        match pin!(self.envoy.judge(request, None)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => unreachable!(),
        }
    }

    /// Code and remaining of all descriptors.
    fn told(&self, descriptors: &[RateLimitDescriptor]) -> (i32, Vec<(i32, u32)>) {
        let response = self.answer(&request(descriptors)).unwrap();
        let statuses = response.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect();
        (response.overall_code, statuses)
    }
}

fn config(yaml: &str) -> EnvoyConfig {
    let mut config = EnvoyConfig::default();
    config.add("test.yaml", yaml).unwrap_or_else(|wrong| panic!("{wrong}"));
    config
}

fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn of(key: &str) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: "v".into() }];
    RateLimitDescriptor { entries, limit: None, hits_addend: None, is_negative_hits: false }
}

fn hits(key: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..of(key) }
}

fn refund(key: &str, many: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(key, many) }
}

#[test]
fn statuses_are_complete_and_in_order() {
    let judge = Judge::new(FREE);
    let response = judge.answer(&request(&[of("hour"), of("unknown"), of("free"), of("minute")])).unwrap();
    let limit = |requests_per_unit, unit, name: &str| {
        use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
        Some(RateLimit { name: name.into(), requests_per_unit, unit })
    };
    let [hour, unknown, free, minute] = &response.statuses[..] else { panic!("{response:?}") };
    assert_eq!((hour.code, hour.limit_remaining), (OK, 9));
    assert_eq!(hour.current_limit, limit(10, 3, "hourly"));
    assert_eq!(*unknown, DescriptorStatus { code: OK, ..Default::default() });
    assert_eq!(*free, DescriptorStatus { code: OK, limit_remaining: u32::MAX, ..Default::default() });
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
    assert_eq!(judge.told(&[of("hour"), of("minute")]), (OVER, vec![(OK, 10), (OVER, 0)]));
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
    let judge = Judge::new(Settings { denied_hits_consume: true, ..FREE });
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 1)]));
    assert_eq!(judge.told(&[of("hour"), hits("minute", 2)]), (OVER, vec![(OK, 9), (OVER, 0)]));
    assert_eq!(judge.told(&[of("minute")]), (OVER, vec![(OVER, 0)]));
    let judge = Judge::new(FREE);
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 1)]));
    assert_eq!(judge.told(&[hits("minute", 2)]), (OVER, vec![(OVER, 1)]));
    assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, 0)]));
}

#[test]
fn hits_of_the_request_and_of_a_descriptor() {
    let judge = Judge::new(FREE);
    let several = RateLimitRequest { hits_addend: 3, ..request(&[of("hour"), hits("minute", 1)]) };
    let response = judge.answer(&several).unwrap();
    assert_eq!(response.statuses.iter().map(|status| status.limit_remaining).collect::<Vec<_>>(), [7, 2]);
    // A peek charges nothing, and says whether there is room.
    assert_eq!(judge.told(&[hits("minute", 0)]), (OK, vec![(OK, 2)]));
    assert_eq!(judge.told(&[hits("minute", 2)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[hits("minute", 0)]), (OVER, vec![(OVER, 0)]));
    // More than was used does not come back.
    assert_eq!(judge.told(&[refund("minute", 1)]), (OK, vec![(OK, 1)]));
    assert_eq!(judge.told(&[refund("minute", u64::MAX)]), (OK, vec![(OK, 3)]));
    assert_eq!(judge.told(&[hits("minute", u64::MAX)]), (OVER, vec![(OVER, 3)]));
    // The same bucket twice in a request costs twice.
    assert_eq!(judge.told(&[hits("minute", 2), hits("minute", 2)]).0, OVER);
}

#[test]
fn a_descriptor_may_bring_its_limit() {
    let judge = Judge::new(FREE);
    let own = |requests_per_unit, unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit }),
        ..of("minute")
    };
    assert_eq!(judge.told(&[own(2, 3)]), (OK, vec![(OK, 1)]));
    assert_eq!(judge.told(&[own(2, 3)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[own(2, 3)]), (OVER, vec![(OVER, 0)]));
    assert_eq!(judge.told(&[of("minute")]), (OK, vec![(OK, 2)]));
    let limit = judge.answer(&request(&[own(7, 6)])).unwrap().statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (7, 6));
    assert!(matches!(judge.answer(&request(&[own(1, 0)])), Err(Trouble::Invalid(_))));
    assert!(matches!(judge.answer(&request(&[own(1, 99)])), Err(Trouble::Invalid(_))));
}

#[test]
fn shadow_watches_and_turns_nobody_away() {
    let judge = Judge::new(FREE);
    assert_eq!(judge.told(&[of("shadow")]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[of("shadow"), of("minute")]), (OK, vec![(OK, 0), (OK, 2)]));
    assert_eq!(judge.told(&[hits("shadow", 0)]), (OK, vec![(OK, 0)]));
    let figures = judge.envoy.figures();
    let shadow = figures.iter().find(|rule| rule.path == "d.shadow").unwrap();
    assert_eq!((shadow.allowed, shadow.denied, shadow.shadow_denied), (1, 0, 2));
}

#[test]
fn a_limit_that_is_replaced_is_neither_told_nor_charged() {
    let judge = Judge::new(FREE);
    assert_eq!(judge.told(&[of("hour"), of("minute"), of("instead")]), (OK, vec![(OK, 0), (OK, 2), (OK, 4)]));
    assert_eq!(judge.told(&[of("hour")]), (OK, vec![(OK, 9)]));
}

#[test]
fn quotas_turn_away_together() {
    let judge = Judge::new(Settings { dynamic_metadata: true, ..FREE });
    let all = [of("one"), of("two"), of("hour")];
    assert_eq!(judge.told(&all), (OK, vec![(OK, 0), (OK, 1), (OK, 9)]));
    assert_eq!(judge.told(&all), (OK, vec![(OK, 0), (OK, 0), (OK, 8)]));
    assert_eq!(judge.told(&all), (OVER, vec![(OVER, 0), (OVER, 0), (OK, 8)]));
    assert_eq!(judge.told(&[hits("one", 0), hits("two", 0)]), (OVER, vec![(OVER, 0), (OVER, 0)]));
    // Another limit still turns away alone.
    assert_eq!(judge.told(&[hits("two", 0), hits("minute", 4)]).0, OVER);
    judge.clock.advance(Duration::from_secs(60));
    assert_eq!(judge.told(&[of("one")]).0, OK);
    let metadata = judge.answer(&request(&all[..2])).unwrap().dynamic_metadata.unwrap();
    let told = crate::envoy::json::object(&metadata);
    assert_eq!(
        told,
        serde_json::json!({
            "domain": "d",
            "descriptors": [
                { "entries": ["one=v"] },
                { "entries": ["two=v"], "metadata": { "tier": ["gold", 1, true] } },
            ],
            "quotaModeEnabled": true,
            "quotaModeViolations": [0],
        })
    );
}

#[test]
fn other_algorithms_and_a_limit_of_none() {
    let judge = Judge::new(Settings { response_headers: true, ..FREE });
    assert_eq!(judge.told(&[hits("bucket", 4)]), (OK, vec![(OK, 0)]));
    assert_eq!(judge.told(&[of("bucket")]), (OVER, vec![(OVER, 0)]));
    judge.clock.advance(Duration::from_secs(1));
    assert_eq!(judge.told(&[of("bucket")]), (OK, vec![(OK, 0)]));
    let never = judge.answer(&request(&[of("never"), of("hour")])).unwrap();
    let headers: Vec<_> = never.response_headers_to_add.iter().map(|one| (&*one.key, &*one.value)).collect();
    assert_eq!((never.overall_code, never.statuses[0].code), (OVER, OVER));
    assert!(never.statuses[0].duration_until_reset.unwrap().seconds > 0);
    // Waiting does not help.
    assert_eq!(headers[..2], [("RateLimit-Limit", "0"), ("RateLimit-Remaining", "0")]);
}

#[test]
fn what_cannot_be_answered_is_told_and_what_is_unknown_passes() {
    let judge = Judge::new(FREE);
    let nowhere = RateLimitRequest { domain: String::new(), ..request(&[of("minute")]) };
    assert!(matches!(judge.answer(&nowhere), Err(Trouble::Invalid(_))));
    assert!(matches!(judge.answer(&request(&[])), Err(Trouble::Invalid(_))));
    let elsewhere = RateLimitRequest { domain: "e".into(), ..request(&[of("minute"), of("never")]) };
    let response = judge.answer(&elsewhere).unwrap();
    assert_eq!((response.overall_code, response.statuses.len()), (OK, 2));
    assert!(response.statuses.iter().all(|status| status.code == OK && status.current_limit.is_none()));
    judge.envoy.replace(config(YAML), Settings { enabled: false, ..FREE }).unwrap();
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
