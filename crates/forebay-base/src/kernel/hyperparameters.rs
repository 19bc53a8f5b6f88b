//! Hyperparameters: the numbers that optimizers read at every step. They are an operand rather than part of the kernel, so a schedule can
//! change them without a new plan.

#[cfg(doc)]
use super::Kernel;

/// The hyperparameters that [`Kernel::Sgd`] reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdHyperparameters {
    /// Step size.
    pub learning_rate: f32,
    /// Momentum; has no effect if no velocity is bound.
    pub momentum: f32,
    /// L2 penalty for parameters that decay.
    pub weight_decay: f32,
}

impl SgdHyperparameters {
    /// Number of elements of the operand.
    pub const COUNT: usize = 3;

    /// The elements of the operand: learning rate, momentum, weight decay.
    pub fn elements(&self) -> [f32; Self::COUNT] {
        [self.learning_rate, self.momentum, self.weight_decay]
    }

    /// The hyperparameters with these elements.
    pub fn from_elements(&[learning_rate, momentum, weight_decay]: &[f32; Self::COUNT]) -> SgdHyperparameters {
        SgdHyperparameters { learning_rate, momentum, weight_decay }
    }
}

/// The hyperparameters that [`Kernel::Adam`] reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamHyperparameters {
    /// Step size.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Weight decay for parameters that decay.
    pub weight_decay: f32,
}

impl AdamHyperparameters {
    /// Number of elements of the operand.
    pub const COUNT: usize = 10;

    /// The elements of the operand: learning rate, beta1, beta2, epsilon, weight decay. Then, for devices without float64, values that need
    /// it: 1 - beta1, 1 - beta2, 1 - learning rate * weight decay, ln beta1, ln beta2. The logarithms are finite, so their products with a
    /// step are numbers.
    pub fn elements(&self) -> [f32; Self::COUNT] {
        let [rate, beta1, beta2, decay] =
            [self.learning_rate, self.beta1, self.beta2, self.weight_decay].map(f64::from);
        let logarithm = |beta: f64| libm::log(beta).max(f64::from(f32::MIN)) as f32;
        [
            self.learning_rate,
            self.beta1,
            self.beta2,
            self.epsilon,
            self.weight_decay,
            (1.0 - beta1) as f32,
            (1.0 - beta2) as f32,
            (1.0 - rate * decay) as f32,
            logarithm(beta1),
            logarithm(beta2),
        ]
    }

    /// The hyperparameters with these elements.
    pub fn from_elements(elements: &[f32; Self::COUNT]) -> AdamHyperparameters {
        let [learning_rate, beta1, beta2, epsilon, weight_decay, ..] = *elements;
        AdamHyperparameters { learning_rate, beta1, beta2, epsilon, weight_decay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_what_they_were_made_from() {
        let sgd = SgdHyperparameters { learning_rate: 0.1, momentum: 0.9, weight_decay: 1e-4 };
        assert_eq!(SgdHyperparameters::from_elements(&sgd.elements()), sgd);
        let adam =
            AdamHyperparameters { learning_rate: 3e-4, beta1: 0.0, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        let elements = adam.elements();
        assert_eq!(AdamHyperparameters::from_elements(&elements), adam);
        assert_eq!((elements[5], elements[8]), (1.0, f32::MIN), "no product with a step is NaN");
        assert_eq!(elements[7], (1.0 - f64::from(3e-4f32) * f64::from(0.1f32)) as f32);
    }
}
