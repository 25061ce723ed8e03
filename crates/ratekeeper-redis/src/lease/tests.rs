//! L1 to L6 of leases, on the pure machines: several nodes and one bucket, with a network that
//! delays, repeats and loses, nodes that crash, clocks that run at different speeds, callers that
//! bring different lives, limits that change.

use super::central::{BucketParams, CentralBucket};
use super::node::{HeldLease, LeaseDemand, LeaseSettings, SpendOutcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

const NODES: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Somebody asks a node.
    Ask {
        node: usize,
        cost: u64,
    },
    /// The same again and again, so that it is hot.
    Asks {
        node: usize,
        times: u64,
    },
    /// The same on a network that takes no time.
    Rush {
        node: usize,
        times: u64,
    },
    Advance(u64),
    /// As far as a part of a node's lease lasts, in hundredths, and a little.
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
    /// A node gives up waiting.
    GiveUp {
        node: usize,
    },
    Crash {
        node: usize,
    },
    /// Redis is asked about so many, exactly.
    Exact {
        cost: u64,
    },
    /// A request that was charged comes to nothing.
    GiveBack {
        node: usize,
    },
    Change {
        terms: usize,
    },
    Stale {
        node: usize,
        micros: u64,
    },
    /// The key goes leased or exact on this node.
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
        1 => node.clone().prop_map(|node| Step::GiveBack { node }),
        1 => (0..TERMS.len()).prop_map(|terms| Step::Change { terms }),
        1 => (node.clone(), prop_oneof![Just(20_000_u64), Just(33_333), Just(100_000), Just(1_000_000)])
            .prop_map(|(node, micros)| Step::Stale { node, micros }),
        1 => (node, any::<bool>()).prop_map(|(node, leased)| Step::Mode { node, leased }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Of one token, so that what was admitted under one adds up with what was under another.
const TERMS: [BucketParams; 4] = [
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

/// A node, whose clock makes so many nanoseconds of a microsecond.
struct Node {
    held: HeldLease,
    pace: u64,
    lives: u64,
    leased: bool,
    /// The flight it waits for.
    flight: Option<u64>,
    paid: Option<(usize, u64, u64)>,
}

#[derive(Clone, Debug)]
struct Message {
    node: usize,
    flight: u64,
    sent: u64,
    wish: LeaseDemand,
    /// What Redis has granted, if it is on its way back.
    granted: Option<u64>,
}

struct World {
    now: u64,
    terms: BucketParams,
    central: CentralBucket,
    nodes: Vec<Node>,
    messages: Vec<Message>,
    flights: u64,
    /// When, and how many units.
    admitted: Vec<(u64, u64)>,
}

impl World {
    fn new(terms: BucketParams, paces: &[u64]) -> Self {
        let node = |pace: &u64| Node {
            held: HeldLease::default(),
            pace: *pace,
            lives: lives(&terms, 100_000),
            leased: true,
            flight: None,
            paid: None,
        };
        Self {
            now: 1_000_000,
            terms,
            central: CentralBucket::fresh(&terms, 1_000_000),
            nodes: paces.iter().map(node).collect(),
            messages: Vec::new(),
            flights: 0,
            admitted: Vec::new(),
        }
    }

    fn clock(&self, node: usize) -> u64 {
        self.now * self.nodes[node].pace
    }

    fn manner(&self, node: usize) -> LeaseSettings {
        LeaseSettings {
            lives: self.nodes[node].lives,
            burst: self.terms.burst(),
        }
    }

    fn ask(&mut self, node: usize, cost: u64) -> Result<(), TestCaseError> {
        let (clock, manner) = (self.clock(node), self.manner(node));
        if !self.nodes[node].leased || cost > manner.most() {
            self.exact(cost);
            return Ok(());
        }
        let held = &mut self.nodes[node].held;
        match held.spend(clock, cost) {
            SpendOutcome::Paid { mark } => {
                // L4: it ends later than now.
                prop_assert!(clock < mark);
                self.admitted.push((self.now, cost * self.terms.token));
                self.nodes[node].paid = Some((self.admitted.len() - 1, mark, cost));
                if self.nodes[node].held.is_low(clock) {
                    self.fly(node, 1);
                }
            }
            SpendOutcome::Denied { until } => prop_assert!(until > clock),
            SpendOutcome::Unknown => self.fly(node, cost),
        }
        Ok(())
    }

    fn fly(&mut self, node: usize, cost: u64) {
        let (sent, manner) = (self.clock(node), self.manner(node));
        let Some(wish) = self.nodes[node].held.wish(sent, cost, &manner) else {
            return;
        };
        self.flights += 1;
        self.nodes[node].flight = Some(self.flights);
        self.messages.push(Message {
            node,
            flight: self.flights,
            sent,
            wish,
            granted: None,
        });
    }

    fn exact(&mut self, cost: u64) {
        if self.central.take(self.now, &self.terms, cost) {
            self.admitted.push((self.now, cost * self.terms.token));
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
            flight,
            sent,
            wish,
            granted,
        } = message;
        let Some(granted) = granted else {
            let granted = self.central.lease(self.now, &self.terms, &wish);
            self.messages.push(Message {
                granted: Some(granted),
                ..message
            });
            return;
        };
        if self.nodes[node].flight != Some(flight) {
            return;
        }
        let (clock, manner) = (self.clock(node), self.manner(node));
        self.nodes[node].flight = None;
        let held = &mut self.nodes[node].held;
        match granted {
            0 => held.denied(sent, wish.least, 1_000_000, &manner),
            granted => held.granted(sent, clock, granted, wish.lives, &wish, &manner),
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
            } => self.now += self.nodes[node].lives * hundredths / 100 + more,
            Step::Deliver { which, again } => self.deliver(which, again),
            Step::Lose { which } => {
                if !self.messages.is_empty() {
                    let which = which % self.messages.len();
                    self.messages.remove(which);
                }
            }
            Step::GiveUp { node } => {
                self.nodes[node].flight = None;
                self.nodes[node].held.failed();
            }
            Step::Crash { node } => {
                let Node {
                    held, flight, paid, ..
                } = &mut self.nodes[node];
                (*held, *flight, *paid) = (HeldLease::default(), None, None);
            }
            Step::Exact { cost } => self.exact(cost),
            Step::GiveBack { node } => {
                let clock = self.clock(node);
                if let Some((event, mark, cost)) = self.nodes[node].paid.take()
                    && self.nodes[node].held.give_back(clock, mark, cost)
                {
                    self.admitted[event].1 -= cost * self.terms.token;
                }
            }
            Step::Change { terms } => {
                self.terms = TERMS[terms];
                // A node that hears of it drops what it holds; one that has not heard yet may not.
                for node in 0..self.nodes.len() {
                    if node % 2 == 0 {
                        self.nodes[node].held = HeldLease::default();
                        self.nodes[node].flight = None;
                    }
                    self.nodes[node].lives = lives(&self.terms, 100_000);
                }
            }
            Step::Stale { node, micros } => self.nodes[node].lives = lives(&self.terms, micros),
            Step::Mode { node, leased } => self.nodes[node].leased = leased,
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut central = self.central;
        central.advance(self.now, &self.terms);
        let out = central.out() * self.terms.token;
        // L1: what is free and what is out fit the bucket; or what is out alone exceeds one that
        // shrank.
        prop_assert!(
            central.level <= (self.terms.capacity as i64 - out as i64).max(0),
            "{central:?}"
        );
        // L2: what nodes hold, or are about to be told that they hold, is out.
        let mut held = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            held += node.held.left(self.clock(number));
            let mut coming = self
                .messages
                .iter()
                .filter(|message| node.flight == Some(message.flight));
            if let Some(message) = coming.find(|message| message.granted.is_some())
                && self.clock(number) < message.sent + message.wish.lives * 980
            {
                held += message.granted.unwrap_or(0);
            }
        }
        prop_assert!(held <= central.out(), "{held} held of {central:?}");
        Ok(())
    }

    /// L3: over any time, what was admitted is what one bucket would have; across changes, the
    /// largest of them.
    fn audit(&self, capacity: u64, per_micro: u64) -> Result<(), TestCaseError> {
        for (first, (from, _)) in self.admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, units) in &self.admitted[first..] {
                sum += units;
                let most = capacity + per_micro * (to - from);
                prop_assert!(sum <= most, "{sum} units from {from} to {to}, of {most}");
            }
        }
        Ok(())
    }
}

