//! A store that can be disconnected: the fallbacks that the engine sets in it, and the verdicts on
//! its answers.

use ratekeeper::{
    Ask, Limit, ManualClock, MemoryStore, Mode, Store, Timestamp, keyed::TooManyLimitsError,
    store::AskResult, store::LimitHandle, store::LimitKeyStats, store::LimitOptions,
    store::OnFailure, store::Source,
};
use ratekeeper_policy::{
    Action, Attribute, Completion, Engine, Match, Plan, Policies, Policy, PolicyLimit, Reason,
    Subject, policy::DenialStatus, policy::Penalty,
};
use ratekeeper_testkit::poll::assert_ready;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A store that can be disconnected from its counters, and then applies the fallback of each limit.
struct DisconnectableStore {
    counters: MemoryStore<ManualClock>,
    /// The local share of each node; here all of it.
    share: MemoryStore<ManualClock>,
    clock: ManualClock,
    is_off: AtomicBool,
    /// The source of the answers, independent of the counters.
    says: Mutex<Option<Source>>,
    /// The fallbacks set for each limit, by its number.
    fallbacks: Mutex<BTreeMap<u64, Vec<OnFailure>>>,
    /// How long an answer takes, and the timeouts of the callers so far.
    takes: Mutex<Duration>,
    waited: Mutex<Vec<Option<Duration>>>,
}

impl DisconnectableStore {
    fn new() -> Self {
        let clock = ManualClock::new();
        let memory = || {
            MemoryStore::builder()
                .max_keys(10_000)
                .clock(clock.clone())
                .build()
        };
        Self {
            counters: memory(),
            share: memory(),
            clock: clock.clone(),
            is_off: AtomicBool::new(false),
            says: Mutex::default(),
            fallbacks: Mutex::default(),
            takes: Mutex::default(),
            waited: Mutex::default(),
        }
    }

    fn then(&self, ask: &Ask<'_>) -> OnFailure {
        let fallbacks = self.fallbacks.lock().unwrap();
        *fallbacks
            .get(&ask.limit.number())
            .and_then(|fallbacks| fallbacks.last())
            .expect("every limit has a fallback")
    }

