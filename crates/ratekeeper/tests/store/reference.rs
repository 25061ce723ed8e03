//! The reference store: every limit and key has a model of its own; a call is judged on all of
//! them, then charged to all or to none.

use ratekeeper::{Limit, Mode, Outcome};
use ratekeeper_testkit::{DecisionInfo, Model, model::Call};
use std::collections::BTreeMap;
use std::time::Duration;

/// An ask to the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReferenceAsk {
    pub(crate) limit: usize,
    pub(crate) key: u64,
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) mode: Mode,
    pub(crate) max_wait: Duration,
}

impl ReferenceAsk {
    fn call(&self, cost: u64) -> Call {
        Call {
            cost,
            reserve: self.reserve,
            max_wait: self.max_wait.as_nanos() as u64,
        }
    }
}

/// The reference's result of a call.
#[derive(Clone, Debug)]
pub(crate) struct ReferenceResult {
    pub(crate) allowed: bool,
    pub(crate) never: bool,
    /// Any of these may be the binding ask; more than one when they tie, or are merged into one.
    pub(crate) binding: Vec<usize>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) delay: Duration,
    /// The answer to each ask.
    pub(crate) answer: Vec<DecisionInfo>,
}

pub(crate) struct Reference {
    limits: Vec<Limit>,
    subjects: BTreeMap<(usize, u64), Model>,
}

impl Reference {
    pub(crate) fn new(limits: &[Limit]) -> Self {
        Self {
            limits: limits.to_vec(),
            subjects: BTreeMap::new(),
        }
    }

    /// Whether the specification leaves the result of a call open; see the model.
    pub(crate) fn is_silent_on(&self, asks: &[ReferenceAsk], now: u64) -> bool {
        asks.iter().filter(|ask| ask.cost == 0).any(|ask| {
            let model = self.subjects.get(&(ask.limit, ask.key));
            model.is_some_and(|model| model.is_silent_on_call(now, ask.call(0)))
        })
    }

    pub(crate) fn decide(&mut self, asks: &[ReferenceAsk], now: u64) -> ReferenceResult {
        // Asks on the same limit and key are merged, and their costs add.
        let mut merged: BTreeMap<(usize, u64), (ReferenceAsk, u64)> = BTreeMap::new();
        for ask in asks {
            let (first, cost) = merged.entry((ask.limit, ask.key)).or_insert((*ask, 0));
            assert_eq!(
                ReferenceAsk { cost: 0, ..*first },
                ReferenceAsk { cost: 0, ..*ask },
                "one limit and key, two ways to ask"
            );
            *cost = cost.saturating_add(ask.cost);
        }
        for (limit, key) in merged.keys() {
            self.subjects
                .entry((*limit, *key))
                .or_insert_with(|| Model::new(self.limits[*limit]));
        }
        // All judged on the same state.
        let before: BTreeMap<_, _> = merged
            .iter()
            .map(|(at, (ask, cost))| (*at, self.subjects[at].look(now, ask.call(*cost))))
            .collect();
        let enforced = |at: &(usize, u64)| merged[at].0.mode != Mode::Shadow;
        let stops: Vec<_> = before
            .iter()
            .filter(|(at, answer)| enforced(at) && answer.outcome != Outcome::Allowed)
            .collect();
        let allowed = stops.is_empty();
        let never = stops
            .iter()
            .any(|(_, answer)| answer.outcome == Outcome::Never);
        let longest = stops
            .iter()
            .filter_map(|(_, answer)| answer.retry_after)
            .max();
        let binds = |answer: &DecisionInfo| match never {
            true => answer.outcome == Outcome::Never,
            false => answer.retry_after == longest,
        };
        let binding: Vec<_> = (0..asks.len())
            .filter(|i| {
                stops
                    .iter()
                    .any(|(at, answer)| **at == (asks[*i].limit, asks[*i].key) && binds(answer))
            })
            .collect();
        let mut after = before.clone();
        if allowed {
            for (at, (ask, cost)) in &merged {
                if ask.mode != Mode::Peek && before[at].outcome == Outcome::Allowed {
                    after.insert(
                        *at,
                        self.subjects
                            .get_mut(at)
                            .expect("made")
                            .call(now, ask.call(*cost)),
                    );
                }
            }
        }
        let delays = before
            .iter()
            .filter(|(at, _)| enforced(at))
            .map(|(_, answer)| answer.delay);
        ReferenceResult {
            allowed,
            never,
            binding,
            retry_after: if never { None } else { longest },
            delay: if allowed {
                delays.max().unwrap_or_default()
            } else {
                Duration::ZERO
            },
            answer: asks
                .iter()
                .map(|ask| after[&(ask.limit, ask.key)])
                .collect(),
        }
    }

    pub(crate) fn keep(&mut self, limit: usize, next: Limit, now: u64) {
        self.limits[limit] = next;
        for (_, model) in self
            .subjects
            .iter_mut()
            .filter(|((which, _), _)| *which == limit)
        {
            model.keep(next, now);
        }
    }
}
