//! The program `forebay`, which comes with the package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs a command line, the program's name first, and gives its exit code.
#[pyfunction]
pub fn run_command_line(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| forebay_cli::run_command_line(arguments))
}
