//! Verdicts that the service keeps for this client, on one lane: renewed while they are held, given up when they are not.

use crate::wire::{Job, Name};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of so many it is remembered that they are to be given up; more end by themselves.
const MOST_FORGOTTEN: usize = 65_536;
/// So many are given up with one call.
const AT_ONCE: usize = 2_048;

pub(crate) struct Verdicts {
    /// Sets this client and lane apart from all others.
    session: u64,
    next: AtomicU64,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    held: HashSet<u64>,
    /// Not held any more, and the service has not been told. It goes with the next call.
    forgotten: Vec<Name>,
}

impl Verdicts {
    pub(crate) fn new() -> Self {
        Self { session: fastrand::u64(..), next: AtomicU64::new(0), names: Mutex::default() }
    }

    /// A name nobody else gives, for a verdict that is held from now on.
    pub(crate) fn name(&self) -> Name {
        let number = self.next.fetch_add(1, Relaxed);
        self.lock().held.insert(number);
        self.named(number)
    }

    fn named(&self, number: u64) -> Name {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.session.to_be_bytes());
        name[8..].copy_from_slice(&number.to_be_bytes());
        name
    }

    /// It is not held any more, and the service knows.
    pub(crate) fn is_gone(&self, name: &Name) {
        self.lock().held.remove(&number(name));
    }

    /// It is not held any more, and the service is to know.
    pub(crate) fn forget(&self, name: Name) {
        let mut names = self.lock();
        names.held.remove(&number(&name));
        if names.forgotten.len() < MOST_FORGOTTEN {
            names.forgotten.push(name);
        }
    }

    /// Some that are to be given up now.
    pub(crate) fn take_forgotten(&self) -> Vec<Name> {
        let mut names = self.lock();
        let from = names.forgotten.len().saturating_sub(AT_ONCE);
        names.forgotten.split_off(from)
    }

    /// The service was not told after all.
    pub(crate) fn put_back(&self, mut forgotten: Vec<Name>) {
        let mut names = self.lock();
        forgotten.truncate(MOST_FORGOTTEN - names.forgotten.len().min(MOST_FORGOTTEN));
        names.forgotten.append(&mut forgotten);
    }

    pub(crate) fn has_forgotten(&self) -> bool {
        !self.lock().forgotten.is_empty()
    }

    /// What renews all that are held, in pieces.
    pub(crate) fn renewals(&self) -> Vec<Job<'static>> {
        let held: Vec<Name> = self.lock().held.iter().map(|number| self.named(*number)).collect();
        held.chunks(AT_ONCE).map(|piece| Job::Renew(piece.to_vec())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(name: &Name) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&name[8..]);
    u64::from_be_bytes(number)
}
