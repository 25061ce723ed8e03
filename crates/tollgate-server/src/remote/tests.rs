//! What clients may rely on, on a clock that stands still.

use super::*;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::{Limit, ManualClock, MemoryStore, OnFailure};
use tollgate_remote::wire::{LimitLine, Name, Rule, VERDICTS_LIVE};

struct Service {
    remote: Remote<ManualClock>,
    clock: ManualClock,
    /// A client's own: it numbers its limits.
    names: MemoryStore,
    rate: LimitHandle,
    slots: LimitHandle,
}

impl Service {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(1_000).clock(clock.clone()).build();
        let remote = Remote::new(AnyStore::Memory(store), Some(Secret::new("a token of sixteen")));
        let names = MemoryStore::builder().max_keys(1).build();
        let rate = names.limit("rate", Limit::per_hour(1)).unwrap();
        let slots = names.concurrency("slots", 1).unwrap();
        Self { remote, clock, names, rate, slots }
    }

    /// What comes of one job, by a client that knows the rate as this since then.
    fn told(&self, job: &[u8], rate: &str, since: u64, caller: Caller) -> Answer {
        let line = |number, name, rule| LimitLine { number, name, since, on_failure: OnFailure::Open, rule };
        let lines = [line(0, "rate", Rule::Rate(rate)), line(1, "slots", Rule::InFlight(2))];
        let mut call = Call::begin(lines.into_iter());
        call.extend_from_slice(job);
        let call = Call::read(&call).unwrap();
        let served = std::pin::pin!(self.remote.serve(&call, caller)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(answer) = served else { panic!("memory is not waited for") };
        Answers::read(&answer).unwrap().remove(0)
    }

    fn job(&self, job: &Job<'_>) -> Answer {
        let mut bytes = Vec::new();
        job.write(&mut bytes);
        self.told(&bytes, "10/h", 1, Caller::Anyone)
    }

    /// Whether it passes, and what remains.
    fn take(&self, limit: &LimitHandle, cost: u64, name: Name) -> (bool, u64) {
        let job = Job::decide(&[Ask::new(limit, "k").cost(cost)], Some(name));
        let Answer::Told(told) = self.told(&job, "10/h", 1, Caller::Anyone) else { panic!("not decided") };
        assert_eq!(told.kept, told.decisions[0].is_allowed() && cost > 0);
        (told.decisions[0].is_allowed(), told.decisions[0].remaining())
    }
}

#[test]
fn permits_come_back_when_they_are_given_up_and_by_themselves() {
    let service = Service::new();
    let take = |name: u8| service.take(&service.slots, 1, [name; 16]).0;
    assert!(take(1) && take(2) && !take(3));
    assert_eq!(service.job(&Job::GiveUp(vec![[1; 16], [9; 16]])), Answer::Done);
    assert!(take(4) && !take(5));
    service.clock.advance(VERDICTS_LIVE / 2);
    assert_eq!(service.job(&Job::Renew(vec![[4; 16], [9; 16]])), Answer::Done);
    service.clock.advance(VERDICTS_LIVE / 2 - Duration::from_nanos(1));
    assert!(!take(6));
    // The second has ended, the fourth was renewed.
    service.clock.advance(Duration::from_nanos(1));
    assert!(take(7) && !take(8));
}

#[test]
fn a_call_that_came_twice_holds_its_permits_once() {
    let service = Service::new();
    let take = |name: u8| service.take(&service.slots, 1, [name; 16]).0;
    assert!(take(1) && take(1) && take(2) && !take(3));
}

#[test]
fn a_verdict_is_settled_once() {
    let service = Service::new();
    assert_eq!(service.take(&service.rate, 6, [1; 16]), (true, 4));
    let settle = || service.job(&Job::Settle { name: [1; 16], actual: vec![2] });
    assert_eq!(settle(), Answer::Done);
    assert_eq!(settle(), Answer::Refused(Refusal::NotKept));
    assert_eq!(service.take(&service.rate, 0, [2; 16]).1, 8);
}

