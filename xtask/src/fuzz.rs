//! `cargo xtask fuzz`: runs each fuzz target for some minutes, starting from the seeds in `fuzz/seeds`.

use crate::command::{cargo, run, succeeds};
use crate::source;

const TARGETS: [&str; 2] = ["onnx_import", "tensor_desc"];
const MINUTES: u64 = 10;
/// Models of one operator fit; longer inputs are seldom more useful.
const INPUT_BYTES_MAX: u64 = 32 << 10;
/// The memory limit of a target, in MiB; libFuzzer reports more as a finding.
const MEMORY_MIB_MAX: u64 = 4096;

/// Runs the named targets (all if none is named), each for `--minutes N`.
///
/// # Errors
/// Fails if the arguments are invalid, cargo-fuzz is missing, or there is a finding (libFuzzer prints it and keeps the input).
pub fn fuzz(arguments: &[String]) -> Result<(), String> {
    let (targets, minutes) = parse(arguments)?;
    if !succeeds(&mut cargo(&["fuzz", "--version"])) {
        return Err("cargo-fuzz is missing; `cargo install cargo-fuzz` installs it".to_owned());
    }
    for target in targets {
        let corpus = source::root().join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&corpus).map_err(|error| format!("cannot create {}: {error}", corpus.display()))?;
        let seeds = format!("fuzz/seeds/{target}");
        let (time, memory) = (format!("-max_total_time={}", minutes * 60), format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        let length = format!("-max_len={INPUT_BYTES_MAX}");
        let mut command = cargo(&["fuzz", "run", target, &format!("fuzz/corpus/{target}")]);
        if source::root().join(&seeds).is_dir() {
            command.arg(&seeds);
        }
        command.args(["--", &time, &memory, &length, "-timeout=20", "-print_final_stats=1"]);
        // A stable compiler accepts the flags for libFuzzer's instrumentation only with this variable set.
        command.env("RUSTC_BOOTSTRAP", "1");
        run(&mut command)?;
        println!("{target}: nothing found in {minutes} minutes");
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<(Vec<&'static str>, u64), String> {
    let (mut targets, mut minutes) = (Vec::new(), MINUTES);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--minutes" {
            let number = rest.next().and_then(|number| number.parse().ok()).filter(|&minutes| minutes > 0);
            minutes = number.ok_or("--minutes requires a number of at least 1")?;
        } else {
            let known = TARGETS.iter().find(|target| *target == argument);
            let unknown = || format!("unknown fuzz target '{argument}'; the targets are {}", TARGETS.join(", "));
            targets.push(*known.ok_or_else(unknown)?);
        }
    }
    Ok((if targets.is_empty() { TARGETS.to_vec() } else { targets }, minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_minutes_are_parsed() {
        let parsed = |words: &[&str]| parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(parsed(&[]), Ok((TARGETS.to_vec(), MINUTES)));
        assert_eq!(parsed(&["--minutes", "2", "tensor_desc"]), Ok((vec!["tensor_desc"], 2)));
        assert!(parsed(&["--minutes"]).is_err() && parsed(&["--minutes", "0"]).is_err() && parsed(&["x"]).is_err());
    }
}
