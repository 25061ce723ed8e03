//! Properties of rate limit headers for any limits and any traffic.

use super::super::{Denial, Dialect, Dialects, write_headers};
use super::{engine, joined, unix};
use http::HeaderMap;
use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit};
use ratekeeper_policy::{Cost, Policies, Policy, PolicyLimit, Subject};
use std::collections::HashMap;
use std::time::Duration;

fn limits() -> impl Strategy<Value = PolicyLimit> {
    let algorithms = prop::sample::select(Algorithm::ALL.to_vec());
    let periods = prop_oneof![
        1_u64..5_000,
        1_000_u64..100_000,
        Just(60_000),
        Just(3_600_000)
    ];
    let rate = (1_u64..200, periods, 1_u64..60, algorithms).prop_map(
        |(count, millis, room, algorithm)| {
            let limit = Limit::of(count, Duration::from_millis(millis));
            PolicyLimit::Rate(match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                    limit.burst(room).algorithm(algorithm)
                }
                Algorithm::Pacing => limit.paced_max_queue(room - 1),
                _ => limit.algorithm(algorithm),
            })
        },
    );
    prop_oneof![9 => rate, 1 => (1_u64..4).prop_map(PolicyLimit::Concurrent)]
}

/// The parameters of each name in a field of `ietf`, read by another parser.
fn fields(headers: &HeaderMap, name: &str) -> Vec<(String, HashMap<String, u64>)> {
    let list: sfv::List = sfv::Parser::new(&joined(headers, name)).parse().unwrap();
    let item = |entry: &sfv::ListEntry| {
        let sfv::ListEntry::Item(item) = entry else {
            panic!("{entry:?}")
        };
        let integers = item.params.iter().filter_map(|(key, value)| {
            Some((
                key.as_str().to_owned(),
                u64::try_from(i64::from(value.as_integer()?)).unwrap(),
            ))
        });
        (
            item.bare_item.as_string().unwrap().as_str().to_owned(),
            integers.collect(),
        )
    };
    list.iter().map(item).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn headers_are_true_and_clients_that_obey_retry_after_are_allowed(
        limits in prop::collection::vec((limits(), 1_u64..4), 1..4),
        trace in prop::collection::vec((0_u64..3_000, any::<bool>()), 1..40),
    ) {
        let mut policies = Policies::new();
        for (at, (limit, cost)) in limits.iter().enumerate() {
            policies = policies.policy(Policy::new(format!("p{at}")).limit(*limit).cost(Cost::Units(*cost)));
        }
        let (engine, clock) = engine(policies);
        let all = Dialects::default().and(Dialect::Ietf).and(Dialect::Draft06);
        for (pause, long) in trace {
            clock.advance(Duration::from_millis(if long { pause * 20 } else { pause / 50 }));
            let verdict = engine.decide_now(&Subject::new());
            let denial = verdict.is_denied().then(|| Denial::of_verdict(&verdict));
            let retry_after = denial.as_ref().and_then(Denial::seconds);
            let mut headers = HeaderMap::new();
            write_headers(all, &mut headers, &verdict, retry_after, unix(&clock));

            let tightest = verdict.tightest().unwrap();
            let reset: u64 = joined(&headers, "x-ratelimit-reset").parse().unwrap();
            if tightest.limit().rate().is_some() {
                // The first whole second at which everything is available.
                let exact = unix(&clock) + tightest.decision().reset_after();
                prop_assert!(Duration::from_secs(reset) >= exact && Duration::from_secs(reset - 1) < exact);
            }

            let (policy, limit) = (fields(&headers, "ratelimit-policy"), fields(&headers, "ratelimit"));
            prop_assert_eq!(policy.len(), limits.len());
            for (((name, policy), (same, limit)), status) in policy.iter().zip(&limit).zip(verdict.limits()) {
                prop_assert_eq!(name, same);
                let (q, r) = (policy["q"], limit["r"]);
                prop_assert_eq!((q, r), (status.decision().capacity(), status.decision().remaining()));
                let Some(w) = policy.get("w") else {
                    prop_assert!(status.limit().rate().is_none() && !limit.contains_key("t"));
                    continue;
                };
                let t = limit["t"];
                prop_assert!(t >= 1);
                match retry_after {
                    None if verdict.is_allowed() => prop_assert!(r * w <= q * t, "r={} w={} q={} t={}", r, w, q, t),
                    None => prop_assert!(verdict.is_never()),
                    Some(after) => prop_assert!(t <= after, "t={} after={}", t, after),
                }
            }

            let Some(after) = retry_after else {
                prop_assert!(verdict.is_allowed() || verdict.is_never());
                continue;
            };
            prop_assert!(after >= 1);
            prop_assert!(verdict.retry_after().is_none_or(|exact| Duration::from_secs(after) >= exact));
            drop(verdict);
            clock.advance(Duration::from_secs(after));
            prop_assert!(engine.decide_now(&Subject::new()).is_allowed());
        }
    }
}
