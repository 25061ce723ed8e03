//! Log sampling for [`tracing_subscriber`]: events of a callsite that logs too often are sampled,
//! the others are left alone.
//!
//! ```
//! use ratekeeper_tracing::Sampler;
//! use tracing_subscriber::{fmt, prelude::*};
//!
//! let sampler = Sampler::default();
//! tracing_subscriber::registry().with(sampler.layer(fmt::layer())).init();
//!
//! for key in 0..5_000 {
//!     tracing::debug!(key, "cache miss"); // shown: the first 10, then every 1000th
//! }
//! let stats = sampler.stats();
//! assert_eq!((stats.total, stats.sampled), (5_000, 14));
//! ```
//!
//! prints
//!
//! ```text
//! DEBUG shop::cache: cache miss key=0
//! …
//! DEBUG shop::cache: cache miss key=9
//! DEBUG shop::cache: cache miss key=1000
//! DEBUG shop::cache: similar events were suppressed suppressed=990
//! DEBUG shop::cache: cache miss key=2000
//! DEBUG shop::cache: similar events were suppressed suppressed=999
//! ```
//!
//! # Default rules
//!
//! Each callsite (each `debug!` in the source) is counted on its own, by the rule of its level:
//!
//! | level | shown |
//! | --- | --- |
//! | trace, debug | the first 10, every 1000th, and one if none was shown for an hour |
//! | info | the first 100, every 100th, and one if none was shown for 10 minutes |
//! | warn | the first 1000, every 10th, and one if none was shown for a minute |
//! | error | 10 per second, burst 50 |
//! | critical | all |
//!
//! Spans are never sampled. Levels and targets can have [`Rules`] of their own:
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::Limit;
//! use ratekeeper_tracing::{Rules, Sampler, Sampling};
//! use tracing_core::Level;
//!
//! let rules = Rules::new()
//!     .level(Level::INFO, Sampling::Sometimes { first: 20, every: 500, interval: Duration::from_secs(60) })
//!     .level(Level::ERROR, Limit::per_minute(100))
//!     .target("audit", Sampling::All)
//!     .target_level("hyper", Level::DEBUG, Sampling::Sometimes { first: 1, every: 0, interval: Duration::ZERO });
//! let sampler = Sampler::new(rules);
//! ```
//!
//! # Critical events
//!
//! [`tracing`](https://docs.rs/tracing) has no level above error. An event is critical if it has a
//! field of that name, with any value and level, or if the predicate given to [`Rules::critical`]
//! returns true:
//!
//! ```
//! tracing::error!(critical = true, "the ledger does not add up");
//! ```
//!
//! # Reports of suppressed events
//!
//! When an event of a callsite is shown after others were suppressed, another event with its level
//! and target follows with the number of `suppressed` events. [`Sampler::stats`] counts all events,
//! those shown, and since when.
//!
//! # One layer or all layers
//!
//! [`Sampler::layer`] samples what that one layer sees; the others see everything. Add other
//! filters around it, so that events they reject are not counted:
//! `sampler.layer(fmt::layer()).with_filter(LevelFilter::INFO)`. A filter for all layers, such as
//! an `EnvFilter`, is added after it.
//!
//! A suppressed event then still costs what tracing does for an event that a layer's filter
//! rejects: its fields are evaluated and it visits the layers. If no other layer needs it, let the
//! sampler filter for all layers. A suppressed event then ends at its callsite, and its fields are
//! not evaluated:
//!
//! ```
//! # use ratekeeper_tracing::Sampler;
//! # use tracing_subscriber::{fmt, prelude::*};
//! let sampler = Sampler::default();
//! tracing_subscriber::registry()
//!     .with(sampler.reporting(fmt::layer())) // reports suppressed events
//!     .with(sampler.clone()) // suppresses them
//!     .init();
//! ```
//!
//! The sampler is a [`Filter`](tracing_subscriber::layer::Filter) too, for `with_filter` and its
//! combinations. Clones share their counts, so a second layer that samples by itself needs a
//! sampler of its own.
//!
//! # Records of the `log` crate
//!
//! Records of the `log` crate are sampled by their target, file and line, once they have become
//! events (`tracing_log::LogTracer`, which `init` installs).
//!
//! # Bounds
//!
//! A sampler takes 64 kB, and 128 bytes for each callsite that was reached. After 3,072 callsites,
//! further ones share one count per level. A suppressed event takes no lock and allocates nothing.

mod callsite_key;
mod callsite_state;
mod log_record;
mod reporting_layer;
mod rules;
mod sampler;

pub use reporting_layer::ReportingLayer;
pub use rules::{Rules, Sampling};
pub use sampler::{Sampler, SamplerStats};
