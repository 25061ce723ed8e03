//! [`RunOutcome`]: the records of all calls of a run, and statistics on them.

use crate::SECOND;
use std::ops::Range;

/// One attempt of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    /// When it arrived.
    pub at: u64,
    /// Its stream.
    pub stream: usize,
    /// How many attempts there were before.
    pub retries_before: u32,
    /// Whether it was allowed.
    pub admitted: bool,
    /// The time from arrival to response; `None` while it is in the service.
    pub latency: Option<u64>,
    /// The timeout of its client.
    pub timeout: u64,
}

impl CallRecord {
    /// Whether it was answered before its client timed out.
    pub fn is_in_time(&self) -> bool {
        self.latency.is_some_and(|latency| latency <= self.timeout)
    }
}

/// The limit at one instant.
#[derive(Clone, Copy, Debug)]
pub struct LimitSample {
    /// When.
    pub at: u64,
    /// The limit.
    pub limit: u64,
    /// Whether it was lowered for a moment by a probe.
    pub probing: bool,
    /// How much was shed, counted in classes.
    pub level: f64,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// Every attempt, in order of arrival.
    pub records: Vec<CallRecord>,
    /// Periodic samples of the limit.
    pub limit_samples: Vec<LimitSample>,
}

impl RunOutcome {
    /// The attempts that arrived in that time.
    pub fn between(&self, when: Range<u64>) -> impl Iterator<Item = &CallRecord> {
        let index = |at| self.records.partition_point(|record| record.at < at);
        self.records[index(when.start)..index(when.end)].iter()
    }

    /// Calls per second that arrived in that time and were answered in time.
    pub fn goodput(&self, when: Range<u64>) -> f64 {
        let good = self
            .between(when.clone())
            .filter(|record| record.is_in_time())
            .count();
        good as f64 * SECOND as f64 / (when.end - when.start) as f64
    }

    /// The share of a stream's attempts that were answered in time; 1 if there were none.
    pub fn served(&self, stream: usize, when: Range<u64>) -> f64 {
        let own = || {
            self.between(when.clone())
                .filter(|record| record.stream == stream)
        };
        match own().count() {
            0 => 1.0,
            all => own().filter(|record| record.is_in_time()).count() as f64 / all as f64,
        }
    }

    /// The 99th percentile latency of allowed calls; one whose client timed out counts with its
    /// timeout.
    pub fn p99(&self, when: Range<u64>) -> u64 {
        let admitted = self.between(when).filter(|record| record.admitted);
        let mut waits: Vec<u64> = admitted
            .map(|record| record.latency.unwrap_or(u64::MAX).min(record.timeout))
            .collect();
        waits.sort_unstable();
        waits
            .get((waits.len() * 99 / 100).min(waits.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    }

    /// The minimum and maximum limit in that time, except during probes.
    pub fn band(&self, when: Range<u64>) -> (u64, u64) {
        let seen = || {
            self.limit_samples
                .iter()
                .filter(|look| when.contains(&look.at) && !look.probing)
                .map(|look| look.limit)
        };
        (seen().min().unwrap_or(0), seen().max().unwrap_or(0))
    }
}
