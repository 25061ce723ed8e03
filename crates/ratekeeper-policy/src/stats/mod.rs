//! Statistics: decisions of policies, decision times, and top keys. They are written on the hot
//! path without a lock, and added up by the reader.

mod histogram;
mod sketch;
mod stripes;
mod tally;

pub(crate) use histogram::Histogram;
pub use histogram::HistogramSnapshot;
pub(crate) use sketch::{HeavyHitter, KeyBytes, Sketch, StoredKey};
pub use tally::DecisionStats;
pub(crate) use tally::{Event, Tally};
