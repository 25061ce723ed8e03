//! The limits that clients name: one for each name and algorithm, saying what the latest of them said.

use crate::store::AnyStore;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use tollgate::{Algorithm, Clock, Limit, LimitHandle, OnFailure, Store};
use tollgate_remote::wire::{LimitLine, Refusal, Rule};

/// Longer than any name of a policy.
const LONGEST_NAME: usize = 1_024;
/// Longer than any limit that says something.
const LONGEST_TEXT: usize = 128;

pub(super) struct Limits {
    /// So many limits, and changes of limits. Each is remembered for as long as the server runs.
    most: usize,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    used: usize,
    named: HashMap<Box<str>, Vec<Entry>>,
}

struct Entry {
    says: Said,
    /// As it came.
    text: Box<str>,
    since: u64,
    on_failure: OnFailure,
    handle: LimitHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Rate(Limit),
    InFlight(u64),
}

impl Said {
    fn read(rule: Rule<'_>) -> Result<Self, Refusal> {
        match rule {
            Rule::Rate(text) if text.len() <= LONGEST_TEXT => {
                text.parse().map(Self::Rate).map_err(|_| Refusal::BadLimit)
            }
            Rule::Rate(_) => Err(Refusal::BadLimit),
            Rule::InFlight(most) => Ok(Self::InFlight(most)),
        }
    }

    /// What sets limits of one name apart.
    fn sort(&self) -> Option<Algorithm> {
        match self {
            Self::Rate(limit) => Some(limit.judged_by()),
            Self::InFlight(_) => None,
        }
    }
}

impl Entry {
    /// Whether a client that says this says nothing new.
    fn knows(&self, line: &LimitLine<'_>) -> bool {
        let same = match (line.rule, self.says) {
            (Rule::Rate(text), Said::Rate(_)) => *self.text == *text,
            (Rule::InFlight(most), Said::InFlight(known)) => most == known,
            _ => false,
        };
        same && self.on_failure == line.on_failure && line.since <= self.since
    }
}

impl Limits {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: RwLock::default() }
    }

    /// The limit that a client means, which says from now on what it says if it is the latest to say so.
    pub(super) fn handle<C: Clock>(&self, store: &AnyStore<C>, line: &LimitLine<'_>) -> Result<LimitHandle, Refusal> {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let entry = known.named.get(line.name).and_then(|named| named.iter().find(|entry| entry.knows(line)));
            if let Some(entry) = entry {
                return Ok(entry.handle.clone());
            }
        }
        self.learn(store, line)
    }

    fn learn<C: Clock>(&self, store: &AnyStore<C>, line: &LimitLine<'_>) -> Result<LimitHandle, Refusal> {
        if line.name.len() > LONGEST_NAME {
            return Err(Refusal::BadLimit);
        }
        let says = Said::read(line.rule)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { used, named } = &mut *known;
        let entry = named.get_mut(line.name);
        let entry = entry.and_then(|named| named.iter_mut().find(|entry| entry.says.sort() == says.sort()));
        let is_new = entry.as_ref().is_none_or(|entry| line.since > entry.since && entry.says != says);
        if is_new && *used >= self.most {
            return Err(Refusal::TooManyLimits);
        }
        *used += usize::from(is_new);
        let text = match line.rule {
            Rule::Rate(text) => text.into(),
            Rule::InFlight(_) => Box::default(),
        };
        let Some(entry) = entry else {
            // Apart from the service's own, and known to its other nodes by this.
            let name = format!("remote {}", line.name);
            let handle = match says {
                Said::Rate(limit) => store.limit(&name, limit),
                Said::InFlight(most) => store.concurrency(&name, most),
            };
            let handle = handle.map_err(|_| Refusal::TooManyLimits)?;
            store.on_failure(&handle, line.on_failure);
            let (since, on_failure) = (line.since, line.on_failure);
            let added = Entry { says, text, since, on_failure, handle: handle.clone() };
            named.entry(line.name.into()).or_default().push(added);
            return Ok(handle);
        };
        // Who has not heard yet of what others say is judged by it all the same.
        if line.since > entry.since {
            match says {
                _ if says == entry.says => {}
                Said::Rate(limit) => store.set_limit(&entry.handle, limit),
                Said::InFlight(most) => store.set_concurrency(&entry.handle, most),
            }
            if entry.on_failure != line.on_failure {
                store.on_failure(&entry.handle, line.on_failure);
            }
            (entry.says, entry.text, entry.since, entry.on_failure) = (says, text, line.since, line.on_failure);
        }
        Ok(entry.handle.clone())
    }
}
