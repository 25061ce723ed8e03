//! The answers to each key, counted.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of keys.
pub(crate) const KEYS: usize = 5000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Allowed,
    Denied,
    /// The store was unavailable, so it is unknown whether the request was charged.
    Undecided,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct KeyCounts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) undecided: u64,
}

impl KeyCounts {
    pub(crate) fn requests(self) -> u64 {
        self.allowed + self.denied + self.undecided
    }
}

impl Add for KeyCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            undecided: self.undecided + other.undecided,
        }
    }
}

pub(crate) struct Tally(Vec<[AtomicU64; 3]>);

impl Tally {
    pub(crate) fn new() -> Self {
        Self((0..KEYS).map(|_| Default::default()).collect())
    }

    pub(crate) fn add(&self, key: usize, answer: Answer) {
        self.0[key][answer as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(usize, KeyCounts)) {
        for (key, counts) in self.0.iter().enumerate() {
            let [allowed, denied, undecided] = counts.each_ref().map(|count| count.load(Relaxed));
            if allowed + denied + undecided > 0 {
                visit(
                    key,
                    KeyCounts {
                        allowed,
                        denied,
                        undecided,
                    },
                );
            }
        }
    }

    pub(crate) fn sum(&self) -> KeyCounts {
        let mut sum = KeyCounts::default();
        self.for_each(|_, entry| sum = sum + entry);
        sum
    }

    /// Checks that the first `capacity` requests of each key were allowed, and no others.
    #[track_caller]
    pub(crate) fn assert_exact(&self, name: &str, capacity: u64) {
        self.for_each(|key, entry| {
            let KeyCounts {
                allowed, undecided, ..
            } = entry;
            assert_eq!(
                (allowed, undecided),
                (entry.requests().min(capacity), 0),
                "{name}, key {key}"
            );
        });
        assert!(self.sum().requests() > 0, "{name} got no requests");
    }

    /// Checks keys that may have undecided requests: at max `capacity` were allowed, and requests
    /// were denied only if the allowed and the undecided ones may have used all of it.
    #[track_caller]
    pub(crate) fn assert_never_too_many(&self, capacity: u64) {
        self.for_each(|key, entry| {
            let KeyCounts {
                allowed,
                denied,
                undecided,
            } = entry;
            assert!(allowed <= capacity, "key {key}: {allowed} allowed");
            assert!(
                denied == 0 || allowed + undecided >= capacity,
                "key {key}: {allowed} allowed, {undecided} undecided, {denied} denied"
            );
        });
        assert!(self.sum().requests() > 0);
    }
}

/// Pseudo-random keys, the same in every run.
pub(crate) struct Keys(u64);

impl Keys {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Knuth's MMIX generator, whose upper bits are more random.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// The next key: low ones are far more frequent than high ones.
    pub(crate) fn next(&mut self) -> usize {
        let max = KEYS as u64;
        let bound = 1 + self.below(max);
        let bound = 1 + self.below(bound);
        self.below(bound) as usize
    }
}
