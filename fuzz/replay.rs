//! Replays the corpus of a fuzz target, for the tests of each crate that has targets.

/// Runs `target` on every file of its corpus.
pub(crate) fn replay(name: &str, target: fn(&[u8])) {
    let corpus = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{corpus}: {error}"));
    let mut replayed = 0;
    for file in files {
        target(&std::fs::read(file.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "no corpus in {corpus}");
}
