//! Sums over positions in parts. Each part is compared with the host's, and all parts together with the whole, bit for bit.

use std::ops::Range;

use forebay_base::kernel::facts::{Dimension, Leaves, OperandRef};
use forebay_base::kernel::{Activation, ReduceOp, Summing};
use forebay_base::sum_tree::{PartialSums, nodes_of};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{self, Machine, Random, RandomTensors, Tensor, compare, element, packed, strided, vulkan};
use crate::normalization::{SHAPES, layouts, row_by_row, variances};

const EPSILON: f32 = 1e-3;

#[test]
fn sums_and_what_becomes_of_them_agree_with_the_host() {
    for (seed, sizes) in (0..).zip(SHAPES) {
        for data_type in [DataType::Float32, DataType::Float64] {
            for x in layouts(data_type, sizes) {
                check(seed, &x);
            }
        }
    }
}

fn check(seed: u64, x: &TensorDesc) {
    let mut random = Random::new(seed);
    let (data_type, channels) = (x.data_type(), x.sizes()[1]);
    let channel = packed(data_type, &[channels]);
    let input = random.tensor(x);
    let gradient = Summing::BatchGradient { epsilon: EPSILON, activation: Activation::Relu };
    let mut operands = vec![random.tensor(x), input.clone()];
    operands.extend([(); 3].map(|()| random.tensor(&channel)));
    operands.push(variances(&mut random, &channel));
    let variance = operands[5].clone();
    let samples = (x.element_count() / channels) as f64;
    // Sums are float64, so those of float32 numbers differ only because their terms do.
    let tolerance = if data_type == DataType::Float64 { 1e-12 } else { 1e-6 } * samples.sqrt();
    let results = [channel.clone(), channel.clone()];
    for (of, reads, others, results) in [
        (Summing::BatchStatistics { group_size: 1 }, vec![input.clone()], vec![], &results[..]),
        (gradient, operands, vec![variance], &results[..]),
        (Summing::Channels, vec![input], vec![], &results[..1]),
    ] {
        let table = packed(DataType::Float64, &[of.rows(), channels]);
        let mut before = random.tensor(&table);
        // The numbers of samples come last, and there were some.
        let last = before.1.len() - channels as usize;
        before.1[last..].fill(5.0);
        let writes = std::slice::from_ref(&table);
        compare(seed, &Kernel::Sums { of }, &reads, writes, tolerance);
        compare(seed, &Kernel::AddSums { of }, &[before.clone(), random_sums(&mut random, of, &table)], writes, 1e-12);
        let reads: Vec<Tensor> = [before].into_iter().chain(others).collect();
        compare(seed, &Kernel::FromSums { of }, &reads, results, tolerance);
    }
    if x.sizes().len() > 2 {
        let axes = (0..x.sizes().len()).filter(|&axis| axis != 1).collect();
        let kernel = Kernel::Reduce { op: ReduceOp::Sum, axes };
        compare(seed, &kernel, &[random.tensor(x)], &[channel], tolerance);
    }
}

/// Random sums that could occur.
fn random_sums(random: &mut Random, of: Summing, table: &TensorDesc) -> Tensor {
    let mut sums = random.tensor(table);
    // The numbers of samples come last.
    let last = sums.1.len() - table.sizes()[1] as usize;
    if of != Summing::Channels {
        sums.1[last..].fill(3.0);
    }
    sums
}

/// What a launch writes, as tensors.
pub fn apply(machine: &Machine, kernel: &Kernel, reads: &[Tensor], writes: &[TensorDesc]) -> Vec<Tensor> {
    let outputs = compare::run(machine, kernel, reads, writes, &[]).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    let values = |(desc, bytes): (&TensorDesc, Vec<u8>)| {
        let count = desc.total_size_bytes() / desc.data_type().size_bytes();
        (desc.clone(), (0..count as usize).map(|at| element(desc, &bytes, at)).collect())
    };
    writes.iter().zip(outputs).map(values).collect()
}

