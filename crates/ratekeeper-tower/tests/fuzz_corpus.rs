//! Replays the corpus of the fuzz targets on stable Rust, as regression tests.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/identity.rs"]
mod targets;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn every_header_of_the_corpus_names_the_peer_or_an_address_in_it() {
    replay("identity", targets::identity);
}
