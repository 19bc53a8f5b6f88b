//! The stories of `docs/stories.md` in their short forms: scripts of `examples/stories`, which end with an error if a claim does not hold.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Folder, example, texts};
use forebay_testing::parts::skipped;

/// Runs a story if Python has what it needs.
fn tell(script: &str, flags: &[&str]) {
    if !Command::new("python3")
        .args(["-c", "import numpy, onnx, onnxruntime"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skipped("onnxruntime", "python3 cannot import numpy, onnx and onnxruntime");
    }
    let folder = Folder::new();
    let mut command = Command::new("python3");
    command.arg(example(&format!("stories/{script}.py"))).args(["--quick", "--folder", &folder.text("story")]);
    command.args(["--forebay", env!("CARGO_BIN_EXE_forebay"), "--threads", "2"]).args(flags);
    let output = command.output().expect("python3 starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("holds: "), "{stdout}");
}

/// Returns a file of a package that `.ci/run` fetched.
fn fetched(name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/models").join(name);
    file.is_file().then_some(file)
}

#[test]
fn a_pretrained_model_learns_another_task_within_a_limit_and_runs_elsewhere() {
    match fetched("magika-1.0.3.onnx") {
        Some(model) => tell("fine_tune", &["--model", model.to_str().expect("a path in UTF-8")]),
        None => skipped("models", "target/models/magika-1.0.3.onnx is missing"),
    }
}

#[test]
fn whole_volumes_train_in_a_tenth_of_the_memory() {
    tell("volumes", &["--without-torch"]);
}

#[test]
fn a_language_model_that_was_killed_ends_with_the_same_bytes() {
    tell("language_model", &["--without-torch"]);
}
