//! The semantics of Go's `golang.org/x/time/rate`, step by step, from numeric traces checked
//! against that package.
//!
//! `RATEKEEPER_XTIME_VECTORS` names another file of the same form to run instead; its traces marked
//! `quirk` (where Go does what we do not) are skipped there, because what we do instead is asserted
//! below, by the id of the trace.

use ratekeeper::{Clock, Limit, Limiter, ManualClock, Reservation, Timestamp, limiter::WaitError};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

const OURS: &str = include_str!("vectors/xtime_traces.json");

fn vectors() -> Value {
    let text = match std::env::var("RATEKEEPER_XTIME_VECTORS") {
        Ok(path) => std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("cannot read {path}: {error}")),
        Err(_) => OURS.to_owned(),
    };
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn list<'a>(vectors: &'a Value, name: &str) -> &'a [Value] {
    vectors[name].as_array().map_or(&[], Vec::as_slice)
}

/// Milliseconds of the file in whole nanoseconds.
fn nanos(milliseconds: &Value) -> u64 {
    (milliseconds.as_f64().expect("a time in ms") * 1e6).round() as u64
}

fn limit(per_second: &Value, burst: u64) -> Limit {
    match per_second.as_f64() {
        Some(rate) => Limit::per_second_f64(rate).expect("a rate").burst(burst),
        None => Limit::unlimited(),
    }
}

/// One trace being run.
struct Run {
    id: String,
    clock: ManualClock,
    start: Timestamp,
    limiter: Limiter<ManualClock>,
    burst: u64,
    per_second: Value,
    reservations: HashMap<String, Reservation<ManualClock>>,
}

impl Run {
    fn new(trace: &Value) -> Self {
        let clock = ManualClock::new();
        let burst = trace["burst"].as_u64().expect("a burst");
        let per_second = trace["limit_per_s"].clone();
        Self {
            id: trace["id"].as_str().unwrap_or("?").to_owned(),
            start: clock.now(),
            limiter: Limiter::with_clock(limit(&per_second, burst), clock.clone()),
            clock,
            burst,
            per_second,
            reservations: HashMap::new(),
        }
    }

    fn time(&self, milliseconds: &Value) -> Timestamp {
        self.start + Duration::from_nanos(nanos(milliseconds))
    }

    fn tokens(&self) -> f64 {
        self.limiter.tokens()
    }

    fn step(&mut self, step: &Value) {
        let context = format!("{}: {step}", self.id);
        self.clock.set(self.time(&step["t_ms"]));
        let n = step["n"].as_u64().unwrap_or(1);
        let before = self.tokens();
        match step["op"].as_str().expect("an op") {
            "tokens" => self.expect_tokens(&step["tokens"], &context),
            "allow" => assert_eq!(
                self.limiter.check_n(n).is_allowed(),
                step["ok"] == true,
                "{context}"
            ),
            "reserve" => self.reserve(step, n, &context),
            "delay_from" => {
                let delay = self.reservations[step["id"].as_str().unwrap()].delay();
                assert_within_1_ns(delay.as_nanos() as u64, nanos(&step["delay_ms"]), &context);
            }
            "cancel" => {
                if let Some(reservation) = self.reservations.remove(step["id"].as_str().unwrap()) {
                    reservation.cancel();
                }
                if self.per_second.is_number() {
                    let restored = self.tokens() - before;
                    assert!(
                        (restored - step["restored"].as_f64().unwrap()).abs() < 1e-6,
                        "{context}: {restored}"
                    );
                }
            }
            "set_limit" => {
                self.per_second = step["limit_per_s"].clone();
                self.limiter.set_limit(limit(&self.per_second, self.burst));
            }
            "set_burst" => {
                self.burst = step["burst"].as_u64().unwrap();
                self.limiter.set_burst(self.burst);
            }
            "wait" => self.wait(step, n, &context),
            other => panic!("{context}: unknown op {other}"),
        }
        if !step["tokens_after"].is_null() {
            self.expect_tokens(&step["tokens_after"], &context);
        }
    }

    fn expect_tokens(&self, expected: &Value, context: &str) {
        if self.per_second.is_number() {
            let (tokens, expected) = (self.tokens(), expected.as_f64().unwrap());
            assert!(
                (tokens - expected).abs() < 1e-6,
                "{context}: {tokens} tokens"
            );
        }
    }

