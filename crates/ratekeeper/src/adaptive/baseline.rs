//! [`Baseline`]: the latency without a queue, learned while the limit is not in full use, and by
//! probes when it is.

use super::control::Sample;
use super::latency::LatencyConfig;
use crate::clock::Timestamp;
use core::time::Duration;

/// The long-term latency, and the state of the probes that keep it correct.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Baseline {
    /// In nanoseconds; zero before the first sample.
    pub(super) long: f64,
    /// When it was last updated.
    pub(super) last_update: Timestamp,
    /// When it was last probed.
    pub(super) last_probe: Timestamp,
    /// How many probes in a row confirmed the baseline: each doubles the time to the next.
    pub(super) calm_probes: u32,
    /// When the current probe expires; zero if there is none.
    pub(super) probe_until: Timestamp,
}

impl Default for Baseline {
    fn default() -> Self {
        let never = Timestamp::UNIX_EPOCH;
        Self {
            long: 0.0,
            last_update: never,
            last_probe: never,
            calm_probes: 0,
            probe_until: never,
        }
    }
}

/// The first probe comes soon: a start under full load has learned the latency with a queue.
const FIRST_PROBE_DELAY: Duration = Duration::from_secs(1);
/// The weight of a probe's measurement. It is one window, and those are noisy.
const PROBE_WEIGHT: f64 = 0.5;
/// If the latency falls below half of the baseline, the baseline follows faster than its memory.
const CATCH_UP_RATIO: f64 = 2.0;
const CATCH_UP_FACTOR: f64 = 0.95;
/// Probes that confirm the baseline within this tolerance become rarer: every 80 seconds instead of
/// every 10.
const CALM_TOLERANCE: f64 = 0.2;
const MAX_CALM_PROBES: u32 = 3;
/// Not while latency is more than this many times the baseline.
const CHANGED_RATIO: f64 = 2.0;

impl Baseline {
    pub(super) fn is_probing(&self) -> bool {
        self.probe_until > Timestamp::UNIX_EPOCH
    }

    /// Initializes the baseline with the first sample.
    pub(super) fn begin(&mut self, config: &LatencyConfig, short: f64, now: Timestamp) {
        if self.long == 0.0 {
            (self.long, self.last_update, self.last_probe) =
                (short, now, now + FIRST_PROBE_DELAY - config.probe_every);
        }
    }

    /// Learns from a latency that our own queue cannot have caused.
    pub(super) fn learn(&mut self, config: &LatencyConfig, short: f64, now: Timestamp) {
        let (since, memory) = (
            (now - self.last_update).as_nanos() as f64,
            config.memory.as_nanos() as f64,
        );
        self.long += (short - self.long) * (since / (since + memory.max(1.0))).min(PROBE_WEIGHT);
        self.last_update = now;
    }

    /// Follows a latency that has fallen far below the baseline.
    pub(super) fn catch_up(&mut self, short: f64) {
        if self.long > CATCH_UP_RATIO * short {
            self.long *= CATCH_UP_FACTOR;
        }
    }

    /// Handles a sample under full use: begins a probe if one is due. If the limit cannot shrink,
    /// the sample itself is what a probe would measure.
    pub(super) fn probe_if_due(
        &mut self,
        config: &LatencyConfig,
        sample: &Sample,
        short: f64,
        can_shrink: bool,
    ) {
        // A latency far from the baseline is probed soon.
        let calm_probes = if short > CHANGED_RATIO * self.long {
            0
        } else {
            self.calm_probes
        };
        if sample.now < self.last_probe + config.probe_every * (1 << calm_probes) {
            return;
        }
        self.last_probe = sample.now;
        if can_shrink {
            self.probe_until = sample.now + probe_timeout(short);
        } else {
            self.measure(short, sample.now);
        }
    }

    /// Handles a sample during a probe. Requests that began before the probe are ignored.
    pub(super) fn probe(&mut self, sample: &Sample, short: f64, probe_limit: u64) {
        if sample.in_flight <= probe_limit {
            self.measure(short, sample.now);
            self.probe_until = Timestamp::UNIX_EPOCH;
        } else {
            self.end_if_expired(sample.now);
        }
    }

    /// Ends a probe that has expired.
    pub(super) fn end_if_expired(&mut self, now: Timestamp) {
        if now >= self.probe_until {
            self.probe_until = Timestamp::UNIX_EPOCH;
        }
    }

    fn measure(&mut self, short: f64, now: Timestamp) {
        let as_known = (short - self.long).abs() <= CALM_TOLERANCE * self.long;
        self.calm_probes = if as_known {
            (self.calm_probes + 1).min(MAX_CALM_PROBES)
        } else {
            0
        };
        self.long += (short - self.long) * PROBE_WEIGHT;
        self.last_update = now;
    }
}

/// How long a probe may take: requests in flight must end, then a window must be filled. Requests
/// that last for minutes must not hold the limit down for minutes.
fn probe_timeout(short: f64) -> Duration {
    const LATENCIES: f64 = 12.0;
    let wanted = Duration::from_nanos((short * LATENCIES) as u64);
    wanted.clamp(Duration::from_millis(500), Duration::from_secs(10))
}
