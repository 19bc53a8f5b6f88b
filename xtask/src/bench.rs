//! `cargo xtask bench`: seconds per training step compared with PyTorch, measured and recorded by `benches/training.py`.

use crate::command::{cargo, program, run};

/// Builds the program and runs the script with the given arguments.
///
/// # Errors
/// Fails if the build or the script fails; the script says what it needs.
pub fn bench(arguments: &[String]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release"]))?;
    run(program("python3").arg("benches/training.py").args(arguments))
}