/// The parts of a tensor along an axis, whose indices follow each other in memory.
fn parts(tensor: &Tensor, axis: usize, lines: &[u64]) -> Vec<Tensor> {
    let (desc, values) = tensor;
    let stride = desc.effective_strides()[axis];
    let part = |bounds: &[u64]| {
        let mut sizes = desc.sizes().to_vec();
        sizes[axis] = bounds[1] - bounds[0];
        let part = strided(desc.data_type(), &sizes, &desc.effective_strides());
        let (first, end) = (bounds[0] * stride, bounds[1] * stride);
        (part, values[first as usize..end as usize].to_vec())
    };
    lines.windows(2).map(part).collect()
}

/// The leaves of a sum along an axis of its first read.
fn leaves(of: Summing, part: &[Tensor], axis: usize) -> Leaves {
    let reads: Vec<&TensorDesc> = part.iter().map(|tensor| &tensor.0).collect();
    let table = packed(DataType::Float64, &[of.rows(), 1]);
    let dimensions = Kernel::Sums { of }.facts().dimensions(&reads, &[&table]).expect("its operands fit");
    let is_own = |one: &Dimension| one.along(OperandRef::Read(0)).is_some_and(|(along, _)| along.axis == axis);
    dimensions.into_iter().find(is_own).and_then(|one| one.leaves).expect("it is a sum along the axis")
}

/// The lines between the parts and between the nodes of the sum tree that make up the parts, and the leaves of these nodes.
fn nodes(of: Summing, whole: &[Tensor], axis: usize, lines: &[u64]) -> (Vec<u64>, Vec<Range<u64>>) {
    let (own, size) = (leaves(of, whole, axis), whole[0].0.sizes()[axis]);
    let count = own.of_range(&(0..size), size).expect("all of them").end;
    let ranges = lines.windows(2).map(|pair| own.of_range(&(pair[0]..pair[1]), size).expect("lines between leaves"));
    let nodes: Vec<Range<u64>> = ranges.flat_map(|range| nodes_of(range, count)).collect();
    let index = |leaf: u64| size.min(leaf * own.block / own.of_index);
    (nodes.iter().map(|node| node.start).chain([count]).map(index).collect(), nodes)
}

/// The sums of all parts, which are nodes of the sum tree, added along the tree, and the results computed from them.
fn from_parts(
    machine: &Machine,
    of: Summing,
    (parts, nodes): (&[Vec<Tensor>], &[Range<u64>]),
    table: &TensorDesc,
    others: &[Tensor],
    results: &[TensorDesc],
) -> (Tensor, Vec<Tensor>) {
    let one = |kernel: Kernel, reads: &[Tensor]| apply(machine, &kernel, reads, std::slice::from_ref(table)).remove(0);
    let add = |earlier: Tensor, later: Tensor| one(Kernel::AddSums { of }, &[earlier, later]);
    let mut sums = PartialSums::default();
    for (part, node) in parts.iter().zip(nodes) {
        sums.push(node.clone(), one(Kernel::Sums { of }, part), add);
    }
    let sums = sums.total(add).unwrap();
    let reads: Vec<Tensor> = [sums.clone()].into_iter().chain(others.iter().cloned()).collect();
    let results = apply(machine, &Kernel::FromSums { of }, &reads, results);
    (sums, results)
}

/// Asserts that values are the same, bit for bit.
pub fn same(what: &str, seed: u64, parts: &[f64], whole: &[f64]) {
    assert_eq!(parts.len(), whole.len(), "{what}, seed {seed}");
    let difference = parts.iter().zip(whole).position(|(part, whole)| part.to_bits() != whole.to_bits());
    if let Some(at) = difference {
        panic!("{what}: parts give {} at {at}, the whole {} (seed {seed})", parts[at], whole[at]);
    }
}

fn joined(parts: &[Tensor]) -> Vec<f64> {
    parts.iter().flat_map(|part| part.1.iter().copied()).collect()
}

