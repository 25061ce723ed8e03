//! What was answered, key by key.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many keys are asked about.
pub(crate) const KEYS: usize = 5000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Allowed,
    Denied,
    /// The store was gone; whether it was charged nobody knows.
    Unanswered,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Entry {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) unanswered: u64,
}

impl Entry {
    pub(crate) fn asked(self) -> u64 {
        self.allowed + self.denied + self.unanswered
    }
}

impl Add for Entry {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            unanswered: self.unanswered + other.unanswered,
        }
    }
}

pub(crate) struct Book(Vec<[AtomicU64; 3]>);

impl Book {
    pub(crate) fn new() -> Self {
        Self((0..KEYS).map(|_| Default::default()).collect())
    }

    pub(crate) fn add(&self, key: usize, answer: Answer) {
        self.0[key][answer as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn for_each(&self, mut see: impl FnMut(usize, Entry)) {
        for (key, counts) in self.0.iter().enumerate() {
            let [allowed, denied, unanswered] = counts.each_ref().map(|count| count.load(Relaxed));
            if allowed + denied + unanswered > 0 {
                see(
                    key,
                    Entry {
                        allowed,
                        denied,
                        unanswered,
                    },
                );
            }
        }
    }

    pub(crate) fn sum(&self) -> Entry {
        let mut sum = Entry::default();
        self.for_each(|_, entry| sum = sum + entry);
        sum
    }

    /// Never too many and never too few: the first so many, and nobody else.
    #[track_caller]
    pub(crate) fn assert_exact(&self, name: &str, capacity: u64) {
        self.for_each(|key, entry| {
            let Entry {
                allowed,
                unanswered,
                ..
            } = entry;
            assert_eq!(
                (allowed, unanswered),
                (entry.asked().min(capacity), 0),
                "{name}, key {key}"
            );
        });
        assert!(self.sum().asked() > 0, "{name} was never asked");
    }

    /// Where answers were lost: never too many, and nobody is turned away unless all is used, by
    /// those whose answer was lost at most.
    #[track_caller]
    pub(crate) fn assert_never_too_many(&self, capacity: u64) {
        self.for_each(|key, entry| {
            let Entry {
                allowed,
                denied,
                unanswered,
            } = entry;
            assert!(allowed <= capacity, "key {key}: {allowed} admitted");
            assert!(
                denied == 0 || allowed + unanswered >= capacity,
                "key {key}: {allowed} and {unanswered}, {denied} denied"
            );
        });
        assert!(self.sum().asked() > 0);
    }
}

/// Numbers that are as good as random, the same in every run.
pub(crate) struct Keys(u64);

impl Keys {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The generator of Knuth's MMIX; its upper bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A key; low ones far more often than high ones.
    pub(crate) fn next(&mut self) -> usize {
        let most = KEYS as u64;
        let bound = 1 + self.below(most);
        let bound = 1 + self.below(bound);
        self.below(bound) as usize
    }
}
