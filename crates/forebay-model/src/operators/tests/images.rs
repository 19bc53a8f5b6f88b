//! Operators of images and signals, folded, against what their definitions say in float64.

use std::f64::consts::TAU;

use super::*;

/// A constant of these elements.
fn numbers(shape: &[u64], value: impl Fn(u64) -> f64) -> Input {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| value(i) as f32).collect();
    Input::Constant(Tensor::from_f32(shape, &values))
}

/// The same of float64.
fn wide(shape: &[u64], value: impl Fn(u64) -> f64) -> Input {
    let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
    Input::Constant(Tensor::new(DataType::Float64, shape, bytes).unwrap())
}

/// Elements of float32 or float64.
fn values(tensor: &Tensor) -> Vec<f64> {
    match tensor.to_f32() {
        Some(values) => values.into_iter().map(f64::from).collect(),
        None => tensor.bytes().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect(),
    }
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &[f64]) {
    let found = values(found);
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "element {i} is {found}, not {expected}");
    }
}

/// Some number for each index.
fn wave(i: u64) -> f64 {
    (i as f64 * 1.7).sin() + 0.1 * i as f64
}

#[test]
fn cubic_resizing_weights_elements_by_their_distance() {
    let kernel = |distance: f64| {
        let (a, d) = (-0.75, distance.abs());
        match d {
            ..=1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
            ..2.0 => a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a,
            _ => 0.0,
        }
    };
    for (size, antialias, exclude) in [(11u64, 0, 0), (4, 0, 0), (11, 0, 1), (4, 1, 0), (2, 1, 1)] {
        let scale = size as f64 / 7.0;
        let stretch = if antialias == 1 { (1.0 / scale).max(1.0) } else { 1.0 };
        let expected: Vec<f64> = (0..size)
            .map(|i| {
                let position = (i as f64 + 0.5) / scale - 0.5;
                let taps = (-20i64..27).map(|k| (k, kernel((k as f64 - position) / stretch)));
                let taps: Vec<(i64, f64)> = taps.filter(|(k, _)| exclude == 0 || (0..7).contains(k)).collect();
                let sum: f64 = taps.iter().map(|tap| tap.1).sum();
                taps.iter().map(|&(k, weight)| weight * wave(k.clamp(0, 6) as u64)).sum::<f64>() / sum
            })
            .collect();
        let attributes = [text("mode", "cubic"), int("antialias", antialias), int("exclude_outside", exclude)];
        // The matrix of many taps does not fold, the gather of float64 does.
        let inputs = vec![wide(&[1, 7], wave), Input::Absent, Input::Absent, ints(&[1, size as i64])];
        assert_close(&folded("Resize", 18, inputs, &attributes), &expected);
    }
}

#[test]
fn regions_are_resized_and_what_lies_outside_has_its_value() {
    let inputs = vec![numbers(&[1, 5], wave), floats(&[0.0, 0.5, 1.0, 1.5]), Input::Absent, ints(&[1, 3])];
    let attributes = [
        text("mode", "linear"),
        text("coordinate_transformation_mode", "tf_crop_and_resize"),
        ("extrapolation_value", Attribute::Float(9.0)),
    ];
    assert_close(&folded("Resize", 13, inputs, &attributes), &[wave(2), wave(4), 9.0]);
}

#[test]
fn aspect_ratios_are_kept_where_the_policy_says_so() {
    for (policy, expected) in [("not_larger", [1, 1, 4, 8]), ("not_smaller", [1, 1, 5, 10]), ("stretch", [1, 1, 5, 8])]
    {
        let inputs = vec![fed(&[1, 1, 2, 4]), Input::Absent, Input::Absent, ints(&[5, 8])];
        let attributes = [list("axes", &[2, 3]), text("keep_aspect_ratio_policy", policy)];
        assert_eq!(inferred("Resize", 18, inputs, &attributes), [expected]);
    }
}

#[test]
fn padding_repeats_elements_more_than_once() {
    let padded = |mode: &str| {
        let inputs = vec![numbers(&[3], |i| i as f64), ints(&[5, 4])];
        values(&folded("Pad", 19, inputs, &[text("mode", mode)]))
    };
    assert_eq!(padded("wrap"), [1., 2., 0., 1., 2., 0., 1., 2., 0., 1., 2., 0.]);
    assert_eq!(padded("reflect"), [1., 0., 1., 2., 1., 0., 1., 2., 1., 0., 1., 2.]);
    let large = (1i64 << 53) + 1;
    let inputs = vec![ints(&[5]), ints(&[1, 0]), Input::Constant(Tensor::from_i64(&[], &[large]))];
    assert_eq!(folded("Pad", 19, inputs, &[]).to_i64().unwrap(), [large, 5]);
}

