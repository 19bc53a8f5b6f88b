//! `cargo xtask preconditions`: kernels with the standard library's checks of unsafe code, which tests omit for speed.

use crate::command::{run, test_runner};

/// Runs the host's kernels, individually and in whole networks, with debug assertions.
///
/// # Errors
/// Fails if a test fails.
pub fn preconditions() -> Result<(), String> {
    // The names of tests begin with the names of their files.
    let networks = ["golden::", "random_networks::", "host_operators::", "image_operators::"];
    for (package, targets, names) in
        [("forebay-device", "--tests", [].as_slice()), ("forebay", "--test=suite", networks.as_slice())]
    {
        // With Cargo's own runner, tests share a process, and the one that measures the process's memory can fail.
        let mut runner = test_runner();
        let checked = ["--config", "profile.dev.package.forebay-device.debug-assertions=true"];
        run(runner.args(["--no-fail-fast", "--package", package, targets]).args(checked).arg("--").args(names))?;
    }
    Ok(())
}