#[test]
fn of_what_clients_say_of_a_limit_the_latest_holds() {
    let service = Service::new();
    let take = |says: &str, since| {
        let job = Job::decide(&[Ask::new(&service.rate, "k")], None);
        match service.told(&job, says, since, Caller::Anyone) {
            Answer::Told(told) => Ok((told.decisions[0].limit(), told.decisions[0].remaining())),
            other => Err(other),
        }
    };
    assert_eq!(take("10/h", 5), Ok((10, 9)));
    // One that was started earlier, with something else, changes nothing; a later one does, and the tokens stay.
    assert_eq!(take("20/h", 4), Ok((10, 8)));
    assert_eq!(take("20/h", 6), Ok((20, 7)));
    assert_eq!(take("10/h", 5), Ok((20, 6)));
    assert_eq!(take("10/h", 7), Ok((10, 5)));
    // Another algorithm is another limit.
    assert_eq!(take("10/h sliding_log", 1), Ok((10, 9)));
    assert_eq!(take("10/h", 7), Ok((10, 4)));
    assert_eq!(take("ten an hour", 9), Err(Answer::Refused(Refusal::BadLimit)));
}

#[test]
fn limits_and_their_changes_are_counted_and_known_ones_go_on() {
    let service = Service { remote: Remote { limits: Limits::new(3), ..Service::new().remote }, ..Service::new() };
    let take = |says: &str, since| {
        service.told(&Job::decide(&[Ask::new(&service.rate, "k")], None), says, since, Caller::Anyone)
    };
    assert!(matches!(take("10/h", 1), Answer::Told(_)));
    assert!(matches!(take("11/h", 2), Answer::Told(_)));
    assert_eq!(take("12/h", 3), Answer::Refused(Refusal::TooManyLimits));
    assert_eq!(take("9/h sliding_log", 3), Answer::Refused(Refusal::TooManyLimits));
    assert!(matches!(take("11/h", 4), Answer::Told(_)));
    assert!(matches!(take("10/h", 1), Answer::Told(_)));
}

#[test]
fn only_an_operator_grants_and_resets() {
    let service = Service::new();
    assert_eq!(service.take(&service.rate, 10, [1; 16]), (true, 0));
    let jobs = [Job::Grant { limit: 0, key: b"k", tokens: 3 }, Job::Reset { limit: 0, key: b"k" }];
    for (job, remaining) in jobs.iter().zip([3, 10]) {
        let mut bytes = Vec::new();
        job.write(&mut bytes);
        assert_eq!(service.told(&bytes, "10/h", 1, Caller::Anyone), Answer::Refused(Refusal::Forbidden));
        assert_eq!(service.told(&bytes, "10/h", 1, Caller::Operator), Answer::Done);
        assert_eq!(service.take(&service.rate, 0, [2; 16]).1, remaining);
    }
}

#[test]
fn a_token_is_the_whole_token() {
    let remote = Service::new().remote;
    assert_eq!(remote.caller(Some(b"a token of sixteen")), Some(Caller::Operator));
    for token in
        [None, Some(&b""[..]), Some(b"a token of sixtee"), Some(b"a token of sixteen!"), Some(b"A token of sixteen")]
    {
        assert_eq!(remote.caller(token), None);
    }
    let open = Remote { token: None, ..remote };
    assert_eq!(open.caller(None), Some(Caller::Anyone));
    assert_eq!(open.caller(Some(b"whatever")), Some(Caller::Anyone));
}

#[test]
fn a_limit_that_the_call_does_not_have_is_refused_alone() {
    let service = Service::new();
    let other = service.names.limit("other", Limit::per_hour(1)).unwrap();
    let mut jobs = Job::decide(&[Ask::new(&other, "k")], None);
    assert_eq!(service.told(&jobs, "10/h", 1, Caller::Anyone), Answer::Refused(Refusal::BadLimit));
    jobs = Job::decide(&[Ask::new(&service.rate, "k"); MOST_ASKS + 1], None);
    assert_eq!(service.told(&jobs, "10/h", 1, Caller::Anyone), Answer::Refused(Refusal::TooManyAsks));
}
