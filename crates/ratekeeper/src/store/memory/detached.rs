//! What was charged and is settled later, by a receipt: state here until then, or until its time is
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
const MAX_DETACHED: usize = 1 << 18;

/// The bytes of a receipt: the store, the number, until when.
const RECEIPT_BYTES: usize = 24;

pub(super) struct DetachedCharges {
    /// Sets this store apart from any other, the one before a restart included.
    store_id: u64,
    /// When the next one is over, in nanoseconds; nothing is before that.
    earliest: AtomicU64,
    state: Mutex<DetachedState>,
}

#[derive(Default)]
struct DetachedState {
    last: u64,
    charges: HashMap<u64, Charges>,
    /// When each is over, and which.
    expirations: BTreeSet<(u64, u64)>,
}

/// What one verdict charged, ask by ask.
type Charges = Box<[Option<Receipt>]>;

impl DetachedCharges {
    pub(super) fn new() -> Self {
        let store_id = RandomState::new().hash_one(0_u8);
        Self {
            store_id,
            earliest: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
        }
    }

    /// Whether something is over that has not been taken out.
    #[inline]
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        now.as_unix_nanos() >= self.earliest.load(Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, DetachedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_earliest(&self, state: &DetachedState) {
        self.earliest.store(
            state
                .expirations
                .first()
                .map_or(u64::MAX, |(until, _)| *until),
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
        if detached.has_expired(now) {
            self.expire(now);
        }
        // What another store charged stays with that one.
        let is_own = verdict.table == Some(self.inner.table.id);
        let until = until.as_unix_nanos();
        let number = {
            let mut state = detached.lock();
            if state.charges.len() >= MAX_DETACHED {
                drop(state);
                let nothing: Vec<u64> = verdict.results().map(|_| 0).collect();
                self.settle_now(verdict, &nothing, now);
                return Err(DetachError::TooMany);
            }
            state.last += 1;
            let number = state.last;
            let charges = verdict
                .results()
                .map(|status| status.charged.filter(|_| is_own));
            state.charges.insert(number, charges.collect());
            state.expirations.insert((until, number));
            detached.set_earliest(&state);
            number
        };
        // From here on they are out until that.
        if is_own {
            verdict.permits = None;
        }
        Ok([detached.store_id, number, until]
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
        let words =
            <[u8; RECEIPT_BYTES]>::try_from(receipt).map_err(|_| SettleError::InvalidReceipt)?;
        let word =
            |at: usize| u64::from_be_bytes(core::array::from_fn(|byte| words[8 * at + byte]));
        let (store_id, number, until) = (word(0), word(1), word(2));
        let detached = &self.inner.detached;
        if store_id != detached.store_id {
            return Err(SettleError::UnknownCharge);
        }
        if now.as_unix_nanos() >= until {
            return Err(SettleError::Expired);
        }
        let charges = {
            let mut state = detached.lock();
            let charges = state
                .charges
                .remove(&number)
                .ok_or(SettleError::AlreadySettled)?;
            state.expirations.remove(&(until, number));
            detached.set_earliest(&state);
            charges
        };
        self.settle_charges(charges.iter().copied(), actual, || now);
        self.release_permits(&charges);
        Ok(())
    }

    /// Takes out what is over: its permits go back.
    #[cold]
    pub(super) fn expire(&self, now: Timestamp) {
        let detached = &self.inner.detached;
        let mut expired: Vec<Charges> = Vec::new();
        {
            let mut state = detached.lock();
            while let Some((until, number)) = state
                .expirations
                .first()
                .copied()
                .filter(|(until, _)| *until <= now.as_unix_nanos())
            {
                state.expirations.remove(&(until, number));
                expired.extend(state.charges.remove(&number));
            }
            detached.set_earliest(&state);
        }
        expired
            .iter()
            .for_each(|charges| self.release_permits(charges));
    }

    fn release_permits(&self, charges: &[Option<Receipt>]) {
        for receipt in charges.iter().flatten().filter(|receipt| receipt.permit) {
            self.inner.table.release_permits(receipt.hash, receipt.cost);
        }
    }
}
