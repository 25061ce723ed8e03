//! [`ConstMutex`]: a mutex without data that can be created in a constant. With std a waiting
//! thread sleeps, without std it spins.

#[cfg(all(feature = "std", not(ratekeeper_loom)))]
pub(super) use with_std::ConstMutex;
#[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
pub(super) use without_std::ConstMutex;

#[cfg(all(feature = "std", not(ratekeeper_loom)))]
mod with_std {
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    pub(crate) type Guard<'a> = MutexGuard<'a, ()>;

    pub(crate) struct ConstMutex(Mutex<()>);

    impl ConstMutex {
        pub(crate) const fn new() -> Self {
            Self(Mutex::new(()))
        }

        pub(crate) fn lock(&self) -> Guard<'_> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}

#[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
mod without_std {
    use crate::sync::{AtomicU32, Ordering, relax};

    pub(crate) struct ConstMutex(AtomicU32);

    impl ConstMutex {
        #[cfg(not(ratekeeper_loom))]
        pub(crate) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        #[cfg(ratekeeper_loom)]
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(crate) fn lock(&self) -> Guard<'_> {
            let mut round = 0_u32;
            loop {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                relax(round);
                round = round.saturating_add(1);
            }
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
            let free = self
                .0
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            free.is_ok().then(|| Guard(&self.0))
        }
    }

    pub(crate) struct Guard<'a>(&'a AtomicU32);

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Release);
        }
    }
}
