//! Replays the corpus of the fuzz targets on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/policies.rs"]
mod targets;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn every_text_of_the_corpus_loads_or_is_told_why_not() {
    replay("config", targets::config);
}

#[test]
fn every_pattern_of_the_corpus_matches_alike() {
    replay("path", targets::path);
}
