//! The script and the model must agree on the same traces.

use super::central::{BucketParams, CentralBucket};
use super::node::LeaseDemand;
use crate::script::Scripts;
use crate::script::decide::{self, Answer, Question, Questions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratekeeper::{Limit, Mode, store::backend::MicrosLimit};
use ratekeeper_testkit::RedisServer;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Lease {
        min: u64,
        want: u64,
        ttl: u64,
        late: bool,
    },
    Advance(u64),
    Change(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = prop_oneof![
        Just(0_u64),
        Just(20_000),
        Just(100_000),
        1_000..2_000_000_u64
    ];
    let step = prop_oneof![
        3 => (0..40_u64).prop_map(Step::Take),
        6 => (0..6_u64, 0..200_u64, ttl, prop::bool::weighted(0.1))
            .prop_map(|(min, want, ttl, late)| Step::Lease { min, want, ttl, late }),
        6 => prop_oneof![0..1_000_u64, 0..100_000_u64, 0..3_000_000_u64].prop_map(Step::Advance),
        1 => (0..LIMITS.len()).prop_map(Step::Change),
    ];
    prop::collection::vec(step, 1..40)
}

/// Limits of different rates, bursts and units.
const LIMITS: [&str; 6] = [
    "100/s burst 200",
    "1000/s burst 64",
    "7/s burst 30",
    "59/s burst 700",
    "1000000/s burst 2000000",
    "0",
];

fn params(limit: &str) -> (MicrosLimit, BucketParams) {
    let form = limit.parse::<Limit>().unwrap().in_micros();
    let MicrosLimit::Bucket {
        per_micro,
        token,
        capacity,
        ..
    } = form
    else {
        unreachable!("buckets")
    };
    (
        form,
        BucketParams {
            per_micro,
            token,
            capacity,
        },
    )
}

#[test]
fn the_script_agrees_with_the_model() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let scripts = Scripts::with_given_time();
    let mut case = 0;
    let mut ask =
        |key: &str, form: MicrosLimit, now: u64, cost: u64, lease: Option<LeaseDemand>| {
            let question = Question {
                key: key.as_bytes().into(),
                limit: form,
                cost,
                reserve: 0,
                mode: Mode::Enforce,
                wait: None,
                permits: Vec::new(),
                lease,
            };
            let questions: Questions = Arc::new([question]);
            let command =
                decide::encode([&questions].into_iter()).by_text(&scripts.decide, Some(now));
            let reply = command.query::<redis::Value>(&mut connection).unwrap();
            let mut answers = decide::decode([&questions].into_iter(), reply).unwrap();
            let Answer::Decided { results, .. } = answers.remove(0) else {
                panic!("a bad key")
            };
            results[0]
        };
    let mut runner = TestRunner::new(Config {
        cases: 400,
        ..Config::default()
    });
    let run = |(start, steps): (usize, Vec<Step>)| {
        case += 1;
        let key = format!("case {case}");
        let (mut form, mut here) = params(LIMITS[start]);
        let mut now = 1_700_000_000_000_000;
        // An absent key is a full bucket.
        let mut central: Option<CentralBucket> = None;
        for step in steps {
            match step {
                Step::Advance(by) => now += by,
                Step::Change(which) => (form, here) = params(LIMITS[which]),
                Step::Take(cost) => {
                    let result = ask(&key, form, now, cost, None);
                    let mut after = central.unwrap_or_else(|| CentralBucket::fresh(&here, now));
                    prop_assert_eq!(result.fits, after.take(now, &here, cost));
                    prop_assert_eq!(result.first as i64, here.capacity as i64 - after.level);
                    // Redis writes nothing for a denied or free decision.
                    if result.fits && cost > 0 {
                        prop_assert_eq!(result.history.out, after.out());
                        central = Some(after);
                    }
                }
                Step::Lease {
                    min,
                    want,
                    ttl,
                    late,
                } => {
                    let demand = LeaseDemand {
                        min,
                        want,
                        ttl,
                        expires: if late { now - 1 } else { now },
                    };
                    let result = ask(&key, form, now, min, Some(demand));
                    let mut after = central.unwrap_or_else(|| CentralBucket::fresh(&here, now));
                    prop_assert_eq!(result.leased.0, after.lease(now, &here, &demand));
                    prop_assert_eq!(result.first as i64, here.capacity as i64 - after.level);
                    if result.leased.0 > 0 {
                        central = Some(after);
                    }
                }
            }
        }
        Ok(())
    };
    let run = std::cell::RefCell::new(run);
    runner
        .run(&(0..5_usize, steps()), |input| (run.borrow_mut())(input))
        .unwrap();
}
