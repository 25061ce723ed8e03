//! Other policies take the place of those in force while requests come: none is lost, none is
//! minted.

use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit, ManualClock, MemoryStore, store::AskOutcome};
use ratekeeper_policy::{
    Action, Attribute, Completion, Count, Engine, Match, Plan, Policies, Policy, PolicyLimit,
    PolicyVerdict, Reason, Subject, policy::Penalty,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

type Gate = Engine<MemoryStore<ManualClock>>;

fn gate(policies: Policies) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

fn passes(gate: &Gate, subject: &Subject<'_>, many: u32) -> u32 {
    (0..many)
        .filter(|_| gate.decide_now(subject).is_allowed())
        .count() as u32
}

fn left(gate: &Gate, subject: &Subject<'_>) -> Vec<u64> {
    gate.peek_now(subject, 0)
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect()
}

fn limit_of(verdict: &PolicyVerdict, policy: &str) -> Option<u64> {
    verdict
        .limits()
        .find(|limit| limit.policy() == policy)
        .map(|limit| limit.limit().capacity())
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Fewer where they take longer.
const DECISIONS: u64 = if cfg!(debug_assertions) {
    400_000
} else {
    2_000_000
};
const THREADS: u64 = 4;

/// The policies of the n-th load: one stays as it is, one has another limit each time, one comes
/// and goes.
fn nth_load(n: u64) -> Policies {
    let at = |path: &str| Match::new().path(path.parse().unwrap());
    let mut policies = Policies::new();
    let guest = Policy::new("guest")
        .matching(at("/guest"))
        .limit(Limit::per_hour(50));
    if n % 3 == 1 {
        policies = policies.policy(guest.clone());
    }
    policies = policies
        .policy(
            Policy::new("same")
                .matching(at("/same"))
                .key("user")
                .limit(Limit::per_hour(1_000)),
        )
        .policy(
            Policy::new("changed")
                .matching(at("/changed"))
                .limit(Limit::per_hour(burst_of(n))),
        );
    if n % 3 == 2 {
        policies = policies.policy(guest);
    }
    policies
}

/// Up and down, the first the most.
const MOST: u64 = 5_000;
fn burst_of(n: u64) -> u64 {
    MOST - (n * 37) % 4_000
}

#[test]
fn a_reload_in_the_middle_of_many_decisions_loses_none_and_mints_nothing() {
    let (gate, _) = gate(nth_load(0));
    let (same, changed, guest) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (deciding, loads) = (AtomicU64::new(THREADS), AtomicU64::new(0));
    // The latest load that has taken effect: whoever reads it first and decides then decides by it,
    // or by a later one.
    let in_force = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let paths = [("/same", &same), ("/changed", &changed), ("/guest", &guest)];
                for turn in 0..DECISIONS / THREADS {
                    let (path, passed) = paths[(turn % 3) as usize];
                    let least = in_force.load(Ordering::SeqCst);
                    let verdict = gate.decide_now(&Subject::new().user("ann").path(path));
                    let most = in_force.load(Ordering::SeqCst) + 1;
                    if path == "/changed" {
                        let limit = limit_of(&verdict, "changed").unwrap();
                        assert!(
                            (least..=most).any(|n| burst_of(n) == limit),
                            "{limit} from {least} to {most}"
                        );
                    }
                    if path == "/same" {
                        assert_eq!(limit_of(&verdict, "same"), Some(1_000));
                    }
                    let counted =
                        verdict.is_allowed() && matches!(verdict.reason(), Reason::Limits);
                    passed.fetch_add(u64::from(counted), Ordering::Relaxed);
                }
                deciding.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            // As long as somebody decides; dozens at least.
            while deciding.load(Ordering::SeqCst) > 0 || loads.load(Ordering::Relaxed) < 60 {
                let n = loads.fetch_add(1, Ordering::Relaxed) + 1;
                gate.set_policies(nth_load(n)).unwrap();
                in_force.store(n, Ordering::SeqCst);
                let verdict = gate.peek_now(&Subject::new().path("/changed"), 1);
                assert_eq!(
                    limit_of(&verdict, "changed"),
                    Some(burst_of(n)),
                    "the next decision is by the new limit"
                );
                assert_eq!(
                    verdict.limits().next().unwrap().decision().capacity(),
                    burst_of(n)
                );
                std::thread::yield_now();
            }
        });
    });
    let (allowed, denied) = gate.totals();
    assert_eq!(
        allowed + denied,
        DECISIONS / THREADS * THREADS,
        "no decision is lost"
    );
    assert_eq!(gate.reload_count(), loads.load(Ordering::Relaxed));
    assert_eq!(
        same.load(Ordering::Relaxed),
        1_000,
        "what is unchanged admits its burst, no more and no less"
    );
    let last = loads.load(Ordering::Relaxed);
    gate.set_policies(nth_load(1)).unwrap();
    let guests = guest.load(Ordering::Relaxed)
        + u64::from(passes(&gate, &Subject::new().path("/guest"), 60));
    assert_eq!(guests, 50, "what comes and goes keeps its counts");
    // The clock stands still: what is kept over a change is clipped, never filled up.
    let changed = changed.load(Ordering::Relaxed);
    assert!(changed <= MOST, "{changed}");
    let least = (0..=last).map(burst_of).min().unwrap();
    assert!(changed >= least, "{changed} of at least {least}");
}

