//! [`Control`] and [`Controller`]: the algorithm that moves an adaptive concurrency limit, and its
//! state machine.

use super::aimd::Aimd;
use super::baseline::Baseline;
use super::gradient2::Gradient2;
use crate::clock::Timestamp;
use core::time::Duration;

/// The algorithm of an adaptive concurrency limit, with its settings.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::adaptive::{AdaptiveConcurrency, Control};
///
/// let limit = AdaptiveConcurrency::builder()
///     .control(Control::aimd().timeout(Duration::from_millis(500)))
///     .build();
/// assert_eq!(limit.limit(), 20);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Control {
    /// Grows by one, shrinks by a tenth.
    Aimd(Aimd),
    /// Follows latency relative to its long-term value.
    Gradient2(Gradient2),
}

impl Control {
    /// Additive increase, multiplicative decrease, with default settings.
    pub fn aimd() -> Aimd {
        Aimd::default()
    }

    /// Latency relative to its long-term value, with default settings.
    pub fn gradient2() -> Gradient2 {
        Gradient2::default()
    }

    /// Its name: `aimd` or `gradient2`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Aimd(_) => "aimd",
            Self::Gradient2(_) => "gradient2",
        }
    }

    /// The latency from which a request counts as dropped, however it ended.
    pub fn drops_after(&self) -> Option<Duration> {
        match self {
            Self::Aimd(aimd) => aimd.timeout,
            Self::Gradient2(gradient2) => gradient2.latency.timeout,
        }
    }

    /// Creates the bare state machine, between `min` and `max`: for simulations.
    pub fn controller(self, min: u64, max: u64, start: u64) -> Controller {
        let bounds = Bounds::new(min, max);
        Controller {
            control: self,
            bounds,
            state: ControllerState::starting_at(bounds.whole(start as f64)),
        }
    }
}

impl From<Aimd> for Control {
    fn from(aimd: Aimd) -> Self {
        Self::Aimd(aimd)
    }
}

impl From<Gradient2> for Control {
    fn from(gradient2: Gradient2) -> Self {
        Self::Gradient2(gradient2)
    }
}

/// A measurement of the requests of a window, or of a single request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// The average latency of the requests that were not dropped. Zero if all were.
    pub latency: Duration,
    /// The most requests in flight when one of them began, itself included.
    pub in_flight: u64,
    /// Whether requests were dropped, or took so long that they count as dropped.
    pub dropped: bool,
    /// When the window ended.
    pub now: Timestamp,
}

/// An adaptive limit as a pure state machine: samples in, limits out. Time is part of the sample.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::adaptive::{Control, Sample};
/// use ratekeeper::Timestamp;
///
/// let mut controller = Control::from(Control::aimd()).controller(5, 200, 20);
/// let sample = Sample { latency: Duration::from_millis(10), in_flight: 20, dropped: false, now: Timestamp::UNIX_EPOCH };
/// assert_eq!(controller.sample(sample), 21);
/// assert_eq!(controller.sample(Sample { dropped: true, ..sample }), 18);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Controller {
    control: Control,
    bounds: Bounds,
    pub(super) state: ControllerState,
}

impl Controller {
    /// Processes a sample, and returns the new limit.
    pub fn sample(&mut self, sample: Sample) -> u64 {
        let state = &mut self.state;
        match &self.control {
            Control::Aimd(aimd) => aimd.step(state, &sample),
            Control::Gradient2(gradient2) => gradient2.step(self.bounds, state, &sample),
        }
        state.limit = self.bounds.clamp(state.limit);
        self.limit()
    }

    /// Ends a probe that has expired without a sample; called when the limit is found in use at
    /// `now`. Returns the limit.
    pub fn tick(&mut self, now: Timestamp) -> u64 {
        self.state.baseline.end_if_expired(now);
        self.limit()
    }

    /// How many may be in flight.
    pub fn limit(&self) -> u64 {
        let limit = self.state.limit;
        let in_force = match (&self.control, self.state.baseline.is_probing()) {
            (Control::Gradient2(gradient2), true) => gradient2.probe_limit(limit),
            _ => limit,
        };
        self.bounds.whole(in_force)
    }

