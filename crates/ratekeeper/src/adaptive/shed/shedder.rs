//! The shedder: counts what comes, asks the law once a tick, and says of each request whether it is
//! admitted.

use super::class::Class;
use super::level::{CLASSES, LevelConfig, LevelController};
use crate::clock::{Clock, DefaultClock, Timestamp};
use core::fmt;
use core::time::Duration;
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Decides under pressure who is admitted: the lowest class goes first, a share of it at a time,
/// the next only when all of it is gone.
///
/// Pressure is a number: 1 is as much as is well, 2 is twice that. Say it in any of three ways, of
/// which the greatest counts: [`report`](Self::report) samples (a queue's delay by the delay that
/// is well; of a gate `in_flight / limit / 0.85`), a [function](ShedderBuilder::pressure) that is
/// asked once a tick, and [`refused`](Self::refused) for each request that was admitted here and
/// found no room further in.
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
///     shedder.report(1.5); // waiting takes half as long again as is well
///     clock.advance(Duration::from_millis(100));
/// }
/// assert!(!shedder.admit(Class::Sheddable));
/// assert!(shedder.admit(Class::CriticalPlus));
/// ```
///
/// It sheds more at once, and less only slowly: what was shed comes back at about a hundredth of
/// the traffic each tenth of a second, and not before 5 seconds have passed under less than 0.9 of
/// the pressure that is well. So it turns from shedding more to shedding less at most 12 times a
/// minute, whatever the pressure does.
///
/// A handle: clones share everything. To ask takes no lock and allocates nothing; the call that
/// finds a tick due takes it.
pub struct Shedder<C: Clock = DefaultClock> {
    shared: Arc<ShedderState<C>>,
}

struct ShedderState<C> {
    /// In parts of a class; see [`PART`].
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

/// Written by every request: on cache lines of their own.
#[repr(align(128))]
struct ClassCounters {
    /// The lowest class first.
    offered: [AtomicU64; CLASSES],
    shed: [AtomicU64; CLASSES],
    refused: AtomicU64,
    samples: AtomicU64,
    /// In thousandths.
    pressure: AtomicU64,
}

/// What the counts were at the last tick.
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

/// The level has so many parts a class.
const LEVEL_UNIT: u32 = 1 << 16;
/// Of the highest class one in twenty is always admitted: whoever admits nobody learns nothing.
const MAX_LEVEL: f64 = 3.95;
/// What is refused further in says something from this share and this number in a tick on: even a
/// gate with room to spare refuses one now and then, when many happen to come together.
const MIN_REFUSED: (f64, u64) = (0.02, 3);
/// A sample above says no more.
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

    /// How long it sheds no less after it shed more; 5 seconds unless set.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.settings.rest = rest;
        self
    }

    /// Below this pressure it sheds less; 0.9 unless set. Between this and 1 it leaves everything
    /// as it is.
    #[must_use]
    pub fn ease_below(mut self, pressure: f64) -> Self {
        self.settings.low = if pressure >= 0.0 {
            pressure.min(1.0)
        } else {
            0.0
        };
        self
    }

    /// Never sheds this class, nor what is more important. Unless set, at worst one in twenty of
    /// the highest class passes.
    #[must_use]
    pub fn spare(mut self, class: Class) -> Self {
        self.settings.max_level = class.rank() as f64;
        self
    }

    /// Asked for the pressure once a tick. What is not known is [`f64::NAN`].
    #[must_use]
    pub fn pressure(mut self, source: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Which of a class at the edge are shed; the same seed sheds the same.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The shedder.
    pub fn build(self) -> Shedder {
        self.build_with_clock(crate::clock::SystemClock)
    }

    /// The same on a clock of your choice.
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
    /// One with nothing set.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// One to be set.
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

/// # Asking
impl<C: Clock> Shedder<C> {
    /// Whether a request of that class is admitted. Of the class at the edge it is evenly one of so
    /// many.
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

    /// The same, where those with the same key (the hash of a user) fare alike: at the edge some
    /// users are served well rather than all of them badly.
    #[inline]
    pub fn admit_key(&self, class: Class, key: u64) -> bool {
        self.tick();
        let shared = &*self.shared;
        shared.counts.offered[class.rank()].fetch_add(1, Relaxed);
        shared.decide(class, || mix(key ^ shared.seed))
    }

    /// A sample of the pressure; what is no number is none. Of the samples of a tick the mean
    /// counts.
    pub fn report(&self, pressure: f64) {
        if pressure >= 0.0 {
            let counts = &self.shared.counts;
            counts
                .pressure
                .fetch_add((pressure.min(MAX_PRESSURE) * THOUSANDTHS) as u64, Relaxed);
            counts.samples.fetch_add(1, Relaxed);
        }
    }

    /// A request that was admitted here found no room further in. If that is every second one, the
    /// pressure is 2.
    pub fn refused(&self) {
        self.shared.counts.refused.fetch_add(1, Relaxed);
    }

    /// Moves the level if that is due: for programs that ask rarely. Asking does it by itself.
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

    /// Everything at a glance.
    pub fn snapshot(&self) -> ShedderStats {
        let shared = &*self.shared;
        let pressure = shared
            .control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .control
            .pressure();
        let classes = Class::ALL.map(|class| {
            // In this order: what is shed was offered before.
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
    /// How much of a class is shed, in parts.
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
        // The upper bits of a spread are its best.
        if shed == 0 || (spread() >> 48) as u32 >= shed {
            return true;
        }
        self.counts.shed[class.rank()].fetch_add(1, Relaxed);
        false
    }

    #[cold]
    fn tick_slow(&self, now: Timestamp) {
        // One looks; the others go on with the level as it is.
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
        // What was said before a long silence is no longer so.
        let measured = if passed > self.rest {
            0.0
        } else {
            self.measured_pressure(&before, &seen)
        };
        let reported = self.source.as_ref().map_or(0.0, |source| source());
        // What is no number loses against every number.
        let level = state
            .control
            .step(now, ticks, came, measured.max(reported).min(MAX_PRESSURE));
        self.level
            .store((level * f64::from(LEVEL_UNIT)) as u32, Relaxed);
        (state.seen, state.at) = (seen, now);
        self.due.store((now + self.every).as_unix_nanos(), Relaxed);
    }

    /// The pressure by what was said between two looks; 0 if nothing was.
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
        // Shed before offered: what is shed was offered before.
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

/// Every bit of the input changes half of the output: the finalizer of MurmurHash3.
fn mix(mut bits: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ (bits >> 33)).wrapping_mul(factor);
    }
    bits ^ (bits >> 33)
}

/// What a [`Shedder`] does at present.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShedderStats {
    /// The pressure of the last tick; 1 is as much as is well.
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

/// What became of the requests of one class since the start.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// Which.
    pub class: Class,
    /// How many passed.
    pub admitted: u64,
    /// How many did not.
    pub shed: u64,
    /// How much of it is shed now, 0 to 1.
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
