//! Limits that move: a rate that follows the load of the machine ([`Adaptive`]), and a number of
//! permits that follows how the service answers ([`AdaptiveConcurrency`]); and who goes first when
//! there is too much ([`Class`], `Shedder`).
//!
//! # Adaptive concurrency
//!
//! A number of requests at once that was right yesterday is wrong when the machine, the backend or
//! the traffic changes. An [`AdaptiveConcurrency`] finds the number by itself, from how long
//! requests take and which are dropped. What it goes by is a [`Control`]:
//!
//! | control | shrinks | grows | for |
//! | --- | --- | --- | --- |
//! | [`Aimd`] | by a tenth when requests are dropped or take longer than a timeout | by 1 | where overload shows as errors or timeouts |
//! | [`Gradient2`] | as latency rises over what it is in the long run | by its queue | the default: where overload shows as latency |
//!
//! Each is a state machine that is a pure function of what it is told ([`Controller`]), for
//! simulations and tests.
//!
//! **What they share.** Requests are seen in windows of twice their latency, 50 ms to a second, at
//! least 10 requests: a request costs one atomic add, and whoever finds a window over takes the
//! step. Where more than 4,096 come in one, every second, fourth … or 64th is measured and stands
//! for the others; drops are all counted. A window is one of drops if over 1 % of it are. In
//! windows where less than half of the limit was used the limit does not grow.
//!
//! **What latency is compared with.** The latency that a service has without a queue is not known,
//! and under load it cannot be seen: a plain average over a long time follows the queue up, and the
//! limit with it. So `Gradient2` learns it only from windows where less than half of the limit was
//! used, and by *probes*: when the limit has been in full use, then every 10 seconds it falls for a
//! few latencies to half of what the service should be able to work on at once, and the latency
//! there counts. While probes find what was known they become rarer, down to every 80 seconds. What
//! was learnt too high is so brought down again, however long an incident lasts; what is truly
//! slower now is learnt too.
//!
//! **Waiting.** Whoever finds no permit is told so at once. With a `Line` in front of the gate it
//! may wait, briefly (feature `tokio`).

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
#[cfg(feature = "tokio")]
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
#[cfg(feature = "tokio")]
pub use wait_queue::{
    AdaptiveQueue, AdaptiveQueueError, QueueConfig, QueueTicket, QueueWait, QueuedPermit,
};
