//! Figures: what a policy decided, how long deciding took, which keys are the heaviest. Written on
//! the hot path without a lock, added up when somebody asks.

mod histogram;
mod sketch;
mod stripes;
mod tally;

pub(crate) use histogram::Histogram;
pub use histogram::HistogramSnapshot;
pub(crate) use sketch::{HeavyHitter, KeyBytes, Sketch, StoredKey};
pub use tally::DecisionStats;
pub(crate) use tally::{Event, Tally};