    fn answer(&self, asks: &[Ask<'_>], within: Option<Duration>) -> ratekeeper::Verdict {
        self.waited.lock().unwrap().push(within);
        self.clock.advance(*self.takes.lock().unwrap());
        if !self.is_off.load(SeqCst) {
            let verdict = self.counters.decide_now(asks, Store::now(&self.counters));
            let source = self.says.lock().unwrap().unwrap_or(verdict.source());
            return verdict.with_source(source);
        }
        let enforced = |then| {
            asks.iter()
                .any(|ask| ask.mode != Mode::Shadow && self.then(ask) == then)
        };
        let source = if enforced(OnFailure::Closed) {
            Source::Closed
        } else if enforced(OnFailure::LocalShare) {
            Source::LocalShare
        } else {
            Source::Open
        };
        let mut verdict = ratekeeper::Verdict::new(source);
        for ask in asks {
            let limit = match self.then(ask) {
                OnFailure::Open => Limit::unlimited(),
                OnFailure::Closed => Limit::per_second(0),
                OnFailure::LocalShare => Limit::per_second(1),
            };
            let handle = self.share.limit("", limit).unwrap();
            let judged = self
                .share
                .decide_now(&[Ask::new(&handle, b"")], Store::now(&self.share));
            verdict.push(AskResult::new(
                judged.results().next().unwrap().decision(),
                ask.mode,
            ));
        }
        verdict
    }
}

impl Store for DisconnectableStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        Store::limit(&self.counters, name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        Store::concurrency(&self.counters, name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        Store::set_limit(&self.counters, handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        Store::set_concurrency(&self.counters, handle, limit);
    }

    fn now(&self) -> Timestamp {
        Store::now(&self.counters)
    }

    async fn decide_within(
        &self,
        asks: &[Ask<'_>],
        within: Option<Duration>,
    ) -> ratekeeper::Verdict {
        self.answer(asks, within)
    }

    fn configure(&self, handle: &LimitHandle, options: LimitOptions) -> bool {
        let mut fallbacks = self.fallbacks.lock().unwrap();
        let set = fallbacks.entry(handle.number()).or_default();
        set.extend(options.changed_on_failure());
        true
    }

    async fn settle(&self, verdict: ratekeeper::Verdict, actual: &[u64]) {
        Store::settle(&self.counters, verdict, actual).await;
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        Store::grant(&self.counters, handle, key, tokens).await;
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        Store::reset(&self.counters, handle, key).await;
    }

    fn key_stats(&self, _: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        None
    }
}

/// As on a multi-threaded runtime: the future must be `Send`.
fn now<T>(answer: impl Future<Output = T> + Send) -> T {
    assert_ready(answer)
}

fn new_engine(policies: Policies) -> Engine<DisconnectableStore> {
    Engine::new(DisconnectableStore::new(), policies).unwrap()
}

fn set_disconnected(engine: &Engine<DisconnectableStore>, is_off: bool) {
    engine.store().is_off.store(is_off, SeqCst);
}

/// The fallbacks set for each limit, in the order of registration.
fn fallbacks(engine: &Engine<DisconnectableStore>) -> Vec<Vec<OnFailure>> {
    engine
        .store()
        .fallbacks
        .lock()
        .unwrap()
        .values()
        .cloned()
        .collect()
}

fn at(path: &str) -> Match {
    Match::new().path(path.parse().unwrap())
}

use OnFailure::{Closed, LocalShare, Open};

#[test]
fn every_limit_gets_the_fallback_of_its_policy_or_the_default() {
    let penalty = Penalty {
        denials: 3,
        within: MINUTE,
        ban: HOUR,
    };
    let policies = |all| {
        Policies::new()
            .on_failure(all)
            .plan(
                Plan::new("free")
                    .limit(Limit::per_minute(1))
                    .limit(PolicyLimit::Concurrent(1)),
            )
            .policy(
                Policy::new("own")
                    .limit(Limit::per_minute(1))
                    .on_failure(Closed),
            )
            .policy(
                Policy::new("plan")
                    .matching(at("/a"))
                    .plan(Attribute::Plan, None),
            )
            .policy(
                Policy::new("penalty")
                    .matching(at("/b"))
                    .limit(Limit::per_minute(1))
                    .penalty(penalty),
            )
    };
    // A node's share of a ban would ban every key.
    let nothing_said = new_engine(policies(LocalShare));
    assert_eq!(
        fallbacks(&nothing_said).concat(),
        [Closed, LocalShare, LocalShare, LocalShare, Open, Open],
        "own, two of the plan, penalty, its ban and its denials"
    );
    assert_eq!(
        fallbacks(&new_engine(policies(Open))).concat(),
        [Closed, Open, Open, Open, Open, Open]
    );
}

#[test]
fn a_reload_updates_changed_fallbacks_and_resets_nothing() {
    let policies = |all, own: Option<OnFailure>| {
        let policy = Policy::new("a")
            .key(Attribute::User)
            .limit(Limit::per_hour(10));
        let policy = own.map_or(policy.clone(), |own| policy.on_failure(own));
        Policies::new().on_failure(all).policy(policy).policy(
            Policy::new("b")
                .matching(at("/b"))
                .limit(Limit::per_hour(5)),
        )
    };
    let engine = new_engine(policies(LocalShare, None));
    let ann = Subject::new().user("ann");
    engine
        .operator()
        .override_limits(
            "a",
            &Subject::new().user("bob"),
            &[Limit::per_hour(3).into()],
            HOUR,
            None,
        )
        .unwrap();
    for _ in 0..4 {
        assert!(now(engine.decide(&ann)).is_allowed());
    }
    engine
        .set_policies(policies(LocalShare, Some(Closed)))
        .unwrap();
    assert_eq!(
        fallbacks(&engine),
        [
            vec![LocalShare, Closed],
            vec![LocalShare],
            vec![LocalShare, Closed]
        ],
        "a, b, bob's"
    );
    engine
        .set_policies(policies(LocalShare, Some(Closed)))
        .unwrap();
    engine.set_policies(policies(Open, None)).unwrap();
    assert_eq!(
        fallbacks(&engine),
        [
            vec![LocalShare, Closed, Open],
            vec![LocalShare, Open],
            vec![LocalShare, Closed, Open]
        ],
        "unchanged options are not set again"
    );
    let left = |engine: &Engine<DisconnectableStore>| {
        now(engine.peek(&ann))
            .limits()
            .next()
            .unwrap()
            .decision()
            .remaining()
    };
    assert_eq!(left(&engine), 6);

    // Invalid policies have no effect, and a policy that comes back is set up again.
    assert!(
        engine
            .set_policies(policies(Closed, None).policy(Policy::new("b")))
            .is_err()
    );
    engine
        .set_policies(Policies::new().on_failure(Closed))
        .unwrap();
    assert_eq!(fallbacks(&engine)[1], [LocalShare, Open]);
    engine.set_policies(policies(Closed, None)).unwrap();
    assert_eq!(fallbacks(&engine)[1], [LocalShare, Open, Closed]);
    assert_eq!(left(&engine), 6);
}

#[test]
fn closed_is_always_a_503() {
    for status in [
        DenialStatus::TooManyRequests,
        DenialStatus::ServiceUnavailable,
    ] {
        let policy = Policy::new("a")
            .key(Attribute::User)
            .limit(Limit::per_hour(1))
            .status(status);
        let penalty = Penalty {
            denials: 1,
            within: MINUTE,
            ban: HOUR,
        };
        let engine = new_engine(Policies::new().policy(policy.on_failure(Closed).penalty(penalty)));
        let ann = Subject::new().user("ann");
        set_disconnected(&engine, true);
        for verdict in [
            now(engine.decide(&ann)),
            now(engine.decide(&ann.clone().cost(2))),
            now(engine.peek(&ann)),
        ] {
            assert!(verdict.is_denied() && !verdict.is_never(), "{verdict:?}");
            assert_eq!(
                (verdict.status(), verdict.source(), verdict.reason().name()),
                (503, Source::Closed, "closed")
            );
            assert_eq!(
                (verdict.retry_after(), verdict.delay()),
                (None, Duration::ZERO)
            );
        }
        let explanation = now(engine.explain(&ann));
        assert_eq!(
            (explanation.verdict().status(), explanation.allowed_at()),
            (503, None)
        );
        let figures = &now(engine.stats().policies())[0];
        assert_eq!(
            (figures.counts.denied, figures.counts.errors, figures.bans),
            (2, 2, 0)
        );
        assert_eq!(engine.stats().totals(), (0, 2));
        // Nothing was charged, and no key was banned.
        set_disconnected(&engine, false);
        let verdict = now(engine.decide(&ann));
        assert_eq!((verdict.status(), verdict.source()), (200, Source::Memory));
        assert_eq!(
            now(engine.decide(&ann)).status(),
            status.code(),
            "a policy that is back has its own"
        );
    }
}

#[test]
fn open_allows_and_reports_its_source() {
    let engine = new_engine(
        Policies::new()
            .on_failure(Open)
            .policy(Policy::new("a").limit(Limit::per_hour(1))),
    );
    let subject = Subject::new();
    assert!(now(engine.decide(&subject)).is_allowed() && now(engine.decide(&subject)).is_denied());
    set_disconnected(&engine, true);
    for verdict in [now(engine.decide(&subject)), now(engine.peek(&subject))] {
        assert!(verdict.is_allowed(), "{verdict:?}");
        assert_eq!(
            (verdict.status(), verdict.source(), verdict.reason().name()),
            (200, Source::Open, "limits")
        );
        now(engine.settle(verdict, Completion::status(500)));
    }
    assert_eq!(now(engine.stats().policies())[0].counts.errors, 1);
}

/// Whatever else is in the answer of the store.
#[test]
fn the_source_of_an_answer_decides() {
    let engine = new_engine(Policies::new().policy(Policy::new("a").limit(Limit::per_hour(1))));
    let says = |source| *engine.store().says.lock().unwrap() = Some(source);
    says(Source::Closed);
    let verdict = now(engine.decide(&Subject::new()));
    assert_eq!(
        (
            verdict.is_allowed(),
            verdict.status(),
            verdict.reason().name()
        ),
        (false, 503, "closed")
    );
    says(Source::Open);
    let verdict = now(engine.decide(&Subject::new()));
    assert_eq!(verdict.limits().next().unwrap().decision().remaining(), 0);
    assert_eq!(
        (verdict.is_allowed(), verdict.status(), verdict.policy()),
        (true, 200, None)
    );
    assert_eq!((verdict.is_never(), verdict.retry_after()), (false, None));
}

#[test]
fn each_limit_uses_its_own_fallback_and_the_strictest_holds() {
    let one = |name: &str, then| Policy::new(name).limit(Limit::per_hour(1)).on_failure(then);
    let sources = |policies: Policies| {
        let engine = new_engine(policies);
        set_disconnected(&engine, true);
        let verdict = now(engine.decide(&Subject::new()));
        (verdict.is_allowed(), verdict.source())
    };
    let both = |a, b| Policies::new().policy(one("a", a)).policy(one("b", b));
    assert_eq!(sources(both(Open, LocalShare)), (true, Source::LocalShare));
    assert_eq!(sources(both(Open, Closed)), (false, Source::Closed));
    assert_eq!(sources(both(Open, Open)), (true, Source::Open));
    // A shadow policy does not deny.
    let watching = Policies::new().policy(one("a", Closed).action(Action::Shadow));
    assert_eq!(sources(watching.clone()), (true, Source::Open));
    assert_eq!(
        sources(watching.clone().policy(one("b", LocalShare))),
        (true, Source::LocalShare)
    );
    // Nor in a peek, where the store does not see the shadow mode.
    let engine = new_engine(watching);
    set_disconnected(&engine, true);
    assert!(now(engine.peek(&Subject::new())).is_allowed());
}

#[test]
fn no_key_is_banned_while_the_store_is_unavailable_and_bans_stay() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: HOUR,
    };
    let policy = Policy::new("a")
        .key(Attribute::User)
        .limit(Limit::of(1, SECOND))
        .penalty(penalty);
    let engine = new_engine(Policies::new().policy(policy));
    let ann = Subject::new().user("ann");
    let bob = Subject::new().user("bob");
    for _ in 0..3 {
        let _ = now(engine.decide(&ann));
    }
    let bans = || now(engine.stats().policies())[0].bans;
    assert!(matches!(now(engine.decide(&ann)).reason(), Reason::Ban(_)) && bans() == 1);
    set_disconnected(&engine, true);
    for subject in [&ann, &bob] {
        for _ in 0..5 {
            let verdict = now(engine.decide(subject));
            assert_eq!(
                (verdict.reason().name(), verdict.source()),
                ("limits", Source::LocalShare)
            );
        }
    }
    assert_eq!(bans(), 1);
    set_disconnected(&engine, false);
    engine.store().clock.advance(SECOND);
    assert!(now(engine.decide(&ann)).is_denied() && now(engine.decide(&bob)).is_allowed());
}

#[test]
fn a_deadline_and_its_remainder_are_passed_to_the_store() {
    let ms = Duration::from_millis;
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: HOUR,
    };
    let policy = Policy::new("a")
        .key(Attribute::User)
        .limit(Limit::per_hour(1))
        .penalty(penalty);
    let engine = new_engine(Policies::new().policy(policy));
    let ann = Subject::new().user("ann");
    *engine.store().takes.lock().unwrap() = ms(4);
    let waited = || std::mem::take(&mut *engine.store().waited.lock().unwrap());
    assert!(now(engine.decide(&ann.clone().within(ms(10)))).is_allowed());
    assert_eq!(waited(), [Some(ms(10))]);
    assert!(now(engine.decide(&ann.clone().within(ms(10)))).is_denied());
    assert_eq!(waited(), [Some(ms(10)), Some(ms(6))]);
    assert!(now(engine.decide(&ann.clone().within(ms(6)))).is_denied());
    assert_eq!(
        waited(),
        [Some(ms(6)), Some(ms(2)), Some(ms(0))],
        "never longer than the caller would"
    );
    assert!(now(engine.decide(&ann)).is_denied());
    assert_eq!(waited(), [None], "a ban asks no more than once");
}

