//! Models that leave sizes open.

use crate::common::{Folder, assert_says, failure, json, success};
use forebay::data::npy;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, INT64, Value};

use forebay::Tensor;

/// A model that computes the logits of sequences of any length.
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
    assert_says(&failure(2, &["plan", &model, "--size", "width=7"]), &["no size named 'width'", "N, length"]);
    assert_says(&failure(2, &["plan", &model, "--size", "length"]), &["NAME=N"]);
}

/// A model that computes the logits of each place of a sequence of any length.
fn tagger() -> Vec<u8> {
    GraphBuilder::new()
        .input("x", FLOAT, &["N", "length", "2"])
        .floats("w", &[2, 3], &[0.1, -0.2, 0.3, 0.4, 0.5, -0.6])
        .node("MatMul", &["x", "w"], &["logits"])
        .output("logits", FLOAT, &["N", "length", "3"])
        .build()
}

#[test]
fn training_follows_samples_of_different_sizes() {
    let folder = Folder::new();
    let model = folder.write("model.onnx", &tagger());
    let samples = folder.path("samples");
    std::fs::create_dir(&samples).unwrap();
    let lengths = [3u64, 5, 3, 9, 5, 3, 12];
    for (number, &length) in lengths.iter().enumerate() {
        let labels: Vec<i64> = (0..length).map(|i| i as i64 % 3).collect();
        let arrays = [("x", &numbers(&[length, 2])), ("y", &Tensor::from_i64(&[length], &labels))];
        forebay::data::npz::write(&samples.join(format!("{number}.npz")), &arrays, false).unwrap();
    }
    let data = samples.to_str().unwrap();
    let train =
        ["train", &model, "--data", data, "--batch-size", "2", "--class-axis", "-1", "--epochs", "2", "--no-compare"];
    let with = |flags: &[&str]| -> Vec<String> { train.iter().chain(flags).map(|word| word.to_string()).collect() };
    let report = |flags: &[&str]| json(&with(flags).iter().map(String::as_str).collect::<Vec<_>>());
    let refused =
        |code: i32, flags: &[&str]| failure(code, &with(flags).iter().map(String::as_str).collect::<Vec<_>>());
    let steps = |flags: &[&str]| report(flags)["steps"].as_array().map(Vec::len);
    // An epoch has 2 batches of length 3 and one of each other length; in multiples of 4, it has 2 of length 4, 1 of 8 and 1 of 12.
    assert_eq!(steps(&["--bucket-by", "length"]), Some(10));
    assert_eq!(steps(&["--bucket-by", "x[1]", "--pad-to", "4", "--ignore-index", "-100", "--shuffle", "1"]), Some(8));
    assert_eq!(steps(&["--bucket-by", "length", "--pad-to", "12", "--ignore-index", "-100"]), Some(8));
    assert_eq!(steps(&["--pad-to", "1", "--ignore-index", "-100"]), Some(8));
    // Padding counts neither in the loss nor in the accuracy.
    let validated = report(&[
        "--bucket-by",
        "length",
        "--pad-to",
        "16",
        "--pad-label",
        "-1",
        "--ignore-index",
        "-1",
        "--validate",
        data,
    ]);
    assert_eq!(validated["validation"]["count"], lengths.iter().sum::<u64>(), "{validated}");
    // Samples of one size share a bucket.
    let labels = Tensor::from_i64(&[3, 12], &[1; 36]);
    let uniform = folder.archive("uniform.npz", &[("x", &numbers(&[3, 12, 2])), ("y", &labels)]);
    let validated = report(&["--bucket-by", "length", "--validate", uniform.as_str(), "--validate-every", "2"]);
    assert_eq!(validated["validation"]["count"], 36, "{validated}");
    assert_says(&refused(1, &[]), &["--pad-to", "--bucket-by", "1.npz"]);
    assert_says(&refused(1, &["--pad-to", "8"]), &["--ignore-index", "[y]"]);
    assert_says(&refused(2, &["--bucket-by", "width"]), &["no open size of this name", "open sizes: length"]);
    // A position in the data is meaningful only for the batches in which it was counted.
    let (run, run_again) = (folder.path("run"), folder.path("run-again"));
    let (run, run_again) = (run.to_str().unwrap(), run_again.to_str().unwrap());
    let short = |flags: &[&str]| {
        let start = ["train", &model, "--data", data, "--batch-size", "2", "--class-axis", "-1", "--no-compare"];
        [&start[..], flags].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = |flags: &[String]| flags.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let kept = short(&["--bucket-by", "length", "--steps", "3", "--checkpoint", run]);
    success(&kept.iter().map(String::as_str).collect::<Vec<_>>());
    let other = short(&["--steps", "6", "--resume", run]);
    let error = failure(2, &other.iter().map(String::as_str).collect::<Vec<_>>());
    assert_says(&error, &["--bucket-by", "the checkpoint was made with"]);
    let on = short(&["--bucket-by", "length", "--steps", "6", "--resume", run, "--checkpoint", run_again]);
    let output = success(&on.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.contains("step 6/6"), "{}: {output}", words(&on));
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
