//! The flags that say what is looked at while training runs: records of steps, validation on the way, when to stop.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::device_arguments::positive_count;

/// What histograms are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// Parameters that train.
    Parameters,
    /// Their gradients.
    Gradients,
}

/// What is looked at while training runs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "While training runs")]
pub struct RecordArguments {
    /// Write a line for each step and each validation: JSON lines, or a table if the name ends in .csv. A run that goes on from a
    /// checkpoint keeps the lines up to there
    ///
    /// Keys, and columns: kind (step or validation), step, epoch (from 1), loss, learning_rate, gradient_norm, skipped, seconds,
    /// data_seconds (waited for its batch), device_peak_bytes, resident_peak_bytes; of validations also accuracy, dice_mean, and each of --metrics (confusion in
    /// JSON lines alone).
    #[arg(long, value_name = "FILE.jsonl|FILE.csv")]
    pub log: Option<PathBuf>,
    /// Write the numbers of each step and each validation for TensorBoard, into this folder (`tensorboard --logdir DIR`)
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Write a histogram of each parameter that trains there, after every N steps, too
    #[arg(long, value_name = "N", requires = "tensorboard", value_parser = positive_count)]
    pub histograms_every: Option<u64>,
    /// Of what: parameters, as they are after the step, and gradients, as the step found them, before they are limited. A step whose
    /// gradients are shown has a plan of its own, within the same budgets and with the same bits [default: parameters]
    #[arg(long, value_name = "WHAT,..", value_enum, value_delimiter = ',', requires = "histograms_every")]
    pub histograms: Vec<Shown>,
    /// Draw up to N samples of each validation there, with their label maps, and with those that the model predicts
    #[arg(long, value_name = "N", requires_all = ["tensorboard", "validation"], value_parser = clap::value_parser!(u64).range(1..=64))]
    pub show_predictions: Option<u64>,
    /// Write a page about the run at its end: curves, what was asked for, memory, time, machine, versions; it needs no other file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Validate after every N steps, too [default: after each epoch, if --patience or --best-checkpoint ask for it]
    #[arg(long, value_name = "N", requires = "validation", value_parser = positive_count)]
    pub validate_every: Option<u64>,
    /// Stop when N validations in a row found no lower loss
    #[arg(long, value_name = "N", requires = "validation", value_parser = positive_count)]
    pub patience: Option<u64>,
    /// By how much a loss must be lower than the lowest one to count as lower [default: 0]
    #[arg(long, value_name = "X", requires = "validation")]
    pub min_delta: Option<f64>,
    /// Write a checkpoint into this folder whenever a validation finds the lowest loss so far (`forebay export` makes a model of it)
    #[arg(long, value_name = "DIR", requires = "validation")]
    pub best_checkpoint: Option<PathBuf>,
}

impl RecordArguments {
    /// After how many steps to write histograms of something, if any.
    pub fn histogram_steps(&self, of: Shown) -> Option<u64> {
        let is_default = self.histograms.is_empty() && of == Shown::Parameters;
        self.histograms_every.filter(|_| is_default || self.histograms.contains(&of))
    }

    /// After how many steps to validate while training runs; never, where nothing asks for it.
    pub fn validation_steps(&self, steps_per_epoch: u64) -> Option<u64> {
        let is_needed = self.patience.is_some() || self.best_checkpoint.is_some();
        self.validate_every.or(is_needed.then_some(steps_per_epoch))
    }
}
