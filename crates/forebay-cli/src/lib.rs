//! The command line of Forebay: arguments in, plans, trained models and numbers out.
//!
//! Results go to standard output, progress and errors to standard error. Exit code 0: done; 1: failed; 2: the command line
//! has no meaning; 130: interrupted.
//!
//! | module | holds |
//! |---|---|
//! | [`arguments`] | every sub-command and flag |
//! | [`data_arguments`] | the flags of reading samples |
//! | [`device_arguments`] | the flags of devices and memory |
//! | [`export_arguments`] | the flags of `export` |
//! | [`gradient_arguments`] | the flags of limits of gradients, and of groups of parameters |
//! | [`record_arguments`] | the flags of records, of validation on the way, and of when to stop |
//! | [`schedule_arguments`] | the flags of learning-rate schedules |
//! | [`heap_arguments`] | flags that say in what pieces device memory is had |
//! | [`failure`] | what ends the program early, and with which exit code |
//! | [`output`] | printing, and files that appear whole or not at all |
//! | [`escape`] | names of files and tensors, safe to print and to write into pages |
//! | [`interrupt`] | Ctrl-C |
//! | [`keeping`] | where checkpoints go, and where else when they cannot |
//! | [`resuming`] | whether a run can go on from a checkpoint |
//! | [`processes`] | the processes of a run: which one this is, and what they agree on |
//! | [`progress`] | a bar on a terminal, else plain lines |
//! | [`report`] | the numbers of a run, as text and as JSON |
//! | [`log_file`] | a line for each step and each validation |
//! | [`event_file`] | the same for TensorBoard |
//! | [`records`] | both, and what a page shows |
//! | [`page`], [`curves`] | a run on a page |
//! | [`best_loss`] | the lowest loss of validations, and how old it is |
//! | [`epoch_loss`] | the mean loss of an epoch |
//! | [`metrics`] | metrics of validation, as text and as JSON |
//! | [`untrained`] | what of a model does not train |
//! | [`validation`] | what validation found, as text and as JSON |
//! | [`config_file`] | a file of flags |
//! | [`opening`] | what training starts from |
//! | [`dry_run`] | whether a run can start, and what it takes |
//! | [`feeding`] | data sets and arrays as the tensors that a model takes |
//! | [`report_arguments`] | the flags of reports and traces |
//! | [`run_arguments`] | the flags of `run` |
//! | [`shared_steps`] | what several processes did in the steps of a run |
//! | [`text_arguments`] | the flags of text |
//! | [`lora_arguments`] | the flags of low-rank adapters |
//! | [`head_arguments`] | the flags of another head |
//! | [`loss_arguments`], [`optimizer_arguments`] | the flags of single losses and optimizers |
//! | [`numbers`] | numbers of flags |
//! | [`training_options`], [`loss_options`], [`optimizer_options`] | flags as training options |
//! | [`scaling`] | what several processes make of a step, as planned |
//! | [`limits`] | the limit on the process that a run keeps to, in words |
//! | [`run`], [`train`], [`export`], [`plan`], [`mod@data`], [`devices`], [`place`], [`probe`], [`replay`] | the sub-commands |
//! | [`buffer_table`] | what `place` reads and writes |
//! | [`chart`] | what `probe` measured, as a picture |
//! | [`compare`] | a budget's price: steps next to unlimited ones |

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

/// Runs a command line, the program's name first, and gives its exit code.
pub fn run_command_line(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    forebay_device::process::keep_little();
    forebay_device::signals::ignore_file_size_signal();
    let mut root = Arguments::command();
    let Expanded { arguments, file } = match config_file::expand(arguments.into_iter().collect(), &mut root) {
        Ok(expanded) => expanded,
        Err(failure) => return complain(&failure),
    };
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
    processes::finish();
    code
}

/// Says why the program ends early, and gives its exit code.
fn complain(failure: &Failure) -> u8 {
    output::complain(&format!("error: {failure}"));
    failure.exit_code()
}

/// Prints what the argument parser has to say: help and versions on standard output, errors on standard error.
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
