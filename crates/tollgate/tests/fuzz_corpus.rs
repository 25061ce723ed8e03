//! Replays the corpus of the fuzz targets on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/limits.rs"]
mod targets;

fn replay(name: &str, target: fn(&[u8])) {
    let corpus = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{corpus}: {error}"));
    let mut replayed = 0;
    for file in files {
        target(&std::fs::read(file.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "no corpus in {corpus}");
}

#[test]
fn every_text_of_the_corpus_parses_or_is_told_why_not() {
    replay("parse", targets::parse);
}

#[test]
fn every_call_of_the_corpus_is_decided() {
    replay("decide", targets::decide);
}
