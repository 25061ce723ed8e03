//! Which limits apply to a request: subjects, policies, plans, lists, overrides; and a file that
//! says it all.
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
//! let config = Config::parse("ratekeeper.toml", file, []).config.expect("nothing is wrong with it");
//! let engine = Engine::new(MemoryStore::new(), config.policies)?;
//!
//! let subject = Subject::new().user("ann").plan("pro").method("GET").path("/api/orders");
//! let verdict = engine.decide_now(&subject);
//! assert!(verdict.is_allowed());
//! assert_eq!(verdict.tightest().unwrap().decision().limit(), 20);
//! # }
//! # Ok::<_, ratekeeper_policy::EngineError>(())
//! ```
//!
//! # The words
//!
//! - A [`Subject`] is who asks: address, user, path, headers, any attribute; borrowed, not copied.
//! - A [`Policy`] is [which requests](Match), counted by what, how many. Every one that matches
//!   applies, all or nothing.
//! - A [`Policies`] holds them with their [plans](Plan) and [lists](Listed), and knows [what is
//!   wrong](Policies::problems) with them.
//! - An [`Engine`] decides by them over any [`Store`](ratekeeper::Store):
//!   [`decide`](Engine::decide), [`peek`](Engine::peek), [`explain`](Engine::explain),
//!   [`settle`](Engine::settle) at the [end](Ending) of a request, [`replace`](Engine::replace)
//!   them while it runs.
//! - A [`Verdict`] says whether it passes, [who](Verdict::policy) turned it away,
//!   [when](Verdict::retry_after) to come back, and how [every limit](Verdict::limits) stands.
//!
//! # One key
//!
//! [`ban`](Engine::ban) it, give it [other limits](Engine::override_limits) for a while,
//! [grant](Engine::grant) it tokens, [free](Engine::free) it. Nothing lasts for ever but the deny
//! list.
//!
//! # Figures
//!
//! [`figures`](Engine::figures) by policy, [`times`](Engine::times), the
//! [heaviest](Engine::heaviest) and the [most denied](Engine::most_denied) keys in fixed memory, as
//! fingerprints unless the engine was made to show them.
//!
//! # What it promises
//!
//! - A decision in memory allocates nothing, up to eight limits, twelve segments of a path and 256
//!   bytes of keys.
//! - The number of policies does not matter as long as their paths differ: they are found in a
//!   tree.
//! - [`explain`](Engine::explain) and [`decide`](Engine::decide) agree.
//! - A reload resets no count, drops no decision, and holds from the next decision on.
//! - Spellings of one path (`/login/`, `//login`, `/%6cogin`) are one path.
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
