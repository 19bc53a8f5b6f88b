//! Conversion of flags to an optimizer.

use forebay::training::Optimizer;

use crate::arguments::TrainingArguments;
use crate::failure::Failure;
use crate::optimizer_arguments::OptimizerKind;

/// Returns the optimizer that the flags specify.
///
/// # Errors
/// Fails if a flag does not apply to it or a number is out of range.
pub fn optimizer(arguments: &TrainingArguments) -> Result<Optimizer, Failure> {
    refuse_foreign(arguments)?;
    let given = &arguments.of_optimizer;
    let rate = |usual: f32| arguments.learning_rate.unwrap_or(usual);
    let decay = |usual: f32| arguments.weight_decay.unwrap_or(usual);
    let beta1 = arguments.beta1.unwrap_or(0.9);
    let beta2 = |usual: f32| arguments.beta2.unwrap_or(usual);
    let epsilon = |usual: f32| arguments.epsilon.unwrap_or(usual);
    let momentum = arguments.momentum.unwrap_or(0.0);
    let adam = |decoupled: bool, is_8_bit: bool| {
        let (learning_rate, beta2, epsilon) = (rate(0.001), beta2(0.999), epsilon(1e-8));
        let weight_decay = decay(if decoupled { 0.01 } else { 0.0 });
        match is_8_bit {
            true => Optimizer::Adam8Bit { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled },
            false if given.amsgrad => {
                Optimizer::AmsGrad { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled }
            }
            false => Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled },
        }
    };
    Ok(match arguments.optimizer {
        OptimizerKind::Sgd => {
            let (learning_rate, nesterov, weight_decay) = (rate(0.01), arguments.nesterov, decay(0.0));
            match given.dampening {
                Some(dampening) if dampening != 0.0 => {
                    if nesterov {
                        let reason = "--nesterov has no --dampening, as in PyTorch; leave out one of them";
                        return Err(Failure::Usage(reason.to_owned()));
                    }
                    Optimizer::DampedSgd { learning_rate, momentum, dampening, weight_decay }
                }
                _ => Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay },
            }
        }
        OptimizerKind::Adam => adam(false, false),
        OptimizerKind::Adamw => adam(true, false),
        OptimizerKind::Adam8bit => adam(false, true),
        OptimizerKind::Adamw8bit => adam(true, true),
        OptimizerKind::Adamax => Optimizer::AdaMax {
            learning_rate: rate(0.002),
            beta1,
            beta2: beta2(0.999),
            epsilon: epsilon(1e-8),
            weight_decay: decay(0.0),
        },
        OptimizerKind::Nadam => Optimizer::NAdam {
            learning_rate: rate(0.002),
            beta1,
            beta2: beta2(0.999),
            epsilon: epsilon(1e-8),
            momentum_decay: given.momentum_decay.unwrap_or(4e-3),
            weight_decay: decay(0.0),
            decoupled: given.decoupled,
        },
        OptimizerKind::Radam => Optimizer::RAdam {
            learning_rate: rate(0.001),
            beta1,
            beta2: beta2(0.999),
            epsilon: epsilon(1e-8),
            weight_decay: decay(0.0),
            decoupled: given.decoupled,
        },
        OptimizerKind::Adadelta => Optimizer::Adadelta {
            learning_rate: rate(1.0),
            decay_rate: beta2(0.9),
            epsilon: epsilon(1e-6),
            weight_decay: decay(0.0),
        },
        OptimizerKind::Rmsprop => Optimizer::RmsProp {
            learning_rate: rate(0.01),
            decay_rate: beta2(0.99),
            epsilon: epsilon(1e-8),
            momentum,
            centered: given.centered,
            weight_decay: decay(0.0),
        },
        OptimizerKind::Adagrad => Optimizer::Adagrad {
            learning_rate: rate(0.01),
            rate_decay: given.rate_decay.unwrap_or(0.0),
            epsilon: epsilon(1e-10),
            weight_decay: decay(0.0),
        },
        OptimizerKind::Lion => {
            Optimizer::Lion { learning_rate: rate(1e-4), beta1, beta2: beta2(0.99), weight_decay: decay(0.0) }
        }
        OptimizerKind::Lamb => Optimizer::Lamb {
            learning_rate: rate(0.001),
            beta1,
            beta2: beta2(0.999),
            epsilon: epsilon(1e-6),
            weight_decay: decay(0.01),
        },
        OptimizerKind::Adafactor => {
            let (beta2_decay, threshold) = (given.beta2_decay.unwrap_or(-0.8), given.update_threshold.unwrap_or(1.0));
            if beta2_decay > 0.0 || threshold < 1.0 {
                let reason = "--beta2-decay must be at most 0, and --update-threshold at least 1";
                return Err(Failure::Usage(reason.to_owned()));
            }
            Optimizer::Adafactor {
                learning_rate: rate(0.01),
                beta2_decay,
                epsilon: epsilon(1e-3),
                threshold,
                weight_decay: decay(0.0),
            }
        }
    })
}

/// Rejects flags that do not apply to the optimizer.
fn refuse_foreign(arguments: &TrainingArguments) -> Result<(), Failure> {
    use OptimizerKind::{
        Adadelta, Adafactor, Adagrad, Adam, Adam8bit, Adamax, Adamw, Adamw8bit, Lamb, Lion, Nadam, Radam, Rmsprop, Sgd,
    };
    let (given, kind) = (&arguments.of_optimizer, arguments.optimizer);
    let of_adam = matches!(kind, Adam | Adamw | Adam8bit | Adamw8bit | Adamax | Nadam | Radam);
    let flags = [
        (arguments.beta1.is_some(), "--beta1", of_adam || matches!(kind, Lion | Lamb)),
        (arguments.beta2.is_some(), "--beta2", of_adam || matches!(kind, Lion | Lamb | Rmsprop | Adadelta)),
        (arguments.epsilon.is_some(), "--epsilon", !matches!(kind, Sgd | Lion)),
        (arguments.nesterov, "--nesterov", kind == Sgd),
        (given.dampening.is_some(), "--dampening", kind == Sgd),
        (given.amsgrad, "--amsgrad", matches!(kind, Adam | Adamw)),
        (given.momentum_decay.is_some(), "--momentum-decay", kind == Nadam),
        (given.decoupled, "--decoupled", matches!(kind, Nadam | Radam)),
        (given.centered, "--centered", kind == Rmsprop),
        (given.rate_decay.is_some(), "--rate-decay", kind == Adagrad),
        (given.beta2_decay.is_some(), "--beta2-decay", kind == Adafactor),
        (given.update_threshold.is_some(), "--update-threshold", kind == Adafactor),
    ];
    let name = format!("{kind:?}").to_lowercase();
    if arguments.momentum.is_some() && !matches!(kind, Sgd | Rmsprop) {
        let what = if of_adam { "Adam, which has --beta1".to_owned() } else { format!("--optimizer {name}") };
        return Err(Failure::Usage(format!("--momentum cannot be used with {what}")));
    }
    match flags.iter().find(|(is_given, _, applies)| *is_given && !applies) {
        Some((_, flag, _)) => Err(Failure::Usage(format!("{flag} cannot be used with --optimizer {name}"))),
        None => Ok(()),
    }
}
