//! ONNX's messages in Rust are committed, so that building Forebay needs no compiler of message definitions. This test compiles
//! the definitions and compares: where they differ, it writes the new code and fails, and the next run passes.

use std::path::Path;

#[test]
fn the_messages_are_what_their_definitions_give() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let descriptors = protox::compile(["onnx.proto"], [&folder]).expect("definitions that compile");
    let generated = tempfile::tempdir().expect("a temporary folder");
    let mut config = prost_build::Config::new();
    // The definitions' comments hold indented text that would become documentation tests.
    config.disable_comments(["."]);
    config.out_dir(generated.path());
    config.compile_fds(descriptors).expect("definitions that have a form in Rust");
    let code = std::fs::read_to_string(generated.path().join("onnx.rs")).expect("generated code");
    let path = folder.join("onnx.rs.in");
    if std::fs::read_to_string(&path).ok().as_ref() != Some(&code) {
        std::fs::write(&path, code).expect("the code can be replaced");
        panic!("{} was not what onnx.proto gives, and is now: commit it", path.display());
    }
}
