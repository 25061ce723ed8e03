//! Requests that are reserved here and settled elsewhere, by a receipt.

use proptest::prelude::*;
use ratekeeper::{Clock, Limit, ManualClock, MemoryStore, Store, Timestamp, store::SettleError};
use ratekeeper_policy::{
    Action, Completion, Cost, Count, Engine, Match, Policies, Policy, PolicyLimit, PolicyVerdict,
    Subject, policy::StatusRange,
};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Gate = Engine<MemoryStore<ManualClock>>;

const MINUTE: Duration = Duration::from_secs(60);

fn gate(policies: Policies) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

/// The store is in this process: nothing is waited for.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not ready"),
    }
}

fn in_a_minute(gate: &Gate) -> Timestamp {
    gate.store().now() + MINUTE
}

fn reserve(gate: &Gate, subject: &Subject<'_>, cost: Option<u64>) -> Vec<u8> {
    let verdict = now(gate.reserve(subject, cost, None));
    assert!(verdict.is_allowed());
    now(gate.detach(verdict, in_a_minute(gate))).unwrap()
}

/// What is left by policy.
fn left(gate: &Gate, subject: &Subject<'_>) -> Vec<(String, u64)> {
    let seen = now(gate.peek(subject, 0));
    seen.limits()
        .map(|limit| (limit.policy().to_owned(), limit.decision().remaining()))
        .collect()
}

