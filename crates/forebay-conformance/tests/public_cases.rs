//! The cases that passed once keep passing: `testdata/onnx/passing.txt` names them.
//! `cargo xtask conformance --names > testdata/onnx/passing.txt` writes the list again.

use forebay::{DeviceOptions, SessionOptions};
use forebay_conformance::{Outcome, Suite, run};

#[test]
fn cases_that_passed_still_pass() {
    let suite = Suite::public().unwrap();
    let passing = std::fs::read_to_string(Suite::public_folder().join("passing.txt")).unwrap();
    let device = forebay::open_device(&DeviceOptions::default()).unwrap();
    let names: Vec<&str> = passing.lines().collect();
    assert!(names.len() >= 1844, "{}", names.len());
    let mut failures = Vec::new();
    for name in names {
        if let Outcome::Failed(reason) = run(&suite.cases[name], &device, &SessionOptions::default()) {
            failures.push(format!("{name}: {reason}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
