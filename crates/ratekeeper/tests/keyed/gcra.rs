//! Keyed GCRA with parameters per call, compared with a map that stores every arrival time in 128
//! bits; with few slots, never looser than the map.

use super::common::traces::cases;
use proptest::prelude::*;
use ratekeeper::{
    Clock, ManualClock, Outcome, Timestamp, keyed::GcraParams, keyed::GcraParamsError,
    keyed::KeyedGcra,
};
use std::collections::HashMap;
use std::time::Duration;

/// The longest refill time of a burst: 2^52 µs.
const LONGEST: i128 = (1 << 52) * 1_000;

#[derive(Clone, Copy, Debug)]
struct Params {
    burst: u64,
    count: u64,
    period: Duration,
}

impl Params {
    fn gcra_params(&self) -> Result<GcraParams, GcraParamsError> {
        GcraParams::new(self.burst, self.count, self.period)
    }

    /// Returns the interval and the tolerance.
    fn nanos(&self) -> (i128, i128) {
        let (period, count) = (self.period.as_nanos() as i128, i128::from(self.count));
        let interval = (period + count - 1) / count;
        (
            interval,
            (interval * i128::from(self.burst)).min(LONGEST / interval * interval),
        )
    }
}

/// All arrival times of all keys.
#[derive(Default)]
struct Model(HashMap<u64, i128>);

#[derive(PartialEq, Debug)]
struct Answer {
    outcome: Outcome,
    remaining: i128,
    retry_after: Option<i128>,
    reset_after: i128,
}

impl Model {
    fn check(&mut self, key: u64, by: &Params, cost: u64, now: Timestamp) -> Answer {
        let (interval, tolerance) = by.nanos();
        let now = i128::from(now.as_unix_nanos());
        let before = self.0.get(&key).copied().unwrap_or(0);
        let increment = interval * i128::from(cost);
        let after = before.max(now) + increment;
        let wait = after - tolerance - now;
        let (outcome, arrival) = match wait <= 0 {
            true => (Outcome::Allowed, after),
            false if increment > tolerance => (Outcome::Never, before),
            false => (Outcome::Denied, before),
        };
        if outcome == Outcome::Allowed && cost > 0 {
            self.0.insert(key, after);
        }
        let ahead = (arrival - now).max(0);
        Answer {
            outcome,
            remaining: (tolerance - ahead).max(0) / interval,
            retry_after: (outcome == Outcome::Denied).then_some(wait),
            reset_after: ahead,
        }
    }
}

fn check(
    gcra: &KeyedGcra<ManualClock>,
    key: u64,
    by: &Params,
    cost: u64,
    now: Timestamp,
) -> Answer {
    let decision = gcra.check(&key, &by.gcra_params().unwrap(), cost, now);
    let nanos = |time: Duration| time.as_nanos() as i128;
    Answer {
        outcome: decision.outcome(),
        remaining: i128::from(decision.remaining()),
        retry_after: decision.retry_after().map(nanos),
        reset_after: nanos(decision.reset_after()),
    }
}

/// Parameters of every size: intervals below a microsecond, below a nanosecond, of years.
fn params() -> impl Strategy<Value = Params> {
    let burst = prop_oneof![5 => 1_u64..8, 1 => 1_u64..10_000, 1 => any::<u64>().prop_map(|burst| burst.max(1))];
    let count = prop_oneof![5 => 1_u64..8, 2 => 1_u64..5_000_000_000, 1 => any::<u64>().prop_map(|count| count.max(1))];
    let period = prop_oneof![5 => 1_u64..10, 1 => 1_u64..4_000_000_000];
    let params = (burst, count, period);
    params
        .prop_map(|(burst, count, period)| Params {
            burst,
            count,
            period: Duration::from_secs(period),
        })
        .prop_filter("one unit within 142 years", |params| {
            params.gcra_params().is_ok()
        })
}

#[derive(Clone, Copy, Debug)]
struct Call {
    key: u64,
    by: usize,
    cost: u64,
    pass: u64,
    /// How far in the past its instant is.
    back: u64,
}

