//! [`Shedder`]: counts requests, updates the shedding level once per tick, and decides of each
//! request whether it is admitted.

use super::class::Class;
use super::level::{CLASSES, LevelConfig, LevelController};
use crate::clock::{Clock, SystemClock, Timestamp};
use core::fmt;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A load shedder: under pressure it denies the lowest class first, a share of it at a time, the
/// next class only when all of that one is shed.
///
/// Pressure is a number: 1 is full load, 2 is twice that. It can be given in three ways, of which
/// the greatest counts: [`report`](Self::report) samples (a queue's delay divided by the target
/// delay; for a concurrency limit `in_flight / limit / 0.85`), a
/// [function](ShedderBuilder::pressure) that is called once per tick, and
/// [`refused`](Self::refused) for each request that was admitted here and denied further in.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{adaptive::Class, ManualClock, adaptive::Shedder};
///
/// let clock = ManualClock::new();
/// let shedder = Shedder::builder().build_with_clock(clock.clone());
/// for _ in 0..20 {
///     for _ in 0..100 {
///         shedder.admit(Class::Critical);
///         shedder.admit(Class::Sheddable);
///     }
///     shedder.report(1.5); // requests wait half as long again as they should
///     clock.advance(Duration::from_millis(100));
/// }
/// assert!(!shedder.admit(Class::Sheddable));
/// assert!(shedder.admit(Class::CriticalPlus));
/// ```
///
/// It sheds more at once, and less only slowly: traffic comes back at about a hundredth of the
/// total per tenth of a second, and not before 5 seconds have passed with a pressure below 0.9. So
/// it turns from shedding more to shedding less at most 12 times a minute, whatever the pressure
/// does.
///
/// This is a handle: clones share everything. [`admit`](Self::admit) takes no lock and allocates
/// nothing; the call that finds a tick due runs it.
pub struct Shedder<C: Clock = SystemClock> {
    shared: Arc<ShedderState<C>>,
}

struct ShedderState<C> {
    /// In fractions of a class; see [`LEVEL_UNIT`].
    level: AtomicU32,
    /// When the next tick is due, in nanoseconds since 1970.
    due: AtomicU64,
    every: Duration,
    rest: Duration,
    seed: u64,
    counts: ClassCounters,
    control: Mutex<TickState>,
    source: Option<Box<dyn Fn() -> f64 + Send + Sync>>,
    clock: C,
}

/// Counters that every request writes: on cache lines of their own.
#[repr(align(128))]
struct ClassCounters {
    /// The lowest class first.
    offered: [AtomicU64; CLASSES],
    shed: [AtomicU64; CLASSES],
    refused: AtomicU64,
    samples: AtomicU64,
    /// The sum of the samples, in thousandths.
    pressure: AtomicU64,
}

/// The state of the ticks: the level controller, and the counters at the last tick.
struct TickState {
    control: LevelController,
    seen: CounterSnapshot,
    at: Timestamp,
}

#[derive(Clone, Copy, Default)]
struct CounterSnapshot {
    offered: [u64; CLASSES],
    shed: [u64; CLASSES],
    refused: u64,
    samples: u64,
    pressure: u64,
}

/// The level counts in this many fractions per class.
const LEVEL_UNIT: u32 = 1 << 16;
/// One in twenty of the highest class is always admitted: without traffic nothing can be measured.
const MAX_LEVEL: f64 = 3.95;
/// Denials further in count from this share and this number per tick: even a limit with spare
/// capacity denies one now and then, when many requests happen to come together.
const MIN_REFUSED: (f64, u64) = (0.02, 3);
/// Samples are clamped to this.
const MAX_PRESSURE: f64 = 1_000.0;
const THOUSANDTHS: f64 = 1_000.0;

/// The settings of a [`Shedder`], each with its default.
pub struct ShedderBuilder {
    settings: LevelConfig,
    seed: u64,
    source: Option<Box<dyn Fn() -> f64 + Send + Sync>>,
}

impl ShedderBuilder {
    /// How often the level may move; every 100 milliseconds unless set, at least one.
    #[must_use]
    pub fn every(mut self, tick: Duration) -> Self {
        self.settings.every = tick.max(Duration::from_millis(1));
        self
    }

