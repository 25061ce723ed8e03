//! Tests of the lease properties L1 to L6 on the pure models: several nodes and one bucket, with a
//! network that delays, repeats and loses messages, nodes that crash, clocks that run at different
//! speeds, callers with different TTLs, and limits that change.

use super::central::{BucketParams, CentralBucket};
use super::node::{KeyLeases, LeaseDemand, LeaseSettings, SpendOutcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

const NODES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A caller asks a node.
    Ask {
        node: usize,
        cost: u64,
    },
    /// Repeated asks, so that the key is hot.
    Asks {
        node: usize,
        times: u64,
    },
    /// Repeated asks, on a network without delay.
    Rush {
        node: usize,
        times: u64,
    },
    Advance(u64),
    /// Advances by a part of a node's TTL, in hundredths, and a little more.
    Live {
        node: usize,
        hundredths: u64,
        more: u64,
    },
    /// A message arrives, and may arrive again.
    Deliver {
        which: usize,
        again: bool,
    },
    Lose {
        which: usize,
    },
    /// A node stops waiting for its request.
    GiveUp {
        node: usize,
    },
    Crash {
        node: usize,
    },
    /// An exact decision by Redis.
    Exact {
        cost: u64,
    },
    /// A charged request is given back.
    Refund {
        node: usize,
    },
    Change {
        params: usize,
    },
    Stale {
        node: usize,
        micros: u64,
    },
    /// The node leases the key, or asks for exact decisions.
    Mode {
        node: usize,
        leased: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0..NODES;
    let step = prop_oneof![
        6 => (node.clone(), 1..6_u64).prop_map(|(node, cost)| Step::Ask { node, cost }),
        6 => (node.clone(), 1..60_u64).prop_map(|(node, times)| Step::Asks { node, times }),
        6 => (node.clone(), 1..400_u64).prop_map(|(node, times)| Step::Rush { node, times }),
        6 => (node.clone(), prop_oneof![Just(50_u64), 96..104_u64, 190..202_u64], 0..200_u64)
            .prop_map(|(node, hundredths, more)| Step::Live { node, hundredths, more }),
        4 => prop_oneof![0..2_000_u64, 0..40_000_u64, 0..400_000_u64].prop_map(Step::Advance),
        10 => (0..8_usize, prop::bool::weighted(0.2)).prop_map(|(which, again)| Step::Deliver { which, again }),
        1 => (0..8_usize).prop_map(|which| Step::Lose { which }),
        1 => node.clone().prop_map(|node| Step::GiveUp { node }),
        1 => node.clone().prop_map(|node| Step::Crash { node }),
        2 => prop_oneof![0..20_u64, 0..400_u64].prop_map(|cost| Step::Exact { cost }),
        1 => node.clone().prop_map(|node| Step::Refund { node }),
        1 => (0..PARAMS.len()).prop_map(|params| Step::Change { params }),
        1 => (node.clone(), prop_oneof![Just(20_000_u64), Just(33_333), Just(100_000), Just(1_000_000)])
            .prop_map(|(node, micros)| Step::Stale { node, micros }),
        1 => (node, any::<bool>()).prop_map(|(node, leased)| Step::Mode { node, leased }),
    ];
    prop::collection::vec(step, 1..120)
}

/// All have the same units a token, so that what was allowed under one and another adds up.
const PARAMS: [BucketParams; 4] = [
    BucketParams {
        per_micro: 1,
        token: 1_000,
        capacity: 400_000,
    },
    BucketParams {
        per_micro: 1,
        token: 1_000,
        capacity: 2_000_000,
    },
    BucketParams {
        per_micro: 3,
        token: 1_000,
        capacity: 300_000,
    },
    BucketParams {
        per_micro: 0,
        token: 1_000,
        capacity: 64_000,
    },
];

/// A node whose clock counts `pace` nanoseconds in a microsecond.
struct Node {
    leases: KeyLeases,
    pace: u64,
    ttl: u64,
    leased: bool,
    /// The request it waits for.
    request: Option<u64>,
    paid: Option<(usize, u64, u64)>,
}

#[derive(Clone, Debug)]
struct Message {
    node: usize,
    request: u64,
    sent: u64,
    demand: LeaseDemand,
    /// What Redis has granted, if the message is the answer.
    granted: Option<u64>,
}

struct World {
    now: u64,
    params: BucketParams,
    central: CentralBucket,
    nodes: Vec<Node>,
    messages: Vec<Message>,
    requests: u64,
    /// When, and how many units.
    admitted: Vec<(u64, u64)>,
}

impl World {
    fn new(params: BucketParams, paces: &[u64]) -> Self {
        let node = |pace: &u64| Node {
            leases: KeyLeases::default(),
            pace: *pace,
            ttl: ttl(&params, 100_000),
            leased: true,
            request: None,
            paid: None,
        };
        Self {
            now: 1_000_000,
            params,
            central: CentralBucket::fresh(&params, 1_000_000),
            nodes: paces.iter().map(node).collect(),
            messages: Vec::new(),
            requests: 0,
            admitted: Vec::new(),
        }
    }

    fn clock(&self, node: usize) -> u64 {
        self.now * self.nodes[node].pace
    }

    fn settings(&self, node: usize) -> LeaseSettings {
        LeaseSettings {
            ttl: self.nodes[node].ttl,
            burst: self.params.burst(),
        }
    }

    fn ask(&mut self, node: usize, cost: u64) -> Result<(), TestCaseError> {
        let clock = self.clock(node);
        let settings = self.settings(node);
        if !self.nodes[node].leased || cost > settings.max_cost() {
            self.exact(cost);
            return Ok(());
        }
        let leases = &mut self.nodes[node].leases;
        match leases.spend(clock, cost) {
            SpendOutcome::Paid { mark } => {
                // L4: the lease has not ended.
                prop_assert!(clock < mark);
                self.admitted.push((self.now, cost * self.params.token));
                self.nodes[node].paid = Some((self.admitted.len() - 1, mark, cost));
                if self.nodes[node].leases.is_low(clock) {
                    self.request_lease(node, 1);
                }
            }
            SpendOutcome::Denied { until } => prop_assert!(until > clock),
            SpendOutcome::Unknown => self.request_lease(node, cost),
        }
        Ok(())
    }

    fn request_lease(&mut self, node: usize, cost: u64) {
        let sent = self.clock(node);
        let settings = self.settings(node);
        let Some(demand) = self.nodes[node].leases.demand(sent, cost, &settings) else {
            return;
        };
        self.requests += 1;
        self.nodes[node].request = Some(self.requests);
        self.messages.push(Message {
            node,
            request: self.requests,
            sent,
            demand,
            granted: None,
        });
    }

    fn exact(&mut self, cost: u64) {
        if self.central.take(self.now, &self.params, cost) {
            self.admitted.push((self.now, cost * self.params.token));
        }
    }

    fn deliver(&mut self, which: usize, again: bool) {
        if self.messages.is_empty() {
            return;
        }
        let which = which % self.messages.len();
        let message = if again {
            self.messages[which].clone()
        } else {
            self.messages.remove(which)
        };
        let Message {
            node,
            request,
            sent,
            demand,
            granted,
        } = message;
        let Some(granted) = granted else {
            let granted = self.central.lease(self.now, &self.params, &demand);
            self.messages.push(Message {
                granted: Some(granted),
                ..message
            });
            return;
        };
        if self.nodes[node].request != Some(request) {
            return;
        }
        let clock = self.clock(node);
        let settings = self.settings(node);
        self.nodes[node].request = None;
        let leases = &mut self.nodes[node].leases;
        match granted {
            0 => leases.denied(sent, demand.min, 1_000_000, &settings),
            granted => leases.granted(sent, clock, granted, demand.ttl, &demand, &settings),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { node, cost } => self.ask(node, cost)?,
            Step::Asks { node, times } => {
                for _ in 0..times {
                    self.ask(node, 1)?;
                }
            }
            Step::Rush { node, times } => {
                for _ in 0..times {
                    self.ask(node, 1)?;
                    while let Some(which) = self
                        .messages
                        .iter()
                        .position(|message| message.node == node)
                    {
                        self.deliver(which, false);
                    }
                }
            }
            Step::Advance(by) => self.now += by,
            Step::Live {
                node,
                hundredths,
                more,
            } => self.now += self.nodes[node].ttl * hundredths / 100 + more,
            Step::Deliver { which, again } => self.deliver(which, again),
            Step::Lose { which } => {
                if !self.messages.is_empty() {
                    let which = which % self.messages.len();
                    self.messages.remove(which);
                }
            }
            Step::GiveUp { node } => {
                self.nodes[node].request = None;
                self.nodes[node].leases.failed();
            }
            Step::Crash { node } => {
                let Node {
                    leases,
                    request,
                    paid,
                    ..
                } = &mut self.nodes[node];
                (*leases, *request, *paid) = (KeyLeases::default(), None, None);
            }
            Step::Exact { cost } => self.exact(cost),
            Step::Refund { node } => {
                let clock = self.clock(node);
                if let Some((event, mark, cost)) = self.nodes[node].paid.take()
                    && self.nodes[node].leases.give_back(clock, mark, cost)
                {
                    self.admitted[event].1 -= cost * self.params.token;
                }
            }
            Step::Change { params } => {
                self.params = PARAMS[params];
                // A node that learns of the change drops its leases; one that has not learnt of it
                // yet may not.
                for node in 0..self.nodes.len() {
                    if node % 2 == 0 {
                        self.nodes[node].leases = KeyLeases::default();
                        self.nodes[node].request = None;
                    }
                    self.nodes[node].ttl = ttl(&self.params, 100_000);
                }
            }
            Step::Stale { node, micros } => self.nodes[node].ttl = ttl(&self.params, micros),
            Step::Mode { node, leased } => self.nodes[node].leased = leased,
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut central = self.central;
        central.advance(self.now, &self.params);
        let out = central.out() * self.params.token;
        // L1: free and outstanding tokens fit the bucket; or the outstanding ones alone exceed one
        // that shrank.
        prop_assert!(
            central.level <= (self.params.capacity as i64 - out as i64).max(0),
            "{central:?}"
        );
        // L2: what nodes hold, or are about to receive, is outstanding.
        let mut total = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            total += node.leases.left(self.clock(number));
            let mut coming = self
                .messages
                .iter()
                .filter(|message| node.request == Some(message.request));
            if let Some(message) = coming.find(|message| message.granted.is_some())
                && self.clock(number) < message.sent + message.demand.ttl * 980
            {
                total += message.granted.unwrap_or(0);
            }
        }
        prop_assert!(total <= central.out(), "{total} leased of {central:?}");
        Ok(())
    }

    /// L3: over any time, what was allowed is at most what one bucket would allow; across changes,
    /// the largest of them.
    fn audit(&self, capacity: u64, per_micro: u64) -> Result<(), TestCaseError> {
        for (first, (from, _)) in self.admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, units) in &self.admitted[first..] {
                sum += units;
                let max = capacity + per_micro * (to - from);
                prop_assert!(sum <= max, "{sum} units from {from} to {to}, of {max}");
            }
        }
        Ok(())
    }
}

