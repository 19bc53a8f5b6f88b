//! Attributes, types and numbers at the edge of what operators are defined for: results as in ONNX, and where they are rounded.

use forebay_base::DataType::{BFloat16, Float16, Float64, Int16, UInt16, UInt32, UInt64};
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::*;
use crate::program::ProgramLaunch;

fn tensor(shape: &[u64], values: &[f32]) -> Input {
    Input::Constant(Tensor::from_f32(shape, values))
}

fn doubles(shape: &[u64], values: &[f64]) -> Input {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    Input::Constant(Tensor::new(Float64, shape, bytes).unwrap())
}

fn real(name: &'static str, value: f32) -> (&'static str, Attribute) {
    (name, Attribute::Float(value))
}

/// The real numbers of the tensor to which a node folds.
fn reals(op_type: &str, version: i64, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> Vec<f64> {
    folded(op_type, version, inputs, attributes).to_f64().unwrap()
}

fn error_of(op_type: &str, version: i64, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> String {
    let mut graph = graph_of(op_type, version, inputs, attributes, 1);
    infer_node(&mut graph, 0).expect_err(op_type).to_string()
}

fn launches(op_type: &str, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> Vec<ProgramLaunch> {
    let mut graph = graph_of(op_type, 13, inputs, attributes, 1);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}")).launches
}

/// Whether a launch converts to this type.
fn converts(launch: &ProgramLaunch, to: DataType) -> bool {
    matches!(launch.kernel, Kernel::Cast(_)) && launch.writes[0].desc.data_type() == to
}

#[test]
fn before_opset_7_operands_are_aligned_at_an_axis() {
    let along = |axis: i64| [int("broadcast", 1), int("axis", axis)];
    let matrix = || tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(reals("Mul", 6, vec![matrix(), floats(&[1.0, 2.0])], &along(0)), [1.0, 2.0, 6.0, 8.0]);
    assert_eq!(reals("Mul", 6, vec![matrix(), floats(&[1.0, 2.0])], &[int("broadcast", 1)]), [1.0, 4.0, 3.0, 8.0]);
    assert_eq!(reals("Pow", 1, vec![matrix(), floats(&[1.0, 2.0])], &along(0)), [1.0, 2.0, 9.0, 16.0]);
    assert_eq!(reals("Sub", 6, vec![matrix(), tensor(&[1, 1], &[1.0])], &along(0)), [0.0, 1.0, 2.0, 3.0]);
    let less = folded("Less", 1, vec![matrix(), floats(&[2.0, 9.0])], &along(0));
    assert_eq!(less.to_i64().unwrap(), [1, 0, 1, 1]);
    let bools = |shape: &[u64], bytes: &[u8]| Input::Constant(Tensor::new(Bool, shape, bytes.to_vec()).unwrap());
    let both = folded("And", 1, vec![bools(&[2, 2], &[1, 1, 0, 1]), bools(&[2], &[0, 1])], &along(0));
    assert_eq!(both.to_i64().unwrap(), [0, 0, 0, 1]);
    assert_eq!(inferred("Add", 6, vec![fed(&[2, 3, 4, 5]), fed(&[3, 4])], &along(1)), [[2, 3, 4, 5]]);
    let fitting = || vec![fed(&[2, 3, 4]), fed(&[2, 3])];
    for (inputs, attributes, words) in [
        (vec![fed(&[2, 2]), fed(&[2])], vec![], "requires attribute broadcast to be 1 in opset 6"),
        (fitting(), along(1).to_vec(), "float32[2, 3] does not broadcast to float32[2, 3, 4] from axis 1 on"),
        (fitting(), along(2).to_vec(), "from axis 2 on"),
        (vec![fed(&[3]), fed(&[2, 3])], vec![int("broadcast", 1)], "does not broadcast to float32[3]"),
    ] {
        let error = error_of("Add", 6, inputs, &attributes);
        assert!(error.contains(words), "{error}");
    }
    let mut graph = graph_of("Mul", 6, vec![fed(&[2, 3]), fed(&[2])], &along(0), 1);
    infer_node(&mut graph, 0).unwrap();
    let (loss, by) = (append_sum(&mut graph), graph.inputs.clone());
    let result = gradients(&mut graph, loss, &by).unwrap();
    assert_eq!(result[1].and_then(|d| graph.ty(d)), Some(&TensorType::new(Float32, &[2])));
}

#[test]
fn before_opset_7_slopes_belong_to_channels() {
    let x = || tensor(&[1, 2, 2], &[-1.0, -2.0, -3.0, 4.0]);
    let slopes = || floats(&[10.0, 20.0]);
    assert_eq!(reals("PRelu", 6, vec![x(), slopes()], &[]), [-10.0, -20.0, -60.0, 4.0]);
    assert_eq!(reals("PRelu", 7, vec![x(), slopes()], &[]), [-10.0, -40.0, -30.0, 4.0]);
    assert_eq!(reals("PRelu", 6, vec![x(), floats(&[10.0])], &[]), [-10.0, -20.0, -30.0, 4.0]);
}

/// Compares numbers; NaN counts as itself.
fn assert_are(found: &[f64], expected: &[f64]) {
    let is_same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_same), "{found:?}, not {expected:?}");
}

