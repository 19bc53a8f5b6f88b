//! The program `forebay`, which is included in the package.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs a command line, which starts with the program's name, and returns its exit code.
#[pyfunction]
pub fn run_command_line(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| forebay_cli::run_command_line(arguments))
}
