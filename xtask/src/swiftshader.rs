//! `cargo xtask swiftshader`: the Vulkan tests again, on a driver without 64-bit floats, 16-bit storage and sparse buffers.

use crate::command::{cargo, run};
use crate::parts;
use crate::test::REPORTING;

/// All kernels, and whole networks.
const ALL: &str = "package(forebay-vulkan) | binary_id(forebay::vulkan)";
/// The tests that `cargo xtask test` leaves out: those that take minutes there, if a shorter test remains or lavapipe runs the same one.
const LONG: &str = "test(/classifies_as_the_host::[^s]|(transformer|batch_normalization)_with_small_bindings|^updates_on_the_host|(tiny_gpt|resnet20|unet3d)::first_training|the_same_bits_within|(resnet20|unet3d)::gradients|^digits_train|^the_driver_is_given|steps_in_parts|^matrices_larger/)";

/// Runs every Vulkan test on SwiftShader: half an hour on two cores.
///
/// # Errors
/// Fails if SwiftShader or cargo-nextest is missing, or a test fails.
pub fn swiftshader() -> Result<(), String> {
    if let Some(part) = parts::missing()?.iter().find(|part| part.name == "swiftshader") {
        return Err(format!("{} is missing: {}", part.name, part.reason));
    }
    on_swiftshader(ALL)
}

/// Runs the Vulkan tests that are short on SwiftShader.
///
/// # Errors
/// Fails if a test fails.
pub fn sample() -> Result<(), String> {
    on_swiftshader(&format!("({ALL}) - {LONG}"))
}

fn on_swiftshader(tests: &str) -> Result<(), String> {
    let mut runner = cargo(&["nextest", "run", "--workspace", "-E", tests]);
    runner.args(REPORTING);
    // Older loaders know only the second name.
    let driver = parts::swiftshader_driver();
    runner.env("VK_DRIVER_FILES", &driver).env("VK_ICD_FILENAMES", &driver);
    // Its validation layer is newer than those of Linux distributions.
    runner.env("VK_LAYER_PATH", parts::swiftshader());
    run(&mut runner)
}
