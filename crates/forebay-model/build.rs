//! Compiles ONNX's message definitions, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/onnx.proto");
    let descriptors = protox::compile(["proto/onnx.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    // The definitions' comments hold indented text that would become documentation tests.
    config.disable_comments(["."]);
    config.compile_fds(descriptors)?;
    Ok(())
}
