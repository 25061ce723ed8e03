//! The generated code of ratekeeper-server, as its tests and this crate's use it.

include!("../../../crates/ratekeeper-server/proto/generated/mod.rs");
