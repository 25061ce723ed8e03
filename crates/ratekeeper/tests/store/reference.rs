//! The reference: every limit and key has a model of its own; a call is judged on all of them, then
//! charged to all or to none.

use super::common::model::{Call, Model, Told};
use ratekeeper::{Limit, Mode, Outcome};
use std::collections::BTreeMap;
use std::time::Duration;

/// An ask as the reference sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) limit: usize,
    pub(crate) key: u64,
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) mode: Mode,
    pub(crate) max_wait: Duration,
}

impl Asked {
    fn call(&self, cost: u64) -> Call {
        Call {
            cost,
            reserve: self.reserve,
            max_wait: self.max_wait.as_nanos() as u64,
        }
    }
}

/// What the reference says of a call.
#[derive(Clone, Debug)]
pub(crate) struct Says {
    pub(crate) allowed: bool,
    pub(crate) never: bool,
    /// Any of these may be named; more than one when they tie, or are one ask merged.
    pub(crate) binding: Vec<usize>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) delay: Duration,
    /// What each ask is told.
    pub(crate) told: Vec<Told>,
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

    /// Whether nobody says what becomes of a call; see the model.
    pub(crate) fn is_silent_on(&self, asks: &[Asked], now: u64) -> bool {
        asks.iter().filter(|ask| ask.cost == 0).any(|ask| {
            let model = self.subjects.get(&(ask.limit, ask.key));
            model.is_some_and(|model| model.is_silent_on_call(now, ask.call(0)))
        })
    }

    pub(crate) fn decide(&mut self, asks: &[Asked], now: u64) -> Says {
        // Asks on the same limit and key are one, and their costs add.
        let mut merged: BTreeMap<(usize, u64), (Asked, u64)> = BTreeMap::new();
        for ask in asks {
            let (first, cost) = merged.entry((ask.limit, ask.key)).or_insert((*ask, 0));
            assert_eq!(
                Asked { cost: 0, ..*first },
                Asked { cost: 0, ..*ask },
                "one limit and key, two ways to ask"
            );
            *cost = cost.saturating_add(ask.cost);
        }
        for (limit, key) in merged.keys() {
            self.subjects
                .entry((*limit, *key))
                .or_insert_with(|| Model::new(self.limits[*limit]));
        }
        // All on the same state before.
        let before: BTreeMap<_, _> = merged
            .iter()
            .map(|(at, (ask, cost))| (*at, self.subjects[at].look(now, ask.call(*cost))))
            .collect();
        let enforced = |at: &(usize, u64)| merged[at].0.mode != Mode::Shadow;
        let stops: Vec<_> = before
            .iter()
            .filter(|(at, told)| enforced(at) && told.outcome != Outcome::Allowed)
            .collect();
        let allowed = stops.is_empty();
        let never = stops.iter().any(|(_, told)| told.outcome == Outcome::Never);
        let longest = stops.iter().filter_map(|(_, told)| told.retry_after).max();
        let binds = |told: &Told| match never {
            true => told.outcome == Outcome::Never,
            false => told.retry_after == longest,
        };
        let binding: Vec<_> = (0..asks.len())
            .filter(|i| {
                stops
                    .iter()
                    .any(|(at, told)| **at == (asks[*i].limit, asks[*i].key) && binds(told))
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
            .map(|(_, told)| told.delay);
        Says {
            allowed,
            never,
            binding,
            retry_after: if never { None } else { longest },
            delay: if allowed {
                delays.max().unwrap_or_default()
            } else {
                Duration::ZERO
            },
            told: asks
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
