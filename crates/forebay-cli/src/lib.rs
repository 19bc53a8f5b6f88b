//! The command line of Forebay, which turns arguments into plans, trained models and numbers.
//!
//! Results go to standard output, progress and errors to standard error. Exit codes: 0 for success, 1 for failure, 2 for an invalid
//! command line, 130 for an interruption.
//!
//! | module | holds |
//! |---|---|
//! | [`arguments`] | every subcommand and flag |
//! | [`data_arguments`] | the flags for reading samples |
//! | [`device_arguments`] | the flags for devices and memory |
//! | [`export_arguments`] | the flags of `export` |
//! | [`gradient_arguments`] | the flags for gradient clipping and parameter groups |
//! | [`record_arguments`] | the flags for records, validation during training, and early stopping |
//! | [`schedule_arguments`] | the flags for learning-rate schedules |
//! | [`heap_arguments`] | the flags for allocating device memory |
//! | [`failure`] | the reasons for which the program ends early, and their exit codes |
//! | [`output`] | printing, and files that appear whole or not at all |
//! | [`escape`] | escaping names of files and tensors for terminals and pages |
//! | [`interrupt`] | Ctrl-C |
//! | [`keeping`] | where checkpoints are written, and where else if that fails |
//! | [`resuming`] | whether a run can go on from a checkpoint |
//! | [`processes`] | the processes of a run: which one this is, and what they agree on |
//! | [`progress`] | a bar on a terminal, else plain lines |
//! | [`report`] | the numbers of a run, as text and as JSON |
//! | [`log_file`] | a line for each step and each validation |
//! | [`event_file`] | the same for TensorBoard |
//! | [`records`] | both of these, and what a page shows |
//! | [`page`], [`curves`] | a page about a run |
//! | [`best_loss`] | the lowest validation loss, and its age |
//! | [`epoch_loss`] | the mean loss of an epoch |
//! | [`metrics`] | metrics of validation, as text and as JSON |
//! | [`untrained`] | the parts of a model that are not trained |
//! | [`validation`] | the results of validation, as text and as JSON |
//! | [`config_file`] | a file of flags |
//! | [`environment`] | which variables of the environment count |
//! | [`opening`] | what training starts from |
//! | [`dry_run`] | whether a run can start, and what it needs |
//! | [`feeding`] | conversion of data sets and arrays to the inputs of a model |
//! | [`rank_arguments`] | the flags of `plan` for several processes |
//! | [`report_arguments`] | the flags for reports and traces |
//! | [`run_arguments`] | the flags of `run` |
//! | [`shared_steps`] | what several processes did in the steps of a run |
//! | [`text_arguments`] | the flags for tokenizing text |
//! | [`lora_arguments`] | the flags for low-rank adapters |
//! | [`head_arguments`] | the flags for replacing the head |
//! | [`loss_arguments`], [`optimizer_arguments`] | the flags of specific losses and optimizers |
//! | [`numbers`] | parsing numbers in flags |
//! | [`training_options`], [`loss_options`], [`optimizer_options`] | conversion of flags to training options |
//! | [`scaling`] | how a step scales to several processes, as planned |
//! | [`limits`] | the process memory limit of a run, in words |
//! | [`run`], [`train`], [`export`], [`plan`], [`mod@data`], [`devices`], [`place`], [`probe`], [`replay`] | the subcommands |
//! | [`buffer_table`] | the tables that `place` reads and writes |
//! | [`chart`] | a picture of the measurements of `probe` |
//! | [`compare`] | the cost of a budget, compared to unlimited steps |

mod arguments;
mod best_loss;
mod budget_file;
mod buffer_table;
mod chart;
mod compare;
mod config_file;
mod curves;
mod data;
mod data_arguments;
mod device_arguments;
mod devices;
mod dry_run;
mod environment;
mod epoch_loss;
mod escape;
mod event_file;
mod export;
mod export_arguments;
mod failure;
mod feeding;
mod gradient_arguments;
mod head_arguments;
mod heap_arguments;
mod interrupt;
mod keeping;
mod limits;
mod log_file;
mod lora_arguments;
mod loss_arguments;
mod loss_options;
mod metrics;
mod numbers;
mod opening;
mod optimizer_arguments;
mod optimizer_options;
mod output;
mod page;
mod place;
mod plan;
mod probe;
mod processes;
mod progress;
mod rank_arguments;
mod record_arguments;
mod records;
mod replay;
mod report;
mod report_arguments;
mod resuming;
mod run;
mod run_arguments;
mod scaling;
mod schedule_arguments;
mod shared_steps;
mod text_arguments;
mod train;
mod training_options;
mod untrained;
mod validation;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use arguments::{Arguments, Command};
use config_file::Expanded;
use failure::Failure;

/// Runs a command line, which starts with the program's name, and returns its exit code.
pub fn run_command_line(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    forebay_device::process::keep_little();
    forebay_device::signals::ignore_file_size_signal();
    let mut root = accept_negative_numbers(Arguments::command());
    let Expanded { arguments, file } = match config_file::expand(arguments.into_iter().collect(), &mut root) {
        Ok(expanded) => expanded,
        Err(failure) => return complain(&failure),
    };
    let root = environment::settled(root, &arguments);
    let parsed = root.clone().try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (mut arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(words) => {
            let code = tell(&words);
            if let Some(file) = file.filter(|_| code != 0) {
                output::complain(&format!("note: flags that are not on the command line come from {}", file.display()));
            }
            return code;
        }
    };
    if let Some((command, matches)) = matches.subcommand() {
        match &mut arguments.command {
            Command::Train(arguments) => arguments.configuration = config_file::effective(matches, &root, command),
            Command::Run(arguments) => arguments.configuration = config_file::effective(matches, &root, command),
            Command::Plan(arguments) => {
                if let Err(failure) = plan::refuse_training_flags(arguments, matches) {
                    return complain(&failure);
                }
            }
            _ => {}
        }
    }
    let result = match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Train(arguments) if arguments.dry_run => dry_run::dry_run(arguments),
        Command::Train(arguments) => train::train(arguments),
        Command::Export(arguments) => export::export(arguments),
        Command::Plan(arguments) => plan::plan(arguments),
        Command::Data(arguments) => data::data(arguments),
        Command::Devices(arguments) => devices::devices(arguments),
        Command::Place(arguments) => place::place(arguments),
        Command::Probe(arguments) => probe::probe(arguments),
        Command::Replay(arguments) => replay::replay(arguments),
    };
    let code = match result.and_then(|()| output::finish()) {
        Ok(()) => 0,
        Err(failure) => complain(&failure),
    };
    match processes::finish() {
        Ok(()) => code,
        Err(failure) => {
            output::complain_aloud(&format!("error: {failure}"));
            failure.exit_code()
        }
    }
}

/// Lets every flag take a negative number, so that the error for one that does not fit says what the flag expects.
fn accept_negative_numbers(root: clap::Command) -> clap::Command {
    root.mut_subcommands(|command| {
        command.mut_args(|arg| match arg.get_action().takes_values() && !arg.is_positional() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
    })
}

/// Reports why the program ends early, and returns its exit code.
fn complain(failure: &Failure) -> u8 {
    output::complain(&format!("error: {failure}"));
    failure.exit_code()
}

/// Prints the output of the argument parser: help and versions on standard output, errors on standard error.
fn tell(words: &clap::Error) -> u8 {
    use std::io::{ErrorKind, Write};
    let printed = words.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            output::complain(&format!("error: cannot write standard output: {error}"));
            1
        }
        _ => u8::try_from(words.exit_code()).unwrap_or(1),
    }
}
