//! Kernels that move elements.

use forebay_base::kernel::PadMode;
use forebay_base::{DataType, Kernel};

use crate::compare::{Random, RandomTensors, compare, packed, strided};
use crate::layout::{ALL, read, written};

/// Types with elements of 4, 8, 2 and 1 bytes.
const TYPES: [DataType; 5] = [DataType::Float32, DataType::Float64, DataType::Float16, DataType::Int8, DataType::Int64];

#[test]
fn copies_agree_between_any_layouts() {
    for (seed, data_type) in (0..).zip(ALL.into_iter().cycle().take(65)) {
        let mut random = Random::new(seed);
        let sizes = random.sizes(5, 7);
        let mut x = read(&mut random, data_type, &sizes);
        if x.sizes() != sizes {
            x = written(&mut random, data_type, &sizes);
        }
        let y = written(&mut random, data_type, &sizes);
        compare(seed, &Kernel::Copy, &[random.tensor(&x)], &[y], 0.0);
    }
}

#[test]
fn large_copies_and_transposes_agree() {
    for (seed, data_type) in (100..).zip(TYPES) {
        let mut random = Random::new(seed);
        let y = packed(data_type, &[3, 130, 70]);
        for strides in [[9100, 70, 1], [9100, 1, 130], [1, 3, 390], [0, 1, 130], [0, 1, 0]] {
            let x = strided(data_type, &[3, 130, 70], &strides);
            compare(seed, &Kernel::Copy, &[random.tensor(&x)], std::slice::from_ref(&y), 0.0);
        }
    }
}

#[test]
fn elements_between_others_are_written_alone() {
    for (seed, data_type) in (150..).zip(TYPES) {
        let mut random = Random::new(seed);
        let x = packed(data_type, &[13, 5]);
        let y = strided(data_type, &[13, 5], &[15, 3]);
        compare(seed, &Kernel::Copy, &[random.tensor(&x)], &[y], 0.0);
    }
}

#[test]
fn slices_and_their_gradients_agree() {
    for seed in 0..60 {
        let mut random = Random::new(200 + seed);
        let whole = random.sizes(4, 9);
        let data_type = TYPES[random.below(5) as usize];
        let (mut starts, mut steps, mut sizes) = (vec![], vec![], vec![]);
        for &size in &whole {
            let start = random.below(size);
            let step = 1 + random.below(3);
            let backward = random.below(2) == 0;
            let room = if backward { start } else { size - 1 - start };
            starts.push(start);
            steps.push(if backward { -(step as i64) } else { step as i64 });
            sizes.push(1 + random.below(room / step + 1));
        }
        let (whole, part) = (packed(data_type, &whole), packed(data_type, &sizes));
        let kernel = Kernel::Slice { starts: starts.clone(), steps: steps.clone() };
        compare(seed, &kernel, &[random.tensor(&whole)], &[written(&mut random, data_type, &sizes)], 0.0);
        compare(seed, &Kernel::SliceGradient { starts, steps }, &[random.tensor(&part)], &[whole], 0.0);
    }
}

#[test]
fn padding_agrees_in_every_mode() {
    for seed in 0..60 {
        let mut random = Random::new(300 + seed);
        let x_sizes = random.sizes(4, 6);
        let data_type = TYPES[random.below(5) as usize];
        let begins: Vec<u64> = x_sizes.iter().map(|_| random.below(9)).collect();
        let y_sizes: Vec<u64> = (0..x_sizes.len()).map(|d| begins[d] + x_sizes[d] + random.below(4)).collect();
        let x = random.tensor(&packed(data_type, &x_sizes));
        for mode in [PadMode::Constant(7.0), PadMode::Reflect, PadMode::Edge] {
            let kernel = Kernel::Pad { begins: begins.clone(), mode };
            compare(seed, &kernel, std::slice::from_ref(&x), &[packed(data_type, &y_sizes)], 0.0);
        }
    }
}

#[test]
fn gathers_and_their_gradients_agree() {
    for seed in 0..60 {
        let mut random = Random::new(400 + seed);
        let sizes = random.sizes(4, 6);
        let axis = random.below(sizes.len() as u64) as usize;
        let size = sizes[axis] as i64;
        let index_type = [DataType::Int64, DataType::Int32][random.below(2) as usize];
        let index_sizes = random.sizes(2, 5);
        // Some indices are out of range.
        let indices = random.integers(&packed(index_type, &index_sizes), -size - 1, size);
        let y_sizes = [&sizes[..axis], &index_sizes, &sizes[axis + 1..]].concat();
        let data_type = TYPES[random.below(5) as usize];
        let data = random.tensor(&packed(data_type, &sizes));
        compare(seed, &Kernel::Gather { axis }, &[data, indices.clone()], &[packed(data_type, &y_sizes)], 0.0);
        let dy = random.tensor(&packed(DataType::Float32, &y_sizes));
        compare(seed, &Kernel::GatherGradient { axis }, &[dy, indices], &[packed(DataType::Float32, &sizes)], 0.0);
    }
}

#[test]
fn embeddings_agree() {
    for (seed, (size, count, columns)) in (500..).zip([(40, 300, 150), (700, 1000, 3), (5, 2000, 1), (3, 10, 3000)]) {
        let mut random = Random::new(seed);
        let indices = random.integers(&packed(DataType::Int64, &[count]), -(size as i64), size as i64 - 1);
        let (table, rows) = (packed(DataType::Float32, &[size, columns]), packed(DataType::Float32, &[count, columns]));
        let data = random.tensor(&table);
        compare(seed, &Kernel::Gather { axis: 0 }, &[data, indices.clone()], std::slice::from_ref(&rows), 0.0);
        compare(seed, &Kernel::GatherGradient { axis: 0 }, &[random.tensor(&rows), indices], &[table], 0.0);
    }
}