/// min(B / 4r, what the operator allows), at least 20 ms.
fn ttl(params: &BucketParams, micros: u64) -> u64 {
    (params.capacity / 4 / params.per_micro.max(1))
        .min(micros)
        .max(20_000)
}

fn cases() -> Config {
    let cases = std::env::var("RATEKEEPER_LEASE_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(512);
    Config {
        cases,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

/// Clocks are within 2 % of each other: a node's may be that much slower or faster than Redis's.
fn paces() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![Just(980_u64), Just(1_000), Just(1_020), 980..1_020_u64],
        NODES,
    )
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_bound_of_one_bucket_holds_through_faults(
        paces in paces(), params in 0..3_usize, steps in steps(),
    ) {
        let mut world = World::new(PARAMS[params], &paces);
        for step in steps {
            if !matches!(step, Step::Change { .. }) {
                world.step(step)?;
            }
        }
        world.audit(PARAMS[params].capacity, PARAMS[params].per_micro)?;
    }

    #[test]
    fn a_change_of_the_limit_allows_at_most_the_larger_of_both(paces in paces(), steps in steps()) {
        let mut world = World::new(PARAMS[0], &paces);
        let mut capacity = world.params.capacity;
        let mut per_micro = world.params.per_micro;
        for step in steps {
            world.step(step)?;
            capacity = capacity.max(world.params.capacity);
            per_micro = per_micro.max(world.params.per_micro);
        }
        world.audit(capacity, per_micro)?;
    }

    /// L5: leases with a TTL of 0 are exact decisions.
    #[test]
    fn a_lease_with_a_ttl_of_0_is_a_charge(
        params in 0..4_usize, calls in prop::collection::vec((0..30_000_u64, 1..50_u64), 1..100),
    ) {
        let params = &PARAMS[params];
        let mut leased = CentralBucket::fresh(params, 0);
        let mut exact = CentralBucket::fresh(params, 0);
        let mut now = 0;
        for (after, cost) in calls {
            now += after;
            let demand = LeaseDemand { min: cost, want: 0, ttl: 0, expires: u64::MAX };
            let granted = leased.lease(now, params, &demand);
            prop_assert_eq!(granted, if exact.take(now, params, cost) { cost } else { 0 });
            leased.advance(now, params);
            prop_assert_eq!(leased.level, exact.level);
        }
    }

    /// L6: while nodes ask all the time, at most 2rE and a token is not granted, however they ask.
    #[test]
    fn under_saturation_little_is_lost(
        params in 0..3_usize, staleness in 20_000..1_000_000_u64, wants in prop::collection::vec(1..2_000_u64, 1..5),
        each in 100..4_000_u64, turns in 1..2_000_u64,
    ) {
        let params = &PARAMS[params];
        let ttl = ttl(params, staleness);
        let each = each.min(ttl / 8);
        let mut central = CentralBucket::fresh(params, 0);
        let mut now = 0;
        let mut granted = 0;
        for turn in 0..turns {
            // One after the other, until nothing is granted.
            loop {
                let demand = LeaseDemand { min: 1, want: wants[turn as usize % wants.len()], ttl, expires: u64::MAX };
                let some = central.lease(now, params, &demand);
                granted += some * params.token;
                if some == 0 { break }
            }
            now += each;
        }
        central.advance(now, params);
        let lost = 2 * params.per_micro * ttl + params.token;
        prop_assert!(granted + central.level as u64 + lost >= params.capacity + params.per_micro * now);
    }

}

proptest! {
    #![proptest_config(Config { cases: cases().cases / 32, ..cases() })]

    /// The whole system, saturated: four nodes that are asked all the time allow nearly all of the
    /// rate.
    #[test]
    fn four_busy_nodes_allow_nearly_all_of_the_rate(
        paces in paces(), params in 0..2_usize, demand in 2..40_u64, delay in 50..1_000_u64,
    ) {
        let mut world = World::new(PARAMS[params], &paces);
        let params = world.params;
        let begin = world.now;
        const TICK: u64 = 500;
        const TURNS: u64 = 8_000;
        let mut arrivals: Vec<u64> = Vec::new();
        for turn in 0..TURNS {
            world.now = begin + turn * TICK;
            for node in 0..NODES {
                for _ in 0..demand {
                    let before = world.messages.len();
                    world.ask(node, 1)?;
                    if world.messages.len() > before {
                        arrivals.push(world.now + delay);
                    }
                }
            }
            // Each message arrives after the same delay, and its answer with the next tick.
            while let Some(at) = arrivals.iter().position(|at| *at <= world.now) {
                arrivals.remove(at);
                world.deliver(at, false);
                let reply = world.messages.len() - 1;
                world.deliver(reply, false);
            }
        }
        world.check()?;
        world.audit_fast(params.capacity, params.per_micro)?;
        let admitted: u64 = world.admitted.iter().map(|(_, units)| units).sum();
        let whole = params.capacity + params.per_micro * TURNS * TICK;
        let ttl = ttl(&params, 100_000);
        // 2rE once after the burst, and what is in flight.
        let lost = params.capacity / 2 + 3 * params.per_micro * ttl;
        prop_assert!(admitted + lost >= whole, "{admitted} of {whole}, {lost} may be lost");
    }
}

impl World {
    /// The same as `audit`, in one pass: a bucket that charges what was allowed is never overdrawn.
    fn audit_fast(&self, capacity: u64, per_micro: u64) -> Result<(), TestCaseError> {
        let mut level = capacity as i64;
        let mut last = 0;
        for (now, units) in &self.admitted {
            level =
                (level + (per_micro * (now - last)) as i64).min(capacity as i64) - *units as i64;
            last = *now;
            prop_assert!(level >= 0, "{level} at {now}");
        }
        Ok(())
    }
}

#[test]
fn refill_beyond_the_capacity_is_lost_and_not_deferred() {
    let params = &PARAMS[0];
    let ttl = 100_000;
    let mut central = CentralBucket::fresh(params, 0);
    let out: u64 = (0..4)
        .map(|_| {
            central.lease(
                0,
                params,
                &LeaseDemand {
                    min: 1,
                    want: 50,
                    ttl,
                    expires: u64::MAX,
                },
            )
        })
        .sum();
    assert_eq!(out, 200);
    // While the lease is out the bucket is full without it, and at its end the level is unchanged.
    for now in [1, ttl, 2 * ttl - 1, 2 * ttl] {
        central.advance(now, params);
        assert_eq!(central.level, 200_000);
    }
    assert_eq!(central.out(), 0);
    central.advance(2 * ttl + 7_000, params);
    assert_eq!(central.level, 207_000);
    // The same if nothing was decided meanwhile.
    let mut central = CentralBucket::fresh(params, 0);
    (0..4).for_each(|_| {
        assert_eq!(
            central.lease(
                0,
                params,
                &LeaseDemand {
                    min: 1,
                    want: 50,
                    ttl,
                    expires: u64::MAX
                }
            ),
            50
        );
    });
    central.advance(2 * ttl + 7_000, params);
    assert_eq!(central.level, 207_000);
}
