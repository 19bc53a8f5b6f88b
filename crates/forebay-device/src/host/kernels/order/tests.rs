//! Orders compared with sorted lists.

use std::cmp::Ordering;

use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, desc, refusal, run};
use super::workspace_bytes;

/// Elements of one row in the requested order, by comparing them as numbers.
fn ordered(row: &[f64], largest: bool, nan_first: bool, last: bool) -> Vec<usize> {
    let compare = |a: usize, b: usize| {
        let by_value = match (row[a].is_nan(), row[b].is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) if nan_first => Ordering::Less,
            (true, false) => Ordering::Greater,
            (false, true) if nan_first => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ if largest => row[b].partial_cmp(&row[a]).unwrap(),
            _ => row[a].partial_cmp(&row[b]).unwrap(),
        };
        by_value.then(if last { b.cmp(&a) } else { a.cmp(&b) })
    };
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| compare(a, b));
    order
}

#[test]
fn the_first_elements_of_every_type_are_found() {
    for (seed, data_type) in (0..).zip(DataType::NOT_NARROW.into_iter().cycle().take(13 * 12)) {
        let mut random = Random::new(seed);
        let [outer, size, inner] = [1 + random.below(3), 1 + random.below(40), 1 + random.below(3)];
        let k = if random.below(3) == 0 { 1 } else { 1 + random.below(size) };
        let [largest, nan_first, last] = [0, 1, 2].map(|_| random.below(2) == 0);
        // A small set of numbers, so that some are equal; it includes both zeros and NaN.
        let number = |random: &mut Random| match (random.below(9), data_type) {
            (value, DataType::Bool) => (value % 2) as f64,
            (0, float) if float.is_float() => f64::NAN,
            (1, float) if float.is_float() => -0.0,
            (2, float) if float.is_float() => f64::INFINITY,
            (3, float) if float.is_float() => -1.5,
            (value, DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64) => value as f64,
            (value, _) => value as f64 - 4.0,
        };
        let values: Vec<f64> = (0..outer * size * inner).map(|_| number(&mut random)).collect();
        let x = Tensor::new(&desc(data_type, &[outer, size, inner]), &values);
        let kernel = Kernel::TopK { axis: 1, largest, nan_first, last };
        let y = run(&kernel, &[&x], &[desc(DataType::Int64, &[outer, k, inner])]);
        let mut expected = vec![0.0; (outer * k * inner) as usize];
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let row: Vec<f64> = (0..size).map(|at| values[((o * size + at) * inner + i) as usize]).collect();
            for (place, index) in ordered(&row, largest, nan_first, last).into_iter().take(k as usize).enumerate() {
                expected[((o * k + place as u64) * inner + i) as usize] = index as f64;
            }
        }
        assert_eq!(y[0].values(), expected, "seed {seed}: {kernel} of {}", x.desc);
    }
}

/// Rows of which a list holds only a part at a time; lists in the buffers of threads and in the workspace.
#[test]
fn long_rows_are_put_in_order() {
    let mut random = Random::new(1);
    for (data_type, size, k, needs_workspace) in [
        (DataType::Float32, 40_000, 2, false),
        (DataType::Float32, 40_000, 9_000, false),
        (DataType::Int16, 40_000, 30_000, false),
        (DataType::Float32, 270_000, 270_000, true),
        (DataType::Float64, 150_000, 70_000, true),
    ] {
        let (x, y) = (desc(data_type, &[size, 2]), desc(DataType::Int64, &[k, 2]));
        let kernel = Kernel::TopK { axis: 0, largest: true, nan_first: true, last: k == 2 };
        let workspace_bytes = workspace_bytes(&kernel, std::slice::from_ref(&x), std::slice::from_ref(&y)).unwrap();
        assert_eq!(workspace_bytes > 0, needs_workspace, "{k} of {size}");
        let values: Vec<f64> = (0..2 * size).map(|_| random.below(1000) as f64).collect();
        let found = run(&kernel, &[&Tensor::new(&x, &values)], &[y]).remove(0).values();
        for column in 0..2 {
            let row: Vec<f64> = values.iter().skip(column).step_by(2).copied().collect();
            let expected = ordered(&row, true, true, k == 2).into_iter().take(k as usize).map(|index| index as f64);
            assert!(found.iter().skip(column).step_by(2).copied().eq(expected), "{k} of {size} {data_type}");
        }
    }
}

#[test]
fn more_elements_than_there_are_is_an_error() {
    let x = Tensor::new(&desc(DataType::Float32, &[2, 3]), &[0.0; 6]);
    let kernel = Kernel::TopK { axis: 1, largest: true, nan_first: true, last: false };
    assert!(refusal(&kernel, &[&x], &[desc(DataType::Int64, &[2, 4])]).contains("does not result in"));
}