    /// The minimum time after the level went up before it goes down; 5 seconds unless set.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.settings.rest = rest;
        self
    }

    /// The pressure below which it sheds less; 0.9 unless set. Between this and 1 the level stays.
    #[must_use]
    pub fn ease_below(mut self, pressure: f64) -> Self {
        self.settings.low = if pressure >= 0.0 {
            pressure.min(1.0)
        } else {
            0.0
        };
        self
    }

    /// Never sheds this class, nor more important ones. Unless set, at least one in twenty of the
    /// highest class is admitted.
    #[must_use]
    pub fn spare(mut self, class: Class) -> Self {
        self.settings.max_level = class.rank() as f64;
        self
    }

    /// A function that returns the pressure, called once per tick. An unknown pressure is
    /// [`f64::NAN`].
    #[must_use]
    pub fn pressure(mut self, source: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The seed that selects which requests of a partly shed class are shed; the same seed selects
    /// the same.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the shedder.
    pub fn build(self) -> Shedder {
        self.build_with_clock(crate::clock::SystemClock)
    }

    /// Builds the shedder on a clock of your choice.
    pub fn build_with_clock<C: Clock>(self, clock: C) -> Shedder<C> {
        let now = clock.now();
        let state = TickState {
            control: LevelController::new(self.settings),
            seen: CounterSnapshot::default(),
            at: now,
        };
        let zeros = || core::array::from_fn(|_| AtomicU64::new(0));
        let zero = || AtomicU64::new(0);
        Shedder {
            shared: Arc::new(ShedderState {
                level: AtomicU32::new(0),
                due: AtomicU64::new((now + self.settings.every).as_unix_nanos()),
                every: self.settings.every,
                rest: self.settings.rest,
                seed: mix(self.seed),
                counts: ClassCounters {
                    offered: zeros(),
                    shed: zeros(),
                    refused: zero(),
                    samples: zero(),
                    pressure: zero(),
                },
                control: Mutex::new(state),
                source: self.source,
                clock,
            }),
        }
    }
}

impl Shedder {
    /// Creates a shedder with default settings.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder with default settings.
    pub fn builder() -> ShedderBuilder {
        let (every, rest) = (Duration::from_millis(100), Duration::from_secs(5));
        ShedderBuilder {
            settings: LevelConfig {
                every,
                rest,
                low: 0.9,
                max_level: MAX_LEVEL,
            },
            seed: 0,
            source: None,
        }
    }
}

impl Default for Shedder {
    fn default() -> Self {
        Self::new()
    }
}

/// # Requests
impl<C: Clock> Shedder<C> {
    /// Whether a request of this class is admitted. Of a partly shed class, requests are selected
    /// evenly.
    #[inline]
    pub fn admit(&self, class: Class) -> bool {
        self.tick();
        let shared = &*self.shared;
        // Multiples of the golden ratio are spread evenly, however many are taken.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let count = shared.counts.offered[class.rank()].fetch_add(1, Relaxed);
        shared.decide(class, || {
            count.wrapping_mul(GOLDEN).wrapping_add(shared.seed)
        })
    }

    /// [`admit`](Self::admit) with the same result for the same key (the hash of a user): of a
    /// partly shed class some users are served well rather than all of them badly.
    #[inline]
    pub fn admit_key(&self, class: Class, key: u64) -> bool {
        self.tick();
        let shared = &*self.shared;
        shared.counts.offered[class.rank()].fetch_add(1, Relaxed);
        shared.decide(class, || mix(key ^ shared.seed))
    }

    /// Adds a sample of the pressure; NaN is ignored. The mean of a tick's samples counts.
    pub fn report(&self, pressure: f64) {
        if pressure >= 0.0 {
            let counts = &self.shared.counts;
            counts
                .pressure
                .fetch_add((pressure.min(MAX_PRESSURE) * THOUSANDTHS) as u64, Relaxed);
            counts.samples.fetch_add(1, Relaxed);
        }
    }

    /// Reports that a request that was admitted here was denied further in. If that is every second
    /// one, the pressure is 2.
    pub fn refused(&self) {
        self.shared.counts.refused.fetch_add(1, Relaxed);
    }

    /// Moves the level if that is due: for programs that rarely call [`admit`](Self::admit), which
    /// does it by itself.
    #[inline]
    pub fn tick(&self) {
        let now = self.shared.clock.now();
        if now.as_unix_nanos() >= self.shared.due.load(Relaxed) {
            self.shared.tick_slow(now);
        }
    }

    /// How much is shed, counted in classes: 0 is nothing, 1 the whole of the lowest, 1.5 half of
    /// the next as well.
    pub fn level(&self) -> f64 {
        f64::from(self.shared.level.load(Relaxed)) / f64::from(LEVEL_UNIT)
    }

    /// The current statistics.
    pub fn snapshot(&self) -> ShedderStats {
        let shared = &*self.shared;
        let pressure = shared
            .control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .control
            .pressure();
        let classes = Class::ALL.map(|class| {
            // In this order: a request is counted as offered before it is counted as shed.
            let shed = shared.counts.shed[class.rank()].load(Relaxed);
            let offered = shared.counts.offered[class.rank()].load(Relaxed);
            let share = f64::from(shared.shed_of(class)) / f64::from(LEVEL_UNIT);
            ClassStats {
                class,
                admitted: offered.saturating_sub(shed),
                shed,
                share,
            }
        });
        ShedderStats {
            pressure,
            level: self.level(),
            classes,
        }
    }
}

