//! A tollgate service as a store: programs that ask the same service hold the same limits, exactly, and never hang.
//!
//! ```no_run
//! use tollgate::{Ask, Limit, Store};
//! use tollgate_remote::RemoteStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RemoteStore::builder("http://127.0.0.1:8080").connect().await?;
//! let per_user = store.limit("user", Limit::per_minute(60))?;
//! let everyone = store.limit("everyone", Limit::per_second(1_000))?;
//!
//! let verdict = store.decide(&[Ask::new(&per_user, "ann"), Ask::new(&everyone, "")]).await;
//! println!("{}, decided by {}", verdict.is_allowed(), verdict.source()); // true, decided by remote
//! # Ok(()) }
//! ```
//!
//! What is written for any [`Store`](tollgate::Store) runs on it: policies (`tollgate_policy::Engine`) and the layers of
//! `tollgate_tower`. Limits of one name and one algorithm are one limit at the service, whichever client asks; if clients say
//! different things of it, the latest holds for all.
//!
//! # What it promises
//!
//! - One answer: the service decides with its own store, and its figures come as it has them, to the nanosecond.
//! - All or nothing: several limits are one round trip, and charged together or not at all.
//! - It never hangs: a decision ends within its timeout (25 ms), by each limit's [`OnFailure`](tollgate::OnFailure), and
//!   [`Verdict::source`](tollgate::Verdict::source) says so. The service need not be there at the start.
//! - Permits of a client that is gone come back by themselves, within ten seconds.
//!
//! What a failure can add is in `docs/remote.md`.

mod address;
mod builder;
mod fallback;
mod health;
mod keeper;
mod lane;
mod limits;
mod link;
mod queue;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod trouble;
mod verdicts;
pub mod wire;

pub use address::ConnectError;
pub use builder::RemoteStoreBuilder;
pub use store::{Counts, RemoteStore, Status};
pub use trouble::Trouble;
