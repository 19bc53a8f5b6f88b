//! The command line of Forebay: arguments in, plans, trained models and numbers out.
//!
//! Results go to standard output, progress and errors to standard error. Exit code 0: done; 1: failed; 2: the command line
//! has no meaning; 130: interrupted.
//!
//! | module | holds |
//! |---|---|
//! | [`arguments`] | every sub-command and flag |
//! | [`heap_arguments`] | flags that say in what pieces device memory is had |
//! | [`failure`] | what ends the program early, and with which exit code |
//! | [`output`] | printing, and files that appear whole or not at all |
//! | [`escape`] | names of files and tensors, safe to print |
//! | [`interrupt`] | Ctrl-C |
//! | [`progress`] | a bar on a terminal, else plain lines |
//! | [`report`] | the numbers of a run, as text and as JSON |
//! | [`metrics`] | accuracy and Dice |
//! | [`feeding`] | data sets and arrays as the tensors that a model takes |
//! | [`training_options`] | flags as training options |
//! | [`run`], [`train`], [`plan`], [`devices`], [`place`], [`probe`], [`replay`] | the sub-commands |
//! | [`buffer_table`] | what `place` reads and writes |
//! | [`chart`] | what `probe` measured, as a picture |
//! | [`compare`] | a budget's price: steps beside unlimited ones |

mod arguments;
mod budget_file;
mod buffer_table;
mod chart;
mod compare;
mod devices;
mod escape;
mod failure;
mod feeding;
mod heap_arguments;
mod interrupt;
mod metrics;
mod output;
mod place;
mod plan;
mod probe;
mod progress;
mod replay;
mod report;
mod run;
mod train;
mod training_options;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use forebay::device::last_resort;

/// Remembers what the system refused, for the last word of a program without memory.
#[global_allocator]
static ALLOCATOR: last_resort::Allocator = last_resort::Allocator;

fn main() -> ExitCode {
    last_resort::install();
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Train(arguments) => train::train(arguments),
        Command::Plan(arguments) => plan::plan(arguments),
        Command::Devices(arguments) => devices::devices(arguments),
        Command::Place(arguments) => place::place(arguments),
        Command::Probe(arguments) => probe::probe(arguments),
        Command::Replay(arguments) => replay::replay(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&format!("error: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}
