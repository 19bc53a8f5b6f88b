//! Products and convolutions of 8-bit integers, whose sums and quantized results are the same integers on both devices.

use forebay_base::DataType::{self, Float32, Int8, Int32, UInt8};
use forebay_base::kernel::Convolution;
use forebay_base::{Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed, strided};
use crate::spatial;

fn byte_type(random: &mut Random) -> DataType {
    [Int8, UInt8][random.below(2) as usize]
}

/// Integers of all magnitudes.
fn bytes(random: &mut Random, desc: &TensorDesc) -> Tensor {
    match desc.data_type() {
        Int8 => random.integers(desc, -128, 127),
        _ => random.integers(desc, 0, 255),
    }
}

/// The bias, scale and zero point of a result, and its type.
fn scaling(random: &mut Random, sizes: &[u64]) -> ([Tensor; 3], DataType) {
    let data_type = byte_type(random);
    let bias = random.integers(&packed(Int32, sizes), -9000, 9000);
    let (desc, values) = random.tensor(&packed(Float32, sizes));
    let scale = (desc, values.iter().map(|value| f64::from((value.abs() / 900.0) as f32)).collect());
    let zero = bytes(random, &packed(data_type, &[1].repeat(sizes.len())));
    ([bias, scale, zero], data_type)
}

#[test]
fn products_are_the_hosts() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let [m, n, k] = [20, 20, 70].map(|limit| 1 + random.below(limit));
        let (batch, transpose_b) = (1 + random.below(2), random.below(2) == 1);
        let (a_type, b_type) = (byte_type(&mut random), byte_type(&mut random));
        let of_b = if transpose_b { [n, k] } else { [k, n] };
        let zeros = [[1, m][random.below(2) as usize], [1, n][random.below(2) as usize]];
        let mut reads = vec![
            bytes(&mut random, &packed(a_type, &[batch, m, k])),
            bytes(&mut random, &packed(b_type, &of_b)),
            bytes(&mut random, &packed(a_type, &[zeros[0], 1])),
            bytes(&mut random, &packed(b_type, &[1, zeros[1]])),
        ];
        let kernel = Kernel::IntegerProduct { transpose_b };
        compare(seed, &kernel, &reads, &[packed(Int32, &[batch, m, n])], 0.0);
        let (scaling, data_type) = scaling(&mut random, &[1, n]);
        reads.extend(scaling);
        compare(seed, &kernel, &reads, &[packed(data_type, &[batch, m, n])], 0.0);
    }
}

#[test]
fn convolutions_are_the_hosts() {
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let sliding = spatial::sliding(&mut random, 1 + seed as usize % 3, 5, false);
        let (groups, inputs, outputs) = (1 + random.below(2), 1 + random.below(5), 1 + random.below(5));
        let (x_type, w_type) = (byte_type(&mut random), byte_type(&mut random));
        let of = |data_type: DataType, desc: &TensorDesc| strided(data_type, desc.sizes(), &desc.effective_strides());
        let x = spatial::layout(&mut random, 2, inputs * groups, &sliding.input);
        let y = spatial::layout(&mut random, 2, outputs * groups, &sliding.output);
        let w = packed(w_type, &[&[outputs * groups, inputs], &sliding.window.kernel[..]].concat());
        let filters = [1, outputs * groups][random.below(2) as usize];
        let mut reads = vec![
            bytes(&mut random, &of(x_type, &x)),
            bytes(&mut random, &w),
            bytes(&mut random, &packed(x_type, &[1])),
            bytes(&mut random, &packed(w_type, &[filters])),
        ];
        let kernel = Kernel::IntegerConvolution { convolution: Convolution { window: sliding.window, groups } };
        compare(seed, &kernel, &reads, &[of(Int32, &y)], 0.0);
        let ([bias, scale, _], data_type) = scaling(&mut random, &[outputs * groups]);
        let zero = bytes(&mut random, &packed(data_type, &[1]));
        reads.extend([bias, scale, zero]);
        compare(seed, &kernel, &reads, &[of(data_type, &y)], 0.0);
    }
}
