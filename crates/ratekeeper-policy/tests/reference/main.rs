//! Tests the engine against a reference that scans every policy, remembers every request and
//! decides from history. It shares no code with the crate: it matches on strings, has keys of
//! strings, and limits by the model of the testkit.

mod explain;
mod history;
mod matching;
mod naive;
mod spec;
mod traces;
