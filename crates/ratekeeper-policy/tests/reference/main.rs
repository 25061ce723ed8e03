//! The engine against one that scans every policy, remembers every request and decides from
//! history. It shares nothing with the crate: matching on strings, keys of strings, and limits by
//! their definitions in docs/spec.

mod explain;
mod history;
mod matching;
mod naive;
mod spec;
mod traces;
