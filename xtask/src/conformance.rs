//! `cargo xtask conformance`: ONNX's own test cases, counted and listed.

use crate::command::{cargo, run};

/// Runs the cases in the repository, or those that the arguments name.
///
/// # Errors
/// Fails if a case cannot be read or a device is not available.
pub fn conformance(arguments: &[String]) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "forebay-conformance", "--"]);
    run(command.args(arguments))
}
