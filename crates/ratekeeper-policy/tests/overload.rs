//! Overload: adaptive limits of policies, and load shedding by importance.

use ratekeeper::adaptive::Control;
use ratekeeper::{Limit, ManualClock, MemoryStore, adaptive::Class, adaptive::Load};
use ratekeeper_policy::{
    Action, Attribute, Completion, Engine, EngineOptions, Match, Plan, Policies, Policy,
    PolicyVerdict, Reason, Subject, engine::LoadSource, overload::AdaptiveLimit, overload::Shed,
};
use ratekeeper_testkit::poll::assert_ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    with(policies, EngineOptions::default())
}

fn with(policies: Policies, options: EngineOptions) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (
        Engine::with_options(store, policies, options).unwrap(),
        clock,
    )
}

fn adaptive() -> Policy {
    Policy::new("api").adaptive(
        AdaptiveLimit::new()
            .between(2, 50)
            .start(10)
            .control(Control::aimd()),
    )
}

fn in_flight(engine: &TestEngine) -> (u64, u64) {
    let seen = engine.stats().overload().unwrap().limits[0].snapshot;
    (seen.in_flight, seen.limit)
}

/// Fills the adaptive limit; returns the allowed requests and the first denied one.
fn fill(engine: &TestEngine) -> (Vec<PolicyVerdict>, PolicyVerdict) {
    let mut held = Vec::new();
    loop {
        let verdict = engine.decide_now(&Subject::new());
        if verdict.is_denied() {
            return (held, verdict);
        }
        held.push(verdict);
    }
}

#[test]
fn the_adaptive_limit_bounds_requests_in_flight() {
    let (engine, _) = new_engine(Policies::new().policy(adaptive()));
    let (held, refused) = fill(&engine);
    assert_eq!(held.len(), 10);
    assert!(held.iter().all(PolicyVerdict::holds_permits));
    assert!(matches!(refused.reason(), Reason::AtCapacity) && !refused.is_never());
    assert_eq!(
        (refused.status(), refused.policy(), refused.retry_after()),
        (503, Some("api"), None)
    );
    assert_eq!(refused.reason().name(), "at_capacity");
    assert!(!refused.holds_permits());
    drop(held);
    assert_eq!(in_flight(&engine), (0, 10));
    let counts = assert_ready(engine.stats().policies());
    assert_eq!(counts[0].counts.denied, 1);
    assert_eq!(engine.stats().totals(), (10, 1));
}

/// For each completion: the limit of 10 after a wave of ten requests with it.
#[test]
fn completions_move_the_limit() {
    for (ending, limit) in [
        (Completion::status(200), 11),
        (Completion::status(404), 11),
        (Completion::succeeded(), 11),
        (Completion::status(503), 9),
        (Completion::status(504), 9),
        (Completion::status(502), 9),
        (Completion::failed(), 9),
        (Completion::status(429), 10),
        (Completion::status(500), 10),
        (Completion::unknown(), 10),
        (Completion::status(200).cut_off(), 10),
    ] {
        let (engine, clock) = new_engine(Policies::new().policy(adaptive()));
        let (held, _) = fill(&engine);
        clock.advance(20 * MS);
        held.into_iter()
            .for_each(|verdict| engine.settle_now(verdict, ending));
        assert_eq!(in_flight(&engine), (0, limit), "{ending:?}");
    }
}

/// The latency is measured on the clock of the store, from the decision to the end.
#[test]
fn latency_is_measured_to_the_end() {
    let (engine, clock) = new_engine(Policies::new().policy(adaptive()));
    let (held, _) = fill(&engine);
    clock.advance(64 * MS);
    held.into_iter()
        .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    assert_eq!(
        engine.stats().overload().unwrap().limits[0].snapshot.short,
        Some(64 * MS)
    );
}

#[test]
fn peeks_denials_and_cancellations_hold_no_permit() {
    let policy = adaptive().key(Attribute::User).limit(Limit::per_minute(1));
    let (engine, _) = new_engine(Policies::new().policy(policy));
    let ann = Subject::new().user("ann");
    assert!(engine.peek_now(&ann).is_allowed());
    let first = engine.decide_now(&ann);
    assert_eq!(in_flight(&engine).0, 1);
    let over = engine.decide_now(&ann);
    assert!(over.is_denied() && matches!(over.reason(), Reason::Limits) && over.status() == 429);
    assert_eq!(in_flight(&engine).0, 1);
    engine.settle_now(first, Completion::cancelled());
    assert_eq!(in_flight(&engine).0, 0);
    assert!(
        engine.decide_now(&ann).is_allowed(),
        "what was cancelled is refunded"
    );
}

