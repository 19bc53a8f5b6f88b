//! `cargo xtask aarch64`: the CPU's kernels on a processor of another kind, in an emulator, where results have the same bits.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{cargo, program, run, succeeds, test_runner};
use crate::{parts, source};

/// The other processor's target.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's names of the emulator and of the compiler that links.
const EMULATOR: &str = "qemu-aarch64";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Where Debian's cross compiler has the C library, which emulated programs load.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// The variable that names the emulated program for the tests.
pub const PROGRAM: &str = "FOREBAY_EMULATED";

/// Runs the CPU kernels' own tests in the emulator, then compares what this processor and the emulated one compute.
///
/// # Errors
/// Fails if something is missing that this needs, or a test fails.
pub fn aarch64() -> Result<(), String> {
    if let Some(part) = parts::missing()?.iter().find(|part| part.name == "aarch64") {
        return Err(format!("{} is missing: {}", part.name, part.reason));
    }
    let emulated = build()?;
    // The emulator does not give back memory as Linux does, which tests of the device's memory notice.
    run(cross("test")?.args(["--package", "forebay-device", "--lib", "--", "host::kernels"]))?;
    let tests = ["--package", "forebay-cli", "--test", "suite", "instructions::"];
    run(test_runner().args(tests).env(PROGRAM, emulated))
}

/// Returns whether the emulator, the linker and the standard library are present.
pub fn present() -> bool {
    let is_there = |name: &str| succeeds(program(name).arg("--version"));
    is_there(EMULATOR) && is_there(LINKER) && standard_library().is_some()
}

/// Builds the command line, and returns the words that run it in the emulator. Only its kernels need to be fast.
///
/// # Errors
/// Fails if the build does.
pub fn build() -> Result<String, String> {
    let quick =
        ["--config", "profile.release.opt-level=1", "--config", "profile.release.package.forebay-device.opt-level=3"];
    run(cross("build")?.args(["--package", "forebay-cli", "--no-default-features"]).args(quick))?;
    let built = folder().join(TARGET).join("release/forebay");
    Ok(format!("{EMULATOR} -L {LIBRARIES} {}", built.display()))
}

/// Where Cargo puts what it builds for the other processor: other settings than those of the workspace's builds.
fn folder() -> PathBuf {
    source::root().join("target/aarch64")
}

/// How Cargo gets the standard library for the other processor.
enum StandardLibrary {
    /// It is installed.
    Installed,
    /// Its sources are, and Cargo compiles them.
    FromSource,
}

fn standard_library() -> Option<StandardLibrary> {
    let output = program("rustc").args(["--print", "sysroot"]).output().ok()?;
    let libraries = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("lib/rustlib");
    if libraries.join(TARGET).exists() {
        return Some(StandardLibrary::Installed);
    }
    libraries.join("src/rust/library/Cargo.lock").exists().then_some(StandardLibrary::FromSource)
}

/// Lets a command that builds for the other processor compile the standard library, unless it is installed.
///
/// # Errors
/// Fails if its sources are not installed, either.
pub fn give_standard_library(command: &mut Command) -> Result<(), String> {
    match standard_library() {
        Some(StandardLibrary::Installed) => {}
        // Stable compilers build it only if told that they may.
        Some(StandardLibrary::FromSource) => {
            command.envs([("RUSTC_BOOTSTRAP", "1"), ("CARGO_UNSTABLE_BUILD_STD", "std")]);
        }
        None => return Err(format!("the standard library for {TARGET} is missing (rustup target add {TARGET})")),
    }
    Ok(())
}

/// Returns a command of Cargo for the other processor.
fn cross(subcommand: &str) -> Result<Command, String> {
    let mut command = cargo(&[subcommand, "--quiet", "--release", "--target", TARGET]);
    give_standard_library(&mut command)?;
    command.env("CARGO_TARGET_DIR", folder());
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{EMULATOR} -L {LIBRARIES}"));
    command.env("CC_aarch64_unknown_linux_gnu", LINKER);
    Ok(command)
}
