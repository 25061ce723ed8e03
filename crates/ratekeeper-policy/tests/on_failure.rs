//! A store that can be out of reach: what the engine tells it beforehand, and what it makes of its
//! answers.

use ratekeeper::{
    Ask, Limit, ManualClock, MemoryStore, Mode, Store, Timestamp, keyed::TooManyLimitsError,
    store::AskResult, store::LimitHandle, store::LimitKeyStats, store::OnFailure, store::Source,
};
use ratekeeper_policy::{
    Action, Attribute, Completion, Engine, Match, Plan, Policies, Policy, PolicyLimit, Reason,
    Subject, policy::DenialStatus, policy::Penalty,
};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A store that can be cut off from its counters. Then it does with each limit what it was told.
struct Cut {
    counters: MemoryStore<ManualClock>,
    /// What each node may pass by itself; here all of it.
    share: MemoryStore<ManualClock>,
    clock: ManualClock,
    is_off: AtomicBool,
    /// Who is said to have decided, whatever the counters say.
    says: Mutex<Option<Source>>,
    /// What was said of each limit, by its number.
    told: Mutex<BTreeMap<u64, Vec<OnFailure>>>,
    /// How long an answer takes, and how long callers would have waited for those they got.
    takes: Mutex<Duration>,
    waited: Mutex<Vec<Option<Duration>>>,
}

