//! Random traces against a complete history.

use crate::interfaces::{Bucket, Ticket, all_buckets};
use proptest::prelude::*;
use ratekeeper::{Clock, Decision, Limit, ManualClock};
use ratekeeper_testkit::DecisionInfo;
use std::time::Duration;

/// One thing that happens. Times are in quarters of a token's time.
#[derive(Clone, Copy, Debug)]
enum Op {
    Take(u64),
    Check(u64),
    /// Settles one of the pending charges, at this many quarters of its cost; there may be more
    /// than four.
    Settle(usize, u64),
    /// Drops one of the pending charges without settling it.
    Drop(usize),
    Grant(u64),
    Reset,
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Op> {
    let index = || any::<prop::sample::Index>().prop_map(|index| index.index(64));
    prop_oneof![
        12 => (1_u64..=4).prop_map(Op::Take),
        3 => (1_u64..=4).prop_map(Op::Check),
        12 => (index(), prop_oneof![4 => Just(0), 3 => 0_u64..=4, 1 => 5_u64..=8])
            .prop_map(|(which, quarters)| Op::Settle(which, quarters)),
        1 => index().prop_map(Op::Drop),
        1 => (1_u64..=3).prop_map(Op::Grant),
        1 => Just(Op::Reset),
        12 => (0_u64..10).prop_map(Op::Pass),
    ]
}

/// A rate that is exact in ticks.
fn limits() -> impl Strategy<Value = Limit> {
    (1_u64..=7, 20_u64..60, 1_u64..=6).prop_map(|(count, nanos, burst)| {
        Limit::of(count, Duration::from_nanos(nanos))
            .burst(burst)
            .refundable()
    })
}

/// A charge: when it was made, and what of it counts.
#[derive(Clone, Copy, Debug)]
struct Charge {
    at: u64,
    net: u64,
    pending: bool,
}

/// Everything that happened. Amounts are in parts of which a nanosecond brings `count`.
struct History {
    count: i128,
    token: i128,
    burst: i128,
    charges: Vec<Charge>,
    granted: Vec<(u64, u64)>,
    /// The TAT of what was used, each at the instant at which it was settled.
    settled: i128,
}

impl History {
    fn new(limit: &Limit) -> Self {
        let rate = limit.rate().unwrap();
        Self {
            count: i128::from(rate.count()),
            token: rate.period().as_nanos() as i128,
            burst: i128::from(limit.capacity()),
            charges: Vec::new(),
            granted: Vec::new(),
            settled: 0,
        }
    }

    fn clock(&self, now: u64) -> i128 {
        i128::from(now) * self.count
    }

    fn keep(&mut self, now: u64, used: u64) {
        self.settled = self.settled.max(self.clock(now)) + i128::from(used) * self.token;
    }

    /// Whether a denial of `cost` is unjustified: even if everything pending counts in full, and
    /// everything used counts from when it was settled, it fits.
    fn fits(&self, now: u64, cost: u64) -> bool {
        let pending: u64 = self
            .charges
            .iter()
            .filter(|charge| charge.pending)
            .map(|charge| charge.net)
            .sum();
        let ahead = (self.settled - self.clock(now)).max(0);
        ahead + i128::from(pending + cost) * self.token <= self.burst * self.token
    }

