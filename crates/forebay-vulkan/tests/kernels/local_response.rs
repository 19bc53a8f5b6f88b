//! Local response normalization.

use forebay_base::{DataType, Kernel};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed};

#[test]
fn windows_of_all_sizes_agree_with_the_host() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let sizes = [vec![1 + random.below(2), 1 + random.below(9)], random.sizes(3, 7)].concat();
        let desc = packed(DataType::Float32, &sizes);
        let (x, dy) = (random.tensor(&desc), random.tensor(&desc));
        let size = 1 + random.below(7);
        let (alpha, beta, bias) = (0.1 + random.below(10) as f32 / 5.0, 0.25 * (1 + random.below(5)) as f32, 1.5);
        both_agree(seed, [size as f32, alpha, beta, bias], x, dy);
    }
}

/// Checks the kernel and its gradient, whose powers differ from the host's by units in the last place.
fn both_agree(seed: u64, [size, alpha, beta, bias]: [f32; 4], x: Tensor, dy: Tensor) {
    let (size, desc) = (size as u64, x.0.clone());
    let kernel = Kernel::LocalResponseNormalization { size, alpha, beta, bias };
    compare(seed, &kernel, std::slice::from_ref(&x), std::slice::from_ref(&desc), 1e-6);
    let kernel = Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias };
    compare(seed, &kernel, &[dy, x], &[desc], 1e-5);
}

#[test]
fn powers_of_zero_and_of_negative_numbers_agree_with_the_host() {
    let desc = packed(DataType::Float32, &[1, 5, 3]);
    for (seed, (beta, bias)) in (0..).zip([(2.0, -1.0), (3.0, -9.0), (0.5, -9.0), (0.0, 0.0), (0.75, 0.0), (-0.5, 0.0)])
    {
        let mut random = Random::new(seed);
        let (mut x, dy) = (random.tensor(&desc), random.tensor(&desc));
        // The sum of the first channel's window is 0.
        x.1[..6].fill(0.0);
        both_agree(seed, [3.0, 0.5, beta, bias], x, dy);
    }
}
