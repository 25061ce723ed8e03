//! Reservations: requests reserved on one engine and settled on another, by a receipt.

use proptest::prelude::*;
use ratekeeper::{Clock, Limit, ManualClock, MemoryStore, Store, Timestamp, store::SettleError};
use ratekeeper_policy::{
    Action, Completion, Cost, Count, Engine, Match, Policies, Policy, PolicyLimit, PolicyVerdict,
    Subject, policy::StatusRange,
};
use ratekeeper_testkit::poll::assert_ready;
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

const MINUTE: Duration = Duration::from_secs(60);

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

fn in_a_minute(engine: &TestEngine) -> Timestamp {
    engine.store().now() + MINUTE
}

fn with_cost<'a>(subject: &Subject<'a>, cost: Option<u64>) -> Subject<'a> {
    let subject = subject.clone();
    match cost {
        Some(cost) => subject.cost(cost),
        None => subject,
    }
}

fn reserve(engine: &TestEngine, subject: &Subject<'_>, cost: Option<u64>) -> Vec<u8> {
    let verdict = assert_ready(engine.reserve(&with_cost(subject, cost), None));
    assert!(verdict.is_allowed());
    assert_ready(engine.detach(verdict, in_a_minute(engine))).unwrap()
}

/// Remaining units by policy.
fn remaining_by_policy(engine: &TestEngine, subject: &Subject<'_>) -> Vec<(String, u64)> {
    let seen = assert_ready(engine.peek(&subject.clone().cost(0)));
    seen.limits()
        .map(|limit| (limit.policy().to_owned(), limit.decision().remaining()))
        .collect()
}

fn rich() -> Policies {
    let summary = Cost::Attribute {
        attribute: "tokens".into(),
        default: 7,
    };
    Policies::new()
        .policy(Policy::new("requests").limit(Limit::per_hour(50)))
        .policy(
            Policy::new("double")
                .cost(Cost::Units(2))
                .limit("90/h fixed_window".parse::<Limit>().unwrap()),
        )
        .policy(
            Policy::new("tokens")
                .cost(summary)
                .limit(Limit::per_hour(200)),
        )
        .policy(
            Policy::new("failures")
                .key("user")
                .count(Count::Failures)
                .limit(Limit::per_hour(20)),
        )
        .policy(
            Policy::new("odd")
                .count(Count::Successes)
                .failure_status([
                    StatusRange {
                        first: 409,
                        last: 409,
                    },
                    StatusRange {
                        first: 500,
                        last: 503,
                    },
                ])
                .limit("40/h sliding_log".parse::<Limit>().unwrap()),
        )
        .policy(
            Policy::new("flight")
                .key("user")
                .limit(PolicyLimit::Concurrent(5)),
        )
}

#[test]
fn the_final_cost_corrects_the_reserved_one() {
    let (engine, _) = new_engine(rich());
    let ann = Subject::new().user("ann");
    let receipt = reserve(&engine, &ann, None);
    assert_ready(engine.settle_detached(&receipt, Completion::status(200).cost(30))).unwrap();
    let figures = |numbers: [u64; 6]| {
        let names = ["requests", "double", "tokens", "failures", "odd", "flight"];
        names
            .map(str::to_owned)
            .into_iter()
            .zip(numbers)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        remaining_by_policy(&engine, &ann),
        figures([49, 88, 170, 20, 39, 5]),
        "without a cost only tokens are corrected"
    );
    let receipt = reserve(&engine, &ann, Some(10));
    assert_eq!(
        remaining_by_policy(&engine, &ann),
        figures([39, 68, 100, 10, 29, 4])
    );
    assert_ready(engine.settle_detached(&receipt, Completion::status(409).cost(3))).unwrap();
    assert_eq!(
        remaining_by_policy(&engine, &ann),
        figures([46, 82, 167, 17, 39, 5]),
        "three, and a failure"
    );
    assert_eq!(
        assert_ready(engine.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::AlreadySettled)
    );
    let receipt = reserve(&engine, &ann, Some(10));
    assert_ready(engine.settle_detached(&receipt, Completion::cancelled())).unwrap();
    assert_eq!(
        remaining_by_policy(&engine, &ann),
        figures([46, 82, 167, 17, 39, 5])
    );
    assert_eq!(
        assert_ready(engine.settle_detached(&receipt, Completion::cancelled())),
        Err(SettleError::AlreadySettled)
    );
}

