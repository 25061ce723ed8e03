//! What was charged and is settled later, by a receipt: kept here until then, or until its time is
//! over.
//!
//! A receipt names the store and a number, and nothing of what was charged leaves the process:
//! settling takes it out, so that it is done once. Permits whose time is over go back with the next
//! decision.

use super::super::{DetachError, Receipt, SettleError, Verdict};
use super::MemoryStore;
use crate::clock::{Clock, Timestamp};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::boxed::Box;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// So many may be waiting to be settled: about 50 MB.
const MOST: usize = 1 << 18;

/// The bytes of a receipt: the store, the number, until when.
const BYTES: usize = 24;

pub(super) struct Detached {
    /// Sets this store apart from any other, the one before a restart included.
    store: u64,
    /// When the next one is over, in nanoseconds; nothing is before that.
    earliest: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    last: u64,
    charges: HashMap<u64, Charges>,
    /// When each is over, and which.
    ends: BTreeSet<(u64, u64)>,
}

/// What one verdict charged, ask by ask.
type Charges = Box<[Option<Receipt>]>;

impl Detached {
    pub(super) fn new() -> Self {
        let store = RandomState::new().hash_one(0_u8);
        Self {
            store,
            earliest: AtomicU64::new(u64::MAX),
            kept: Mutex::default(),
        }
    }

    /// Whether something is over that has not been taken out.
    #[inline]
    pub(super) fn is_overdue(&self, now: Timestamp) -> bool {
        now.as_unix_nanos() >= self.earliest.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_earliest(&self, kept: &Kept) {
        self.earliest.store(
            kept.ends.first().map_or(u64::MAX, |(until, _)| *until),
            Relaxed,
        );
    }
}

/// # Settling later
impl<C: Clock> MemoryStore<C> {
    /// Keeps a verdict until it is settled by its receipt, at an instant of your choice; see
    /// [`Store::detach`](crate::Store::detach).
    pub fn detach_now(
        &self,
        mut verdict: Verdict,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<u8>, DetachError> {
        let detached = &self.inner.detached;
        if detached.is_overdue(now) {
            self.end_overdue(now);
        }
        // What another store charged stays with that one.
        let is_own = verdict.table == Some(self.inner.table.id);
        let until = until.as_unix_nanos();
        let number = {
            let mut kept = detached.lock();
            if kept.charges.len() >= MOST {
                drop(kept);
                let nothing: Vec<u64> = verdict.statuses().map(|_| 0).collect();
                self.settle_now(verdict, &nothing, now);
                return Err(DetachError::TooMany);
            }
            kept.last += 1;
            let number = kept.last;
            let charges = verdict
                .statuses()
                .map(|status| status.charged.filter(|_| is_own));
            kept.charges.insert(number, charges.collect());
            kept.ends.insert((until, number));
            detached.set_earliest(&kept);
            number
        };
        // From here on they are out until that.
        if is_own {
            verdict.permits = None;
        }
        Ok([detached.store, number, until]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect())
    }

    /// Settles what was detached, at an instant of your choice; see
    /// [`Store::settle_detached`](crate::Store::settle_detached).
    pub fn settle_detached_now(
        &self,
        receipt: &[u8],
        actual: &[u64],
        now: Timestamp,
    ) -> Result<(), SettleError> {
        let words = <[u8; BYTES]>::try_from(receipt).map_err(|_| SettleError::InvalidReceipt)?;
        let word =
            |at: usize| u64::from_be_bytes(core::array::from_fn(|byte| words[8 * at + byte]));
        let (store, number, until) = (word(0), word(1), word(2));
        let detached = &self.inner.detached;
        if store != detached.store {
            return Err(SettleError::UnknownCharge);
        }
        if now.as_unix_nanos() >= until {
            return Err(SettleError::Expired);
        }
        let charges = {
            let mut kept = detached.lock();
            let charges = kept
                .charges
                .remove(&number)
                .ok_or(SettleError::AlreadySettled)?;
            kept.ends.remove(&(until, number));
            detached.set_earliest(&kept);
            charges
        };
        self.settle_charges(charges.iter().copied(), actual, || now);
        self.land(&charges);
        Ok(())
    }

    /// Takes out what is over: its permits go back.
    #[cold]
    pub(super) fn end_overdue(&self, now: Timestamp) {
        let detached = &self.inner.detached;
        let mut over: Vec<Charges> = Vec::new();
        {
            let mut kept = detached.lock();
            while let Some((until, number)) = kept
                .ends
                .first()
                .copied()
                .filter(|(until, _)| *until <= now.as_unix_nanos())
            {
                kept.ends.remove(&(until, number));
                over.extend(kept.charges.remove(&number));
            }
            detached.set_earliest(&kept);
        }
        over.iter().for_each(|charges| self.land(charges));
    }

    fn land(&self, charges: &[Option<Receipt>]) {
        for receipt in charges.iter().flatten().filter(|receipt| receipt.permit) {
            self.inner.table.land(receipt.hash, receipt.cost);
        }
    }
}
