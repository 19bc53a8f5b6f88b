//! Local response normalization.

use forebay_base::{DataType, Kernel};

use crate::compare::{Random, RandomTensors, compare, packed};

#[test]
fn windows_of_all_sizes_agree_with_the_host() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let sizes = [vec![1 + random.below(2), 1 + random.below(9)], random.sizes(3, 7)].concat();
        let desc = packed(DataType::Float32, &sizes);
        let (x, dy) = (random.tensor(&desc), random.tensor(&desc));
        let size = 1 + random.below(7);
        let (alpha, beta, bias) = (0.1 + random.below(10) as f32 / 5.0, 0.25 * (1 + random.below(5)) as f32, 1.5);
        let kernel = Kernel::LocalResponseNormalization { size, alpha, beta, bias };
        // Powers are computed by the GPU's own function.
        compare(seed, &kernel, std::slice::from_ref(&x), std::slice::from_ref(&desc), 1e-5);
        let kernel = Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias };
        compare(seed, &kernel, &[dy, x], &[desc], 5e-5);
    }
}
