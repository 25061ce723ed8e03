//! The algorithms as pure state machines, one a file: state in, state out, time is an argument, integers only.

pub(crate) mod token_bucket;