    fn reserve(&mut self, step: &Value, n: u64, context: &str) {
        let longest = match &step["max_wait_ms"] {
            Value::Null => Duration::MAX,
            milliseconds => Duration::from_nanos(nanos(milliseconds)),
        };
        let reserved = self.limiter.reserve_within(n, longest);
        assert_eq!(reserved.is_ok(), step["ok"] == true, "{context}");
        let Ok(reservation) = reserved else { return };
        assert_within_1_ns(
            reservation.delay().as_nanos() as u64,
            nanos(&step["delay_ms"]),
            context,
        );
        let act = (reservation.act_at() - self.start).as_nanos() as u64;
        assert_within_1_ns(act, nanos(&step["act_ms"]), context);
        self.reservations
            .insert(step["id"].as_str().unwrap().to_owned(), reservation);
    }

    fn wait(&mut self, step: &Value, n: u64, context: &str) {
        let began = self.clock.now();
        let ctx = &step["ctx"];
        let deadline = (!ctx["deadline_ms"].is_null()).then(|| self.time(&ctx["deadline_ms"]));
        let cancel_at = match (ctx["cancelled"].as_bool(), &ctx["cancel_at_ms"]) {
            (Some(true), _) => Some(began),
            (_, Value::Null) => None,
            (_, at) => Some(self.time(at)),
        };
        let result = match wait(&self.limiter, &self.clock, n, deadline, cancel_at) {
            Some(Ok(())) => "ok",
            Some(Err(WaitError::ExceedsBurst { .. })) => "err_exceeds_burst",
            Some(Err(WaitError::Deadline { .. })) => "err_would_exceed_deadline",
            Some(Err(other)) => panic!("{context}: {other}"),
            None => "err_cancelled",
        };
        assert_eq!(result, step["result"].as_str().unwrap(), "{context}");
        assert_within_1_ns(
            (self.clock.now() - began).as_nanos() as u64,
            nanos(&step["waited_ms"]),
            context,
        );
    }
}

/// Waits on the manual clock, moving it to the waiter's time or to `cancel_at`, whichever comes
/// first; none if the wait was dropped then.
#[cfg(feature = "tokio")]
fn wait(
    limiter: &Limiter<ManualClock>,
    clock: &ManualClock,
    n: u64,
    deadline: Option<Timestamp>,
    cancel_at: Option<Timestamp>,
) -> Option<Result<(), WaitError>> {
    use ratekeeper_testkit::poll::poll_once;
    use std::task::Poll;

    let wait = limiter.wait_n(n);
    let mut wait = std::pin::pin!(match deadline {
        Some(deadline) => wait.until(deadline),
        None => wait,
    });
    // A context that is cancelled already is a future that is dropped before it takes its slot; the
    // size comes first.
    if cancel_at == Some(clock.now()) && !limiter.peek_n(n).is_never() {
        return None;
    }
    loop {
        if let Poll::Ready(result) = poll_once(wait.as_mut()) {
            return Some(result);
        }
        let wake = clock.next_wake().expect("a waiter sleeps");
        match cancel_at {
            Some(cancel) if cancel < wake => {
                clock.set(cancel);
                return None;
            }
            _ => clock.set(wake),
        }
    }
}

/// The same without a runtime: a wait that blocks a thread; cancelling is what dropping a wait is,
/// giving its slot back.
#[cfg(not(feature = "tokio"))]
fn wait(
    limiter: &Limiter<ManualClock>,
    clock: &ManualClock,
    n: u64,
    deadline: Option<Timestamp>,
    cancel_at: Option<Timestamp>,
) -> Option<Result<(), WaitError>> {
    if let (Some(cancel), false) = (cancel_at, limiter.peek_n(n).is_never()) {
        if cancel > clock.now() {
            let slot = limiter.reserve(n).expect("a slot");
            clock.set(cancel);
            slot.cancel();
        }
        return None;
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| match deadline {
            Some(deadline) => limiter.wait_n(n).until(deadline).blocking(),
            None => limiter.wait_n(n).blocking(),
        });
        while !waiter.is_finished() {
            match clock.next_wake() {
                Some(wake) => clock.set(wake),
                None => std::thread::yield_now(),
            }
        }
        Some(waiter.join().expect("the waiter ends"))
    })
}

fn assert_within_1_ns(ours: u64, theirs: u64, context: &str) {
    assert!(
        ours.abs_diff(theirs) <= 1,
        "{context}: {ours} ns, expected {theirs} ns"
    );
}

/// A `quirk` trace of our own file, for the tests that assert our behaviour.
fn quirk(id: &str) -> Value {
    let vectors: Value = serde_json::from_str(OURS).unwrap();
    let trace = list(&vectors, "traces")
        .iter()
        .find(|trace| trace["id"] == id)
        .cloned();
    trace.unwrap_or_else(|| panic!("no trace {id}"))
}

