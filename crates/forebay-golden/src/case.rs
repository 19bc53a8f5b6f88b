//! The golden cases in `testdata/golden`, and how to compare with them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay::data::npz::Archive;
use forebay::{Model, Tensor};
use serde_json::Value;

/// The root mean square of the probe's factors.
const PROBE_SCALE: f64 = 3.74;

/// A golden case.
pub struct Case {
    /// The name of its folder.
    pub name: &'static str,
    /// `training.json`.
    pub log: Value,
    arrays: BTreeMap<String, Tensor>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(name)
}

/// Reads all arrays of an archive.
pub fn read_npz(path: PathBuf) -> BTreeMap<String, Tensor> {
    let mut archive = Archive::open(&path).unwrap();
    archive.names().into_iter().map(|name| (name.clone(), archive.read(&name).unwrap())).collect()
}

impl Case {
    /// Reads a case.
    pub fn read(name: &'static str) -> Case {
        let text = std::fs::read_to_string(folder(name).join("training.json")).unwrap();
        Case { name, log: serde_json::from_str(&text).unwrap(), arrays: read_npz(folder(name).join("inputs.npz")) }
    }

    /// Returns the path of one of the case's files.
    pub fn path(&self, file: &str) -> PathBuf {
        folder(self.name).join(file)
    }

    /// Returns the case's model.
    pub fn model(&self) -> Model {
        Model::from_file(self.path("model.onnx")).unwrap()
    }

    /// Returns PyTorch's output for the first batch, in evaluation mode.
    pub fn output(&self) -> Tensor {
        read_npz(self.path("outputs.npz"))["torch"].clone()
    }

    /// Returns the batch of a step, counted from 0, and its labels.
    pub fn batch(&self, step: usize) -> (BTreeMap<String, Tensor>, Tensor) {
        let (x, y) = match (self.arrays.get("train_x"), self.arrays.get("train_y")) {
            (Some(x), Some(y)) => (row(x, step), row(y, step)),
            _ => (self.arrays["x"].clone(), self.arrays["y"].clone()),
        };
        (BTreeMap::from([("x".to_string(), x)]), y)
    }

    /// Returns the first batch.
    pub fn input(&self) -> BTreeMap<String, Tensor> {
        BTreeMap::from([("x".to_string(), self.arrays["x"].clone())])
    }

    /// Returns a number of the log, given its path.
    pub fn number(&self, pointer: &str) -> f64 {
        self.log.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{} has no {pointer}", self.name))
    }

    /// Returns the tolerance of this name that decides whether a test passes.
    pub fn tolerance(&self, what: &str) -> f64 {
        self.number(&format!("/tolerances/{}/{what}", self.judge()))
    }

    fn judge(&self) -> &'static str {
        let flipped = self.log.pointer("/tolerances/with_a_flipped_relu").is_some();
        if flipped { "with_a_flipped_relu" } else { "expected" }
    }

    /// Compares the loss of a step, counted from 0.
    pub fn compare_loss(&self, step: usize, loss: f32) {
        let expected = self.number(&format!("/loss_f64/{step}"));
        let tolerance = self.tolerance(&format!("loss_rel_by_step/{step}"));
        let distance = (f64::from(loss) - expected).abs() / expected.abs();
        let name = self.name;
        assert!(
            distance <= tolerance,
            "{name}, step {}: loss {loss}, expected {expected} within {tolerance}: {distance}",
            step + 1
        );
    }

    /// Compares tensors with a table of the log (`grad_step_1`, `params_after`, `buffers_after`).
    pub fn compare_tensors(&self, table: &str, tolerance: &str, given: &BTreeMap<String, Vec<f64>>) {
        let tolerance = self.tolerance(tolerance);
        let entries = self.log[table].as_object().unwrap();
        assert!(!entries.is_empty());
        for (name, entry) in entries {
            let values = given.get(name).unwrap_or_else(|| panic!("{}: no '{name}' for {table}", self.name));
            let zero =
                self.log["grad_step_1_zero"].as_array().is_some_and(|zero| zero.contains(&Value::from(name.as_str())));
            let distance = if zero && table == "grad_step_1" {
                norm(values) / self.number("/grad_step_1_l2_of_all_f64")
            } else {
                distance(values, entry)
            };
            assert!(distance <= tolerance, "{}, {table} of '{name}': {distance} is more than {tolerance}", self.name);
        }
    }
}

/// Returns row `index` modulo the number of rows.
fn row(tensor: &Tensor, index: usize) -> Tensor {
    let row_bytes = tensor.bytes().len() / tensor.shape()[0] as usize;
    let start = index % tensor.shape()[0] as usize * row_bytes;
    Tensor::new(tensor.data_type(), &tensor.shape()[1..], &tensor.bytes()[start..start + row_bytes]).unwrap()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the largest of the three distances that the log allows, in units of the l2 norm.
fn distance(values: &[f64], entry: &Value) -> f64 {
    let number = |name: &str| entry[name].as_f64().unwrap();
    let l2 = number("l2_f64");
    let probe: f64 = values.iter().enumerate().map(|(i, value)| value * ((i * 7 % 13) as f64 - 6.0)).sum();
    let first8 = entry["first8_f64"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
    let differences: Vec<f64> = first8.zip(values).map(|(expected, value)| value - expected).collect();
    let distances = [norm(values) - l2, (probe - number("probe_f64")) / PROBE_SCALE, norm(&differences)];
    distances.iter().fold(0.0, |largest: f64, distance| largest.max(distance.abs())) / l2
}

/// Returns elements of any type as float64.
pub fn to_f64(tensor: &Tensor) -> Vec<f64> {
    let integers = || tensor.integers().map(|values| values.map(|value| value as f64).collect());
    tensor.to_f64().or_else(integers).expect("every type is a floating type or one of integers")
}
