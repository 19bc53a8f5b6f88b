//! `cargo xtask preconditions`: kernels with the standard library's checks of unsafe code, which tests omit for speed.

use crate::command::{cargo, run};

/// Runs the host's kernels, individually and in whole networks, with debug assertions.
///
/// # Errors
/// Fails if a test fails.
pub fn preconditions() -> Result<(), String> {
    for (package, targets) in [
        ("forebay-device", ["--lib", "--tests"].as_slice()),
        ("forebay", &["--test=golden", "--test=random_networks", "--test=host_operators", "--test=image_operators"]),
    ] {
        let checked = ["--config", "profile.dev.package.forebay-device.debug-assertions=true"];
        run(cargo(&["test", "--quiet", "--package", package]).args(targets).args(checked))?;
    }
    Ok(())
}