/// Tensors, the axis that is cut, and lines of chunks (`forebay_base::kernel::reduction_block_of_channels`) or of images.
fn cuts() -> Vec<(TensorDesc, usize, Vec<Vec<u64>>)> {
    let data_type = DataType::Float32;
    vec![
        (packed(data_type, &[70, 3, 8, 8]), 0, vec![vec![0, 16, 64, 70], vec![0, 48, 70]]),
        (packed(data_type, &[5, 3, 40, 60]), 0, vec![vec![0, 1, 4, 5], vec![0, 3, 5]]),
        (packed(data_type, &[300, 130, 3, 5]), 0, vec![vec![0, 128, 300]]),
        (row_by_row(data_type, &[3, 4, 30, 70]), 0, vec![vec![0, 1, 2, 3]]),
        (row_by_row(data_type, &[1, 3, 100, 700]), 2, vec![vec![0, 2, 10, 100], vec![0, 50, 98, 100]]),
        (row_by_row(data_type, &[1, 2, 9, 3000]), 2, vec![vec![0, 1, 9], vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]),
        (row_by_row(data_type, &[1, 5, 7000]), 2, vec![vec![0, 2048, 7000], vec![0, 4096, 6144, 7000]]),
    ]
}

/// Predictions, and lines at multiples of 512 elements.
#[test]
fn squared_errors_in_parts_have_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    let cuts = [
        (vec![5000, 4], vec![0, 2048, 4096, 5000]),
        (vec![9, 1024], vec![0, 1, 5, 9]),
        (vec![70, 512, 4], vec![0, 4, 64, 70]),
        (vec![3000, 512], vec![0, 512, 3000]),
    ];
    for (seed, (sizes, lines)) in (300..).zip(cuts) {
        let mut random = Random::new(seed);
        let (desc, scalar) = (packed(DataType::Float32, &sizes), packed(DataType::Float32, &[1]));
        let (prediction, target, dloss) = (random.tensor(&desc), random.tensor(&desc), (scalar.clone(), vec![7.0]));
        let writes = std::slice::from_ref(&scalar);
        let loss = apply(machine, &Kernel::MeanSquaredError, &[prediction.clone(), target.clone()], writes);
        let kernel = Kernel::MeanSquaredErrorGradient;
        let reads = [dloss.clone(), prediction.clone(), target.clone()];
        let gradient = apply(machine, &kernel, &reads, std::slice::from_ref(&desc));
        let (lines, nodes) = nodes(Summing::SquaredError, &[prediction.clone(), target.clone()], 0, &lines);
        let both = parts(&prediction, 0, &lines).into_iter().zip(parts(&target, 0, &lines));
        let pairs: Vec<_> = both.map(|(prediction, target)| vec![prediction, target]).collect();
        let table = packed(DataType::Float64, &[2, 1]);
        let (sums, results) = from_parts(machine, Summing::SquaredError, (&pairs, &nodes), &table, &[], writes);
        let what = format!("{desc} cut at {lines:?}");
        same(&format!("loss of {what}"), seed, &results[0].1, &loss[0].1);
        let slopes = |pair: &Vec<Tensor>| {
            let reads = [dloss.clone(), pair[0].clone(), pair[1].clone(), sums.clone()];
            apply(machine, &kernel, &reads, std::slice::from_ref(&pair[0].0)).remove(0)
        };
        let parts: Vec<Tensor> = pairs.iter().map(slopes).collect();
        same(&format!("gradient of {what}"), seed, &joined(&parts), &gradient[0].1);
        // Each part also agrees with the host's.
        let mut before = random.tensor(&table);
        before.1[1] = 5.0;
        let of = Summing::SquaredError;
        compare(seed, &Kernel::Sums { of }, &pairs[0], std::slice::from_ref(&table), 1e-12);
        compare(seed, &Kernel::FromSums { of }, &[before], writes, 1e-6);
        let reads = [&[dloss][..], &pairs[0], &[sums]].concat();
        compare(seed, &kernel, &reads, std::slice::from_ref(&pairs[0][0].0), 1e-6);
    }
}

