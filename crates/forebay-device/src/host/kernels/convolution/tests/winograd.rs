//! Windows of three elements in the last dimension, which are computed with fewer multiplications.

use std::ops::Range;

use super::*;

/// A convolution of 2-D or 3-D images that is computed with units of two positions or, with 64 channels or more, of four.
fn case_of_units(random: &mut Random) -> Case {
    let rank = 2 + random.below(2) as usize;
    let groups = 1 + random.below(2);
    let mut channels = || if random.below(3) == 0 { 64 + random.below(10) } else { 8 + random.below(12) };
    let (inputs, outputs) = (channels(), channels());
    let mut window = Window {
        kernel: vec![],
        strides: vec![1; rank],
        dilations: vec![1; rank],
        pads_begin: vec![],
        pads_end: vec![],
    };
    let (mut x, mut w, mut y) = (vec![1, inputs * groups], vec![outputs * groups, inputs], vec![1, outputs * groups]);
    for d in 0..rank {
        let is_last = d == rank - 1;
        let kernel = if is_last { 3 } else { 1 + random.below(3) };
        let (begin, end) = (random.below(4), random.below(4));
        let target = 1 + random.below(if is_last { 20 } else { 24 / (rank * rank) as u64 });
        let source = (target + kernel - 1).saturating_sub(begin + end).max(1);
        window.kernel.push(kernel);
        window.pads_begin.push(begin);
        window.pads_end.push(end);
        x.push(source);
        w.push(kernel);
        y.push((source + begin + end).saturating_sub(kernel - 1));
    }
    Case { convolution: Convolution { window, groups }, x, w, y }
}

/// Errors are relative to what a whole unit sees, which may be more than an element at an edge sees.
fn raise_to_largest(sums: &mut [Sum]) {
    let largest = sums.iter().map(|sum| sum.magnitude).fold(0.0, f64::max);
    sums.iter_mut().for_each(|sum| sum.magnitude = largest);
}

#[test]
fn units_match_the_definition() {
    let mut random = Random::new(41);
    for number in 0..30 {
        let case = case_of_units(&mut random);
        let data_type = if number % 5 == 0 { DataType::BFloat16 } else { DataType::Float32 };
        check_against(&case, data_type, &mut random, &format!("case {number}"), raise_to_largest);
    }
    // Windows that are far higher than wide, and one that is too high.
    for (channels, height) in [([16, 8], 32), ([64, 8], 32), ([8, 8], 33), ([8, 8], 100)] {
        let case = case(channels, 1, &[height + 70, 9], &[height, 3], 1, 1);
        check_against(&case, DataType::Float32, &mut random, &format!("windows of {height} rows"), raise_to_largest);
    }
    // Rows of several blocks.
    for channels in [[8, 9], [64, 8]] {
        let case = case(channels, 1, &[2, 2100], &[1, 3], 1, 1);
        check_against(&case, DataType::Float32, &mut random, "wide rows", raise_to_largest);
    }
}

/// Rows computed apart, starting anywhere, have the bits of the whole.
#[test]
fn rows_have_the_bits_of_the_whole() {
    let mut random = Random::new(43);
    for (channels, height, width) in [([9, 10], 40, 31), ([66, 9], 21, 14), ([9, 66], 21, 14)] {
        let sizes = |channels: u64, height: usize| [1, channels, height as u64, width as u64];
        let mut tensor = |sizes: &[u64]| Tensor::new(&float(sizes), &random.values(count(sizes)));
        let (x, dy) = (tensor(&sizes(channels[0], height)), tensor(&sizes(channels[1], height)));
        let (w, bias) = (tensor(&[channels[1], channels[0], 3, 3]), tensor(&[channels[1]]));
        let window = |pads: [usize; 2]| Window {
            kernel: vec![3; 2],
            strides: vec![1; 2],
            dilations: vec![1; 2],
            pads_begin: vec![pads[0] as u64, 1],
            pads_end: vec![pads[1] as u64, 1],
        };
        // The results of some rows, from the rows that they see.
        let forward = |range: Range<usize>| {
            let seen = range.start.saturating_sub(1)..(range.end + 1).min(height);
            let pads = [seen.start + 1 - range.start, range.end + 1 - seen.end];
            let convolution = Convolution { window: window(pads), groups: 1 };
            let kernel = Kernel::Convolution { convolution, activation: Activation::Relu };
            run(&kernel, &[&rows(&x, seen), &w, &bias], &[float(&sizes(channels[1], range.len()))]).remove(0).values()
        };
        let backward = |range: Range<usize>| {
            let seen = range.start.saturating_sub(1)..(range.end + 1).min(height);
            // A row of x is seen by the row of y before it, through its last tap, if that row is there.
            let pads = [range.start + 1 - seen.start, seen.end + 1 - range.end];
            let convolution = Convolution { window: window(pads), groups: 1 };
            let x = float(&sizes(channels[0], range.len()));
            data_gradient(&convolution, Activation::None, &[&rows(&dy, seen), &w], &x).values()
        };
        for (what, results, channels) in [
            ("forward", &forward as &dyn Fn(Range<usize>) -> Vec<f64>, channels[1]),
            ("backward", &backward, channels[0]),
        ] {
            let whole = Tensor::new(&float(&sizes(channels, height)), &results(0..height));
            for cut in [1, 6, 13, height - 1] {
                for range in [0..cut, cut..height] {
                    assert_eq!(results(range.clone()), rows(&whole, range.clone()).values(), "{what}, rows {range:?}");
                }
            }
        }
    }
}

