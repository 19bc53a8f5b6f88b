use forebay_base::DataType;
use forebay_base::kernel::{Activation, Window};

use super::super::shaders::{
    CORRELATION_64X64, CORRELATION_64X64_F16_COOPERATIVE, CORRELATION_128X16, CORRELATION_128X16_F16_COOPERATIVE,
    CORRELATION_128X128_F16_COOPERATIVE, CORRELATION_DIRECT, CORRELATION_DIRECT_F16, WEIGHT_GRADIENT_16X64_NARROW,
    WEIGHT_GRADIENT_16X128, WEIGHT_GRADIENT_16X128_F16, WEIGHT_GRADIENT_64X64_F16_COOPERATIVE,
    WEIGHT_GRADIENT_128X128_F16_COOPERATIVE,
};
use super::super::{Dispatch, lower};
use super::*;

fn packed(sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(DataType::Float32, sizes).unwrap()
}

/// A 3 x 3 window that preserves sizes.
fn convolution(groups: u64) -> Convolution {
    let all = |value| vec![value; 2];
    let window = Window { kernel: all(3), strides: all(1), dilations: all(1), pads_begin: all(1), pads_end: all(1) };
    Convolution { window, groups }
}

fn forward(images: u64, inputs: u64, outputs: u64, side: u64, gpu: &Target) -> Result<Vec<Dispatch>, Unsupported> {
    let kernel = Kernel::Convolution { convolution: convolution(1), activation: Activation::None };
    let x = packed(&[images, inputs, side, side]);
    let (w, y) = (packed(&[outputs, inputs, 3, 3]), packed(&[images, outputs, side, side]));
    lower(&kernel, &[x, w], &[y], gpu).map(|lowered| lowered.dispatches)
}

fn weight_gradient(images: u64, channels: u64, side: u64, gpu: &Target) -> Result<Lowered, Unsupported> {
    let kernel = Kernel::ConvolutionWeightGradient { convolution: convolution(1) };
    let x = packed(&[images, channels, side, side]);
    lower(&kernel, &[x.clone(), x], &[packed(&[channels, channels, 3, 3])], gpu)
}

#[test]
fn tiles_have_as_many_columns_as_there_are_channels() {
    for (outputs, shader) in [(2, &CORRELATION_DIRECT), (3, &CORRELATION_128X16), (64, &CORRELATION_64X64)] {
        let dispatches = forward(1, 4, outputs, 20, &Target::LEAST).unwrap();
        assert_eq!(dispatches.iter().map(|dispatch| dispatch.shader).collect::<Vec<_>>(), [shader], "{outputs}");
    }
}

#[test]
fn matrices_are_multiplied_together_where_a_device_offers_it() {
    let half = |sizes: &[u64]| TensorDesc::packed(DataType::Float16, sizes).unwrap();
    let shader = |outputs: u64, side: u64| {
        let kernel = Kernel::Convolution { convolution: convolution(1), activation: Activation::None };
        let reads = [half(&[1, 4, side, side]), half(&[outputs, 4, 3, 3])];
        lower(&kernel, &reads, &[half(&[1, outputs, side, side])], &Target::COOPERATIVE).unwrap().dispatches[0].shader
    };
    let expected = [
        (2, 20, &CORRELATION_DIRECT_F16),
        (5, 20, &CORRELATION_128X16_F16_COOPERATIVE),
        (70, 20, &CORRELATION_64X64_F16_COOPERATIVE),
        (70, 200, &CORRELATION_128X128_F16_COOPERATIVE),
    ];
    for (outputs, side, expected) in expected {
        assert_eq!(shader(outputs, side), expected, "{outputs} channels, {side} x {side}");
    }
    let kernel = Kernel::ConvolutionWeightGradient { convolution: convolution(1) };
    let expected = [
        (1, 16, &WEIGHT_GRADIENT_16X128_F16),
        (2, 40, &WEIGHT_GRADIENT_64X64_F16_COOPERATIVE),
        (2, 100, &WEIGHT_GRADIENT_64X64_F16_COOPERATIVE),
        (64, 400, &WEIGHT_GRADIENT_128X128_F16_COOPERATIVE),
    ];
    for (images, channels, expected) in expected {
        let x = half(&[images, channels, 20, 20]);
        let w = half(&[channels, channels, 3, 3]);
        let lowered = lower(&kernel, &[x.clone(), x], &[w], &Target::COOPERATIVE).unwrap();
        assert_eq!(lowered.dispatches[0].shader, expected, "{images} images, {channels} channels");
    }
}

#[test]
fn weight_gradients_have_narrow_tiles_where_a_device_would_not_be_busy() {
    // 90 x 90 positions are 5 chunks of 22 rows; 8 x 72 weights are a wide tile, or two narrow ones.
    for (images, shader, tiles) in [(2, &WEIGHT_GRADIENT_16X64_NARROW, 2), (200, &WEIGHT_GRADIENT_16X128, 1)] {
        let lowered = weight_gradient(images, 8, 90, &Target::LEAST).unwrap();
        let dispatch = &lowered.dispatches[0];
        assert_eq!((dispatch.shader, dispatch.parameters[3]), (shader, tiles));
        assert_eq!(u64::from(dispatch.parameters[6]), 5 * images, "as many subtrees");
    }
}

