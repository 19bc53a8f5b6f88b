//! Optimizers.

use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, compare, packed};

/// Hyperparameters as an operand.
fn given(elements: &[f32]) -> (TensorDesc, Vec<f64>) {
    (packed(DataType::Float32, &[elements.len() as u64]), elements.iter().copied().map(f64::from).collect())
}

#[test]
fn gradient_descent_agrees() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let desc = packed(DataType::Float32, &random.sizes(3, 40));
        let momentum = if random.below(2) == 0 { 0.0 } else { 0.9 };
        let nesterov = random.below(2) == 0;
        let numbers = SgdHyperparameters { learning_rate: 0.1, momentum, weight_decay: 0.01 };
        let decays = random.below(2) == 0;
        let kernel = Kernel::Sgd { nesterov, decays };
        let count = if momentum > 0.0 { 2 } else { 1 };
        let mut reads: Vec<_> = (0..=count).map(|_| random.tensor(&desc)).chain([given(&numbers.elements())]).collect();
        if !decays {
            reads[0].1[0] = f64::NEG_INFINITY;
        }
        compare(seed, &kernel, &reads, &vec![desc; count], 0.0);
    }
}

#[test]
fn adam_agrees() {
    for (seed, step) in [(100, 1.0), (101, 2.0), (102, 7.0), (103, 1000.0), (104, 3e6), (105, 1e9)] {
        for (beta1, beta2) in [(0.9, 0.999), (0.0, 0.95), (0.5, 0.9999)] {
            let mut random = Random::new(seed);
            let desc = packed(DataType::Float32, &random.sizes(3, 20));
            let decoupled = random.below(2) == 0;
            let numbers = AdamHyperparameters { learning_rate: 3e-3, beta1, beta2, epsilon: 1e-8, weight_decay: 0.1 };
            let kernel = Kernel::Adam { decoupled, decays: random.below(4) > 0 };
            let mut reads: Vec<_> = (0..4).map(|_| random.tensor(&desc)).collect();
            reads[3].1.iter_mut().for_each(|second| *second = second.abs());
            reads.push((packed(DataType::Int64, &[2]), vec![step, 0.0]));
            reads.push(given(&numbers.elements()));
            compare(seed, &kernel, &reads, &vec![desc; 3], 5e-7);
        }
    }
}

/// Full blocks, a block with only part of its elements, down to one, and blocks of zeros.
#[test]
fn adam_of_8_bits_agrees() {
    for (seed, count) in [(200, 4096), (201, 5000), (202, 257), (203, 33_000), (204, 3), (205, 1)] {
        let mut random = Random::new(seed);
        let [desc, codes, scales] = [
            packed(DataType::Float32, &[count]),
            packed(DataType::UInt8, &[count]),
            packed(DataType::Float32, &[count.div_ceil(256)]),
        ];
        let (decoupled, decays) = (random.below(2) == 0, random.below(4) > 0);
        let kernel = Kernel::Adam8Bit { decoupled, decays };
        let numbers =
            AdamHyperparameters { learning_rate: 3e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
        let mut reads: Vec<_> = (0..2).map(|_| random.tensor(&desc)).collect();
        for _ in 0..2 {
            reads.push((codes.clone(), (0..count).map(|_| random.below(256) as f64).collect()));
            let mut of_blocks = random.tensor(&scales);
            of_blocks.1.iter_mut().for_each(|scale| *scale = scale.abs().powi(5));
            reads.push(of_blocks);
        }
        if seed % 2 == 0 {
            // A block of zeros.
            [3, 5].into_iter().for_each(|scale: usize| reads[scale].1[0] = 0.0);
            reads[1].1.iter_mut().take(256).for_each(|gradient| *gradient = 0.0);
        }
        reads.push((packed(DataType::Int64, &[2]), vec![f64::from(1 + random.below(9) as u32), 0.0]));
        reads.push(given(&numbers.elements()));
        compare(seed, &kernel, &reads, &[desc, codes.clone(), scales.clone(), codes, scales], 5e-7);
    }
}
