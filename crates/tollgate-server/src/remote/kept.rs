//! Verdicts that clients hold: kept until they are settled, given up, or not renewed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tollgate::{Instant, Verdict};
use tollgate_remote::wire::{Name, VERDICTS_LIVE};

/// So many are kept, about 80 MB. A client holds one for each request that it is busy with.
const MOST: usize = 65_536;

#[derive(Default)]
pub(super) struct Kept {
    verdicts: Mutex<Verdicts>,
}

#[derive(Default)]
struct Verdicts {
    named: HashMap<Name, (Box<Verdict>, Instant)>,
    /// When each is over unless it is renewed, the earliest first: all live for as long.
    ends: VecDeque<(Instant, Name)>,
}

impl Kept {
    /// Keeps it, in the place of one of that name. Gives it back if there is no room.
    pub(super) fn keep(&self, name: Name, verdict: Box<Verdict>, now: Instant) -> Result<(), Box<Verdict>> {
        let mut verdicts = self.lock();
        if verdicts.named.len() >= MOST {
            return Err(verdict);
        }
        let end = now + VERDICTS_LIVE;
        let before = verdicts.named.insert(name, (verdict, end));
        verdicts.ends.push_back((end, name));
        drop(verdicts);
        // A call that came twice: what it took the first time goes back.
        drop(before);
        Ok(())
    }

    pub(super) fn take(&self, name: &Name) -> Option<Box<Verdict>> {
        self.lock().named.remove(name).map(|(verdict, _)| verdict)
    }

    pub(super) fn renew(&self, names: &[Name], now: Instant) {
        let end = now + VERDICTS_LIVE;
        let mut verdicts = self.lock();
        let Verdicts { named, ends } = &mut *verdicts;
        for name in names {
            if let Some((_, until)) = named.get_mut(name) {
                *until = end;
                ends.push_back((end, *name));
            }
        }
    }

    /// Drops those that nobody renewed: their permits go back.
    pub(super) fn end_overdue(&self, now: Instant) {
        let mut over = Vec::new();
        let mut verdicts = self.lock();
        let Verdicts { named, ends } = &mut *verdicts;
        while let Some((_, name)) = ends.front().copied().filter(|(end, _)| *end <= now) {
            ends.pop_front();
            if named.get(&name).is_some_and(|(_, until)| *until <= now) {
                over.extend(named.remove(&name));
            }
        }
        drop(verdicts);
        drop(over);
    }

    fn lock(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