/// With few weights, subtrees are summed separately, in as much workspace as there is. With many weights, workgroups go through all chunks,
/// which needs no workspace, not even for 16-bit weights.
#[test]
fn subtrees_are_summed_apart_where_there_are_few_weights() {
    let half = |sizes: &[u64]| TensorDesc::packed(DataType::Float16, sizes).unwrap();
    let kernel = Kernel::ConvolutionWeightGradient { convolution: convolution(1) };
    let x = half(&[20, 600, 20, 20]);
    let many = lower(&kernel, &[x.clone(), x], &[half(&[600, 600, 3, 3])], &Target::LEAST).unwrap();
    assert_eq!((many.workspace_bytes, many.dispatches[0].constants[0]), (0, 0));
    let weights_bytes = (8 * 8 * 9 * 4u64).next_multiple_of(256);
    // Twenty images of four chunks: all of them, whole images, pairs, and all images together.
    for (room, subtrees) in [(1000, 80), (79, 40), (25, 20), (19, 10), (1, 1), (0, 1)] {
        let gpu = Target { workspace_bytes_max: room * weights_bytes, ..Target::LEAST };
        let lowered = weight_gradient(20, 8, 80, &gpu).unwrap();
        assert_eq!(lowered.dispatches[0].parameters[6], subtrees, "{room}");
        let needed_bytes = if subtrees > 1 { u64::from(subtrees) * weights_bytes } else { 0 };
        assert_eq!(lowered.workspace_bytes, needed_bytes, "{room}");
    }
}

#[test]
fn images_run_in_parts_where_a_binding_does_not_hold_them() {
    let image_bytes = 8 * 32 * 32 * 4;
    let gpu = Target { binding_bytes_max: 5 * image_bytes, ..Target::LEAST };
    let dispatches = forward(7, 3, 8, 32, &gpu).unwrap();
    let bounds: Vec<_> = dispatches.iter().map(|dispatch| dispatch.bindings[3]).collect();
    assert_eq!(bounds.iter().map(|bound| bound.offset_bytes).collect::<Vec<_>>(), [0, 5 * image_bytes]);
    assert_eq!(bounds.iter().map(|bound| bound.size_bytes).collect::<Vec<_>>(), [Some(5 * image_bytes), None]);
}

#[test]
fn an_image_that_no_binding_holds_is_reached_by_its_address() {
    let by_address =
        |dispatches: &[Dispatch]| dispatches.iter().map(|dispatch| dispatch.shader.is_by_address()).collect::<Vec<_>>();
    let gpu = Target { binding_bytes_max: 1 << 12, ..Target::LEAST };
    assert_eq!(by_address(&forward(7, 3, 8, 32, &gpu).unwrap()), [true]);
    // Single images fit, but not all of them together: sums over images are not cut.
    let gpu = Target { binding_bytes_max: 3 * 6400 * 4, ..Target::LEAST };
    assert_eq!(by_address(&forward(3, 4, 4, 40, &gpu).unwrap()), [false]);
    assert_eq!(by_address(&forward(4, 4, 4, 40, &gpu).unwrap()), [false; 2]);
    assert_eq!(by_address(&weight_gradient(3, 4, 40, &gpu).unwrap().dispatches), [false; 2]);
    assert_eq!(by_address(&weight_gradient(4, 4, 40, &gpu).unwrap().dispatches), [true, false]);
}

#[test]
fn chunks_are_summed_apart_where_there_are_few_weights() {
    // 90 x 90 positions are chunks of 22 rows.
    let few = weight_gradient(2, 8, 90, &Target::LEAST).unwrap();
    assert_eq!(few.workspace_bytes, (2 * 5 * 8 * 8 * 9 * 4u64).next_multiple_of(256));
    assert_eq!(few.dispatches[0].constants, [1]);
    let many = weight_gradient(2, 600, 20, &Target::LEAST).unwrap();
    assert_eq!((many.workspace_bytes, &many.dispatches[0].constants[..]), (0, &[0][..]));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let kernel = Kernel::Convolution { convolution: convolution(2), activation: Activation::None };
    let [x, w, y] = [packed(&[1, 4, 5, 5]), packed(&[6, 4, 3, 3]), packed(&[1, 6, 5, 5])];
    let error = lower(&kernel, &[x.clone(), w], std::slice::from_ref(&y), &Target::LEAST).unwrap_err().to_string();
    assert!(error.contains("2 groups"), "{error}");
    let half = TensorDesc::packed(DataType::Float16, &[6, 2, 3, 3]).unwrap();
    let error = lower(&kernel, &[x, half], &[y], &Target::LEAST).unwrap_err().to_string();
    assert!(error.contains("float16"), "{error}");
}
