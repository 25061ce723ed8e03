//! Decisions of an engine, on the manual clock.

use ratekeeper::{Algorithm, Limit, ManualClock, MemoryStore, store::AskOutcome, store::Source};
use ratekeeper_policy::{
    Action, Attribute, Completion, Cost, Count, Engine, EngineError, ListEntry, Match, Missing,
    Plan, Policies, Policy, PolicyLimit, Reason, Subject, engine::Ban, engine::OverrideError,
    matching::MismatchReason, policy::Penalty, policy::Reserve, policy::ReserveClasses,
    policy::Rollout,
};
use ratekeeper_testkit::poll::assert_ready;
use std::collections::VecDeque;
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

fn at(path: &str) -> Match {
    Match::new().path(path.parse().unwrap())
}

fn ip(text: &str) -> Subject<'static> {
    Subject::new().ip(text.parse().unwrap())
}

/// How many of `many` requests are allowed.
fn count_allowed(engine: &TestEngine, subject: &Subject<'_>, many: u32) -> u32 {
    (0..many)
        .filter(|_| engine.decide_now(subject).is_allowed())
        .count() as u32
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn every_policy_that_matches_applies_all_or_nothing() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(
                Policy::new("narrow")
                    .matching(at("/login"))
                    .key("ip")
                    .limit(Limit::per_minute(2)),
            )
            .policy(Policy::new("wide").limit(Limit::per_minute(5))),
    );
    let login = ip("10.0.0.1").path("/login");
    assert_eq!(count_allowed(&engine, &login, 4), 2);
    let verdict = engine.decide_now(&login);
    assert_eq!(
        (verdict.policy(), verdict.status(), verdict.source()),
        (Some("narrow"), 429, Source::Memory)
    );
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(30)));
    // What the narrow policy denied was not charged to the wide one.
    assert_eq!(count_allowed(&engine, &ip("10.0.0.2").path("/other"), 9), 3);
    let left: Vec<_> = engine
        .decide_now(&login)
        .limits()
        .map(|limit| (limit.policy().to_owned(), limit.decision().remaining()))
        .collect();
    assert_eq!(left, [("narrow".to_owned(), 0), ("wide".to_owned(), 0)]);
}

#[test]
fn final_stops_the_search_unless_the_policy_skips_the_request() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(
                Policy::new("user")
                    .key("user")
                    .missing(Missing::Skip)
                    .limit(Limit::per_minute(3))
                    .stop(),
            )
            .policy(Policy::new("rest").limit(Limit::per_minute(1))),
    );
    assert_eq!(count_allowed(&engine, &Subject::new().user("ann"), 5), 3);
    assert_eq!(count_allowed(&engine, &Subject::new(), 5), 1);
}

#[test]
fn without_a_policy_there_is_no_limit() {
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("x")
                .matching(at("/x"))
                .limit(Limit::per_minute(1)),
        ),
    );
    let verdict = engine.decide_now(&Subject::new().path("/y"));
    assert!(
        verdict.is_allowed()
            && matches!(verdict.reason(), Reason::NoPolicy)
            && verdict.limits().next().is_none()
    );
}

#[test]
fn a_plan_is_chosen_by_an_attribute() {
    let plans = |default| {
        Policies::new()
            .plan(Plan::new("free").limit(Limit::per_minute(1)))
            .plan(
                Plan::new("pro")
                    .limit(Limit::per_minute(3))
                    .limit(PolicyLimit::Concurrent(2)),
            )
            .policy(
                Policy::new("api")
                    .key("user")
                    .plan(Attribute::Plan, default),
            )
    };
    let (planned, _) = new_engine(plans(Some("free")));
    assert_eq!(
        count_allowed(&planned, &Subject::new().user("a").plan("free"), 5),
        1
    );
    assert_eq!(
        count_allowed(&planned, &Subject::new().user("b").plan("pro"), 5),
        3
    );
    assert_eq!(
        count_allowed(&planned, &Subject::new().user("c").plan("gold"), 5),
        1
    );
    assert_eq!(count_allowed(&planned, &Subject::new().user("d"), 5), 1);
    let (strict, _) = new_engine(plans(None));
    assert!(matches!(
        strict.decide_now(&Subject::new().user("d")).reason(),
        Reason::NoPolicy
    ));
}

