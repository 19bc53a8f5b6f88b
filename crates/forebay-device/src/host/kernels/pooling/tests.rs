use super::super::testing::{
    Random, Tensor, assert_bits_of_conversions, assert_close, desc, differences, dot, run, strided,
};
use super::*;

const OPERATIONS: [PoolOp; 3] =
    [PoolOp::Max, PoolOp::Average { count_include_pad: true }, PoolOp::Average { count_include_pad: false }];

fn window(kernel: &[u64], strides: &[u64], pads: &[u64], dilations: &[u64]) -> Window {
    Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_begin: pads.to_vec(),
        pads_end: pads.to_vec(),
    }
}

fn cases() -> Vec<(Window, Vec<u64>, Vec<u64>)> {
    vec![
        (window(&[2], &[2], &[0], &[1]), vec![2, 3, 8], vec![2, 3, 4]),
        (window(&[3, 3], &[2, 2], &[1, 1], &[1, 1]), vec![2, 2, 7, 6], vec![2, 2, 4, 3]),
        (window(&[2, 3], &[1, 2], &[0, 1], &[2, 1]), vec![1, 2, 6, 5], vec![1, 2, 4, 3]),
        (window(&[2, 2, 2], &[2, 2, 2], &[0, 0, 0], &[1, 1, 1]), vec![1, 2, 4, 6, 4], vec![1, 2, 2, 3, 2]),
    ]
}

#[test]
fn elements_of_16_bits_are_widened_and_rounded() {
    let mut random = Random::new(9);
    let more = [(window(&[2, 2], &[2, 3], &[1, 1], &[1, 1]), vec![2, 2, 9, 300], vec![2, 2, 5, 101])];
    for (window, input, output) in cases().into_iter().chain(more) {
        for (op, data_type) in OPERATIONS.into_iter().zip([DataType::Float16, DataType::BFloat16].into_iter().cycle()) {
            let mut tensor = |sizes: &[u64]| {
                Tensor::new(&desc(data_type, sizes), &random.values(sizes.iter().product::<u64>() as usize))
            };
            let (x, dy) = (tensor(&input), tensor(&output));
            let forward = Kernel::Pool { op, window: window.clone() };
            assert_bits_of_conversions(&forward, std::slice::from_ref(&x), &[desc(data_type, &output)]);
            let result = if window.overlaps() { DataType::Float32 } else { data_type };
            let backward = Kernel::PoolGradient { op, window: window.clone() };
            let reads = if op == PoolOp::Max { vec![dy, x] } else { vec![dy] };
            assert_bits_of_conversions(&backward, &reads, &[desc(result, &input)]);
        }
    }
}

/// An image whose rows lie among those of many other channels, farther apart than a thread's buffer is long.
#[test]
fn rows_of_16_bits_may_lie_far_apart() {
    let mut random = Random::new(10);
    let by_rows = |[channels, rows, columns]: [u64; 3]| {
        let strides = [0, columns, 400 * columns, 1];
        strided(DataType::BFloat16, &[1, channels, rows, columns], &strides)
    };
    let (input, output) = (by_rows([2, 9, 300]), by_rows([2, 5, 101]));
    let mut tensor = |desc: &TensorDesc| Tensor::new(desc, &random.values(desc.total_size_bytes() as usize / 2));
    let (x, dy) = (tensor(&input), tensor(&output));
    let window = window(&[2, 2], &[2, 3], &[1, 1], &[1, 1]);
    for op in OPERATIONS {
        let forward = Kernel::Pool { op, window: window.clone() };
        assert_bits_of_conversions(&forward, std::slice::from_ref(&x), std::slice::from_ref(&output));
        let backward = Kernel::PoolGradient { op, window: window.clone() };
        assert_bits_of_conversions(&backward, &[dy.clone(), x.clone()], std::slice::from_ref(&input));
    }
}

