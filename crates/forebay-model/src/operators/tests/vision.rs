//! Operators of images against values of ONNX Runtime: scales in float32, regions without samples, empty batches and 16-bit types.

use super::*;

const OPSET: i64 = 22;

/// The elements 0, 1, 2, .. in a single row.
fn row(size: u64) -> Input {
    let values: Vec<f32> = (0..size).map(|i| i as f32).collect();
    Input::Constant(Tensor::from_f32(&[1, 1, 1, size], &values))
}

fn matrix(shape: &[u64], values: &[f32]) -> Input {
    Input::Constant(Tensor::from_f32(shape, values))
}

/// The types of a node's outputs, of which it has `count`.
fn types(
    op_type: &str,
    version: i64,
    inputs: Vec<Input>,
    attributes: &[(&str, Attribute)],
    count: usize,
) -> Vec<DataType> {
    let mut graph = graph_of(op_type, version, inputs, attributes, count);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
    graph.outputs.iter().map(|&output| graph.ty(output).unwrap().data_type).collect()
}

/// Attributes by name.
type Attributes = Vec<(&'static str, Attribute)>;

#[test]
fn sizes_and_places_by_scales_are_computed_in_float32() {
    let asymmetric = [text("coordinate_transformation_mode", "asymmetric"), text("nearest_mode", "floor")];
    let by = |scale: f32| vec![row(9), Input::Absent, floats(&[1.0, 1.0, 1.0, scale])];
    assert_eq!(folded("Resize", 13, by(1.0 / 3.0), &asymmetric).to_f32().unwrap(), [0.0, 3.0, 6.0]);
    let to = vec![row(9), Input::Absent, Input::Absent, ints(&[1, 1, 1, 3])];
    assert_eq!(folded("Resize", 13, to, &asymmetric).to_f32().unwrap(), [0.0, 3.0, 6.0]);
    let scales = || floats(&[1.0, 1.0, 1.0, 1.8]);
    assert_eq!(
        inferred("Resize", 13, vec![row(5), Input::Absent, scales()], &[text("mode", "linear")]),
        [[1, 1, 1, 9]]
    );
    assert_eq!(inferred("Upsample", 9, vec![row(5), scales()], &[]), [[1, 1, 1, 9]]);
}

#[test]
fn places_follow_the_rules_of_old_opsets_and_of_converters() {
    let image = matrix(&[1, 1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let smaller = folded("Resize", 10, vec![image, floats(&[1.0, 1.0, 0.6, 0.6])], &[]);
    assert_eq!(smaller.to_f32().unwrap(), [1.0, 3.0]);
    let attributes = [text("coordinate_transformation_mode", "tf_half_pixel_for_nn"), text("nearest_mode", "floor")];
    let larger = vec![row(6), Input::Absent, floats(&[1.0, 1.0, 1.0, 1.5])];
    assert_eq!(folded("Resize", 11, larger, &attributes).to_f32().unwrap(), [0., 1., 1., 2., 3., 3., 4., 5., 5.]);
    let attributes = [text("mode", "cubic"), text("coordinate_transformation_mode", "pytorch_half_pixel")];
    let one = vec![matrix(&[1, 5], &[1.0, 5.0, 2.0, 7.0, 3.0]), Input::Absent, Input::Absent, ints(&[1, 1])];
    assert_eq!(folded("Resize", 13, one, &attributes).to_f32().unwrap(), [1.0]);
}

#[test]
fn integers_between_two_are_rounded_towards_zero() {
    let bytes = Tensor::new(UInt8, &[1, 6], vec![0, 1, 2, 3, 200, 255]).unwrap();
    let inputs = vec![Input::Constant(bytes), Input::Absent, Input::Absent, ints(&[1, 9])];
    let resized = folded("Resize", 19, inputs, &[text("mode", "linear")]);
    assert_eq!(resized.to_i64().unwrap(), [0, 0, 1, 1, 2, 35, 167, 227, 255]);
}

#[test]
fn regions_have_the_samples_that_their_size_asks_for() {
    let aligned = |image: f32, region: [f32; 4], attributes: &[(&str, Attribute)]| {
        let inputs = vec![matrix(&[1, 1, 8, 8], &[image; 64]), matrix(&[1, 4], &region), ints(&[0])];
        folded("RoiAlign", 16, inputs, attributes).to_f32().unwrap()
    };
    let largest = [text("mode", "max"), text("coordinate_transformation_mode", "output_half_pixel")];
    assert_eq!(aligned(-1.0, [1.0, 1.0, 3.0, 3.0], &largest), [-0.25]);
    for mode in ["avg", "max"] {
        let attributes = [text("mode", mode), int("output_width", 2)];
        assert_eq!(aligned(1.0, [0.0; 4], &attributes), [0.0; 2], "{mode}");
        assert_eq!(aligned(1.0, [5.0, 4.0, 2.0, 2.0], &attributes), [0.0; 2], "{mode}");
    }
    assert_eq!(aligned(1.0, [1.0, 1.0, 5.0, 5.0], &[]), [1.0]);
}

/// The product of 21 and the float32 of 1 / 7 is 3.0000002.
#[test]
fn bins_of_whole_elements_have_as_many_samples() {
    let image: Vec<f32> = (0..64 * 64).map(|i| (i * i % 97) as f32).collect();
    for (size, samples) in [(21.0, 3), (42.0, 6)] {
        let [asked, found] = [samples, 0].map(|ratio| {
            let region = matrix(&[1, 4], &[2.0, 3.0, 2.0 + size, 3.0 + size]);
            let attributes = [int("output_height", 7), int("output_width", 7), int("sampling_ratio", ratio)];
            let inputs = vec![matrix(&[1, 1, 64, 64], &image), region, ints(&[0])];
            folded("RoiAlign", 16, inputs, &attributes).to_f32().unwrap()
        });
        assert!(asked.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-3), "{size}: {asked:?} {found:?}");
    }
}

#[test]
fn cropped_places_are_computed_in_float32_and_regions_have_any_float_type() {
    let attributes = [text("coordinate_transformation_mode", "tf_crop_and_resize"), text("nearest_mode", "ceil")];
    let sizes = || ints(&[1, 1, 1, 5]);
    let region = floats(&[0.0, 0.0, 0.0, 0.1, 1.0, 1.0, 1.0, 0.8]);
    let cropped = folded("Resize", 18, vec![row(9), region, Input::Absent, sizes()], &attributes);
    assert_eq!(cropped.to_f32().unwrap(), [1.0, 3.0, 4.0, 5.0, 7.0]);
    // 0 and 1 in float16.
    let bytes = [[0u8; 8], [0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c]].concat();
    let region = Input::Constant(Tensor::new(Float16, &[8], bytes).unwrap());
    let whole = folded("Resize", 18, vec![row(9), region, Input::Absent, sizes()], &attributes);
    assert_eq!(whole.to_f32().unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn empty_batches_have_empty_results() {
    let none = || fed(&[0, 3, 8, 8]);
    let sizes = [int("output_height", 2), int("output_width", 2)];
    let pooled = list("pooled_shape", &[2, 2]);
    let samples: [(&str, Vec<Input>, Attributes, [u64; 4]); 8] = [
        ("RoiAlign", vec![fed(&[1, 3, 8, 8]), fed(&[0, 4]), Input::Fed(Int64, vec![0])], sizes.into(), [0, 3, 2, 2]),
        ("MaxRoiPool", vec![fed(&[1, 3, 8, 8]), fed(&[0, 5])], vec![pooled], [0, 3, 2, 2]),
        ("Resize", vec![none(), Input::Absent, floats(&[1.0, 1.0, 2.0, 2.0])], vec![], [0, 3, 16, 16]),
        ("Resize", vec![none(), Input::Absent, Input::Absent, ints(&[0, 3, 9, 9])], vec![], [0, 3, 9, 9]),
        ("InstanceNormalization", vec![none(), fed(&[3]), fed(&[3])], vec![], [0, 3, 8, 8]),
        ("GroupNormalization", vec![none(), fed(&[3]), fed(&[3])], vec![int("num_groups", 3)], [0, 3, 8, 8]),
        ("GridSample", vec![none(), fed(&[0, 4, 5, 2])], vec![], [0, 3, 4, 5]),
        ("DeformConv", vec![none(), fed(&[4, 3, 3, 3]), fed(&[0, 18, 6, 6])], vec![], [0, 4, 6, 6]),
    ];
    for (op_type, inputs, attributes, expected) in samples {
        let mut graph = graph_of(op_type, OPSET, inputs, &attributes, 1);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(shapes(&graph), [expected], "{op_type}");
        let program = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        // Only the place of the output itself.
        assert_eq!(program.launches.len(), 1, "{op_type}: {:?}", program.launches);
    }
    let error = refused("RoiAlign", vec![none(), fed(&[2, 4]), Input::Fed(Int64, vec![2])], &[]);
    assert!(error.contains("2 regions of images float32[0, 3, 8, 8]"), "{error}");
    let error = refused("Resize", vec![none(), Input::Absent, Input::Absent, ints(&[1, 3, 9, 9])], &[]);
    assert!(error.contains("cannot be resized to 1"), "{error}");
}

#[test]
fn a_window_that_is_a_little_too_large_counts_if_sizes_are_rounded_up() {
    let attributes = |ceil: i64| [list("kernel_shape", &[3, 3]), list("strides", &[2, 2]), int("ceil_mode", ceil)];
    for op_type in ["MaxPool", "AveragePool", "LpPool"] {
        assert_eq!(inferred(op_type, OPSET, vec![fed(&[1, 1, 2, 2])], &attributes(1)), [[1, 1, 1, 1]], "{op_type}");
        for (ceil, image) in [(0, fed(&[1, 1, 2, 2])), (1, fed(&[1, 1, 1, 2]))] {
            let error = refused(op_type, vec![image], &attributes(ceil));
            assert!(error.contains("a window of 3 elements is larger"), "{error}");
        }
    }
}

#[test]
fn statistics_have_the_types_that_onnx_names() {
    let half = |shape: &[u64]| Input::Fed(Float16, shape.to_vec());
    let rows = |stash: i64| {
        let attributes = [int("stash_type", stash)];
        types("LayerNormalization", 17, vec![half(&[2, 5]), half(&[5])], &attributes, 3)
    };
    assert_eq!((rows(1), rows(16)), (vec![Float16, Float32, Float32], vec![Float16, BFloat16, BFloat16]));
    let skip = vec![half(&[1, 2, 5]), half(&[1, 2, 5]), half(&[5])];
    assert_eq!(types("SkipLayerNormalization", 1, skip, &[], 3)[1..], [Float32; 2]);
    let mut batch = vec![half(&[2, 3, 4])];
    batch.extend((0..4).map(|_| fed(&[3])));
    let training = [int("training_mode", 1)];
    assert_eq!(types("BatchNormalization", 15, batch, &training, 3), [Float16, Float32, Float32]);
    assert_eq!(types("RMSNormalization", 23, vec![half(&[2, 5]), fed(&[5])], &[], 1), [Float32]);
}

/// The conversions to float16 are of results, not of sums, squares or variances.
#[test]
fn sums_of_float16_are_not_stored_in_float16() {
    let half = |shape: &[u64]| Input::Fed(Float16, shape.to_vec());
    let image = [2, 3, 4, 4];
    let window = || vec![list("kernel_shape", &[1, 1])];
    let batch = || (0..5).map(|i| half(if i == 0 { &image } else { &image[1..2] })).collect();
    let samples: [(&str, Vec<Input>, Attributes, usize, usize); 9] = [
        ("RMSNormalization", vec![half(&image), half(&[4])], vec![], 1, 2),
        ("SimplifiedLayerNormalization", vec![half(&image), half(&[4])], vec![], 1, 2),
        ("LpPool", vec![half(&image)], window(), 1, 1),
        ("LpPool", vec![half(&image)], [window(), vec![int("p", 3)]].concat(), 1, 1),
        ("LpNormalization", vec![half(&image)], vec![int("p", 1)], 1, 1),
        ("MeanVarianceNormalization", vec![half(&image)], vec![], 1, 1),
        ("InstanceNormalization", vec![half(&image), half(&[3]), half(&[3])], vec![], 1, 3),
        ("BatchNormalization", batch(), vec![int("training_mode", 1)], 3, 3),
        (
            "Resize",
            vec![half(&image), Input::Absent, Input::Absent, ints(&[2, 3, 7, 7])],
            vec![text("mode", "linear")],
            1,
            1,
        ),
    ];
    for (op_type, inputs, attributes, outputs, expected) in samples {
        let mut graph = graph_of(op_type, OPSET, inputs, &attributes, outputs);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        let program = lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        let is_narrow = |launch: &&crate::program::ProgramLaunch| launch.writes[0].desc.data_type() == Float16;
        let casts = program.launches.iter().filter(is_narrow).filter(|launch| launch.kernel.name() == "Cast");
        assert_eq!(casts.count(), expected, "{op_type}");
    }
}

#[test]
fn batches_without_channels_and_outputs_of_old_exporters_are_accepted() {
    let statistics = |size: u64| (0..4).map(move |_| fed(&[size]));
    let one: Vec<Input> = [fed(&[5])].into_iter().chain(statistics(1)).collect();
    assert_eq!(inferred("BatchNormalization", 15, one, &[]), [[5]]);
    for version in [7, 9] {
        let inputs = [fed(&[2, 3, 4])].into_iter().chain(statistics(3)).collect();
        let mut graph = graph_of("BatchNormalization", version, inputs, &[], 5);
        infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(shapes(&graph), [vec![2, 3, 4], vec![3], vec![3], vec![3], vec![3]]);
        lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
    }
}
