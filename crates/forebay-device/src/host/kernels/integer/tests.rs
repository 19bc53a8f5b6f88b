//! Integer kernels next to sums of 64 bits that are cut to 32.

use forebay_base::DataType::{self, Float32, Int8, Int32, UInt8};
use forebay_base::Kernel;
use forebay_base::kernel::{Convolution, Window};

use super::super::testing::{Random, Tensor, desc, refusal, run};
use super::dots::{Engine, Rows, STRIP, add_products};

fn bytes(random: &mut Random, data_type: DataType, count: u64) -> Vec<f64> {
    let low = if data_type == Int8 { -128.0 } else { 0.0 };
    // The ends of the range, where instructions may saturate, are frequent.
    let value = |random: &mut Random| match random.below(4) {
        0 => [0.0, 255.0][random.below(2) as usize],
        _ => random.below(256) as f64,
    };
    (0..count).map(|_| low + value(random)).collect()
}

fn operand(random: &mut Random, data_type: DataType, sizes: &[u64]) -> Tensor {
    let values = bytes(random, data_type, sizes.iter().product());
    Tensor::new(&desc(data_type, sizes), &values)
}

fn byte_type(random: &mut Random) -> DataType {
    [Int8, UInt8][random.below(2) as usize]
}

/// The parameters of an 8-bit result.
struct Scaling {
    reads: [Tensor; 3],
    /// The values of the reads.
    values: [Vec<f64>; 3],
    data_type: DataType,
}

impl Scaling {
    fn new(random: &mut Random, sizes: &[u64], terms: u64) -> Scaling {
        let data_type = byte_type(random);
        let count: u64 = sizes.iter().product();
        let bias: Vec<f64> = (0..count).map(|_| random.below(20_000) as f64 - 10_000.0).collect();
        let scale: Vec<f64> = (0..count)
            .map(|_| f64::from((1 + random.below(100)) as f32 / (100.0 * 128.0 * (terms as f32).sqrt())))
            .collect();
        let zero = operand(random, data_type, &[1].repeat(sizes.len()));
        let reads = [Tensor::new(&desc(Int32, sizes), &bias), Tensor::new(&desc(Float32, sizes), &scale), zero];
        let values = [0, 1, 2].map(|i| Tensor::values(&reads[i]));
        Scaling { reads, values, data_type }
    }

    /// Converts a sum to a result, with the given element of bias and scale.
    fn number(&self, sum: f64, element: usize) -> f64 {
        let [bias, scale, zero] = &self.values;
        let sum = (sum as i32).wrapping_add(bias[element] as i32);
        let rounded = (sum as f32 * scale[element] as f32).round_ties_even();
        let (low, high) = if self.data_type == Int8 { (-128.0, 127.0) } else { (0.0, 255.0) };
        f64::from((rounded + zero[0] as f32).clamp(low, high))
    }
}

#[test]
fn products_are_exact() {
    let mut random = Random::new(11);
    for case in 0..40 {
        let transpose_b = case & 1 == 1;
        let (a_type, b_type) = (byte_type(&mut random), byte_type(&mut random));
        let [m, n] = [70, 120].map(|limit| 1 + random.below(limit));
        // More terms than a panel holds, and all remainders modulo four.
        let k = if case % 10 == 9 { 2048 + random.below(3000) } else { 1 + random.below(90) };
        let (batch, of_b) = ([1, 3][case / 2 % 2], [1, 3][case / 4 % 2].min([1, 3][case / 2 % 2]));
        let a = operand(&mut random, a_type, &[batch, m, k]);
        let b = operand(&mut random, b_type, &if transpose_b { [of_b, n, k] } else { [of_b, k, n] });
        let (a_zeros, b_zeros) = ([1, m][case / 8 % 2], [1, n][case / 16 % 2]);
        let a_zero = operand(&mut random, a_type, &[1, a_zeros, 1]);
        let b_zero = operand(&mut random, b_type, &[1, 1, b_zeros]);
        let (av, bv, az, bz) = (a.values(), b.values(), a_zero.values(), b_zero.values());
        let mut expected = Vec::new();
        for (batch, row) in (0..batch).flat_map(|batch| (0..m).map(move |row| (batch, row))) {
            for column in 0..n {
                let own = if of_b == 1 { 0 } else { batch };
                let at = |term: u64| match transpose_b {
                    true => (own * n + column) * k + term,
                    false => (own * k + term) * n + column,
                };
                let zeros = (az[(row % a_zeros) as usize], bz[(column % b_zeros) as usize]);
                let term =
                    |t: u64| (av[((batch * m + row) * k + t) as usize] - zeros.0) * (bv[at(t) as usize] - zeros.1);
                expected.push((0..k).map(term).sum::<f64>());
            }
        }
        let kernel = Kernel::IntegerProduct { transpose_b };
        let reads = [&a, &b, &a_zero, &b_zero];
        let y = run(&kernel, &reads, &[desc(Int32, &[batch, m, n])]);
        assert_eq!(y[0].values(), expected, "case {case}: {batch} {m} {n} {k}");
        let sizes = [[1, 1, n], [1, m, n], [batch, m, 1]][case % 3];
        let scaling = Scaling::new(&mut random, &sizes, k);
        let all: Vec<&Tensor> = reads.into_iter().chain(&scaling.reads).collect();
        let y = run(&kernel, &all, &[desc(scaling.data_type, &[batch, m, n])]);
        let element = |i: usize| {
            let i = i as u64;
            let index = [i / (m * n), i / n % m, i % n];
            sizes.iter().zip(index).fold(0, |at, (&size, index)| at * size + index % size) as usize
        };
        let expected: Vec<f64> = expected.iter().enumerate().map(|(i, &sum)| scaling.number(sum, element(i))).collect();
        assert_eq!(y[0].values(), expected, "case {case} of 8 bits");
    }
}