#[test]
fn permits_are_held_by_the_verdict() {
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("slots")
                .limit(PolicyLimit::Concurrent(2))
                .cost(Cost::Units(7)),
        ),
    );
    let held: Vec<_> = (0..2).map(|_| engine.decide_now(&Subject::new())).collect();
    assert!(held.iter().all(|verdict| verdict.is_allowed()));
    let denied = engine.decide_now(&Subject::new());
    assert!(denied.is_denied() && denied.retry_after().is_none() && !denied.is_never());
    drop(held);
    let verdict = engine.decide_now(&Subject::new());
    assert!(verdict.is_allowed());
    engine.settle_now(verdict, Completion::status(200));
    assert_eq!(count_allowed(&engine, &Subject::new(), 9), 9);
}

#[test]
fn only_failures_count_once_they_are_settled() {
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("login")
                .key("ip")
                .limit(Limit::per_minute(2).algorithm(Algorithm::SlidingLog))
                .count(Count::Failures),
        ),
    );
    let caller = ip("10.0.0.1");
    for _ in 0..10 {
        engine.settle_now(engine.decide_now(&caller), Completion::status(204));
    }
    engine.settle_now(engine.decide_now(&caller), Completion::status(401));
    // A request with an unknown end counts.
    engine.settle_now(engine.decide_now(&caller), Completion::unknown());
    assert!(engine.decide_now(&caller).is_denied());
}

#[test]
fn requests_in_flight_count_as_failures_until_they_are_settled() {
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("login")
                .limit(Limit::per_minute(2))
                .count(Count::Failures),
        ),
    );
    let in_flight = [
        engine.decide_now(&Subject::new()),
        engine.decide_now(&Subject::new()),
    ];
    assert!(engine.decide_now(&Subject::new()).is_denied());
    for verdict in in_flight {
        engine.settle_now(verdict, Completion::succeeded());
    }
    assert_eq!(count_allowed(&engine, &Subject::new(), 5), 2);
}

/// Five are pending at any time and none of them fails, at any spacing of the calls.
#[test]
fn five_pending_successes_are_never_denied_under_five_an_hour() {
    let login = Policy::new("login")
        .limit(Limit::per_hour(5))
        .count(Count::Failures);
    let (engine, clock) = new_engine(Policies::new().policy(login));
    let mut pending = VecDeque::new();
    for call in 0..2_000_u64 {
        if pending.len() == 5 {
            engine.settle_now(
                pending.remove(call as usize * 7 % 5).unwrap(),
                Completion::status(200),
            );
        }
        clock.advance(SECOND * (call * 37 % 400) as u32);
        let verdict = engine.decide_now(&Subject::new());
        assert!(verdict.is_allowed(), "call {call}");
        pending.push_back(verdict);
    }
}

#[test]
fn a_request_that_was_charged_its_cost_and_has_no_permit_need_not_be_settled() {
    let (all, _) =
        new_engine(Policies::new().policy(Policy::new("all").limit(Limit::per_minute(2))));
    assert!(
        all.decide_now(&Subject::new())
            .is_settled_by(&Completion::status(200))
    );

    let login = Policy::new("login")
        .limit(Limit::per_minute(2))
        .count(Count::Failures);
    let (failures, _) = new_engine(Policies::new().policy(login));
    let verdict = failures.decide_now(&Subject::new());
    let settled = [401, 200].map(|status| verdict.is_settled_by(&Completion::status(status)));
    assert_eq!(
        settled,
        [false, false],
        "a failure is pending until it is settled as used"
    );

    let slots = Policy::new("slots")
        .limit(Limit::per_minute(2))
        .limit(PolicyLimit::Concurrent(2));
    let (in_flight, _) = new_engine(Policies::new().policy(slots));
    let verdict = in_flight.decide_now(&Subject::new());
    assert!(
        verdict.is_allowed() && !verdict.is_settled_by(&Completion::status(200)),
        "it holds a permit"
    );
}

#[test]
fn only_successes_count() {
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("signups")
                .limit(Limit::per_hour(1))
                .count(Count::Successes),
        ),
    );
    engine.settle_now(engine.decide_now(&Subject::new()), Completion::status(422));
    engine.settle_now(engine.decide_now(&Subject::new()), Completion::status(201));
    assert!(engine.decide_now(&Subject::new()).is_denied());
}

