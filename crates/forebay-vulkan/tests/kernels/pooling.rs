//! Pooling and its gradient.

use forebay_base::kernel::{PoolOp, Window};
use forebay_base::{DataType, Kernel};

use crate::compare::{Random, RandomTensors, compare, packed};
use crate::spatial::{Sliding, layout, sliding};

const OPERATIONS: [PoolOp; 3] =
    [PoolOp::Max, PoolOp::Average { count_include_pad: true }, PoolOp::Average { count_include_pad: false }];

/// Both directions of every operation. There are few distinct values, so that ties occur. Sums have a few dozen terms.
fn check(seed: u64, random: &mut Random, Sliding { window, input, output }: &Sliding) {
    let (images, channels) = (1 + random.below(2), 1 + random.below(4));
    for op in OPERATIONS {
        let x = layout(random, images, channels, input);
        let [y, dx] = [output, input].map(|sizes| layout(random, images, channels, sizes));
        let x = random.integers(&x, -3, 3);
        compare(
            seed,
            &Kernel::Pool { op, window: window.clone() },
            std::slice::from_ref(&x),
            std::slice::from_ref(&y),
            1e-6,
        );
        let dy = random.tensor(&y);
        let reads = if op == PoolOp::Max || seed.is_multiple_of(2) { vec![dy, x] } else { vec![dy] };
        compare(seed, &Kernel::PoolGradient { op, window: window.clone() }, &reads, &[dx], 2e-6);
    }
}

#[test]
fn random_poolings_agree_with_the_host() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let rank = 1 + random.below(3) as usize;
        let sliding = sliding(&mut random, rank, 12, true);
        check(seed, &mut random, &sliding);
    }
}

#[test]
fn windows_beyond_the_padding_count_what_is_there() {
    // As with an output size that is rounded up: the last window begins in the input and ends beyond its padding.
    let window = Window {
        kernel: vec![3, 3],
        strides: vec![2, 2],
        dilations: vec![1, 1],
        pads_begin: vec![1, 0],
        pads_end: vec![1, 0],
    };
    let sliding = Sliding { window, input: vec![6, 6], output: vec![4, 3] };
    check(50, &mut Random::new(50), &sliding);
}

/// Windows of 2^52 taps, of which all are skipped except those that see the input.
#[test]
fn windows_far_larger_than_the_input_agree() {
    let half = 1 << 25;
    let window = Window {
        kernel: vec![2 * half, 2 * half],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![half - 1, half - 1],
        pads_end: vec![half, half],
    };
    check(60, &mut Random::new(60), &Sliding { window, input: vec![4, 5], output: vec![4, 5] });
}

#[test]
fn a_tie_goes_to_the_first_and_nan_is_kept() {
    let window =
        Window { kernel: vec![3], strides: vec![2], dilations: vec![1], pads_begin: vec![0], pads_end: vec![0] };
    let (x, y) = (packed(DataType::Float32, &[1, 1, 7]), packed(DataType::Float32, &[1, 1, 3]));
    let values = (x.clone(), vec![5.0, 5.0, 1.0, f64::NAN, 2.0, f64::NEG_INFINITY, f64::NEG_INFINITY]);
    compare(
        0,
        &Kernel::Pool { op: PoolOp::Max, window: window.clone() },
        std::slice::from_ref(&values),
        std::slice::from_ref(&y),
        0.0,
    );
    let reads = [(y, vec![1.0, 2.0, 4.0]), values];
    compare(0, &Kernel::PoolGradient { op: PoolOp::Max, window }, &reads, &[x], 0.0);
}

/// Windows of a whole channel: to search all of the window for each of its elements would take minutes.
#[test]
fn gradients_of_large_windows_agree() {
    const SIZE: u64 = 1 << 14;
    let window =
        Window { kernel: vec![SIZE], strides: vec![1], dilations: vec![1], pads_begin: vec![0], pads_end: vec![0] };
    let mut random = Random::new(70);
    let channel = packed(DataType::Float32, &[SIZE]);
    let ascending: Vec<f64> = (0..SIZE).map(|at| at as f64).collect();
    let descending: Vec<f64> = ascending.iter().rev().copied().collect();
    let (any, ties) = (random.tensor(&channel).1, random.integers(&channel, -3, 3).1);
    let mut with_nan = any.clone();
    for at in [SIZE / 3, SIZE / 2] {
        with_nan[at as usize] = f64::NAN;
    }
    let channels = [ascending, descending, vec![1.0; SIZE as usize], any, ties, with_nan];
    let [x, y] = [SIZE, 1].map(|size| packed(DataType::Float32, &[1, channels.len() as u64, size]));
    let reads = [random.tensor(&y), (x.clone(), channels.concat())];
    compare(70, &Kernel::PoolGradient { op: PoolOp::Max, window }, &reads, &[x], 0.0);
}
