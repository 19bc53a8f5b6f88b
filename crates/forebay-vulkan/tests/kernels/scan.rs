//! Orders, scans, scatters, and places of largest elements.

use forebay_base::kernel::{ScanOp, ScatterOp};
use forebay_base::{DataType, Kernel};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed};
use crate::spatial::sliding;

#[test]
fn orders_of_every_type_agree() {
    for (seed, data_type) in (0..).zip(DataType::NOT_NARROW.into_iter().cycle().take(39)) {
        let mut random = Random::new(seed);
        // Rows that belong to a single invocation, and rows that belong to a workgroup.
        let size = if seed % 3 == 0 { 129 + random.below(400) } else { 1 + random.below(40) };
        let k = 1 + random.below(size.min(20));
        orders_agree(seed, &mut random, data_type, size, k);
    }
}

#[test]
fn orders_of_many_elements_agree() {
    let types = [DataType::Float32, DataType::Int64, DataType::UInt8].into_iter().cycle();
    // Rows that are sorted as one block, as an incomplete one, and by merges of several blocks.
    for ((seed, size), data_type) in (0..).zip([1024, 129, 1025, 2048, 2500, 5000]).zip(types) {
        let mut random = Random::new(100 + seed);
        let k = if seed % 2 == 0 { size } else { 17 + random.below(size - 16) };
        orders_agree(seed, &mut random, data_type, size, k);
    }
}

/// Checks the order of the first k elements of rows, many of which are equal.
fn orders_agree(seed: u64, random: &mut Random, data_type: DataType, size: u64, k: u64) {
    let [outer, inner] = [1 + random.below(3), 1 + random.below(3)];
    let [largest, nan_first, last] = [0, 1, 2].map(|_| random.below(2) == 0);
    let desc = packed(data_type, &[outer, size, inner]);
    let (low, high) = match data_type {
        DataType::Bool => (0, 1),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => (0, 20),
        _ => (-9, 9),
    };
    let (desc, mut values) = random.integers(&desc, low, high);
    if data_type.is_float() {
        for (i, value) in values.iter_mut().enumerate() {
            *value = [*value, -0.0, f64::NAN, *value * 0.5, f64::NEG_INFINITY][i * 7 % 5];
        }
    }
    let kernel = Kernel::TopK { axis: 1, largest, nan_first, last };
    compare(seed, &kernel, &[(desc, values)], &[packed(DataType::Int64, &[outer, k, inner])], 0.0);
}

#[test]
fn scans_agree() {
    for seed in 0..48 {
        let mut random = Random::new(seed);
        let op = [ScanOp::Sum, ScanOp::Product, ScanOp::Recurrence][seed as usize % 3];
        let data_type =
            [DataType::Float32, DataType::Int64, DataType::Int32, DataType::UInt64][random.below(4) as usize];
        let sizes = random.sizes(3, 30);
        let axis = random.below(sizes.len() as u64) as usize;
        let [exclusive, reverse] = [0, 1].map(|_| random.below(2) == 0);
        let desc = packed(data_type, &sizes);
        let low = if data_type == DataType::UInt64 { 0 } else { -3 };
        let mut operand = || if data_type.is_float() { random.tensor(&desc) } else { random.integers(&desc, low, 3) };
        let reads: Vec<Tensor> = (0..if op == ScanOp::Recurrence { 2 } else { 1 }).map(|_| operand()).collect();
        compare(seed, &Kernel::Scan { axis, op, exclusive, reverse }, &reads, std::slice::from_ref(&desc), 0.0);
    }
}

#[test]
fn scatters_agree() {
    const OPS: [ScatterOp; 5] =
        [ScatterOp::Replace, ScatterOp::Add, ScatterOp::Multiply, ScatterOp::Minimum, ScatterOp::Maximum];
    for seed in 0..60 {
        let mut random = Random::new(600 + seed);
        let op = OPS[seed as usize % 5];
        let sizes = if seed % 10 < 5 { vec![1 + random.below(5000)] } else { random.sizes(3, 40) };
        let (size, count) = (sizes[0] as i64, 1 + random.below(700));
        let index_type = [DataType::Int64, DataType::Int32][random.below(2) as usize];
        // Some indices are out of range.
        let indices = random.integers(&packed(index_type, &[count]), -size - 1, size);
        let any = [DataType::Float64, DataType::Float16, DataType::Bool, DataType::Int8, DataType::Int64];
        let computed = [DataType::Float32, DataType::Int32, DataType::UInt8, DataType::Int16];
        let data_type =
            if op == ScatterOp::Replace { any[random.below(5) as usize] } else { computed[random.below(4) as usize] };
        let data = packed(data_type, &sizes);
        let updates = packed(data_type, &[&[count], &sizes[1..]].concat());
        let reads = [random.tensor(&data), indices, random.tensor(&updates)];
        compare(seed, &Kernel::Scatter { op }, &reads, &[data], 0.0);
    }
}

#[test]
fn places_of_largest_elements_agree() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let rank = 1 + random.below(3) as usize;
        let sliding = sliding(&mut random, rank, 12, true);
        let channels = [1 + random.below(2), 1 + random.below(4)];
        let x = random.integers(&packed(DataType::Float32, &[&channels[..], &sliding.input].concat()), -3, 3);
        let y = packed(DataType::Int64, &[&channels[..], &sliding.output].concat());
        compare(seed, &Kernel::PoolIndices { window: sliding.window.clone() }, &[x], &[y], 0.0);
    }
}