#[test]
fn a_cost_comes_from_an_attribute_and_is_corrected_at_the_end() {
    let cost = Cost::Attribute {
        attribute: "tokens".into(),
        default: 10,
    };
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("model")
                .limit(Limit::per_minute(100))
                .cost(cost),
        ),
    );
    let left = |verdict: &ratekeeper_policy::PolicyVerdict| {
        verdict.limits().next().unwrap().decision().remaining()
    };
    let verdict = engine.decide_now(&Subject::new().with("tokens", "60"));
    assert_eq!(left(&verdict), 40);
    engine.settle_now(verdict, Completion::status(200).cost(25));
    assert_eq!(left(&engine.peek_now(&Subject::new().cost(0))), 75);
    assert_eq!(left(&engine.decide_now(&Subject::new())), 65);
    assert_eq!(
        left(&engine.decide_now(&Subject::new().with("tokens", "many"))),
        55
    );
    assert_eq!(
        left(&engine.decide_now(&Subject::new().with("tokens", "5").cost(3))),
        40
    );
    assert!(
        engine
            .decide_now(&Subject::new().with("tokens", "99999999999999999999999"))
            .is_never()
    );
}

#[test]
fn shadow_mode_counts_and_denies_nothing() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(
                Policy::new("watch")
                    .limit(Limit::per_minute(1))
                    .action(Action::Shadow),
            )
            .policy(Policy::new("hold").limit(Limit::per_minute(3))),
    );
    assert_eq!(count_allowed(&engine, &Subject::new(), 2), 2);
    let verdict = engine.decide_now(&Subject::new());
    let outcomes: Vec<_> = verdict.limits().map(|limit| limit.outcome()).collect();
    assert_eq!(outcomes, [AskOutcome::ShadowDenied, AskOutcome::Allowed]);
    let peeked = engine.peek_now(&Subject::new());
    let outcomes: Vec<_> = peeked.limits().map(|limit| limit.outcome()).collect();
    assert_eq!(
        (outcomes, peeked.policy()),
        (
            vec![AskOutcome::ShadowDenied, AskOutcome::Denied],
            Some("hold")
        )
    );
}

#[test]
fn a_rollout_enforces_for_its_share_of_keys_and_always_the_same() {
    let rollout = |percent| {
        let policy = Policy::new("new")
            .key("user")
            .limit(Limit::deny_all())
            .rollout(Rollout::percent(percent).unwrap());
        new_engine(Policies::new().policy(policy)).0
    };
    let some = rollout(30.0);
    let more = rollout(60.0);
    let users: Vec<String> = (0..1_000).map(|number| format!("u{number}")).collect();
    let denied =
        |engine: &TestEngine, user: &str| engine.decide_now(&Subject::new().user(user)).is_denied();
    let many = users.iter().filter(|user| denied(&some, user)).count();
    assert!((250..350).contains(&many), "{many}");
    assert!(
        users
            .iter()
            .all(|user| !denied(&some, user) || denied(&more, user))
    );
    assert!(
        users
            .iter()
            .all(|user| denied(&rollout(100.0), user) && !denied(&rollout(0.0), user))
    );
}

#[test]
fn a_delay_makes_callers_wait_up_to_the_maximum() {
    let action = Action::Delay { max: 2 * SECOND };
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("paced")
                .limit(Limit::per_second(1).burst(1))
                .action(action),
        ),
    );
    let delays: Vec<_> = (0..3)
        .map(|_| engine.decide_now(&Subject::new()).delay())
        .collect();
    assert_eq!(delays, [Duration::ZERO, SECOND, 2 * SECOND]);
    assert!(engine.decide_now(&Subject::new()).is_denied());
}