/// Computes a convolution of up to three axes from its definition.
fn convolved(convolution: &Convolution, [x, w]: [&Tensor; 2], zeros: [&[f64]; 2], y: &[u64]) -> Vec<f64> {
    let Window { strides, dilations, pads_begin, .. } = &convolution.window;
    let (xs, ws) = (x.desc.sizes(), w.desc.sizes());
    let (xv, wv) = (x.values(), w.values());
    let index = |mut at: u64, sizes: &[u64]| {
        let mut index = vec![0; sizes.len()];
        for (own, &size) in index.iter_mut().zip(sizes).rev() {
            (*own, at) = (at % size, at / size);
        }
        index
    };
    let sum = |at: u64| {
        let own = index(at, y);
        let (filter, per_group) = (own[1], y[1] / convolution.groups);
        let taps: u64 = ws[1..].iter().product();
        let term = |tap: u64| {
            let inner = index(tap, &ws[1..]);
            let channel = filter / per_group * ws[1] + inner[0];
            let mut place = own[0] * xs[1] + channel;
            for axis in 0..strides.len() {
                let at = own[axis + 2] * strides[axis] + inner[axis + 1] * dilations[axis];
                let at = at.checked_sub(pads_begin[axis]).filter(|&at| at < xs[axis + 2]);
                // Padding is the zero point.
                let Some(at) = at else { return 0.0 };
                place = place * xs[axis + 2] + at;
            }
            let zero = zeros[1][filter as usize % zeros[1].len()];
            (xv[place as usize] - zeros[0][0]) * (wv[(filter * taps + tap) as usize] - zero)
        };
        (0..taps).map(term).sum::<f64>()
    };
    (0..y.iter().product()).map(sum).collect()
}

#[test]
fn convolutions_are_exact() {
    let mut random = Random::new(12);
    for case in 0..60 {
        let axes = 1 + case % 3;
        let groups = [1, 1, 3][case / 3 % 3];
        let of_axes = |random: &mut Random, low: u64, count: u64| -> Vec<u64> {
            (0..axes).map(|_| low + random.below(count)).collect()
        };
        let window = Window {
            kernel: of_axes(&mut random, 1, 3),
            strides: of_axes(&mut random, 1, 3),
            dilations: of_axes(&mut random, 1, 2),
            pads_begin: of_axes(&mut random, 0, 3),
            pads_end: of_axes(&mut random, 0, 3),
        };
        let spatial = of_axes(&mut random, 5, if axes == 1 { 90 } else { 9 });
        let out = (0..axes).map(|d| {
            let padded = spatial[d] + window.pads_begin[d] + window.pads_end[d];
            (padded - (window.kernel[d] - 1) * window.dilations[d] - 1) / window.strides[d] + 1
        });
        let (inputs, outputs) = (1 + random.below(7), 1 + random.below(20));
        let x_sizes = [&[1 + random.below(2), inputs * groups], &spatial[..]].concat();
        let w_sizes = [&[outputs * groups, inputs], &window.kernel[..]].concat();
        let y_sizes: Vec<u64> = [x_sizes[0], w_sizes[0]].into_iter().chain(out).collect();
        let (x_type, w_type) = (byte_type(&mut random), byte_type(&mut random));
        let (x, w) = (operand(&mut random, x_type, &x_sizes), operand(&mut random, w_type, &w_sizes));
        let x_zero = operand(&mut random, x_type, &[1]);
        let w_zero = operand(&mut random, w_type, &[[1, w_sizes[0]][case / 2 % 2]]);
        let convolution = Convolution { window, groups };
        let expected = convolved(&convolution, [&x, &w], [&x_zero.values(), &w_zero.values()], &y_sizes);
        let kernel = Kernel::IntegerConvolution { convolution };
        let reads = [&x, &w, &x_zero, &w_zero];
        let y = run(&kernel, &reads, &[desc(Int32, &y_sizes)]);
        assert_eq!(y[0].values(), expected, "case {case}: {kernel} {x_sizes:?} {w_sizes:?}");
        let scaling = Scaling::new(&mut random, &[w_sizes[0]], w_sizes[1..].iter().product());
        let all: Vec<&Tensor> = reads.into_iter().chain(&scaling.reads).collect();
        let y = run(&kernel, &all, &[desc(scaling.data_type, &y_sizes)]);
        let places: u64 = y_sizes[2..].iter().product();
        let filter = |i: usize| (i as u64 / places % w_sizes[0]) as usize;
        let expected: Vec<f64> = expected.iter().enumerate().map(|(i, &sum)| scaling.number(sum, filter(i))).collect();
        assert_eq!(y[0].values(), expected, "case {case} of 8 bits");
    }
}