    /// An interval that holds more net cost than the bucket admits, if there is one.
    fn broken(&self) -> Option<(u64, u64)> {
        let ends = || self.charges.iter().map(|charge| charge.at);
        ends()
            .flat_map(|from| ends().map(move |to| (from, to)))
            .find(|(from, to)| {
                let inside = |at: u64| *from <= at && at <= *to;
                let net: u64 = self
                    .charges
                    .iter()
                    .filter(|charge| inside(charge.at))
                    .map(|charge| charge.net)
                    .sum();
                let granted: u64 = self
                    .granted
                    .iter()
                    .filter(|(at, _)| inside(*at))
                    .map(|(_, tokens)| tokens)
                    .sum();
                let elapsed = (i128::from(*to) - i128::from(*from)) * self.count;
                i128::from(net) * self.token
                    > (self.burst + i128::from(granted)) * self.token + elapsed.max(0)
            })
    }
}

/// Plays a trace on a bucket, and compares each step with the history.
fn play(
    limit: Limit,
    ops: &[Op],
    bucket: &mut dyn Bucket,
    clock: &ManualClock,
) -> Result<(), TestCaseError> {
    let mut history = History::new(&limit);
    let quarter =
        (limit.rate().unwrap().period().as_nanos() as u64 / limit.rate().unwrap().count() / 4)
            .max(1);
    let mut tickets: Vec<(Ticket, usize)> = Vec::new();
    for op in ops {
        let now = clock.now().as_unix_nanos();
        match *op {
            Op::Pass(quarters) => clock.advance(Duration::from_nanos(quarters * quarter)),
            Op::Take(cost) => {
                let fits = history.fits(now, cost);
                let (decision, ticket) = bucket.take(cost);
                prop_assert!(
                    decision.is_allowed() || !fits,
                    "denied for nothing: {op:?} at {now}"
                );
                if let Some(ticket) = ticket {
                    tickets.push((ticket, history.charges.len()));
                    history.charges.push(Charge {
                        at: now,
                        net: cost,
                        pending: true,
                    });
                }
            }
            Op::Check(cost) => {
                let fits = history.fits(now, cost);
                let decision = bucket.check(cost);
                prop_assert!(
                    decision.is_allowed() || !fits,
                    "denied for nothing: {op:?} at {now}"
                );
                if decision.is_allowed() {
                    history.charges.push(Charge {
                        at: now,
                        net: cost,
                        pending: false,
                    });
                    history.keep(now, cost);
                }
            }
            Op::Settle(which, quarters) if !tickets.is_empty() => {
                let (ticket, at) = tickets.swap_remove(which % tickets.len());
                let cost = history.charges.get(at).map_or(1, |charge| charge.net);
                let actual = cost * quarters / 4;
                bucket.settle(ticket, actual);
                // A charge from before a reset: only its additional cost is charged.
                if let Some(charge) = history.charges.get_mut(at) {
                    (charge.net, charge.pending) = (cost.min(actual), false);
                    history.keep(now, cost.min(actual));
                }
                if actual > cost {
                    history.keep(now, (actual - cost).min(limit.capacity()));
                }
            }
            Op::Drop(which) if !tickets.is_empty() => {
                tickets.swap_remove(which % tickets.len());
            }
            Op::Grant(tokens) => {
                bucket.grant(tokens);
                history.granted.push((now, tokens));
            }
            Op::Reset => {
                bucket.reset();
                history = History::new(&limit);
                tickets.iter_mut().for_each(|(_, at)| *at = usize::MAX);
            }
            Op::Settle(..) | Op::Drop(_) => {}
        }
        prop_assert_eq!(history.broken(), None, "after {:?} at {}", op, now);
    }
    Ok(())
}

/// The numbers of a decision.
fn numbers(decision: Decision) -> (DecisionInfo, Duration) {
    (decision.into(), decision.next_after())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_net_cost_stays_within_the_limit_and_every_denial_has_a_reason(
        limit in limits(), ops in prop::collection::vec(ops(), 1..80),
    ) {
        for make in all_buckets() {
            let clock = ManualClock::new();
            let mut bucket = make(limit, &clock);
            play(limit, &ops, &mut *bucket, &clock)?;
        }
    }

    /// For any final charges, or charges settled at their cost.
    #[test]
    fn without_refunds_it_decides_as_the_plain_bucket_does(
        limit in limits(), ops in prop::collection::vec(ops(), 1..80),
    ) {
        let plain: Limit = limit.to_string().trim_end_matches(" refundable").parse().unwrap();
        prop_assert!(!plain.is_refundable());
        for make in all_buckets() {
            let clock = ManualClock::new();
            let mut buckets = [make(limit, &clock), make(plain, &clock)];
            let mut tickets = [Vec::new(), Vec::new()];
            for op in &ops {
                match *op {
                    Op::Pass(quarters) => clock.advance(Duration::from_nanos(quarters * 5)),
                    Op::Take(cost) => {
                        let mut decisions = Vec::new();
                        for (bucket, tickets) in buckets.iter_mut().zip(&mut tickets) {
                            let (decision, ticket) = bucket.take(cost);
                            tickets.extend(ticket.map(|ticket| (ticket, cost)));
                            decisions.push(numbers(decision));
                        }
                        prop_assert!(decisions[0] == decisions[1], "{:?}", decisions);
                    }
                    Op::Check(cost) => {
                        let decisions = buckets.each_mut().map(|bucket| numbers(bucket.check(cost)));
                        prop_assert!(decisions[0] == decisions[1], "{:?}", decisions);
                    }
                    Op::Settle(which, quarters) if !tickets[0].is_empty() => {
                        let which = which % tickets[0].len();
                        for (bucket, tickets) in buckets.iter_mut().zip(&mut tickets) {
                            let (ticket, cost) = tickets.swap_remove(which);
                            bucket.settle(ticket, cost.max(cost * quarters / 4));
                        }
                    }
                    Op::Grant(tokens) => buckets.iter_mut().for_each(|bucket| bucket.grant(tokens)),
                    Op::Reset => {
                        buckets.iter_mut().for_each(|bucket| bucket.reset());
                        tickets.iter_mut().for_each(Vec::clear);
                    }
                    Op::Settle(..) | Op::Drop(_) => {}
                }
                for cost in 0..8 {
                    let decisions = buckets.each_mut().map(|bucket| numbers(bucket.peek(cost)));
                    prop_assert!(decisions[0] == decisions[1], "{:?}", decisions);
                }
            }
        }
    }
}