#[test]
fn a_class_leaves_its_reserve_to_the_others() {
    let class = ReserveClasses::by("priority")
        .default("batch")
        .reserve("batch", Reserve::Percent(50.0))
        .reserve("normal", Reserve::Units(2));
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("api")
                .limit(Limit::per_minute(10))
                .reserves(class),
        ),
    );
    assert_eq!(count_allowed(&engine, &Subject::new(), 20), 5);
    assert_eq!(
        count_allowed(&engine, &Subject::new().with("priority", "normal"), 20),
        3
    );
    assert_eq!(
        count_allowed(&engine, &Subject::new().with("priority", "batch"), 20),
        0
    );
    let class = ReserveClasses::by("priority").reserve("batch", Reserve::Units(1));
    let (open, _) = new_engine(
        Policies::new().policy(
            Policy::new("api")
                .limit(Limit::per_minute(10))
                .reserves(class),
        ),
    );
    assert_eq!(
        count_allowed(&open, &Subject::new().with("priority", "urgent"), 20),
        10
    );
}

#[test]
fn lists_go_before_limits_and_the_allow_list_before_the_deny_list() {
    let later = |clock: &ManualClock, time| ratekeeper::Clock::now(clock) + time;
    let clock = ManualClock::new();
    let network = |text: &str| Match::new().ip(text.parse().unwrap());
    let policies = Policies::new()
        .policy(Policy::new("all").key("ip").limit(Limit::per_minute(1)))
        .allow(ListEntry::new(network("10.0.0.0/8")).until(later(&clock, MINUTE)))
        .deny(ListEntry::new(network("10.0.0.0/16")).reason("abuse"))
        .deny(ListEntry::new(Match::new().attribute("user", "mallory")))
        .deny(ListEntry::new(Match::new().attribute("user", "bob")).until(later(&clock, SECOND)));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let engine = Engine::new(store, policies).unwrap();
    assert_eq!(count_allowed(&engine, &ip("10.0.0.1"), 9), 9);
    let verdict = engine.decide_now(&Subject::new().user("mallory"));
    assert!(
        verdict.is_denied()
            && verdict.is_never()
            && verdict.status() == 429
            && verdict.retry_after().is_none()
    );
    let verdict = engine.decide_now(&Subject::new().user("bob"));
    assert!(!verdict.is_never() && verdict.retry_after() == Some(SECOND));
    clock.advance(MINUTE);
    assert!(
        matches!(engine.decide_now(&ip("10.0.0.1")).reason(), Reason::DenyList { reason: Some(why), .. } if **why == *"abuse")
    );
    assert_eq!(count_allowed(&engine, &ip("10.1.0.1"), 9), 1);
    assert!(engine.decide_now(&Subject::new().user("bob")).is_allowed());
}

#[test]
fn too_many_denials_ban_a_key() {
    let penalty = Penalty {
        denials: 3,
        within: MINUTE,
        ban: 10 * MINUTE,
    };
    let (engine, clock) = new_engine(
        Policies::new().policy(
            Policy::new("api")
                .key("ip")
                .limit(Limit::per_second(1))
                .penalty(penalty),
        ),
    );
    let caller = ip("10.0.0.1");
    assert!(engine.decide_now(&caller).is_allowed());
    for denials in 1..=3 {
        let verdict = engine.decide_now(&caller);
        assert!(
            verdict.is_denied() && matches!(verdict.reason(), Reason::Limits),
            "{denials}"
        );
    }
    let verdict = engine.decide_now(&caller);
    assert!(matches!(verdict.reason(), Reason::Ban(Ban::Penalty)));
    assert_eq!(
        (verdict.policy(), verdict.retry_after()),
        (Some("api"), Some(10 * MINUTE))
    );
    assert!(engine.decide_now(&ip("10.0.0.2")).is_allowed());
    clock.advance(10 * MINUTE - Duration::from_nanos(1));
    assert!(engine.decide_now(&caller).is_denied());
    clock.advance(Duration::from_nanos(1));
    assert!(engine.decide_now(&caller).is_allowed());
}

#[test]
fn async_decisions_ban_as_well() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (engine, _) = new_engine(
        Policies::new().policy(
            Policy::new("api")
                .key("ip")
                .limit(Limit::per_hour(1))
                .penalty(penalty),
        ),
    );
    let caller = ip("10.0.0.1");
    let decide = || assert_ready(engine.decide(&caller));
    assert!(decide().is_allowed());
    assert!((0..2).all(|_| matches!(decide().reason(), Reason::Limits)));
    assert!(matches!(decide().reason(), Reason::Ban(Ban::Penalty)));
}

