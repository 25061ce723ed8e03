//! Shedding by priority: under pressure the least important goes first, a share at a time.

mod class;
#[cfg(feature = "std")]
mod level;
#[cfg(feature = "std")]
mod shedder;

pub use class::{Class, ParseClassError};
#[cfg(feature = "std")]
pub use shedder::{ClassStats, Shedder, ShedderBuilder, ShedderStats};
