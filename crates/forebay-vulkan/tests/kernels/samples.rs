//! Every kernel of the table, by its samples. The families' files compare more shapes and parameters.

use forebay_base::kernel::samples::{self, Sample};
use forebay_base::kernel::{AdamHyperparameters, KernelKind, SgdHyperparameters};
use forebay_base::{DataType, TensorDesc};

use crate::compare::{compare, rounding, Random, RandomTensors, Tensor};

/// Values for an operand: positive numbers, which variances and logarithms need, and integers that are labels and indices of every
/// sample.
fn values(random: &mut Random, desc: &TensorDesc) -> Tensor {
    if !desc.data_type().is_float() {
        let (low, high) = if desc.data_type() == DataType::Bool { (0, 1) } else { (1, 5) };
        return random.integers(desc, low, high);
    }
    let (desc, mut values) = random.tensor(desc);
    values.iter_mut().for_each(|value| *value = value.abs() + 0.125);
    (desc, values)
}

/// What an optimizer reads last: not all numbers make sense there.
fn hyperparameters(sample: &Sample) -> Option<Vec<f32>> {
    let (learning_rate, weight_decay) = (0.25, 0.01);
    match sample.kernel.facts().kind {
        KernelKind::Sgd => Some(SgdHyperparameters { learning_rate, momentum: 0.5, weight_decay }.elements().to_vec()),
        KernelKind::Adam => {
            let (beta1, beta2, epsilon) = (0.875, 0.99, 1e-6);
            Some(AdamHyperparameters { learning_rate, beta1, beta2, epsilon, weight_decay }.elements().to_vec())
        }
        _ => None,
    }
}

fn compare_all(seed: u64, samples: &[Sample]) {
    for sample in samples {
        let mut random = Random::new(seed);
        let mut reads: Vec<Tensor> = sample.reads.iter().map(|desc| values(&mut random, desc)).collect();
        if let (Some(elements), Some((_, values))) = (hyperparameters(sample), reads.last_mut()) {
            *values = elements.into_iter().map(f64::from).collect();
        }
        let tolerance = 1e-5 + 4.0 * rounding(sample.writes[0].data_type());
        compare(seed, &sample.kernel, &reads, &sample.writes, tolerance);
    }
}

#[test]
fn every_kernel_agrees() {
    for (seed, &kind) in KernelKind::ALL.iter().enumerate() {
        compare_all(seed as u64, &samples::of(kind));
    }
}

#[test]
fn products_of_16_bits_agree() {
    compare_all(3, &samples::of_sixteen_bit_products());
}
