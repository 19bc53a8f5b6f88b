//! `cargo xtask preconditions`: kernels with the standard library's checks of unsafe code, which tests omit for speed.

use crate::command::{cargo, has_nextest, run};

/// Runs the host's kernels, individually and in whole networks, with debug assertions.
///
/// # Errors
/// Fails if a test fails.
pub fn preconditions() -> Result<(), String> {
    for (package, targets) in [
        ("forebay-device", ["--tests"].as_slice()),
        ("forebay", &["--test=golden", "--test=random_networks", "--test=host_operators", "--test=image_operators"]),
    ] {
        // With Cargo's own runner, tests share a process, and the one that measures the process's memory can fail.
        let mut runner = match has_nextest() {
            true => cargo(&["nextest", "run"]),
            false => cargo(&["test", "--quiet"]),
        };
        let checked = ["--config", "profile.dev.package.forebay-device.debug-assertions=true"];
        run(runner.args(["--no-fail-fast", "--package", package]).args(targets).args(checked))?;
    }
    Ok(())
}
