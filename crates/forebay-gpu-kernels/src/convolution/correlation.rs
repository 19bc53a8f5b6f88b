//! Forward convolution and the data gradient: `kernels/correlation.slang`.
//!
//! An element of the target is a single sum over the channels of the source and the taps, in that order, whatever the tiles, so that parts
//! of the target have the same bits as the whole.

use forebay_base::kernel::Activation;

use super::super::operand_type::{Builds, CooperativeBuilds, OperandType};
use super::super::operands::bindings;
use super::super::shaders::{
    CORRELATION_64X64, CORRELATION_64X64_BF16, CORRELATION_64X64_BF16_COOPERATIVE, CORRELATION_64X64_F16,
    CORRELATION_64X64_F16_COOPERATIVE, CORRELATION_128X16, CORRELATION_128X16_BF16,
    CORRELATION_128X16_BF16_COOPERATIVE, CORRELATION_128X16_F16, CORRELATION_128X16_F16_COOPERATIVE,
    CORRELATION_128X32, CORRELATION_128X32_BF16, CORRELATION_128X32_BF16_COOPERATIVE, CORRELATION_128X32_F16,
    CORRELATION_128X32_F16_COOPERATIVE, CORRELATION_128X128, CORRELATION_128X128_BF16,
    CORRELATION_128X128_BF16_COOPERATIVE, CORRELATION_128X128_F16, CORRELATION_128X128_F16_COOPERATIVE,
    CORRELATION_DIRECT, CORRELATION_DIRECT_BF16, CORRELATION_DIRECT_F16,
};
use super::super::spatial::Spatial;
use super::super::target::{GROUPS_MIN, LARGE_TILE_BYTES};
use super::super::{Dispatch, Operand, Shader, Target, groups};
use super::Geometry;

/// Shaders by the positions and channels of their tiles; the last computes one element per invocation.
const OF_128X128: Builds = [&CORRELATION_128X128, &CORRELATION_128X128_F16, &CORRELATION_128X128_BF16];
const OF_128X32: Builds = [&CORRELATION_128X32, &CORRELATION_128X32_F16, &CORRELATION_128X32_BF16];
const OF_128X16: Builds = [&CORRELATION_128X16, &CORRELATION_128X16_F16, &CORRELATION_128X16_BF16];
const OF_64X64: Builds = [&CORRELATION_64X64, &CORRELATION_64X64_F16, &CORRELATION_64X64_BF16];
const COOPERATIVE_128X128: CooperativeBuilds =
    [&CORRELATION_128X128_F16_COOPERATIVE, &CORRELATION_128X128_BF16_COOPERATIVE];
const COOPERATIVE_128X32: CooperativeBuilds =
    [&CORRELATION_128X32_F16_COOPERATIVE, &CORRELATION_128X32_BF16_COOPERATIVE];
const COOPERATIVE_128X16: CooperativeBuilds =
    [&CORRELATION_128X16_F16_COOPERATIVE, &CORRELATION_128X16_BF16_COOPERATIVE];
const COOPERATIVE_64X64: CooperativeBuilds = [&CORRELATION_64X64_F16_COOPERATIVE, &CORRELATION_64X64_BF16_COOPERATIVE];
const DIRECT: Builds = [&CORRELATION_DIRECT, &CORRELATION_DIRECT_F16, &CORRELATION_DIRECT_BF16];

/// Target elements along a dimension that use the same taps: their positions have the same remainder modulo the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// The number of elements, and the first one.
    count: u32,
    first: u32,
    /// The position in the source that the first element reads through the first tap.
    origin: i32,
    /// The number of taps, and the index of the first one in the kernel.
    taps: u32,
    first_tap: u32,
}

/// One dimension of a correlation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Axis {
    classes: Vec<Class>,
    /// The steps of the target's and the source's index from one element of a class to the next.
    target_step: u32,
    source_step: u32,
    /// The steps of the source's index and of the tap's index in the kernel from one tap of a class to the next.
    tap_step: i32,
    kernel_step: u32,
}

impl Axis {
    /// Elements of y that read elements of x.
    fn forward(geometry: &Geometry, d: usize) -> Axis {
        let window = &geometry.window;
        let class = Class {
            count: geometry.y.sizes[d],
            first: 0,
            origin: -(window.pads[d] as i32),
            taps: window.kernel[d],
            first_tap: 0,
        };
        Axis {
            classes: vec![class],
            target_step: 1,
            source_step: window.strides[d],
            tap_step: window.dilations[d] as i32,
            kernel_step: 1,
        }
    }