#[test]
fn a_request_without_limits_settles_once() {
    let (engine, clock) = new_engine(
        Policies::new().policy(
            Policy::new("login")
                .matching(Match::new().path("/login".parse().unwrap()))
                .limit(Limit::per_hour(5)),
        ),
    );
    let receipt = reserve(&engine, &Subject::new().path("/other"), None);
    assert_eq!(
        assert_ready(engine.settle_detached(&receipt, Completion::unknown())),
        Ok(())
    );
    assert_eq!(
        assert_ready(engine.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::AlreadySettled)
    );
    clock.advance(MINUTE);
    assert_eq!(
        assert_ready(engine.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::Expired)
    );
}

#[test]
fn a_reservation_returns_its_delay() {
    let policy = |name: &str| Policy::new(name).limit(Limit::per_second(1));
    let delay = Action::Delay {
        max: Duration::from_secs(2),
    };
    for (policies, most) in [
        (Policies::new().policy(policy("plain")), 3),
        (
            Policies::new()
                .policy(policy("plain"))
                .policy(policy("patient").action(delay)),
            2,
        ),
    ] {
        let (engine, _) = new_engine(policies);
        let ask = |wait: Option<u64>| {
            assert_ready(engine.reserve(&Subject::new(), wait.map(Duration::from_secs)))
        };
        assert_eq!(ask(Some(3)).delay(), Duration::ZERO);
        assert!(
            ask(Some(0)).is_denied(),
            "a caller that does not wait is denied"
        );
        for seconds in 1..=most {
            let verdict = ask(Some(3));
            assert_eq!(
                (verdict.is_allowed(), verdict.delay()),
                (true, Duration::from_secs(seconds))
            );
        }
        let denied = ask(Some(3));
        assert_eq!(
            (denied.is_denied(), denied.retry_after()),
            (true, Some(Duration::from_secs(1)))
        );
    }
}

#[test]
fn a_reload_does_not_change_a_reservation() {
    let (engine, _) = new_engine(rich());
    let ann = Subject::new().user("ann");
    let receipts: Vec<_> = (0..3).map(|_| reserve(&engine, &ann, Some(2))).collect();
    // Other policies in another order; some are gone, and one has another limit.
    let summary = Cost::Attribute {
        attribute: "tokens".into(),
        default: 7,
    };
    let changed = Policies::new()
        .policy(
            Policy::new("tokens")
                .cost(summary)
                .limit(Limit::per_hour(200)),
        )
        .policy(
            Policy::new("failures")
                .key("user")
                .count(Count::Successes)
                .limit(Limit::per_hour(20)),
        )
        .policy(Policy::new("requests").limit(Limit::per_hour(60)));
    engine.set_policies(changed).unwrap();
    let before = remaining_by_policy(&engine, &ann);
    assert_ready(engine.settle_detached(&receipts[0], Completion::status(200))).unwrap();
    let after = remaining_by_policy(&engine, &ann);
    assert_eq!(after[0], before[0], "the charge stays");
    assert_eq!(
        (before[1].1, after[1].1),
        (14, 16),
        "a success did not count when it was reserved"
    );
    assert_eq!(after[2], before[2]);
    assert_ready(engine.settle_detached(&receipts[1], Completion::cancelled())).unwrap();
    assert_eq!(remaining_by_policy(&engine, &ann)[0].1, before[0].1 + 14);
    assert_eq!(
        remaining_by_policy(&engine, &ann)[2],
        before[2],
        "a charge by the old limit is not refunded"
    );
    engine.set_policies(rich()).unwrap();
    assert_ready(engine.settle_detached(&receipts[2], Completion::failed().cost(1))).unwrap();
}

#[test]
fn invalid_receipts_are_rejected() {
    let (engine, _) = new_engine(rich());
    let receipt = reserve(&engine, &Subject::new().user("ann"), Some(2));
    for length in 0..receipt.len() {
        assert_eq!(
            assert_ready(engine.settle_detached(&receipt[..length], Completion::cancelled())),
            Err(SettleError::InvalidReceipt),
            "{length}"
        );
    }
    for at in 0..receipt.len() {
        let mut changed = receipt.clone();
        changed[at] ^= 0x80;
        // Any bytes are rejected without a panic.
        let _ = assert_ready(engine.settle_detached(&changed, Completion::unknown()));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        user: usize,
        cost: Option<u64>,
        tokens: Option<u64>,
    },
    Settle {
        which: usize,
        ending: Option<Completion>,
    },
    Advance(u64),
}

