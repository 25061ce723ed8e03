//! [`AdaptiveConcurrencyBuilder`]: the settings of an adaptive concurrency limit.

use super::adaptive_concurrency::AdaptiveConcurrency;
use super::control::{Bounds, Control, Controller};
use super::partitions::{PartitionShareError, Partitions};
use crate::clock::Clock;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// Builds an [`AdaptiveConcurrency`]; what [`AdaptiveConcurrency::builder`] returns.
#[derive(Clone, Debug)]
pub struct AdaptiveConcurrencyBuilder {
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) start: u64,
    pub(super) window: Duration,
    pub(super) tolerated: f64,
    pub(super) control: Control,
    partitions: Vec<(String, u64)>,
}

impl Default for AdaptiveConcurrencyBuilder {
    fn default() -> Self {
        Self {
            min: 5,
            max: 200,
            start: 20,
            window: Duration::from_millis(50),
            tolerated: 0.01,
            control: Control::gradient2().into(),
            partitions: Vec::new(),
        }
    }
}

impl AdaptiveConcurrencyBuilder {
    /// The minimum of the limit; 5 unless set, at least 1.
    #[must_use]
    pub fn min(mut self, min: u64) -> Self {
        self.min = min;
        self
    }

    /// The maximum of the limit; 200 unless set, at least the minimum.
    #[must_use]
    pub fn max(mut self, max: u64) -> Self {
        self.max = max;
        self
    }

    /// The limit at the start, before anything is measured; 20 unless set, clamped to the minimum
    /// and maximum.
    #[must_use]
    pub fn start(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// The algorithm that moves the limit; [`Control::gradient2`] unless set.
    #[must_use]
    pub fn control(mut self, control: impl Into<Control>) -> Self {
        self.control = control.into();
        self
    }

    /// The shortest window between two steps; 50 ms unless set. It is longer if requests take
    /// longer. If more than 4,096 requests come in one window, every second, fourth … or 64th is
    /// measured, so that the window keeps its length; the others read no clock.
    #[must_use]
    pub fn window(mut self, shortest: Duration) -> Self {
        self.window = shortest;
        self
    }

    /// The share of a window's requests that may be dropped before the limit shrinks; 0.01 unless
    /// set.
    #[must_use]
    pub fn tolerate_drops(mut self, share: f64) -> Self {
        super::control::set(&mut self.tolerated, share, 0.0, 1.0);
        self
    }

    /// Guarantees a share of the current limit to requests that acquire a permit in this partition.
    ///
    /// Guarantees come out of the limit, never on top of it: together they are at most 1. The rest
    /// is shared, first come, first served, by requests in a partition that is over its share and
    /// requests in none. An idle guarantee is never lent to others, since a permit cannot be taken
    /// back. The one exception is a limit that has just shrunk below what is in flight: then the
    /// owner comes first, as soon as permits have come back.
    ///
    /// A guarantee is a whole number of permits, rounded down: 0.1 of a limit of 9 is none.
    pub fn partition(
        mut self,
        name: impl Into<String>,
        share: f64,
    ) -> Result<Self, PartitionShareError> {
        let name = name.into();
        let share = Partitions::validate_share(&self.partitions, &name, share)?;
        self.partitions.push((name, share));
        Ok(self)
    }

    /// Builds it.
    #[cfg(feature = "std")]
    pub fn build(self) -> AdaptiveConcurrency {
        self.build_with_clock(crate::clock::SystemClock)
    }

    /// Builds it on a clock of your choice, by which latency is measured.
    pub fn build_with_clock<C: Clock>(mut self, clock: C) -> AdaptiveConcurrency<C> {
        let partitions = Partitions::new(core::mem::take(&mut self.partitions));
        AdaptiveConcurrency::new(self, partitions, clock)
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds::new(self.min, self.max)
    }

    pub(super) fn controller(&self) -> Controller {
        self.control.controller(self.min, self.max, self.start)
    }
}