#[test]
fn gradients_match_differences() {
    let mut random = Random::new(3);
    for (window, input, output) in cases() {
        for op in OPERATIONS {
            let (x_desc, y_desc) = (desc(DataType::Float32, &input), desc(DataType::Float32, &output));
            // Values far apart, so that differences do not change which one is largest.
            let count = input.iter().product::<u64>();
            let values: Vec<f64> = (0..count).map(|i| ((i * 37) % count) as f64 / count as f64).collect();
            let weights = random.values(output.iter().product::<u64>() as usize);
            let dy = Tensor::new(&y_desc, &weights);
            let forward = |values: &[f64]| {
                let x = Tensor::new(&x_desc, values);
                let y = run(&Kernel::Pool { op, window: window.clone() }, &[&x], std::slice::from_ref(&y_desc));
                dot(&y[0].values(), &weights)
            };
            let expected = differences(&values, forward);
            let x = Tensor::new(&x_desc, &values);
            let kernel = Kernel::PoolGradient { op, window: window.clone() };
            let dx = run(&kernel, &[&dy, &x], std::slice::from_ref(&x_desc));
            assert_close(&dx[0].values(), &expected, 2e-2, &format!("{op:?} {window:?}"));
        }
    }
}

/// The gradient of ones goes to the largest elements, which shows where they are.
#[test]
fn places_are_those_that_gradients_go_to() {
    let mut random = Random::new(11);
    for (window, input, output) in cases() {
        // A small set of numbers, so that some are equal, and NaN.
        let values = |random: &mut Random| match random.below(6) {
            0 => f64::NAN,
            value => value as f64,
        };
        let x = desc(DataType::Float32, &input);
        let numbers: Vec<f64> = (0..x.element_count()).map(|_| values(&mut random)).collect();
        let x = Tensor::new(&x, &numbers);
        let places = run(&Kernel::PoolIndices { window: window.clone() }, &[&x], &[desc(DataType::Int64, &output)]);
        let dy = desc(DataType::Float32, &output);
        let dy = Tensor::new(&dy, &vec![1.0; dy.element_count() as usize]);
        let kernel = Kernel::PoolGradient { op: PoolOp::Max, window: window.clone() };
        let dx = run(&kernel, &[&dy, &x], std::slice::from_ref(&x.desc));
        let (channel, per_channel) = (input[2..].iter().product::<u64>(), output[2..].iter().product::<u64>());
        let mut counts = vec![0.0; numbers.len()];
        for (number, place) in (0..).zip(places[0].values()) {
            counts[(number / per_channel * channel) as usize + place as usize] += 1.0;
        }
        assert_eq!(dx[0].values(), counts, "{window:?}");
    }
}

/// Both directions according to the definition: one window after the other.
fn naive(op: PoolOp, sliding: &Sliding, x: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut dx) = (Vec::new(), vec![0.0; x.len()]);
    let (input, output) = (sliding.input.iter().product::<usize>(), sliding.output.iter().product::<usize>());
    for (element, &slope) in dy.iter().enumerate() {
        let (start, position) = (element / output * input, element % output);
        let [_, height, width] = sliding.output;
        let at = [position / (height * width), position / width % height, position % width];
        let (mut seen, mut padded) = (Vec::new(), 0);
        for tap in 0..sliding.kernel.iter().product() {
            let [_, height, width] = sliding.kernel;
            let tap = [tap / (height * width), tap / width % height, tap % width];
            let reach = |d: usize| at[d] * sliding.strides[d] + tap[d] * sliding.dilations[d];
            padded += usize::from((0..3).all(|d| reach(d) < sliding.padded[d]));
            let inside = |d: usize| {
                let index = reach(d).wrapping_sub(sliding.pads[d]);
                (index < sliding.input[d]).then_some(index)
            };
            if let [Some(z), Some(y), Some(x)] = [0, 1, 2].map(inside) {
                seen.push(start + (z * sliding.input[1] + y) * sliding.input[2] + x);
            }
        }
        match op {
            PoolOp::Max => {
                let first = seen.iter().copied().reduce(|a, b| if x[b] > x[a] { b } else { a }).unwrap();
                y.push(x[first]);
                dx[first] += slope;
            }
            PoolOp::Average { count_include_pad } => {
                let count = if count_include_pad { padded } else { seen.len() } as f64;
                y.push(seen.iter().map(|&i| x[i]).sum::<f64>() / count);
                seen.iter().for_each(|&i| dx[i] += slope / count);
            }
        }
    }
    (y, dx)
}