fn ending() -> impl Strategy<Value = Completion> {
    let how = prop_oneof![
        Just(Completion::unknown()),
        Just(Completion::failed()),
        Just(Completion::succeeded()),
        prop::sample::select(vec![200, 404, 409, 500, 503, 504]).prop_map(Completion::status),
    ];
    (how, prop::option::of(0..30_u64)).prop_map(|(ending, cost)| match cost {
        Some(cost) => ending.cost(cost),
        None => ending,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::option::of(0..9_u64);
    prop_oneof![
        4 => (0..2_usize, some(), some()).prop_map(|(user, cost, tokens)| Step::Reserve { user, cost, tokens }),
        3 => (0..6_usize, prop::option::of(ending())).prop_map(|(which, ending)| Step::Settle { which, ending }),
        2 => (0..600_u64).prop_map(Step::Advance),
    ]
}

fn summary(verdict: &PolicyVerdict) -> (bool, Option<Duration>, Vec<u64>) {
    let remaining_by_policy = verdict
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect();
    (
        verdict.is_allowed(),
        verdict.retry_after(),
        remaining_by_policy,
    )
}

/// Longer than all limits last, and a multiple of all windows.
const LATER: Duration = Duration::from_secs(100 * 3_600);

/// The verdicts of a trace, and then a wait until all limits are full again. Both runs use one
/// engine, so that keys share slots in the table of its store in the same way.
fn run(
    engine: &TestEngine,
    clock: &ManualClock,
    steps: &[Step],
    detached: bool,
) -> Vec<(bool, Option<Duration>, Vec<u64>)> {
    enum Kept {
        Itself(PolicyVerdict),
        Receipt(Vec<u8>),
    }
    let settle = |kept: Kept, ending: Option<Completion>| match (kept, ending) {
        (Kept::Itself(verdict), Some(ending)) => assert_ready(engine.settle(verdict, ending)),
        (Kept::Itself(verdict), None) => {
            assert_ready(engine.settle(verdict, Completion::cancelled()));
        }
        (Kept::Receipt(receipt), Some(ending)) => {
            assert_ready(engine.settle_detached(&receipt, ending)).unwrap();
        }
        (Kept::Receipt(receipt), None) => {
            assert_ready(engine.settle_detached(&receipt, Completion::cancelled())).unwrap();
        }
    };
    let begin = clock.now();
    let mut seen = Vec::new();
    let mut kept = Vec::new();
    for step in steps {
        match step {
            Step::Reserve { user, cost, tokens } => {
                let tokens = tokens.map(|tokens| tokens.to_string());
                let mut subject = Subject::new().user(["ann", "bob"][*user]);
                if let Some(tokens) = &tokens {
                    subject = subject.with("tokens", tokens.as_str());
                }
                let verdict = assert_ready(engine.reserve(&with_cost(&subject, *cost), None));
                seen.push(summary(&verdict));
                kept.push(if detached {
                    Kept::Receipt(
                        assert_ready(engine.detach(verdict, clock.now() + LATER)).unwrap(),
                    )
                } else {
                    Kept::Itself(verdict)
                });
            }
            Step::Settle { which, ending } if *which < kept.len() => {
                settle(kept.swap_remove(*which), *ending);
            }
            Step::Settle { .. } => {}
            Step::Advance(seconds) => clock.advance(Duration::from_secs(*seconds)),
        }
    }
    kept.into_iter().for_each(|kept| settle(kept, None));
    clock.set(begin + LATER);
    seen
}

proptest! {
    #[test]
    fn settling_by_receipt_equals_settling_the_verdict(steps in prop::collection::vec(step(), 1..50)) {
        let (engine, clock) = new_engine(rich());
        clock.set(Timestamp::from_unix(Duration::from_secs(1_700_000_000)));
        let here = run(&engine, &clock, &steps, false);
        let elsewhere = run(&engine, &clock, &steps, true);
        prop_assert_eq!(here, elsewhere);
    }
}