#[test]
fn sums_wrap_around() {
    let (k, most) = (40_000, 255.0);
    let a = Tensor::new(&desc(UInt8, &[1, k]), &vec![most; k as usize]);
    let b = Tensor::new(&desc(UInt8, &[k, 1]), &vec![most; k as usize]);
    let zero = Tensor::new(&desc(UInt8, &[1, 1]), &[0.0]);
    let kernel = Kernel::IntegerProduct { transpose_b: false };
    let y = run(&kernel, &[&a, &b, &zero, &zero], &[desc(Int32, &[1, 1])]);
    assert_eq!(y[0].values(), [f64::from((k as i64 * 255 * 255) as i32)]);
}

#[test]
fn engines_agree() {
    let mut random = Random::new(13);
    for rows in 1..20 {
        for strips in 1..=3 {
            let quads = 1 + random.below(9) as usize;
            let (pitch, width) = (quads * 4 + 3, strips * STRIP);
            let mut some = |count: usize| -> Vec<u8> {
                bytes(&mut random, UInt8, count as u64).iter().map(|&value| value as u8).collect()
            };
            let (a, panel) = (some(rows * pitch), some(quads * 4 * width));
            let sums = |engine: Engine| {
                let mut sums = vec![7; rows * width];
                let flip = if strips == 2 { 0x8080_8080 } else { 0 };
                let rows = Rows { first: a.as_ptr(), pitch, count: rows, flip };
                // SAFETY: the operands are as large as these sizes say, and the processor has the engine.
                unsafe { add_products(engine, rows, (panel.as_ptr(), strips), quads, sums.as_mut_ptr()) };
                sums
            };
            let expected = sums(Engine::Portable);
            for engine in Engine::all() {
                assert!(sums(engine) == expected, "{engine:?}: {rows} rows, {strips} strips, {quads} quads");
            }
        }
    }
}

#[test]
fn engines_need_only_the_vector_instructions_that_kernels_may_use() {
    assert_eq!(Engine::with(|_| false), [Engine::Portable]);
    assert!(Engine::all().iter().all(|engine| Engine::with(|_| true).contains(engine)));
}

#[test]
fn operands_of_other_types_are_refused() {
    let kernel = Kernel::IntegerProduct { transpose_b: false };
    let a = Tensor::new(&desc(UInt8, &[2, 3]), &[1.0; 6]);
    let b = Tensor::new(&desc(Int8, &[3, 4]), &[1.0; 12]);
    let [unsigned, signed] = [UInt8, Int8].map(|kind| Tensor::new(&desc(kind, &[1, 1]), &[0.0]));
    let y = desc(Int32, &[2, 4]);
    let reason = refusal(&kernel, &[&a, &b, &signed, &signed], std::slice::from_ref(&y));
    assert!(reason.contains("uint8[2, 3]") && reason.contains("are not supported"), "{reason}");
    let reason = refusal(&kernel, &[&a, &b, &unsigned, &signed], &[desc(Float32, &[2, 4])]);
    assert!(reason.contains("are not supported"), "{reason}");
    let reason = refusal(&kernel, &[&a, &b, &unsigned, &signed], &[desc(Int32, &[2, 5])]);
    assert!(reason.contains("do not match"), "{reason}");
}