/// The root of the mean square of the differences.
fn error(values: impl Iterator<Item = f64>, expected: &[f64]) -> f64 {
    let squares = values.zip(expected).map(|(value, expected)| (value - expected).powi(2));
    (squares.sum::<f64>() / expected.len() as f64).sqrt()
}

/// The input of a case, of random numbers, or of those among them that are positive and zeros.
fn source(case: &Case, is_positive: bool, random: &mut Random) -> Tensor {
    let value = |value: f64| f64::from(if is_positive { value.max(0.0) } else { value } as f32);
    let values: Vec<f64> = random.values(count(&case.x)).into_iter().map(value).collect();
    Tensor::new(&float(&case.x), &values)
}

/// Returns the errors of a kernel's sums of products of x and another operand, and those of products added up one after the other.
/// `places` gives the places of the other operand's element and of the result, of those of w and y.
fn errors(
    case: &Case,
    kernel: &Kernel,
    [x, other]: [&Tensor; 2],
    sizes: &[u64],
    places: fn(usize, usize) -> [usize; 2],
) -> [f64; 2] {
    let (xs, others) = (x.values(), other.values());
    let (mut exact, mut direct) = (vec![0.0; count(sizes)], vec![0.0_f32; count(sizes)]);
    products(case, |x, w, y| {
        let [other, result] = places(w, y);
        exact[result] += xs[x] * others[other];
        direct[result] = (xs[x] as f32).mul_add(others[other] as f32, direct[result]);
    });
    let found = run(kernel, &[x, other], &[float(sizes)]).remove(0).values();
    [error(found.into_iter(), &exact), error(direct.into_iter().map(f64::from), &exact)]
}

/// The error of units of two is at most that of products added up one after the other, and that of units of four at most twice as large.
#[test]
fn winograd_is_as_accurate_as_direct_sums() {
    let mut random = Random::new(47);
    for (channels, most) in [(8, 1.1), (16, 1.0), (48, 1.0), (64, 2.0), (128, 2.0), (256, 1.5)] {
        for is_positive in [false, true] {
            let case = case([channels, 16], 1, &[3, 402], &[3, 3], 1, 1);
            let x = source(&case, is_positive, &mut random);
            let w = Tensor::new(&float(&case.w), &random.values(count(&case.w)));
            let kernel = Kernel::Convolution { convolution: case.convolution.clone(), activation: Activation::None };
            let [found, direct] = errors(&case, &kernel, [&x, &w], &case.y, |w, y| [w, y]);
            assert!(found <= most * direct, "{channels} channels, positive: {is_positive}: {found}, directly {direct}");
        }
    }
}

/// The error of weight gradients that are summed in units is at most twice that of products added up one after the other.
#[test]
fn weight_gradients_in_units_are_as_accurate_as_direct_sums() {
    let mut random = Random::new(53);
    for (sizes, kernel) in [(&[16, 14][..], &[3, 3][..]), (&[30, 30], &[3, 3]), (&[4, 4, 130], &[2, 3, 3])] {
        for is_positive in [false, true] {
            let case = padded(case([16, 8], 1, sizes, kernel, 1, 1), 1);
            let x = source(&case, is_positive, &mut random);
            let dy = Tensor::new(&float(&case.y), &random.values(count(&case.y)));
            let kernel = Kernel::ConvolutionWeightGradient { convolution: case.convolution.clone() };
            let [found, direct] = errors(&case, &kernel, [&x, &dy], &case.w, |w, y| [y, w]);
            assert!(found <= 2.0 * direct, "{sizes:?}, positive: {is_positive}: {found}, directly {direct}");
        }
    }
}
