//! Optimizers: their update rules, and the hyperparameters that a step is fed for them.

#[cfg(doc)]
use forebay_base::Kernel;
use forebay_base::kernel::quantization::QUANTIZATION_BLOCK;
use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};

use crate::error::ModelError;

/// The rule that updates parameters with their gradients.
///
/// ```
/// use forebay_model::training::Optimizer;
///
/// let nesterov = Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0 };
/// assert_ne!(nesterov, Optimizer::sgd(0.1));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Optimizer {
    /// Stochastic gradient descent. The velocity of the first step is the gradient itself.
    Sgd {
        /// Step size.
        learning_rate: f32,
        /// Momentum; 0 for none.
        momentum: f32,
        /// Nesterov's variant.
        nesterov: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Bias-corrected Adam, epsilon outside the square root.
    Adam {
        /// Step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Weight decay.
        weight_decay: f32,
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
    },
    /// Adam with 8-bit moments (Dettmers et al. 2021): both are codes with a scale for each block of 256 elements, a quarter of the bytes
    /// that `Adam` keeps. Parameters of fewer than 4096 elements keep float32 moments, as in `Adam`.
    Adam8Bit {
        /// Step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Weight decay.
        weight_decay: f32,
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
    },
    /// RMSprop, as in PyTorch: the gradient divided by the root of the mean of its squares, epsilon outside the root.
    RmsProp {
        /// Step size.
        learning_rate: f32,
        /// Decay of the mean of squares (PyTorch's alpha) and of the mean of gradients.
        decay_rate: f32,
        /// Added to the root.
        epsilon: f32,
        /// Momentum; 0 for none.
        momentum: f32,
        /// Whether the mean of squares is that of the differences from the mean gradient.
        centered: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Adagrad, as in PyTorch: the gradient divided by the root of the sum of its squares, epsilon outside the root.
    Adagrad {
        /// Step size.
        learning_rate: f32,
        /// Step t divides the step size by 1 + (t - 1) times this.
        rate_decay: f32,
        /// Added to the root.
        epsilon: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// Lion (Chen et al. 2023): the sign of an average of the gradient. Decay acts on the parameter.
    Lion {
        /// Step size.
        learning_rate: f32,
        /// Weight of the moment when it is averaged with the gradient for the step.
        beta1: f32,
        /// Decay of the moment.
        beta2: f32,
        /// Weight decay.
        weight_decay: f32,
    },
    /// LAMB (You et al. 2020): AdamW with the step scaled to the size of each parameter, by the ratio of their norms, or by 1 if either is
    /// 0.
    Lamb {
        /// Step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Weight decay, as part of the step that is scaled.
        weight_decay: f32,
    },
    /// Adafactor (Shazeer and Stern 2018), as in PyTorch: mean squares of rows and columns instead of single elements, and a step relative
    /// to the size of the parameter. Decay acts on the parameter.
    Adafactor {
        /// Largest relative step size; that of step t is at most 1 / sqrt(t).
        learning_rate: f32,
        /// Step t keeps 1 - t^this of the mean squares.
        beta2_decay: f32,
        /// Least size of a parameter, for the step relative to it.
        epsilon: f32,
        /// Largest root of the mean square of a step before it is scaled.
        threshold: f32,
        /// Weight decay.
        weight_decay: f32,
    },
}

impl Optimizer {
    /// Returns the hyperparameters that the first step is fed: the elements that [`Kernel::Sgd`] or [`Kernel::Adam`] read, or the numbers
    /// of a formula.
    pub fn hyperparameters(&self) -> Vec<f32> {
        self.hyperparameters_of_step(1)
    }

    /// Returns the hyperparameters that step number `step`, from 1, is fed.
    pub fn hyperparameters_of_step(&self, step: u64) -> Vec<f32> {
        match *self {
            Optimizer::Sgd { learning_rate, momentum, weight_decay, .. } => {
                SgdHyperparameters { learning_rate, momentum, weight_decay }.elements().to_vec()
            }
            Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::Adam8Bit { learning_rate, beta1, beta2, epsilon, weight_decay, .. } => {
                AdamHyperparameters { learning_rate, beta1, beta2, epsilon, weight_decay }.elements().to_vec()
            }
            _ => numbers(self, step),
        }
    }

    /// Returns the numbers that all optimizers have: the step size and the weight decay.
    fn common(&mut self) -> (&mut f32, &mut f32) {
        match self {
            Optimizer::Sgd { learning_rate, weight_decay, .. }
            | Optimizer::Adam { learning_rate, weight_decay, .. }
            | Optimizer::Adam8Bit { learning_rate, weight_decay, .. }
            | Optimizer::RmsProp { learning_rate, weight_decay, .. }
            | Optimizer::Adagrad { learning_rate, weight_decay, .. }
            | Optimizer::Lion { learning_rate, weight_decay, .. }
            | Optimizer::Lamb { learning_rate, weight_decay, .. }
            | Optimizer::Adafactor { learning_rate, weight_decay, .. } => (learning_rate, weight_decay),
        }
    }

    /// Returns the step size.
    pub fn learning_rate(&self) -> f32 {
        *self.clone().common().0
    }

    /// Checks that every number is in its range: step sizes, decay and what is added to roots are at least 0, and weights of averages at
    /// least 0 and below 1.
    ///
    /// # Errors
    /// Returns [`ModelError::Request`], which names the number.
    ///
    /// ```
    /// use forebay_model::training::Optimizer;
    ///
    /// assert!(Optimizer::adam(1e-3).check().is_ok());
    /// assert!(Optimizer::adam(-1e-3).check().is_err());
    /// ```
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |reason: String| Err(ModelError::Request { reason });
        let decay = |decay: f32| ("weight decay", decay);
        let (from_zero, below_one) = match *self {
            Optimizer::Sgd { momentum, nesterov, weight_decay, .. } => {
                if nesterov && momentum == 0.0 {
                    return refuse(
                        "Nesterov's variant needs a momentum above 0; set one, or leave out nesterov".to_string(),
                    );
                }
                (vec![("momentum", momentum), decay(weight_decay)], vec![])
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::Adam8Bit { beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::Lamb { beta1, beta2, epsilon, weight_decay, .. } => {
                (vec![("epsilon", epsilon), decay(weight_decay)], vec![("beta1", beta1), ("beta2", beta2)])
            }
            Optimizer::RmsProp { decay_rate, epsilon, momentum, weight_decay, .. } => (
                vec![("epsilon", epsilon), ("momentum", momentum), decay(weight_decay)],
                vec![("the decay of the mean square", decay_rate)],
            ),
            Optimizer::Adagrad { rate_decay, epsilon, weight_decay, .. } => {
                (vec![("decay of the learning rate", rate_decay), ("epsilon", epsilon), decay(weight_decay)], vec![])
            }
            Optimizer::Lion { beta1, beta2, weight_decay, .. } => {
                (vec![decay(weight_decay)], vec![("beta1", beta1), ("beta2", beta2)])
            }
            Optimizer::Adafactor { beta2_decay, epsilon, threshold, weight_decay, .. } => {
                if !(f32::MIN..=0.0).contains(&beta2_decay) {
                    return refuse(format!("beta2_decay must be a finite number of at most 0, not {beta2_decay}"));
                }
                if threshold.is_nan() || threshold < 1.0 {
                    return refuse(format!("the threshold of Adafactor must be at least 1, not {threshold}"));
                }
                (vec![("epsilon", epsilon), decay(weight_decay)], vec![])
            }
        };
        for (what, number) in [("learning rate", self.learning_rate())].into_iter().chain(from_zero) {
            if !(0.0..=f32::MAX).contains(&number) {
                return refuse(format!("the {what} must be a finite number of at least 0, not {number}"));
            }
        }
        for (what, number) in below_one {
            if !(0.0..1.0).contains(&number) {
                return refuse(format!("{what} must be at least 0 and below 1, not {number}"));
            }
        }
        Ok(())
    }

    /// Returns the same optimizer with another step size.
    #[must_use]
    pub fn with_learning_rate(mut self, rate: f32) -> Optimizer {
        *self.common().0 = rate;
        self
    }

    /// Returns the same optimizer with another weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, decay: f32) -> Optimizer {
        *self.common().1 = decay;
        self
    }

    /// Returns whether a step planned for one of the two optimizers also works for the other when fed the other's hyperparameters: both
    /// have the same rule and the same state per parameter.
    pub fn has_the_plan_of(&self, other: &Optimizer) -> bool {
        match (self, other) {
            (
                Optimizer::Sgd { momentum: a, nesterov: a_nesterov, .. },
                Optimizer::Sgd { momentum: b, nesterov: b_nesterov, .. },
            ) => (*a == 0.0) == (*b == 0.0) && a_nesterov == b_nesterov,
            (Optimizer::Adam { decoupled: a, .. }, Optimizer::Adam { decoupled: b, .. })
            | (Optimizer::Adam8Bit { decoupled: a, .. }, Optimizer::Adam8Bit { decoupled: b, .. }) => a == b,
            (
                Optimizer::RmsProp { momentum: a, centered: a_centered, .. },
                Optimizer::RmsProp { momentum: b, centered: b_centered, .. },
            ) => (*a == 0.0) == (*b == 0.0) && a_centered == b_centered,
            (
                Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::Adam8Bit { .. } | Optimizer::RmsProp { .. },
                _,
            ) => false,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Gradient descent without momentum or decay.
    pub fn sgd(learning_rate: f32) -> Optimizer {
        Optimizer::Sgd { learning_rate, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Adam with its usual constants (0.9, 0.999, 1e-8), without decay.
    pub fn adam(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay: 0.0, decoupled: false }
    }

    /// RMSprop with its usual constants (0.99, 1e-8), without momentum or decay.
    pub fn rms_prop(learning_rate: f32) -> Optimizer {
        let (decay_rate, epsilon, momentum, centered, weight_decay) = (0.99, 1e-8, 0.0, false, 0.0);
        Optimizer::RmsProp { learning_rate, decay_rate, epsilon, momentum, centered, weight_decay }
    }

    /// Adagrad with its usual constant (1e-10), without decay.
    pub fn adagrad(learning_rate: f32) -> Optimizer {
        Optimizer::Adagrad { learning_rate, rate_decay: 0.0, epsilon: 1e-10, weight_decay: 0.0 }
    }

    /// Lion with its usual constants (0.9, 0.99), without decay.
    pub fn lion(learning_rate: f32) -> Optimizer {
        Optimizer::Lion { learning_rate, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 }
    }

    /// LAMB with its usual constants (0.9, 0.999, 1e-6) and a decay of 0.01.
    pub fn lamb(learning_rate: f32) -> Optimizer {
        Optimizer::Lamb { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 }
    }

    /// Adafactor with its usual constants (-0.8, 1e-3, 1), without decay.
    pub fn adafactor(learning_rate: f32) -> Optimizer {
        let (beta2_decay, epsilon, threshold) = (-0.8, 1e-3, 1.0);
        Optimizer::Adafactor { learning_rate, beta2_decay, epsilon, threshold, weight_decay: 0.0 }
    }

    /// Returns whether it is a formula of kernels (`updates.rs`) instead of a single kernel.
    pub(super) fn is_formula(&self) -> bool {
        !matches!(self, Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::Adam8Bit { .. })
    }

    /// Returns the most elements of a parameter that share one element of state: more than 1 if moments have scales.
    pub fn block_elements(&self) -> u64 {
        match self {
            Optimizer::Adam8Bit { .. } => QUANTIZATION_BLOCK,
            _ => 1,
        }
    }

    /// Returns whether decay acts on parameters instead of gradients.
    pub(super) fn is_decoupled(&self) -> bool {
        match self {
            Optimizer::Adam { decoupled, .. } | Optimizer::Adam8Bit { decoupled, .. } => *decoupled,
            Optimizer::Lion { .. } | Optimizer::Lamb { .. } | Optimizer::Adafactor { .. } => true,
            Optimizer::Sgd { .. } | Optimizer::RmsProp { .. } | Optimizer::Adagrad { .. } => false,
        }
    }

    /// AdamW: Adam with its usual constants and a decoupled decay of 0.01.
    pub fn adamw(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay: 0.01, decoupled: true }
    }

    /// [`Optimizer::adam`] with 8-bit moments.
    pub fn adam_8_bit(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::Adam8Bit { learning_rate, beta1, beta2, epsilon, weight_decay: 0.0, decoupled: false }
    }

    /// [`Optimizer::adamw`] with 8-bit moments.
    pub fn adamw_8_bit(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::Adam8Bit { learning_rate, beta1, beta2, epsilon, weight_decay: 0.01, decoupled: true }
    }
}

impl Default for Optimizer {
    /// Gradient descent with a step size of 0.01.
    fn default() -> Optimizer {
        Optimizer::sgd(0.01)
    }
}

/// Returns the hyperparameters that a formula reads in a step, in the order in which it unpacks them. Values that need float64 or the step
/// number are computed here, so that no device has to compute them.
fn numbers(optimizer: &Optimizer, step: u64) -> Vec<f32> {
    let t = step.max(1) as f64;
    let numbers: Vec<f64> = match *optimizer {
        Optimizer::RmsProp { learning_rate, decay_rate, epsilon, momentum, weight_decay, .. } => {
            let [rate, decay_rate, epsilon, momentum, decay] =
                [learning_rate, decay_rate, epsilon, momentum, weight_decay].map(f64::from);
            vec![rate, 1.0 - decay_rate, epsilon, decay, 1.0 - momentum]
        }
        Optimizer::Adagrad { learning_rate, rate_decay, epsilon, weight_decay } => {
            let [rate, rate_decay, epsilon, decay] = [learning_rate, rate_decay, epsilon, weight_decay].map(f64::from);
            vec![rate / (1.0 + (t - 1.0) * rate_decay), epsilon, decay]
        }
        Optimizer::Lion { learning_rate, beta1, beta2, weight_decay } => {
            let [rate, beta1, beta2, decay] = [learning_rate, beta1, beta2, weight_decay].map(f64::from);
            vec![rate, 1.0 - beta1, 1.0 - beta2, decay]
        }
        Optimizer::Lamb { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let [rate, beta1, beta2, epsilon, decay] =
                [learning_rate, beta1, beta2, epsilon, weight_decay].map(f64::from);
            let correction = |beta: f64| 1.0 / (1.0 - libm::pow(beta, t));
            vec![rate, 1.0 - beta1, 1.0 - beta2, epsilon, decay, correction(beta1), correction(beta2)]
        }
        Optimizer::Adafactor { learning_rate, beta2_decay, epsilon, threshold, weight_decay } => {
            let [rate, beta2_decay, least, threshold, decay] =
                [learning_rate, beta2_decay, epsilon, threshold, weight_decay].map(f64::from);
            let epsilon = f64::from(f32::EPSILON);
            let relative = rate.min(1.0 / t.sqrt());
            vec![relative, libm::pow(t, beta2_decay), epsilon, epsilon * epsilon, least, rate * decay, 1.0 / threshold]
        }
        Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::Adam8Bit { .. } => {
            unreachable!("these are kernels")
        }
    };
    numbers.into_iter().map(|number| number as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_meaning_are_refused() {
        let defaults = [
            Optimizer::default(),
            Optimizer::adam(0.0),
            Optimizer::adamw_8_bit(0.1),
            Optimizer::rms_prop(0.1),
            Optimizer::adagrad(0.1),
            Optimizer::lion(0.1),
            Optimizer::lamb(0.1),
            Optimizer::adafactor(0.1),
        ];
        for good in defaults {
            assert_eq!(good.check(), Ok(()), "{good:?}");
            for wrong in [-1.0, f32::NAN, f32::INFINITY] {
                let rate = good.clone().with_learning_rate(wrong).check().unwrap_err().to_string();
                assert!(rate.contains("learning rate"), "{rate}");
                let decay = good.clone().with_weight_decay(wrong).check().unwrap_err().to_string();
                assert!(decay.contains("weight decay"), "{decay}");
            }
        }
        let sgd = |momentum, nesterov| Optimizer::Sgd { learning_rate: 0.1, momentum, nesterov, weight_decay: 0.0 };
        assert_eq!(sgd(0.9, true).check(), Ok(()));
        let mut adam = Optimizer::adam(0.1);
        if let Optimizer::Adam { beta1, .. } = &mut adam {
            *beta1 = 1.5;
        }
        let mut adafactor = Optimizer::adafactor(0.1);
        if let Optimizer::Adafactor { beta2_decay, .. } = &mut adafactor {
            *beta2_decay = 0.5;
        }
        let wrong =
            [(sgd(-1.0, false), "momentum"), (sgd(0.0, true), "Nesterov"), (adam, "beta1"), (adafactor, "beta2_decay")];
        for (optimizer, words) in wrong {
            let error = optimizer.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
