//! What the fuzz targets run, apart from the fuzzer: the corpus replay of `make test` runs the same on stable, the limits from
//! crates/tollgate/tests and the policies from crates/tollgate-policy/tests.

mod limits;
mod policies;

pub use limits::{decide, parse};
pub use policies::{config, path};
