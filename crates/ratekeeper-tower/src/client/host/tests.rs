//! Clients that respect rate limit headers, against a real limiter on virtual time: responses
//! arrive out of order, and still no request is denied after the first responses.

use super::{Host, SendDecision};
use crate::client::RetryBudget;
use crate::client::rate_limit_headers::{Allowance, ResponseInfo};
use proptest::prelude::*;
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock, Timestamp};
use std::time::Duration;

/// Which reset the server's headers tell.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// The time until everything is available again: X-RateLimit-….
    Full,
    /// As in drafts 8 to 11: the time in which `remaining` may be used, or if that is 0, until one
    /// is available.
    Ietf,
}

fn ceil(time: Duration) -> Duration {
    Duration::from_secs(time.as_nanos().div_ceil(1_000_000_000) as u64)
}

fn judge(limiter: &Limiter<ManualClock>, says: Says) -> ResponseInfo {
    let decision = limiter.check();
    if let Some(after) = decision.retry_after() {
        return ResponseInfo {
            denied: true,
            allowance: Some(Allowance {
                remaining: 0,
                window: ceil(after),
            }),
        };
    }
    let remaining = decision.remaining();
    let window = match says {
        Says::Full => decision.reset_after(),
        Says::Ietf => {
            let rate = limiter.limit().rate().expect("a rate").count();
            decision
                .next_after()
                .max(Duration::from_secs(remaining.div_ceil(rate)))
        }
    };
    // A server that has just answered does not claim that everything is available again at once.
    ResponseInfo {
        denied: false,
        allowance: Some(Allowance {
            remaining,
            window: ceil(window).max(Duration::from_secs(1)),
        }),
    }
}

/// A request: decided at one time, its response received at another.
struct Way {
    sent: Timestamp,
    judged_at: u64,
    answered_at: u64,
    told: Option<ResponseInfo>,
    first: bool,
}

/// Runs workers that always have something to send. Returns how many requests were served, how many
/// of the first were denied, and how many later.
fn run(
    limit: Limit,
    workers: usize,
    says: Says,
    delays: &[(u64, u64)],
    seconds: u64,
) -> (u64, u64, u64) {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let mut host = Host::new(None, RetryBudget::new(0.0, 0));
    let mut ways: Vec<Way> = Vec::new();
    let (mut served, mut refused_first, mut refused_later) = (0, 0, 0);
    let (mut sent, mut any_answer) = (0, false);
    for now in 0..seconds * 1_000 {
        for way in ways.iter_mut().filter(|way| way.judged_at == now) {
            way.told = Some(judge(&limiter, says));
        }
        let (done, rest): (Vec<_>, Vec<_>) =
            ways.into_iter().partition(|way| way.answered_at <= now);
        ways = rest;
        for way in done {
            let told = way.told.expect("judged before it is answered");
            drop(host.on_response(clock.now(), way.sent, &told));
            any_answer = true;
            match (told.denied, way.first) {
                (false, _) => served += 1,
                (true, true) => refused_first += 1,
                (true, false) => refused_later += 1,
            }
        }
        while ways.len() < workers && host.try_send(clock.now()) == SendDecision::Now {
            let (there, back) = delays[sent % delays.len()];
            sent += 1;
            let judged_at = now + 1 + there;
            ways.push(Way {
                sent: clock.now(),
                judged_at,
                answered_at: judged_at + 1 + back,
                told: None,
                first: !any_answer,
            });
        }
        clock.advance(Duration::from_millis(1));
    }
    (served, refused_first, refused_later)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn after_the_first_responses_no_request_is_denied(
        rate in 1_u64..20,
        burst in 1_u64..30,
        workers in 1_usize..12,
        ietf: bool,
        window in prop::option::of(prop::sample::select(vec![
            Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog,
        ])),
        delays in prop::collection::vec((0_u64..80, 0_u64..80), 1..20),
    ) {
        let (limit, at_once) = match window {
            None => (Limit::per_second(rate).burst(burst), burst),
            Some(window) => (Limit::per_second(rate).algorithm(window), rate),
        };
        let says = if ietf && window.is_none() { Says::Ietf } else { Says::Full };
        let (served, refused_first, refused_later) = run(limit, workers, says, &delays, 30);
        prop_assert_eq!(refused_later, 0);
        prop_assert!(refused_first == 0 || workers as u64 > at_once);
        prop_assert!(served > 0);
    }
}

/// The cost: times are whole seconds, and one request is sent first after each pause.
#[test]
fn and_most_of_what_may_be_used_is_used() {
    let delays = [(3, 5), (10, 2), (1, 1), (20, 20)];
    for says in [Says::Full, Says::Ietf] {
        let (served, ..) = run(Limit::per_second(10).burst(20), 8, says, &delays, 60);
        assert!(served >= 360, "{says:?}: {served} of 600");
    }
}

#[test]
fn a_server_without_headers_is_not_waited_for() {
    let clock = ManualClock::new();
    let mut host = Host::new(None, RetryBudget::new(0.0, 0));
    for _ in 0..100 {
        assert_eq!(host.try_send(clock.now()), SendDecision::Now);
    }
    host.on_response(clock.now(), clock.now(), &ResponseInfo::default());
    assert_eq!(host.try_send(clock.now()), SendDecision::Now);
    assert!(!host.is_idle(clock.now()));
}

/// A slow response does not hold up the other requests for as long.
#[test]
fn a_slow_answer_is_waited_for_but_not_for_ever() {
    let clock = ManualClock::new();
    let mut host = Host::new(None, RetryBudget::new(0.0, 0));
    let nothing_left = Allowance {
        remaining: 0,
        window: Duration::from_secs(1),
    };
    let told = ResponseInfo {
        denied: false,
        allowance: Some(nothing_left),
    };
    assert_eq!(
        (host.try_send(clock.now()), host.try_send(clock.now())),
        (SendDecision::Now, SendDecision::Now)
    );
    // One of the two has a response; the other is a long poll.
    host.on_response(clock.now(), clock.now(), &told);
    let until = clock.now() + Duration::from_secs(1);
    assert_eq!(host.try_send(clock.now()), SendDecision::NotBefore(until));
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        host.try_send(clock.now()),
        SendDecision::AfterResponse(until + Duration::from_millis(500))
    );
    clock.advance(Duration::from_millis(500));
    assert_eq!(host.try_send(clock.now()), SendDecision::Now);
    assert_eq!(
        host.try_send(clock.now()),
        SendDecision::AfterResponse(until + Duration::from_secs(1))
    );
}

#[test]
fn remaining_quota_stays_after_its_window() {
    let clock = ManualClock::new();
    let mut host = Host::new(None, RetryBudget::new(0.0, 0));
    assert_eq!(host.try_send(clock.now()), SendDecision::Now);
    let allowance = Some(Allowance {
        remaining: 3,
        window: Duration::from_secs(1),
    });
    host.on_response(
        clock.now(),
        clock.now(),
        &ResponseInfo {
            denied: false,
            allowance,
        },
    );
    clock.advance(Duration::from_secs(5));
    assert!((0..3).all(|_| host.try_send(clock.now()) == SendDecision::Now));
    assert!(matches!(
        host.try_send(clock.now()),
        SendDecision::AfterResponse(_)
    ));
}
