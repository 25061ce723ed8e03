//! Detached verdicts: charges that are settled later by a receipt, stored here until then or until
//! they expire.
//!
//! A receipt names the store and a number; nothing of what was charged leaves the process. Settling
//! removes the charges, so that it happens once. The permits of expired ones are released with the
//! next decision.

use super::super::{DetachError, Receipt, SettleError, Verdict};
use super::MemoryStore;
use crate::clock::{Clock, Timestamp};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::boxed::Box;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// How many may wait to be settled: about 50 MB.
const MAX_DETACHED: usize = 1 << 18;

/// The bytes of a receipt: the store id, the number, the expiration time.
const RECEIPT_BYTES: usize = 24;

/// Charges of detached verdicts, until they are settled or expire.
pub(super) struct DetachedCharges {
    /// Identifies this store among all others, including the one before a restart.
    store_id: u64,
    /// When the next one expires, in nanoseconds; none expires before that.
    earliest: AtomicU64,
    state: Mutex<DetachedState>,
}

/// The charges by number, and when they expire.
#[derive(Default)]
struct DetachedState {
    last: u64,
    charges: HashMap<u64, Charges>,
    /// When each expires, and its number.
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

    /// Whether something has expired and was not removed yet.
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
    /// Detaches a verdict, to be settled by its receipt, at an instant of your choice; see
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
        // Charges of another store stay there.
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
                .map(|result| result.charged.filter(|_| is_own));
            state.charges.insert(number, charges.collect());
            state.expirations.insert((until, number));
            detached.set_earliest(&state);
            number
        };
        // From here on the permits are held until the receipt is settled or expires.
        if is_own {
            verdict.permits = None;
        }
        Ok([detached.store_id, number, until]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect())
    }

    /// Settles a detached verdict, at an instant of your choice; see
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

    /// Removes what has expired and releases its permits.
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
