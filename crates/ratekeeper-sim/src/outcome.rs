//! What became of the calls.

use crate::SECOND;
use std::ops::Range;

/// One try of one call.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When it came.
    pub at: u64,
    /// Of which stream.
    pub stream: usize,
    /// How often it had been tried before.
    pub tried: u32,
    /// Whether the gate let it in.
    pub admitted: bool,
    /// How long it was in the service; none while it still is.
    pub took: Option<u64>,
    /// How long its client stays.
    pub patience: u64,
}

impl Record {
    /// Answered while its client was there.
    pub fn good(&self) -> bool {
        self.took.is_some_and(|took| took <= self.patience)
    }
}

/// The limit at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When.
    pub at: u64,
    /// What it was.
    pub limit: u64,
    /// Whether it was held low for a moment, to measure something.
    pub probing: bool,
    /// How much was shed, counted in classes.
    pub level: f64,
}

/// All of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every try, in the order in which they came.
    pub records: Vec<Record>,
    /// The limit, noted again and again.
    pub looks: Vec<Look>,
}

impl Outcome {
    /// What came in that time.
    pub fn between(&self, when: Range<u64>) -> impl Iterator<Item = &Record> {
        let place = |at| self.records.partition_point(|record| record.at < at);
        self.records[place(when.start)..place(when.end)].iter()
    }

    /// Calls that came in that time and were answered in time, a second.
    pub fn goodput(&self, when: Range<u64>) -> f64 {
        let good = self
            .between(when.clone())
            .filter(|record| record.good())
            .count();
        good as f64 * SECOND as f64 / (when.end - when.start) as f64
    }

    /// The share of the tries of a stream that were answered in time; 1 if there were none.
    pub fn served(&self, stream: usize, when: Range<u64>) -> f64 {
        let own = || {
            self.between(when.clone())
                .filter(|record| record.stream == stream)
        };
        match own().count() {
            0 => 1.0,
            all => own().filter(|record| record.good()).count() as f64 / all as f64,
        }
    }

    /// How long 99 in 100 of the admitted had their answer within; a client that leaves has waited
    /// as long as it stayed.
    pub fn p99(&self, when: Range<u64>) -> u64 {
        let admitted = self.between(when).filter(|record| record.admitted);
        let mut waits: Vec<u64> = admitted
            .map(|record| record.took.unwrap_or(u64::MAX).min(record.patience))
            .collect();
        waits.sort_unstable();
        waits
            .get((waits.len() * 99 / 100).min(waits.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    }

    /// The least and the greatest limit of that time, but for the moments of probes.
    pub fn band(&self, when: Range<u64>) -> (u64, u64) {
        let seen = || {
            self.looks
                .iter()
                .filter(|look| when.contains(&look.at) && !look.probing)
                .map(|look| look.limit)
        };
        (seen().min().unwrap_or(0), seen().max().unwrap_or(0))
    }
}
