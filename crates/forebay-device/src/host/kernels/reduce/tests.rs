//! Reductions and softmax compared with naive models in double precision.

use forebay_base::kernel::{ReduceOp, Summing};
use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, assert_close, desc, run};

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

fn naive(op: ReduceOp, values: &[f64]) -> f64 {
    match op {
        ReduceOp::Sum => values.iter().sum(),
        ReduceOp::Mean => values.iter().sum::<f64>() / values.len() as f64,
        ReduceOp::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceOp::Product => values.iter().product(),
        ReduceOp::L1 => values.iter().map(|x| x.abs()).sum(),
        ReduceOp::L2 => values.iter().map(|x| x * x).sum::<f64>().sqrt(),
        ReduceOp::SumSquare => values.iter().map(|x| x * x).sum(),
    }
}

/// The elements of x by output, in row-major order.
fn groups(x: &Tensor, axes: &[usize]) -> Vec<Vec<f64>> {
    let sizes = x.desc.sizes();
    let outputs: u64 = (0..sizes.len()).filter(|axis| !axes.contains(axis)).map(|axis| sizes[axis]).product();
    let mut groups = vec![Vec::new(); outputs as usize];
    for (element, value) in x.values().into_iter().enumerate() {
        let (mut rest, mut output, mut factor) = (element as u64, 0, 1);
        for axis in (0..sizes.len()).rev() {
            let index = rest % sizes[axis];
            rest /= sizes[axis];
            if !axes.contains(&axis) {
                output += index * factor;
                factor *= sizes[axis];
            }
        }
        groups[output as usize].push(value);
    }
    groups
}

fn check(op: ReduceOp, axes: &[usize], x: &Tensor, tolerance: f64) {
    let data_type = x.desc.data_type();
    let sizes: Vec<u64> =
        (0..x.desc.sizes().len()).map(|axis| if axes.contains(&axis) { 1 } else { x.desc.sizes()[axis] }).collect();
    let y = run(&Kernel::Reduce { op, axes: axes.to_vec() }, &[x], &[desc(data_type, &sizes)]);
    let expected: Vec<f64> = groups(x, axes)
        .iter()
        .map(|group| if data_type.is_float() { naive(op, group) } else { naive(op, group).trunc() })
        .collect();
    assert_close(&y[0].values(), &expected, tolerance, &format!("{op:?} {} along {axes:?}", x.desc));
}

#[test]
fn reductions_along_any_axes() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(5, 6);
        let axes: Vec<usize> = (0..sizes.len()).filter(|_| random.below(2) == 0).collect();
        let count = sizes.iter().product::<u64>() as usize;
        for data_type in [DataType::Float32, DataType::Float64, DataType::Int64, DataType::Int32] {
            let scale = if data_type.is_float() { 1.0 } else { 3.0 };
            let values: Vec<f64> = random.values(count).iter().map(|x| x * scale).collect();
            let x = Tensor::new(&desc(data_type, &sizes), &values);
            for op in OPS {
                if op != ReduceOp::Product || data_type.is_float() {
                    check(op, &axes, &x, 3e-7);
                }
            }
        }
    }
}

#[test]
fn large_reductions_in_several_chunks() {
    let mut random = Random::new(8);
    let x = Tensor::new(&desc(DataType::Float32, &[5, 3, 7001]), &random.values(5 * 3 * 7001));
    for axes in [&[2][..], &[0], &[0, 2], &[0, 1, 2], &[1], &[0, 1]] {
        check(ReduceOp::Mean, axes, &x, 2e-7);
        check(ReduceOp::Max, axes, &x, 0.0);
    }
    let x = Tensor::new(&desc(DataType::Float32, &[20011, 6]), &random.values(20011 * 6));
    check(ReduceOp::Sum, &[0], &x, 2e-7);
    check(ReduceOp::Min, &[1], &x, 0.0);
}

/// Threads divide the places of long rows, and the rows of short ones; the bits are those of each place.
#[test]
fn sums_of_long_rows_have_the_bits_of_short_ones() {
    let (rows, length, short) = (34, 70_000, 50_000);
    let values = Random::new(9).values(rows * length);
    let sums = |places: std::ops::Range<usize>| {
        let of_row = |row: usize| &values[row * length + places.start..row * length + places.end];
        let part: Vec<f64> = (0..rows).flat_map(of_row).copied().collect();
        let x = Tensor::new(&desc(DataType::Float32, &[rows as u64, places.len() as u64]), &part);
        let of_sums = Kernel::Sums { of: Summing::Rows { axes: 1 } };
        let table = run(&of_sums, &[&x], &[desc(DataType::Float64, &[2, places.len() as u64])]).remove(0);
        let y = [desc(DataType::Float32, &[places.len() as u64])];
        let whole = run(&Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[&x], &y).remove(0).values();
        assert_eq!(run(&Kernel::FromSums { of: Summing::Rows { axes: 1 } }, &[&table], &y)[0].values(), whole);
        whole
    };
    let (long, first) = (sums(0..length), sums(0..short));
    assert!(long[..short] == first && long[short..] == sums(short..length));
}