impl Cut {
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
            told: Mutex::default(),
            takes: Mutex::default(),
            waited: Mutex::default(),
        }
    }

    fn then(&self, ask: &Ask<'_>) -> OnFailure {
        let told = self.told.lock().unwrap();
        *told
            .get(&ask.limit.number())
            .and_then(|told| told.last())
            .expect("every limit is told of")
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

impl Store for Cut {
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

    async fn decide(&self, asks: &[Ask<'_>]) -> ratekeeper::Verdict {
        self.answer(asks, None)
    }

    async fn decide_within(
        &self,
        asks: &[Ask<'_>],
        _: Timestamp,
        within: Duration,
    ) -> ratekeeper::Verdict {
        self.answer(asks, Some(within))
    }

    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        self.told
            .lock()
            .unwrap()
            .entry(handle.number())
            .or_default()
            .push(then);
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

/// What a runtime of many threads makes of it: the future must be able to move.
fn now<T>(answer: impl Future<Output = T> + Send) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn gate(policies: Policies) -> Engine<Cut> {
    Engine::new(Cut::new(), policies).unwrap()
}

fn cut_off(gate: &Engine<Cut>, is_off: bool) {
    gate.store().is_off.store(is_off, SeqCst);
}

/// What was said of each limit, in the order they were registered.
fn told(gate: &Engine<Cut>) -> Vec<Vec<OnFailure>> {
    gate.store()
        .told
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
fn every_limit_is_told_what_its_policy_says_else_what_all_say() {
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
    // A node's share of a ban would ban everybody.
    let nothing_said = gate(policies(LocalShare));
    assert_eq!(
        told(&nothing_said).concat(),
        [Closed, LocalShare, LocalShare, LocalShare, Open, Open],
        "own, two of the plan, penalty, its ban and its denials"
    );
    assert_eq!(
        told(&gate(policies(Open))).concat(),
        [Closed, Open, Open, Open, Open, Open]
    );
}

#[test]
fn a_reload_tells_what_changed_and_resets_nothing() {
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
    let gate = gate(policies(LocalShare, None));
    let ann = Subject::new().user("ann");
    gate.override_limits(
        "a",
        &Subject::new().user("bob"),
        &[Limit::per_hour(3).into()],
        HOUR,
        None,
    )
    .unwrap();
    for _ in 0..4 {
        assert!(now(gate.decide(&ann)).is_allowed());
    }
    gate.set_policies(policies(LocalShare, Some(Closed)))
        .unwrap();
    assert_eq!(
        told(&gate),
        [
            vec![LocalShare, Closed],
            vec![LocalShare],
            vec![LocalShare, Closed]
        ],
        "a, b, bob's"
    );
    gate.set_policies(policies(LocalShare, Some(Closed)))
        .unwrap();
    gate.set_policies(policies(Open, None)).unwrap();
    assert_eq!(
        told(&gate),
        [
            vec![LocalShare, Closed, Open],
            vec![LocalShare, Open],
            vec![LocalShare, Closed, Open]
        ],
        "what stays is not said again"
    );
    let left = |gate: &Engine<Cut>| {
        now(gate.peek(&ann, 1))
            .limits()
            .next()
            .unwrap()
            .decision()
            .remaining()
    };
    assert_eq!(left(&gate), 6);

    // Wrong policies change nothing, and who was away for a while is told when it is back.
    assert!(
        gate.set_policies(policies(Closed, None).policy(Policy::new("b")))
            .is_err()
    );
    gate.set_policies(Policies::new().on_failure(Closed))
        .unwrap();
    assert_eq!(told(&gate)[1], [LocalShare, Open]);
    gate.set_policies(policies(Closed, None)).unwrap();
    assert_eq!(told(&gate)[1], [LocalShare, Open, Closed]);
    assert_eq!(left(&gate), 6);
}

#[test]
fn closed_is_a_503_whatever_the_status_of_the_policy() {
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
        let gate = gate(Policies::new().policy(policy.on_failure(Closed).penalty(penalty)));
        let ann = Subject::new().user("ann");
        cut_off(&gate, true);
        for verdict in [
            now(gate.decide(&ann)),
            now(gate.decide_n(&ann, 2)),
            now(gate.peek(&ann, 1)),
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
        let explanation = now(gate.explain(&ann, 1));
        assert_eq!(
            (explanation.verdict().status(), explanation.allowed_at()),
            (503, None)
        );
        let figures = &now(gate.policy_stats())[0];
        assert_eq!(
            (figures.counts.denied, figures.counts.errors, figures.bans),
            (2, 2, 0)
        );
        assert_eq!(gate.totals(), (0, 2));
        // Nobody was charged, and nobody was banned.
        cut_off(&gate, false);
        let verdict = now(gate.decide(&ann));
        assert_eq!((verdict.status(), verdict.source()), (200, Source::Memory));
        assert_eq!(
            now(gate.decide(&ann)).status(),
            status.code(),
            "once it is back, the policy's own"
        );
    }
}

#[test]
fn open_passes_and_says_so() {
    let gate = gate(
        Policies::new()
            .on_failure(Open)
            .policy(Policy::new("a").limit(Limit::per_hour(1))),
    );
    let subject = Subject::new();
    assert!(now(gate.decide(&subject)).is_allowed() && now(gate.decide(&subject)).is_denied());
    cut_off(&gate, true);
    for verdict in [now(gate.decide(&subject)), now(gate.peek(&subject, 1))] {
        assert!(verdict.is_allowed(), "{verdict:?}");
        assert_eq!(
            (verdict.status(), verdict.source(), verdict.reason().name()),
            (200, Source::Open, "limits")
        );
        now(gate.settle(verdict, Completion::status(500)));
    }
    assert_eq!(now(gate.policy_stats())[0].counts.errors, 1);
}

/// Whatever else is in the answer of a store.
#[test]
fn who_decided_is_the_last_word() {
    let gate = gate(Policies::new().policy(Policy::new("a").limit(Limit::per_hour(1))));
    let says = |source| *gate.store().says.lock().unwrap() = Some(source);
    says(Source::Closed);
    let verdict = now(gate.decide(&Subject::new()));
    assert_eq!(
        (
            verdict.is_allowed(),
            verdict.status(),
            verdict.reason().name()
        ),
        (false, 503, "closed")
    );
    says(Source::Open);
    let verdict = now(gate.decide(&Subject::new()));
    assert_eq!(verdict.limits().next().unwrap().decision().remaining(), 0);
    assert_eq!(
        (verdict.is_allowed(), verdict.status(), verdict.policy()),
        (true, 200, None)
    );
    assert_eq!((verdict.is_never(), verdict.retry_after()), (false, None));
}

#[test]
fn each_limit_goes_by_its_own_word_and_the_strictest_holds() {
    let one = |name: &str, then| Policy::new(name).limit(Limit::per_hour(1)).on_failure(then);
    let sources = |policies: Policies| {
        let gate = gate(policies);
        cut_off(&gate, true);
        let verdict = now(gate.decide(&Subject::new()));
        (verdict.is_allowed(), verdict.source())
    };
    let both = |a, b| Policies::new().policy(one("a", a)).policy(one("b", b));
    assert_eq!(sources(both(Open, LocalShare)), (true, Source::LocalShare));
    assert_eq!(sources(both(Open, Closed)), (false, Source::Closed));
    assert_eq!(sources(both(Open, Open)), (true, Source::Open));
    // Who only watches closes nothing.
    let watching = Policies::new().policy(one("a", Closed).action(Action::Shadow));
    assert_eq!(sources(watching.clone()), (true, Source::Open));
    assert_eq!(
        sources(watching.clone().policy(one("b", LocalShare))),
        (true, Source::LocalShare)
    );
    // Nor when it is only asked what would be, where the store sees nobody watching.
    let gate = gate(watching);
    cut_off(&gate, true);
    assert!(now(gate.peek(&Subject::new(), 1)).is_allowed());
}

#[test]
fn nobody_is_banned_while_the_store_is_gone_and_bans_are_there_when_it_is_back() {
    let penalty = Penalty {
        denials: 2,
        within: MINUTE,
        ban: HOUR,
    };
    let policy = Policy::new("a")
        .key(Attribute::User)
        .limit(Limit::of(1, SECOND))
        .penalty(penalty);
    let gate = gate(Policies::new().policy(policy));
    let (ann, bob) = (Subject::new().user("ann"), Subject::new().user("bob"));
    for _ in 0..3 {
        let _ = now(gate.decide(&ann));
    }
    let bans = || now(gate.policy_stats())[0].bans;
    assert!(matches!(now(gate.decide(&ann)).reason(), Reason::Ban(_)) && bans() == 1);
    cut_off(&gate, true);
    for subject in [&ann, &bob] {
        for _ in 0..5 {
            let verdict = now(gate.decide(subject));
            assert_eq!(
                (verdict.reason().name(), verdict.source()),
                ("limits", Source::LocalShare)
            );
        }
    }
    assert_eq!(bans(), 1);
    cut_off(&gate, false);
    gate.store().clock.advance(SECOND);
    assert!(now(gate.decide(&ann)).is_denied() && now(gate.decide(&bob)).is_allowed());
}

#[test]
fn a_deadline_is_passed_on_and_what_is_left_of_it_to_penalties() {
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
    let gate = gate(Policies::new().policy(policy));
    let ann = Subject::new().user("ann");
    *gate.store().takes.lock().unwrap() = ms(4);
    let waited = || std::mem::take(&mut *gate.store().waited.lock().unwrap());
    assert!(now(gate.decide_within(&ann, 1, ms(10))).is_allowed());
    assert_eq!(waited(), [Some(ms(10))]);
    assert!(now(gate.decide_within(&ann, 1, ms(10))).is_denied());
    assert_eq!(waited(), [Some(ms(10)), Some(ms(6))]);
    assert!(now(gate.decide_within(&ann, 1, ms(6))).is_denied());
    assert_eq!(
        waited(),
        [Some(ms(6)), Some(ms(2)), Some(ms(0))],
        "never longer than the caller would"
    );
    assert!(now(gate.decide(&ann)).is_denied());
    assert_eq!(waited(), [None], "a ban asks no more than once");
}

/// Everything that is there for the store in memory is there for this one.
#[test]
fn every_verb_works_on_any_store() {
    let told = Policy::new("a")
        .key(Attribute::User)
        .limit(Limit::per_hour(5))
        .limit(PolicyLimit::Concurrent(2));
    let gate = gate(
        Policies::new()
            .policy(told.clone())
            .policy(Policy::new("all").limit(Limit::per_hour(100))),
    );
    let ann = Subject::new().user("ann");
    let left = || {
        now(gate.peek(&ann, 1))
            .limits()
            .map(|limit| limit.decision().remaining())
            .collect::<Vec<_>>()
    };
    let first = now(gate.decide(&ann));
    assert_eq!(left(), [4, 1, 99]);
    now(gate.cancel(first));
    assert_eq!(left(), [5, 2, 100]);
    now(gate.settle(now(gate.decide_n(&ann, 3)), Completion::succeeded()));
    now(gate.grant("a", &ann, 1)).unwrap();
    assert_eq!(left(), [3, 2, 97]);
    assert!(now(gate.explain(&ann, 4)).verdict().is_denied());
    gate.override_limits("a", &ann, &[Limit::per_hour(1).into()], MINUTE, None)
        .unwrap();
    assert_eq!(left(), [1, 97]);
    gate.ban("a", &ann, MINUTE, None).unwrap();
    assert!(
        matches!(now(gate.decide(&ann)).reason(), Reason::Ban(_)) && gate.overrides().len() == 2
    );
    now(gate.reset_key("a", &ann)).unwrap();
    assert_eq!(left(), [5, 2, 97]);
    gate.set_policies(Policies::new().policy(told)).unwrap();
    assert_eq!(left(), [5, 2]);
    let figures = now(gate.policy_stats());
    assert_eq!(
        (
            figures.len(),
            figures[0].keys,
            gate.totals(),
            gate.reload_count()
        ),
        (1, None, (2, 1), 1)
    );
    assert!(!gate.most_active(1).is_empty() && gate.decision_times().count == 0);
}
