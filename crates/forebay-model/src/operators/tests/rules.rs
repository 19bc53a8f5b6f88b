//! What single operators do with constants, windows, opsets and absurd numbers.

use super::*;

#[test]
fn shape_arithmetic_folds() {
    let range = || ints(&[1, 2, 3, 4, 5, 6]);
    let matrix = || Input::Constant(Tensor::from_i64(&[2, 3], &[1, 2, 3, 4, 5, 6]));
    let values = |tensor: Tensor| tensor.to_i64().unwrap();
    assert_eq!(values(folded("Shape", 13, vec![fed(&[4, 5, 6])], &[])), [4, 5, 6]);
    assert_eq!(values(folded("Shape", 15, vec![fed(&[4, 5, 6])], &[int("start", -2), int("end", 9)])), [5, 6]);
    assert_eq!(values(folded("Size", 13, vec![fed(&[4, 5, 6])], &[])), [120]);
    assert_eq!(values(folded("Gather", 13, vec![range(), ints(&[-1, 0])], &[])), [6, 1]);
    assert_eq!(values(folded("Gather", 13, vec![matrix(), ints(&[2])], &[int("axis", 1)])), [3, 6]);
    assert_eq!(values(folded("Concat", 13, vec![ints(&[1]), ints(&[]), ints(&[2, 3])], &[int("axis", 0)])), [1, 2, 3]);
    assert_eq!(
        values(folded("Concat", 13, vec![matrix(), matrix()], &[int("axis", 1)])),
        [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6]
    );
    let slice = |starts: i64, ends: i64, steps: i64| {
        values(folded("Slice", 13, vec![range(), ints(&[starts]), ints(&[ends]), ints(&[0]), ints(&[steps])], &[]))
    };
    assert_eq!(slice(1, 5, 2), [2, 4]);
    assert_eq!(slice(-1, i64::MIN, -2), [6, 4, 2]);
    assert_eq!(slice(4, 1, 1), Vec::<i64>::new());
    assert_eq!(slice(i64::MIN, i64::MAX, i64::MAX), [1]);
    assert_eq!(values(folded("Transpose", 13, vec![matrix()], &[])), [1, 4, 2, 5, 3, 6]);
    assert_eq!(values(folded("Expand", 13, vec![ints(&[7]), ints(&[3])], &[])), [7, 7, 7]);
    assert_eq!(values(folded("Tile", 13, vec![ints(&[1, 2]), ints(&[2])], &[])), [1, 2, 1, 2]);
    assert_eq!(values(folded("Range", 13, vec![ints(&[5]), ints(&[0]), ints(&[-2])], &[])), [5, 3, 1]);
    assert_eq!(values(folded("ReduceProd", 13, vec![matrix()], &[int("keepdims", 0)])), [720]);
    assert_eq!(values(folded("ReduceMax", 13, vec![matrix()], &[list("axes", &[0])])), [4, 5, 6]);
    assert_eq!(values(folded("Neg", 13, vec![range()], &[])), [-1, -2, -3, -4, -5, -6]);
    assert_eq!(values(folded("Pad", 13, vec![ints(&[1, 2]), ints(&[1, 2])], &[])), [0, 1, 2, 0, 0]);
    assert_eq!(values(folded("Trilu", 14, vec![matrix()], &[])), [1, 2, 3, 0, 5, 6]);
    assert_eq!(values(folded("Constant", 13, vec![], &[list("value_ints", &[3])])), [3]);
    assert_eq!(folded("Reshape", 13, vec![matrix(), ints(&[-1, 2])], &[]).shape(), [3, 2]);
    assert_eq!(folded("ConstantOfShape", 13, vec![ints(&[])], &[]).shape(), Vec::<u64>::new());
}

