//! Atomics, a lock and a once-cell, so that the same code runs on std, without std and under loom.

#[cfg(not(ratekeeper_loom))]
mod real {
    pub(crate) use alloc::sync::Arc;
    #[cfg(feature = "std")]
    pub(crate) use core::sync::atomic::fence;
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use once_cell::race::OnceBox;

    /// Spins or yields until another thread has finished a step of a few instructions.
    pub(crate) fn relax(round: u32) {
        #[cfg(feature = "std")]
        if round > 16 {
            // The other thread may have been preempted in the middle of it.
            std::thread::yield_now();
            return;
        }
        let _ = round;
        core::hint::spin_loop();
    }

    /// Backs off after a lost compare-and-swap: leaves the word to the other thread for a while.
    ///
    /// Two threads that alternate fetch the cache line from each other for every decision. A thread
    /// that collides and backs off lets the other decide many times on a line it owns, and gets the
    /// same in return: twice the decisions in all. Only a collision costs this, a microsecond or
    /// two.
    pub(crate) fn back_off() {
        const SPINS: u32 = 48;
        for _ in 0..SPINS {
            core::hint::spin_loop();
        }
    }
}

#[cfg(ratekeeper_loom)]
mod real {
    pub(crate) use loom::sync::Arc;
    #[cfg(feature = "std")]
    pub(crate) use loom::sync::atomic::fence;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub(crate) fn relax(_round: u32) {
        loom::thread::yield_now();
    }

    pub(crate) fn back_off() {
        loom::thread::yield_now();
    }

    /// `once_cell::race::OnceBox` for loom: set once, then shared for as long as the owner lives.
    pub(crate) struct OnceBox<T: 'static> {
        value: loom::sync::Mutex<Option<&'static T>>,
    }

    impl<T> OnceBox<T> {
        pub(crate) fn new() -> Self {
            Self {
                value: loom::sync::Mutex::new(None),
            }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            *self.value.lock().unwrap()
        }

        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> alloc::boxed::Box<T>) -> &T {
            self.value
                .lock()
                .unwrap()
                .get_or_insert_with(|| alloc::boxed::Box::leak(make()))
        }
    }
}

#[cfg(feature = "std")]
pub(crate) use real::fence;
pub(crate) use real::{Arc, AtomicU32, AtomicU64, OnceBox, Ordering, back_off, relax};

/// A mutex for rare operations. It guards atomics, so it holds no data itself.
pub(crate) struct Lock {
    #[cfg(all(feature = "std", not(ratekeeper_loom)))]
    inner: std::sync::Mutex<()>,
    #[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
    locked: AtomicU32,
}

/// The guard of a [`Lock`], which is locked until it is dropped.
#[cfg(all(feature = "std", not(ratekeeper_loom)))]
pub(crate) type Guard<'a> = std::sync::MutexGuard<'a, ()>;

#[cfg(all(feature = "std", not(ratekeeper_loom)))]
impl Lock {
    pub(crate) fn new() -> Self {
        Self {
            inner: std::sync::Mutex::new(()),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        self.inner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The guard of a [`Lock`], which is locked until it is dropped.
#[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
pub(crate) struct Guard<'a>(&'a AtomicU32);

#[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(not(all(feature = "std", not(ratekeeper_loom))))]
impl Lock {
    pub(crate) fn new() -> Self {
        Self {
            locked: AtomicU32::new(0),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        let mut round = 0;
        while self
            .locked
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            relax(round);
            round += 1;
        }
        Guard(&self.locked)
    }
}