#[test]
fn the_next_decision_of_another_thread_is_by_the_new_limit() {
    let policies = |many| Policies::new().policy(Policy::new("all").limit(Limit::per_hour(many)));
    let (gate, _) = gate(policies(1));
    let (go, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::SeqCst) {
                let asked = go.load(Ordering::SeqCst);
                if asked > seen {
                    let verdict = gate.peek_now(&Subject::new(), 1);
                    assert_eq!(limit_of(&verdict, "all"), Some(asked));
                    seen = asked;
                    done.store(seen, Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
        });
        for n in 2..300 {
            gate.set_policies(policies(n)).unwrap();
            go.store(n, Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < n {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_limit_among_several_changes_alone() {
    let several = |minute: u64, flying: u64| {
        let policy = Policy::new("api")
            .limit(Limit::per_minute(minute))
            .limit(Limit::per_hour(100));
        Policies::new().policy(policy.limit(PolicyLimit::Concurrent(flying)))
    };
    let (gate, _) = gate(several(10, 3));
    let anybody = Subject::new();
    let held = [gate.decide_now(&anybody), gate.decide_now(&anybody)];
    assert_eq!(passes(&gate, &anybody, 4), 4);
    assert_eq!(left(&gate, &anybody), [4, 94, 1]);
    gate.set_policies(several(20, 3)).unwrap();
    assert_eq!(left(&gate, &anybody), [4, 94, 1]);
    gate.set_policies(several(3, 2)).unwrap();
    assert_eq!(left(&gate, &anybody), [3, 94, 0]);
    drop(held);
    assert_eq!(left(&gate, &anybody), [3, 94, 2]);
    gate.set_policies(several(10, 3)).unwrap();
    assert_eq!(left(&gate, &anybody), [3, 94, 3]);
    // In another order they are still themselves.
    let policy = Policy::new("api")
        .limit(PolicyLimit::Concurrent(3))
        .limit(Limit::per_hour(100));
    gate.set_policies(Policies::new().policy(policy.limit(Limit::per_minute(10))))
        .unwrap();
    assert_eq!(left(&gate, &anybody), [3, 94, 3]);
}

fn of_limits(limits: &[Limit]) -> Policies {
    Policies::new().policy(
        limits
            .iter()
            .fold(Policy::new("api"), |policy, limit| policy.limit(*limit)),
    )
}

#[test]
fn the_same_limits_in_another_order_are_the_same() {
    let (few, many) = (
        Limit::per_hour(10),
        Limit::per_hour(20).algorithm(Algorithm::SlidingLog),
    );
    let (gate, _) = gate(of_limits(&[few, many]));
    assert_eq!(passes(&gate, &Subject::new(), 4), 4);
    gate.set_policies(of_limits(&[many, few])).unwrap();
    assert_eq!(left(&gate, &Subject::new()), [16, 6]);
}

/// One that was taken out long ago has nothing to do with it.
#[test]
fn a_limit_that_changes_goes_on_from_the_one_it_replaces() {
    let hour = Limit::per_hour(20);
    for next in [
        Limit::per_hour(30),
        Limit::per_day(30),
        Limit::per_minute(30),
    ] {
        let (gate, _) = gate(of_limits(&[
            Limit::per_hour(10),
            Limit::per_minute(10),
            hour,
        ]));
        gate.set_policies(of_limits(&[hour])).unwrap();
        assert_eq!(passes(&gate, &Subject::new(), 18), 18);
        gate.set_policies(of_limits(&[next])).unwrap();
        assert_eq!(left(&gate, &Subject::new()), [2], "{next}");
    }
}

proptest! {
    /// The clock stands still. While a limit is in force it admits no more than it holds, whatever
    /// came before; and as long as one limit at a time takes the place of another, all of them
    /// together no more than the largest.
    #[test]
    fn no_sequence_of_reloads_mints_anything(
        loads in prop::collection::vec((prop::sample::subsequence(vec![2_u64, 3, 5, 8, 13], 1..=3), 0_u32..8), 1..12),
        one_at_a_time in any::<bool>(),
    ) {
        let limits = |counts: &[u64]| -> Vec<Limit> {
            let of = |count: &u64| match count {
                3 => Limit::per_minute(*count),
                13 => Limit::per_day(*count),
                _ => Limit::per_hour(*count),
            };
            counts.iter().take(if one_at_a_time { 1 } else { 3 }).map(of).collect()
        };
        let (gate, _) = gate(of_limits(&limits(&loads[0].0)));
        let (mut in_force, mut all): (Vec<(Limit, u64)>, u64) = (Vec::new(), 0);
        for (counts, many) in &loads {
            let limits = limits(counts);
            gate.set_policies(of_limits(&limits)).unwrap();
            in_force.retain(|(limit, _)| limits.contains(limit));
            for limit in limits {
                if !in_force.iter().any(|(known, _)| *known == limit) {
                    in_force.push((limit, 0));
                }
            }
            let passed = u64::from(passes(&gate, &Subject::new(), *many));
            all += passed;
            for (limit, used) in &mut in_force {
                *used += passed;
                prop_assert!(*used <= limit.capacity(), "{} of {}", used, limit);
            }
        }
        if one_at_a_time {
            let largest = loads.iter().map(|(counts, _)| counts[0]).max().unwrap();
            prop_assert!(all <= largest, "{} of {}", all, largest);
        }
    }
}

#[test]
fn another_algorithm_mints_nothing() {
    let by = |algorithm| {
        Policies::new().policy(Policy::new("api").limit(Limit::per_hour(10).algorithm(algorithm)))
    };
    for from in Algorithm::ALL {
        for to in Algorithm::ALL {
            let (gate, _) = gate(by(from));
            let mut passed = passes(&gate, &Subject::new(), 4);
            gate.set_policies(by(to)).unwrap();
            passed += passes(&gate, &Subject::new(), 20);
            gate.set_policies(by(from)).unwrap();
            passed += passes(&gate, &Subject::new(), 20);
            let most = [from, to]
                .map(|by| Limit::per_hour(10).algorithm(by).capacity())
                .into_iter()
                .max()
                .unwrap();
            assert!(
                u64::from(passed) <= most,
                "{passed} of {most} from {from} to {to}"
            );
        }
    }
}

#[test]
fn a_plan_keeps_its_counts_by_its_name() {
    let plans = |plans: &[(&str, u64)], default: &str| {
        let add = |policies: Policies, (name, many): &(&str, u64)| {
            policies.plan(Plan::new(*name).limit(Limit::per_hour(*many)))
        };
        let policies = plans.iter().fold(Policies::new(), add);
        policies.policy(
            Policy::new("api")
                .key("user")
                .plan(Attribute::Plan, Some(default)),
        )
    };
    let (gate, _) = gate(plans(&[("free", 10), ("pro", 100)], "free"));
    let free = Subject::new().user("ann").plan("free");
    let pro = Subject::new().user("ann").plan("pro");
    assert_eq!((passes(&gate, &free, 4), passes(&gate, &pro, 30)), (4, 30));
    // In another order, one with another limit, one more.
    gate.set_policies(plans(&[("gold", 7), ("pro", 50), ("free", 10)], "gold"))
        .unwrap();
    assert_eq!((left(&gate, &free), left(&gate, &pro)), (vec![6], vec![50]));
    assert_eq!(left(&gate, &Subject::new().user("ann")), [7]);
    // One that is gone gives way to the default, and is as it was when it is back.
    gate.set_policies(plans(&[("gold", 7), ("free", 10)], "gold"))
        .unwrap();
    assert_eq!(left(&gate, &pro), [7]);
    gate.set_policies(plans(&[("pro", 50), ("free", 10)], "free"))
        .unwrap();
    assert_eq!(left(&gate, &pro), [50]);
}

#[test]
fn another_key_is_another_limit_and_the_old_one_is_not_forgotten() {
    let by = |key: &[&str]| {
        Policies::new().policy(key.iter().fold(
            Policy::new("api").limit(Limit::per_hour(5)),
            |policy, name| policy.key(*name),
        ))
    };
    let (gate, _) = gate(by(&["user"]));
    let ann = Subject::new().user("ann").tenant("ann");
    assert_eq!(passes(&gate, &ann, 3), 3);
    gate.set_policies(by(&["tenant"])).unwrap();
    assert_eq!(
        left(&gate, &ann),
        [5],
        "a tenant is no user, whatever its name"
    );
    gate.set_policies(by(&["user", "tenant"])).unwrap();
    assert_eq!(left(&gate, &ann), [5]);
    gate.set_policies(by(&["user"])).unwrap();
    assert_eq!(left(&gate, &ann), [2]);
}

#[test]
fn a_penalty_changes_and_bans_that_are_out_stay_out() {
    let with = |penalty: Option<Penalty>, many| {
        let policy = Policy::new("api").key("user").limit(Limit::per_hour(many));
        Policies::new().policy(match penalty {
            None => policy,
            Some(penalty) => policy.penalty(penalty),
        })
    };
    let penalty = |denials, ban| Penalty {
        denials,
        within: MINUTE,
        ban,
    };
    let (gate, clock) = gate(with(Some(penalty(2, MINUTE)), 1));
    let ann = Subject::new().user("ann");
    assert_eq!(passes(&gate, &ann, 3), 1);
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Ban(_)));
    // Other limits and another number of denials: the ban is the same.
    gate.set_policies(with(Some(penalty(5, MINUTE)), 100))
        .unwrap();
    let verdict = gate.decide_now(&ann);
    assert!(matches!(verdict.reason(), Reason::Ban(_)) && verdict.retry_after() == Some(MINUTE));
    // Without a penalty there is no ban; with one again it is there for what is left of it.
    gate.set_policies(with(None, 1)).unwrap();
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Limits));
    clock.advance(10 * SECOND);
    gate.set_policies(with(Some(penalty(1, MINUTE)), 1))
        .unwrap();
    assert_eq!(
        gate.decide_now(&ann).retry_after(),
        Some(3_600 * SECOND - 10 * SECOND)
    );
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Ban(_)));
    clock.advance(50 * SECOND);
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Limits));
    // The first denial is one too many now.
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Ban(_)));
}

