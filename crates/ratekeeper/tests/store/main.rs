//! Several limits at once: all or nothing, held against a reference that decides one call after the
//! other and remembers everything.

#[path = "../common/mod.rs"]
mod common;
mod detached;
mod one_key;
mod reference;
mod rules;
mod threads;
mod traces;
mod waiting;
