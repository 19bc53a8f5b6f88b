//! Counts and lists the cases of a suite that pass on a device.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use forebay::{DeviceName, EngineOptions, SessionOptions};
use forebay_conformance::{run, Outcome, Suite};

/// Run ONNX's own test cases through Forebay, and list those that fail.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Arguments {
    /// The cases: a .tar.gz archive, or a folder with a folder per case [default: those in testdata/onnx].
    suite: Option<PathBuf>,
    /// The device that computes; `forebay devices` lists them.
    #[arg(long, value_name = "NAME", default_value = "host")]
    device: String,
    /// Only cases whose name contains this.
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
    for (name, outcome) in &outcomes {
        match (outcome, arguments.names) {
            (Outcome::Passed, true) => println!("{name}"),
            (Outcome::Failed(reason), false) => println!("{name}: {}", reason.replace('\n', " ")),
            _ => {}
        }
    }
    if !arguments.names {
        println!("{passed} of {} cases pass on {}", outcomes.len(), arguments.device);
    }
    Ok(())
}
