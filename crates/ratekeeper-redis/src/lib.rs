//! The store that a fleet shares: ratekeeper's limits on Redis or Valkey, exactly, and never
//! hanging.
//!
//! ```no_run
//! use ratekeeper::{Ask, Limit, Store};
//! use ratekeeper_redis::RedisStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::builder("redis://127.0.0.1:6379").connect().await?;
//! let per_user = store.limit("user", Limit::per_minute(60))?;
//! let everyone = store.limit("everyone", Limit::per_second(1_000))?;
//!
//! let verdict = store.decide(&[Ask::new(&per_user, "ann"), Ask::new(&everyone, "")]).await;
//! println!("{}, decided by {}", verdict.is_allowed(), verdict.source()); // true, decided by redis
//! # Ok(()) }
//! ```
//!
//! Every process that does this with the same names holds the same limits: never too many are
//! admitted, whoever asks.
//!
//! # What it promises
//!
//! - One answer: Redis decides by the same integers as the memory store, inside one script, by its
//!   own clock.
//! - All or nothing: several limits are one round trip, and charged together or not at all.
//! - It never hangs: a decision ends within its timeout (10 ms), by each limit's
//!   [`OnFailure`](ratekeeper::store::OnFailure), and [`Verdict::source`](ratekeeper::Verdict::source)
//!   says so. Redis need not be there at the start.
//! - Keys are hashed with a secret before they leave the process.
//!
//! What a failure can add, as formulas with numbers, is in `docs/distributed.md`.

mod address;
mod batched_connection;
mod board;
mod builder;
mod cluster;
mod connection;
mod connection_handle;
mod detached;
mod fallback;
mod health;
mod inspect;
mod key;
mod lease;
mod limits;
mod limits_check;
mod maintenance;
mod permits;
mod probe;
mod random;
mod reconnecting;
mod reply;
mod request;
mod script;
mod script_call;
mod secret;
mod sentinel;
mod store;
mod store_error;

pub use board::{Notices, SharedNotice};
pub use builder::{ConnectError, RedisStoreBuilder};
pub use inspect::{Inspection, InspectionReport};
pub use key::derived_secret;
pub use lease::table::LeaseStats;
pub use limits_check::LimitsMismatch;
pub use store::{RedisStats, RedisStatus, RedisStore};
pub use store_error::{MAXMEMORY_ADVICE, MAXMEMORY_POLICY, StoreError};