#[test]
fn denials_far_apart_do_not_ban() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: MINUTE,
    };
    let (engine, clock) = new_engine(
        Policies::new().policy(
            Policy::new("api")
                .limit(Limit::per_hour(1))
                .penalty(penalty),
        ),
    );
    assert!(engine.decide_now(&Subject::new()).is_allowed());
    for _ in 0..5 {
        assert!(matches!(
            engine.decide_now(&Subject::new()).reason(),
            Reason::Limits
        ));
        clock.advance(MINUTE);
    }
    let first = Penalty {
        denials: 1,
        within: MINUTE,
        ban: MINUTE,
    };
    let (engine, _) = new_engine(
        Policies::new().policy(Policy::new("api").limit(Limit::deny_all()).penalty(first)),
    );
    assert!(matches!(
        engine.decide_now(&Subject::new()).reason(),
        Reason::Limits
    ));
    assert!(matches!(
        engine.decide_now(&Subject::new()).reason(),
        Reason::Ban(_)
    ));
}

#[test]
fn a_disabled_engine_allows_everything() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(Policy::new("none").limit(Limit::deny_all()))
            .enabled(false),
    );
    let verdict = engine.decide_now(&Subject::new());
    assert!(verdict.is_allowed());
    assert_eq!(verdict.source(), Source::Off);
}

#[tokio::test]
async fn an_operator_bans_overrides_grants_and_resets_one_key() {
    let (engine, clock) = new_engine(
        Policies::new().policy(Policy::new("api").key("user").limit(Limit::per_minute(2))),
    );
    let ann = Subject::new().user("ann");
    let bob = Subject::new().user("bob");
    engine
        .operator()
        .ban("api", &ann, MINUTE, Some("scraping"))
        .unwrap();
    let verdict = engine.decide_now(&ann);
    assert!(
        verdict.is_denied()
            && verdict.policy() == Some("api")
            && verdict.retry_after() == Some(MINUTE)
    );
    assert!(engine.decide_now(&bob).is_allowed());
    let listed = engine.operator().overrides();
    assert_eq!(
        (listed.len(), listed[0].key(), listed[0].reason()),
        (1, "user=ann", Some("scraping"))
    );
    clock.advance(MINUTE);
    assert!(engine.operator().overrides().is_empty());
    assert_eq!(count_allowed(&engine, &ann, 9), 2);

    engine
        .operator()
        .override_limits("api", &ann, &[Limit::per_minute(5).into()], MINUTE, None)
        .unwrap();
    assert_eq!(count_allowed(&engine, &ann, 9), 5);
    assert_eq!(
        engine.explain(&ann).await.traces()[0]
            .outcome
            .as_ref()
            .unwrap()
            .limits[0]
            .limit
            .to_string(),
        "5/min"
    );
    engine.operator().reset_key("api", &ann).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 9), 2);
    engine.operator().grant("api", &ann, 1).await.unwrap();
    assert_eq!(count_allowed(&engine, &ann, 9), 1);

    let wrong = |error: OverrideError| error.to_string();
    assert_eq!(
        wrong(
            engine
                .operator()
                .ban("apo", &ann, MINUTE, None)
                .unwrap_err()
        ),
        "no policy has that name"
    );
    assert_eq!(
        wrong(
            engine
                .operator()
                .ban("api", &Subject::new(), MINUTE, None)
                .unwrap_err()
        ),
        "the policy counts by user; give its value"
    );
    assert_eq!(
        engine
            .operator()
            .ban("api", &ann, Duration::MAX, None)
            .unwrap_err(),
        OverrideError::Duration
    );
    assert_eq!(
        engine
            .operator()
            .ban("api", &ann, Duration::ZERO, None)
            .unwrap_err(),
        OverrideError::Duration
    );
    assert_eq!(
        engine
            .operator()
            .override_limits("api", &ann, &[], MINUTE, None)
            .unwrap_err(),
        OverrideError::NoLimits
    );
}

