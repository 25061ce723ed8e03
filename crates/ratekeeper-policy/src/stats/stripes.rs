//! Striped counters: copies on separate cache lines, so that threads do not contend for one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of copies: enough that the workers of a common machine rarely share one; a reader adds up
/// this many.
const STRIPES: usize = 8;

/// Copies of `T` on separate cache lines. More than eight threads share copies, so `T` must support
/// concurrent writers.
#[derive(Debug, Default)]
pub(super) struct Striped<T>([CacheAligned<T>; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheAligned<T>(T);

impl<T> Striped<T> {
    /// The copy of the calling thread.
    #[inline]
    pub(super) fn current(&self) -> &T {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static STRIPE: usize = THREADS.fetch_add(1, Relaxed) % STRIPES;
        }
        &self.0[STRIPE.with(|stripe| *stripe)].0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|copy| &copy.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_thread_keeps_its_copy_and_threads_use_all_copies() {
        let striped = Striped::<Mutex<Vec<usize>>>::default();
        std::thread::scope(|scope| {
            for thread in 0..4 * STRIPES {
                let striped = &striped;
                scope.spawn(move || {
                    striped.current().lock().unwrap().push(thread);
                    assert!(std::ptr::eq(striped.current(), striped.current()));
                });
            }
        });
        // Other tests start threads as well, so the copies are not filled evenly.
        assert_eq!(
            striped
                .iter()
                .map(|copy| copy.lock().unwrap().len())
                .sum::<usize>(),
            4 * STRIPES
        );
        assert!(
            striped
                .iter()
                .filter(|copy| !copy.lock().unwrap().is_empty())
                .count()
                > 1
        );
    }

    #[test]
    fn copies_share_no_cache_line() {
        assert_eq!(size_of::<CacheAligned<u64>>(), 64);
        assert_eq!(align_of::<Striped<u64>>(), 64);
    }
}