#[test]
fn infinite_slopes_do_not_affect_positive_elements() {
    let x = || floats(&[f32::NEG_INFINITY, -2.0, 3.0, f32::INFINITY, f32::NAN]);
    for (slope, negative) in [(f32::INFINITY, f64::NEG_INFINITY), (f32::NAN, f64::NAN), (0.5, -1.0)] {
        let y = reals("PRelu", 16, vec![x(), floats(&[slope])], &[]);
        let least = f64::from(f32::NEG_INFINITY * slope);
        assert_are(&y, &[least, negative, 3.0, f64::INFINITY, f64::NAN]);
    }
    assert_eq!(folded("PRelu", 16, vec![ints(&[-2, 0, 3]), ints(&[4])], &[]).to_i64().unwrap(), [-8, 0, 3]);
    assert_eq!(launches("PRelu", vec![fed(&[2, 3]), fed(&[3])], &[]).len(), 3);
}

#[test]
fn windows_of_float64_are_pooled() {
    let pooled = |op_type: &str, attributes: &[(&str, Attribute)]| {
        let window = [list("kernel_shape", &[2, 2]), list("pads", &[1, 0, 0, 1])];
        let x = doubles(&[1, 1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        reals(op_type, 19, vec![x], &[&window, attributes].concat())
    };
    assert_eq!(pooled("MaxPool", &[]), [2.0, 3.0, 3.0, 5.0, 6.0, 6.0]);
    assert_eq!(pooled("AveragePool", &[]), [1.5, 2.5, 3.0, 3.0, 4.0, 4.5]);
    assert_eq!(pooled("AveragePool", &[int("count_include_pad", 1)]), [0.75, 1.25, 0.75, 3.0, 4.0, 2.25]);
    assert_eq!(pooled("LpPool", &[int("p", 1)]), [3.0, 5.0, 3.0, 12.0, 16.0, 9.0]);
    assert_eq!(reals("GlobalMaxPool", 19, vec![doubles(&[1, 1, 3], &[1.0, 3.0, 2.0])], &[]), [3.0]);
    let dilated = [list("kernel_shape", &[2]), list("dilations", &[2]), list("pads", &[1, 1])];
    assert_eq!(reals("MaxPool", 19, vec![doubles(&[1, 1, 3], &[9.0, 3.0, 2.0])], &dilated), [3.0, 9.0, 3.0]);
    // No element of this window is in the input.
    for op_type in ["AveragePool", "LpPool"] {
        assert_eq!(reals(op_type, 19, vec![doubles(&[1, 1, 1], &[7.0])], &dilated), [0.0], "{op_type}");
    }
    let fills = |pads: &[i64]| {
        let attributes = [list("kernel_shape", &[2]), list("pads", pads)];
        let launches = launches("AveragePool", vec![Input::Fed(Float64, vec![1, 1, 4])], &attributes);
        launches.iter().filter(|launch| matches!(launch.kernel, Kernel::Fill { .. })).count()
    };
    assert_eq!((fills(&[0, 0]), fills(&[1, 0])), (0, 1));
    let mut graph = graph_of("MaxPool", 19, vec![Input::Fed(Float64, vec![1, 1, 4])], &[list("kernel_shape", &[2])], 2);
    let error = infer_node(&mut graph, 0).unwrap_err().to_string();
    assert!(error.contains("the positions, is not supported in float64"), "{error}");
}

#[test]
fn windows_of_float64_can_be_far_outside_the_input() {
    let pooled = |size: u64, stride: i64, pads: [i64; 2], flag: &'static str| {
        let elements: Vec<f64> = (1..=size).map(|element| element as f64).collect();
        let attributes = [list("kernel_shape", &[1]), list("strides", &[stride]), list("pads", &pads), int(flag, 1)];
        reals("AveragePool", 19, vec![doubles(&[1, 1, size], &elements)], &attributes)
    };
    assert_eq!(pooled(4, i64::MAX, [0, i64::MAX], "count_include_pad"), [1.0, 0.0]);
    assert_eq!(pooled(1, (1 << 62) + 1, [i64::MAX; 2], "ceil_mode"), [0.0; 4]);
}

#[test]
fn infinite_elements_reach_only_positions_where_they_have_a_weight() {
    let (infinity, lowest) = (f64::INFINITY, f64::NEG_INFINITY);
    let resized = |row: &[f32], attributes: &[(&str, Attribute)]| {
        let size = 2 * row.len() as i64 - 1;
        let inputs = vec![tensor(&[1, row.len() as u64], row), Input::Absent, Input::Absent, ints(&[1, size])];
        reals("Resize", 19, inputs, attributes)
    };
    let aligned = text("coordinate_transformation_mode", "align_corners");
    let linear = [text("mode", "linear"), aligned.clone()];
    let y = resized(&[1.0, f32::INFINITY, f32::INFINITY, 2.0], &linear);
    assert_are(&y, &[1.0, infinity, infinity, infinity, infinity, infinity, 2.0]);
    let y = resized(&[1.0, 3.0, f32::NEG_INFINITY], &linear);
    assert_are(&y, &[1.0, 2.0, 3.0, lowest, lowest]);
    let cubic = [text("mode", "cubic"), int("exclude_outside", 1), aligned];
    let y = resized(&[f32::INFINITY, 1.0, 1.0, 1.0, 1.0, 1.0], &cubic);
    assert!(y[4..].iter().all(|y| (y - 1.0).abs() < 1e-6), "{y:?}");
}

#[test]
fn letters_that_occur_twice_in_a_term_are_summed_without_an_arrow() {
    let trace = folded("Einsum", 12, vec![tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[text("equation", "ii")]);
    assert_eq!((trace.shape(), trace.to_f32().unwrap()), (&[][..], vec![5.0]));
    for (equation, shapes, result) in [
        ("iij,jk", vec![vec![2, 2, 3], vec![3, 4]], vec![4]),
        ("...ii", vec![vec![5, 2, 2]], vec![5]),
        ("bii,b", vec![vec![5, 2, 2], vec![5]], vec![]),
        ("iij->ij", vec![vec![2, 2, 3]], vec![2, 3]),
    ] {
        let inputs = shapes.iter().map(|shape| fed(shape)).collect();
        assert_eq!(inferred("Einsum", 12, inputs, &[text("equation", equation)]), [result], "{equation}");
    }
}

#[test]
fn logarithms_of_sums_of_exponentials_of_infinities() {
    let (infinity, nan) = (f64::INFINITY, f64::NAN);
    let rows = [infinity, 1.0, -infinity, -infinity, 1.0, 1.0, nan, infinity, 1e30, 0.0];
    let narrow: Vec<f32> = rows.iter().map(|&value| value as f32).collect();
    for input in [tensor(&[5, 2], &narrow), doubles(&[5, 2], &rows)] {
        let y = reals("ReduceLogSumExp", 13, vec![input], &[list("axes", &[1]), int("keepdims", 0)]);
        assert_eq!(y[..2], [infinity, -infinity]);
        assert!((y[2] - (1.0 + 2f64.ln())).abs() < 1e-6 && y[3].is_nan() && (y[4] / 1e30 - 1.0).abs() < 1e-6, "{y:?}");
    }
    assert_eq!(reals("ReduceLogSumExp", 13, vec![doubles(&[2], &[1e300, 0.0])], &[]), [1e300]);
}

#[test]
fn casts_fold_to_what_the_kernels_compute() {
    let values = [-1.0, 300.0, 3e9, -3e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 2.9];
    let cast = |to: DataType| folded("Cast", 13, vec![floats(&values)], &[int("to", to.onnx_number().into())]);
    let integers = |to: DataType| cast(to).to_i64().unwrap();
    let (low, high) = (i64::from(i32::MIN), i64::from(i32::MAX));
    assert_eq!(integers(UInt8), [0, 255, 255, 0, 255, 0, 0, 2]);
    assert_eq!(integers(Int8), [-1, 127, 127, -128, 127, -128, 0, 2]);
    assert_eq!(integers(UInt16), [0, 300, 65535, 0, 65535, 0, 0, 2]);
    assert_eq!(integers(Int16), [-1, 300, 32767, -32768, 32767, -32768, 0, 2]);
    assert_eq!(integers(UInt32), [0, 300, 3_000_000_000, 0, u32::MAX.into(), 0, 0, 2]);
    assert_eq!(integers(Int32), [-1, 300, high, low, high, low, 0, 2]);
    assert_eq!(integers(Int64), [-1, 300, 3_000_000_000, -3_000_000_000, i64::MAX, i64::MIN, 0, 2]);
    let negative = folded("Cast", 13, vec![floats(&[-1.0, 3e9])], &[int("to", UInt64.onnx_number().into())]);
    assert_eq!(negative.to_i64().unwrap(), [0, 3_000_000_000]);
    let mut large = graph_of("Cast", 13, vec![floats(&[1e19])], &[int("to", UInt64.onnx_number().into())], 1);
    infer_node(&mut large, 0).unwrap();
    assert!(!large.is_constant(large.outputs[0]));
    let once = folded("Cast", 13, vec![number((1 << 62) + (1 << 38) + 1)], &[int("to", 1)]);
    assert_eq!(once.to_f32().unwrap(), [(2f64.powi(62) + 2f64.powi(39)) as f32]);
}

#[test]
fn powers_of_mixed_types_round_neither_operand() {
    let exact = folded("Pow", 13, vec![ints(&[4097, 16_777_217]), floats(&[2.0, 1.0])], &[]);
    assert_eq!(exact.to_i64().unwrap(), [16_785_409, 16_777_217]);
    for (base, exponent, wide) in [(Int64, Float16, Float64), (BFloat16, Float32, Float32), (Float16, Int64, Float32)] {
        let launches = launches("Pow", vec![Input::Fed(base, vec![2]), Input::Fed(exponent, vec![2])], &[]);
        let is_power = |kernel: &Kernel| matches!(kernel, Kernel::Binary { op: BinaryOp::Power, .. });
        let power = launches.iter().find(|launch| is_power(&launch.kernel)).unwrap();
        assert_eq!(power.reads[1].desc.data_type(), wide);
        assert_eq!(launches.iter().filter(|launch| converts(launch, base)).count(), 1, "only the result is rounded");
    }
    let plain = launches("Pow", vec![fed(&[2]), Input::Fed(Int64, vec![2])], &[]);
    assert_eq!(plain.len(), 2);
}

#[test]
fn sums_of_sixteen_bit_types_are_rounded_once() {
    let half = || Input::Fed(Float16, vec![3]);
    for (op_type, inputs) in [
        ("Mean", vec![half(), half()]),
        ("Sum", vec![half(), half(), half()]),
        ("ReduceLogSum", vec![half()]),
        ("ReduceLogSumExp", vec![half()]),
    ] {
        let launches = launches(op_type, inputs, &[]);
        assert_eq!(launches.iter().filter(|launch| converts(launch, Float16)).count(), 1, "{op_type}");
    }
    for (op_type, inputs, count) in [
        ("Mean", vec![fed(&[3]), fed(&[3])], 2),
        ("Sum", vec![fed(&[3]), fed(&[3])], 1),
        // The output is a copy of the input.
        ("Sum", vec![half()], 1),
        ("ReduceLogSum", vec![fed(&[3])], 2),
    ] {
        assert_eq!(launches(op_type, inputs, &[]).len(), count, "{op_type}");
    }
    let error = error_of("Sum", 13, vec![half(), fed(&[3])], &[]);
    assert!(error.contains("input 1 is float32[3], but input 0 is of type float16"), "{error}");
    let number = |value: f64| doubles(&[1], &[value]);
    assert_eq!(reals("Mean", 13, vec![number(1.0), number(2.0), number(2.0)], &[]), [5.0 / 3.0]);
}

#[test]
fn a_summand_with_the_factor_0_is_left_out() {
    for data_type in [Float32, Float64] {
        let inputs =
            |summand: u64| [vec![2, 3], vec![3, 4], vec![summand]].map(|shape| Input::Fed(data_type, shape)).into();
        let read = |beta: f32| {
            let launches = launches("Gemm", inputs(4), &[real("beta", beta)]);
            launches.iter().map(|launch| launch.reads.len()).sum::<usize>()
        };
        assert!(read(0.0) < read(1.0));
        let error = error_of("Gemm", 13, inputs(5), &[real("beta", 0.0)]);
        assert!(error.contains("shapes [5] and [2, 4] do not broadcast"), "{error}");
    }
}

#[test]
fn unusual_attributes_of_activations() {
    let y = reals("Celu", 12, vec![floats(&[1.0, -1.0, 2.0])], &[real("alpha", -1.0)]);
    assert!(y[0] == 1.0 && y[2] == 2.0 && (y[1] + 1f64.exp() - 1.0).abs() < 1e-6, "{y:?}");
    for (version, alpha) in [(1, 1.6732), (6, 1.673_263_2)] {
        let mut graph = graph_of("Selu", version, vec![fed(&[2])], &[], 1);
        infer_node(&mut graph, 0).unwrap();
        let launches = lower(&graph, &BTreeSet::new()).unwrap().launches;
        assert_eq!(launches[0].kernel, Kernel::Unary(UnaryOp::Elu { alpha }), "opset {version}");
    }
    let attributes = [real("lambd", -1.5), real("bias", 1.0)];
    assert_eq!(reals("Shrink", 9, vec![floats(&[0.0, 1.0, -1.0, 2.0, -2.0])], &attributes), [1.0, 2.0, 0.0, 1.0, -1.0]);
    let exact = folded("Shrink", 9, vec![number(16_777_217)], &[real("lambd", 1.5)]);
    assert_eq!(exact.to_i64().unwrap(), [16_777_217]);
    assert_eq!(reals("Clip", 6, vec![floats(&[f32::INFINITY, -1.0])], &[real("min", 0.0)]), [f64::from(f32::MAX), 0.0]);
    assert_eq!(reals("Clip", 11, vec![floats(&[f32::INFINITY, -1.0]), float(0.0)], &[]), [f64::INFINITY, 0.0]);
}

#[test]
fn integers_are_treated_as_real_numbers_or_refused() {
    let integers = || vec![Input::Constant(Tensor::new(Int32, &[2], [3, 0, 0, 0, 50, 0, 0, 0].to_vec()).unwrap())];
    for (op_type, expected) in [("ReduceLogSum", 3), ("ReduceLogSumExp", 50)] {
        let y = folded(op_type, 13, integers(), &[]);
        assert_eq!((y.data_type(), y.to_i64().unwrap()), (Int32, vec![expected]));
    }
    let erf = launches("Erf", vec![Input::Fed(Int32, vec![2])], &[]);
    let erf = erf.iter().find(|launch| launch.kernel == Kernel::Unary(UnaryOp::Erf)).unwrap();
    assert_eq!(erf.reads[0].desc.data_type(), Float64);
    let error = error_of("Exp", 13, vec![Input::Fed(Int32, vec![2])], &[]);
    assert!(error.contains("Exp") && error.contains("operands of type int32 are not supported"), "{error}");
}

/// Kernels would read the bytes of a scale or bias of another type as real numbers, and beyond their end.
#[test]
fn scales_and_biases_have_the_type_in_which_the_input_is_normalized() {
    let sequence = || fed(&[1, 2, 4]);
    let words = || Input::Fed(Int32, vec![1, 2]);
    for data_type in [UInt8, Int32, Float64, Bool] {
        let vector = || Input::Fed(data_type, vec![4]);
        for (op_type, inputs) in [
            ("LayerNormalization", vec![sequence(), vector()]),
            ("LayerNormalization", vec![sequence(), fed(&[4]), vector()]),
            ("SkipLayerNormalization", vec![sequence(), sequence(), vector()]),
            (
                "EmbedLayerNormalization",
                vec![words(), Input::Absent, fed(&[9, 4]), fed(&[5, 4]), Input::Absent, fed(&[4]), vector()],
            ),
            ("BatchNormalization", vec![fed(&[1, 4, 2]), vector(), fed(&[4]), fed(&[4]), fed(&[4])]),
            ("InstanceNormalization", vec![fed(&[1, 4, 2]), fed(&[4]), vector()]),
            ("InstanceNormalization", vec![fed(&[2, 4, 2]), fed(&[4]), vector()]),
        ] {
            let mut graph = graph_of(op_type, 13, inputs, &[], 1);
            let lowered = infer_node(&mut graph, 0).and_then(|()| lower(&graph, &BTreeSet::new()));
            let error = lowered.map(drop).expect_err(op_type).to_string();
            let words = [format!("must be float32, not {data_type}"), "differ in type".to_string()];
            assert!(words.iter().any(|words| error.contains(words)), "{error}");
        }
    }
}

#[test]
fn a_bias_of_zeros_in_two_dimensions_is_none() {
    let zeros = || tensor(&[3, 2], &[0.0; 6]);
    for (op_type, filter) in [("Conv", [3, 1, 1, 1, 1]), ("ConvTranspose", [1, 3, 1, 1, 1])] {
        let inputs = |bias: Input| vec![fed(&[1, 1, 2, 2, 2]), fed(&filter), bias];
        let launches = launches(op_type, inputs(zeros()), &[]);
        assert!(matches!(&launches[..], [launch] if launch.reads.len() == 2), "{op_type}");
        for bias in [tensor(&[3, 2], &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]), tensor(&[2, 3], &[0.0; 6]), fed(&[3, 2])] {
            let error = error_of(op_type, 13, inputs(bias), &[]);
            assert!(error.contains("expected a bias of [3]"), "{error}");
        }
    }
}

/// So constants that an exporter converts to the type of an input are known.
#[test]
fn a_constant_converted_to_the_type_of_an_input_folds() {
    let y = folded("CastLike", 19, vec![floats(&[1.0, 2.5]), Input::Fed(Float64, vec![3])], &[]);
    assert_eq!((y.data_type(), y.to_f64().unwrap()), (Float64, vec![1.0, 2.5]));
    let mut graph = graph_of("CastLike", 19, vec![fed(&[2]), Input::Fed(Float64, vec![3])], &[], 1);
    infer_node(&mut graph, 0).unwrap();
    assert!(!graph.is_folded(&graph.nodes[0]));
}

#[test]
fn shapes_and_types_at_the_edge() {
    let scalar = |value: i32| Input::Constant(Tensor::new(Int32, &[], value.to_le_bytes().to_vec()).unwrap());
    let shifted = folded("BitShift", 28, vec![scalar(-8), scalar(1)], &[text("direction", "RIGHT")]);
    assert_eq!((shifted.shape(), shifted.to_i64().unwrap()), (&[][..], vec![-4]));
    for version in [11, 13] {
        assert_eq!(folded("Hardmax", version, vec![tensor(&[2, 0], &[])], &[int("axis", 1)]).shape(), [2, 0]);
    }
    let window = folded("BlackmanWindow", 17, vec![number(4)], &[int("output_datatype", 7)]);
    assert_eq!(window.to_i64().unwrap(), [0, 0, 1, 0]);
    let half = |bits: u16| Input::Constant(Tensor::new(Float16, &[], bits.to_le_bytes().to_vec()).unwrap());
    let weights = |low: Input, high: Input| {
        reals("MelWeightMatrix", 17, vec![number(2), number(8), number(8000), low, high], &[])
    };
    assert_eq!(weights(half(0), half(0x6bd0)), weights(float(0.0), float(4000.0)));
    // A class is chosen by running sums, however many classes there are.
    let drawn = launches("Multinomial", vec![fed(&[1, 50_000])], &[int("sample_size", 3)]);
    assert!(drawn.iter().any(|launch| matches!(launch.kernel, Kernel::Scan { axis: 1, .. })));
    assert!(drawn.iter().all(|launch| launch.reads.iter().all(|read| read.desc.element_count() <= 150_000)));
}

#[test]
fn normalizations_of_sums_have_the_epsilon_of_onnx_runtime() {
    let epsilons = |op_type: &str, inputs: Vec<Input>, attributes: &[(&str, Attribute)]| -> Vec<f32> {
        let mut graph = graph_of(op_type, 1, inputs, attributes, 1);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        let launches = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}")).launches;
        let of_launch = |launch: &ProgramLaunch| match launch.kernel {
            Kernel::LayerNormalization { epsilon, .. } => Some(epsilon),
            Kernel::Unary(UnaryOp::Affine { shift, .. }) => Some(shift),
            _ => None,
        };
        launches.iter().filter_map(of_launch).collect()
    };
    let sum = || vec![fed(&[1, 2, 4]), fed(&[1, 2, 4]), fed(&[4])];
    assert_eq!(epsilons("SkipLayerNormalization", sum(), &[]), [1e-12]);
    assert_eq!(epsilons("SkipLayerNormalization", sum(), &[real("epsilon", 1e-3)]), [1e-3]);
    assert_eq!(epsilons("SkipSimplifiedLayerNormalization", sum(), &[]), [1e-12]);
    assert_eq!(epsilons("SimplifiedLayerNormalization", vec![fed(&[2, 4]), fed(&[4])], &[]), [1e-5]);
}