#[tokio::test]
async fn explain_has_the_reason_and_the_time() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(
                Policy::new("post")
                    .matching(Match::new().method("POST"))
                    .limit(Limit::per_minute(1)),
            )
            .policy(
                Policy::new("orders")
                    .matching(at("/orders"))
                    .limit(Limit::per_minute(1)),
            )
            .policy(
                Policy::new("user")
                    .key("user")
                    .missing(Missing::Skip)
                    .limit(Limit::per_minute(1)),
            )
            .policy(
                Policy::new("all")
                    .key("ip")
                    .limit(Limit::per_minute(1))
                    .limit(PolicyLimit::Concurrent(1))
                    .stop(),
            )
            .policy(Policy::new("behind").limit(Limit::per_minute(1))),
    );
    let subject = ip("10.0.0.1").method("GET").path("/x");
    let _ = engine.decide_now(&subject);
    let explained = engine.explain(&subject).await;
    let why: Vec<_> = explained
        .traces()
        .iter()
        .filter_map(|tried| tried.outcome.as_ref().err().cloned())
        .collect();
    assert_eq!(
        why,
        [
            MismatchReason::Method,
            MismatchReason::Path,
            MismatchReason::NoKey(Attribute::User),
            MismatchReason::After("all".into())
        ]
    );
    let standing = explained.traces()[3].outcome.as_ref().unwrap();
    assert_eq!((&*standing.key, standing.limits.len()), ("ip=10.0.0.1", 2));
    assert!(explained.verdict().is_denied());
    let now = ratekeeper::Clock::now(engine.store().clock());
    assert_eq!(explained.allowed_at(), Some(now + MINUTE));
    assert_eq!(standing.limits[1].outcome, AskOutcome::Allowed);
    // An explanation changes nothing.
    assert_eq!(
        engine.explain(&subject).await.allowed_at(),
        Some(now + MINUTE)
    );
    assert_eq!(engine.stats().totals(), (1, 0));
}

#[test]
fn invalid_policies_are_rejected_and_the_old_ones_stay() {
    let (engine, _) =
        new_engine(Policies::new().policy(Policy::new("a").limit(Limit::per_minute(1))));
    let twice = Policies::new()
        .policy(Policy::new("a").limit(Limit::per_minute(9)))
        .policy(Policy::new("a").limit(Limit::per_minute(1)));
    let error = engine.set_policies(twice).unwrap_err();
    assert!(matches!(&error, EngineError::Policies(_)));
    assert_eq!(
        error.to_string(),
        "there are two policies named `a`; rename one"
    );
    assert_eq!(count_allowed(&engine, &Subject::new(), 5), 1);
}

#[test]
fn a_reload_keeps_counts_and_levels() {
    let policy = |name: &str, limit: Limit| Policy::new(name).key("user").limit(limit);
    let (engine, clock) = new_engine(
        Policies::new()
            .policy(policy("same", Limit::per_minute(10)))
            .policy(policy("changed", Limit::per_minute(10))),
    );
    let ann = Subject::new().user("ann");
    assert_eq!(count_allowed(&engine, &ann, 7), 7);
    engine
        .set_policies(
            Policies::new()
                .policy(policy("new", Limit::per_minute(100)))
                .policy(policy("changed", Limit::per_minute(20).burst(20)))
                .policy(policy("same", Limit::per_minute(10))),
        )
        .unwrap();
    let left = |engine: &TestEngine| -> Vec<(String, u64)> {
        engine
            .peek_now(&ann.clone().cost(0))
            .limits()
            .map(|limit| (limit.policy().to_owned(), limit.decision().remaining()))
            .collect()
    };
    assert_eq!(
        left(&engine),
        [
            ("new".into(), 100),
            ("changed".into(), 3),
            ("same".into(), 3)
        ]
    );
    // Three seconds bring a token at the new rate, none yet at the old one.
    clock.advance(3 * SECOND);
    assert_eq!(
        left(&engine),
        [
            ("new".into(), 100),
            ("changed".into(), 4),
            ("same".into(), 3)
        ]
    );
    // A removed limit that comes back finds its counts.
    engine.set_policies(Policies::new()).unwrap();
    engine
        .set_policies(Policies::new().policy(policy("same", Limit::per_minute(10))))
        .unwrap();
    assert_eq!(left(&engine), [("same".into(), 3)]);
    // With another key it is another limit.
    engine
        .set_policies(Policies::new().policy(policy("same", Limit::per_minute(10)).key("tenant")))
        .unwrap();
    assert_eq!(
        engine
            .peek_now(&ann.clone().tenant("t").cost(0))
            .limits()
            .next()
            .unwrap()
            .decision()
            .remaining(),
        10
    );
}