    /// Elements of x that read elements of y: through tap t, element p reads element (p + pad - t dilation) / stride of y, if that is an
    /// integer.
    fn transposed(geometry: &Geometry, d: usize) -> Axis {
        let window = &geometry.window;
        let [kernel, stride, dilation, pad] =
            [window.kernel[d], window.strides[d], window.dilations[d], window.pads[d]].map(|value| value as i32);
        let size = geometry.x.sizes[d];
        // After this many taps the remainder repeats.
        let period = stride / greatest_common_divisor(stride, dilation);
        let class = |first: i32| {
            let distance = |tap: i32| first + pad - tap * dilation;
            let first_tap = (0..kernel.min(period)).find(|&tap| distance(tap) % stride == 0);
            Class {
                count: (size - first as u32).div_ceil(stride as u32),
                first: first as u32,
                origin: first_tap.map_or(0, |tap| distance(tap) / stride),
                taps: first_tap.map_or(0, |tap| ((kernel - tap) as u32).div_ceil(period as u32)),
                first_tap: first_tap.unwrap_or(0) as u32,
            }
        };
        Axis {
            classes: (0..stride.min(size as i32)).map(class).collect(),
            target_step: stride as u32,
            source_step: 1,
            tap_step: -(period * dilation / stride),
            kernel_step: period as u32,
        }
    }
}

fn greatest_common_divisor(a: i32, b: i32) -> i32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Returns a shader and the positions and channels of its tile of the target. Whether it uses cooperative matrices does not depend on the
/// number of positions, so that parts of the target have the same bits as the whole.
fn tile(
    operand_type: OperandType,
    positions: u64,
    channels: u64,
    others: u64,
    gpu: &Target,
) -> (&'static Shader, u64, u64) {
    let is_large = gpu.shared_bytes >= LARGE_TILE_BYTES
        && channels > 64
        && others * positions.div_ceil(128) * channels.div_ceil(128) >= GROUPS_MIN;
    let (rows, columns, builds, cooperative) = match channels {
        // A tile would be nearly empty.
        0..=2 => return (operand_type.build(DIRECT), 64, 1),
        3..=16 => (128, 16, OF_128X16, COOPERATIVE_128X16),
        17..=32 => (128, 32, OF_128X32, COOPERATIVE_128X32),
        _ if is_large => (128, 128, OF_128X128, COOPERATIVE_128X128),
        _ => (64, 64, OF_64X64, COOPERATIVE_64X64),
    };
    (operand_type.best(builds, cooperative, gpu), rows, columns)
}

/// One direction of a convolution: what is read, what is written, and the strides of the weights over the channels of each.
pub(super) struct Direction<'a> {
    geometry: &'a Geometry,
    axes: [Axis; 3],
    source: &'a Spatial,
    target: &'a Spatial,
    /// The number of channels per group of the source and of the target.
    sources: u32,
    targets: u32,
    source_weights: u32,
    target_weights: u32,
}

