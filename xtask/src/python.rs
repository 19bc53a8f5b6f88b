//! `cargo xtask python` and `wheel`: the Python package, tested and as released.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{program, run, succeeds};
use crate::{aarch64, source};

/// The packages that the Python tests need besides the package itself.
const TESTED_WITH: [&str; 7] = ["numpy", "pytest", "mypy", "mpi4py", "nbclient", "ipykernel", "onnx"];
/// The oldest C library that a released wheel supports: that of 2018.
const COMPATIBILITY: &str = "manylinux_2_28";

/// `cargo xtask python`: builds the package in the profile of the workspace's other tests, whose crates it shares, installs it in a
/// separate environment and tests it there, with PyTorch if `python3` has it.
///
/// # Errors
/// Fails if any of these steps fails.
pub fn test() -> Result<(), String> {
    let folder = empty_folder("python-tests")?;
    run(maturin().args(["--profile", "dev", "--out"]).arg(&folder))?;
    let python = installed(&folder, &TESTED_WITH)?;
    if has_torch() {
        borrow_torch(&python)?;
    }
    run(&mut selftest(program(&python), &folder))?;
    // In development mode, which reports what Python otherwise ignores: files left open, exceptions in destructors.
    run(program(&python).args([
        "-X",
        "dev",
        "-m",
        "pytest",
        "--quiet",
        "-p",
        "no:cacheprovider",
        "-rs",
        "python/tests",
    ]))
}

/// `cargo xtask wheel [TARGET [PYTHON..]]`: builds the package as released into `target/wheels` and tests it in an environment with nothing
/// else. The words that follow the target, if any, run the Python that tests it, such as one of another machine in an emulator; it must have
/// NumPy.
///
/// # Errors
/// Fails if a tool is missing or a step fails.
pub fn wheel(arguments: &[String]) -> Result<(), String> {
    if !succeeds(program("python3").args(["-c", "import ziglang"])) {
        let way_out = "`python3 -m pip install maturin ziglang` installs it";
        return Err(format!("the linker for old C libraries is missing; {way_out}"));
    }
    let folder = empty_folder("wheels")?;
    let mut build = maturin();
    build.args(["--release", "--zig", "--compatibility", COMPATIBILITY, "--out"]).arg(&folder);
    if let [target, ..] = arguments {
        build.args(["--target", target]);
        if target == aarch64::TARGET {
            aarch64::give_standard_library(&mut build)?;
        }
    }
    run(&mut build)?;
    let built = wheel_in(&folder)?;
    if let [_, python, words @ ..] = arguments {
        let unpacked = folder.join("unpacked");
        run(program("python3").args(["-m", "zipfile", "-e"]).arg(&built).arg(&unpacked))?;
        let mut python = program(python);
        python.args(words);
        run(&mut selftest(python, &unpacked))?;
    } else if built.to_string_lossy().contains(std::env::consts::ARCH) {
        run(&mut selftest(program(&installed(&folder, &["numpy"])?), &folder))?;
    } else {
        println!("not tested, because it is for another machine:");
    }
    println!("{}", built.display());
    Ok(())
}

/// Returns whether the tools that build the package are present.
pub fn present() -> bool {
    succeeds(program("python3").args(["-c", "import maturin, venv, ensurepip"]))
}

/// Returns whether `python3` has PyTorch.
pub fn has_torch() -> bool {
    succeeds(program("python3").args(["-c", "import torch"]))
}

fn maturin() -> Command {
    let mut command = program("python3");
    command.args(["-m", "maturin", "build", "--target-dir"]).arg(source::root().join("target"));
    command.current_dir(source::root().join("python"));
    command
}

/// Creates an empty folder in `target`.
fn empty_folder(name: &str) -> Result<PathBuf, String> {
    let folder = source::root().join("target").join(name);
    let failed = |error: std::io::Error| format!("cannot create {}: {error}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    std::fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// Returns the wheel that a build produced.
fn wheel_in(folder: &Path) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut wheels = entries.flatten().map(|entry| entry.path());
    wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("no wheel in {}", folder.display()))
}

/// Returns the Python of a new environment that has the folder's wheel and these packages.
fn installed(folder: &Path, packages: &[&str]) -> Result<String, String> {
    let environment = folder.join("venv");
    run(program("python3").args(["-m", "venv"]).arg(&environment))?;
    let python = environment.join("bin/python").to_string_lossy().into_owned();
    run(program(&python).args(["-m", "pip", "install", "--quiet"]).arg(wheel_in(folder)?).args(packages))?;
    Ok(python)
}

/// Returns a command that runs the package's self-test, away from its sources.
fn selftest(mut python: Command, folder: &Path) -> Command {
    python.args(["-X", "dev", "-m", "forebay.selftest"]).current_dir(folder);
    python
}

/// Lets an environment use the packages of `python3` that it does not have itself: PyTorch is too large for another copy.
fn borrow_torch(python: &str) -> Result<(), String> {
    const BORROW: &str = "import pathlib, subprocess, sysconfig; \
        theirs = subprocess.run(['python3', '-c', 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])'], \
        capture_output=True, text=True, check=True).stdout; \
        pathlib.Path(sysconfig.get_path('purelib'), 'theirs.pth').write_text(theirs)";
    run(program(python).args(["-c", BORROW]))
}
