//! Four nodes and one limit, in three ways: each decision in Redis, leases, and counts that are
//! exchanged every second.
//!
//! Leases are those of the store: the same pure machines, compiled here, with a network that takes
//! half a millisecond.

use crate::svg::{Anchor, Frame, INK, LINES, OVER, Svg};
use crate::traffic::Rng;
use std::fmt::Write;

#[allow(dead_code, reason = "the store needs all of it")]
#[path = "../../../crates/ratekeeper-redis/src/lease/central.rs"]
mod central;
#[allow(dead_code, reason = "the store needs all of it")]
#[path = "../../../crates/ratekeeper-redis/src/lease/node.rs"]
mod node;

use central::{BucketParams, CentralBucket};
use node::{KeyLeases, LeaseDemand, LeaseSettings, SpendOutcome};

const NODES: usize = 4;
/// 1000/s burst 2000, and each node is asked for as much.
const RATE: u64 = 1_000;
const BURST: u64 = 2_000;
const TERMS: BucketParams = BucketParams {
    per_micro: 1,
    token: 1_000,
    capacity: BURST * 1_000,
};
const SECOND: u64 = 1_000_000;
const LENGTH: u64 = 8 * SECOND;
/// Half of it each way.
const ROUND_TRIP: u64 = 500;

/// How the nodes decide.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Exact,
    /// How long a lease may live, in microseconds.
    Leased(u64),
    /// Each node counts by itself, and learns every second what the others have used.
    Synced,
}

/// What it came to.
pub(crate) struct Outcome {
    /// When something was admitted, in order, in microseconds.
    pub(crate) admitted: Vec<u64>,
    pub(crate) asked: u64,
    pub(crate) calls: u64,
    /// What each node admitted.
    by_node: [u64; NODES],
}

/// Who asks, and when: each node as often as the limit allows all of them, at random.
fn asks() -> Vec<(u64, usize)> {
    let mut rng = Rng(7);
    let count = RATE * NODES as u64 * LENGTH / SECOND;
    let mut asks: Vec<(u64, usize)> = (0..count)
        .map(|_| (rng.below(LENGTH), rng.below(NODES as u64) as usize))
        .collect();
    asks.sort_unstable();
    asks
}

impl Outcome {
    pub(crate) fn of(way: Way) -> Self {
        let asks = asks();
        let asked = asks.len() as u64;
        let mut outcome = Self {
            admitted: Vec::new(),
            asked,
            calls: 0,
            by_node: [0; NODES],
        };
        match way {
            Way::Exact => {
                let mut central = CentralBucket::fresh(&TERMS, 0);
                for (now, node) in asks {
                    outcome.calls += 1;
                    let at = now + ROUND_TRIP / 2;
                    if central.take(at, &TERMS, 1) {
                        outcome.admit(at, node);
                    }
                }
            }
            Way::Leased(staleness) => Fleet::new(staleness).run(&asks, &mut outcome),
            Way::Synced => synced(&asks, &mut outcome),
        }
        outcome.admitted.sort_unstable();
        outcome
    }

    fn admit(&mut self, at: u64, node: usize) {
        self.admitted.push(at);
        self.by_node[node] += 1;
    }

    /// By how much the bound of one bucket was exceeded, at worst.
    pub(crate) fn beyond(&self) -> u64 {
        let (mut level, mut last, mut worst) = (TERMS.capacity as i64, 0, 0);
        for at in &self.admitted {
            level = (level + (at - last) as i64).min(TERMS.capacity as i64) - TERMS.token as i64;
            last = *at;
            worst = worst.max(-level);
        }
        worst as u64 / TERMS.token
    }

    pub(crate) fn calls_a_second(&self) -> u64 {
        self.calls * SECOND / LENGTH
    }

    /// Jain's index: 1 if all nodes admitted as much.
    pub(crate) fn fairness(&self) -> f64 {
        let sum: u64 = self.by_node.iter().sum();
        let squares: u64 = self.by_node.iter().map(|own| own * own).sum();
        (sum * sum) as f64 / (NODES as u64 * squares).max(1) as f64
    }
}

/// Nodes that decide by leases.
struct Fleet {
    central: CentralBucket,
    settings: LeaseSettings,
    nodes: [KeyLeases; NODES],
    /// Lease requests: when they are at Redis, the node, when they were sent, and the demand.
    requests: Vec<(u64, usize, u64, LeaseDemand)>,
    /// Nodes whose ask waits for a lease request.
    waiting: Vec<usize>,
}

