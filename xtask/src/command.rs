//! Running other programs from tasks.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns a command for the Cargo that runs this task, in the repository's root.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = program(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(arguments);
    command
}

/// Returns whether `cargo nextest` runs the tests, all of them in parallel.
pub fn has_nextest() -> bool {
    succeeds(&mut cargo(&["nextest", "--version"]))
}

/// Returns a command that runs tests, with `cargo nextest` if it is there.
pub fn test_runner() -> Command {
    match has_nextest() {
        true => cargo(&["nextest", "run"]),
        false => cargo(&["test", "--quiet"]),
    }
}

/// Returns the path that a variable of the environment names; `None` if the variable is not set or empty.
pub fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns a command that runs a program in the repository's root.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(crate::source::root());
    command
}

/// Runs the program silently and returns whether it succeeds.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command with its output shown.
///
/// # Errors
/// Fails if the command cannot be started or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    println!("$ {}", shown(command));
    let status = command.status().map_err(|error| format!("cannot start {}: {error}", shown(command)))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{} failed", shown(command))),
    }
}

/// Runs a command with its output shown and returns the lines of either stream that `wanted` accepts, along with the result that [`run`]
/// would give.
pub fn run_and_keep(command: &mut Command, wanted: fn(&str) -> bool) -> (Vec<String>, Result<(), String>) {
    println!("$ {}", shown(command));
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return (Vec::new(), Err(format!("cannot start {}: {error}", shown(command)))),
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || stderr.map_or(Vec::new(), |stream| show(BufReader::new(stream), wanted)));
    let mut kept = stdout.map_or(Vec::new(), |stream| show(BufReader::new(stream), wanted));
    kept.extend(errors.join().unwrap_or_default());
    let result = match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{} failed", shown(command))),
        Err(error) => Err(format!("cannot wait for {}: {error}", shown(command))),
    };
    (kept, result)
}

fn show(stream: impl BufRead, wanted: fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    for line in stream.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{line}");
        if wanted(&line) {
            kept.push(line);
        }
    }
    kept
}

fn shown(command: &Command) -> String {
    let name = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
