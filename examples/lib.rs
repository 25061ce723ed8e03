//! Examples of one screen each, listed in examples/README.md.
//!
//! This library only holds documentation: the Rust code of these pages is compiled, and run unless
//! it is marked `no_run`.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
mod rust {}

#[cfg(doctest)]
#[doc = include_str!("../docs/clients.md")]
mod clients {}

#[cfg(doctest)]
#[doc = include_str!("../docs/keys.md")]
mod keys {}
