//! Reloads while requests come: no decision is lost, and no token is created.

use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit, ManualClock, MemoryStore, store::AskOutcome};
use ratekeeper_policy::{
    Action, Attribute, Completion, Count, Engine, Match, Plan, Policies, Policy, PolicyLimit,
    PolicyVerdict, Reason, Subject, policy::Penalty,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

fn count_allowed(engine: &TestEngine, subject: &Subject<'_>, many: u32) -> u32 {
    (0..many)
        .filter(|_| engine.decide_now(subject).is_allowed())
        .count() as u32
}

fn remaining(engine: &TestEngine, subject: &Subject<'_>) -> Vec<u64> {
    engine
        .peek_now(&subject.clone().cost(0))
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect()
}

fn capacity_of(verdict: &PolicyVerdict, policy: &str) -> Option<u64> {
    verdict
        .limits()
        .find(|limit| limit.policy() == policy)
        .map(|limit| limit.limit().capacity())
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Fewer where they are slow.
const DECISIONS: u64 = if cfg!(debug_assertions) {
    400_000
} else {
    2_000_000
};
const THREADS: u64 = 4;

/// The policies of the n-th load: one stays the same, one has another limit each time, one comes
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

/// Up and down; the first is the largest.
const MOST: u64 = 5_000;
fn burst_of(n: u64) -> u64 {
    MOST - (n * 37) % 4_000
}

#[test]
fn a_reload_amid_many_decisions_loses_none_and_creates_no_tokens() {
    let (engine, _) = new_engine(nth_load(0));
    let same = AtomicU64::new(0);
    let changed = AtomicU64::new(0);
    let guest = AtomicU64::new(0);
    let deciding = AtomicU64::new(THREADS);
    let loads = AtomicU64::new(0);
    // The latest load in effect: a thread that reads it and then decides must decide by it or by a
    // later one.
    let in_force = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let paths = [("/same", &same), ("/changed", &changed), ("/guest", &guest)];
                for turn in 0..DECISIONS / THREADS {
                    let (path, passed) = paths[(turn % 3) as usize];
                    let least = in_force.load(Ordering::SeqCst);
                    let verdict = engine.decide_now(&Subject::new().user("ann").path(path));
                    let most = in_force.load(Ordering::SeqCst) + 1;
                    if path == "/changed" {
                        let limit = capacity_of(&verdict, "changed").unwrap();
                        assert!(
                            (least..=most).any(|n| burst_of(n) == limit),
                            "{limit} from {least} to {most}"
                        );
                    }
                    if path == "/same" {
                        assert_eq!(capacity_of(&verdict, "same"), Some(1_000));
                    }
                    let counted =
                        verdict.is_allowed() && matches!(verdict.reason(), Reason::Limits);
                    passed.fetch_add(u64::from(counted), Ordering::Relaxed);
                }
                deciding.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            // As long as other threads decide; dozens at least.
            while deciding.load(Ordering::SeqCst) > 0 || loads.load(Ordering::Relaxed) < 60 {
                let n = loads.fetch_add(1, Ordering::Relaxed) + 1;
                engine.set_policies(nth_load(n)).unwrap();
                in_force.store(n, Ordering::SeqCst);
                let verdict = engine.peek_now(&Subject::new().path("/changed"));
                assert_eq!(
                    capacity_of(&verdict, "changed"),
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
    let (allowed, denied) = engine.stats().totals();
    assert_eq!(
        allowed + denied,
        DECISIONS / THREADS * THREADS,
        "no decision is lost"
    );
    assert_eq!(engine.stats().reloads(), loads.load(Ordering::Relaxed));
    assert_eq!(
        same.load(Ordering::Relaxed),
        1_000,
        "an unchanged limit allows exactly its burst"
    );
    let last = loads.load(Ordering::Relaxed);
    engine.set_policies(nth_load(1)).unwrap();
    let guests = guest.load(Ordering::Relaxed)
        + u64::from(count_allowed(&engine, &Subject::new().path("/guest"), 60));
    assert_eq!(guests, 50, "a policy that comes and goes keeps its counts");
    // The clock stands still: remaining tokens are clipped, never refilled.
    let changed = changed.load(Ordering::Relaxed);
    assert!(changed <= MOST, "{changed}");
    let least = (0..=last).map(burst_of).min().unwrap();
    assert!(changed >= least, "{changed} of at least {least}");
}

#[test]
fn the_next_decision_of_another_thread_is_by_the_new_limit() {
    let policies = |many| Policies::new().policy(Policy::new("all").limit(Limit::per_hour(many)));
    let (engine, _) = new_engine(policies(1));
    let go = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::SeqCst) {
                let asked = go.load(Ordering::SeqCst);
                if asked > seen {
                    let verdict = engine.peek_now(&Subject::new());
                    assert_eq!(capacity_of(&verdict, "all"), Some(asked));
                    seen = asked;
                    done.store(seen, Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
        });
        for n in 2..300 {
            engine.set_policies(policies(n)).unwrap();
            go.store(n, Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < n {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// Each load has another limit in every policy, and every other load has one policy more.
#[test]
fn a_decision_sees_all_of_a_reload_or_nothing_of_it() {
    let load = |n: u64| {
        let limit = Limit::per_hour(1_000_000 + n);
        let policies = Policies::new()
            .policy(Policy::new("everyone").limit(limit))
            .policy(Policy::new("user").key("user").limit(limit));
        if n.is_multiple_of(2) {
            policies.policy(Policy::new("even").key("user").limit(limit))
        } else {
            policies
        }
    };
    let (engine, _) = new_engine(load(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                let users = ["ann", "bob", "cem"].map(|user| Subject::new().user(user));
                for user in users.iter().cycle() {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let verdict = engine.decide_now(user);
                    // As the rules have them, and as the store decided by them.
                    let loads: Vec<[u64; 2]> = verdict
                        .limits()
                        .map(|limit| [limit.limit().capacity(), limit.decision().capacity()])
                        .collect();
                    let first = loads[0][0];
                    assert!(
                        loads.iter().flatten().all(|load| *load == first),
                        "{loads:?}"
                    );
                    let policies = 2 + usize::from(first.is_multiple_of(2));
                    assert_eq!(loads.len(), policies, "{loads:?}");
                }
            });
        }
        for n in 1..=3_000 {
            engine.set_policies(load(n)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
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
    let (engine, _) = new_engine(several(10, 3));
    let anybody = Subject::new();
    let held = [engine.decide_now(&anybody), engine.decide_now(&anybody)];
    assert_eq!(count_allowed(&engine, &anybody, 4), 4);
    assert_eq!(remaining(&engine, &anybody), [4, 94, 1]);
    engine.set_policies(several(20, 3)).unwrap();
    assert_eq!(remaining(&engine, &anybody), [4, 94, 1]);
    engine.set_policies(several(3, 2)).unwrap();
    assert_eq!(remaining(&engine, &anybody), [3, 94, 0]);
    drop(held);
    assert_eq!(remaining(&engine, &anybody), [3, 94, 2]);
    engine.set_policies(several(10, 3)).unwrap();
    assert_eq!(remaining(&engine, &anybody), [3, 94, 3]);
    // In another order they are the same limits.
    let policy = Policy::new("api")
        .limit(PolicyLimit::Concurrent(3))
        .limit(Limit::per_hour(100));
    engine
        .set_policies(Policies::new().policy(policy.limit(Limit::per_minute(10))))
        .unwrap();
    assert_eq!(remaining(&engine, &anybody), [3, 94, 3]);
}

fn of_limits(limits: &[Limit]) -> Policies {
    Policies::new().policy(
        limits
            .iter()
            .fold(Policy::new("api"), |policy, limit| policy.limit(*limit)),
    )
}

#[test]
fn equal_limits_in_another_order_keep_their_counts() {
    let few = Limit::per_hour(10);
    let many = Limit::per_hour(20).algorithm(Algorithm::SlidingLog);
    let (engine, _) = new_engine(of_limits(&[few, many]));
    assert_eq!(count_allowed(&engine, &Subject::new(), 4), 4);
    engine.set_policies(of_limits(&[many, few])).unwrap();
    assert_eq!(remaining(&engine, &Subject::new()), [16, 6]);
}

/// A limit removed long ago does not matter.
#[test]
fn a_changed_limit_continues_from_the_one_it_replaces() {
    let hour = Limit::per_hour(20);
    for next in [
        Limit::per_hour(30),
        Limit::per_day(30),
        Limit::per_minute(30),
    ] {
        let (engine, _) = new_engine(of_limits(&[
            Limit::per_hour(10),
            Limit::per_minute(10),
            hour,
        ]));
        engine.set_policies(of_limits(&[hour])).unwrap();
        assert_eq!(count_allowed(&engine, &Subject::new(), 18), 18);
        engine.set_policies(of_limits(&[next])).unwrap();
        assert_eq!(remaining(&engine, &Subject::new()), [2], "{next}");
    }
}

proptest! {
    /// The clock stands still. While a limit is in force it allows no more than its capacity, after
    /// any earlier limits; and as long as limits are replaced one at a time, all of them together
    /// allow no more than the largest.
    #[test]
    fn no_sequence_of_reloads_creates_tokens(
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
        let (engine, _) = new_engine(of_limits(&limits(&loads[0].0)));
        let (mut in_force, mut all): (Vec<(Limit, u64)>, u64) = (Vec::new(), 0);
        for (counts, many) in &loads {
            let limits = limits(counts);
            engine.set_policies(of_limits(&limits)).unwrap();
            in_force.retain(|(limit, _)| limits.contains(limit));
            for limit in limits {
                if !in_force.iter().any(|(known, _)| *known == limit) {
                    in_force.push((limit, 0));
                }
            }
            let passed = u64::from(count_allowed(&engine, &Subject::new(), *many));
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
fn another_algorithm_creates_no_tokens() {
    let by = |algorithm| {
        Policies::new().policy(Policy::new("api").limit(Limit::per_hour(10).algorithm(algorithm)))
    };
    for from in Algorithm::ALL {
        for to in Algorithm::ALL {
            let (engine, _) = new_engine(by(from));
            let mut passed = count_allowed(&engine, &Subject::new(), 4);
            engine.set_policies(by(to)).unwrap();
            passed += count_allowed(&engine, &Subject::new(), 20);
            engine.set_policies(by(from)).unwrap();
            passed += count_allowed(&engine, &Subject::new(), 20);
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
    let (engine, _) = new_engine(plans(&[("free", 10), ("pro", 100)], "free"));
    let free = Subject::new().user("ann").plan("free");
    let pro = Subject::new().user("ann").plan("pro");
    assert_eq!(
        (
            count_allowed(&engine, &free, 4),
            count_allowed(&engine, &pro, 30)
        ),
        (4, 30)
    );
    // In another order, one with another limit, and a new one.
    engine
        .set_policies(plans(&[("gold", 7), ("pro", 50), ("free", 10)], "gold"))
        .unwrap();
    assert_eq!(
        (remaining(&engine, &free), remaining(&engine, &pro)),
        (vec![6], vec![50])
    );
    assert_eq!(remaining(&engine, &Subject::new().user("ann")), [7]);
    // A removed plan gives way to the default, and has its counts when it is back.
    engine
        .set_policies(plans(&[("gold", 7), ("free", 10)], "gold"))
        .unwrap();
    assert_eq!(remaining(&engine, &pro), [7]);
    engine
        .set_policies(plans(&[("pro", 50), ("free", 10)], "free"))
        .unwrap();
    assert_eq!(remaining(&engine, &pro), [50]);
}

#[test]
fn another_key_is_another_limit_and_the_old_one_stays() {
    let by = |key: &[&str]| {
        Policies::new().policy(key.iter().fold(
            Policy::new("api").limit(Limit::per_hour(5)),
            |policy, name| policy.key(*name),
        ))
    };
    let (engine, _) = new_engine(by(&["user"]));
    let ann = Subject::new().user("ann").tenant("ann");
    assert_eq!(count_allowed(&engine, &ann, 3), 3);
    engine.set_policies(by(&["tenant"])).unwrap();
    assert_eq!(
        remaining(&engine, &ann),
        [5],
        "a tenant is not a user with the same name"
    );
    engine.set_policies(by(&["user", "tenant"])).unwrap();
    assert_eq!(remaining(&engine, &ann), [5]);
    engine.set_policies(by(&["user"])).unwrap();
    assert_eq!(remaining(&engine, &ann), [2]);
}

#[test]
fn a_changed_penalty_keeps_its_bans() {
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
    let (engine, clock) = new_engine(with(Some(penalty(2, MINUTE)), 1));
    let ann = Subject::new().user("ann");
    assert_eq!(count_allowed(&engine, &ann, 3), 1);
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Ban(_)));
    // With other limits and another number of denials, the ban stays.
    engine
        .set_policies(with(Some(penalty(5, MINUTE)), 100))
        .unwrap();
    let verdict = engine.decide_now(&ann);
    assert!(matches!(verdict.reason(), Reason::Ban(_)) && verdict.retry_after() == Some(MINUTE));
    // Without a penalty there is no ban; with one again the rest of it is back.
    engine.set_policies(with(None, 1)).unwrap();
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Limits));
    clock.advance(10 * SECOND);
    engine
        .set_policies(with(Some(penalty(1, MINUTE)), 1))
        .unwrap();
    assert_eq!(
        engine.decide_now(&ann).retry_after(),
        Some(3_600 * SECOND - 10 * SECOND)
    );
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Ban(_)));
    clock.advance(50 * SECOND);
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Limits));
    // Now the first denial is too many.
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Ban(_)));
}

#[test]
fn a_policy_in_shadow_mode_denies_nothing_even_banned_keys() {
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
    let (engine, _) = new_engine(Policies::new().policy(policy()));
    let ann = Subject::new().user("ann");
    assert_eq!(count_allowed(&engine, &ann, 3), 1);
    assert!(matches!(engine.decide_now(&ann).reason(), Reason::Ban(_)));
    engine
        .set_policies(Policies::new().policy(policy().action(Action::Shadow)))
        .unwrap();
    let verdict = engine.decide_now(&ann);
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
fn permits_are_released_after_a_reload() {
    let policy = || {
        Policy::new("login")
            .key("user")
            .limit(Limit::per_hour(3))
            .limit(PolicyLimit::Concurrent(2))
    };
    let policies = || Policies::new().policy(policy().count(Count::Failures));
    let (engine, _) = new_engine(policies());
    let ann = Subject::new().user("ann");
    let first = engine.decide_now(&ann);
    let second = engine.decide_now(&ann);
    assert_eq!(remaining(&engine, &ann), [1, 0]);
    engine
        .set_policies(policies().policy(Policy::new("more").limit(Limit::per_hour(9))))
        .unwrap();
    engine.settle_now(first, Completion::status(200));
    assert_eq!(remaining(&engine, &ann)[..2], [2, 1]);
    // Its policy is gone with its limits; the permit is back when they are.
    engine.set_policies(Policies::new()).unwrap();
    engine.settle_now(second, Completion::status(200));
    engine.set_policies(policies()).unwrap();
    assert_eq!(remaining(&engine, &ann), [3, 2]);
}

#[test]
fn a_rejected_reload_changes_nothing() {
    let policy = |name: &str, many| Policy::new(name).limit(Limit::per_hour(many));
    let (engine, _) = new_engine(
        Policies::new()
            .policy(policy("a", 10))
            .policy(policy("b", 20)),
    );
    assert_eq!(count_allowed(&engine, &Subject::new(), 4), 4);
    let before = engine.policies();
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
        engine.set_policies(wrong).unwrap_err();
        assert_eq!(engine.policies(), before);
        assert_eq!(remaining(&engine, &Subject::new()), [6, 16]);
    }
    assert_eq!(
        (engine.stats().reloads(), engine.stats().totals()),
        (0, (4, 0))
    );
    assert_eq!(count_allowed(&engine, &Subject::new(), 20), 6);
}

/// Many reloads: unchanged limits cost nothing, and limits that alternate do not pile up.
#[test]
fn a_thousand_reloads_equal_one() {
    let (engine, _) = new_engine(nth_load(0));
    let ann = Subject::new().user("ann").path("/same");
    assert_eq!(count_allowed(&engine, &ann, 400), 400);
    (1..1_000).for_each(|n| engine.set_policies(nth_load(n)).unwrap());
    assert_eq!(remaining(&engine, &ann), [600]);
}
