//! Rate limiting that is exact: decide, reserve, wait and change limits live, on one atomic word.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod algorithm;
mod clock;
mod decision;
mod limit;
mod limiter;
mod sync;

#[cfg(feature = "fast-clock")]
pub use clock::FastClock;
#[cfg(feature = "tokio")]
pub use clock::Sleep;
pub use clock::{Clock, DefaultClock, Instant, ManualClock};
#[cfg(feature = "std")]
pub use clock::{CoarseClock, SystemClock};
pub use decision::{Decision, Denied, Outcome};
pub use limit::{Algorithm, Effective, Limit, NotARate, ParseLimitError, Problem, Rate};
pub use limiter::{At, Carry, Charge, Counts, Limiter, Reservation};
#[cfg(feature = "std")]
pub use limiter::{Wait, WaitError};