impl<C: Clock> ShedderState<C> {
    /// How much of a class is shed, in fractions of `LEVEL_UNIT`.
    #[inline]
    fn shed_of(&self, class: Class) -> u32 {
        self.level
            .load(Relaxed)
            .saturating_sub(class.rank() as u32 * LEVEL_UNIT)
            .min(LEVEL_UNIT)
    }

    #[inline]
    fn decide(&self, class: Class, spread: impl FnOnce() -> u64) -> bool {
        let shed = self.shed_of(class);
        // The upper bits are the best spread.
        if shed == 0 || (spread() >> 48) as u32 >= shed {
            return true;
        }
        self.counts.shed[class.rank()].fetch_add(1, Relaxed);
        false
    }

    #[cold]
    fn tick_slow(&self, now: Timestamp) {
        // One thread runs the tick; the others go on with the current level.
        let Ok(mut state) = self.control.try_lock() else {
            return;
        };
        if now.as_unix_nanos() < self.due.load(Relaxed) {
            return;
        }
        let passed = now.saturating_since(state.at);
        let ticks = u64::try_from(passed.as_nanos() / self.every.as_nanos()).unwrap_or(u64::MAX);
        let (before, seen) = (state.seen, self.counts.snapshot());
        let came = core::array::from_fn(|rank| seen.offered[rank] - before.offered[rank]);
        // Samples from before a long silence are outdated.
        let measured = if passed > self.rest {
            0.0
        } else {
            self.measured_pressure(&before, &seen)
        };
        let reported = self.source.as_ref().map_or(0.0, |source| source());
        // `max` ignores NaN.
        let level = state
            .control
            .step(now, ticks, came, measured.max(reported).min(MAX_PRESSURE));
        self.level
            .store((level * f64::from(LEVEL_UNIT)) as u32, Relaxed);
        (state.seen, state.at) = (seen, now);
        self.due.store((now + self.every).as_unix_nanos(), Relaxed);
    }

    /// The pressure reported between two ticks; 0 if there was none.
    fn measured_pressure(&self, before: &CounterSnapshot, seen: &CounterSnapshot) -> f64 {
        let samples = seen.samples.saturating_sub(before.samples);
        let sum = seen.pressure.saturating_sub(before.pressure) as f64 / THOUSANDTHS;
        let mean = if samples > 0 {
            sum / samples as f64
        } else {
            0.0
        };
        let all = |counts: &[u64; CLASSES]| counts.iter().sum::<u64>();
        let admitted = (all(&seen.offered) - all(&before.offered))
            .saturating_sub(all(&seen.shed) - all(&before.shed));
        let refused = seen.refused.saturating_sub(before.refused);
        let share = refused as f64 / admitted.max(1) as f64;
        let refused = if share > MIN_REFUSED.0 && refused >= MIN_REFUSED.1 {
            1.0 / (1.0 - share.min(0.999))
        } else {
            0.0
        };
        mean.max(refused)
    }
}

impl ClassCounters {
    fn snapshot(&self) -> CounterSnapshot {
        let all =
            |counts: &[AtomicU64; CLASSES]| core::array::from_fn(|rank| counts[rank].load(Relaxed));
        // Shed is read before offered: a request is counted as offered first.
        let shed = all(&self.shed);
        let refused = self.refused.load(Relaxed);
        let offered = all(&self.offered);
        let samples = self.samples.load(Relaxed);
        CounterSnapshot {
            offered,
            shed,
            refused,
            samples,
            pressure: self.pressure.load(Relaxed),
        }
    }
}

/// Mixes the bits, so that every input bit changes half of the output: the finalizer of
/// MurmurHash3.
fn mix(mut bits: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ (bits >> 33)).wrapping_mul(factor);
    }
    bits ^ (bits >> 33)
}

/// The current statistics of a [`Shedder`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShedderStats {
    /// The pressure of the last tick; 1 is full load.
    pub pressure: f64,
    /// How much is shed, counted in classes.
    pub level: f64,
    /// The classes, the most important first.
    pub classes: [ClassStats; 4],
}

impl ShedderStats {
    /// The lowest class of which not all is shed.
    pub fn lowest_served(&self) -> Class {
        let served = self.classes.iter().rev().find(|stats| stats.share < 1.0);
        served.map_or(Class::CriticalPlus, |stats| stats.class)
    }
}

/// The requests of one class since the start.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// How many requests were admitted.
    pub admitted: u64,
    /// How many requests were shed.
    pub shed: u64,
    /// The share of the class that is shed now, 0 to 1.
    pub share: f64,
}

impl<C: Clock> Clone for Shedder<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for Shedder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shedder")
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ShedderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedderBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