#[test]
fn sums_of_rows_in_parts_have_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    let cuts = [(300, 700, vec![0, 32, 160, 300]), (500, 100, vec![0, 128, 384, 500]), (2000, 40, vec![0, 256, 2000])];
    for (seed, (rows, length, lines)) in (500..).zip(cuts) {
        let mut random = Random::new(seed);
        let x = random.tensor(&packed(DataType::Float32, &[rows, length]));
        let y = packed(DataType::Float32, &[length]);
        let writes = std::slice::from_ref(&y);
        let kernel = Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0] };
        let whole = apply(machine, &kernel, std::slice::from_ref(&x), writes);
        compare(seed, &kernel, std::slice::from_ref(&x), writes, 1e-6);
        let of = Summing::Rows { axes: 1 };
        let (lines, nodes) = nodes(of, std::slice::from_ref(&x), 0, &lines);
        let table = packed(DataType::Float64, &[2, length]);
        let reads: Vec<_> = parts(&x, 0, &lines).into_iter().map(|part| vec![part]).collect();
        let (sums, results) = from_parts(machine, of, (&reads, &nodes), &table, &[], writes);
        same(&format!("{rows} rows of {length} cut at {lines:?}"), seed, &results[0].1, &whole[0].1);
        compare(seed, &Kernel::FromSums { of }, &[sums], writes, 1e-6);
    }
}

/// Rows, their length, and lines at multiples of `forebay_base::kernel::reduction_block_rows`.
#[test]
fn layer_normalization_in_parts_has_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    let cuts = [(300, 700, vec![0, 32, 160, 300]), (500, 100, vec![0, 128, 384, 500]), (2000, 20, vec![0, 512, 2000])];
    for (seed, (rows, length, lines)) in (400..).zip(cuts) {
        let mut random = Random::new(seed);
        let desc = packed(DataType::Float32, &[rows, length]);
        let (of_row, of_place) = (packed(DataType::Float32, &[rows]), packed(DataType::Float32, &[length]));
        let (dy, x, scale) = (random.tensor(&desc), random.tensor(&desc), random.tensor(&of_place));
        let (mean, inverse) = (random.tensor(&of_row), variances(&mut random, &of_row));
        let kernel = Kernel::LayerNormalizationGradient { axis: 1 };
        let reads = [dy.clone(), x.clone(), scale.clone(), mean.clone(), inverse.clone()];
        let per_place = [of_place.clone(), of_place];
        let whole = apply(machine, &kernel, &reads, &[&[desc.clone()][..], &per_place].concat());
        let of = Summing::LayerGradient { axis: 1 };
        let (lines, nodes) = nodes(of, &[dy.clone(), x.clone(), mean.clone(), inverse.clone()], 0, &lines);
        let cut: Vec<Vec<Tensor>> = [&dy, &x, &mean, &inverse].map(|tensor| parts(tensor, 0, &lines)).into();
        let part = |i: usize| [&cut[0][i], &cut[1][i], &scale, &cut[2][i], &cut[3][i]].map(Clone::clone).to_vec();
        let all: Vec<Vec<Tensor>> = (0..lines.len() - 1).map(part).collect();
        let without_scale = |part: &Vec<Tensor>| [&part[..2], &part[3..]].concat();
        let summed: Vec<Vec<Tensor>> = all.iter().map(without_scale).collect();
        let table = packed(DataType::Float64, &[2, length]);
        let (_, results) = from_parts(machine, of, (&summed, &nodes), &table, &[], &per_place);
        let what = format!("{desc} cut at {lines:?}");
        same(&format!("dscale of {what}"), seed, &results[0].1, &whole[1].1);
        same(&format!("dbias of {what}"), seed, &results[1].1, &whole[2].1);
        let slopes = |reads: &Vec<Tensor>| apply(machine, &kernel, reads, std::slice::from_ref(&reads[0].0)).remove(0);
        let parts: Vec<Tensor> = all.iter().map(slopes).collect();
        same(&format!("dx of {what}"), seed, &joined(&parts), &whole[0].1);
        // Each part also agrees with the host's.
        let before = random.tensor(&table);
        let tolerance = 1e-6 * (rows as f64).sqrt();
        compare(seed, &Kernel::Sums { of }, &summed[0], std::slice::from_ref(&table), tolerance);
        let reads = [before.clone(), random.tensor(&table)];
        compare(seed, &Kernel::AddSums { of }, &reads, std::slice::from_ref(&table), 1e-6);
        compare(seed, &Kernel::FromSums { of }, &[before], &per_place, 1e-6);
        compare(seed, &kernel, &all[0], std::slice::from_ref(&all[0][0].0), tolerance);
    }
}

