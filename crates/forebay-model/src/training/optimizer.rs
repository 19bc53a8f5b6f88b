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
    /// SGD with momentum and dampening, as in PyTorch: the velocity takes only a part of each gradient after the first.
    DampedSgd {
        /// Step size.
        learning_rate: f32,
        /// Momentum, above 0.
        momentum: f32,
        /// The part of a gradient that the velocity does not take.
        dampening: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// AMSGrad (Reddi et al. 2018): Adam whose second moment, for the step, is the largest so far.
    AmsGrad {
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
        /// Whether decay acts on the parameter instead of the gradient.
        decoupled: bool,
    },
    /// AdaMax (Kingma and Ba 2014), as in PyTorch: Adam with the largest gradient, which decays, in place of the root of the second moment.
    AdaMax {
        /// Step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the largest gradient.
        beta2: f32,
        /// Added to the size of a gradient.
        epsilon: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
    },
    /// NAdam (Dozat 2016), as in PyTorch: Adam with Nesterov's momentum.
    NAdam {
        /// Step size.
        learning_rate: f32,
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Momentum in step t is beta1 (1 - 0.96^(t times this) / 2).
        momentum_decay: f32,
        /// Weight decay.
        weight_decay: f32,
        /// Whether decay acts on the parameter instead of the gradient.
        decoupled: bool,
    },
    /// RAdam (Liu et al. 2019), as in PyTorch: Adam that divides by the root of the second moment only once its variance is known.
    RAdam {
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
        /// Whether decay acts on the parameter instead of the gradient.
        decoupled: bool,
    },
    /// Adadelta (Zeiler 2012), as in PyTorch: the gradient times the root of the mean square of past steps, divided by that of the gradients.
    Adadelta {
        /// Step size.
        learning_rate: f32,
        /// Decay of both mean squares.
        decay_rate: f32,
        /// Added to the mean squares, inside the roots.
        epsilon: f32,
        /// L2 penalty, added to the gradient.
        weight_decay: f32,
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
            | Optimizer::DampedSgd { learning_rate, weight_decay, .. }
            | Optimizer::AmsGrad { learning_rate, weight_decay, .. }
            | Optimizer::AdaMax { learning_rate, weight_decay, .. }
            | Optimizer::NAdam { learning_rate, weight_decay, .. }
            | Optimizer::RAdam { learning_rate, weight_decay, .. }
            | Optimizer::Adadelta { learning_rate, weight_decay, .. }
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
            | Optimizer::AmsGrad { beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::AdaMax { beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::RAdam { beta1, beta2, epsilon, weight_decay, .. }
            | Optimizer::Lamb { beta1, beta2, epsilon, weight_decay, .. } => {
                (vec![("epsilon", epsilon), decay(weight_decay)], vec![("beta1", beta1), ("beta2", beta2)])
            }
            Optimizer::NAdam { beta1, beta2, epsilon, momentum_decay, weight_decay, .. } => (
                vec![("epsilon", epsilon), ("decay of the momentum", momentum_decay), decay(weight_decay)],
                vec![("beta1", beta1), ("beta2", beta2)],
            ),
            Optimizer::DampedSgd { momentum, dampening, weight_decay, .. } => {
                if momentum == 0.0 {
                    return refuse("dampening needs a momentum above 0; set one, or leave out dampening".to_string());
                }
                (vec![("momentum", momentum), ("dampening", dampening), decay(weight_decay)], vec![])
            }
            Optimizer::Adadelta { decay_rate, epsilon, weight_decay, .. } => {
                (vec![("epsilon", epsilon), decay(weight_decay)], vec![("the decay of the mean square", decay_rate)])
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
            | (Optimizer::Adam8Bit { decoupled: a, .. }, Optimizer::Adam8Bit { decoupled: b, .. })
            | (Optimizer::AmsGrad { decoupled: a, .. }, Optimizer::AmsGrad { decoupled: b, .. })
            | (Optimizer::NAdam { decoupled: a, .. }, Optimizer::NAdam { decoupled: b, .. })
            | (Optimizer::RAdam { decoupled: a, .. }, Optimizer::RAdam { decoupled: b, .. }) => a == b,
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

    /// AMSGrad with Adam's usual constants (0.9, 0.999, 1e-8), without decay.
    pub fn ams_grad(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::AmsGrad { learning_rate, beta1, beta2, epsilon, weight_decay: 0.0, decoupled: false }
    }

    /// AdaMax with its usual constants (0.9, 0.999, 1e-8), without decay.
    pub fn ada_max(learning_rate: f32) -> Optimizer {
        Optimizer::AdaMax { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }

    /// NAdam with its usual constants (0.9, 0.999, 1e-8, 4e-3), without decay.
    pub fn n_adam(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon, momentum_decay) = (0.9, 0.999, 1e-8, 4e-3);
        Optimizer::NAdam { learning_rate, beta1, beta2, epsilon, momentum_decay, weight_decay: 0.0, decoupled: false }
    }

    /// RAdam with its usual constants (0.9, 0.999, 1e-8), without decay.
    pub fn r_adam(learning_rate: f32) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        Optimizer::RAdam { learning_rate, beta1, beta2, epsilon, weight_decay: 0.0, decoupled: false }
    }

    /// Adadelta with its usual constants (0.9, 1e-6), without decay.
    pub fn adadelta(learning_rate: f32) -> Optimizer {
        Optimizer::Adadelta { learning_rate, decay_rate: 0.9, epsilon: 1e-6, weight_decay: 0.0 }
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
            Optimizer::Adam { decoupled, .. }
            | Optimizer::Adam8Bit { decoupled, .. }
            | Optimizer::AmsGrad { decoupled, .. }
            | Optimizer::NAdam { decoupled, .. }
            | Optimizer::RAdam { decoupled, .. } => *decoupled,
            Optimizer::Lion { .. } | Optimizer::Lamb { .. } | Optimizer::Adafactor { .. } => true,
            Optimizer::Sgd { .. }
            | Optimizer::DampedSgd { .. }
            | Optimizer::AdaMax { .. }
            | Optimizer::RmsProp { .. }
            | Optimizer::Adagrad { .. }
            | Optimizer::Adadelta { .. } => false,
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
        Optimizer::Adadelta { learning_rate, decay_rate, epsilon, weight_decay } => {
            let [rate, decay_rate, epsilon, decay] = [learning_rate, decay_rate, epsilon, weight_decay].map(f64::from);
            vec![rate, 1.0 - decay_rate, epsilon, decay]
        }
        Optimizer::DampedSgd { learning_rate, momentum, dampening, weight_decay } => {
            let [rate, momentum, dampening, decay] = [learning_rate, momentum, dampening, weight_decay].map(f64::from);
            // The first velocity is the gradient.
            let taken = if step <= 1 { 1.0 } else { 1.0 - dampening };
            vec![rate, 1.0 - momentum, taken, decay]
        }
        Optimizer::AmsGrad { learning_rate, beta1, beta2, epsilon, weight_decay, .. }
        | Optimizer::Lamb { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let [rate, beta1, beta2, epsilon, decay] =
                [learning_rate, beta1, beta2, epsilon, weight_decay].map(f64::from);
            vec![rate, 1.0 - beta1, 1.0 - beta2, epsilon, decay, correction(beta1, t), correction(beta2, t)]
        }
        Optimizer::AdaMax { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let [rate, beta1, beta2, epsilon, decay] =
                [learning_rate, beta1, beta2, epsilon, weight_decay].map(f64::from);
            vec![rate * correction(beta1, t), 1.0 - beta1, 1.0 - beta2, epsilon, decay]
        }
        Optimizer::NAdam { learning_rate, beta1, beta2, epsilon, momentum_decay, weight_decay, .. } => {
            let [rate, beta1, beta2, epsilon, momentum_decay, decay] =
                [learning_rate, beta1, beta2, epsilon, momentum_decay, weight_decay].map(f64::from);
            let momentum = |t: f64| beta1 * (1.0 - 0.5 * libm::pow(0.96, t * momentum_decay));
            let (now, next, product) = (momentum(t), momentum(t + 1.0), momentum_product(step, momentum));
            let of_gradient = (1.0 - now) / (1.0 - product);
            let of_moment = next / (1.0 - product * next);
            vec![rate, 1.0 - beta1, 1.0 - beta2, epsilon, decay, correction(beta2, t), of_gradient, of_moment]
        }
        Optimizer::RAdam { learning_rate, beta1, beta2, epsilon, weight_decay, .. } => {
            let [rate, beta1, beta2, epsilon, decay] =
                [learning_rate, beta1, beta2, epsilon, weight_decay].map(f64::from);
            let longest = 2.0 / (1.0 - beta2) - 1.0;
            let length = longest - 2.0 * t * libm::pow(beta2, t) * correction(beta2, t);
            let of_length = |length: f64| (length - 4.0) * (length - 2.0) / length;
            // Of the two ways to divide the first moment, one counts.
            let (by_root, by_one) = match length > 5.0 {
                true => ((of_length(length) / of_length(longest) / correction(beta2, t)).sqrt(), 0.0),
                false => (0.0, 1.0),
            };
            let first = correction(beta1, t);
            vec![rate, 1.0 - beta1, 1.0 - beta2, epsilon, decay, first * by_root, first * by_one]
        }
        Optimizer::Lion { learning_rate, beta1, beta2, weight_decay } => {
            let [rate, beta1, beta2, decay] = [learning_rate, beta1, beta2, weight_decay].map(f64::from);
            vec![rate, 1.0 - beta1, 1.0 - beta2, decay]
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

/// Returns the factor that corrects the bias of a moment that decays by `beta`, in step `t`.
fn correction(beta: f64, t: f64) -> f64 {
    1.0 / (1.0 - libm::pow(beta, t))
}

/// Returns the product of the momenta of all steps so far.
fn momentum_product(step: u64, momentum: impl Fn(f64) -> f64) -> f64 {
    let mut product = 1.0;
    for t in 1..=step.max(1) {
        product *= momentum(t as f64);
        if product < f64::EPSILON / 4.0 {
            // It makes no difference to 1 any more.
            return 0.0;
        }
    }
    product
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
            Optimizer::ams_grad(0.1),
            Optimizer::ada_max(0.1),
            Optimizer::n_adam(0.1),
            Optimizer::r_adam(0.1),
            Optimizer::adadelta(0.1),
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
