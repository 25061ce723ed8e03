//! Limits that move with the load.

mod by_load;

pub use by_load::{Adaptive, AdaptiveBuilder, Change, Load};
