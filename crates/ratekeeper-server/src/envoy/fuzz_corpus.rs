//! Replays the corpus of the fuzz target on stable: whatever a fuzzer found once stays found.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_file_of_the_corpus_is_read_or_its_trouble_told() {
    replay::replay("envoy", super::target::envoy);
}