fn rich() -> Policies {
    let told = Cost::Attribute {
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
        .policy(Policy::new("tokens").cost(told).limit(Limit::per_hour(200)))
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
fn the_cost_at_the_end_is_of_what_was_reserved() {
    let (gate, _) = gate(rich());
    let ann = Subject::new().user("ann");
    let receipt = reserve(&gate, &ann, None);
    now(gate.settle_detached(&receipt, Completion::status(200).cost(30))).unwrap();
    let figures = |numbers: [u64; 6]| {
        let names = ["requests", "double", "tokens", "failures", "odd", "flight"];
        names
            .map(str::to_owned)
            .into_iter()
            .zip(numbers)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        left(&gate, &ann),
        figures([49, 88, 170, 20, 39, 5]),
        "nobody said what it costs: only tokens are told"
    );
    let receipt = reserve(&gate, &ann, Some(10));
    assert_eq!(left(&gate, &ann), figures([39, 68, 100, 10, 29, 4]));
    now(gate.settle_detached(&receipt, Completion::status(409).cost(3))).unwrap();
    assert_eq!(
        left(&gate, &ann),
        figures([46, 82, 167, 17, 39, 5]),
        "three, and a failure"
    );
    assert_eq!(
        now(gate.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::AlreadySettled)
    );
    let receipt = reserve(&gate, &ann, Some(10));
    now(gate.cancel_detached(&receipt)).unwrap();
    assert_eq!(left(&gate, &ann), figures([46, 82, 167, 17, 39, 5]));
    assert_eq!(
        now(gate.cancel_detached(&receipt)),
        Err(SettleError::AlreadySettled)
    );
}

#[test]
fn who_met_no_limit_settles_once_too() {
    let (gate, clock) = gate(
        Policies::new().policy(
            Policy::new("login")
                .matching(Match::new().path("/login".parse().unwrap()))
                .limit(Limit::per_hour(5)),
        ),
    );
    let receipt = reserve(&gate, &Subject::new().path("/other"), None);
    assert_eq!(
        now(gate.settle_detached(&receipt, Completion::unknown())),
        Ok(())
    );
    assert_eq!(
        now(gate.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::AlreadySettled)
    );
    clock.advance(MINUTE);
    assert_eq!(
        now(gate.settle_detached(&receipt, Completion::unknown())),
        Err(SettleError::Expired)
    );
}

#[test]
fn a_caller_who_would_wait_is_told_how_long() {
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
        let (gate, _) = gate(policies);
        let ask = |wait: Option<u64>| {
            now(gate.reserve(&Subject::new(), None, wait.map(Duration::from_secs)))
        };
        assert_eq!(ask(Some(3)).delay(), Duration::ZERO);
        assert!(ask(Some(0)).is_denied(), "who does not wait is turned away");
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
fn policies_that_change_in_between_do_not_change_what_was_reserved() {
    let (gate, _) = gate(rich());
    let ann = Subject::new().user("ann");
    let receipts: Vec<_> = (0..3).map(|_| reserve(&gate, &ann, Some(2))).collect();
    // Others count, in another order; some are gone, and one has another limit.
    let told = Cost::Attribute {
        attribute: "tokens".into(),
        default: 7,
    };
    let changed = Policies::new()
        .policy(Policy::new("tokens").cost(told).limit(Limit::per_hour(200)))
        .policy(
            Policy::new("failures")
                .key("user")
                .count(Count::Successes)
                .limit(Limit::per_hour(20)),
        )
        .policy(Policy::new("requests").limit(Limit::per_hour(60)));
    gate.set_policies(changed).unwrap();
    let before = left(&gate, &ann);
    now(gate.settle_detached(&receipts[0], Completion::status(200))).unwrap();
    let after = left(&gate, &ann);
    assert_eq!(after[0], before[0], "it costs what it cost");
    assert_eq!(
        (before[1].1, after[1].1),
        (14, 16),
        "a success did not count when it was reserved"
    );
    assert_eq!(after[2], before[2]);
    now(gate.cancel_detached(&receipts[1])).unwrap();
    assert_eq!(left(&gate, &ann)[0].1, before[0].1 + 14);
    assert_eq!(
        left(&gate, &ann)[2],
        before[2],
        "what was charged by the limit of before does not come back"
    );
    gate.set_policies(rich()).unwrap();
    now(gate.settle_detached(&receipts[2], Completion::failed().cost(1))).unwrap();
}

#[test]
fn what_no_engine_wrote_is_refused() {
    let (gate, _) = gate(rich());
    let receipt = reserve(&gate, &Subject::new().user("ann"), Some(2));
    for length in 0..receipt.len() {
        assert_eq!(
            now(gate.cancel_detached(&receipt[..length])),
            Err(SettleError::InvalidReceipt),
            "{length}"
        );
    }
    for at in 0..receipt.len() {
        let mut changed = receipt.clone();
        changed[at] ^= 0x80;
        // Whatever it says, nobody panics.
        let _ = now(gate.settle_detached(&changed, Completion::unknown()));
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

fn told(verdict: &PolicyVerdict) -> (bool, Option<Duration>, Vec<u64>) {
    let left = verdict
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect();
    (verdict.is_allowed(), verdict.retry_after(), left)
}

/// Longer than anything lasts, and whole windows.
const LATER: Duration = Duration::from_secs(100 * 3_600);

/// What is told on a trace; then all is as it was before, later. One engine for both ways: whatever
/// keys share in the table of its store, they share it both times.
fn run(
    gate: &Gate,
    clock: &ManualClock,
    steps: &[Step],
    detached: bool,
) -> Vec<(bool, Option<Duration>, Vec<u64>)> {
    enum Kept {
        Itself(PolicyVerdict),
        Receipt(Vec<u8>),
    }
    let settle = |kept: Kept, ending: Option<Completion>| match (kept, ending) {
        (Kept::Itself(verdict), Some(ending)) => now(gate.settle(verdict, ending)),
        (Kept::Itself(verdict), None) => now(gate.cancel(verdict)),
        (Kept::Receipt(receipt), Some(ending)) => {
            now(gate.settle_detached(&receipt, ending)).unwrap()
        }
        (Kept::Receipt(receipt), None) => now(gate.cancel_detached(&receipt)).unwrap(),
    };
    let (begin, mut seen, mut kept) = (clock.now(), Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Reserve { user, cost, tokens } => {
                let tokens = tokens.map(|tokens| tokens.to_string());
                let mut subject = Subject::new().user(["ann", "bob"][*user]);
                if let Some(tokens) = &tokens {
                    subject = subject.with("tokens", tokens.as_str());
                }
                let verdict = now(gate.reserve(&subject, *cost, None));
                seen.push(told(&verdict));
                kept.push(match detached {
                    false => Kept::Itself(verdict),
                    true => Kept::Receipt(now(gate.detach(verdict, clock.now() + LATER)).unwrap()),
                });
            }
            Step::Settle { which, ending } if *which < kept.len() => {
                settle(kept.swap_remove(*which), *ending)
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
    fn elsewhere_is_as_good_as_here(steps in prop::collection::vec(step(), 1..50)) {
        let (gate, clock) = gate(rich());
        clock.set(Timestamp::from_unix(Duration::from_secs(1_700_000_000)));
        let (here, elsewhere) = (run(&gate, &clock, &steps, false), run(&gate, &clock, &steps, true));
        prop_assert_eq!(here, elsewhere);
    }
}
