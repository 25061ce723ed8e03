//! The eviction floor of a limit: an upper bound on what evicted keys had used. Keys that are not
//! in the table start from it.

use super::byte_budget::ByteBudget;
use super::judge::{CallRequest, CallResult};
use super::large_state::LargeState;
use super::limit_version::{EntryState, LimitVersion};
use crate::algorithm::state_op::{MAX_STATE_WORDS, join_word};
use crate::generation::Carry;
use crate::limit::Kind;
use crate::sync::{AtomicU64, Ordering};
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many parts a limit's floor is divided into, by the hash of the key: an evicted key raises
/// only its own part, so that the others start from less.
#[cfg(not(ratekeeper_loom))]
const FLOOR_PARTS: usize = 64;
#[cfg(ratekeeper_loom)]
const FLOOR_PARTS: usize = 1;

/// What evicted keys had used, at most, by part.
pub(super) enum EvictionFloor {
    Words(Box<[AtomicU64]>),
    Large(Box<[Mutex<Option<LargeState>>]>),
    /// As `Large`, without the times of logs, for which there are no bytes.
    WithoutTimes(Box<[Mutex<Option<LargeState>>]>),
}

impl EvictionFloor {
    fn large(&self) -> Option<&[Mutex<Option<LargeState>>]> {
        match self {
            Self::Words(_) => None,
            Self::Large(states) | Self::WithoutTimes(states) => Some(states),
        }
    }
}

impl LimitVersion {
    /// Returns the state that a key starts from when it is not in the table: the floor of its part.
    pub(crate) fn initial_state(&self, hash: u64) -> EntryState {
        match self.floor.get() {
            None => self.fresh(),
            Some(EvictionFloor::Words(words)) => {
                EntryState::Word(part(words, hash).load(Ordering::Acquire))
            }
            Some(EvictionFloor::Large(states) | EvictionFloor::WithoutTimes(states)) => {
                lock(part(states, hash))
                    .clone()
                    .map_or_else(|| self.fresh(), EntryState::Large)
            }
        }
    }

    /// Denies a key that is not in the table if the floor alone does, without copying a long log.
    pub(crate) fn denied_by_floor(&self, hash: u64, request: &CallRequest) -> Option<CallResult> {
        let states = self.floor.get()?.large()?;
        let mut floor = lock(part(states, hash));
        let request = CallRequest {
            write: false,
            ..*request
        };
        let call = self.judge_large(floor.as_mut()?, &request, &ByteBudget::unlimited());
        Some(call).filter(|call| call.decision.is_denied())
    }

    /// Creates a floor of large states. A part of a log's floor is as long as the log.
    fn new_large_floor(&self, budget: &ByteBudget) -> EvictionFloor {
        let parts = |many: u64| (0..many).map(|_| Mutex::new(None)).collect();
        let words = if self.normal.kind == Kind::Log {
            self.normal.capacity
        } else {
            MAX_STATE_WORDS as u64
        };
        match budget.reserve_floors(words.max(1).saturating_mul(8), FLOOR_PARTS as u64) {
            0 if self.normal.kind == Kind::Log => {
                EvictionFloor::WithoutTimes(parts(FLOOR_PARTS as u64))
            }
            many => EvictionFloor::Large(parts(many.max(1))),
        }
    }

    /// Merges the state of an evicted key into the floor of its part.
    pub(super) fn merge_into_floor(&self, hash: u64, state: &EntryState, budget: &ByteBudget) {
        let floor = self.floor.get_or_init(|| {
            Box::new(if self.fits_a_word() {
                EvictionFloor::Words((0..FLOOR_PARTS).map(|_| AtomicU64::new(0)).collect())
            } else {
                self.new_large_floor(budget)
            })
        });
        match (floor, state) {
            (EvictionFloor::Words(words), EntryState::Word(word)) => {
                self.merge_word_into_floor(part(words, hash), *word);
            }
            (EvictionFloor::Large(states), EntryState::Large(state)) => {
                let mut floor = lock(part(states, hash));
                let before = floor.as_ref().map_or(0, LargeState::bytes);
                match &mut *floor {
                    Some(floor) => floor.join(&self.normal, state),
                    none => *none = Some(state.clone()),
                }
                budget.count(before, floor.as_ref().map_or(0, LargeState::bytes));
            }
            (EvictionFloor::WithoutTimes(states), EntryState::Large(state)) => {
                let mut floor = lock(part(states, hash));
                match &mut *floor {
                    Some(floor) => floor.join(&self.normal, state),
                    none => *none = Some(state.without_times(&self.normal)),
                }
            }
            _ => {}
        }
    }

    fn merge_word_into_floor(&self, floor: &AtomicU64, word: u64) {
        let mut current = floor.load(Ordering::Acquire);
        loop {
            let joined = if self.normal.is_windowed() {
                join_word(&self.normal, current, word)
            } else {
                current.max(word)
            };
            if joined == current {
                return;
            }
            match floor.compare_exchange_weak(current, joined, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => current = now,
            }
        }
    }

    /// Takes over the floor of the previous version.
    pub(super) fn inherit_floor(&self, before: &Self, budget: &ByteBudget) {
        let Some(floor) = before.floor.get() else {
            return;
        };
        if self.carry == Carry::Reset {
            return;
        }
        // One part may correspond to several parts of the other floor: every key finds it in its
        // own part.
        for at in 0..FLOOR_PARTS as u64 {
            let state = match floor {
                EvictionFloor::Words(words) => match part(words, at).load(Ordering::Acquire) {
                    0 => continue,
                    word => EntryState::Word(word),
                },
                EvictionFloor::Large(states) | EvictionFloor::WithoutTimes(states) => {
                    match &*lock(part(states, at)) {
                        None => continue,
                        Some(state) => EntryState::Large(state.clone()),
                    }
                }
            };
            self.merge_into_floor(at, &self.convert_from_previous(before, &state), budget);
        }
    }
}

/// Returns the part of a floor that belongs to a key.
fn part<T>(floor: &[T], hash: u64) -> &T {
    &floor[hash as usize % FLOOR_PARTS % floor.len()]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