/// min(B / 4r, what the operator allows), at least 20 ms.
fn lives(terms: &BucketParams, micros: u64) -> u64 {
    (terms.capacity / 4 / terms.per_micro.max(1))
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

/// Two clocks are within 2 % of each other: a node's may be as much as that slower than Redis's, or
/// faster.
fn paces() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(
        prop_oneof![Just(980_u64), Just(1_000), Just(1_020), 980..1_020_u64],
        NODES,
    )
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn one_bucket_is_kept_whatever_becomes_of_messages_and_nodes(
        paces in paces(), terms in 0..3_usize, steps in steps(),
    ) {
        let mut world = World::new(TERMS[terms], &paces);
        for step in steps {
            if !matches!(step, Step::Change { .. }) {
                world.step(step)?;
            }
        }
        world.audit(TERMS[terms].capacity, TERMS[terms].per_micro)?;
    }

    #[test]
    fn a_change_of_the_limit_adds_nothing_to_the_larger_of_both(paces in paces(), steps in steps()) {
        let mut world = World::new(TERMS[0], &paces);
        let (mut capacity, mut per_micro) = (world.terms.capacity, world.terms.per_micro);
        for step in steps {
            world.step(step)?;
            capacity = capacity.max(world.terms.capacity);
            per_micro = per_micro.max(world.terms.per_micro);
        }
        world.audit(capacity, per_micro)?;
    }

    /// L5: leases that live for no time are exact decisions.
    #[test]
    fn without_a_life_a_lease_is_a_charge(
        terms in 0..4_usize, calls in prop::collection::vec((0..30_000_u64, 1..50_u64), 1..100),
    ) {
        let terms = &TERMS[terms];
        let (mut leased, mut exact) = (CentralBucket::fresh(terms, 0), CentralBucket::fresh(terms, 0));
        let mut now = 0;
        for (after, cost) in calls {
            now += after;
            let wish = LeaseDemand { least: cost, want: 0, lives: 0, expires: u64::MAX };
            let granted = leased.lease(now, terms, &wish);
            prop_assert_eq!(granted, if exact.take(now, terms, cost) { cost } else { 0 });
            leased.advance(now, terms);
            prop_assert_eq!(leased.level, exact.level);
        }
    }

    /// L6: where nodes ask all the time, no more than 2rE and a token is not given out, however
    /// they ask.
    #[test]
    fn saturated_next_to_nothing_is_lost(
        terms in 0..3_usize, staleness in 20_000..1_000_000_u64, wants in prop::collection::vec(1..2_000_u64, 1..5),
        each in 100..4_000_u64, turns in 1..2_000_u64,
    ) {
        let terms = &TERMS[terms];
        let lives = lives(terms, staleness);
        let each = each.min(lives / 8);
        let mut central = CentralBucket::fresh(terms, 0);
        let (mut now, mut granted) = (0, 0);
        for turn in 0..turns {
            // In turns, until there is nothing.
            loop {
                let wish = LeaseDemand { least: 1, want: wants[turn as usize % wants.len()], lives, expires: u64::MAX };
                let some = central.lease(now, terms, &wish);
                granted += some * terms.token;
                if some == 0 { break }
            }
            now += each;
        }
        central.advance(now, terms);
        let lost = 2 * terms.per_micro * lives + terms.token;
        prop_assert!(granted + central.level as u64 + lost >= terms.capacity + terms.per_micro * now);
    }

}

