//! The columns of the tables: what is measured, and by which contestants.

use super::{BARE_WORD, COARSE, FAST, LEAKY, OWN_MONOTONIC, OWN_QUANTA, SYSTEM, on, ours};
use crate::harness::Contestant;
use crate::peers::clocks::ClockAdapter;
use crate::peers::{
    self, ALWAYS_ALLOWED, ALWAYS_DENIED, bare_word, leaky_bucket, mutex_bucket, ratelimit,
};
use governor::clock::{MonotonicClock, QuantaClock};
use ratekeeper::{Clock, clock::CoarseClock, clock::FastClock, clock::SystemClock};

/// A column of the tables: a verb, its outcome, and how many threads share the limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Allowed,
    Denied,
    Reserve,
    WaitBlocking,
    WaitAsync,
    Allowed2,
    Denied2,
}

use Column::{Allowed, Allowed2, Denied, Denied2, Reserve, WaitAsync, WaitBlocking};

impl Column {
    pub(super) const ALL: [Self; 7] = [
        Allowed,
        Denied,
        Reserve,
        WaitBlocking,
        WaitAsync,
        Allowed2,
        Denied2,
    ];

    /// Its name above the column, and in the JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Allowed => "check allowed, 1 thread",
            Denied => "check denied, 1 thread",
            Reserve => "reserve, 1 thread",
            WaitBlocking => "wait without waiting, blocking, 1 thread",
            WaitAsync => "wait without waiting, async, 1 thread",
            Allowed2 => "check allowed, 2 threads",
            Denied2 => "check denied, 2 threads",
        }
    }

    /// The same name in a line or two of a narrow column.
    pub(super) fn short(self) -> &'static str {
        match self {
            Allowed => "check\nallowed",
            Denied => "check\ndenied",
            Reserve => "reserve",
            WaitBlocking => "wait\nblocking",
            WaitAsync => "wait\nasync",
            Allowed2 => "2 threads\nallowed",
            Denied2 => "2 threads\ndenied",
        }
    }

    pub(super) fn threads(self) -> u32 {
        if matches!(self, Allowed2 | Denied2) {
            2
        } else {
            1
        }
    }

    /// Whether the threads of a lock-free limiter contend: a denial writes no memory.
    pub(super) fn contends(self) -> bool {
        self == Allowed2
    }

    /// The name of the Go program's value; for two threads there is one named `…_share` as well.
    pub(super) fn go(self) -> Option<&'static str> {
        match self {
            Allowed => Some("allow"),
            Denied => Some("deny"),
            Reserve => Some("reserve"),
            WaitBlocking => Some("wait"),
            WaitAsync => None,
            Allowed2 => Some("allow2"),
            Denied2 => Some("deny2"),
        }
    }

    pub(super) fn limit(self) -> &'static str {
        if matches!(self, Denied | Denied2) {
            ALWAYS_DENIED
        } else {
            ALWAYS_ALLOWED
        }
    }

    pub(super) fn contestants(self) -> Vec<Contestant> {
        let mut all = self.on_ours(SystemClock, SYSTEM);
        all.extend(self.on_ours(FastClock, FAST));
        all.extend(self.on_ours(CoarseClock, COARSE));
        all.extend(self.on_their_own());
        all
    }

    /// The contestants that can read any of our clocks.
    fn on_ours<C: Clock>(self, clock: C, name: &str) -> Vec<Contestant> {
        let (us, governor) = (ours(name), on("governor", name));
        let (ratelimit, mutex) = (on("ratelimit", name), on("Mutex bucket", name));
        let theirs = ClockAdapter::new(clock.clone());
        match self {
            Allowed | Allowed2 => vec![
                Contestant::new(us, peers::ours::allowed(clock.clone())),
                Contestant::new(governor, peers::governor::allowed(theirs.clone())),
                Contestant::new(ratelimit, ratelimit::allowed(theirs)),
                Contestant::new(mutex, mutex_bucket::allowed(clock.clone())),
                Contestant::new(on(BARE_WORD, name), bare_word::add(clock)),
            ],
            Denied | Denied2 => vec![
                Contestant::new(us, peers::ours::denied(clock.clone())),
                Contestant::new(governor, peers::governor::denied(theirs.clone())),
                Contestant::new(ratelimit, ratelimit::denied(theirs)),
                Contestant::new(mutex, mutex_bucket::denied(clock)),
            ],
            Reserve => vec![
                Contestant::new(us, peers::ours::reserve(clock.clone())),
                Contestant::new(mutex, mutex_bucket::reserve(clock)),
            ],
            WaitBlocking => vec![
                Contestant::new(us, peers::ours::wait_blocking(clock.clone())),
                Contestant::new(mutex, mutex_bucket::wait_blocking(clock)),
            ],
            WaitAsync => vec![
                Contestant::new(us, peers::ours::wait_async(clock)),
                Contestant::new(governor, peers::governor::wait_async(theirs)),
            ],
        }
    }

    /// The peers on their own clocks.
    fn on_their_own(self) -> Vec<Contestant> {
        use peers::governor::{allowed, denied, wait_async};

        match self {
            Allowed | Allowed2 => vec![
                Contestant::new(OWN_MONOTONIC, allowed(MonotonicClock)),
                Contestant::new(OWN_QUANTA, allowed(QuantaClock::default())),
                Contestant::new(LEAKY, leaky_bucket::allowed()),
            ],
            Denied | Denied2 => vec![
                Contestant::new(OWN_MONOTONIC, denied(MonotonicClock)),
                Contestant::new(OWN_QUANTA, denied(QuantaClock::default())),
                Contestant::new(LEAKY, leaky_bucket::denied()),
            ],
            WaitAsync => vec![
                Contestant::new(OWN_MONOTONIC, wait_async(MonotonicClock)),
                Contestant::new(OWN_QUANTA, wait_async(QuantaClock::default())),
                Contestant::new(LEAKY, leaky_bucket::wait_async()),
            ],
            Reserve | WaitBlocking => vec![],
        }
    }
}
