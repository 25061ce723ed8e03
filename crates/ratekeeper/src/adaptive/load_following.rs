//! [`Adaptive`]: a rate limiter whose limit shrinks when the machine is busy and grows when it is
//! not.

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::Decision;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

/// The load of a machine: used shares from 0 to 1. A share that is not known is [`f64::NAN`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// The share of the processors that is in use.
    pub cpu: f64,
    /// The share of the memory that is in use.
    pub memory: f64,
}

/// A change of an adaptive limit, as passed to [`on_change`](AdaptiveBuilder::on_change).
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct RateChange {
    /// When the limit changed.
    pub at: Timestamp,
    /// The limit before.
    pub from: Limit,
    /// The new limit.
    pub to: Limit,
    /// The load that caused the change.
    pub load: Load,
}

/// A rate limiter whose limit moves between two limits, following the load of the machine.
///
/// It starts in the middle. Every 5 seconds it checks the load: above 70 % of the processors or 80
/// % of the memory the limit shrinks by a fifth, below it grows by a fifth, and after a change it
/// stays for 30 seconds. All of that can be set. Tokens and debt carry over. Nothing runs in the
/// background: the call that finds a check due makes it.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{adaptive::Adaptive, Limit, adaptive::Load, ManualClock};
///
/// let clock = ManualClock::new();
/// let adaptive = Adaptive::between(Limit::per_second(100), Limit::per_second(300))
///     .on_change(|change| println!("{} became {} at {:?}", change.from, change.to, change.load))
///     .build_with_clock(|| Load { cpu: 0.9, memory: 0.3 }, clock.clone());
///
/// assert_eq!(adaptive.limiter().limit(), Limit::per_second(200));
/// clock.advance(Duration::from_secs(5));
/// assert!(adaptive.check().is_allowed());
/// assert_eq!(adaptive.limiter().limit(), Limit::per_second(160));
/// ```
pub struct Adaptive<C: Clock = SystemClock> {
    limiter: Limiter<C>,
    /// When the next load check is due, in nanoseconds since 1970.
    due: AtomicU64,
    /// The current count, in thousandths, so that small limits move too.
    count: AtomicU64,
    /// 1 while a thread checks the load.
    updating: AtomicU32,
    settings: LoadFollowingConfig,
}

struct LoadFollowingConfig {
    min: Limit,
    max: Limit,
    cpu: f64,
    memory: f64,
    step: f64,
    every: Duration,
    cool_down: Duration,
    load: Box<dyn Fn() -> Load + Send + Sync>,
    on_change: Box<dyn Fn(&RateChange) + Send + Sync>,
}

/// The settings of an [`Adaptive`] limit, each with its default.
pub struct AdaptiveBuilder {
    settings: LoadFollowingConfig,
}

impl Adaptive {
    /// Returns a builder for a limit between `min` and `max`, which share their period and
    /// algorithm (those of `max` are taken).
    pub fn between(min: Limit, max: Limit) -> AdaptiveBuilder {
        AdaptiveBuilder {
            settings: LoadFollowingConfig {
                min,
                max,
                cpu: 0.7,
                memory: 0.8,
                step: 0.2,
                every: Duration::from_secs(5),
                cool_down: Duration::from_secs(30),
                load: Box::new(|| Load {
                    cpu: f64::NAN,
                    memory: f64::NAN,
                }),
                on_change: Box::new(|_| {}),
            },
        }
    }
}

impl AdaptiveBuilder {
    /// Above this share of the processors the limit shrinks; 0.7 unless set.
    #[must_use]
    pub fn cpu_above(mut self, share: f64) -> Self {
        self.settings.cpu = share;
        self
    }

    /// Above this share of the memory the limit shrinks; 0.8 unless set.
    #[must_use]
    pub fn memory_above(mut self, share: f64) -> Self {
        self.settings.memory = share;
        self
    }

    /// The share by which the limit moves each time; 0.2 unless set.
    #[must_use]
    pub fn step(mut self, share: f64) -> Self {
        self.settings.step = share;
        self
    }

