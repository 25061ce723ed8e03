//! Load shedding by class: under overload the least important requests are shed first, a share at a
//! time.

mod class;
#[cfg(feature = "std")]
mod level;
#[cfg(feature = "std")]
mod shedder;

pub use class::{Class, ParseClassError};
#[cfg(feature = "std")]
pub use shedder::{ClassStats, Shedder, ShedderBuilder, ShedderStats};
