//! Who runs: a lock that can be made in a constant and tried. With std a waiting thread sleeps, without it spins.

#[cfg(all(feature = "std", not(tollgate_loom)))]
pub(super) use with_std::Turn;
#[cfg(not(all(feature = "std", not(tollgate_loom))))]
pub(super) use without_std::Turn;

#[cfg(all(feature = "std", not(tollgate_loom)))]
mod with_std {
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    pub(crate) type Taken<'a> = MutexGuard<'a, ()>;

    pub(crate) struct Turn(Mutex<()>);

    impl Turn {
        pub(crate) const fn new() -> Self {
            Self(Mutex::new(()))
        }

        pub(crate) fn take(&self) -> Taken<'_> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
            match self.0.try_lock() {
                Ok(turn) => Some(turn),
                Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}

#[cfg(not(all(feature = "std", not(tollgate_loom))))]
mod without_std {
    use crate::sync::{AtomicU32, Ordering, relax};

    pub(crate) struct Turn(AtomicU32);

    impl Turn {
        #[cfg(not(tollgate_loom))]
        pub(crate) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        #[cfg(tollgate_loom)]
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(crate) fn take(&self) -> Taken<'_> {
            let mut round = 0_u32;
            loop {
                if let Some(turn) = self.try_take() {
                    return turn;
                }
                relax(round);
                round = round.saturating_add(1);
            }
        }

        pub(crate) fn try_take(&self) -> Option<Taken<'_>> {
            let free = self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            free.is_ok().then(|| Taken(&self.0))
        }
    }

    pub(crate) struct Taken<'a>(&'a AtomicU32);

    impl Drop for Taken<'_> {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Release);
        }
    }
}
