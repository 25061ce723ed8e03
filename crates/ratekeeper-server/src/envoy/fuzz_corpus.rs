//! Replays the corpus of the fuzz target on stable Rust, so that old findings stay fixed.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_file_of_the_corpus_is_parsed_or_rejected() {
    replay::replay("envoy", super::target::envoy);
}