impl Fleet {
    fn new(staleness: u64) -> Self {
        let ttl = (TERMS.capacity / 4 / TERMS.per_micro).min(staleness);
        Self {
            central: CentralBucket::fresh(&TERMS, 0),
            settings: LeaseSettings { ttl, burst: BURST },
            nodes: [KeyLeases::default(); NODES],
            requests: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn run(mut self, asks: &[(u64, usize)], outcome: &mut Outcome) {
        for (now, node) in asks {
            self.complete_requests(*now, outcome);
            self.ask(*now, *node, outcome, true);
        }
    }

    /// Completes the requests whose answer has arrived by now.
    fn complete_requests(&mut self, now: u64, outcome: &mut Outcome) {
        while let Some(first) = self
            .requests
            .iter()
            .position(|(at, ..)| at + ROUND_TRIP / 2 <= now)
        {
            let (at, node, sent, demand) = self.requests.remove(first);
            let granted = self.central.lease(at, &TERMS, &demand);
            let (sent, back) = (sent * 1_000, (at + ROUND_TRIP / 2) * 1_000);
            match granted {
                0 => self.nodes[node].denied(sent, demand.min, TERMS.token * 1_000, &self.settings),
                some => {
                    self.nodes[node].granted(sent, back, some, demand.ttl, &demand, &self.settings);
                }
            }
            let (own, others) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|who| *who == node);
            self.waiting = others;
            let own: Vec<usize> = own;
            own.into_iter()
                .for_each(|node| self.ask(at + ROUND_TRIP / 2, node, outcome, false));
        }
    }

    fn ask(&mut self, now: u64, node: usize, outcome: &mut Outcome, may_wait: bool) {
        let (leases, clock) = (&mut self.nodes[node], now * 1_000);
        match leases.spend(clock, 1) {
            SpendOutcome::Paid { .. } => {
                outcome.admit(now, node);
                if leases.is_low(clock) {
                    self.request_lease(now, node, outcome);
                }
            }
            SpendOutcome::Denied { .. } => {}
            SpendOutcome::Unknown => {
                self.request_lease(now, node, outcome);
                if self.nodes[node].is_requesting && may_wait {
                    self.waiting.push(node);
                    return;
                }
                outcome.calls += 1;
                if self.central.take(now + ROUND_TRIP / 2, &TERMS, 1) {
                    outcome.admit(now + ROUND_TRIP / 2, node);
                }
            }
        }
    }

    fn request_lease(&mut self, now: u64, node: usize, outcome: &mut Outcome) {
        if let Some(demand) = self.nodes[node].demand(now * 1_000, 1, &self.settings) {
            outcome.calls += 1;
            self.requests
                .push((now + ROUND_TRIP / 2, node, now, demand));
        }
    }
}

/// Every node has a bucket of its own, and once a second all of them are set to what is left of the
/// one they stand for, which may be less than nothing.
fn synced(asks: &[(u64, usize)], outcome: &mut Outcome) {
    let (full, token, rate) = (
        TERMS.capacity as i64,
        TERMS.token as i64,
        TERMS.per_micro as i64,
    );
    let (mut own, mut left, mut last, mut synced) = ([full; NODES], full, 0, 0);
    for (now, node) in asks {
        while *now >= synced + SECOND {
            synced += SECOND;
            left = (left + SECOND as i64 * rate).min(full);
            own = [left; NODES];
            last = synced;
            outcome.calls += NODES as u64;
        }
        let refill = (*now - last) as i64 * rate;
        own.iter_mut()
            .for_each(|level| *level = (*level + refill).min(full));
        last = *now;
        if own[*node] >= token {
            own[*node] -= token;
            left -= token;
            outcome.admit(*now, *node);
        }
    }
}

/// The rows of the table; the plot omits the third.
pub(crate) const WAYS: [(&str, Way); 4] = [
    ("exact", Way::Exact),
    ("leased, staleness 100 ms", Way::Leased(100_000)),
    ("leased, staleness 1 s", Way::Leased(SECOND)),
    ("counts exchanged every second", Way::Synced),
];

/// Admitted since the beginning, beside what one bucket allows.
pub(crate) fn plot() -> String {
    const TOP: u64 = 12_000;
    let frame = Frame {
        x: 68.0,
        y: 106.0,
        width: 742.0,
        height: 250.0,
        from: 0,
        to: LENGTH,
        top: TOP,
    };
    let mut svg = Svg::new(880.0, frame.bottom() + 34.0);
    svg.title(
        20.0,
        32.0,
        18,
        "Four nodes, one key of “1000/s burst 2000”, 1,000 calls a second to each",
    );
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        "allowed by all of them since the start",
    );
    let seconds: Vec<_> = (0..=LENGTH / SECOND)
        .map(|s| (s * SECOND, format!("{s} s")))
        .collect();
    let values: Vec<_> = (0..=TOP / 2_000)
        .map(|n| {
            (
                n * 2_000,
                if n == 0 {
                    "0".into()
                } else {
                    format!("{},000", n * 2)
                },
            )
        })
        .collect();
    frame.axes(&mut svg, &seconds, true, &values);
    let mut x = 20.0;
    for ((name, way), color) in [WAYS[0], WAYS[1], WAYS[3]].into_iter().zip(LINES) {
        let outcome = Outcome::of(way);
        let mut path = String::new();
        // A point for each pixel is enough.
        for step in 0..=742_u64 {
            let at = LENGTH * step / 742;
            let sum = outcome.admitted.partition_point(|admitted| *admitted <= at) as u64;
            let letter = if step == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{:.1} {:.1}", frame.at(at), frame.level(sum));
        }
        svg.path(
            &path,
            &format!(r#"fill="none" stroke="{color}" stroke-width="2""#),
        );
        svg.rect(x, 70.0, 12.0, 12.0, color);
        svg.note(x + 18.0, 80.0, Anchor::Start, name);
        x += 40.0 + 7.0 * name.len() as f64;
    }
    let most = |at: u64| frame.level(BURST + RATE * at / SECOND);
    let dashed = format!(r#"stroke="{OVER}" stroke-dasharray="5 3""#);
    svg.line(
        [frame.at(0), most(0)],
        [frame.at(LENGTH), most(LENGTH)],
        &dashed,
    );
    svg.rect(x, 75.0, 12.0, 2.0, OVER);
    svg.text(
        x + 18.0,
        80.0,
        12,
        Anchor::Start,
        &format!(r#"fill="{INK}""#),
        "burst + rate · time",
    );
    svg.finish(
        "What four nodes allow: exactly, with leases, and with counts exchanged every second",
    )
}
