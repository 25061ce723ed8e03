//! Replays the corpus of the fuzz target on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/resp.rs"]
mod targets;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn all_bytes_of_the_corpus_are_answered_alike_in_any_pieces() {
    replay("resp", targets::resp);
}