/// Runs a quirk trace at its own instants: no outcome may be more permissive than the same call at
/// the newest instant seen, and no call may leave more tokens there than it found, less what it
/// took.
fn assert_past_instants_mint_nothing(id: &str) {
    let trace = quirk(id);
    let run = Run::new(&trace);
    let mut newest = run.start;
    let mut held: HashMap<String, (u64, Reservation<ManualClock>)> = HashMap::new();
    for step in trace["steps"].as_array().unwrap() {
        let now = run.time(&step["t_ms"]);
        newest = newest.max(now);
        let (past, present) = (run.limiter.at(now), run.limiter.at(newest));
        let before = present.tokens();
        let n = step["n"].as_u64().unwrap_or(1);
        let mut change = 0.0;
        match step["op"].as_str().unwrap() {
            "tokens" => {}
            "allow" => {
                let would = present.peek_n(n).is_allowed();
                if past.check_n(n).is_allowed() {
                    assert!(
                        would,
                        "{id}: {step}: a past instant was admitted where the present was not"
                    );
                    change = -(n as f64);
                }
            }
            "reserve" => {
                let longest = step["max_wait_ms"]
                    .as_u64()
                    .map_or(Duration::MAX, Duration::from_millis);
                let would = present.reserve_within(n, longest).map(|slot| {
                    let act = slot.act_at();
                    present.cancel(slot);
                    act
                });
                assert_eq!(
                    present.tokens(),
                    before,
                    "{id}: {step}: asking took nothing"
                );
                if let Ok(slot) = past.reserve_within(n, longest) {
                    assert!(
                        would.is_ok_and(|would| slot.act_at() >= would),
                        "{id}: {step}: {slot:?}, now {would:?}"
                    );
                    change = -(n as f64);
                    held.insert(step["id"].as_str().unwrap().to_owned(), (n, slot));
                }
            }
            "cancel" => {
                let (n, slot) = held.remove(step["id"].as_str().unwrap()).unwrap();
                past.cancel(slot);
                change = n as f64;
            }
            "set_limit" => past.set_limit(limit(&step["limit_per_s"], run.burst)),
            "set_burst" => past.set_burst(step["burst"].as_u64().unwrap()),
            other => panic!("{id}: {other}"),
        }
        let after = present.tokens();
        assert!(
            after <= before + change + 1e-9,
            "{id}: {step}: {before} tokens became {after}"
        );
    }
}

#[test]
fn xtime_every_trace_passes_as_it_stands() {
    let vectors = vectors();
    let mut ran = 0;
    for trace in list(&vectors, "traces")
        .iter()
        .filter(|trace| trace["quirk"] != true)
    {
        let mut run = Run::new(trace);
        for step in trace["steps"].as_array().expect("steps") {
            run.step(step);
        }
        ran += 1;
    }
    assert!(ran > 0, "no trace was run");
}

#[test]
fn xtime_aggregates_count_what_go_counts() {
    for row in list(&vectors(), "aggregate") {
        let run = Run::new(row);
        let allowed = match row["calls_at_0"].as_u64() {
            Some(calls) => (0..calls)
                .filter(|_| run.limiter.check().is_allowed())
                .count(),
            None => {
                let mut allowed = 0;
                let (until, step) = (
                    nanos(&row["until_ms_exclusive"]),
                    nanos(&row["allow_every_ms"]),
                );
                let mut at = nanos(&row["from_ms"]);
                while at < until {
                    let now = run.start + Duration::from_nanos(at);
                    allowed += usize::from(
                        run.limiter
                            .at(now)
                            .check_n(row["n"].as_u64().unwrap())
                            .is_allowed(),
                    );
                    at += step;
                }
                allowed
            }
        };
        assert_eq!(
            allowed as u64,
            row["allowed"].as_u64().unwrap(),
            "{}",
            row["id"]
        );
    }
}

#[test]
fn xtime_every_turns_intervals_into_rates() {
    for row in list(&vectors(), "every") {
        // A negative duration cannot be written.
        let Some(interval) = row["interval_ns"].as_u64() else {
            continue;
        };
        let limit = Limit::every(Duration::from_nanos(interval));
        match &row["limit_per_s"] {
            _ if row["ours"] == "rate 0" => assert_eq!(limit.fills_in(), None, "{row}"),
            Value::Number(rate) => {
                let (ours, theirs) = (limit.rate().unwrap().per_second(), rate.as_f64().unwrap());
                assert!((ours / theirs - 1.0).abs() < 1e-6, "{row}: {ours}");
            }
            _ => assert!(limit.is_unlimited(), "{row}"),
        }
    }
}

