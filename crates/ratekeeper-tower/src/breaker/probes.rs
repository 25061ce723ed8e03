//! Probe slots of a half-open breaker: which are taken, until when, and which probes have
//! succeeded.

use super::packed_state::{MS_BITS, MS_MAX};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A slot is a word: its generation (16 bits), and until when it is taken, in milliseconds (40).
///
/// Slots of another generation count as free, so they need not be cleared. To change a slot, a
/// thread reads it first and then the breaker's state: if that still has the thread's generation,
/// the slot's value is not of a later one.
pub(super) struct Probes(Box<[AtomicU64]>);

const FREE: u64 = 0;
const SUCCEEDED: u64 = MS_MAX;

/// A taken slot: its index and its value, so that only its holder frees it.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    index: usize,
    word: u64,
}

pub(super) enum ProbeAttempt {
    Slot(Slot),
    /// All slots are taken or have succeeded; the first taken one is overdue at this time.
    AllTaken {
        soonest: u64,
    },
    /// All probes have succeeded.
    AllSucceeded,
    /// The breaker has a later generation.
    Stale,
}

impl Probes {
    pub(super) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(FREE)).collect())
    }

    /// Takes a slot that is free or overdue, until `until`.
    pub(super) fn take(
        &self,
        generation: u16,
        now: u64,
        until: u64,
        is_current: impl Fn() -> bool,
    ) -> ProbeAttempt {
        let taken = pack(generation, until.clamp(FREE + 1, SUCCEEDED - 1));
        let mut soonest = SUCCEEDED;
        for (index, slot) in self.0.iter().enumerate() {
            let mut word = slot.load(SeqCst);
            loop {
                let (slot_generation, taken_until) = unpack(word);
                let taken_until = if slot_generation == generation {
                    taken_until
                } else {
                    FREE
                };
                if taken_until > now {
                    soonest = soonest.min(taken_until);
                    break;
                }
                if !is_current() {
                    return ProbeAttempt::Stale;
                }
                match slot.compare_exchange(word, taken, SeqCst, SeqCst) {
                    Ok(_) => return ProbeAttempt::Slot(Slot { index, word: taken }),
                    Err(seen) => word = seen,
                }
            }
        }
        if soonest == SUCCEEDED {
            ProbeAttempt::AllSucceeded
        } else {
            ProbeAttempt::AllTaken { soonest }
        }
    }

    /// Frees a slot, unless it was overdue and has a new holder.
    pub(super) fn free(&self, slot: Slot) {
        let (generation, _) = unpack(slot.word);
        let _ =
            self.0[slot.index].compare_exchange(slot.word, pack(generation, FREE), SeqCst, SeqCst);
    }

    /// Records a success, also of an overdue probe: otherwise calls that take longer than the probe
    /// timeout could never close the breaker. Returns true if it was the last one missing.
    pub(super) fn succeed(&self, slot: Slot, is_current: impl Fn() -> bool) -> bool {
        let (generation, _) = unpack(slot.word);
        let succeeded = pack(generation, SUCCEEDED);
        let noted = |_| is_current().then_some(succeeded);
        self.0[slot.index]
            .fetch_update(SeqCst, SeqCst, noted)
            .is_ok()
            && self.0.iter().all(|slot| slot.load(SeqCst) == succeeded)
    }
}

fn pack(generation: u16, until: u64) -> u64 {
    u64::from(generation) << MS_BITS | until
}

fn unpack(word: u64) -> (u16, u64) {
    ((word >> MS_BITS) as u16, word & MS_MAX)
}