fn calls(keys: u64) -> impl Strategy<Value = Vec<Call>> {
    let cost = prop_oneof![6 => 0_u64..4, 1 => any::<u64>()];
    let pass = prop_oneof![3 => Just(0_u64), 2 => 0_u64..2_000, 2 => 0_u64..5_000_000_000];
    let back = prop_oneof![4 => Just(0_u64), 1 => 0_u64..2_000_000_000];
    let call =
        (0..keys, 0_usize..4, cost, pass, back).prop_map(|(key, by, cost, pass, back)| Call {
            key,
            by,
            cost,
            pass,
            back,
        });
    prop::collection::vec(call, 1..200)
}

fn gcra(max_keys: usize) -> (KeyedGcra<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        KeyedGcra::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_call_decides_as_a_map_of_all_arrival_times(
        params in prop::collection::vec(params(), 4),
        calls in calls(6),
    ) {
        let (gcra, clock) = gcra(1_000);
        let mut model = Model::default();
        for Call { key, by, cost, pass, back } in calls {
            clock.advance(Duration::from_nanos(pass));
            let now = Timestamp::from_unix_nanos(clock.now().as_unix_nanos() - back);
            let answer = check(&gcra, key, &params[by], cost, now);
            prop_assert_eq!(answer, model.check(key, &params[by], cost, now));
        }
    }

    #[test]
    fn an_evicted_key_gets_no_new_allowance(
        params in prop::collection::vec(params(), 4),
        calls in calls(60),
    ) {
        let (gcra, clock) = gcra(2);
        let mut model = Model::default();
        for Call { key, by, cost, pass, .. } in calls {
            clock.advance(Duration::from_nanos(pass));
            let (by, now) = (&params[by], clock.now());
            let answer = check(&gcra, key, by, cost, now);
            if answer.outcome == Outcome::Allowed {
                prop_assert_eq!(model.check(key, by, cost, now).outcome, Outcome::Allowed);
            }
        }
    }
}

#[test]
fn threads_share_a_key() {
    let (gcra, clock) = gcra(10);
    let (by, now) = (
        GcraParams::new(500, 1, Duration::from_secs(1)).unwrap(),
        clock.now(),
    );
    let allowed: usize = std::thread::scope(|scope| {
        let call = || {
            (0..400)
                .filter(|_| gcra.check("a", &by, 1, now).is_allowed())
                .count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(allowed, 500);
}

#[test]
fn a_cost_of_zero_inserts_no_key() {
    let (gcra, clock) = gcra(10);
    let by = GcraParams::new(1, 1, Duration::from_secs(1)).unwrap();
    assert!(gcra.check("a", &by, 0, clock.now()).is_allowed());
    assert!(gcra.check("a", &by, 2, clock.now()).is_never());
    assert_eq!(gcra.stats().keys, 0);
}

#[test]
fn parameters_that_are_not_a_limit_are_errors() {
    let second = Duration::from_secs(1);
    assert_eq!(GcraParams::new(0, 1, second), Err(GcraParamsError::Zero));
    assert_eq!(GcraParams::new(1, 0, second), Err(GcraParamsError::Zero));
    assert_eq!(
        GcraParams::new(1, 1, Duration::ZERO),
        Err(GcraParamsError::Zero)
    );
    assert_eq!(
        GcraParams::new(1, 1, Duration::MAX),
        Err(GcraParamsError::TooSlow)
    );
    assert!(GcraParams::new(u64::MAX, u64::MAX, Duration::MAX).is_ok());
    assert_eq!(
        GcraParams::new(1, 3, second).unwrap().interval(),
        Duration::from_nanos(333_333_334)
    );
}

#[test]
fn instants_out_of_range_are_denied() {
    let (gcra, _) = gcra(10);
    let by = GcraParams::new(1, 1, Duration::from_secs(1)).unwrap();
    assert!(
        gcra.check("a", &by, 1, Timestamp::from_unix_nanos(u64::MAX))
            .is_never()
    );
    let early = gcra.check("a", &by, 1, Timestamp::from_unix_nanos(0));
    assert!(early.is_denied() && early.retry_after().is_some());
    assert_eq!(early.remaining(), 0);
}
