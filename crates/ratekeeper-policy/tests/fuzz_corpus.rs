//! Replays the corpus of the fuzz targets on stable, so that what a fuzzer found stays tested.

// A module of the fuzz library.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/policies.rs"]
mod targets;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn every_pattern_of_the_corpus_matches_alike() {
    replay("path", targets::path);
}
