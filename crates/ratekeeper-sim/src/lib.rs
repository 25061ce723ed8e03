//! Simulation of a service under load on virtual time: calls arrive whether or not earlier ones
//! were answered, an admission control allows or denies them, the service has a number of workers
//! and a queue, and clients time out.
//!
//! The admission controls are the real limits of `ratekeeper`, on its manual clock; everything else
//! is simulated, with fixed seeds, so the result is the same every time and on every machine. The
//! tests of this crate check what the limits promise; `docs/plots` draws the same runs for
//! docs/overload.md.
//!
//! Times are nanoseconds since the start of the run.

mod admission_control;
mod presets;
mod rng;
mod run_outcome;
mod scenario;
mod schedule;
mod simulation;

pub use admission_control::{
    AdmissionControl, ClassedLimit, NoLimit, PartitionedLimit, QueuedLimit, SheddingLimit, Wait,
};
pub use presets::{adaptive, burst_load, classed, controls, fixed, four_classes, queued, shed};
pub use rng::Rng;
pub use run_outcome::{CallRecord, LimitSample, RunOutcome};
pub use scenario::{Backend, Scenario, Stream};
pub use schedule::Schedule;

/// A millisecond.
pub const MILLI: u64 = 1_000_000;
/// A second.
pub const SECOND: u64 = 1_000 * MILLI;
/// A minute.
pub const MINUTE: u64 = 60 * SECOND;
