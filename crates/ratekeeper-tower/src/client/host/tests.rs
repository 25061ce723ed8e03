//! Clients that respect rate limit headers, against a real limiter on virtual time: responses
//! arrive out of order, and still no request is denied after the first responses.

use super::{Host, SendDecision};
use crate::client::RetryBudget;
use crate::client::rate_limit_headers::{Allowance, ResponseInfo};
use proptest::prelude::*;
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock, Timestamp};
use std::time::Duration;

/// The meaning of the reset in the server's headers.
#[derive(Clone, Copy, Debug)]
enum ResetKind {
    /// The time until everything is available again: X-RateLimit-….
    Full,
    /// As in drafts 8 to 11: the time in which `remaining` may be used, or if that is 0, until one
    /// is available.
    Ietf,
}

fn ceil(time: Duration) -> Duration {
    Duration::from_secs(time.as_nanos().div_ceil(1_000_000_000) as u64)
}

fn respond(limiter: &Limiter<ManualClock>, reset_kind: ResetKind) -> ResponseInfo {
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
    let window = match reset_kind {
        ResetKind::Full => decision.reset_after(),
        ResetKind::Ietf => {
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
struct SimRequest {
    sent: Timestamp,
    decided_at: u64,
    answered_at: u64,
    info: Option<ResponseInfo>,
    first: bool,
}

/// Runs workers that always have something to send. Returns how many requests were served, how many
/// of the first were denied, and how many later.
fn run(
    limit: Limit,
    workers: usize,
    reset_kind: ResetKind,
    delays: &[(u64, u64)],
    seconds: u64,
) -> (u64, u64, u64) {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let mut host = Host::new(None, RetryBudget::new(0.0, 0));
    let mut requests: Vec<SimRequest> = Vec::new();
    let (mut served, mut denied_first, mut denied_later) = (0, 0, 0);
    let (mut sent, mut any_answer) = (0, false);
    for now in 0..seconds * 1_000 {
        for request in requests
            .iter_mut()
            .filter(|request| request.decided_at == now)
        {
            request.info = Some(respond(&limiter, reset_kind));
        }
        let (done, rest): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .partition(|request| request.answered_at <= now);
        requests = rest;
        for request in done {
            let info = request.info.expect("decided before it is answered");
            drop(host.on_response(clock.now(), request.sent, &info));
            any_answer = true;
            match (info.denied, request.first) {
                (false, _) => served += 1,
                (true, true) => denied_first += 1,
                (true, false) => denied_later += 1,
            }
        }
        while requests.len() < workers && host.try_send(clock.now()) == SendDecision::Now {
            let (there, back) = delays[sent % delays.len()];
            sent += 1;
            let decided_at = now + 1 + there;
            requests.push(SimRequest {
                sent: clock.now(),
                decided_at,
                answered_at: decided_at + 1 + back,
                info: None,
                first: !any_answer,
            });
        }
        clock.advance(Duration::from_millis(1));
    }
    (served, denied_first, denied_later)
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
        let reset_kind = if ietf && window.is_none() { ResetKind::Ietf } else { ResetKind::Full };
        let (served, denied_first, denied_later) = run(limit, workers, reset_kind, &delays, 30);
        prop_assert_eq!(denied_later, 0);
        prop_assert!(denied_first == 0 || workers as u64 > at_once);
        prop_assert!(served > 0);
    }
}

/// The cost: times are whole seconds, and one request is sent first after each pause.
#[test]
fn most_of_the_allowance_is_used() {
    let delays = [(3, 5), (10, 2), (1, 1), (20, 20)];
    for reset_kind in [ResetKind::Full, ResetKind::Ietf] {
        let (served, ..) = run(Limit::per_second(10).burst(20), 8, reset_kind, &delays, 60);
        assert!(served >= 360, "{reset_kind:?}: {served} of 600");
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
    let info = ResponseInfo {
        denied: false,
        allowance: Some(nothing_left),
    };
    assert_eq!(
        (host.try_send(clock.now()), host.try_send(clock.now())),
        (SendDecision::Now, SendDecision::Now)
    );
    // One of the two has a response; the other is a long poll.
    host.on_response(clock.now(), clock.now(), &info);
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
