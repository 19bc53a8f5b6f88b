//! Flags that single optimizers take.

use clap::Args;

use crate::numbers::{not_negative, number};

/// What single optimizers take.
#[derive(Args, Debug, Default)]
pub struct OptimizerArguments {
    /// Take the squares of distances to the mean gradient: of rmsprop
    #[arg(long)]
    pub centered: bool,
    /// Divide the step size of step number t by 1 + (t - 1) times this: of adagrad [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub rate_decay: Option<f32>,
    /// Step number t keeps 1 - t^this of the mean squares: of adafactor [default: -0.8]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub beta2_decay: Option<f32>,
    /// The largest root mean square of a step before it is scaled: of adafactor [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub update_threshold: Option<f32>,
}
