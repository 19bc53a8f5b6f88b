//! `cargo xtask stories`: the scripts of `examples/stories` in their long forms, which check what the guide claims.

use crate::command::{cargo, program, run};
use crate::source;

/// The scripts.
const STORIES: [&str; 3] = ["fine_tune", "volumes", "language_model"];

/// Builds the program and runs all stories, or the named one, with the given arguments.
///
/// # Errors
/// Fails if the build or a script fails; the script says what it needs or which claim does not hold.
pub fn stories(arguments: &[String]) -> Result<(), String> {
    run(&mut cargo(&["build", "--release"]))?;
    let (chosen, rest) = match arguments.split_first() {
        Some((name, rest)) if !name.starts_with('-') => (Some(name.as_str()), rest),
        _ => (None, arguments),
    };
    if let Some(name) = chosen.filter(|name| !STORIES.contains(name)) {
        return Err(format!("unknown story '{name}'; the stories are {}", STORIES.join(", ")));
    }
    let mut failures = Vec::new();
    for name in STORIES.into_iter().filter(|name| chosen.is_none_or(|chosen| chosen == *name)) {
        println!("-- {name}");
        let script = source::root().join("examples/stories").join(format!("{name}.py"));
        failures.extend(run(program("python3").arg(script).args(rest)).err());
    }
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(failures.join("\n")),
    }
}
