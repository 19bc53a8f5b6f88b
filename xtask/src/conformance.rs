//! `cargo xtask conformance`: ONNX's own test cases, counted and listed.

use crate::command::{cargo, run};

/// Runs the cases that the repository has, or those that the arguments name.
///
/// # Errors
/// Cases that cannot be read, or a device that cannot be had.
pub fn conformance(arguments: &[String]) -> Result<(), String> {
    let mut command = cargo(&["run", "--quiet", "--release", "--package", "forebay-conformance", "--"]);
    run(command.args(arguments))
}