/// A request without a permit is charged nothing.
#[test]
fn a_request_without_a_permit_is_charged_nothing() {
    let policy = adaptive().limit(Limit::per_minute(100));
    let (engine, _) = new_engine(Policies::new().policy(policy));
    let (held, refused) = fill(&engine);
    drop(refused);
    assert_eq!(held.len(), 10);
    let left = engine
        .peek_now(&Subject::new())
        .limits()
        .next()
        .unwrap()
        .decision()
        .remaining();
    assert_eq!(left, 90);
}

#[test]
fn shadow_mode_denies_nothing_and_is_counted() {
    let (engine, _) = new_engine(Policies::new().policy(adaptive().action(Action::Shadow)));
    let held: Vec<_> = (0..15)
        .map(|_| engine.decide_now(&Subject::new()))
        .collect();
    assert!(held.iter().all(PolicyVerdict::is_allowed));
    assert_eq!(in_flight(&engine), (10, 10));
    assert_eq!(
        assert_ready(engine.stats().policies())[0]
            .counts
            .shadow_denied,
        5
    );
}

#[test]
fn a_reload_keeps_the_measured_limit() {
    let (engine, clock) = new_engine(Policies::new().policy(adaptive()));
    let (held, _) = fill(&engine);
    clock.advance(20 * MS);
    held.into_iter()
        .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    let still = engine.decide_now(&Subject::new());
    engine
        .set_policies(Policies::new().policy(adaptive().limit(Limit::per_minute(9))))
        .unwrap();
    assert_eq!(in_flight(&engine), (1, 11));
    // With other parameters it starts at the current limit.
    let other = Policy::new("api").adaptive(AdaptiveLimit::new().between(3, 40));
    engine.set_policies(Policies::new().policy(other)).unwrap();
    assert_eq!(in_flight(&engine), (0, 11));
    engine.settle_now(still, Completion::status(200));
    engine.set_policies(Policies::new()).unwrap();
    assert!(engine.stats().overload().is_none());
}

#[test]
fn invalid_numbers_are_rejected() {
    let wrong = |limit: AdaptiveLimit| {
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        Engine::new(
            store,
            Policies::new().policy(Policy::new("api").adaptive(limit)),
        )
        .unwrap_err()
        .to_string()
    };
    assert_eq!(
        wrong(AdaptiveLimit::new().between(9, 3)),
        "`min` of an adaptive limit is 9, which is more than its `max` of 3; swap them"
    );
    assert!(wrong(AdaptiveLimit::new().start(1_000)).ends_with("set it from 5 to 200, not 1000"));
    assert!(wrong(AdaptiveLimit::new().between(0, 3)).contains("at least 1"));
}

/// Options with a machine load that the test sets.
fn with_cpu_load(cpu: f64) -> (EngineOptions, Arc<AtomicU64>) {
    let share = Arc::new(AtomicU64::new(cpu.to_bits()));
    let told = Arc::clone(&share);
    let mut options = EngineOptions::default();
    options.load = Some(LoadSource::new(move || Load {
        cpu: f64::from_bits(told.load(Ordering::Relaxed)),
        memory: f64::NAN,
    }));
    (options, share)
}

fn shedding_policies() -> Policies {
    let path = |path: &str| Match::new().path(path.parse().unwrap());
    Policies::new()
        .shed(Shed::new().cpu(0.8))
        .plan(
            Plan::new("free")
                .limit(Limit::unlimited())
                .class(Class::SheddablePlus),
        )
        .plan(Plan::new("pro").limit(Limit::unlimited()))
        .policy(
            Policy::new("export")
                .matching(path("/export"))
                .class(Class::Sheddable),
        )
        .policy(
            Policy::new("pay")
                .matching(path("/pay"))
                .class(Class::CriticalPlus),
        )
        .policy(
            Policy::new("plans")
                .matching(path("/api"))
                .plan(Attribute::Plan, None)
                .class(Class::Critical),
        )
}

