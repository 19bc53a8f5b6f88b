//! ONNX Runtime's own operators and models written by its tools give the same outputs as in ONNX Runtime.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::{Model, Session};
use forebay_golden::{host, to_f64};
use forebay_testing::parts::skipped;

/// Writes a model for each case into a folder, with random inputs and ONNX Runtime's outputs.
const SCRIPT: &str = include_str!("microsoft/cases.py");

/// Does the same for operators of `ai.onnx.ml`.
const CLASSICAL: &str = include_str!("microsoft/classical.py");

/// Does the same for small networks, each changed by ONNX Runtime's tools.
const TOOLS: &str = include_str!("microsoft/tools.py");

fn available() -> bool {
    let found = Command::new("python3").args(["-c", "import numpy, onnx, onnxruntime"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    skipped("onnxruntime", "python3 cannot import onnxruntime, onnx and numpy");
    false
}

fn compare(case: &Path) -> Result<(), String> {
    let model = Model::from_file(case.join("model.onnx")).map_err(|error| error.to_string())?;
    let session = Session::builder(&model).engine(host(2)).build();
    let mut session = session.map_err(|error| error.to_string())?;
    let outputs =
        session.run(forebay_golden::case::read_npz(case.join("inputs.npz"))).map_err(|error| error.to_string())?;
    for (name, expected) in forebay_golden::case::read_npz(case.join("outputs.npz")) {
        let found = outputs.get(&name).ok_or(format!("output {name} is missing"))?;
        if found.shape() != expected.shape() {
            return Err(format!("{name} has shape {:?}, not {:?}", found.shape(), expected.shape()));
        }
        let pairs = to_f64(found).into_iter().zip(to_f64(&expected));
        let distance = pairs.map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
        if distance.is_nan() || distance > 1e-4 {
            return Err(format!("{name} is {distance} away"));
        }
    }
    Ok(())
}

/// Runs a script that generates cases, at least `least` of them, and compares each.
fn compare_all(name: &str, script: &str, least: usize) {
    if !available() {
        return;
    }
    let folder: PathBuf = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
    let output = Command::new("python3").arg("-c").arg(script).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cases = String::from_utf8(output.stdout).unwrap();
    let cases: Vec<&str> = cases.lines().filter(|line| folder.join(line).join("model.onnx").exists()).collect();
    assert!(cases.len() >= least, "{cases:?}");
    let compared =
        cases.iter().filter_map(|case| compare(&folder.join(case)).err().map(|why| format!("{case}: {why}")));
    let failures: Vec<String> = compared.collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn operators_of_microsoft_give_what_onnxruntime_gives() {
    compare_all("microsoft", SCRIPT, 60);
}

#[test]
fn operators_of_classical_machine_learning_give_what_onnxruntime_gives() {
    compare_all("classical", CLASSICAL, 50);
}

#[test]
fn models_of_onnxruntimes_tools_give_what_onnxruntime_gives() {
    compare_all("tools", TOOLS, 15);
}
