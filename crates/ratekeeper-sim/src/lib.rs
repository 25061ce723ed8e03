//! A service under load on virtual time: calls come in whether or not earlier ones were answered, a
//! gate lets them in or turns them away, the service has so many workers and a queue, and clients
//! do not wait for ever.
//!
//! The gates are the real ones of `ratekeeper`, on its manual clock; everything else is simulated,
//! with fixed seeds, so the same comes out every time and on every machine. The tests of this crate
//! hold the gates to what they promise; `docs/plots` draws the same runs for docs/overload.md.
//!
//! Times are nanoseconds since the beginning.

mod gate;
mod lineup;
mod outcome;
mod plan;
mod rng;
mod scenario;
mod world;

pub use gate::{Classed, Gate, Open, Parted, Queued, Shed, Wait};
pub use lineup::{adaptive, burst_load, classed, controls, fixed, four_classes, queued, shed};
pub use outcome::{Look, Outcome, Record};
pub use plan::Plan;
pub use rng::Rng;
pub use scenario::{Backend, Scenario, Stream};

/// A millisecond.
pub const MILLI: u64 = 1_000_000;
/// A second.
pub const SECOND: u64 = 1_000 * MILLI;
/// A minute.
pub const MINUTE: u64 = 60 * SECOND;