    /// Until when the limit is lowered for a probe; `None` if it is not.
    pub fn probing_until(&self) -> Option<Timestamp> {
        self.state
            .baseline
            .is_probing()
            .then_some(self.state.baseline.probe_until)
    }

    /// The baseline that latency is compared with, once it is known. AIMD has none.
    pub fn baseline(&self) -> Option<Duration> {
        duration(self.state.baseline.long)
    }
}

/// The minimum and maximum of a limit. At least one, or nothing would ever be measured again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Bounds {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Bounds {
    pub(super) fn new(min: u64, max: u64) -> Self {
        let min = min.clamp(1, MAX_PERMITS);
        Self {
            min,
            max: max.clamp(min, MAX_PERMITS),
        }
    }

    pub(super) fn clamp(self, limit: f64) -> f64 {
        // Neither comparison holds for NaN.
        let limit = if limit > self.min as f64 {
            limit
        } else {
            self.min as f64
        };
        if limit < self.max as f64 {
            limit
        } else {
            self.max as f64
        }
    }

    /// The limit in whole permits.
    pub(super) fn whole(self, limit: f64) -> u64 {
        self.clamp(limit) as u64
    }
}

/// More permits than this are as good as no limit; shares of it still fit 64 bits.
const MAX_PERMITS: u64 = u32::MAX as u64;

/// The state of a controller.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ControllerState {
    /// The limit, including fractions of a permit.
    pub(super) limit: f64,
    /// The latency of the last sample, in nanoseconds; zero before the first.
    pub(super) short: f64,
    pub(super) baseline: Baseline,
}

impl ControllerState {
    pub(super) fn starting_at(limit: u64) -> Self {
        Self {
            limit: limit as f64,
            short: 0.0,
            baseline: Baseline::default(),
        }
    }

    /// Whether less than half of the limit was in use: such samples say nothing about a higher
    /// limit.
    pub(super) fn is_idle(&self, sample: &Sample) -> bool {
        (sample.in_flight as f64) < self.limit / 2.0
    }

    pub(super) fn to_words(self) -> [u64; ControllerState::WORDS] {
        let Baseline {
            long,
            last_update,
            last_probe,
            calm_probes,
            probe_until,
        } = self.baseline;
        let [limit, short, long] = [self.limit, self.short, long].map(f64::to_bits);
        let [last_update, last_probe, probe_until] =
            [last_update, last_probe, probe_until].map(Timestamp::as_unix_nanos);
        [
            limit,
            short,
            long,
            last_update,
            last_probe,
            probe_until,
            u64::from(calm_probes),
        ]
    }

    pub(super) fn from_words(words: [u64; ControllerState::WORDS]) -> Self {
        let [
            limit,
            short,
            long,
            last_update,
            last_probe,
            probe_until,
            calm_probes,
        ] = words;
        let [limit, short, long] = [limit, short, long].map(f64::from_bits);
        let [last_update, last_probe, probe_until] =
            [last_update, last_probe, probe_until].map(Timestamp::from_unix_nanos);
        Self {
            limit,
            short,
            baseline: Baseline {
                long,
                last_update,
                last_probe,
                calm_probes: calm_probes as u32,
                probe_until,
            },
        }
    }

    pub(super) const WORDS: usize = 7;
    /// The indices of the two latencies among the words, for readers that need nothing else.
    pub(super) const SHORT: usize = 1;
    pub(super) const LONG: usize = 2;
}

/// Nanoseconds as a duration; `None` if there was no sample yet.
pub(super) fn duration(nanos: f64) -> Option<Duration> {
    (nanos > 0.0).then(|| Duration::from_nanos(nanos as u64))
}

/// Sets a number of the settings, clamped to its range; NaN changes nothing.
pub(super) fn set(field: &mut f64, value: f64, low: f64, high: f64) {
    if !value.is_nan() {
        *field = value.clamp(low, high);
    }
}