    /// How often the load is checked; every 5 seconds unless set.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.settings.every = interval;
        self
    }

    /// The minimum time between two changes; 30 seconds unless set.
    #[must_use]
    pub fn cool_down(mut self, rest: Duration) -> Self {
        self.settings.cool_down = rest;
        self
    }

    /// A callback for every change, run by the call that makes it.
    #[must_use]
    pub fn on_change(mut self, callback: impl Fn(&RateChange) + Send + Sync + 'static) -> Self {
        self.settings.on_change = Box::new(callback);
        self
    }

    /// Builds the limiter, which calls `load` when a check is due.
    #[cfg(feature = "std")]
    pub fn build(self, load: impl Fn() -> Load + Send + Sync + 'static) -> Adaptive {
        self.build_with_clock(load, crate::clock::SystemClock)
    }

    /// Builds the limiter on a clock of your choice.
    pub fn build_with_clock<C: Clock>(
        mut self,
        load: impl Fn() -> Load + Send + Sync + 'static,
        clock: C,
    ) -> Adaptive<C> {
        self.settings.load = Box::new(load);
        let (min, max) = self.settings.range();
        let count = min + (max - min) / 2;
        let due = clock.now() + self.settings.every;
        Adaptive {
            limiter: Limiter::with_clock(self.settings.limit(count), clock),
            due: AtomicU64::new(due.as_unix_nanos()),
            count: AtomicU64::new(count),
            updating: AtomicU32::new(0),
            settings: self.settings,
        }
    }
}

impl<C: Clock> Adaptive<C> {
    /// [`Limiter::check`], after a check of the load if one is due.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// [`Limiter::check_n`], after a check of the load if one is due.
    #[inline(always)]
    pub fn check_n(&self, cost: u64) -> Decision {
        let now = self.limiter.clock().now();
        if now.as_unix_nanos() >= self.due.load(Ordering::Relaxed) {
            self.update_if_due(now);
        }
        self.limiter.at(now).check_n(cost)
    }

    /// Checks the load if that is due: for programs whose calls are rare, or go through
    /// [`limiter`](Self::limiter).
    pub fn tick(&self) {
        let now = self.limiter.clock().now();
        if now.as_unix_nanos() >= self.due.load(Ordering::Relaxed) {
            self.update_if_due(now);
        }
    }

    /// The limiter itself, with all its methods.
    pub fn limiter(&self) -> &Limiter<C> {
        &self.limiter
    }

    #[cold]
    fn update_if_due(&self, now: Timestamp) {
        // One thread checks; the others go on with the current limit.
        if self
            .updating
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        if now.as_unix_nanos() >= self.due.load(Ordering::Relaxed) {
            let rest = self.adapt(now);
            self.due
                .store((now + rest).as_unix_nanos(), Ordering::Relaxed);
        }
        self.updating.store(0, Ordering::Release);
    }

    /// Moves the limit by the load; returns the time to the next check.
    fn adapt(&self, now: Timestamp) -> Duration {
        let settings = &self.settings;
        let load = (settings.load)();
        // An unknown load is no reason to move.
        if load.cpu.is_nan() && load.memory.is_nan() {
            return settings.every;
        }
        let busy = load.cpu > settings.cpu || load.memory > settings.memory;
        let factor = if busy {
            1.0 - settings.step
        } else {
            1.0 + settings.step
        };
        let before = self.count.load(Ordering::Relaxed);
        let (min, max) = settings.range();
        let after = ((before as f64 * factor) as u64).clamp(min, max);
        let (from, to) = (self.limiter.limit(), settings.limit(after));
        self.count.store(after, Ordering::Relaxed);
        if from == to {
            return settings.every;
        }
        self.limiter.at(now).set_limit(to);
        (settings.on_change)(&RateChange {
            at: now,
            from,
            to,
            load,
        });
        settings.cool_down.max(settings.every)
    }
}

/// Thousandths per unit.
const THOUSANDTHS: u64 = 1_000;

impl LoadFollowingConfig {
    /// The minimum and maximum count, in thousandths.
    fn range(&self) -> (u64, u64) {
        let count = |limit: &Limit| {
            limit
                .rate()
                .map_or(0, |rate| rate.count().saturating_mul(THOUSANDTHS))
        };
        let (min, max) = (count(&self.min), count(&self.max));
        (min.min(max), max.max(min))
    }

    /// The limit with this count; the burst moves as the count does.
    fn limit(&self, count: u64) -> Limit {
        let (min, max) = self.range();
        let Some(rate) = self.max.rate() else {
            return self.max;
        };
        let limit =
            Limit::of(count / THOUSANDTHS, rate.period()).algorithm(self.max.algorithm_kind());
        let (low, high) = (
            self.min.capacity().min(self.max.capacity()),
            self.max.capacity().max(self.min.capacity()),
        );
        let grown =
            u128::from(high - low) * u128::from(count - min) / u128::from((max - min).max(1));
        limit.burst(low + grown as u64)
    }
}

impl<C: Clock> fmt::Debug for Adaptive<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive")
            .field("limiter", &self.limiter)
            .field("min", &self.settings.min)
            .field("max", &self.settings.max)
            .finish()
    }
}

impl fmt::Debug for AdaptiveBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveBuilder")
            .field("min", &self.settings.min)
            .field("max", &self.settings.max)
            .finish()
    }
}
