//! Policies for rate limits: which limits apply to a request, by subject, plan, list and override,
//! from code or from a configuration file.
//!
//! ```
//! use ratekeeper::MemoryStore;
//! use ratekeeper_policy::{Engine, Subject};
//! # #[cfg(feature = "config")] {
//! use ratekeeper_policy::config::Config;
//!
//! let file = r#"
//! [plans.free]
//! limits = ["60/min burst 10"]
//! [plans.pro]
//! limits = ["600/min burst 100", "20 concurrent"]
//!
//! [[policy]]
//! name = "login"
//! match = { method = ["POST"], path = "/login" }
//! key = ["ip"]
//! limit = "5/min"
//!
//! [[policy]]
//! name = "api"
//! match = { path = "/api/**" }
//! key = ["user"]
//! plan = { attribute = "plan", default = "free" }
//! "#;
//! let config = Config::parse("ratekeeper.toml", file, []).config.expect("a valid configuration");
//! let engine = Engine::new(MemoryStore::new(), config.policies)?;
//!
//! let subject = Subject::new().user("ann").plan("pro").method("GET").path("/api/orders");
//! let verdict = engine.decide_now(&subject);
//! assert!(verdict.is_allowed());
//! assert_eq!(verdict.tightest().unwrap().decision().capacity(), 20);
//! # }
//! # Ok::<_, ratekeeper_policy::EngineError>(())
//! ```
//!
//! # Terms
//!
//! - A [`Subject`] holds the attributes of one request: address, user, path, headers, any other. It
//!   borrows them.
//! - A [`Policy`] has [conditions](Match) on requests, a key to count them by, and limits. Every
//!   policy that matches applies; a request is charged to all of them or to none.
//! - A [`Policies`] holds the policies with their [plans](Plan) and [lists](ListEntry), and
//!   [validates](Policies::problems) them.
//! - An [`Engine`] decides by them over any [`Store`](ratekeeper::Store):
//!   [`decide`](Engine::decide), [`peek`](Engine::peek), [`explain`](Engine::explain),
//!   [`settle`](Engine::settle) at the [completion](Completion) of a request,
//!   [`set_policies`](Engine::set_policies) to reload.
//! - A [`PolicyVerdict`] contains whether the request is allowed, [which
//!   policy](PolicyVerdict::policy) denied it, [when](PolicyVerdict::retry_after) to retry, and the
//!   state of [every limit](PolicyVerdict::limits).
//!
//! # Bans and overrides
//!
//! An operator can [`ban`](engine::Operator::ban) a key, [override its limits](engine::Operator::override_limits) for a
//! while, [grant](engine::Operator::grant) it tokens, or [reset](engine::Operator::reset_key) it. Bans and overrides
//! always expire; only the deny list lasts.
//!
//! # Statistics
//!
//! [Statistics by policy](engine::EngineStats::policies), [decision times](engine::EngineStats::decision_times), and the
//! [most active](engine::EngineStats::most_active) and [most denied](engine::EngineStats::most_denied) keys in bounded
//! memory, as fingerprints unless [configured otherwise](EngineOptions::plain_keys).
//!
//! # Guarantees
//!
//! - A decision in memory allocates nothing, up to eight limits, twelve path segments and 256 bytes
//!   of keys.
//! - Policies are indexed by path in a tree: their number does not matter as long as their paths
//!   differ.
//! - [`explain`](Engine::explain) and [`decide`](Engine::decide) agree.
//! - A reload resets no counter, drops no decision, and takes effect from the next decision on.
//! - All spellings of one path (`/login/`, `//login`, `/%6cogin`) count as one path.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod address;
mod attribute;
#[cfg(feature = "config")]
pub mod config;
mod deadline;
pub mod engine;
pub mod fingerprint;
mod host;
mod index;
pub mod matching;
pub mod overload;
mod path;
mod pattern;
mod policies;
pub mod policy;
mod policy_limit;
mod preflight;
pub mod random;
pub mod request;
mod request_check;
pub mod stats;
mod subject;
mod trusted_peers;
pub mod validate;

pub use attribute::Attribute;
pub use engine::{
    Completion, Engine, EngineError, EngineOptions, Explanation, PolicyVerdict, Reason,
};
pub use matching::Match;
pub use policies::{ListEntry, Plan, Policies};
pub use policy::{Action, Cost, Count, Missing, Policy};
pub use policy_limit::PolicyLimit;
pub use subject::{Headers, Subject};
