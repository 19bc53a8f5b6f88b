//! Every kernel of the table, on its samples. The files of the families compare more shapes and parameters.

use forebay_base::kernel::samples::{self, Sample};
use forebay_base::kernel::{AdamHyperparameters, KernelKind, SgdHyperparameters, Summing};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, check, compare, packed, portable, rounding};

/// Values for an operand: positive numbers, which variances and logarithms need, and integers that are valid labels and indices in every
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

/// The last operand that an optimizer reads, for which not all numbers make sense.
fn hyperparameters(sample: &Sample) -> Option<Vec<f32>> {
    let (learning_rate, weight_decay) = (0.25, 0.01);
    match sample.kernel.facts().kind {
        KernelKind::Sgd => Some(SgdHyperparameters { learning_rate, momentum: 0.5, weight_decay }.elements().to_vec()),
        KernelKind::Adam | KernelKind::Adam8Bit => {
            let (beta1, beta2, epsilon) = (0.875, 0.99, 1e-6);
            Some(AdamHyperparameters { learning_rate, beta1, beta2, epsilon, weight_decay }.elements().to_vec())
        }
        _ => None,
    }
}

/// The index of the logarithms of row sums among the reads. No score is larger than they are.
fn logarithms(sample: &Sample) -> Option<usize> {
    let gradients =
        [KernelKind::AttentionGradient, KernelKind::AttentionQueryGradient, KernelKind::AttentionKeyGradient];
    gradients.contains(&sample.kernel.facts().kind).then_some(5)
}

fn operands(seed: u64, sample: &Sample) -> Vec<Tensor> {
    let mut random = Random::new(seed);
    let mut reads: Vec<Tensor> = sample.reads.iter().map(|desc| values(&mut random, desc)).collect();
    if let Some((_, values)) = logarithms(sample).and_then(|read| reads.get_mut(read)) {
        values.iter_mut().for_each(|value| *value += 8.0);
    }
    if sample.kernel.facts().kind == KernelKind::Adam8Bit {
        // Scales are magnitudes.
        let scales = [3, 5].into_iter();
        scales.for_each(|read: usize| reads[read].1.iter_mut().for_each(|scale| *scale = scale.abs()));
    }
    if let (Some(elements), Some((_, values))) = (hyperparameters(sample), reads.last_mut()) {
        *values = elements.into_iter().map(f64::from).collect();
    }
    reads
}

fn tolerance(sample: &Sample) -> f64 {
    1e-5 + 4.0 * rounding(sample.writes[0].data_type())
}

fn compare_all(seed: u64, samples: &[Sample]) {
    for sample in samples {
        compare(seed, &sample.kernel, &operands(seed, sample), &sample.writes, tolerance(sample));
    }
}

#[test]
fn every_kernel_agrees() {
    for (seed, sample) in (0..).zip(samples::on_devices()) {
        compare_all(seed, &[sample]);
    }
}

#[test]
fn kernels_with_operands_of_16_bits_agree() {
    compare_all(3, &samples::of_sixteen_bits());
}

#[test]
fn kernels_agree_without_float64_and_16_bit_storage() {
    let Some(machine) = portable() else { return };
    let all = [samples::on_devices(), samples::of_sixteen_bits()].concat();
    for (seed, sample) in (0..).zip(&all) {
        let reads = operands(seed, sample);
        if !machine.refuses_float64(&sample.kernel, &reads, &sample.writes) {
            check(machine, seed, &sample.kernel, &reads, &sample.writes, tolerance(sample));
        }
    }
}

/// Compilers that fuse or reorder operations would lose what two float32 hold together.
#[test]
fn sums_in_pairs_of_float32_have_48_bits() {
    let Some(machine) = portable() else { return };
    let desc = packed(DataType::Float32, &[1, 2, 4096]);
    for seed in 0..8 {
        let (_, mut values) = Random::new(seed).tensor(&desc);
        // Large numbers that cancel out, among small ones.
        values.iter_mut().step_by(2).for_each(|value| *value = (*value * 1e6).round());
        let x = (desc.clone(), values.iter().map(|&value| f64::from(value as f32)).collect::<Vec<f64>>());
        for (of, tolerance) in [(Summing::Channels, 1e-8), (Summing::BatchStatistics { group_size: 1 }, 1e-11)] {
            let table = packed(DataType::Float64, &[of.rows(), 2]);
            check(machine, seed, &Kernel::Sums { of }, std::slice::from_ref(&x), &[table], tolerance);
        }
    }
}