#[test]
fn batch_normalization_in_parts_has_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    for (seed, (desc, axis, cuts)) in (0..).zip(cuts()) {
        let activation = if seed % 2 == 0 { Activation::Relu } else { Activation::None };
        let epsilon = EPSILON;
        let mut random = Random::new(seed);
        let channels = desc.sizes()[1];
        let group_size = if seed % 3 == 0 { channels } else { 1 };
        let channel = packed(DataType::Float32, &[channels]);
        let (x, dy) = (random.tensor(&desc), random.tensor(&desc));
        let (scale, bias) = (random.tensor(&channel), random.tensor(&channel));
        let per_channel = [channel.clone(), channel.clone()];
        let all = [desc.clone(), channel.clone(), channel.clone()];
        let kernel = Kernel::BatchNormalizationTraining { epsilon, activation, group_size };
        let forward = apply(machine, &kernel, &[x.clone(), scale.clone(), bias.clone()], &all);
        let parameters = [scale, bias, forward[1].clone(), forward[2].clone()];
        let with_parameters =
            |first: &[&Tensor]| -> Vec<Tensor> { first.iter().copied().chain(&parameters).cloned().collect() };
        let kernel = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
        let gradient = apply(machine, &kernel, &with_parameters(&[&dy, &x]), &all);
        for lines in cuts {
            let what = format!("{desc} cut at {lines:?}");
            let (lines, nodes) = nodes(Summing::BatchStatistics { group_size }, std::slice::from_ref(&x), axis, &lines);
            let (x_parts, dy_parts) = (parts(&x, axis, &lines), parts(&dy, axis, &lines));
            let reads: Vec<_> = x_parts.iter().map(|part| vec![part.clone()]).collect();
            let table = |of: Summing| packed(DataType::Float64, &[of.rows(), channels]);
            let of = Summing::BatchStatistics { group_size };
            let (_, statistics) = from_parts(machine, of, (&reads, &nodes), &table(of), &[], &per_channel);
            same(&format!("mean of {what}"), seed, &statistics[0].1, &forward[1].1);
            same(&format!("variance of {what}"), seed, &statistics[1].1, &forward[2].1);
            let kernel = Kernel::BatchNormalization { epsilon, activation };
            let normalized = |part: &Tensor| {
                apply(machine, &kernel, &with_parameters(&[part]), std::slice::from_ref(&part.0)).remove(0)
            };
            let y: Vec<Tensor> = x_parts.iter().map(normalized).collect();
            same(&format!("y of {what}"), seed, &joined(&y), &forward[0].1);

            let of = Summing::BatchGradient { epsilon, activation };
            let pairs: Vec<_> = dy_parts.iter().zip(&x_parts).map(|(dy, x)| with_parameters(&[dy, x])).collect();
            let variance = &parameters[3..];
            let (sums, results) = from_parts(machine, of, (&pairs, &nodes), &table(of), variance, &per_channel);
            same(&format!("dscale of {what}"), seed, &results[0].1, &gradient[1].1);
            same(&format!("dbias of {what}"), seed, &results[1].1, &gradient[2].1);
            let kernel = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
            let slopes = |reads: &Vec<Tensor>| {
                let reads: Vec<Tensor> = reads.iter().cloned().chain([sums.clone()]).collect();
                apply(machine, &kernel, &reads, std::slice::from_ref(&reads[0].0)).remove(0)
            };
            let dx: Vec<Tensor> = pairs.iter().map(slopes).collect();
            same(&format!("dx of {what}"), seed, &joined(&dx), &gradient[0].1);
        }
    }
}

