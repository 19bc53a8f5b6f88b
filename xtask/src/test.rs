//! `cargo xtask test`: everything that has to pass.

use std::time::{Duration, Instant};

use crate::command::{cargo, has_nextest, run, run_and_keep};
use crate::{aarch64, kernels, parts, python, swiftshader, tidy};

/// Runs every check, then prints how long each took, what was skipped, and last the test runner's summary.
///
/// # Errors
/// Fails with the checks that failed; all of them run, so one call shows every failure.
pub fn test() -> Result<(), String> {
    let missing = parts::missing()?;
    let present = |name: &str| missing.iter().all(|part| part.name != name);
    let mut checks = Checks::default();
    if present("rustfmt") {
        checks.run("format", || run(&mut cargo(&["fmt", "--all", "--check"])));
    }
    checks.run("tidy", tidy::tidy);
    if present("slang") {
        checks.run("kernels", || kernels::kernels(&["--check".to_owned()]));
    }
    if present("clippy") {
        let clippy = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        checks.run("clippy", || run(&mut cargo(&clippy)));
    }
    // Cargo's own runner does the same, one crate at a time.
    let (tests, reporting) = match has_nextest() {
        true => (["nextest", "run", "--workspace"].as_slice(), REPORTING.as_slice()),
        false => (
            ["test", "--workspace", "--lib", "--bins", "--tests"].as_slice(),
            ["--no-fail-fast", "--", "--quiet"].as_slice(),
        ),
    };
    checks.run("building tests", || run(cargo(tests).arg("--no-run")));
    let mut emulated = None;
    if present("aarch64") {
        checks.run("building for ARM", || {
            emulated = Some(aarch64::build()?);
            Ok(())
        });
    }
    let mut closing = Vec::new();
    checks.run("tests", || {
        let mut runner = cargo(tests);
        runner.args(reporting).envs(emulated.map(|program| (aarch64::PROGRAM, program)));
        let (lines, result) = run_and_keep(&mut runner, is_closing_line);
        closing = lines;
        result
    });
    if present("swiftshader") {
        checks.run("SwiftShader", swiftshader::sample);
    }
    checks.run("documentation", || run(&mut cargo(&["test", "--quiet", "--workspace", "--doc"])));
    if present("python") {
        checks.run("Python", python::test);
    }
    // The build without optional features must succeed, and its registry must report that Vulkan is missing.
    let without = |command, package| cargo(&[command, "--quiet", "--package", package, "--no-default-features"]);
    checks.run("building without features", || run(&mut without("check", "forebay-cli")));
    checks.run("devices without Vulkan", || run(without("test", "forebay-devices").arg("--lib")));
    for (package, target) in
        [("forebay-queue", "--test=model"), ("forebay-runtime", "--test=model"), ("forebay-mpi", "--lib")]
    {
        // The model checker replaces threads and locks in this build, so nothing else can share it; no kernels run, either.
        let model = ["--package", package, "--features", "shuttle", target, "--config", QUICK_DEVICE];
        if present("clippy") {
            checks.run(&format!("clippy, model checker of {package}"), || {
                run(cargo(&["clippy", "--quiet"]).args(model).args(["--", "--deny", "warnings"]))
            });
        }
        checks.run(&format!("model checker of {package}"), || {
            run(cargo(&["test", "--quiet"]).args(model).args(["--", "--nocapture"]))
        });
    }
    println!();
    for (name, took) in &checks.took {
        println!("{:3}:{:02} {name}", took.as_secs() / 60, took.as_secs() % 60);
    }
    for part in &missing {
        println!("SKIPPED {}: {}", part.name, part.reason);
    }
    if let [first, second, ..] = closing.as_slice() {
        // Cargo's own runner prints a summary per crate; the reader wants the sum.
        println!("{}", sum_of(&closing).unwrap_or_else(|| format!("{first}\n{second}")));
    } else if let Some(line) = closing.first() {
        println!("{}", line.trim());
    }
    match checks.failures.as_slice() {
        [] => Ok(()),
        failures => Err(format!("failed:\n  {}", failures.join("\n  "))),
    }
}

/// The checks that ran: how long each took, and which failed.
#[derive(Default)]
struct Checks {
    took: Vec<(String, Duration)>,
    failures: Vec<String>,
}

impl Checks {
    fn run(&mut self, name: &str, check: impl FnOnce() -> Result<(), String>) {
        let start = Instant::now();
        self.failures.extend(check().err());
        self.took.push((name.to_owned(), start.elapsed()));
    }
}

/// How `cargo nextest run` reports: it names slow and failed tests, and runs all tests even if one fails.
pub const REPORTING: [&str; 5] = ["--no-fail-fast", "--status-level", "slow", "--final-status-level", "slow"];

/// Kernels that do not run need not be fast, and compile in a fraction of the time this way.
const QUICK_DEVICE: &str = "profile.dev.package.forebay-device.opt-level=0";

/// `Summary [12.3s] 90 tests run: 90 passed, 1 skipped` (nextest) or `test result: ok. 3 passed; 0 failed; ...`.
fn is_closing_line(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Summary [") || line.starts_with("test result:")
}

/// Returns the sum of Cargo's summary lines.
fn sum_of(lines: &[String]) -> Option<String> {
    let mut sums = [0u64; 3];
    for line in lines {
        let words: Vec<&str> = line.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for (sum, what) in sums.iter_mut().zip(["passed", "failed", "ignored"]) {
            let position = words.iter().position(|word| *word == what)?;
            *sum += words[position.checked_sub(1)?].parse::<u64>().ok()?;
        }
    }
    let [passed, failed, ignored] = sums;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    Some(format!("test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_summed() {
        let lines = [
            "test result: ok. 45 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.73s".to_owned(),
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s"
                .to_owned(),
        ];
        assert!(lines.iter().all(|line| is_closing_line(line)));
        assert_eq!(sum_of(&lines).unwrap(), "test result: FAILED. 47 passed; 3 failed; 1 ignored");
        assert!(is_closing_line("     Summary [   0.1s] 3 tests run: 3 passed, 0 skipped"));
    }
}