/// With an axis of repetitions before each repeated one, there would be more axes than a tensor can have.
#[test]
fn many_axes_are_repeated_one_by_one() {
    let (sizes, repeats) = ([2, 1, 2, 1, 2], [2, 2, 1, 2, 3]);
    let x = Input::Constant(Tensor::from_i64(&sizes, &[0, 1, 2, 3, 4, 5, 6, 7]));
    let y = folded("Tile", 13, vec![x, ints(&repeats)], &[]);
    assert_eq!(y.shape(), [4, 2, 2, 2, 6]);
    let place = |i: usize| {
        let (mut place, mut rest) = (0, i);
        let mut factor = 1;
        for (&size, &own) in y.shape().iter().zip(&sizes).rev() {
            place += factor * (rest % size as usize % own as usize);
            (rest, factor) = (rest / size as usize, factor * own as usize);
        }
        place as i64
    };
    assert_eq!(y.to_i64().unwrap(), (0..192).map(place).collect::<Vec<_>>());
    let mut graph = graph_of("Tile", 13, vec![fed(&sizes), ints(&repeats)], &[], 1);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    let (loss, by) = (append_sum(&mut graph), graph.inputs.clone());
    assert!(gradients(&mut graph, loss, &by).unwrap()[0].is_some());
    lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn arithmetic_folds() {
    let values =
        |op_type: &str, a: &[i64], b: &[i64]| folded(op_type, 13, vec![ints(a), ints(b)], &[]).to_i64().unwrap();
    assert_eq!(values("Add", &[1, i64::MAX], &[2, 1]), [3, i64::MIN]);
    assert_eq!(values("Sub", &[1, 2], &[3]), [-2, -1]);
    assert_eq!(values("Mul", &[3, -4], &[5]), [15, -20]);
    assert_eq!(values("Div", &[7, -7, i64::MIN], &[2, 2, -1]), [3, -3, i64::MIN]);
    assert_eq!(values("Mod", &[7, -7, 7, -7], &[3, 3, -3, -3]), [1, 2, -2, -1]);
    assert_eq!(values("BitwiseAnd", &[6, -1], &[3]), [2, 3]);
    assert_eq!(values("BitwiseXor", &[6, -1], &[3]), [5, -4]);
    assert_eq!(values("Max", &[1, 5], &[3]), [3, 5]);
    assert_eq!(values("Equal", &[1, 2], &[2]), [0, 1]);
    assert_eq!(values("GreaterOrEqual", &[1, 2], &[2]), [0, 1]);
    let condition = Input::Constant(Tensor::new(Bool, &[2], vec![1, 0]).unwrap());
    assert_eq!(folded("Where", 13, vec![condition, ints(&[1]), ints(&[2])], &[]).to_i64().unwrap(), [1, 2]);
    let cast = folded("Cast", 13, vec![floats(&[-1.5, 2.9])], &[int("to", 7)]);
    assert_eq!((cast.data_type(), cast.to_i64().unwrap()), (Int64, vec![-1, 2]));
    assert_eq!(folded("Sqrt", 13, vec![floats(&[2.0])], &[]).to_f32().unwrap(), [2f32.sqrt()]);
    let negative = folded("Neg", 13, vec![floats(&[0.0, -0.0, 1.0])], &[]).to_f32().unwrap();
    assert_eq!(
        negative.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
        [-0.0f32, 0.0, -1.0].map(f32::to_bits)
    );
    assert_eq!(folded("Div", 13, vec![floats(&[1.0]), floats(&[3.0])], &[]).to_f32().unwrap(), [1.0 / 3.0]);
    assert_eq!(folded("Floor", 13, vec![floats(&[-0.5])], &[]).to_f32().unwrap(), [-1.0]);
    assert_eq!(folded("Pow", 13, vec![floats(&[3.0]), ints(&[2])], &[]).to_f32().unwrap(), [9.0]);
    let clip = vec![floats(&[-1.0, 0.5, 9.0]), Input::Absent, Input::Constant(Tensor::from_f32(&[], &[6.0]))];
    assert_eq!(folded("Clip", 13, clip, &[]).to_f32().unwrap(), [-1.0, 0.5, 6.0]);
}

#[test]
fn a_division_by_zero_does_not_fold() {
    let mut graph = graph_of("Div", 13, vec![ints(&[1]), ints(&[0])], &[], 1);
    infer_node(&mut graph, 0).unwrap();
    assert!(!graph.is_constant(graph.outputs[0]));
}

#[test]
fn resize_takes_the_elements_that_onnx_names() {
    let row = || Input::Constant(Tensor::from_f32(&[1, 1, 1, 4], &[1.0, 2.0, 3.0, 4.0]));
    let resized = |sizes: &[i64], attributes: &[(&str, Attribute)]| {
        folded("Resize", 13, vec![row(), Input::Absent, Input::Absent, ints(sizes)], attributes).to_f32().unwrap()
    };
    assert_eq!(resized(&[1, 1, 1, 8], &[]), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
    let asymmetric = text("coordinate_transformation_mode", "asymmetric");
    assert_eq!(resized(&[1, 1, 1, 2], &[asymmetric.clone(), text("nearest_mode", "floor")]), [1.0, 3.0]);
    let linear = text("mode", "linear");
    assert_eq!(resized(&[1, 1, 1, 8], std::slice::from_ref(&linear)), [1.0, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.0]);
    let aligned = text("coordinate_transformation_mode", "align_corners");
    assert_eq!(resized(&[1, 1, 1, 7], &[linear, aligned]), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]);
}

#[test]
fn windows_follow_padding_rules() {
    let pool = |attributes: &[(&str, Attribute)]| {
        let mut all = vec![list("kernel_shape", &[3, 3]), list("strides", &[2, 2])];
        all.extend(attributes.iter().cloned());
        inferred("MaxPool", 13, vec![fed(&[1, 1, 6, 7])], &all).remove(0)
    };
    assert_eq!(pool(&[]), [1, 1, 2, 3]);
    assert_eq!(pool(&[int("ceil_mode", 1)]), [1, 1, 3, 3]);
    assert_eq!(pool(&[text("auto_pad", "SAME_UPPER")]), [1, 1, 3, 4]);
    assert_eq!(pool(&[text("auto_pad", "VALID")]), [1, 1, 2, 3]);
    assert_eq!(pool(&[list("pads", &[1, 1, 1, 1])]), [1, 1, 3, 4]);
    let padded = [list("kernel_shape", &[3, 3]), list("pads", &[2, 2, 2, 2])];
    let error = refused("MaxPool", vec![fed(&[1, 1, 6, 0])], &padded);
    assert!(error.contains("windows over the spatial sizes [6, 0] see only padding"), "{error}");
    let error = refused("Conv", vec![fed(&[1, 2, 0, 4]), fed(&[3, 2, 1, 1])], &[list("pads", &[1, 0, 1, 0])]);
    assert!(error.contains("windows over the spatial sizes [0, 4] see only padding"), "{error}");
    assert_eq!(inferred("MaxPool", 13, vec![fed(&[0, 1, 6, 7])], &padded), [[0, 1, 8, 9]]);
    // The last window would start in the padding, so it is left out.
    let attributes = [list("kernel_shape", &[1]), list("strides", &[2]), list("pads", &[0, 1]), int("ceil_mode", 1)];
    assert_eq!(inferred("AveragePool", 19, vec![fed(&[1, 1, 4])], &attributes), [[1, 1, 2]]);
    let transposed = |attributes: &[(&str, Attribute)]| {
        let mut all = vec![list("strides", &[2])];
        all.extend(attributes.iter().cloned());
        inferred("ConvTranspose", 11, vec![fed(&[1, 2, 5]), fed(&[2, 3, 3])], &all).remove(0)
    };
    assert_eq!(transposed(&[]), [1, 3, 11]);
    assert_eq!(transposed(&[list("output_padding", &[1]), list("pads", &[1, 1])]), [1, 3, 10]);
    assert_eq!(transposed(&[list("output_shape", &[10])]), [1, 3, 10]);
    assert_eq!(transposed(&[text("auto_pad", "SAME_LOWER")]), [1, 3, 10]);
}

#[test]
fn norms_count_the_elements_of_their_windows() {
    let counts = |size: i64, [kernel, stride, dilation]: [i64; 3], pads: [i64; 2]| {
        let attributes = [
            int("p", 1),
            list("kernel_shape", &[kernel]),
            list("strides", &[stride]),
            list("dilations", &[dilation]),
            list("pads", &pads),
        ];
        let mut graph = graph_of("LpPool", 18, vec![fed(&[1, 1, size as u64])], &attributes, 1);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        let program = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        let constants = program.contents.values().map(|contents| contents.in_memory().unwrap().to_f32().unwrap());
        constants.collect::<Vec<_>>()
    };
    for (size, [kernel, stride, dilation], pads, places) in
        [(8, [3, 2, 2], [1, 2], 4), (5, [2, 1, 3], [0, 0], 2), (4, [5, 3, 1], [4, 4], 3)]
    {
        let position = |place: i64, tap: i64| place * stride + tap * dilation - pads[0];
        let count = |place: i64| (0..kernel).filter(|&tap| (0..size).contains(&position(place, tap))).count() as f32;
        let expected: Vec<f32> = (0..places).map(count).collect();
        assert_eq!(counts(size, [kernel, stride, dilation], pads), [expected], "{size} {kernel}");
    }
    assert_eq!(counts(4, [(1 << 37) + 1, 1 << 36, 1], [1 << 36; 2]), [[4.0]]);
}

#[test]
fn shapes_follow_each_opset() {
    assert_eq!(inferred("Flatten", 13, vec![fed(&[2, 3, 4])], &[int("axis", -1)]), [[6, 4]]);
    assert_eq!(inferred("Flatten", 13, vec![fed(&[2, 3, 4])], &[int("axis", 0)]), [[1, 24]]);
    assert_eq!(inferred("Reshape", 13, vec![fed(&[2, 3, 4]), ints(&[0, -1])], &[]), [[2, 12]]);
    let allow_zero = [int("allowzero", 1)];
    assert_eq!(inferred("Reshape", 14, vec![fed(&[0, 3]), ints(&[3, 0])], &allow_zero), [[3, 0]]);
    assert_eq!(inferred("Reshape", 4, vec![fed(&[2, 6])], &[list("shape", &[3, -1])]), [[3, 4]]);
    assert_eq!(inferred("MatMul", 13, vec![fed(&[3]), fed(&[3])], &[]), [Vec::<u64>::new()]);
    assert_eq!(inferred("MatMul", 13, vec![fed(&[7, 1, 2, 3]), fed(&[5, 3, 4])], &[]), [[7, 5, 2, 4]]);
    assert_eq!(inferred("Softmax", 11, vec![fed(&[2, 3, 4])], &[]), [[2, 3, 4]]);
    let mut graph = graph_of("Softmax", 11, vec![fed(&[2, 3, 4])], &[], 1);
    infer_node(&mut graph, 0).unwrap();
    let program = lower(&graph, &BTreeSet::new()).unwrap();
    assert_eq!(program.launches[0].kernel, Kernel::Softmax { axis: 1 });
    assert_eq!(program.launches[0].reads[0].desc.sizes(), [2, 12]);
}

#[test]
fn absurd_numbers_are_errors() {
    let huge = 1 << 62;
    for (op_type, inputs, attributes) in [
        ("Expand", vec![fed(&[1]), ints(&[huge, huge])], vec![]),
        ("Tile", vec![fed(&[4]), ints(&[huge])], vec![]),
        ("ConstantOfShape", vec![ints(&[huge, huge])], vec![]),
        ("ConstantOfShape", vec![ints(&[-1])], vec![]),
        ("Range", vec![ints(&[0]), ints(&[huge]), ints(&[1])], vec![]),
        ("Range", vec![ints(&[0]), ints(&[5]), ints(&[0])], vec![]),
        ("Pad", vec![fed(&[4]), ints(&[i64::MAX, i64::MAX])], vec![]),
        ("Pad", vec![fed(&[4]), ints(&[i64::MIN, 0])], vec![]),
        ("Reshape", vec![fed(&[4]), ints(&[huge, huge])], vec![]),
        ("Reshape", vec![fed(&[4]), ints(&[-1, -1])], vec![]),
        ("Reshape", vec![fed(&[4]), ints(&[3, -1])], vec![]),
        ("Concat", vec![fed(&[u64::MAX]), fed(&[2])], vec![int("axis", 0)]),
        ("Gather", vec![fed(&[4]), ints(&[4])], vec![]),
        ("Conv", vec![fed(&[1, 1, 4]), fed(&[1, 1, 9])], vec![]),
        ("Conv", vec![fed(&[1, 1, 4]), fed(&[1, 1, 3])], vec![list("pads", &[i64::MAX, i64::MAX])]),
        ("Conv", vec![fed(&[1, 1, 4]), fed(&[1, 1, 3])], vec![list("dilations", &[i64::MAX])]),
        ("Conv", vec![fed(&[1, 1, 4]), fed(&[1, 1, 3])], vec![list("strides", &[0])]),
        ("Conv", vec![fed(&[1, 1, 4]), fed(&[1, 1, 3])], vec![int("group", 0)]),
        ("ConvTranspose", vec![fed(&[1, 1, 4]), fed(&[1, 1, 3])], vec![list("strides", &[i64::MAX])]),
        ("MaxPool", vec![fed(&[1, 1, 4])], vec![list("kernel_shape", &[0])]),
        ("MaxPool", vec![fed(&[1, 1, 4])], vec![list("kernel_shape", &[-1])]),
        ("Transpose", vec![fed(&[2, 3])], vec![list("perm", &[0, 0])]),
        ("Transpose", vec![fed(&[2, 3])], vec![list("perm", &[i64::MIN, 0])]),
        ("DepthToSpace", vec![fed(&[1, 4, 2, 2])], vec![int("blocksize", i64::MAX)]),
        ("Split", vec![fed(&[4]), ints(&[i64::MAX, i64::MAX])], vec![]),
        ("Slice", vec![fed(&[4]), ints(&[0]), ints(&[2]), ints(&[0]), ints(&[0])], vec![]),
        ("Add", vec![fed(&[2, 3]), fed(&[2])], vec![]),
        ("Add", vec![fed(&[2]), Input::Fed(Int64, vec![2])], vec![]),
        ("Relu", vec![Input::Fed(Bool, vec![2])], vec![]),
        ("MatMul", vec![fed(&[2, 3]), fed(&[2, 3])], vec![]),
        ("MatMul", vec![fed(&[]), fed(&[3])], vec![]),
        ("Resize", vec![fed(&[1, 4]), Input::Absent, Input::Absent, ints(&[1, huge])], vec![text("mode", "cubic")]),
        ("DFT", vec![fed(&[1, 4, 1]), number(huge)], vec![]),
        ("DFT", vec![fed(&[1, 4, 1]), number(0)], vec![]),
        ("STFT", vec![fed(&[1, 8]), number(0)], vec![]),
        ("HannWindow", vec![number(huge)], vec![]),
        ("MelWeightMatrix", vec![number(4), number(8), number(0), float(0.0), float(1.0)], vec![]),
        ("CenterCropPad", vec![fed(&[1, 4]), ints(&[huge, huge])], vec![]),
        ("Col2Im", vec![fed(&[1, 4, 4]), ints(&[huge, huge]), ints(&[2, 2])], vec![]),
        ("Det", vec![fed(&[2, 3])], vec![]),
        ("GridSample", vec![fed(&[1, 1, 2, 2]), fed(&[1, 2, 2, 3])], vec![]),
        ("AffineGrid", vec![fed(&[1, 2, 3]), ints(&[1, 1, huge, huge])], vec![]),
        ("RoiAlign", vec![fed(&[1, 1, 2, 2]), fed(&[1, 4]), fed(&[2])], vec![]),
        ("MaxRoiPool", vec![fed(&[1, 1, 2, 2]), fed(&[1, 4])], vec![list("pooled_shape", &[1, 1])]),
        ("DeformConv", vec![fed(&[1, 1, 4, 4]), fed(&[1, 1, 2, 2]), fed(&[1, 7, 3, 3])], vec![]),
        ("AffineGrid", vec![fed(&[1, 2, 3]), ints(&[1, 1, 1 << 20, 1 << 20])], vec![]),
        ("GridSample", vec![fed(&[1 << 40, 1, 1, 1]), fed(&[1 << 40, 1, 1, 2])], vec![]),
        ("STFT", vec![fed(&[1, 1 << 22]), number(1), fed(&[1 << 10])], vec![]),
        (
            "RoiAlign",
            vec![fed(&[1, 1, 2, 2]), fed(&[1, 4]), Input::Fed(Int64, vec![1])],
            vec![int("sampling_ratio", 1 << 40)],
        ),
        ("RandomNormal", vec![], vec![list("shape", &[huge, huge])]),
        ("Multinomial", vec![fed(&[2])], vec![]),
        ("Upsample", vec![fed(&[1, 4]), floats(&[1.0, f32::INFINITY])], vec![]),
        ("Upsample", vec![fed(&[1, 4]), floats(&[1.0, -1.0])], vec![]),
        ("Cast", vec![fed(&[1])], vec![int("to", 99)]),
        ("BitCast", vec![fed(&[1])], vec![int("to", 7)]),
        (
            "LinearAttention",
            vec![fed(&[1, 2, 4]), fed(&[1, 2, 4]), fed(&[1, 2, 4])],
            vec![int("q_num_heads", 1), int("kv_num_heads", 1)],
        ),
        ("LRN", vec![fed(&[1, 4])], vec![int("size", 0)]),
        ("GroupNormalization", vec![fed(&[1, 4, 2]), fed(&[4]), fed(&[4])], vec![int("num_groups", 3)]),
        ("LSTM", vec![fed(&[3, 2, 5]), fed(&[1, 16, 5]), fed(&[1, 15, 4])], vec![]),
        ("LSTM", vec![fed(&[3, 2, 5]), fed(&[1, 16, 5]), fed(&[1, 16, 4])], vec![text("direction", "sideways")]),
        ("GRU", vec![fed(&[3, 2, 5]), fed(&[1, 12, 5]), fed(&[1, 12, 4])], vec![int("hidden_size", 5)]),
        ("RNN", vec![fed(&[3, 2, 5]), fed(&[1, 4, 5]), fed(&[1, 4, 4]), fed(&[1, 4])], vec![]),
        ("QuantizeLinear", vec![fed(&[4]), fed(&[3])], vec![int("axis", 0)]),
        ("DequantizeLinear", vec![fed(&[4]), fed(&[])], vec![]),
        ("MatMulInteger", vec![Input::Fed(UInt8, vec![2, 3]), Input::Fed(UInt8, vec![2, 3])], vec![]),
        ("BitShift", vec![fed(&[2]), fed(&[2])], vec![text("direction", "LEFT")]),
        ("BitShift", vec![Input::Fed(Int8, vec![2]), Input::Fed(Int8, vec![2])], vec![text("direction", "UP")]),
        ("SwiGLU", vec![fed(&[2]), fed(&[1])], vec![]),
        ("OneDoesNotExist", vec![], vec![]),
    ] {
        let message = refused(op_type, inputs, &attributes);
        assert!(message.contains(op_type), "{message}");
    }
}

#[test]
fn errors_name_the_fault_among_several() {
    let pool = [
        list("pool_int64s", &[2, 3]),
        list("ngram_counts", &[0]),
        list("ngram_indexes", &[0, 1 << 26]),
        int("min_gram_length", 1),
        int("max_gram_length", 1),
        text("mode", "TF"),
    ];
    let window = [list("kernel_shape", &[2, 2]), list("strides", &[2, 2])];
    let unpooled = |sizes: &[i64]| vec![fed(&[1, 2, 2, 2]), Input::Fed(Int64, vec![1, 2, 2, 2]), ints(sizes)];
    let range = |limit: f32, step: f32| vec![float(0.0), float(limit), float(step)];
    let bins = [list("pooled_shape", &[1 << 36, 1])];
    let padded = [list("kernel_shape", &[1]), list("pads", &[1 << 36, 1 << 36])];
    for (op_type, inputs, attributes, words) in [
        ("Range", range(5.0, 0.0), &[][..], "the step must not be 0"),
        ("Range", range(f32::INFINITY, 1.0), &[][..], "from 0 to inf in steps of 1 does not have a finite number"),
        ("TfIdfVectorizer", vec![Input::Fed(Int32, vec![2, 6])], &pool[..], "must contain places from 0 to 67108863"),
        (
            "MaxUnpool",
            unpooled(&[2, 4, 4]),
            &window[..],
            "expected 4 sizes, as in the pooling's [1, 2, 4, 4], found [2, 4, 4]",
        ),
        ("MaxUnpool", unpooled(&[1, 2, 4, 3]), &window[..], "must be at least the pooling's [1, 2, 4, 4]"),
        ("MaxRoiPool", vec![fed(&[1, 1, 2, 2]), fed(&[1, 5])], &bins[..], "more than 67108864"),
        ("LpPool", vec![fed(&[1, 1, 4])], &padded[..], "more than 67108864"),
    ] {
        let error = refused(op_type, inputs, attributes);
        assert!(error.contains(words), "{op_type}: {error}");
    }
}

#[test]
fn names_are_unique() {
    let mut seen = BTreeSet::new();
    for row in FAMILIES.iter().flat_map(|family| family.iter()) {
        assert!(seen.insert((row.domain, row.op_type)), "{}", row.op_type);
        assert!(!row.domain.is_empty() || find("ai.onnx", row.op_type).is_some());
        let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
        assert!(find(domain, row.op_type).is_some());
    }
}