#[test]
fn channel_sums_in_parts_have_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    for (seed, (desc, axis, cuts)) in (100..).zip(cuts()) {
        let x = Random::new(seed).tensor(&desc);
        let channel = packed(DataType::Float32, &[desc.sizes()[1]]);
        let axes = (0..desc.sizes().len()).filter(|&axis| axis != 1).collect();
        let kernel = Kernel::Reduce { op: ReduceOp::Sum, axes };
        let writes = std::slice::from_ref(&channel);
        let whole = apply(machine, &kernel, std::slice::from_ref(&x), writes);
        for lines in cuts {
            let (lines, nodes) = nodes(Summing::Channels, std::slice::from_ref(&x), axis, &lines);
            let reads: Vec<_> = parts(&x, axis, &lines).into_iter().map(|part| vec![part]).collect();
            let table = packed(DataType::Float64, &[1, desc.sizes()[1]]);
            let (_, sums) = from_parts(machine, Summing::Channels, (&reads, &nodes), &table, &[], writes);
            same(&format!("{desc} cut at {lines:?}"), seed, &sums[0].1, &whole[0].1);
        }
    }
}

/// Logits, the class axis, the axis that is cut, and lines.
fn logits_cuts() -> Vec<(TensorDesc, usize, usize, Vec<u64>)> {
    let data_type = DataType::Float32;
    vec![
        (packed(data_type, &[5000, 3]), 1, 0, vec![0, 2048, 5000]),
        (packed(data_type, &[4200, 40]), 1, 0, vec![0, 4096, 4200]),
        (packed(data_type, &[800, 3000]), 1, 0, vec![0, 256, 512, 800]),
        (packed(data_type, &[70, 3, 8, 8]), 1, 0, vec![0, 32, 64, 70]),
        (packed(data_type, &[4, 33, 30, 90]), 1, 0, vec![0, 1, 4]),
        (packed(data_type, &[40, 60, 5]), 2, 0, vec![0, 32, 40]),
        (row_by_row(data_type, &[1, 3, 100, 700]), 1, 2, vec![0, 2, 10, 100]),
        (row_by_row(data_type, &[1, 36, 7, 2500]), 1, 2, vec![0, 1, 6, 7]),
    ]
}

#[test]
fn cross_entropy_in_parts_has_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    for (seed, (desc, class_axis, axis, lines)) in (200..).zip(logits_cuts()) {
        for ignore_index in [None, Some(2)] {
            let mut random = Random::new(seed);
            let (scalar, logits) = (packed(DataType::Float32, &[1]), random.tensor(&desc));
            let mut sizes = desc.sizes().to_vec();
            let classes = sizes.remove(class_axis);
            let labels = random.integers(&packed(DataType::Int64, &sizes), 0, classes as i64 - 1);
            let dloss = (scalar.clone(), vec![1.5]);
            let writes = std::slice::from_ref(&scalar);
            let kernel = Kernel::SoftmaxCrossEntropy { axis: class_axis, ignore_index };
            let loss = apply(machine, &kernel, &[logits.clone(), labels.clone()], writes);
            let kernel = Kernel::SoftmaxCrossEntropyGradient { axis: class_axis, ignore_index };
            let reads = [dloss.clone(), logits.clone(), labels.clone()];
            let gradient = apply(machine, &kernel, &reads, std::slice::from_ref(&desc));

            let of = Summing::CrossEntropy { axis: class_axis, ignore_index };
            let (lines, nodes) = nodes(of, &[logits.clone(), labels.clone()], axis, &lines);
            let label_axis = if axis > class_axis { axis - 1 } else { axis };
            let both = parts(&logits, axis, &lines).into_iter().zip(parts(&labels, label_axis, &lines));
            let pairs: Vec<_> = both.map(|(logits, labels)| vec![logits, labels]).collect();
            let table = packed(DataType::Float64, &[2, 1]);
            let (sums, results) = from_parts(machine, of, (&pairs, &nodes), &table, &[], writes);
            let what = format!("{desc} cut at {lines:?}");
            same(&format!("loss of {what}"), seed, &results[0].1, &loss[0].1);
            let slopes = |pair: &Vec<Tensor>| {
                let reads = [dloss.clone(), pair[0].clone(), pair[1].clone(), sums.clone()];
                apply(machine, &kernel, &reads, std::slice::from_ref(&pair[0].0)).remove(0)
            };
            let parts: Vec<Tensor> = pairs.iter().map(slopes).collect();
            same(&format!("gradient of {what}"), seed, &joined(&parts), &gradient[0].1);
        }
    }
}
