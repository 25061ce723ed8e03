//! Replays the corpus of the fuzz targets on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/policies.rs"]
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
fn every_text_of_the_corpus_loads_or_is_told_why_not() {
    replay("config", targets::config);
}

#[test]
fn every_pattern_of_the_corpus_matches_alike() {
    replay("path", targets::path);
}
