//! Optional parts of the machine, which tests need in addition to Rust. A missing part is printed as SKIPPED with its reason;
//! `FOREBAY_REQUIRE`, a comma-separated list of names, turns that into a failure.

use std::path::PathBuf;

use crate::command::{cargo, has_nextest, path_variable, program, succeeds};
use crate::{aarch64, python, source};

/// An optional part.
pub struct Part {
    /// Its name in `FOREBAY_REQUIRE`.
    pub name: &'static str,
    /// What is skipped without it, and why.
    pub reason: &'static str,
    /// Whether it is present.
    pub present: fn() -> bool,
}

/// All optional parts.
pub const PARTS: [Part; 12] = [
    Part {
        name: "rustfmt",
        reason: "the format is not checked (rustup component add rustfmt)",
        present: || succeeds(&mut cargo(&["fmt", "--version"])),
    },
    Part {
        name: "clippy",
        reason: "the lints are not checked (rustup component add clippy)",
        present: || succeeds(&mut cargo(&["clippy", "--version"])),
    },
    Part {
        name: "onnxruntime",
        reason: "trained models are not run in ONNX Runtime (python3 cannot import numpy and onnxruntime)",
        present: || succeeds(program("python3").args(["-c", "import numpy, onnxruntime"])),
    },
    Part {
        name: "python",
        reason: "the Python package is not built or tested (python3 cannot import maturin, venv and ensurepip)",
        present: python::present,
    },
    Part {
        name: "torch",
        reason: "PyTorch modules are not trained through the Python package (python3 cannot import torch)",
        present: python::has_torch,
    },
    Part {
        name: "vulkan",
        reason: "nothing runs on a Vulkan device (vulkaninfo, from vulkan-tools, finds none; install a GPU's driver or \
                 Mesa's lavapipe)",
        present: || succeeds(program("vulkaninfo").arg("--summary")),
    },
    Part {
        name: "swiftshader",
        reason: "the Vulkan tests do not run a second time, on a driver without float64 (target/swiftshader is missing, or \
                 cargo-nextest, which selects these tests; .ci/run installs both)",
        present: || swiftshader_driver().is_file() && has_nextest(),
    },
    Part {
        name: "aarch64",
        reason: "results are not compared with those of an ARM processor (qemu-aarch64, aarch64-linux-gnu-gcc or its standard \
                 library is missing; install Debian's qemu-user and gcc-aarch64-linux-gnu, and run rustup target add \
                 aarch64-unknown-linux-gnu)",
        present: aarch64::present,
    },
    Part {
        name: "mpi",
        reason: "runs of several processes are not tested (mpirun.openmpi or mpirun.mpich is missing; install Debian's \
                 openmpi-bin and mpich)",
        present: || {
            let is_there = |launcher: &str| succeeds(program(launcher).arg("--version"));
            ["mpirun.openmpi", "mpirun.mpich"].into_iter().all(is_there)
        },
    },
    Part {
        name: "models",
        reason: "no pretrained model is fine-tuned (target/models/magika-1.0.3.onnx is missing; python3 \
                 examples/stories/fine_tune.py --fetch downloads it)",
        present: || source::root().join("target/models/magika-1.0.3.onnx").is_file(),
    },
    Part {
        name: "browser",
        reason: "no browser opens the page of a run (chromium-headless-shell, from Debian's package of that name, is missing)",
        present: || {
            let is_there = |browser: &str| succeeds(program(browser).arg("--version"));
            ["chromium-headless-shell", "chrome-headless-shell"].into_iter().any(is_there)
        },
    },
    Part {
        name: "slang",
        reason: "committed shaders are not compared with their sources (FOREBAY_SLANGC is not set, and python3 has no \
                 pip to fetch the compiler with)",
        present: || {
            path_variable("FOREBAY_SLANGC").is_some() || succeeds(program("python3").args(["-m", "pip", "--version"]))
        },
    },
];

/// Returns the folder of SwiftShader and its validation layer, as set up by `.ci/run`: a driver without float64, 16-bit storage and tiles.
pub fn swiftshader() -> PathBuf {
    source::root().join("target/swiftshader")
}

/// Returns the manifest that tells Vulkan's loader about the driver.
pub fn swiftshader_driver() -> PathBuf {
    swiftshader().join("vk_swiftshader_icd.json")
}

/// Returns the missing parts.
///
/// # Errors
/// Fails if `FOREBAY_REQUIRE` names a part that is missing or unknown.
pub fn missing() -> Result<Vec<&'static Part>, String> {
    let required = std::env::var("FOREBAY_REQUIRE").unwrap_or_default();
    let required: Vec<&str> = required.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = required.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        return Err(format!("unknown part '{unknown}' in FOREBAY_REQUIRE; the parts are {}", known.join(", ")));
    }
    let missing: Vec<&Part> = PARTS.iter().filter(|part| !(part.present)()).collect();
    match missing.iter().find(|part| required.contains(&part.name)) {
        Some(part) => Err(format!("FOREBAY_REQUIRE names {}, which is missing: {}", part.name, part.reason)),
        None => Ok(missing),
    }
}