/// All methods that work on the store in memory work on this one.
#[test]
fn every_method_works_on_any_store() {
    let fallbacks = Policy::new("a")
        .key(Attribute::User)
        .limit(Limit::per_hour(5))
        .limit(PolicyLimit::Concurrent(2));
    let engine = new_engine(
        Policies::new()
            .policy(fallbacks.clone())
            .policy(Policy::new("all").limit(Limit::per_hour(100))),
    );
    let ann = Subject::new().user("ann");
    let left = || {
        now(engine.peek(&ann))
            .limits()
            .map(|limit| limit.decision().remaining())
            .collect::<Vec<_>>()
    };
    let first = now(engine.decide(&ann));
    assert_eq!(left(), [4, 1, 99]);
    now(engine.settle(first, Completion::cancelled()));
    assert_eq!(left(), [5, 2, 100]);
    now(engine.settle(
        now(engine.decide(&ann.clone().cost(3))),
        Completion::succeeded(),
    ));
    now(engine.operator().grant("a", &ann, 1)).unwrap();
    assert_eq!(left(), [3, 2, 97]);
    assert!(
        now(engine.explain(&ann.clone().cost(4)))
            .verdict()
            .is_denied()
    );
    engine
        .operator()
        .override_limits("a", &ann, &[Limit::per_hour(1).into()], MINUTE, None)
        .unwrap();
    assert_eq!(left(), [1, 97]);
    engine.operator().ban("a", &ann, MINUTE, None).unwrap();
    assert!(
        matches!(now(engine.decide(&ann)).reason(), Reason::Ban(_))
            && engine.operator().overrides().len() == 2
    );
    now(engine.operator().reset_key("a", &ann)).unwrap();
    assert_eq!(left(), [5, 2, 97]);
    engine
        .set_policies(Policies::new().policy(fallbacks))
        .unwrap();
    assert_eq!(left(), [5, 2]);
    let figures = now(engine.stats().policies());
    assert_eq!(
        (
            figures.len(),
            figures[0].keys,
            engine.stats().totals(),
            engine.stats().reloads()
        ),
        (1, None, (2, 1), 1)
    );
    assert!(
        !engine.stats().most_active(1).is_empty() && engine.stats().decision_times().count == 0
    );
}
