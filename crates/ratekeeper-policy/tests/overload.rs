//! Too much: adaptive limits of policies, and requests that are shed by how important they are.

use ratekeeper::adaptive::Control;
use ratekeeper::{Limit, ManualClock, MemoryStore, adaptive::Class, adaptive::Load};
use ratekeeper_policy::{
    Action, Attribute, Completion, Engine, EngineOptions, Match, Plan, Policies, Policy,
    PolicyVerdict, Reason, Subject, engine::LoadSource, overload::AdaptiveLimit, overload::Shed,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

type OnManual = Engine<MemoryStore<ManualClock>>;

fn engine(policies: Policies) -> (OnManual, ManualClock) {
    with(policies, EngineOptions::default())
}

fn with(policies: Policies, options: EngineOptions) -> (OnManual, ManualClock) {
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

fn in_flight(engine: &OnManual) -> (u64, u64) {
    let seen = engine.overload_stats().unwrap().limits[0].snapshot;
    (seen.in_flight, seen.limit)
}

/// As many as pass, and the first that does not.
fn fill(engine: &OnManual) -> (Vec<PolicyVerdict>, PolicyVerdict) {
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
fn as_many_are_in_flight_as_the_adaptive_limit_says() {
    let (engine, _) = engine(Policies::new().policy(adaptive()));
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
    let counts = tokio_free(engine.policy_stats());
    assert_eq!(counts[0].counts.denied, 1);
    assert_eq!(engine.totals(), (10, 1));
}

/// The figures of a memory store are there when they are asked for.
fn tokio_free<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// How a request ended, with what, and what the limit of 10 is after a wave of ten such.
#[test]
fn the_end_of_a_request_moves_the_limit() {
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
        let (engine, clock) = engine(Policies::new().policy(adaptive()));
        let (held, _) = fill(&engine);
        clock.advance(20 * MS);
        held.into_iter()
            .for_each(|verdict| engine.settle_now(verdict, ending));
        assert_eq!(in_flight(&engine), (0, limit), "{ending:?}");
    }
}

/// The latency is that of the clock of the store, from the decision to the end.
#[test]
fn latency_is_measured_to_the_end() {
    let (engine, clock) = engine(Policies::new().policy(adaptive()));
    let (held, _) = fill(&engine);
    clock.advance(64 * MS);
    held.into_iter()
        .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    assert_eq!(
        engine.overload_stats().unwrap().limits[0].snapshot.short,
        Some(64 * MS)
    );
}

#[test]
fn who_looks_or_is_turned_away_or_cancels_takes_no_place() {
    let policy = adaptive().key(Attribute::User).limit(Limit::per_minute(1));
    let (engine, _) = engine(Policies::new().policy(policy));
    let ann = Subject::new().user("ann");
    assert!(engine.peek_now(&ann, 1).is_allowed());
    let first = engine.decide_now(&ann);
    assert_eq!(in_flight(&engine).0, 1);
    let over = engine.decide_now(&ann);
    assert!(over.is_denied() && matches!(over.reason(), Reason::Limits) && over.status() == 429);
    assert_eq!(in_flight(&engine).0, 1);
    engine.cancel_now(first);
    assert_eq!(in_flight(&engine).0, 0);
    assert!(
        engine.decide_now(&ann).is_allowed(),
        "what was cancelled is there again"
    );
}

/// Whoever finds no room is charged nothing.
#[test]
fn no_room_costs_nothing() {
    let policy = adaptive().limit(Limit::per_minute(100));
    let (engine, _) = engine(Policies::new().policy(policy));
    let (held, refused) = fill(&engine);
    drop(refused);
    assert_eq!(held.len(), 10);
    let left = engine
        .peek_now(&Subject::new(), 1)
        .limits()
        .next()
        .unwrap()
        .decision()
        .remaining();
    assert_eq!(left, 90);
}

#[test]
fn in_shadow_nobody_is_turned_away_and_it_is_counted() {
    let (engine, _) = engine(Policies::new().policy(adaptive().action(Action::Shadow)));
    let held: Vec<_> = (0..15)
        .map(|_| engine.decide_now(&Subject::new()))
        .collect();
    assert!(held.iter().all(PolicyVerdict::is_allowed));
    assert_eq!(in_flight(&engine), (10, 10));
    assert_eq!(tokio_free(engine.policy_stats())[0].counts.shadow_denied, 5);
}

#[test]
fn a_reload_keeps_what_was_found_out() {
    let (engine, clock) = engine(Policies::new().policy(adaptive()));
    let (held, _) = fill(&engine);
    clock.advance(20 * MS);
    held.into_iter()
        .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    let still = engine.decide_now(&Subject::new());
    engine
        .set_policies(Policies::new().policy(adaptive().limit(Limit::per_minute(9))))
        .unwrap();
    assert_eq!(in_flight(&engine), (1, 11));
    // Other numbers: it begins where it was.
    let other = Policy::new("api").adaptive(AdaptiveLimit::new().between(3, 40));
    engine.set_policies(Policies::new().policy(other)).unwrap();
    assert_eq!(in_flight(&engine), (0, 11));
    engine.settle_now(still, Completion::status(200));
    engine.set_policies(Policies::new()).unwrap();
    assert!(engine.overload_stats().is_none());
}

#[test]
fn numbers_that_cannot_be_are_refused() {
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
    assert!(wrong(AdaptiveLimit::new().start(1_000)).ends_with("make `start` 5 to 200, not 1000"));
    assert!(wrong(AdaptiveLimit::new().between(0, 3)).contains("at least 1"));
}

/// A machine as busy as it is told to be.
fn busy(cpu: f64) -> (EngineOptions, Arc<AtomicU64>) {
    let share = Arc::new(AtomicU64::new(cpu.to_bits()));
    let told = Arc::clone(&share);
    let mut options = EngineOptions::default();
    options.load = Some(LoadSource::new(move || Load {
        cpu: f64::from_bits(told.load(Ordering::Relaxed)),
        memory: f64::NAN,
    }));
    (options, share)
}

fn important() -> Policies {
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

/// So many of each for so long; what passed of them at the end.
fn press(
    engine: &OnManual,
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
fn the_least_important_go_first_and_come_back_slowly() {
    let (options, share) = busy(1.0);
    let (engine, clock) = with(important(), options);
    let subjects = [
        Subject::new().path("/export"),
        Subject::new().path("/api").plan("free"),
        Subject::new().path("/api").plan("pro"),
        Subject::new().path("/other"),
        Subject::new().path("/pay"),
    ];
    assert_eq!(
        press(&engine, &clock, &subjects, 4)[2..],
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
    // It does not help: the next class goes, and the next.
    let mut order: Vec<usize> = Vec::new();
    for _ in 0..200 {
        let passes = press(&engine, &clock, &subjects, 1);
        let gone: Vec<usize> = (0..subjects.len())
            .filter(|at| !passes[*at] && !order.contains(at))
            .collect();
        order.extend(gone);
    }
    assert_eq!(order[..2], [0, 1], "{order:?}");
    assert_eq!(order.last(), Some(&4), "{order:?}");
    // Room again: all of them are back after a while, not at once.
    share.store(0.1_f64.to_bits(), Ordering::Relaxed);
    assert!(!press(&engine, &clock, &subjects, 10)[0]);
    clock.advance(Duration::from_secs(600));
    assert_eq!(press(&engine, &clock, &subjects, 2), [true; 5]);
    let figures = engine.overload_stats().unwrap().shed.unwrap();
    assert!(figures.classes.iter().all(|class| class.admitted > 0) && figures.level == 0.0);
}

/// Its own word first, then the plan, then the policy, then the default.
#[test]
fn who_says_how_important_a_request_is() {
    let (options, _) = busy(1.0);
    let (engine, clock) = with(important(), options);
    let subjects = [
        Subject::new().path("/export"),
        Subject::new().path("/pay").with("class", "Sheddable "),
    ];
    assert_eq!(press(&engine, &clock, &subjects, 20), [false, false]);
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

/// A gate keeps room for the more important: whoever is less important makes it, from the first
/// moment on.
#[test]
fn a_gate_keeps_room_for_the_more_important() {
    let gate = Policy::new("all").adaptive(AdaptiveLimit::new().between(10, 10));
    let policies = important().shed(Shed::new()).policy(gate);
    let (engine, clock) = engine(policies);
    let (low, high) = (Subject::new().path("/export"), Subject::new().path("/pay"));
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

/// Without anything that says how important a request is, all have all of it.
#[test]
fn where_nobody_says_how_important_it_is_all_have_all_of_a_gate() {
    let gate = Policy::new("all").adaptive(AdaptiveLimit::new().between(10, 10));
    let batch = Policy::new("batch")
        .matching(Match::new().path("/batch".parse().unwrap()))
        .class(Class::Sheddable);
    let (engine, _) = engine(Policies::new().policy(batch).policy(gate));
    let batch = Subject::new().path("/batch");
    let held: Vec<_> = (0..20)
        .map(|_| engine.decide_now(&batch))
        .filter(PolicyVerdict::is_allowed)
        .collect();
    assert_eq!((held.len(), fill(&engine).0.len()), (3, 7));
}
