//! Replays the corpus of the fuzz targets on stable, as regression tests.

// Part of a separate library elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/limits.rs"]
mod targets;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn every_text_of_the_corpus_parses_or_gives_an_error() {
    replay("parse", targets::parse);
}

#[test]
fn every_call_of_the_corpus_is_decided() {
    replay("decide", targets::decide);
}
