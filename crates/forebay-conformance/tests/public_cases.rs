//! The cases that passed once keep passing: `testdata/onnx/passing.txt` names them.
//! `cargo xtask conformance --names > testdata/onnx/passing.txt` writes the list again.

use std::path::Path;

use forebay::{DeviceOptions, SessionOptions};
use forebay_conformance::{run, Outcome, Suite};

#[test]
fn cases_that_passed_still_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/onnx");
    let suite = Suite::read(&folder.join("node-public.tar.gz")).unwrap();
    let passing = std::fs::read_to_string(folder.join("passing.txt")).unwrap();
    let device = forebay::open_device(&DeviceOptions::default()).unwrap();
    let names: Vec<&str> = passing.lines().collect();
    assert!(names.len() >= 788, "{}", names.len());
    let mut failures = Vec::new();
    for name in names {
        if let Outcome::Failed(reason) = run(&suite.cases[name], &device, &SessionOptions::default()) {
            failures.push(format!("{name}: {reason}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
