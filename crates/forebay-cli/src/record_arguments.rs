//! The flags for monitoring training: records of steps, validation during training, early stopping.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::device_arguments::positive_count;
use crate::numbers::not_negative_f64;

/// The values shown in histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shown {
    /// Trained parameters.
    Parameters,
    /// Their gradients.
    Gradients,
}

/// Monitoring of training.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "While training runs")]
pub struct RecordArguments {
    /// Write a line for each step and each validation: JSON lines, or a table if the name ends in .csv. A run that resumes from a
    /// checkpoint keeps the lines up to that point
    ///
    /// Keys and columns: kind (step or validation), step, epoch (from 1), loss, learning_rate, gradient_norm, skipped, seconds,
    /// data_seconds (spent waiting for its batch), device_peak_bytes, resident_peak_bytes; for validations also accuracy, dice_mean, and
    /// each of --metrics (confusion only in JSON lines).
    #[arg(long, value_name = "FILE.jsonl|FILE.csv")]
    pub log: Option<PathBuf>,
    /// Write the numbers of each step and each validation for TensorBoard, into this folder (`tensorboard --logdir DIR`)
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Also write a histogram of each trained parameter there after every N steps
    #[arg(long, value_name = "N", requires = "tensorboard", value_parser = positive_count)]
    pub histograms_every: Option<u64>,
    /// What to show in histograms: parameters, after the step, and gradients, before clipping. A step whose gradients are shown has a
    /// separate plan, within the same budgets and with the same bits [default: parameters]
    #[arg(long, value_name = "WHAT,..", value_enum, value_delimiter = ',', requires = "histograms_every")]
    pub histograms: Vec<Shown>,
    /// Draw up to N samples of each validation there, with their label maps and the label maps that the model predicts
    #[arg(long, value_name = "N", requires_all = ["tensorboard", "validation"], value_parser = clap::value_parser!(u64).range(1..=64))]
    pub show_predictions: Option<u64>,
    /// Write a self-contained page about the run at its end: curves, configuration, memory, time, machine, versions
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Also validate after every N steps [default: after each epoch, if --patience or --best-checkpoint requires it]
    #[arg(long, value_name = "N", requires = "validation", value_parser = positive_count)]
    pub validate_every: Option<u64>,
    /// Stop after N consecutive validations without a lower loss
    #[arg(long, value_name = "N", requires = "validation", value_parser = positive_count)]
    pub patience: Option<u64>,
    /// The amount by which a loss must be below the lowest one to count as lower [default: 0]
    #[arg(long, value_name = "X", requires = "validation", value_parser = not_negative_f64)]
    pub min_delta: Option<f64>,
    /// Write a checkpoint into this folder whenever a validation finds the lowest loss so far (`forebay export` converts it to a model)
    #[arg(long, value_name = "DIR", requires = "validation")]
    pub best_checkpoint: Option<PathBuf>,
}

impl RecordArguments {
    /// Returns the number of steps after which to write histograms of these values, if any.
    pub fn histogram_steps(&self, of: Shown) -> Option<u64> {
        let is_default = self.histograms.is_empty() && of == Shown::Parameters;
        self.histograms_every.filter(|_| is_default || self.histograms.contains(&of))
    }

    /// Returns the number of steps after which to validate during training, or `None` if nothing requires it.
    pub fn validation_steps(&self, steps_per_epoch: u64) -> Option<u64> {
        let is_needed = self.patience.is_some() || self.best_checkpoint.is_some();
        self.validate_every.or(is_needed.then_some(steps_per_epoch))
    }
}
