//! Rate limiting that is exact: decide, reserve, wait and change limits live, on one atomic word.
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
//! That is all there is to set up: no server, no background task, nothing to sweep. A [`Limiter`]
//! is a handle; clones share the bucket, and any number of threads may call it.
//!
//! # What to call
//!
//! | you want to | call | and get |
//! | --- | --- | --- |
//! | let it through or not | [`check`](Limiter::check), [`check_n`](Limiter::check_n) | a [`Decision`]: allowed or not, remaining, when to come back |
//! | know without charging | [`peek`](Limiter::peek), [`tokens`](Limiter::tokens) | the same, nothing written |
//! | charge an estimate, correct it later | [`take`](Limiter::take) | a [`Charge`] to [`settle`](Charge::settle) |
//! | plan ahead | [`reserve`](Limiter::reserve), [`reserve_within`](Limiter::reserve_within) | a [`Reservation`]: when to act, or [`cancel`](Reservation::cancel) |
//! | wait your turn | [`wait`](Limiter::wait), [`wait_n`](Limiter::wait_n) | a [`Wait`]: `.await` it, or [`blocking`](Wait::blocking) |
//! | change the limit while it runs | [`set_limit`](Limiter::set_limit), [`set_burst`](Limiter::set_burst) | the tokens stay; see [`Carry`] |
//! | choose the time yourself | [`at`](Limiter::at) | the same verbs at that instant |
//! | limit each of many | [`Keyed`] | the same verbs for each key |
//! | apply several limits | [`MemoryStore`] | a [`Verdict`]: all or nothing |
//!
//! # Saying when to come back
//!
//! A denial knows exactly when the same call will pass if nobody else comes: then it does, a
//! nanosecond earlier it does not.
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
//! # Waiting, and giving up
//!
//! Waiters are served in the order they came. Each owns its slot, so a large cost is not starved by
//! small ones and a waiter that nobody polls holds up nobody. A wait that would miss its deadline
//! fails at once and takes nothing; a wait that is dropped gives its slot back.
//!
//! ```
//! use std::time::Duration;
//! use ratekeeper::{Limit, Limiter, limiter::WaitError};
//!
//! let limiter = Limiter::new(Limit::per_hour(1));
//! limiter.wait().blocking()?;                       // there is one
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
//! second.cancel(); // too long: let the next caller have it
//! assert_eq!(limiter.reserve(1)?.delay(), Duration::from_secs(1));
//! # Ok::<_, ratekeeper::decision::ReserveError>(())
//! ```
//!
//! # Many keys
//!
//! [`Keyed`] is a limiter for each user, address or API key, in memory that is fixed when it is
//! made: nothing grows, nothing must be swept, and a flood of keys gets nobody a new allowance.
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
//! [`KeyedConcurrency`] does the same for what is in flight.
//!
//! # Several limits at once
//!
//! A [`MemoryStore`] holds many limits and decides several of them at once: a request is charged to
//! all or to none, and nobody is ever denied by a charge that is then taken back.
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
//!     Ask::new(&stricter, "ann").mode(Mode::Shadow),      // watches, turns nobody away
//!     Ask::new(&slots, "ann"),                            // a permit, until the verdict is dropped or settled
//!     Ask::new(&everyone, "").reserve(100),               // leaves 100 to more important requests
//! ]).await;
//! if let Some(which) = verdict.binding() {
//!     println!("turned away by ask {which}, retry after {:?}", verdict.retry_after());
//! }
//! # Ok(()) }
//! ```
//!
//! [`Store`] is the contract, for code that runs on a store of this process and on one that a fleet
//! shares.
//!
//! # In tests
//!
//! Give the limiter a [`ManualClock`]: time stands still until you
//! [`advance`](ManualClock::advance) it, which wakes whoever waits on it. No test has to sleep.
//!
//! # Beside the token bucket
//!
//! A [`Limit`] names its [`Algorithm`]: `Limit::per_hour(100).algorithm(Algorithm::SlidingLog)`, or
//! in text `"100/h sliding_log"`; [`queue`](Limit::queue) and [`wait`](Limit::wait) pace. The verbs
//! are the same; windows and logs cannot reserve ahead of time and say so
//! ([`ReserveError::NoSlots`]). [`Concurrency`] limits how many are in flight,
//! [`AdaptiveConcurrency`] finds out by itself how many can be, [`Shedder`] decides who goes first
//! when there is too much, [`Adaptive`] moves a rate with the load, [`Sometimes`] runs something
//! only now and then.
//!
//! # What it promises
//!
//! - Never too many: in any interval at most burst + rate · length, for any threads, any
//!   interleaving and any clock, one that jumps or runs backwards included. A reservation counts
//!   when it acts. What may come on top is counted ([`Counts`]), but for one thing: a cancel or a
//!   settle on a clock that ran back since can bring back again what time has brought, at most rate
//!   · how far it ran back, and at most what was taken.
//! - Never too few: a denial means that admitting would have been too many. No rate is lost to
//!   rounding; a token costs less than 17.3 ps more than written, usually nothing
//!   ([`Limit::effective`]).
//! - A denial writes nothing; a cost that can never fit is [`Outcome::Never`], however large.
//! - `check` takes no lock and does not allocate.
//!
//! # Features
//!
//! | feature | brings |
//! | --- | --- |
//! | `std` (default) | [`SystemClock`], [`CoarseClock`], blocking waits, [`Keyed`], [`MemoryStore`] |
//! | `tokio` | `limiter.wait().await`, and [lines](adaptive::Line) in front of adaptive limits |
//! | `fast-clock` | [`FastClock`]: the processor's time stamp counter |
//! | `serde` | [`Limit`] as text |
//!
//! Without `std` everything but waiting, keys and stores is there, on [`ManualClock`] or a
//! [`Clock`] of your own; 64-bit atomics and `alloc` are needed.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The guide names what only std has.
#![cfg_attr(
    not(all(feature = "std", feature = "fast-clock")),
    allow(rustdoc::broken_intra_doc_links)
)]

extern crate alloc;

pub mod adaptive;
mod algorithm;
mod append_vec;
pub mod clock;
pub mod concurrency;
pub mod decision;
#[cfg(feature = "std")]
pub mod keyed;
pub mod limit;
pub mod limiter;
mod sometimes;
#[cfg(feature = "std")]
pub mod store;
mod sync;

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
