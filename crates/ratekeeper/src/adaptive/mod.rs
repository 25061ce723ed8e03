//! Adaptive limits: a rate that follows the load of the machine ([`Adaptive`]), a concurrency limit
//! that follows how the service responds ([`AdaptiveConcurrency`]), and load shedding by importance
//! ([`Class`], `Shedder`).
//!
//! # Adaptive concurrency
//!
//! A concurrency limit that was right yesterday is wrong when the machine, the backend or the
//! traffic changes. An [`AdaptiveConcurrency`] finds the limit by itself, from how long requests
//! take and which are dropped. Its algorithm is a [`Control`]:
//!
//! | control | shrinks | grows | use |
//! | --- | --- | --- | --- |
//! | [`Aimd`] | by a tenth when requests are dropped or take longer than a timeout | by 1 | if overload shows as errors or timeouts |
//! | [`Gradient2`] | as latency rises over its long-term value | by its `queue` | the default: if overload shows as latency |
//!
//! Each is a pure state machine ([`Controller`]), for simulations and tests.
//!
//! **Windows.** Requests are measured in windows of twice their latency, 50 ms to a second, at
//! least 10 requests: a request costs one atomic add, and the one that finds a window complete
//! takes the step. Where more than 4,096 come in one, every second, fourth … or 64th is measured
//! and stands for the others; drops are all counted. A window counts as dropped if over 1 % of its
//! requests were dropped. In windows where less than half of the limit was used the limit does not
//! grow.
//!
//! **Baseline latency.** The latency of a service without a queue is not known, and cannot be
//! measured under load: a plain average over a long time follows the queue up, and the limit with
//! it. So `Gradient2` learns it only from windows where less than half of the limit was used, and
//! by *probes*: while the limit is in full use, every 10 seconds it falls for a few latencies to
//! half of what the service should be able to work on at once, and the latency there counts. While
//! probes confirm the baseline they become rarer, down to every 80 seconds. A baseline that was
//! learned too high is so corrected, however long an incident lasts; a service that really became
//! slower is learned too.
//!
//! **Waiting.** A request that finds no permit is denied at once. With an [`AdaptiveQueue`] in
//! front it may wait, briefly (feature `tokio`).

mod adaptive_concurrency;
mod aimd;
mod baseline;
mod builder;
mod control;
mod gradient2;
mod latency;
mod load_following;
mod partitions;
mod permit;
mod shed;
#[cfg(feature = "std")]
mod wait_queue;
mod window;

pub use adaptive_concurrency::{AdaptiveConcurrency, AtCapacityError, Snapshot};
pub use aimd::Aimd;
pub use builder::AdaptiveConcurrencyBuilder;
pub use control::{Control, Controller, Sample};
pub use gradient2::Gradient2;
pub use load_following::{Adaptive, AdaptiveBuilder, Load, RateChange};
pub use partitions::{Partition, PartitionShareError};
pub use permit::{AdaptivePermit, RequestOutcome};
pub use shed::{Class, ParseClassError};
#[cfg(feature = "std")]
pub use shed::{ClassStats, Shedder, ShedderBuilder, ShedderStats};
#[cfg(feature = "std")]
pub use wait_queue::{
    AdaptiveQueue, AdaptiveQueueError, QueueConfig, QueueTicket, QueueWait, QueuedPermit,
};
