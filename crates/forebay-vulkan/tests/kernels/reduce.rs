//! Reductions and softmax.

use forebay_base::kernel::ReduceOp;
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed, strided};

const OPS: [ReduceOp; 8] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Product,
    ReduceOp::L1,
    ReduceOp::L2,
    ReduceOp::SumSquare,
];

/// Sums are compensated, so only the rounding of terms and of results remains, relative to the largest partial sum.
fn tolerance(x: &Tensor, outputs: u64) -> f64 {
    let magnitude = x.1.iter().map(|x| x * x + x.abs()).sum::<f64>() / outputs as f64;
    if x.0.data_type().is_float() { 2e-7 * (1.0 + magnitude) } else { 0.0 }
}

fn check(seed: u64, op: ReduceOp, axes: &[usize], x: &Tensor) {
    let sizes = x.0.sizes();
    let kept = (0..sizes.len()).map(|axis| if axes.contains(&axis) { 1 } else { sizes[axis] });
    let y = packed(x.0.data_type(), &kept.collect::<Vec<_>>());
    let tolerance = tolerance(x, y.element_count());
    compare(seed, &Kernel::Reduce { op, axes: axes.to_vec() }, std::slice::from_ref(x), &[y], tolerance);
}

/// A tensor whose axes are in any order, some of them with gaps, and some of them with all elements in one place.
fn any_layout(random: &mut Random, data_type: DataType, sizes: &[u64]) -> TensorDesc {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    (1..sizes.len()).for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    let (mut stride, mut strides) = (1, vec![0; sizes.len()]);
    for axis in order {
        if random.below(6) > 0 {
            strides[axis] = stride;
            stride *= sizes[axis] + random.below(2);
        }
    }
    strided(data_type, sizes, &strides)
}

#[test]
fn reductions_along_any_axes_of_any_layout_agree_with_the_host() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(5, 7);
        let axes: Vec<usize> = (0..sizes.len()).filter(|_| random.below(2) == 0).collect();
        for data_type in [DataType::Float32, DataType::Float64, DataType::Int32, DataType::UInt32] {
            let desc = any_layout(&mut random, data_type, &sizes);
            let x = random.tensor(&desc);
            let op = OPS[(random.below(8)) as usize];
            if op != ReduceOp::L2 || data_type.is_float() {
                check(seed, op, &axes, &x);
            }
        }
    }
}

#[test]
fn long_reductions_agree_with_the_host() {
    let shapes: [(&[u64], &[usize]); 8] = [
        (&[3, 5000], &[1]),
        (&[5000, 3], &[0]),
        (&[2, 2500, 5], &[0, 1]),
        (&[2, 3, 4099], &[0, 2]),
        (&[70_001], &[0]),
        (&[300, 40], &[0]),
        (&[40, 300], &[1]),
        (&[2, 700, 33], &[1]),
    ];
    for (seed, (sizes, axes)) in (100..).zip(shapes) {
        let mut random = Random::new(seed);
        for data_type in [DataType::Float32, DataType::Int32] {
            let x = random.tensor(&packed(data_type, sizes));
            for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::SumSquare] {
                check(seed, op, axes, &x);
            }
        }
    }
}

#[test]
fn integer_means_of_large_numbers_are_truncated_as_on_the_host() {
    for seed in 200..210 {
        let mut random = Random::new(seed);
        let length = 1 + random.below(90);
        let x = random.integers(&packed(DataType::Int32, &[5, length]), -2_000_000_000, 2_000_000_000);
        check(seed, ReduceOp::Mean, &[1], &x);
        let x = random.integers(&packed(DataType::UInt32, &[length, 5]), 0, 4_000_000_000);
        check(seed, ReduceOp::Mean, &[0], &x);
    }
}

#[test]
fn extremes_of_numbers_that_are_none_are_none() {
    let desc = packed(DataType::Float32, &[40, 70]);
    for (seed, special) in [(1, f64::NAN), (2, f64::INFINITY), (3, f64::NEG_INFINITY)] {
        let mut x = Random::new(seed).tensor(&desc);
        x.1[71] = special;
        x.1[2799] = special;
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum, ReduceOp::Mean] {
            for axis in [0, 1] {
                let kernel = Kernel::Reduce { op, axes: vec![axis] };
                let y = packed(DataType::Float32, &[desc.sizes()[1 - axis]]);
                compare(seed, &kernel, std::slice::from_ref(&x), &[y], 1e-5);
            }
        }
    }
}

/// Shapes with teams of one worker, of several, and of a whole workgroup.
const COLUMNS: [(&[u64], usize); 9] = [
    (&[5], 0),
    (&[3, 300], 1),
    (&[300, 3], 0),
    (&[2, 3, 700], 1),
    (&[4, 1, 9], 1),
    (&[40, 17, 33], 2),
    (&[2, 40, 53], 1),
    (&[3, 5000], 1),
    (&[4200, 2], 0),
];

#[test]
fn softmax_and_gradients_along_any_axis_agree_with_the_host() {
    for (seed, (sizes, axis)) in (300..).zip(COLUMNS) {
        let mut random = Random::new(seed);
        let desc = packed(DataType::Float32, sizes);
        let mut x = random.tensor(&desc);
        x.1.iter_mut().for_each(|x| *x *= 4.0);
        let (dy, y) = (random.tensor(&desc), random.tensor(&desc));
        let size = sizes[axis] as f64;
        let writes = std::slice::from_ref(&desc);
        compare(seed, &Kernel::Softmax { axis }, &[x.clone()], writes, 1e-6);
        compare(seed, &Kernel::LogSoftmax { axis }, &[x], writes, 1e-6);
        let reads = [dy, y];
        compare(seed, &Kernel::SoftmaxGradient { axis }, &reads, writes, 1e-6 * size.sqrt());
        compare(seed, &Kernel::LogSoftmaxGradient { axis }, &reads, writes, 2e-6 * size.sqrt());
    }
}

#[test]
fn masked_elements_become_zero_and_masked_columns_not_a_number() {
    let desc = packed(DataType::Float32, &[4, 50]);
    let mut x = Random::new(5).tensor(&desc);
    x.1[..50].fill(f64::NEG_INFINITY);
    x.1[60..70].fill(f64::NEG_INFINITY);
    x.1[120] = f64::NAN;
    x.1[170] = f64::INFINITY;
    for axis in [0, 1] {
        for kernel in [Kernel::Softmax { axis }, Kernel::LogSoftmax { axis }] {
            compare(5, &kernel, &[x.clone()], std::slice::from_ref(&desc), 1e-6);
        }
    }
}
