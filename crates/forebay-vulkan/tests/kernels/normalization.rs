//! Normalization by statistics of a batch and of rows.

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed, strided};

const EPSILON: f32 = 1e-3;

/// A tensor that is laid out row by row, with all channels of a row together.
pub fn row_by_row(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    let (channels, rows) = (sizes[1], sizes.get(2).copied().unwrap_or(1));
    let places: u64 = sizes[2..].iter().skip(1).product();
    let mut strides = vec![channels * rows * places, places, channels * places];
    for dimension in 3..sizes.len() {
        strides.push(sizes[dimension + 1..].iter().product());
    }
    strided(data_type, sizes, &strides[..sizes.len()])
}

/// Shapes of one and of several chunks, of whole images and of rows.
pub const SHAPES: [&[u64]; 8] = [
    &[7, 3],
    &[5, 4, 6],
    &[2, 3, 4, 5],
    &[1, 2, 50, 130],
    &[70, 3, 8, 8],
    &[3, 2, 2, 31, 41],
    &[2, 3, 4500],
    &[1, 130, 3, 11],
];

/// Both layouts of a shape, if it has rows.
pub fn layouts(data_type: DataType, sizes: &[u64]) -> Vec<TensorDesc> {
    let mut all = vec![packed(data_type, sizes)];
    if sizes.len() > 2 {
        all.push(row_by_row(data_type, sizes));
    }
    all
}

/// Variances, which are not negative.
pub fn variances(random: &mut Random, channel: &TensorDesc) -> Tensor {
    let (desc, values) = random.tensor(channel);
    (desc, values.into_iter().map(|x| 0.1 + x * x).collect())
}

fn tolerance(data_type: DataType) -> f64 {
    if data_type == DataType::Float64 { 1e-12 } else { 4e-6 }
}

fn check_batch(seed: u64, x: &TensorDesc, dy: &TensorDesc, activation: Activation) {
    check_groups(seed, x, dy, activation, 1);
}

fn check_groups(seed: u64, x: &TensorDesc, dy: &TensorDesc, activation: Activation, group_size: u64) {
    let mut random = Random::new(seed);
    let (data_type, channels, samples) = (x.data_type(), x.sizes()[1], (x.element_count() / x.sizes()[1]) as f64);
    let channel = packed(data_type, &[channels]);
    let [scale, bias, mean] = [(); 3].map(|()| random.tensor(&channel));
    let variance = variances(&mut random, &channel);
    let input = random.tensor(x);
    let epsilon = EPSILON;
    let parameters = [scale, bias, mean, variance];
    let reads = |first: &[&Tensor], count: usize| -> Vec<Tensor> {
        first.iter().map(|&tensor| tensor.clone()).chain(parameters[..count].iter().cloned()).collect()
    };
    let tolerance = tolerance(data_type);
    let kernel = Kernel::BatchNormalization { epsilon, activation };
    compare(seed, &kernel, &reads(&[&input], 4), std::slice::from_ref(x), tolerance);
    let kernel = Kernel::BatchNormalizationTraining { epsilon, activation, group_size };
    let writes = [x.clone(), channel.clone(), channel.clone()];
    // With few samples a variance can be tiny, and then a rounding error in x is large in y.
    compare(seed, &kernel, &reads(&[&input], 2), &writes, 20.0 * tolerance);
    // Slopes that a mask takes away or leaves depend on signs, which are the same where numbers are close but not the same.
    let slopes = random.tensor(dy);
    let kernel = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
    let mut operands = reads(&[&slopes, &input], 4);
    compare(seed, &kernel, &operands, &writes, tolerance * samples.sqrt());
    operands.push(random.tensor(&packed(DataType::Float64, &[3, channels])));
    operands[6].1[2 * channels as usize..].fill(samples);
    compare(seed, &kernel, &operands, std::slice::from_ref(x), tolerance);
}

#[test]
fn batch_normalization_agrees_with_the_host() {
    for (seed, sizes) in (0..).zip(SHAPES) {
        for data_type in [DataType::Float32, DataType::Float64] {
            for x in layouts(data_type, sizes) {
                for activation in [Activation::None, Activation::Relu] {
                    check_batch(seed, &x, &x, activation);
                }
            }
        }
    }
}

#[test]
fn batch_normalization_of_operands_in_different_layouts_agrees_with_the_host() {
    let sizes = [3, 5, 6, 7];
    let (x, dy) = (packed(DataType::Float32, &sizes), row_by_row(DataType::Float32, &sizes));
    check_batch(50, &x, &dy, Activation::Relu);
    check_batch(51, &dy, &x, Activation::None);
}