#[test]
fn transforms_are_sums_of_waves() {
    for (given, length) in [(6u64, 6u64), (5, 8), (7, 4)] {
        let signal = |i: u64| if i < given { wave(i) } else { 0.0 };
        let expected: Vec<f64> = (0..length / 2 + 1)
            .flat_map(|k| {
                let angle = |j: u64| -TAU * (j * k) as f64 / length as f64;
                let sum = |part: fn(f64) -> f64| (0..length).map(|j| signal(j) * part(angle(j))).sum::<f64>();
                [sum(f64::cos), sum(f64::sin)]
            })
            .collect();
        let spectrum =
            folded("DFT", 20, vec![wide(&[1, given, 1], wave), number(length as i64)], &[int("onesided", 1)]);
        assert_close(&spectrum, &expected);
        // And back, as real numbers.
        let attributes = [int("onesided", 1), int("inverse", 1)];
        let back = folded("DFT", 20, vec![Input::Constant(spectrum), number(length as i64)], &attributes);
        assert_close(&back, &(0..length).map(signal).collect::<Vec<f64>>());
    }
}

#[test]
fn windows_are_sums_of_cosines() {
    let window = |op_type: &str, periodic: i64| folded(op_type, 17, vec![number(4)], &[int("periodic", periodic)]);
    assert_close(&window("HannWindow", 1), &[0.0, 0.5, 1.0, 0.5]);
    assert_close(&window("HannWindow", 0), &[0.0, 0.75, 0.75, 0.0]);
    assert_close(&window("HammingWindow", 1), &[4.0 / 46.0, 25.0 / 46.0, 1.0, 25.0 / 46.0]);
    assert_close(&window("BlackmanWindow", 1), &[0.0, 0.34, 1.0, 0.34]);
}

#[test]
fn determinants_turn_with_exchanged_rows() {
    let rows = [0.0, 2.0, 1.0, 3.0, -1.0, 4.0, 6.0, 5.0, -2.0];
    let singular = [1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 1.0, 0.0, 1.0];
    let all: Vec<f64> = rows.iter().chain(&singular).copied().collect();
    let expected = 0.0 * (2.0 - 20.0) - 2.0 * (-6.0 - 24.0) + (15.0 + 6.0);
    assert_close(&folded("Det", 22, vec![numbers(&[2, 3, 3], |i| all[i as usize])], &[]), &[expected, 0.0]);
}

#[test]
fn grids_sample_between_elements() {
    // 0 1 2 / 3 4 5, at the center, in the middle of the upper edge, and outside.
    let grid = [0.0, 0.0, 0.0, -1.0, 2.0, 0.0];
    let sampled = |padding: &str| {
        let inputs = vec![numbers(&[1, 1, 2, 3], |i| i as f64), numbers(&[1, 1, 3, 2], |i| grid[i as usize])];
        values(&folded("GridSample", 20, inputs, &[int("align_corners", 1), text("padding_mode", padding)]))
    };
    assert_eq!(sampled("zeros"), [2.5, 1.0, 0.0]);
    assert_eq!(sampled("border"), [2.5, 1.0, 3.5]);
    assert_eq!(sampled("reflection"), [2.5, 1.0, 2.5]);
}

#[test]
fn cubic_samples_outside_are_of_clamped_elements() {
    // As PyTorch has them, half an element beyond the last one.
    let grid = [0.0, 0.0, 0.0, -1.0, 1.5, 0.0];
    let sampled = |padding: &str| {
        let inputs = vec![numbers(&[1, 1, 2, 3], |i| i as f64), numbers(&[1, 1, 3, 2], |i| grid[i as usize])];
        let attributes = [int("align_corners", 1), text("padding_mode", padding), text("mode", "cubic")];
        values(&folded("GridSample", 20, inputs, &attributes))
    };
    assert_eq!(sampled("border"), [2.5, 1.0, 3.59375]);
    assert_eq!(sampled("reflection"), [2.5, 1.0, 3.1875]);
}

#[test]
fn reductions_of_nothing_are_what_leaves_other_elements_alone() {
    let reduced = |op_type: &str| {
        let inputs = vec![numbers(&[2, 0], wave), ints(&[1])];
        values(&folded(op_type, 18, inputs, &[int("keepdims", 0)]))
    };
    for op_type in ["ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"] {
        assert_eq!(reduced(op_type), [0.0; 2]);
    }
    assert_eq!(reduced("ReduceProd"), [1.0; 2]);
    assert_eq!(reduced("ReduceMax"), [f64::NEG_INFINITY; 2]);
    assert_eq!(reduced("ReduceMin"), [f64::INFINITY; 2]);
    assert_eq!(reduced("ReduceLogSum"), [f64::NEG_INFINITY; 2]);
    assert_eq!(reduced("ReduceLogSumExp"), [f64::NEG_INFINITY; 2]);
    assert!(reduced("ReduceMean").iter().all(|mean| mean.is_nan()));
}
