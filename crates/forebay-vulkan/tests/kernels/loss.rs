//! Losses.

use forebay_base::kernel::Summing;
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed, strided};

/// Logits and matching labels, some of which are to be ignored or are not a class.
fn logits_and_labels(random: &mut Random, desc: &TensorDesc, axis: usize, strange: bool) -> [Tensor; 2] {
    let mut logits = random.tensor(desc);
    logits.1.iter_mut().for_each(|x| *x *= 3.0);
    let classes = desc.sizes()[axis];
    let label_type = if random.below(2) == 0 { DataType::Int64 } else { DataType::Int32 };
    let labels = packed(label_type, &[desc.element_count() / classes]);
    let lowest = if strange { -2 } else { 0 };
    [logits, random.integers(&labels, lowest, classes as i64 - 1 + i64::from(strange))]
}

fn check(seed: u64, desc: &TensorDesc, axis: usize, ignore_index: Option<i64>) {
    let mut random = Random::new(seed);
    let [logits, labels] = logits_and_labels(&mut random, desc, axis, seed.is_multiple_of(5));
    let scalar = packed(DataType::Float32, &[1]);
    let kernel = Kernel::SoftmaxCrossEntropy { axis, ignore_index };
    compare(seed, &kernel, &[logits.clone(), labels.clone()], std::slice::from_ref(&scalar), 1e-6);
    let of = Summing::CrossEntropy { axis, ignore_index };
    let table = packed(DataType::Float64, &[2, 1]);
    let positions = labels.0.element_count() as f64;
    let reads = [logits.clone(), labels.clone()];
    let writes = std::slice::from_ref(&table);
    compare(seed, &Kernel::Sums { of }, &reads, writes, 1e-6);
    let sums = (table.clone(), vec![17.5, positions + 3.0]);
    compare(seed, &Kernel::AddSums { of }, &[sums.clone(), sums.clone()], writes, 1e-12);
    compare(seed, &Kernel::FromSums { of }, std::slice::from_ref(&sums), std::slice::from_ref(&scalar), 1e-7);
    let dloss = (scalar, vec![1.5 * positions]);
    let kernel = Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index };
    let mut reads = vec![dloss, logits, labels];
    compare(seed, &kernel, &reads, std::slice::from_ref(desc), 2e-6);
    reads.push(sums);
    compare(seed, &kernel, &reads, std::slice::from_ref(desc), 2e-6);
}

#[test]
fn cross_entropy_and_gradient_along_any_axis_agree_with_the_host() {
    let shapes: [(&[u64], usize); 10] = [
        (&[4, 5], 1),
        (&[6], 0),
        (&[3, 4, 7], 1),
        (&[2, 3, 5], 2),
        (&[2, 3, 2, 5], 0),
        (&[700, 3], 1),
        (&[2, 3, 40, 61], 1),
        (&[30, 100], 1),
        (&[2, 70, 9, 5], 1),
        (&[3, 4500], 1),
    ];
    for (seed, (sizes, axis)) in (0..).zip(shapes) {
        for (offset, ignore_index) in [None, Some(-2), Some(1)].into_iter().enumerate() {
            check(10 * seed + offset as u64, &packed(DataType::Float32, sizes), axis, ignore_index);
        }
    }
}

#[test]
fn logits_row_by_row_agree_with_the_host() {
    for (seed, [images, classes, rows, places]) in (500..).zip([[1, 3, 7, 5], [2, 21, 4, 33], [1, 40, 30, 90]]) {
        let strides = [classes * rows * places, places, classes * places, 1];
        let desc = strided(DataType::Float32, &[images, classes, rows, places], &strides);
        check(seed, &desc, 1, None);
        check(seed, &desc, 1, Some(2));
    }
}

#[test]
fn losses_of_nothing_and_of_infinite_logits_agree_with_the_host() {
    let (desc, scalar) = (packed(DataType::Float32, &[3, 40]), packed(DataType::Float32, &[1]));
    let mut random = Random::new(9);
    let mut logits = random.tensor(&desc);
    let labels = random.integers(&packed(DataType::Int64, &[3]), 1, 1);
    let kernel = Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: Some(1) };
    compare(9, &kernel, &[logits.clone(), labels.clone()], std::slice::from_ref(&scalar), 0.0);
    let gradient = Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: Some(1) };
    let dloss = (scalar.clone(), vec![1.0]);
    compare(9, &gradient, &[dloss, logits.clone(), labels.clone()], &[desc], 0.0);
    logits.1[45] = f64::INFINITY;
    logits.1[90] = f64::NAN;
    let kernel = Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: None };
    compare(9, &kernel, &[logits, labels], &[scalar], 0.0);
}

#[test]
fn mean_squared_error_and_gradient_agree_with_the_host() {
    for (seed, sizes) in (600..).zip([&[1][..], &[5], &[33, 2], &[3, 7, 1000], &[70_000]]) {
        let mut random = Random::new(seed);
        let (desc, scalar) = (packed(DataType::Float32, sizes), packed(DataType::Float32, &[1]));
        let reads = [random.tensor(&desc), random.tensor(&desc)];
        compare(seed, &Kernel::MeanSquaredError, &reads, std::slice::from_ref(&scalar), 1e-6);
        let [prediction, target] = reads;
        let dloss = (scalar, vec![desc.element_count() as f64]);
        compare(seed, &Kernel::MeanSquaredErrorGradient, &[dloss, prediction, target], &[desc], 1e-6);
    }
}
