//! Optimizers, as dictionaries with the options of all optimizers.

use forebay::training::Optimizer;
use pyo3::prelude::*;

use crate::errors::choice;

/// An optimizer by name, with the options of all optimizers.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct OptimizerGiven {
    kind: String,
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    decay_rate: f32,
    centered: bool,
    rate_decay: f32,
    beta2_decay: f32,
    threshold: f32,
    dampening: f32,
    momentum_decay: f32,
    decoupled: bool,
}

/// Converts an optimizer.
///
/// # Errors
/// Fails if no optimizer has the name.
pub fn optimizer(py: Python<'_>, given: &OptimizerGiven) -> PyResult<Optimizer> {
    let OptimizerGiven { learning_rate, momentum, nesterov, beta1, beta2, epsilon, weight_decay, .. } = *given;
    let OptimizerGiven { decay_rate, centered, rate_decay, beta2_decay, threshold, .. } = *given;
    let OptimizerGiven { dampening, momentum_decay, decoupled, .. } = *given;
    let adam = |decoupled| Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled };
    let adam_8_bit = |decoupled| Optimizer::Adam8Bit { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled };
    let kinds = [
        ("sgd", Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay }),
        ("adam", adam(false)),
        ("adamw", adam(true)),
        ("adam8bit", adam_8_bit(false)),
        ("adamw8bit", adam_8_bit(true)),
        ("rmsprop", Optimizer::RmsProp { learning_rate, decay_rate, epsilon, momentum, centered, weight_decay }),
        ("adagrad", Optimizer::Adagrad { learning_rate, rate_decay, epsilon, weight_decay }),
        ("lion", Optimizer::Lion { learning_rate, beta1, beta2, weight_decay }),
        ("lamb", Optimizer::Lamb { learning_rate, beta1, beta2, epsilon, weight_decay }),
        ("adafactor", Optimizer::Adafactor { learning_rate, beta2_decay, epsilon, threshold, weight_decay }),
        ("dampedsgd", Optimizer::DampedSgd { learning_rate, momentum, dampening, weight_decay }),
        ("amsgrad", Optimizer::AmsGrad { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled }),
        ("adamax", Optimizer::AdaMax { learning_rate, beta1, beta2, epsilon, weight_decay }),
        ("nadam", Optimizer::NAdam { learning_rate, beta1, beta2, epsilon, momentum_decay, weight_decay, decoupled }),
        ("radam", Optimizer::RAdam { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled }),
        ("adadelta", Optimizer::Adadelta { learning_rate, decay_rate, epsilon, weight_decay }),
    ];
    let table = kinds.each_ref().map(|(name, kind)| (*name, kind));
    choice(py, "optimizer", &given.kind, &table).cloned()
}
