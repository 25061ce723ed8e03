//! The memory store: several limits decided all or nothing, compared with a reference that decides
//! one call after the other and remembers everything.

#[path = "../common/mod.rs"]
mod common;
mod detached;
mod one_key;
mod reference;
mod rules;
mod threads;
mod traces;
mod waiting;