/// Runs a load of requests of each class for a time; returns how many of each were allowed at the
/// end.
fn run_load(
    engine: &TestEngine,
    clock: &ManualClock,
    subjects: &[Subject<'_>],
    ticks: u32,
) -> Vec<bool> {
    for _ in 0..ticks {
        for subject in subjects {
            for _ in 0..50 {
                drop(engine.decide_now(subject));
            }
        }
        clock.advance(100 * MS);
    }
    subjects
        .iter()
        .map(|subject| (0..20).all(|_| engine.decide_now(subject).is_allowed()))
        .collect()
}

#[test]
fn the_least_important_are_shed_first_and_return_slowly() {
    let (options, share) = with_cpu_load(1.0);
    let (engine, clock) = with(shedding_policies(), options);
    let subjects = [
        Subject::new().path("/export"),
        Subject::new().path("/api").plan("free"),
        Subject::new().path("/api").plan("pro"),
        Subject::new().path("/other"),
        Subject::new().path("/pay"),
    ];
    assert_eq!(
        run_load(&engine, &clock, &subjects, 4)[2..],
        [true, true, true]
    );
    let shed = engine.decide_now(&subjects[0]);
    assert!(
        matches!(shed.reason(), Reason::Shed(Class::Sheddable)),
        "{shed:?}"
    );
    assert_eq!(
        (shed.status(), shed.reason().name(), shed.policy()),
        (503, "shed", None)
    );
    assert_eq!(shed.retry_after(), Some(Duration::from_secs(5)));
    assert_eq!(shed.limits().count(), 0);
    // The load stays: the next class is shed, and the next.
    let mut order: Vec<usize> = Vec::new();
    for _ in 0..200 {
        let count_allowed = run_load(&engine, &clock, &subjects, 1);
        let gone: Vec<usize> = (0..subjects.len())
            .filter(|at| !count_allowed[*at] && !order.contains(at))
            .collect();
        order.extend(gone);
    }
    assert_eq!(order[..2], [0, 1], "{order:?}");
    assert_eq!(order.last(), Some(&4), "{order:?}");
    // The load is gone: all classes are back after a while, not at once.
    share.store(0.1_f64.to_bits(), Ordering::Relaxed);
    assert!(!run_load(&engine, &clock, &subjects, 10)[0]);
    clock.advance(Duration::from_secs(600));
    assert_eq!(run_load(&engine, &clock, &subjects, 2), [true; 5]);
    let figures = engine.stats().overload().unwrap().shed.unwrap();
    assert!(figures.classes.iter().all(|class| class.admitted > 0) && figures.level == 0.0);
}

/// The order: the attribute, then the plan, then the policy, then the default.
#[test]
fn the_importance_comes_from_attribute_plan_policy_or_default() {
    let (options, _) = with_cpu_load(1.0);
    let (engine, clock) = with(shedding_policies(), options);
    let subjects = [
        Subject::new().path("/export"),
        Subject::new().path("/pay").with("class", "Sheddable "),
    ];
    assert_eq!(run_load(&engine, &clock, &subjects, 20), [false, false]);
    let class_of = |subject: &Subject<'_>| match engine.decide_now(subject).reason() {
        Reason::Shed(class) => Some(*class),
        _ => None,
    };
    assert_eq!(
        class_of(&Subject::new().path("/other").with("class", "sheddable")),
        Some(Class::Sheddable)
    );
    assert_eq!(
        class_of(&Subject::new().path("/export").with("class", "nonsense")),
        Some(Class::Sheddable)
    );
    assert_eq!(
        class_of(
            &Subject::new()
                .path("/export")
                .with("class", "critical_plus")
        ),
        None
    );
}

/// An adaptive limit holds capacity back for important requests, from the first moment on.
#[test]
fn an_adaptive_limit_holds_capacity_for_important_requests() {
    let all = Policy::new("all").adaptive(AdaptiveLimit::new().between(10, 10));
    let policies = shedding_policies().shed(Shed::new()).policy(all);
    let (engine, clock) = new_engine(policies);
    let low = Subject::new().path("/export");
    let high = Subject::new().path("/pay");
    for _ in 0..100 {
        let mut held: Vec<_> = (0..20).map(|_| engine.decide_now(&low)).collect();
        assert_eq!(
            held.iter().filter(|verdict| verdict.is_allowed()).count(),
            3
        );
        held.extend((0..7).map(|_| engine.decide_now(&high)));
        assert!(held[20..].iter().all(PolicyVerdict::is_allowed));
        let full = engine.decide_now(&high);
        assert!(matches!(full.reason(), Reason::AtCapacity), "{full:?}");
        drop(full);
        clock.advance(100 * MS);
        held.into_iter()
            .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    }
}

/// Without configured importance, all requests may use the whole limit.
#[test]
fn requests_without_a_class_may_use_the_whole_limit() {
    let all = Policy::new("all").adaptive(AdaptiveLimit::new().between(10, 10));
    let batch = Policy::new("batch")
        .matching(Match::new().path("/batch".parse().unwrap()))
        .class(Class::Sheddable);
    let (engine, _) = new_engine(Policies::new().policy(batch).policy(all));
    let batch = Subject::new().path("/batch");
    let held: Vec<_> = (0..20)
        .map(|_| engine.decide_now(&batch))
        .filter(PolicyVerdict::is_allowed)
        .collect();
    assert_eq!((held.len(), fill(&engine).0.len()), (3, 7));
}