#[test]
fn random_windows_match_the_definition() {
    let mut random = Random::new(5);
    for number in 0..60 {
        let rank = 1 + random.below(3) as usize;
        let mut window = window(&[], &[], &[], &[]);
        let (mut x, mut y) = (vec![2, 1 + random.below(3)], vec![]);
        for _ in 0..rank {
            let (kernel, stride, dilation) = (1 + random.below(3), 1 + random.below(3), 1 + random.below(2));
            let (begin, end) = (random.below(kernel), random.below(kernel));
            let reach = (kernel - 1) * dilation + 1;
            let size = reach + random.below(20);
            // Sometimes as if the output size were rounded up; the last window must still begin in the input.
            let up = random.below(2) * (stride - 1);
            let last = (size + begin + end - reach + up) / stride;
            let last = if last * stride >= size + begin { last - 1 } else { last };
            window.kernel.push(kernel);
            window.strides.push(stride);
            window.dilations.push(dilation);
            window.pads_begin.push(begin.min(dilation * (kernel - 1)));
            window.pads_end.push(end);
            x.push(size);
            y.push(last + 1);
        }
        let (x_desc, y_desc) = (desc(DataType::Float32, &x), desc(DataType::Float32, &[&x[..2], &y[..]].concat()));
        // Few distinct values, so that there are ties.
        let values: Vec<f64> = (0..x_desc.element_count()).map(|_| random.below(7) as f64 - 3.0).collect();
        let slopes = random.values(y_desc.element_count() as usize);
        let (x, dy) = (Tensor::new(&x_desc, &values), Tensor::new(&y_desc, &slopes));
        let sliding = sliding(&window, &x_desc, &y_desc).unwrap();
        for op in OPERATIONS {
            let what = format!("case {number}: {op:?} {window:?} {x_desc} to {y_desc}");
            let (expected_y, expected_dx) = naive(op, &sliding, &values, &slopes);
            let kernel = Kernel::Pool { op, window: window.clone() };
            let y = run(&kernel, &[&x], std::slice::from_ref(&y_desc));
            assert_close(&y[0].values(), &expected_y, 1e-5, &what);
            let kernel = Kernel::PoolGradient { op, window: window.clone() };
            let dx = run(&kernel, &[&dy, &x], std::slice::from_ref(&x_desc));
            assert_close(&dx[0].values(), &expected_dx, 1e-5, &what);
        }
    }
}

/// Windows of 2^60 taps, with padding of half that on each side: every tap except those that see the input is skipped.
#[test]
fn windows_far_larger_than_the_input_see_all_of_it() {
    let (x_desc, y_desc) = (desc(DataType::Float32, &[1, 1, 4, 5]), desc(DataType::Float32, &[1, 1, 4, 5]));
    let mut huge = window(&[1 << 30, 1 << 30], &[1, 1], &[(1 << 29) - 1, (1 << 29) - 1], &[1, 1]);
    huge.pads_end = vec![1 << 29, 1 << 29];
    let x = Tensor::new(&x_desc, &(0..20).map(f64::from).collect::<Vec<_>>());
    let pool = |op| run(&Kernel::Pool { op, window: huge.clone() }, &[&x], std::slice::from_ref(&y_desc));
    assert_eq!(pool(PoolOp::Max)[0].values(), [19.0; 20]);
    assert_eq!(pool(PoolOp::Average { count_include_pad: false })[0].values(), [9.5; 20]);
    let dy = Tensor::new(&y_desc, &[20.0; 20]);
    let kernel = Kernel::PoolGradient { op: PoolOp::Average { count_include_pad: false }, window: huge };
    assert_eq!(run(&kernel, &[&dy, &x], &[x_desc])[0].values(), [20.0; 20]);
}

#[test]
fn a_tie_goes_to_the_first_and_nan_is_kept() {
    let x_desc = desc(DataType::Float32, &[1, 1, 4]);
    let y_desc = desc(DataType::Float32, &[1, 1, 2]);
    let window = window(&[2], &[2], &[0], &[1]);
    let dy = Tensor::new(&y_desc, &[1.0, 2.0]);
    let x = Tensor::new(&x_desc, &[5.0, 5.0, 1.0, f64::NAN]);
    let dx = run(&Kernel::PoolGradient { op: PoolOp::Max, window: window.clone() }, &[&dy, &x], &[x_desc]);
    assert_eq!(dx[0].values(), [1.0, 0.0, 0.0, 2.0]);
    let y = run(&Kernel::Pool { op: PoolOp::Max, window }, &[&x], &[y_desc]);
    assert!(y[0].values()[1].is_nan());
}
