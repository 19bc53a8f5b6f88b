//! Conversion of flags to training options.

use forebay::training::{DecayRule, Precision, TrainingOptions};

use crate::arguments::{DecayKind, PrecisionKind, TrainingArguments};
use crate::failure::Failure;
use crate::loss_options::{LossFlags, loss, term};
use crate::optimizer_options::optimizer;

/// Returns the training options that the flags specify.
///
/// # Errors
/// Fails if a flag does not apply to the chosen loss or optimizer.
pub fn training_options(arguments: &TrainingArguments, seed: u64) -> Result<TrainingOptions, Failure> {
    let mut options = TrainingOptions::new(loss(&LossFlags::of(arguments))?, optimizer(arguments)?);
    options.loss_output.clone_from(&arguments.loss_output);
    options.loss_weight = arguments.loss_weight;
    options.terms = arguments.also_loss.iter().map(|words| term(words)).collect::<Result<_, _>>()?;
    options.decay = arguments.decay.map(|rule| match rule {
        DecayKind::All => DecayRule::All,
        DecayKind::Matrices => DecayRule::MatricesOnly,
    });
    options.precision = arguments.precision.map(|kind| {
        let mut precision = match kind {
            PrecisionKind::Bf16 => Precision::bfloat16(),
            PrecisionKind::F16 => Precision::float16(),
        };
        precision.float32.clone_from(&arguments.float32);
        precision
    });
    options.freeze.clone_from(&arguments.freeze);
    options.seed = seed;
    arguments.gradients.apply(&mut options);
    Ok(options)
}