#[test]
fn batch_normalization_of_large_channels_agrees_with_the_host() {
    let x = row_by_row(DataType::Float32, &[1, 2, 60, 701]);
    check_batch(52, &x, &x, Activation::Relu);
    let x = packed(DataType::Float32, &[12, 3, 57, 53]);
    check_batch(53, &x, &x, Activation::None);
}

#[test]
fn group_normalization_agrees_with_the_host() {
    let sizes = [1, 6, 5, 7];
    for (seed, group_size) in (54..).zip([2, 3, 6]) {
        for data_type in [DataType::Float32, DataType::Float64] {
            for x in [packed(data_type, &sizes), row_by_row(data_type, &sizes)] {
                check_groups(seed, &x, &x, Activation::Relu, group_size);
            }
        }
    }
    let x = row_by_row(DataType::Float32, &[1, 300, 9, 40]);
    check_groups(58, &x, &x, Activation::None, 150);
}

#[test]
fn statistics_keep_their_digits_far_from_zero() {
    let (desc, channel) = (packed(DataType::Float32, &[2, 2, 30, 51]), packed(DataType::Float32, &[2]));
    let mut random = Random::new(4);
    let mut x = random.tensor(&desc);
    x.1.iter_mut().for_each(|x| *x = (1000.0 + *x) as f32 as f64);
    let ones = (channel.clone(), vec![1.0; 2]);
    let kernel = Kernel::BatchNormalizationTraining { epsilon: EPSILON, activation: Activation::None, group_size: 1 };
    compare(4, &kernel, &[x, ones.clone(), ones], &[desc, channel.clone(), channel], 1e-6);
}

#[test]
fn running_statistics_agree_with_the_host() {
    for (seed, channels) in (0..).zip([1, 5, 256, 700]) {
        let mut random = Random::new(seed);
        for data_type in [DataType::Float32, DataType::Float64] {
            let desc = packed(data_type, &[channels]);
            let kernel = Kernel::RunningStatistics { momentum: 0.9, correction: 1.25 };
            let reads = [random.tensor(&desc), random.tensor(&desc)];
            compare(seed, &kernel, &reads, &[desc], 3e-7);
        }
    }
}

#[test]
fn layer_normalization_and_gradient_agree_with_the_host() {
    let shapes: [(&[u64], usize); 8] = [
        (&[5, 6], 1),
        (&[7], 0),
        (&[3, 4, 50], 2),
        (&[3, 4, 50], 1),
        (&[100, 20], 1),
        (&[70, 300], 1),
        (&[3, 5000], 1),
        (&[2, 1], 1),
    ];
    for (seed, (sizes, axis)) in (0..).zip(shapes) {
        let mut random = Random::new(seed);
        let row = packed(DataType::Float32, &sizes[axis..]);
        let rows = packed(DataType::Float32, &[&sizes[..axis], &[1]].concat());
        let desc = packed(DataType::Float32, sizes);
        let mut x = random.tensor(&desc);
        x.1.iter_mut().for_each(|x| *x = (*x + 3.0) as f32 as f64);
        let (scale, bias) = (random.tensor(&row), random.tensor(&row));
        let kernel = Kernel::LayerNormalization { axis, epsilon: EPSILON };
        let writes = [desc.clone(), rows.clone(), rows.clone()];
        compare(seed, &kernel, &[x.clone(), scale.clone(), bias], &writes, 1e-5);
        compare(seed, &kernel, &[x.clone(), scale.clone()], &writes[..1], 1e-5);
        let (dy, mean) = (random.tensor(&desc), random.tensor(&rows));
        let inverse = variances(&mut random, &rows);
        let writes = [desc, row.clone(), row];
        let count = rows.element_count() as f64;
        let kernel = Kernel::LayerNormalizationGradient { axis };
        compare(seed, &kernel, &[dy, x, scale, mean, inverse], &writes, 1e-5 * count.sqrt());
    }
}

#[test]
fn rows_with_infinities_and_nan_are_normalized_as_on_the_host() {
    let (desc, rows, row) = ([3, 8], [3, 1], [8]);
    let [desc, rows, row] = [&desc[..], &rows, &row].map(|sizes| packed(DataType::Float32, sizes));
    let mut random = Random::new(70);
    let (mut x, scale, bias) = (random.tensor(&desc), random.tensor(&row), random.tensor(&row));
    (x.1[3], x.1[8 + 2]) = (f64::INFINITY, f64::NAN);
    let kernel = Kernel::LayerNormalization { axis: 1, epsilon: EPSILON };
    let writes = [desc, rows.clone(), rows];
    for count in [1, 3] {
        compare(70, &kernel, &[x.clone(), scale.clone(), bias.clone()], &writes[..count], 1e-5);
    }
}
