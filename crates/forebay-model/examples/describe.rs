//! Prints the graph and the program of an ONNX file: `cargo run -p forebay-model --example describe MODEL [BATCH]`.

use std::collections::BTreeSet;
use std::path::Path;

use forebay_model::{ModelError, infer, lower, onnx};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: describe MODEL [BATCH]")?;
    let batch_size = arguments.next().map(|text| text.parse()).transpose()?;
    describe(Path::new(&path), batch_size).map_err(|error| error.to_string().into())
}

fn describe(path: &Path, batch_size: Option<u64>) -> Result<(), ModelError> {
    let mut graph = onnx::read_file(path)?.graph;
    infer::infer(&mut graph, batch_size)?;
    println!("{graph}");
    let program = lower::lower(&graph, &BTreeSet::new())?;
    program.validate()?;
    println!("{program}");
    Ok(())
}