#[test]
fn a_policy_that_only_watches_now_turns_nobody_away_banned_or_not() {
    let penalty = Penalty {
        denials: 1,
        within: MINUTE,
        ban: MINUTE,
    };
    let policy = || {
        Policy::new("api")
            .key("user")
            .limit(Limit::per_hour(1))
            .penalty(penalty)
    };
    let (gate, _) = gate(Policies::new().policy(policy()));
    let ann = Subject::new().user("ann");
    assert_eq!(passes(&gate, &ann, 3), 1);
    assert!(matches!(gate.decide_now(&ann).reason(), Reason::Ban(_)));
    gate.set_policies(Policies::new().policy(policy().action(Action::Shadow)))
        .unwrap();
    let verdict = gate.decide_now(&ann);
    assert!(verdict.is_allowed(), "{verdict:?}");
    assert_eq!(
        verdict
            .limits()
            .map(|limit| limit.outcome())
            .collect::<Vec<_>>(),
        [AskOutcome::ShadowDenied]
    );
}

#[test]
fn what_was_in_flight_comes_back_after_a_reload() {
    let policy = || {
        Policy::new("login")
            .key("user")
            .limit(Limit::per_hour(3))
            .limit(PolicyLimit::Concurrent(2))
    };
    let policies = || Policies::new().policy(policy().count(Count::Failures));
    let (gate, _) = gate(policies());
    let ann = Subject::new().user("ann");
    let (first, second) = (gate.decide_now(&ann), gate.decide_now(&ann));
    assert_eq!(left(&gate, &ann), [1, 0]);
    gate.set_policies(policies().policy(Policy::new("more").limit(Limit::per_hour(9))))
        .unwrap();
    gate.settle_now(first, Completion::status(200));
    assert_eq!(left(&gate, &ann)[..2], [2, 1]);
    // Its policy is gone, and so are its limits: what comes back is there when they are.
    gate.set_policies(Policies::new()).unwrap();
    gate.settle_now(second, Completion::status(200));
    gate.set_policies(policies()).unwrap();
    assert_eq!(left(&gate, &ann), [3, 2]);
}

