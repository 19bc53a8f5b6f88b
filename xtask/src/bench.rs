//! `cargo xtask bench`: seconds per training step next to PyTorch, by `benches/training.py`, which records them.

use crate::command::{cargo, program, run};

/// Builds the program and runs the script with the arguments given.
///
/// # Errors
/// Where the build fails, or the script, which says what it needs.
pub fn bench(arguments: &[String]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release"]))?;
    run(program("python3").arg("benches/training.py").args(arguments))
}
