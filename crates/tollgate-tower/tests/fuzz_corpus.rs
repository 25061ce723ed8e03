//! Replays the corpus of the fuzz targets on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/identity.rs"]
mod targets;

#[test]
fn every_header_of_the_corpus_names_the_peer_or_an_address_in_it() {
    let corpus = format!("{}/../../fuzz/corpus/identity", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{corpus}: {error}"));
    let mut replayed = 0;
    for file in files {
        targets::identity(&std::fs::read(file.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed > 0, "no corpus in {corpus}");
}
