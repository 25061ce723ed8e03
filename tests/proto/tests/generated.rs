//! The committed code is what the .proto files generate. `make proto` writes it anew.

use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

const PROTO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/ratekeeper-server/proto"
);

/// Generates the code and the descriptor set, which gRPC reflection serves, into a directory.
fn generate(directory: &Path) {
    let mut files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO]).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .include_file("mod.rs")
        .out_dir(directory)
        .compile_fds(files.clone())
        .unwrap();
    for file in &mut files.file {
        file.source_code_info = None;
    }
    fs::write(directory.join("descriptors.bin"), files.encode_to_vec()).unwrap();
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).unwrap().map(Result::unwrap);
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect()
}

#[test]
fn the_committed_code_is_generated_from_the_proto_files() {
    let committed = Path::new(PROTO).join("generated");
    if env::var_os("RATEKEEPER_WRITE").is_some() {
        generate(&committed);
    }
    let generated = tempfile::tempdir().unwrap();
    generate(generated.path());
    let (committed, generated) = (contents(&committed), contents(generated.path()));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&committed), names(&generated));
    for (name, content) in &generated {
        assert!(
            committed[name] == *content,
            "{name} is not what the .proto files generate; run make proto"
        );
    }
}
