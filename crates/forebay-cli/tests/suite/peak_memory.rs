//! The memory of runs, as counted by the system: their budgets plus the data being copied, wherever values come from and go to.
#![cfg(target_os = "linux")]

use std::process::Stdio;
use std::time::Duration;

use crate::common::{Folder, assert_says, forebay};
use forebay::Tensor;
use forebay::data::npy;
use forebay_testing::onnx;
use forebay_testing::onnx::protobuf::{message, number};

const MIB: u64 = 1 << 20;
/// Sizes of the model's matrices.
const WIDTH: usize = 1280;
/// The number of the model's matrices, each of 6.25 MiB. With the state of Adam, they take 187.5 MiB.
const COUNT: usize = 10;
/// The budgets for device and host memory.
const BUDGETS: [&str; 4] = ["--device-memory", "24MiB", "--host-memory", "24MiB"];
/// The maximum memory in addition to the budgets: for code, threads, the plan and data being copied.
const OWN_BYTES_MAX: u64 = 48 * MIB;
/// The maximum memory of the process. Its weights would not fit.
const PEAK_BYTES_MAX: u64 = 48 * MIB + OWN_BYTES_MAX;

/// Runs the program, which must succeed. Returns its standard output and its peak memory in bytes.
fn measured(arguments: &[&str]) -> (String, u64) {
    let mut child =
        forebay(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut peak_bytes = 0;
    // The system keeps the peak as long as the process lives.
    while child.try_wait().expect("a child").is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak_bytes = peak_bytes.max(kib.unwrap_or(0) * 1024);
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(peak_bytes > 0, "the system counts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), peak_bytes)
}

/// Runs the program within its budgets and checks that it keeps to them.
fn within_budgets(arguments: &[&str]) -> String {
    let (said, peak_bytes) = measured(&[arguments, &BUDGETS, &["--threads", "2"]].concat());
    assert!(peak_bytes <= PEAK_BYTES_MAX, "{} MiB: {arguments:?}", peak_bytes / MIB);
    said
}

/// The elements of a matrix.
fn elements(seed: usize) -> Vec<u8> {
    let element = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    (0..WIDTH * WIDTH).flat_map(|i| (element(i) / (WIDTH as f32).sqrt()).to_le_bytes()).collect()
}

/// A model with a chain of matrices. Their elements are in the field with this number: raw or typed.
fn model(folder: &Folder, name: &str, field: u64) -> String {
    let value = |i: usize| if i == 0 { "x".to_owned() } else { format!("h{i}") };
    let nodes: Vec<Vec<u8>> =
        (0..COUNT).map(|i| onnx::node("MatMul", &[&value(i), &format!("w{i}")], &value(i + 1), &[])).collect();
    let matrix = |i: usize| {
        let size = number(1, WIDTH as i64);
        let described = [size.clone(), size, number(2, onnx::FLOAT), message(8, format!("w{i}").as_bytes())].concat();
        [described, message(field, &elements(i))].concat()
    };
    let initializers: Vec<Vec<u8>> = (0..COUNT).map(matrix).collect();
    let bytes = onnx::model(&nodes, &initializers, ("x", &[2, WIDTH]), (&value(COUNT), &[2, WIDTH]));
    folder.write(name, &bytes)
}

fn rows(count: u64, seed: usize) -> Tensor {
    let elements: Vec<f32> = (0..count as usize * WIDTH).map(|i| ((i * 31 + seed) % 97) as f32 / 48.5 - 1.0).collect();
    Tensor::from_f32(&[count, WIDTH as u64], &elements)
}

/// The description of a model, here 15 MiB of remarks on its nodes, is never copied as a whole while the model's values are on the device.
#[test]
fn a_model_is_saved_within_the_limit() {
    let folder = Folder::new();
    let value = |i: usize| if i == 0 { "x".to_owned() } else { format!("h{i}") };
    let node = |i: usize, kind: &str, inputs: &[&str]| {
        [onnx::node(kind, inputs, &value(i + 1), &[]), message(6, &[b'r'; 64 << 10])].concat()
    };
    let first = node(0, "MatMul", &["x", "w"]);
    let nodes: Vec<Vec<u8>> = [first].into_iter().chain((1..240).map(|i| node(i, "Relu", &[&value(i)]))).collect();
    let weights = onnx::floats("w", &[WIDTH, WIDTH], &vec![1e-3; WIDTH * WIDTH]);
    let bytes = onnx::model(&nodes, &[weights], ("x", &[2, WIDTH]), (&value(240), &[2, WIDTH]));
    let (model, saved) = (folder.write("remarks.onnx", &bytes), folder.text("saved.onnx"));
    let data = folder.archive("data.npz", &[("x", &rows(4, 0)), ("y", &rows(4, 1))]);
    let train = ["train", &model, "--data", &data, "--loss", "mse", "--steps", "1", "--no-compare", "--threads", "2"];
    let (said, peak_bytes) = measured(&[&train[..], &["--save", &saved, "--memory-limit", "100%", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&said).expect("a report");
    let limit_bytes = report["memory_limit_bytes"].as_u64().expect("a limit");
    assert!(peak_bytes <= limit_bytes, "{peak_bytes} of {limit_bytes} bytes");
    assert_eq!(std::fs::read(saved).unwrap().len(), bytes.len());
}

#[test]
fn a_run_holds_no_weights() {
    let folder = Folder::new();
    npy::write(&folder.path("x.npy"), &rows(2, 0)).unwrap();
    let (input, spill) = (format!("x={}", folder.text("x.npy")), folder.text("spill"));
    std::fs::create_dir(&spill).unwrap();
    let outputs = [("raw.onnx", 9), ("typed.onnx", 4)].map(|(name, field)| {
        let output = folder.text(&format!("of-{name}"));
        let model = model(&folder, name, field);
        within_budgets(&["run", &model, "--input", &input, "--spill-dir", &spill, "--output-dir", &output]);
        std::fs::read(folder.path(&format!("of-{name}/h{COUNT}.npy"))).unwrap()
    });
    assert!(outputs[0] == outputs[1], "the same numbers, the same output");
}

/// Training with a short last batch, validation, checkpoints and a saved model; then the same from a checkpoint.
#[test]
fn training_holds_no_values_outside_its_plan() {
    let folder = Folder::new();
    let model = model(&folder, "model.onnx", 9);
    let data = folder.archive("data.npz", &[("x", &rows(5, 0)), ("y", &rows(5, 7))]);
    let [spill, first, second, saved, resumed] =
        ["spill", "first", "second", "saved.onnx", "resumed.onnx"].map(|name| folder.text(name));
    std::fs::create_dir(&spill).unwrap();
    let train = ["train", &model, "--data", &data, "--loss", "mse", "--optimizer", "adam", "--spill-dir", &spill];
    let train = |flags: &[&str]| within_budgets(&[&train[..], &["--no-compare"], flags].concat());
    // Batches of two, two and one.
    let said = train(&["--steps", "3", "--checkpoint", &first, "--checkpoint-every", "2", "--save", &saved]);
    assert_says(&said, &["step 3/3", "saved"]);
    let more = ["--steps", "4", "--checkpoint", &second, "--save", &resumed, "--validate", &data];
    let said = train(&[&["--resume", &first], &more[..]].concat());
    assert_says(&said, &["step 4/4", "validation", "saved"]);
    assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0);
    // The model of a checkpoint, and a run of the saved model.
    let exported = folder.text("exported.onnx");
    let (_, peak_bytes) = measured(&["export", &second, "--model", &model, "--save", &exported]);
    assert!(peak_bytes <= PEAK_BYTES_MAX, "export: {} MiB", peak_bytes / MIB);
    assert!(std::fs::read(&exported).unwrap() == std::fs::read(&resumed).unwrap());
    assert!(std::fs::read(&saved).unwrap() != std::fs::read(&resumed).unwrap());
}

/// Without a disk, all values are in memory, but each only once, even while they pass from plan to plan.
#[test]
fn values_between_plans_are_in_memory_once() {
    let folder = Folder::new();
    let model = model(&folder, "model.onnx", 9);
    let data = folder.archive("data.npz", &[("x", &rows(5, 0)), ("y", &rows(5, 7))]);
    let train = ["train", &model, "--data", &data, "--loss", "mse", "--optimizer", "adam", "--steps", "4"];
    let run = |flags: &[&str]| measured(&[&train[..], flags, &["--threads", "2", "--no-compare"]].concat());
    let (within, peak_bytes) =
        run(&["--device-memory", "24MiB", "--host-memory", "230MiB", "--validate", &data, "--json"]);
    assert!(peak_bytes <= (24 + 230) * MIB + OWN_BYTES_MAX, "{} MiB", peak_bytes / MIB);
    let (unlimited, _) = run(&["--validate", &data, "--json"]);
    let numbers = |text: &str| {
        let object: serde_json::Value = serde_json::from_str(text).unwrap();
        let losses = object["steps"].as_array().unwrap().iter().map(|step| step["loss"].clone());
        (losses.collect::<Vec<_>>(), object["validation"].clone())
    };
    assert_eq!(numbers(&within), numbers(&unlimited));
}
