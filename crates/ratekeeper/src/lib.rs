//! Exact rate limiting on one atomic word: decide, reserve, wait, and change limits live.
//!
//! ```
//! use ratekeeper::{Limit, Limiter};
//!
//! let limiter = Limiter::new(Limit::per_minute(100).burst(20));
//! if limiter.check().is_allowed() {
//!     // do it
//! }
//! ```
//!
//! There is no server, no background task and no cleanup. A [`Limiter`] is a handle: clones share
//! the bucket, and any number of threads may use it.
//!
//! # What to call
//!
//! | to | call | returns |
//! | --- | --- | --- |
//! | allow or deny a call | [`check`](Limiter::check), [`check_n`](Limiter::check_n) | a [`Decision`]: allowed or denied, remaining, retry time |
//! | ask without charging | [`peek`](Limiter::peek), [`tokens`](Limiter::tokens) | the same, nothing written |
//! | charge an estimate and correct it later | [`take`](Limiter::take) | a [`Charge`] to [`settle`](Charge::settle) |
//! | plan ahead | [`reserve`](Limiter::reserve), [`reserve_within`](Limiter::reserve_within) | a [`Reservation`]: when to act, or [`cancel`](Reservation::cancel) |
//! | wait until it is allowed | [`wait`](Limiter::wait), [`wait_n`](Limiter::wait_n) | a [`Wait`](limiter::Wait): `.await` it, or call [`blocking`](limiter::Wait::blocking) |
//! | change the limit while it runs | [`set_limit`](Limiter::set_limit), [`set_burst`](Limiter::set_burst) | nothing; the tokens stay, see [`Carry`](limiter::Carry) |
//! | supply the time yourself | [`at`](Limiter::at) | the same methods at that instant |
//! | limit each of many keys | [`Keyed`] | the same methods for each key |
//! | apply several limits to one call | [`MemoryStore`] | a [`Verdict`]: all or nothing |
//!
//! # Retry times
//!
//! A denial says exactly when the same call will be allowed if there are no other calls: at that
//! time it is, a nanosecond earlier it is not.
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::{Limit, Limiter, ManualClock};
//!
//! let clock = ManualClock::new();
//! let limiter = Limiter::with_clock(Limit::per_second(3).burst(1), clock.clone());
//! assert!(limiter.check().is_allowed());
//!
//! let denied = limiter.check();
//! let after = denied.retry_after().unwrap(); // a third of a second, rounded up to a nanosecond
//! assert_eq!(after, Duration::from_nanos(333_333_334));
//!
//! clock.advance(after - Duration::from_nanos(1));
//! assert!(limiter.check().is_denied());
//! clock.advance(Duration::from_nanos(1));
//! assert!(limiter.check().is_allowed());
//! ```
//!
//! # Waiting
//!
//! Waiters are served in order of arrival. Each owns its slot, so small costs cannot starve a large
//! one, and a waiter that is not polled delays no other. A wait that would miss its deadline fails
//! at once and takes nothing; a wait that is dropped gives its slot back.
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::{Limit, Limiter, limiter::WaitError};
//!
//! let limiter = Limiter::new(Limit::per_hour(1));
//! limiter.wait().blocking()?; // the first unit is there
//! let late = limiter.wait().within(Duration::from_secs(2)).blocking();
//! assert!(matches!(late, Err(WaitError::Deadline { .. })));
//! # Ok::<_, WaitError>(())
//! ```
//!
//! With the feature `tokio`, `limiter.wait().await?` does the same on a runtime.
//!
//! # Reserving
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::{Limit, Limiter, ManualClock};
//!
//! let limiter = Limiter::with_clock(Limit::per_second(1).burst(1), ManualClock::new());
//! assert_eq!(limiter.reserve(1)?.delay(), Duration::ZERO);
//! let second = limiter.reserve(1)?;
//! assert_eq!(second.delay(), Duration::from_secs(1));
//! second.cancel(); // too long: the next caller gets the slot
//! assert_eq!(limiter.reserve(1)?.delay(), Duration::from_secs(1));
//! # Ok::<_, ratekeeper::decision::ReserveError>(())
//! ```
//!
//! # Many keys
//!
//! [`Keyed`] is a limiter for each user, address or API key, in memory of a fixed size: nothing
//! grows, nothing must be cleaned up, and a flood of new keys gains no allowance for anyone.
//!
//! ```
//! use ratekeeper::{Keyed, Limit};
//!
//! let per_user = Keyed::<str>::new(Limit::per_minute(60).burst(3));
//! assert!(per_user.check("ann").is_allowed());
//! per_user.key("ann").reserve(1)?; // one key, with every method of a limiter
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! [`KeyedConcurrency`](keyed::KeyedConcurrency) limits what is in flight for each key.
//!
//! # Several limits at once
//!
//! A [`MemoryStore`] holds many limits and decides several of them at once: a request is charged to
//! all or to none, and no request is ever denied because of a charge that is then taken back.
//!
//! ```
//! use ratekeeper::{Ask, Limit, MemoryStore, Mode, Store};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let user = store.limit("user", Limit::per_minute(60))?;
//! let stricter = store.limit("stricter", Limit::per_minute(30))?;
//! let slots = store.concurrency("slots", 20)?;
//! let everyone = store.limit("everyone", Limit::per_second(1_000))?;
//!
//! let verdict = store.decide(&[
//!     Ask::new(&user, "ann"),
//!     Ask::new(&stricter, "ann").mode(Mode::Shadow), // counts, never denies
//!     Ask::new(&slots, "ann"),                       // a permit until the verdict is dropped or settled
//!     Ask::new(&everyone, "").reserve(100),          // leaves 100 to more important requests
//! ]).await;
//! if let Some(which) = verdict.binding() {
//!     println!("denied by ask {which}, retry after {:?}", verdict.retry_after());
//! }
//! # Ok(()) }
//! ```
//!
//! Code that uses the trait [`Store`] runs on a store in this process or on one that a fleet shares.
//!
//! # Tests
//!
//! Give the limiter a [`ManualClock`]: time stands still until you
//! [`advance`](ManualClock::advance) it, which wakes the waiters that are due. No test has to sleep.
//!
//! # Other algorithms
//!
//! A [`Limit`] names its [`Algorithm`]: `Limit::per_hour(100).algorithm(Algorithm::SlidingLog)`, or
//! as text `"100/h sliding_log"`; [`paced_max_queue`](Limit::paced_max_queue) and
//! [`paced_max_wait`](Limit::paced_max_wait) pace calls instead. The methods are the same; windows
//! and logs cannot reserve ahead of time and return
//! [`ReserveError::NoSlots`](decision::ReserveError::NoSlots).
//!
//! | type | does |
//! | --- | --- |
//! | [`Concurrency`] | limits how many calls are in flight |
//! | [`AdaptiveConcurrency`](adaptive::AdaptiveConcurrency) | the same, with a limit that follows how the service responds |
//! | [`Shedder`](adaptive::Shedder) | sheds the least important requests under overload |
//! | [`Adaptive`](adaptive::Adaptive) | a rate that follows the load of the machine |
//! | [`Sometimes`] | runs a closure on every n-th call or once per interval |
//!
//! # Guarantees
//!
//! - Never too many: any interval allows at most burst + rate · length, for any threads, any
//!   interleaving and any clock, including one that jumps or runs backwards. A reservation counts
//!   when it acts. What may come on top is counted ([`Adjustments`](limiter::Adjustments)), with one
//!   exception: a cancel or a settle on a clock that has since run backwards can bring back again
//!   what time has already brought, at most rate · how far the clock ran back, and at most what was
//!   taken.
//! - Never too few: a denial means that to allow the call would have been too many. No rate is lost
//!   to rounding; a token costs less than 17.3 ps more than written, usually nothing
//!   ([`Limit::effective`]).
//! - A denied call writes nothing; a cost that can never fit is [`Outcome::Never`], however large.
//! - `check` takes no lock and does not allocate.
//!
//! # Features
//!
//! | feature | brings |
//! | --- | --- |
//! | `std` (default) | [`SystemClock`](clock::SystemClock), [`CoarseClock`](clock::CoarseClock), blocking waits, [`Keyed`], [`MemoryStore`] |
//! | `tokio` | `limiter.wait().await`, and [queues](adaptive::AdaptiveQueue) in front of adaptive limits |
//! | `fast-clock` | [`FastClock`](clock::FastClock): the processor's time stamp counter |
//! | `serde` | [`Limit`] as text |
//!
//! Without `std` everything except waiting, keys and stores is available, on [`ManualClock`] or a
//! [`Clock`] of your own; 64-bit atomics and `alloc` are needed.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The guide links to items that only exist with std.
#![cfg_attr(
    not(all(feature = "std", feature = "fast-clock")),
    allow(rustdoc::broken_intra_doc_links)
)]

extern crate alloc;

pub mod adaptive;
mod adjustments;
mod algorithm;
mod append_vec;
mod charge;
pub mod clock;
pub mod concurrency;
pub mod decision;
mod generation;
#[cfg(feature = "std")]
pub mod keyed;
pub mod limit;
pub mod limiter;
mod reservation;
mod sometimes;
#[cfg(feature = "std")]
pub mod store;
mod sync;
#[cfg(feature = "std")]
mod wait;
#[cfg(feature = "std")]
mod wait_list;
#[cfg(feature = "std")]
mod waiters;

pub use clock::{Clock, ManualClock, Timestamp};
pub use concurrency::{Concurrency, Permit};
pub use decision::{Decision, Outcome};
#[cfg(feature = "std")]
pub use keyed::Keyed;
pub use limit::{Algorithm, Limit, Rate};
pub use limiter::{Charge, Limiter, Reservation};
pub use sometimes::Sometimes;
#[cfg(feature = "std")]
pub use store::{Ask, MemoryStore, Mode, Store, Verdict};