proptest! {
    #![proptest_config(Config { cases: cases().cases / 32, ..cases() })]

    /// The machine as a whole, saturated: four nodes that are asked all the time admit nearly all
    /// of the rate.
    #[test]
    fn four_busy_nodes_admit_nearly_all_of_the_rate(
        paces in paces(), terms in 0..2_usize, demand in 2..40_u64, delay in 50..1_000_u64,
    ) {
        let mut world = World::new(TERMS[terms], &paces);
        let terms = world.terms;
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
            // Each message arrives after the same time; its answer with the next tick.
            while let Some(at) = arrivals.iter().position(|at| *at <= world.now) {
                arrivals.remove(at);
                world.deliver(at, false);
                let reply = world.messages.len() - 1;
                world.deliver(reply, false);
            }
        }
        world.check()?;
        world.audit_fast(terms.capacity, terms.per_micro)?;
        let admitted: u64 = world.admitted.iter().map(|(_, units)| units).sum();
        let whole = terms.capacity + terms.per_micro * TURNS * TICK;
        let lives = lives(&terms, 100_000);
        // After the burst 2rE once, and what is under way.
        let lost = terms.capacity / 2 + 3 * terms.per_micro * lives;
        prop_assert!(admitted + lost >= whole, "{admitted} of {whole}, {lost} may be lost");
    }
}

impl World {
    /// The same as `audit`, in one pass: a bucket that holds what was admitted would never be
    /// empty.
    fn audit_fast(&self, capacity: u64, per_micro: u64) -> Result<(), TestCaseError> {
        let (mut level, mut last) = (capacity as i64, 0);
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
fn what_arrives_while_there_is_no_room_is_lost_and_not_put_off() {
    let terms = &TERMS[0];
    let lives = 100_000;
    let mut central = CentralBucket::fresh(terms, 0);
    let out: u64 = (0..4)
        .map(|_| {
            central.lease(
                0,
                terms,
                &LeaseDemand {
                    least: 1,
                    want: 50,
                    lives,
                    expires: u64::MAX,
                },
            )
        })
        .sum();
    assert_eq!(out, 200);
    // For as long as it is out the bucket is full without it, and when it ends it has what it had.
    for now in [1, lives, 2 * lives - 1, 2 * lives] {
        central.advance(now, terms);
        assert_eq!(central.level, 200_000);
    }
    assert_eq!(central.out(), 0);
    central.advance(2 * lives + 7_000, terms);
    assert_eq!(central.level, 207_000);
    // The same if nobody looked meanwhile.
    let mut central = CentralBucket::fresh(terms, 0);
    (0..4).for_each(|_| {
        assert_eq!(
            central.lease(
                0,
                terms,
                &LeaseDemand {
                    least: 1,
                    want: 50,
                    lives,
                    expires: u64::MAX
                }
            ),
            50
        )
    });
    central.advance(2 * lives + 7_000, terms);
    assert_eq!(central.level, 207_000);
}
