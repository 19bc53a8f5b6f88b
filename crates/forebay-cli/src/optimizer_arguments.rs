//! Flags of specific optimizers.

use clap::Args;

use crate::numbers::{not_negative, number};

/// Flags of specific optimizers.
#[derive(Args, Debug, Default)]
pub struct OptimizerArguments {
    /// For rmsprop: divide by an estimate of the gradient's standard deviation instead of its root mean square
    #[arg(long)]
    pub centered: bool,
    /// For adagrad: divide the learning rate of step t by 1 + (t - 1) X [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub rate_decay: Option<f32>,
    /// For adafactor: step t keeps 1 - t^this of the mean squares [default: -0.8]
    #[arg(long, value_name = "X", value_parser = number)]
    pub beta2_decay: Option<f32>,
    /// For adafactor: scale an update down if its root mean square exceeds X (PyTorch's `d`) [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub update_threshold: Option<f32>,
}