impl Direction<'_> {
    /// The direction that computes y from x.
    pub fn forward(geometry: &Geometry) -> Direction<'_> {
        let [by_output, by_input, ..] = geometry.weight_strides();
        Direction {
            geometry,
            axes: std::array::from_fn(|d| Axis::forward(geometry, d)),
            source: &geometry.x,
            target: &geometry.y,
            sources: geometry.inputs,
            targets: geometry.outputs,
            source_weights: by_input,
            target_weights: by_output,
        }
    }

    /// The direction that computes dx from dy.
    pub fn transposed(geometry: &Geometry) -> Direction<'_> {
        let [by_output, by_input, ..] = geometry.weight_strides();
        Direction {
            geometry,
            axes: std::array::from_fn(|d| Axis::transposed(geometry, d)),
            source: &geometry.y,
            target: &geometry.x,
            sources: geometry.outputs,
            targets: geometry.inputs,
            source_weights: by_output,
            target_weights: by_input,
        }
    }

    /// Returns the dispatch for this number of images.
    pub fn dispatch(&self, images: u32, bias: bool, activation: Activation, gpu: &Target) -> Dispatch {
        let axes = &self.axes;
        let classes: u64 = axes.iter().map(|axis| axis.classes.len() as u64).product();
        // In each dimension, no class has more elements than the first.
        let positions: u64 = axes.iter().map(|axis| u64::from(axis.classes[0].count)).product();
        let images_and_groups = u64::from(images) * u64::from(self.geometry.groups);
        let operand_type = self.geometry.operand_type;
        let (shader, rows, columns) =
            tile(operand_type, positions, u64::from(self.targets), classes * images_and_groups, gpu);
        let row_tiles = positions.div_ceil(rows);
        let column_tiles = u64::from(self.targets).div_ceil(columns);
        let groups = groups(classes * images_and_groups * row_tiles * column_tiles, gpu);
        let [by_output, _, kernel_strides @ ..] = self.geometry.weight_strides();
        let [low, high] = activation.limits().map(f32::to_bits);
        let mut parameters = vec![
            groups[0],
            u32::from(bias),
            low,
            high,
            row_tiles as u32,
            column_tiles as u32,
            self.geometry.groups,
            images,
            self.targets,
            self.sources,
        ];
        parameters.extend(self.source.sizes);
        parameters.extend(self.source.stride_words());
        parameters.extend(self.target.stride_words());
        parameters.extend([by_output * self.geometry.outputs, self.target_weights, self.source_weights]);
        parameters.extend((0..3).map(|d| kernel_strides[d] * axes[d].kernel_step));
        parameters.extend(kernel_strides);
        parameters.extend(axes.iter().map(|axis| axis.source_step));
        parameters.extend(axes.iter().map(|axis| axis.tap_step as u32));
        parameters.extend(axes.iter().map(|axis| axis.target_step));
        parameters.extend(axes.iter().map(|axis| axis.classes.len() as u32));
        for class in axes.iter().flat_map(|axis| &axis.classes) {
            parameters.extend([class.count, class.first, class.origin as u32, class.taps, class.first_tap]);
        }
        let bias_operand = if bias { Operand::Read(2) } else { Operand::Read(1) };
        Dispatch {
            shader,
            constants: vec![u32::from(self.geometry.window.is_maskable())],
            bindings: bindings([Operand::Read(0), Operand::Read(1), bias_operand, Operand::Write(0)]),
            parameters,
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::operand_type::OperandType;
    use super::super::super::spatial::Sliding;
    use super::*;

    /// A convolution along the last dimension.
    fn geometry(kernel: u32, stride: u32, dilation: u32, pad: u32, input: u32, output: u32) -> Geometry {
        let last = |value: u32, filler: u32| [filler, filler, value];
        let spatial =
            |size| Spatial { images: 1, channels: 1, sizes: last(size, 1), strides: [size, size, size, size, 1] };
        Geometry {
            operand_type: OperandType::Float32,
            groups: 1,
            inputs: 1,
            outputs: 1,
            x: spatial(input),
            y: spatial(output),
            window: Sliding {
                kernel: last(kernel, 1),
                strides: last(stride, 1),
                dilations: last(dilation, 1),
                pads: last(pad, 0),
                pads_end: [0; 3],
            },
            first: 2,
        }
    }

    /// Through the taps of its class, an element of x reads the elements that the definition says, and no others within y.
    #[test]
    fn classes_of_the_data_gradient_see_what_the_definition_says() {
        for number in 0..6000u32 {
            let of = |step: u32, count: u32| number / step % count;
            let (kernel, stride, dilation) = (1 + of(1, 5), 1 + of(5, 5), 1 + of(25, 4));
            let (pad, output) = (of(100, 4), 1 + of(400, 3));
            let input = ((output - 1) * stride + (kernel - 1) * dilation + 1).saturating_sub(pad).max(1) + of(1200, 5);
            let axis = Axis::transposed(&geometry(kernel, stride, dilation, pad, input, output), 2);
            let mut elements = 0;
            for class in &axis.classes {
                elements += class.count;
                for i in 0..class.count {
                    let element = (class.first + i * axis.target_step) as i32;
                    let mut seen = vec![None; kernel as usize];
                    for j in 0..class.taps {
                        let tap = class.first_tap + j * axis.kernel_step;
                        seen[tap as usize] =
                            Some(class.origin + (i * axis.source_step) as i32 + j as i32 * axis.tap_step);
                    }
                    for (tap, seen) in (0..).zip(&seen) {
                        let distance = element + pad as i32 - tap * dilation as i32;
                        let expected = (distance % stride as i32 == 0).then_some(distance / stride as i32);
                        assert_eq!(*seen, expected, "case {number}: element {element}, tap {tap}");
                    }
                }
            }
            assert_eq!(elements, input, "case {number}");
        }
    }
}