/// ONNX Runtime returns the inverse deviation, which is only computed if it is wanted.
#[test]
fn groups_of_channels_need_an_axis_of_channels() {
    let vector = || fed(&[8]);
    for is_last in [0, 1] {
        let attributes = [int("groups", 1), int("channels_last", is_last)];
        for x in [vec![], vec![8]] {
            let inputs = vec![fed(&x), vector(), vector(), fed(&[2, 8])];
            let why = refused("SkipGroupNorm", inputs, &attributes);
            assert!(why.contains("expected a batch and channels"), "{why}");
        }
    }
}

#[test]
fn the_third_output_of_normalized_sums_is_the_inverse_deviation() {
    let inverses = |output_count: usize| {
        let inputs = vec![fed(&[1, 2, 4]), fed(&[1, 2, 4]), fed(&[4])];
        let mut graph = graph_of("SkipSimplifiedLayerNormalization", 1, inputs, &[], output_count);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        let program = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        let is_inverse = |launch: &&ProgramLaunch| matches!(launch.kernel, Kernel::Unary(UnaryOp::Reciprocal));
        program.launches.iter().filter(is_inverse).count()
    };
    assert_eq!([1, 4].map(inverses), [0, 1]);
}

#[test]
fn caches_grow_or_have_room_for_new_keys() {
    let attributes = [int("num_heads", 2), int("kv_num_heads", 1)];
    let result = |cache: u64, total: Input, outputs: usize| {
        let caches = [fed(&[1, 1, cache, 4]), fed(&[1, 1, cache, 4])];
        let mut inputs = vec![fed(&[1, 2, 8]), fed(&[1, 2, 4]), fed(&[1, 2, 4])];
        inputs.extend(caches);
        inputs.extend([Input::Fed(Int32, vec![1]), total]);
        let mut graph = graph_of("GroupQueryAttention", 1, inputs, &attributes, outputs);
        infer_node(&mut graph, 0).map(|()| shapes(&graph)[1][2])
    };
    let constant = |total: i32| Input::Constant(Tensor::new(Int32, &[1], total.to_le_bytes()).unwrap());
    for (cache, total, present) in [(3, 5, 5), (5, 4, 5), (5, 2, 5), (5, 5, 5), (1, 3, 3), (0, 2, 2)] {
        assert_eq!(result(cache, constant(total), 3), Ok(present), "{total} in {cache}");
    }
    for (cache, total, words) in [
        (5, 6, "input 6) of 6 does not fit 5 positions of the cache and 2 new keys; it must be 7, or 2 to 5"),
        (5, 1, "input 6) of 1 does not fit"),
        (5, -1, "input 6) of -1 does not fit"),
        (1, 4, "1 positions of the cache and 2 new keys; it must be 3"),
    ] {
        let error = result(cache, constant(total), 3).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // A total that is an input becomes known when the model runs.
    assert!(matches!(result(5, Input::Fed(Int32, vec![1]), 3), Err(ModelError::NeedsValue { .. })));
    assert_eq!(result(0, Input::Fed(Int32, vec![1]), 3), Ok(2));
    let error = result(3, constant(5), 4).unwrap_err().to_string();
    assert!(error.contains("output 3 (output_qk) requires attribute qk_output to be 1 or 2, not 0"), "{error}");
    for (name, value) in [("causal", 0), ("sliding_window_cache", 1)] {
        let mut inputs = vec![fed(&[1, 2, 8]), fed(&[1, 2, 4]), fed(&[1, 2, 4]), Input::Absent, Input::Absent];
        inputs.extend([Input::Fed(Int32, vec![1]), constant(2)]);
        let attributes = [int("num_heads", 2), int("kv_num_heads", 1), int(name, value)];
        let error = error_of("GroupQueryAttention", 1, inputs, &attributes);
        assert!(error.contains(name), "{error}");
    }
}

/// The shapes of the tensors that attention reads for a new key in a cache of 7 positions, with a bias for some keys and a table of angles.
fn attended(total: i32, biased: u64, angles: u64) -> Result<Vec<Vec<u64>>, String> {
    let total = Input::Constant(Tensor::new(Int32, &[1], total.to_le_bytes()).unwrap());
    let mut inputs = vec![fed(&[1, 1, 8]), fed(&[1, 1, 4]), fed(&[1, 1, 4]), fed(&[1, 1, 7, 4]), fed(&[1, 1, 7, 4])];
    inputs.extend([Input::Fed(Int32, vec![1]), total, fed(&[angles, 2]), fed(&[angles, 2]), Input::Absent]);
    inputs.push(fed(&[1, 1, 1, biased]));
    let attributes = [int("num_heads", 2), int("kv_num_heads", 1), int("do_rotary", 1)];
    let mut graph = graph_of("GroupQueryAttention", 1, inputs, &attributes, 3);
    infer_node(&mut graph, 0).map_err(|error| error.to_string())?;
    let launches = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}")).launches;
    let launch = launches.iter().find(|launch| matches!(launch.kernel, Kernel::Attention(_))).expect("attention");
    Ok(launch.reads.iter().map(|read| read.desc.sizes().to_vec()).collect())
}