#[test]
fn xtime_quirk_a_past_instant_never_mints_tokens() {
    for id in [
        "jump_backwards",
        "reserve_jump_back",
        "reserve_jump_back_cancel",
        "reserve_set_burst",
        "set_limit_in_past",
        "contention_stale_clock_71360",
    ] {
        assert_past_instants_mint_nothing(id);
    }
}

#[test]
fn xtime_quirk_stale_and_fresh_calls_in_turn_leave_the_whole_debt() {
    let run = Run::new(&quirk("contention_stale_clock_71360"));
    let fresh = run.start + Duration::from_millis(100);
    for call in 0..8 {
        let now = if call % 2 == 0 { fresh } else { run.start };
        let _ = run.limiter.at(now).reserve(1).unwrap();
    }
    assert_eq!(run.limiter.at(fresh).tokens(), -7.0);
}

#[test]
fn xtime_quirk_cancelling_in_reverse_order_gives_everything_back() {
    let mut run = Run::new(&quirk("cancel_rounding_chain"));
    let before = run.tokens();
    for id in ["a", "b", "c"] {
        run.reservations
            .insert(id.to_owned(), run.limiter.reserve(1).unwrap());
    }
    for id in ["c", "b", "a"] {
        run.reservations.remove(id).unwrap().cancel();
    }
    assert_eq!(run.tokens(), before);
    assert!(run.limiter.check().is_allowed());
}

#[test]
fn xtime_quirk_a_wait_beyond_the_horizon_is_never_and_takes_nothing() {
    for id in ["zero_limit", "tiny_limit"] {
        let run = Run::new(&quirk(id));
        assert!(run.limiter.check().is_allowed(), "{id}");
        assert!(run.limiter.check().is_denied(), "{id}");
        run.clock.advance(Duration::from_secs(3600));
        assert!(run.limiter.check().is_never(), "{id}");
        assert!(run.limiter.reserve(1).unwrap_err().is_never(), "{id}");
        assert_eq!(run.limiter.wait().blocking(), Err(WaitError::Never), "{id}");
        assert_eq!(run.tokens(), 0.0, "{id}: nothing was taken");
        run.limiter.set_limit(Limit::per_second(10).burst(1));
        run.clock.advance(Duration::from_millis(100));
        assert_eq!(run.tokens(), 1.0, "{id}");
    }
}

#[test]
fn xtime_quirk_an_invalid_rate_is_an_error() {
    for rate in [-5.0, -0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(Limit::per_second_f64(rate).is_err(), "{rate}");
    }
}

#[test]
fn xtime_quirk_a_reservation_made_while_unlimited_restores_nothing() {
    let run = Run::new(&quirk("inf_reservation_cancelled_after_set_limit"));
    let free = run.limiter.reserve(3).unwrap();
    run.limiter.set_limit(Limit::per_second(10).burst(5));
    assert_eq!(run.tokens(), 5.0);
    assert!(run.limiter.check_n(4).is_allowed());
    free.cancel();
    assert_eq!(run.tokens(), 1.0);
}

#[test]
fn xtime_quirk_a_deficit_below_a_nanosecond_is_still_a_deficit() {
    let run = Run::new(&quirk("subnanosecond_debt"));
    assert!(run.limiter.check_n(3).is_allowed());
    for _ in 0..11 {
        let denied = run.limiter.check();
        assert_eq!(denied.retry_after(), Some(Duration::from_nanos(1)));
    }
    run.clock.advance(Duration::from_nanos(1));
    assert!(run.limiter.check_n(3).is_allowed());
}

#[test]
fn xtime_quirks_that_cannot_be_written_are_known() {
    let vectors: Value = serde_json::from_str(OURS).unwrap();
    let cannot_be_written = [
        "double_cancel",
        "n_negative",
        "zero_value",
        "negative_limit",
    ];
    let asserted = [
        "jump_backwards",
        "reserve_jump_back",
        "reserve_jump_back_cancel",
        "reserve_set_burst",
        "set_limit_in_past",
        "contention_stale_clock_71360",
        "cancel_rounding_chain",
        "zero_limit",
        "tiny_limit",
        "inf_reservation_cancelled_after_set_limit",
        "subnanosecond_debt",
    ];
    for trace in list(&vectors, "traces")
        .iter()
        .filter(|trace| trace["quirk"] == true)
    {
        let id = trace["id"].as_str().unwrap();
        assert!(
            cannot_be_written.contains(&id) || asserted.contains(&id),
            "{id} has no test of what we do"
        );
    }
}
