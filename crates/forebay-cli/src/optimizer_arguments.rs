//! The optimizers, and flags of specific ones.

use clap::{Args, ValueEnum};

use crate::numbers::{not_negative, number};

/// How parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerKind {
    /// Stochastic gradient descent
    Sgd,
    /// Adam; weight decay is added to the gradient
    Adam,
    /// Adam with decoupled weight decay
    Adamw,
    /// Adam with 8-bit moments: a quarter of the state
    Adam8bit,
    /// AdamW with 8-bit moments: a quarter of the state
    Adamw8bit,
    /// Adam with the largest gradient, which decays, instead of the root of the second moment
    Adamax,
    /// Adam with Nesterov's momentum
    Nadam,
    /// Adam that divides by the root of the second moment only once its variance is known
    Radam,
    /// The gradient divided by the root mean square of past gradients
    Rmsprop,
    /// The gradient divided by the square root of the sum of its squares
    Adagrad,
    /// The gradient times the root mean square of past steps, divided by that of past gradients
    Adadelta,
    /// The sign of an averaged gradient; decoupled weight decay
    Lion,
    /// AdamW with steps relative to the size of each parameter
    Lamb,
    /// Little state: mean squares of rows and columns; steps relative to the size of each parameter
    Adafactor,
}

/// Flags of specific optimizers.
#[derive(Args, Debug, Default)]
pub struct OptimizerArguments {
    /// For sgd with momentum: the part of a gradient that the velocity does not take, except in the first step [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative, requires = "momentum")]
    pub dampening: Option<f32>,
    /// For adam and adamw: divide by the root of the largest second moment so far
    #[arg(long)]
    pub amsgrad: bool,
    /// For nadam: the momentum of step t is beta1 (1 - 0.96^(t X) / 2) [default: 0.004]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub momentum_decay: Option<f32>,
    /// For nadam and radam: apply weight decay to the parameter instead of adding it to the gradient
    #[arg(long)]
    pub decoupled: bool,
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
