//! Counts and lists the cases of a suite that pass on a device.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use forebay::{DeviceName, EngineOptions, SessionOptions};
use forebay_conformance::{Outcome, Suite, out_of_scope, run};

/// Run ONNX's own test cases through Forebay, and list those that fail, by cause. Cases with strings or sparse tensors are out of scope:
/// they are counted, and run if possible.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Arguments {
    /// The cases: a .tar.gz archive, or a folder with a folder per case [default: those in testdata/onnx].
    suite: Option<PathBuf>,
    /// The device to run on; `forebay devices` lists the devices.
    #[arg(long, value_name = "NAME", default_value = "host")]
    device: String,
    /// Run only cases whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print the names of the cases that pass, and nothing else.
    #[arg(long)]
    names: bool,
}

fn main() -> ExitCode {
    match count(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn count(arguments: &Arguments) -> Result<(), String> {
    let path = arguments.suite.clone().unwrap_or_else(Suite::public_folder);
    let suite = if arguments.suite.is_some() { Suite::read(&path) } else { Suite::public() };
    let suite = suite.map_err(|error| format!("'{}': {error}", path.display()))?;
    let name: DeviceName = arguments.device.parse().map_err(|error| format!("--device: {error}"))?;
    let engine = EngineOptions::default().device(name);
    let device = forebay::open_device(&engine.device).map_err(|error| error.to_string())?;
    let options = SessionOptions::default();
    let chosen = || suite.cases.iter().filter(|(name, _)| name.contains(&arguments.only));
    let outcomes: BTreeMap<&str, Outcome> =
        chosen().map(|(name, case)| (name.as_str(), run(case, &device, &options))).collect();
    let passed = outcomes.values().filter(|outcome| **outcome == Outcome::Passed).count();
    if arguments.names {
        let passing = outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Passed);
        passing.for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let mut failures: BTreeMap<Cause, Vec<(&str, &str)>> = BTreeMap::new();
    for (name, outcome) in &outcomes {
        if let Outcome::Failed(reason) = outcome {
            let scope = suite.cases[*name].files.get("model.onnx").and_then(|model| out_of_scope(model));
            let kind = scope.map_or_else(|| cause(reason), str::to_string);
            failures.entry(Cause { in_scope: scope.is_none(), kind }).or_default().push((name, reason));
        }
    }
    for (cause, cases) in &failures {
        let scope = if cause.in_scope { "" } else { "out of scope: " };
        println!("{scope}{} ({}):", cause.kind, cases.len());
        for (name, reason) in cases {
            println!("  {name}: {}", reason.replace('\n', " "));
        }
    }
    let beyond: usize = failures.iter().filter(|(cause, _)| !cause.in_scope).map(|(_, cases)| cases.len()).sum();
    println!(
        "{passed} of {} cases pass on {}; {beyond} of the others are out of scope, {} are not",
        outcomes.len(),
        arguments.device,
        outcomes.len() - passed - beyond
    );
    Ok(())
}

/// The reason why cases fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    in_scope: bool,
    kind: String,
}

/// Returns what messages with the same cause have in common: the message without names and numbers.
fn cause(reason: &str) -> String {
    let mut kind = String::new();
    for (i, part) in reason.lines().next().unwrap_or_default().split('\'').enumerate() {
        kind += if i % 2 == 0 { part } else { "_" };
    }
    let numbers = |letter: char| if letter.is_ascii_digit() { '#' } else { letter };
    let mut kind: String = kind.chars().map(numbers).take(100).collect();
    while kind.contains("##") {
        kind = kind.replace("##", "#");
    }
    kind
}