#[test]
fn extremes_of_numbers_that_are_none_are_none() {
    let x = Tensor::new(&desc(DataType::Float32, &[3, 3]), &[1.0, f64::NAN, 2.0, 1.0, 5.0, 3.0, f64::NAN, 1.0, 1.0]);
    for axis in [0, 1] {
        let y = run(&Kernel::Reduce { op: ReduceOp::Max, axes: vec![axis] }, &[&x], &[desc(DataType::Float32, &[3])]);
        let nan: Vec<bool> = y[0].values().iter().map(|x| x.is_nan()).collect();
        assert_eq!(nan, if axis == 0 { [true, true, false] } else { [true, false, true] });
    }
}

/// (softmax, logarithm) of every column, laid out like x.
fn naive_softmax(x: &Tensor, axis: usize) -> (Vec<f64>, Vec<f64>) {
    let values = x.values();
    let sums = column_sums(x, axis, &values.iter().map(|x| x.exp()).collect::<Vec<_>>());
    let softmax = values.iter().zip(&sums).map(|(x, sum)| x.exp() / sum).collect();
    (softmax, values.iter().zip(&sums).map(|(x, sum)| x - sum.ln()).collect())
}

/// For every element, the sum of `values` over its column.
fn column_sums(x: &Tensor, axis: usize, values: &[f64]) -> Vec<f64> {
    let sizes = x.desc.sizes();
    let inner = sizes[axis + 1..].iter().product::<u64>() as usize;
    let size = sizes[axis] as usize;
    (0..values.len())
        .map(|i| {
            let first = i / (size * inner) * size * inner + i % inner;
            (0..size).map(|k| values[first + k * inner]).sum()
        })
        .collect()
}

#[test]
fn softmax_and_gradients_along_any_axis() {
    let shapes: [(&[u64], usize); 7] = [
        (&[5], 0),
        (&[3, 300], 1),
        (&[300, 3], 0),
        (&[2, 3, 700], 1),
        (&[4, 1, 9], 1),
        (&[40, 17, 33], 2),
        (&[2, 40, 513], 1),
    ];
    let mut random = Random::new(6);
    for (sizes, axis) in shapes {
        for (data_type, tolerance) in [(DataType::Float32, 4e-7), (DataType::Float64, 1e-14)] {
            let shape = desc(data_type, sizes);
            let count = shape.element_count() as usize;
            let x = Tensor::new(&shape, &random.values(count).iter().map(|x| x * 4.0).collect::<Vec<_>>());
            let dy = Tensor::new(&shape, &random.values(count));
            let (softmax, logarithm) = naive_softmax(&x, axis);
            let what = format!("{shape} along {axis}");
            let y = &run(&Kernel::Softmax { axis }, &[&x], std::slice::from_ref(&shape))[0];
            assert_close(&y.values(), &softmax, tolerance, &what);
            let log_y = &run(&Kernel::LogSoftmax { axis }, &[&x], std::slice::from_ref(&shape))[0];
            assert_close(&log_y.values(), &logarithm, tolerance, &what);

            let products: Vec<f64> = dy.values().iter().zip(&softmax).map(|(dy, y)| dy * y).collect();
            let sums = column_sums(&x, axis, &products);
            let expected: Vec<f64> = (0..count).map(|i| softmax[i] * (dy.values()[i] - sums[i])).take(200).collect();
            let dx = run(&Kernel::SoftmaxGradient { axis }, &[&dy, y], std::slice::from_ref(&shape));
            assert_close(&dx[0].values()[..expected.len()], &expected, 4.0 * tolerance, &what);

            let dy_values = dy.values();
            let sums = column_sums(&x, axis, &dy_values);
            let expected: Vec<f64> = (0..count).map(|i| dy_values[i] - softmax[i] * sums[i]).collect();
            let dx = run(&Kernel::LogSoftmaxGradient { axis }, &[&dy, log_y], std::slice::from_ref(&shape));
            assert_close(&dx[0].values(), &expected, 10.0 * tolerance, &what);
        }
    }
}

#[test]
fn masked_elements_become_zero_and_masked_rows_not_a_number() {
    let infinity = f64::NEG_INFINITY;
    for sizes in [[2, 3, 1], [1, 2, 3]] {
        let shape = desc(DataType::Float32, &sizes);
        let rows = Tensor::new(&shape, &[1.0, infinity, 1.0, infinity, infinity, infinity]);
        let columns = Tensor::new(&shape, &[1.0, infinity, 3.0, 1.0, infinity, infinity]);
        let (x, expected) = if sizes[0] == 2 {
            (rows, [0.5, 0.0, 0.5, f64::NAN, f64::NAN, f64::NAN])
        } else {
            (columns, [0.5, f64::NAN, 1.0, 0.5, f64::NAN, 0.0])
        };
        let y = run(&Kernel::Softmax { axis: 1 }, &[&x], &[shape]);
        assert_close(&y[0].values(), &expected, 0.0, "masked");
    }
}