#[test]
fn a_limit_among_several_is_identified_by_its_period() {
    let several = |limits: &[Limit]| {
        let policy = limits
            .iter()
            .fold(Policy::new("api"), |policy, limit| policy.limit(*limit));
        Policies::new().policy(policy)
    };
    let (engine, _) = new_engine(several(&[Limit::per_minute(10), Limit::per_hour(100)]));
    assert_eq!(count_allowed(&engine, &Subject::new(), 4), 4);
    engine
        .set_policies(several(&[Limit::per_hour(200), Limit::per_day(1_000)]))
        .unwrap();
    let left: Vec<_> = engine
        .peek_now(&Subject::new().cost(0))
        .limits()
        .map(|limit| limit.decision().remaining())
        .collect();
    assert_eq!(left[0], 96);
}

#[tokio::test]
async fn statistics_add_up() {
    let (engine, _) = new_engine(
        Policies::new()
            .policy(Policy::new("user").key("user").limit(Limit::per_minute(2)))
            .policy(
                Policy::new("watch")
                    .limit(Limit::per_minute(3))
                    .action(Action::Shadow),
            )
            .policy(Policy::new("all").limit(Limit::per_minute(8))),
    );
    for (user, many) in [("ann", 5), ("bob", 2)] {
        count_allowed(&engine, &Subject::new().user(user), many);
    }
    assert_eq!(engine.stats().totals(), (4, 3));
    let figures = engine.stats().policies().await;
    let counts: Vec<_> = figures
        .iter()
        .map(|policy| {
            (
                policy.counts.allowed,
                policy.counts.denied,
                policy.counts.shadow_denied,
            )
        })
        .collect();
    assert_eq!(counts[0], (4, 3, 0));
    assert_eq!((counts[1].0, counts[1].2), (3, 1));
    assert_eq!(counts[2], (4, 0, 0));
    assert_eq!(figures[0].keys.unwrap().live, 2);
    assert_eq!(figures[0].usage.number(), 4.0);
    assert_eq!(figures[2].usage.number(), 0.5);
    let top = engine.stats().most_active(10);
    assert_eq!(
        top.iter()
            .map(|key| (key.count, key.at_least))
            .collect::<Vec<_>>(),
        [(5, 5), (2, 2)]
    );
    assert!(top.iter().all(|key| key.policy == "user"
        && key.key.starts_with("user=#")
        && !key.key.contains("ann")));
    assert_eq!(
        engine
            .stats()
            .most_denied(10)
            .iter()
            .map(|key| key.count)
            .collect::<Vec<_>>(),
        [3]
    );
}

/// The text that nodes compare: equal for equal policies, and different for any other limit, plan
/// or penalty.
#[test]
fn shared_limits_identify_the_policies() {
    let of = |policies: Policies| {
        Engine::new(MemoryStore::new(), policies)
            .unwrap()
            .operator()
            .shared_limits()
    };
    let policy = |limit: Limit| Policy::new("api").key(Attribute::User).limit(limit);
    let one = of(Policies::new().policy(policy(Limit::per_minute(5))));
    assert_eq!(one.len(), 1);
    assert!(
        one[0].starts_with("api,user ") && one[0].contains(" = "),
        "{one:?}"
    );
    assert_eq!(
        one,
        of(Policies::new().policy(policy(Limit::per_minute(5))))
    );
    assert_ne!(
        one,
        of(Policies::new().policy(policy(Limit::per_minute(6))))
    );
    assert_ne!(
        one,
        of(Policies::new().policy(policy(Limit::per_minute(5).burst(2))))
    );
    assert_ne!(
        one,
        of(Policies::new().policy(
            Policy::new("api")
                .key(Attribute::Ip)
                .limit(Limit::per_minute(5))
        ))
    );
    assert_eq!(
        of(Policies::new()
            .policy(policy(Limit::per_minute(5)))
            .enabled(false)),
        [""; 0]
    );
    // After a reload the old limits are gone, though the store still has them.
    let engine = Engine::new(
        MemoryStore::new(),
        Policies::new().policy(policy(Limit::per_minute(6))),
    )
    .unwrap();
    engine
        .set_policies(Policies::new().policy(policy(Limit::per_minute(5))))
        .unwrap();
    assert_eq!(engine.operator().shared_limits(), one);
}