#[test]
fn new_tokens_attend_to_no_more_than_the_total_length() {
    let shapes = attended(4, 4, 4).unwrap();
    assert_eq!(shapes[1..], [vec![1, 1, 4, 4], vec![1, 1, 4, 4], vec![1, 1, 1, 4]]);
    let error = attended(4, 7, 4).unwrap_err();
    assert!(error.contains("shapes [1, 1, 1, 7] and [1, 2, 1, 4] do not broadcast"), "{error}");
    let error = attended(4, 4, 3).unwrap_err();
    assert!(error.contains("the table float32[3, 2] has no row for each of 4 positions"), "{error}");
}

/// A tensor without elements can have any size along its other axes.
#[test]
fn sizes_of_empty_inputs_are_checked_before_anything_is_allocated() {
    const HUGE: u64 = 1 << 50;
    let words = |shape: &[u64]| {
        let mut inputs = vec![Input::Fed(Int32, shape.to_vec()), Input::Absent];
        inputs.extend([fed(&[3, 4]), fed(&[3, 4]), Input::Absent, fed(&[4]), fed(&[4])]);
        inputs
    };
    let network = || vec![fed(&[1, HUGE, 0]), fed(&[1, 8, 0]), fed(&[1, 8, 2])];
    let blocks = || vec![Input::Fed(Int8, vec![0, HUGE]), fed(&[0, HUGE / 16])];
    let of_blocks = [int("axis", 1), int("block_size", 16)];
    let table = vec![Input::Fed(Int8, vec![0, HUGE]), Input::Fed(Int64, vec![0]), fed(&[0, HUGE / 16])];
    for (op_type, inputs, attributes, expected) in [
        ("EmbedLayerNormalization", words(&[0, HUGE]), vec![], "more than 67108864"),
        ("EmbedLayerNormalization", words(&[HUGE, 0]), vec![], "more than 67108864"),
        ("MultiHeadAttention", vec![fed(&[1, 0, 2, HUGE, 4])], vec![int("num_heads", 2)], "1 to 3 parts"),
        ("LSTM", network(), vec![int("hidden_size", 2)], "more than 67108864"),
        ("DequantizeLinear", blocks(), of_blocks.to_vec(), "more than 67108864"),
        ("QuantizeLinear", vec![fed(&[0, HUGE]), fed(&[0, HUGE / 16])], of_blocks.to_vec(), "more than 67108864"),
        ("GatherBlockQuantized", table, vec![int("block_size", 16)], "more than 67108864"),
    ] {
        let error = error_of(op_type, 21, inputs, &attributes);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn constant_indices_of_embeddings_belong_to_their_own_tables() {
    let result = |word: i64, length: u64, rows: u64| {
        let indices = |index: i64| Input::Constant(Tensor::from_i64(&[1, length], &vec![index; length as usize]));
        let mut inputs = vec![indices(word), indices(1)];
        inputs.extend([fed(&[9, 4]), fed(&[rows, 4]), fed(&[2, 4]), fed(&[4]), fed(&[4])]);
        let mut graph = graph_of("EmbedLayerNormalization", 1, inputs, &[], 1);
        infer_node(&mut graph, 0).map_err(|error| error.to_string())
    };
    assert_eq!(result(8, 1, 1), Ok(()));
    let error = result(9, 1, 1).unwrap_err();
    assert!(error.contains("index 9 is out of range for axis 0 of float32[9, 4]"), "{error}");
    let error = result(8, 3, 2).unwrap_err();
    assert!(error.contains("index 2 is out of range for axis 0 of float32[2, 4]"), "{error}");
}
