//! Models that leave sizes open.

mod common;

use common::{assert_says, failure, json, success, Folder};
use forebay::data::npy;
use forebay_testing::onnx::builder::{GraphBuilder, Value, FLOAT, INT64};

use forebay::Tensor;

/// Logits of sequences of any length.
fn classifier() -> Vec<u8> {
    GraphBuilder::new()
        .input("x", FLOAT, &["N", "length", "2"])
        .floats("w", &[2, 3], &[0.1, -0.2, 0.3, 0.4, 0.5, -0.6])
        .integers("axis", &[1], &[1])
        .node("MatMul", &["x", "w"], &["each"])
        .node_with("ReduceMean", &["each", "axis"], &["logits"], vec![("keepdims", Value::Int(0))])
        .output("logits", FLOAT, &["N", "3"])
        .build()
}

fn numbers(shape: &[u64]) -> Tensor {
    let count: u64 = shape.iter().product();
    Tensor::from_f32(shape, &(0..count).map(|i| (i as f32).sin()).collect::<Vec<_>>())
}

#[test]
fn a_run_takes_sizes_from_its_inputs() {
    let folder = Folder::new();
    let model = folder.write("model.onnx", &classifier());
    for length in [3, 5] {
        let file = folder.path("x.npy");
        npy::write(&file, &numbers(&[2, length, 2])).unwrap();
        let output = success(&["run", &model, "--input", &format!("x={}", file.display())]);
        assert!(output.contains("logits: float32[2, 3]"), "{output}");
    }
}

#[test]
fn training_takes_sizes_from_the_data_and_a_plan_from_flags() {
    let folder = Folder::new();
    let model = folder.write("model.onnx", &classifier());
    let labels = Tensor::from_i64(&[4], &[0, 1, 2, 0]);
    let data = folder.archive("data.npz", &[("x", &numbers(&[4, 7, 2])), ("y", &labels)]);
    let report = json(&["train", &model, "--data", &data, "--steps", "2", "--batch-size", "2", "--no-compare"]);
    assert_eq!(report["steps"].as_array().map_or(2, Vec::len), 2, "{report}");
    let open = failure(2, &["plan", &model]);
    assert_says(&open, &["--size N=N", "--size length=N"]);
    let planned = success(&["plan", &model, "--batch-size", "2", "--size", "length=7"]);
    assert!(planned.contains("device peak"), "{planned}");
    assert_says(&failure(2, &["plan", &model, "--size", "width=7"]), &["no size 'width'", "N, length"]);
    assert_says(&failure(2, &["plan", &model, "--size", "length"]), &["NAME=N"]);
}

#[test]
fn a_model_that_computes_its_loss_trains_on_it() {
    let folder = Folder::new();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "2"])
        .input("labels", INT64, &["N"])
        .floats("w", &[2, 3], &[0.1, -0.2, 0.3, 0.4, 0.5, -0.6])
        .node("MatMul", &["x", "w"], &["logits"])
        .node("SoftmaxCrossEntropyLoss", &["logits", "labels"], &["cost"])
        .output("cost", FLOAT, &[]);
    let model = folder.write("model.onnx", &graph.build());
    let labels = Tensor::from_i64(&[4], &[0, 1, 2, 0]);
    let data = folder.archive("data.npz", &[("x", &numbers(&[4, 2])), ("labels", &labels)]);
    let train = ["train", &model, "--data", &data, "--steps", "3", "--batch-size", "4", "--no-compare"];
    let output = success(&[&train[..], &["--loss", "output", "--learning-rate", "0.5"]].concat());
    assert!(output.contains("step 3/3"), "{output}");
    let usual = failure(1, &train);
    assert_says(&usual, &["class axis 1 is out of range", "'cost'"]);
    assert_says(&failure(2, &[&train[..], &["--label-input", "labels"]].concat()), &["--label-input"]);
}
