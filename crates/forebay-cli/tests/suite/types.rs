//! Inputs and outputs of types that files do not support.

use crate::common::{Folder, assert_says, failure, success};
use forebay::data::npy;
use forebay::{DataType, Tensor};
use forebay_testing::onnx::builder::{Around, FLOAT, GraphBuilder, Value};

/// ONNX's number for int4.
const INT4: i64 = 22;
/// ONNX's number for float8 with a 4-bit exponent.
const FLOAT8: i64 = 17;

#[test]
fn narrow_types_are_numbers_in_files() {
    let folder = Folder::new();
    let cast = |to| vec![("to", Value::Int(to))];
    let model = GraphBuilder::new()
        .input("x", INT4, &["N"])
        .floats("tenth", &[1], &[0.1])
        .node_with("Cast", &["x"], &["real"], cast(FLOAT))
        .node("Mul", &["real", "tenth"], &["less"])
        .node_with("Cast", &["less"], &["y"], cast(FLOAT8))
        .node("Identity", &["x"], &["same"])
        .output("y", FLOAT8, &["N"])
        .output("same", INT4, &["N"]);
    let model = folder.write("model.onnx", &model.build());
    let (file, results) = (folder.path("x.npy"), folder.path("results"));
    let input = format!("x={}", file.display());
    npy::write(&file, &Tensor::from_i64(&[3], &[-8, 5, 7])).unwrap();
    let output = success(&["run", &model, "--input", &input, "--output-dir", results.to_str().unwrap()]);
    assert!(output.contains("y: float8_e4m3fn[3]") && output.contains("same: int4[3]"), "{output}");
    let read = |name: &str| npy::read(&results.join(name)).unwrap();
    assert_eq!(read("y.npy"), Tensor::from_f32(&[3], &[-0.8125, 0.5, 0.6875]));
    assert_eq!(read("same.npy"), Tensor::new(DataType::Int8, &[3], vec![0xf8, 5, 7]).unwrap());
    npy::write(&file, &Tensor::from_i64(&[3], &[-8, 5, 8])).unwrap();
    assert_says(&failure(1, &["run", &model, "--input", &input]), &["input x", "element 2 is 8", "int4"]);
}

#[test]
fn what_is_no_tensor_is_refused_with_a_way_out() {
    let folder = Folder::new();
    let model = GraphBuilder::new()
        .structured_input("s", FLOAT, &[Around::Sequence])
        .node("SequenceLength", &["s"], &["length"])
        .output("length", 7, &[]);
    let model = folder.write("model.onnx", &model.build());
    let error = failure(1, &["run", &model]);
    assert_says(&error, &["s: sequence of float32", "Session::run_values"]);
}
