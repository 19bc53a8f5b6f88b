//! Running the program, and small models and data for it.

pub mod group;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay::Tensor;
use forebay::data::npz;
pub use forebay_testing::onnx::protobuf::{message, number};
use serde_json::Value;

/// A file of the repository's examples.
pub fn example(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    root.join(path).to_str().expect("a path in UTF-8").to_owned()
}

/// The digits network, with a symbolic batch dimension.
pub fn digits_model() -> String {
    example("digits/model.onnx")
}

/// The digits.
pub fn digits_data() -> String {
    example("digits/digits.npz")
}

/// The program with these arguments, in a folder for temporary files: what a run that is killed leaves behind is not among the sources.
pub fn forebay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command
}

/// Runs the program, which must succeed. Returns its standard output.
pub fn success(arguments: &[&str]) -> String {
    let output = forebay(arguments).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{arguments:?}\n{stdout}\n{stderr}");
    stdout
}

/// Runs the program, which must succeed and print one JSON object.
pub fn json(arguments: &[&str]) -> Value {
    let stdout = success(&[arguments, &["--json"]].concat());
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// Runs the program, which must end with this exit code and one error. Returns the error.
pub fn failure(exit_code: i32, arguments: &[&str]) -> String {
    let output = forebay(arguments).output().expect("the program starts");
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(exit_code), "{arguments:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{arguments:?}\n{stderr}");
    let error = stderr.lines().position(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("no error in {stderr:?} for {arguments:?}"));
    stderr.lines().skip(error).collect::<Vec<_>>().join("\n")
}

/// Asserts that an error contains all of these words.
pub fn assert_says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

/// Returns the number of KiB that an error asks for after these words.
pub fn least_kib(error: &str, words: &str) -> u64 {
    let number = error.split_once(words).and_then(|(_, rest)| rest.split_once("KiB")?.0.parse().ok());
    number.unwrap_or_else(|| panic!("no number of KiB after '{words}' in: {error}"))
}

/// The losses of a report's steps.
pub fn losses(report: &Value) -> Vec<f64> {
    report["steps"].as_array().unwrap().iter().map(|step| step["loss"].as_f64().unwrap()).collect()
}

/// Returns a program's standard output and standard error.
pub fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A folder that is removed at the end.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// A new folder.
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A path in it, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("a temporary file");
        self.text(name)
    }

    /// Writes an archive and returns its path.
    pub fn archive(&self, name: &str, arrays: &[(&str, &Tensor)]) -> String {
        npz::write(&self.path(name), arrays, false).expect("a temporary file");
        self.text(name)
    }
}

/// Digits inputs of the right shape, all zero.
pub fn zeros(rows: u64) -> Tensor {
    Tensor::from_f32(&[rows, 1, 8, 8], &vec![0.0; rows as usize * 64])
}

/// An ONNX model of one node, with input `x` and output `y` (float32) of the given sizes.
pub fn one_node_model(operator: &str, node: &str, sizes: &[u64]) -> Vec<u8> {
    let dimensions: Vec<u8> = sizes.iter().flat_map(|&size| message(1, &number(1, size as i64))).collect();
    let tensor = [number(1, 1), message(2, &dimensions)].concat();
    let info = |name: &[u8]| [message(1, name), message(2, &message(1, &tensor))].concat();
    let node =
        [message(1, b"x"), message(2, b"y"), message(3, node.as_bytes()), message(4, operator.as_bytes())].concat();
    let graph = [message(1, &node), message(2, b"graph"), message(11, &info(b"x")), message(12, &info(b"y"))].concat();
    let operators = [message(1, b""), number(2, 17)].concat();
    [number(1, 8), message(7, &graph), message(8, &operators)].concat()
}
