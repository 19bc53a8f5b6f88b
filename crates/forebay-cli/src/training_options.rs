//! Flags as training options.

use forebay::training::{DecayRule, Loss, Optimizer, TrainingOptions};

use crate::arguments::{DecayKind, LossKind, OptimizerKind, TrainingArguments};
use crate::failure::Failure;

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

fn loss(arguments: &TrainingArguments) -> Result<Loss, Failure> {
    let (class_axis, ignore_index) = (arguments.class_axis, arguments.ignore_index);
    if arguments.loss != LossKind::Output {
        refuse(arguments.label_input.is_some(), "--label-input", "another --loss than output")?;
    }
    match arguments.loss {
        LossKind::SoftmaxCrossEntropy => Ok(Loss::SoftmaxCrossEntropy { class_axis, ignore_index }),
        LossKind::Mse => {
            refuse(class_axis.is_some(), "--class-axis", "--loss mse")?;
            refuse(ignore_index.is_some(), "--ignore-index", "--loss mse")?;
            Ok(Loss::MeanSquaredError)
        }
        LossKind::Output => {
            refuse(class_axis.is_some(), "--class-axis", "--loss output")?;
            refuse(ignore_index.is_some(), "--ignore-index", "--loss output")?;
            Ok(Loss::Output { labels: arguments.label_input.clone() })
        }
    }
}

fn optimizer(arguments: &TrainingArguments) -> Result<Optimizer, Failure> {
    if arguments.optimizer == OptimizerKind::Sgd {
        refuse(arguments.beta1.is_some(), "--beta1", "--optimizer sgd")?;
        refuse(arguments.beta2.is_some(), "--beta2", "--optimizer sgd")?;
        refuse(arguments.epsilon.is_some(), "--epsilon", "--optimizer sgd")?;
        return Ok(Optimizer::Sgd {
            learning_rate: arguments.learning_rate.unwrap_or(0.01),
            momentum: arguments.momentum.unwrap_or(0.0),
            nesterov: arguments.nesterov,
            weight_decay: arguments.weight_decay.unwrap_or(0.0),
        });
    }
    let decoupled = arguments.optimizer == OptimizerKind::Adamw;
    refuse(arguments.momentum.is_some(), "--momentum", "Adam, which has --beta1")?;
    Ok(Optimizer::Adam {
        learning_rate: arguments.learning_rate.unwrap_or(0.001),
        beta1: arguments.beta1.unwrap_or(0.9),
        beta2: arguments.beta2.unwrap_or(0.999),
        epsilon: arguments.epsilon.unwrap_or(1e-8),
        weight_decay: arguments.weight_decay.unwrap_or(if decoupled { 0.01 } else { 0.0 }),
        decoupled,
    })
}

fn refuse(given: bool, flag: &str, what: &str) -> Result<(), Failure> {
    if given {
        return Err(Failure::Usage(format!("{flag} has no meaning for {what}")));
    }
    Ok(())
}
