//! Flags as training options.

use forebay::training::{DecayRule, TrainingOptions};

use crate::arguments::{DecayKind, TrainingArguments};
use crate::failure::Failure;
use crate::loss_options::loss;
use crate::optimizer_options::optimizer;

/// The training options that the flags name.
///
/// # Errors
/// Flags that do not belong to the chosen loss or optimizer.
pub fn training_options(arguments: &TrainingArguments, seed: u64) -> Result<TrainingOptions, Failure> {
    let mut options = TrainingOptions::new(loss(arguments)?, optimizer(arguments)?);
    options.loss_output.clone_from(&arguments.loss_output);
    options.decay = arguments.decay.map(|rule| match rule {
        DecayKind::All => DecayRule::All,
        DecayKind::Matrices => DecayRule::MatricesOnly,
    });
    options.freeze.clone_from(&arguments.freeze);
    options.seed = seed;
    arguments.gradients.apply(&mut options);
    Ok(options)
}
