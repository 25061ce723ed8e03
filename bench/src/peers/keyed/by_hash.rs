//! The alternative to our own table: a maintained concurrent map from a key's 64-bit hash to its
//! arrival time.
//!
//! The keys are hashed once, with std's SipHash; the map uses the hash unchanged. It grows without
//! bound, without eviction.

use super::KeyedLimit;
use crate::keys::Key;
use ratekeeper::{Clock, Timestamp};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn dashmap<K: Key, C: Clock>(
    numbers: KeyedLimit,
    clock: C,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    let map: Arc<dashmap::DashMap<u64, AtomicU64, BuildIdentityHasher>> = Arc::default();
    let (secret, step) = (RandomState::new(), Step::new(numbers, clock));
    move |key| {
        let hash = secret.hash_one(key);
        match map.get(&hash) {
            Some(word) => step.allows(&word),
            None => step.allows(&map.entry(hash).or_default()),
        }
    }
}

pub(crate) fn papaya<K: Key, C: Clock>(
    numbers: KeyedLimit,
    clock: C,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    // Blocking resizes: the default copies incrementally as keys are added, and with no more keys
    // every call looks into both tables for ever, at five times the cost.
    let builder =
        papaya::HashMap::<u64, AtomicU64>::builder().hasher(BuildIdentityHasher::default());
    let map = Arc::new(builder.resize_mode(papaya::ResizeMode::Blocking).build());
    let (secret, step) = (RandomState::new(), Step::new(numbers, clock));
    move |key| {
        let hash = secret.hash_one(key);
        let map = map.pin();
        match map.get(&hash) {
            Some(word) => step.allows(word),
            None => step.allows(map.get_or_insert_with(hash, AtomicU64::default)),
        }
    }
}

/// GCRA on a word that holds a theoretical arrival time; 0 is a new key.
#[derive(Clone)]
struct Step<C> {
    interval: u64,
    /// How far an arrival time may be ahead.
    ahead: u64,
    start: Timestamp,
    clock: C,
}

impl<C: Clock> Step<C> {
    fn new(numbers: KeyedLimit, clock: C) -> Self {
        let interval = numbers.interval.as_nanos() as u64;
        Self {
            interval,
            ahead: interval * u64::from(numbers.burst - 1),
            start: clock.now(),
            clock,
        }
    }

    #[inline]
    fn allows(&self, word: &AtomicU64) -> bool {
        let now = self.clock.now().as_unix_nanos() - self.start.as_unix_nanos();
        let step = |arrival: u64| {
            let from = arrival.max(now);
            (from - now <= self.ahead).then(|| from + self.interval)
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
            .is_ok()
    }
}

/// A hasher that returns the key, which is a hash already.
#[derive(Default)]
struct IdentityHasher(u64);

type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are hashes");
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
