//! `cargo xtask bench`: seconds per training step beside peers, by the scripts in `benches/`.

use crate::command::{cargo, program, run};
use crate::source;

/// Builds the program and runs every script of `benches/` that is meant to be run, with the arguments given.
///
/// # Errors
/// Where the build or a script fails, or there is none.
pub fn bench(arguments: &[String]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release"]))?;
    let folder = source::root().join("benches");
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.starts_with("bench_") && name.ends_with(".py") {
            scripts.push(format!("benches/{name}"));
        }
    }
    scripts.sort_unstable();
    if scripts.is_empty() {
        return Err("benches/ holds no bench_*.py".to_owned());
    }
    scripts.iter().try_for_each(|script| run(program("python3").arg(script).args(arguments)))
}