#[test]
fn a_reload_that_is_refused_changes_nothing() {
    let policy = |name: &str, many| Policy::new(name).limit(Limit::per_hour(many));
    let (gate, _) = gate(
        Policies::new()
            .policy(policy("a", 10))
            .policy(policy("b", 20)),
    );
    assert_eq!(passes(&gate, &Subject::new(), 4), 4);
    let before = gate.policies();
    let refused = [
        Policies::new()
            .policy(policy("a", 100))
            .policy(policy("a", 100)),
        Policies::new()
            .policy(policy("a", 1))
            .policy(Policy::new("b")),
        Policies::new()
            .policy(policy("b", 1))
            .policy(Policy::new("c").plan("plan", Some("none"))),
        Policies::new().policy(policy("", 1)),
        Policies::new().policy(policy("a", 1).penalty(Penalty {
            denials: 0,
            within: MINUTE,
            ban: MINUTE,
        })),
    ];
    for wrong in refused {
        gate.set_policies(wrong).unwrap_err();
        assert_eq!(gate.policies(), before);
        assert_eq!(left(&gate, &Subject::new()), [6, 16]);
    }
    assert_eq!((gate.reload_count(), gate.totals()), (0, (4, 0)));
    assert_eq!(passes(&gate, &Subject::new(), 20), 6);
}

/// Months of reloads: what is the same costs nothing, and what changes back and forth does not pile
/// up.
#[test]
fn a_thousand_reloads_are_as_good_as_one() {
    let (gate, _) = gate(nth_load(0));
    let ann = Subject::new().user("ann").path("/same");
    assert_eq!(passes(&gate, &ann, 400), 400);
    (1..1_000).for_each(|n| gate.set_policies(nth_load(n)).unwrap());
    assert_eq!(left(&gate, &ann), [600]);
}
