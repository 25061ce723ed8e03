//! A keyed contestant: its table of keys, and how it is called.

use crate::harness::{BATCH, Contestant};
use crate::keys::{Draw, Key, Order};
use crate::peers::clocks::ClockAdapter;
use crate::peers::keyed::{KeyedLimit, governor, ours};
use ratekeeper::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Competitor {
    Ratekeeper,
    Governor,
}

impl Competitor {
    pub(super) const ALL: [Self; 2] = [Self::Ratekeeper, Self::Governor];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ratekeeper => "ratekeeper",
            Self::Governor => "governor",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Ratekeeper => Self::Governor,
            Self::Governor => Self::Ratekeeper,
        }
    }

    pub(super) fn called(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|competitor| competitor.name() == name)
    }
}

/// How many keys are prepared at a time, outside of what is timed: they come from the nearest
/// cache, as a caller's do.
const READY: usize = 2048;

/// How often the prepared keys are used, on two threads and a table of no more keys: preparing
/// would otherwise take as long as the calls, and the threads meet half as often as they should. On
/// one thread once: the processor predicts keys that come again in the same order.
const AGAIN: usize = 16;

const ENDLESS: u64 = u64::MAX;

pub(super) struct Subject<K> {
    competitor: Competitor,
    keys: u64,
    one: Box<CallOne<K>>,
    batch: Box<Batch<K>>,
    runs: AtomicU64,
}

/// Decides for one key; returns whether it was allowed.
type CallOne<K> = dyn Fn(&K) -> bool + Send + Sync;

/// Calls each key once and checks that every call takes the path of its row.
type Batch<K> = dyn Fn(&[K]) + Send + Sync;

impl<K: Key> Subject<K> {
    /// Creates a contestant for this many keys, with none in its table.
    pub(super) fn new<C: Clock>(
        competitor: Competitor,
        numbers: KeyedLimit,
        keys: u64,
        clock: C,
    ) -> Self {
        let allowed = numbers.burst > 1;
        match competitor {
            Competitor::Ratekeeper => Self::of(
                competitor,
                keys,
                allowed,
                ours::allows(numbers, keys, clock),
            ),
            Competitor::Governor => {
                let clock = ClockAdapter::new(clock);
                Self::of(competitor, keys, allowed, governor::allows(numbers, clock))
            }
        }
    }

    fn of(
        competitor: Competitor,
        keys: u64,
        allowed: bool,
        allows: impl Fn(&K) -> bool + Clone + Send + Sync + 'static,
    ) -> Self {
        // Compiled for this one limiter: there is no call through a pointer inside the loop.
        let one = Box::new(allows.clone());
        let batch = move |keys: &[K]| {
            keys.iter().for_each(|key| {
                assert!(
                    allows(key) == allowed,
                    "a call took another path than its row's"
                );
            });
        };
        Self {
            competitor,
            keys,
            one,
            batch: Box::new(batch),
            runs: AtomicU64::new(0),
        }
    }

    pub(super) fn call(&self, key: &K) -> bool {
        (self.one)(key)
    }

    /// Calls every key; `empties` takes its whole burst.
    pub(super) fn fill(&self, empties: bool) {
        std::thread::scope(|scope| {
            for half in 0..2 {
                scope.spawn(move || {
                    let mut key = K::nth(0);
                    for n in (half..self.keys).step_by(2) {
                        key.set(n);
                        while self.call(&key) && empties {}
                    }
                });
            }
        });
    }

    pub(super) fn contestant(self: &Arc<Self>, order: Order) -> Contestant {
        let (some, endless) = (self.clone(), self.clone());
        let times = move |calls| some.run(order, calls, &AtomicBool::new(false)).1;
        let until = move |stop: &AtomicBool| endless.run(order, ENDLESS, stop);
        Contestant::timed(self.competitor.name(), times, until)
    }

    /// Makes up to this many calls, with other keys each time; returns how many, and how long they
    /// took.
    fn run(&self, order: Order, calls: u64, stop: &AtomicBool) -> (u64, Duration) {
        let mut draw = Draw::new(order, self.keys, self.runs.fetch_add(1, Ordering::Relaxed));
        let mut ready = vec![K::nth(u64::MAX); READY];
        let again = if calls == ENDLESS && self.keys <= READY as u64 {
            AGAIN
        } else {
            1
        };
        let (mut done, mut time) = (0, Duration::ZERO);
        while done < calls && !stop.load(Ordering::Relaxed) {
            ready.iter_mut().for_each(|key| key.set(draw.next()));
            let start = Instant::now();
            for keys in (0..again).flat_map(|_| ready.chunks(BATCH as usize)) {
                if done == calls || stop.load(Ordering::Relaxed) {
                    break;
                }
                let keys = &keys[..keys.len().min((calls - done) as usize)];
                (self.batch)(keys);
                done += keys.len() as u64;
            }
            time += start.elapsed();
        }
        (done, time)
    }
}
