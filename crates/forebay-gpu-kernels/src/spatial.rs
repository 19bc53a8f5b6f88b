//! Operands x\[n, c, ..] with one to three spatial dimensions, always represented as three.

use std::ops::Range;

use forebay_base::kernel::Window;
use forebay_base::{DataType, TensorDesc};

use super::operands::require_type;
use super::parts::{Beginning, Rows, parts};
use super::{Dispatch, Lowered, Operand, Target};

/// The number of taps of a dimension for which a mask has bits (`MASK_TAPS` in `kernels/spatial.slang`).
const MASK_TAPS: u32 = 10;

/// No index reaches this, whatever distances are added to it: shaders calculate with signed 32-bit integers, in which four times this means
/// nowhere.
const REACH_MAX: u64 = 1 << 28;

/// The maximum number of elements that an image or all weights span: shaders calculate distances with signed 32-bit integers.
pub(super) const SPAN_MAX: u64 = 1 << 31;

/// The sizes and strides of a tensor x\[n, c, ..] in elements, with missing spatial dimensions in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spatial {
    pub images: u32,
    pub channels: u32,
    pub sizes: [u32; 3],
    /// The strides over images, channels and the three dimensions.
    pub strides: [u32; 5],
}

impl Spatial {
    /// # Errors
    /// If there are not one to three spatial dimensions, or if an image is too large.
    pub fn of(desc: &TensorDesc) -> Result<Spatial, String> {
        let (sizes, strides) = (desc.sizes(), desc.effective_strides());
        if !(3..=5).contains(&sizes.len()) {
            return Err(format!("{desc} does not have one to three spatial dimensions"));
        }
        let reaches = sizes.iter().zip(&strides).skip(1).map(|(size, stride)| (size - 1) * stride);
        let span = 1 + reaches.sum::<u64>();
        if span > SPAN_MAX {
            return Err(format!("an image of {desc} spans {span} elements, but shaders support at most {SPAN_MAX}"));
        }
        let [plane, row, column] = three(&strides[2..], 0);
        Ok(Spatial {
            images: sizes[0] as u32,
            channels: sizes[1] as u32,
            sizes: three(&sizes[2..], 1),
            strides: [strides[0] as u32, strides[1] as u32, plane, row, column],
        })
    }

    /// Returns the number of positions of a channel of an image.
    pub fn positions(&self) -> u64 {
        self.sizes.iter().map(|&size| u64::from(size)).product()
    }

    /// Returns the strides as words for shaders.
    pub fn stride_words(&self) -> impl Iterator<Item = u32> {
        self.strides.into_iter()
    }
}

/// A window over three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sliding {
    pub kernel: [u32; 3],
    pub strides: [u32; 3],
    pub dilations: [u32; 3],
    pub pads: [u32; 3],
    pub pads_end: [u32; 3],
}

impl Sliding {
    /// Returns the window over a tensor of `rank` dimensions from which outputs with this many positions read.
    ///
    /// # Errors
    /// If its numbers do not match the rank, or if they reach farther than shaders can calculate.
    pub fn of(window: &Window, rank: usize, outputs: [u32; 3]) -> Result<Sliding, String> {
        let all = [&window.kernel, &window.strides, &window.dilations, &window.pads_begin, &window.pads_end];
        if all.iter().any(|values| values.len() + 2 != rank) || window.strides.contains(&0) {
            return Err(format!("the window {window:?} does not match {rank} dimensions"));
        }
        let is_too_far = (0..rank - 2).any(|d| {
            let terms = [
                u64::from(outputs[5 - rank + d]).saturating_mul(window.strides[d]),
                window.kernel[d].saturating_mul(window.dilations[d]),
                window.pads_begin[d],
                window.pads_end[d],
            ];
            terms.into_iter().fold(0, u64::saturating_add) >= REACH_MAX
        });
        if is_too_far {
            return Err(format!("the window {window:?} reaches {REACH_MAX} elements or more"));
        }
        Ok(Sliding {
            kernel: three(&window.kernel, 1),
            strides: three(&window.strides, 1),
            dilations: three(&window.dilations, 1),
            pads: three(&window.pads_begin, 0),
            pads_end: three(&window.pads_end, 0),
        })
    }

    pub fn taps(&self) -> u32 {
        self.kernel.iter().product()
    }

    /// Returns whether a mask has bits for all taps of each dimension.
    pub fn is_maskable(&self) -> bool {
        self.kernel.iter().all(|&taps| taps <= MASK_TAPS)
    }
}

/// Returns spatial values as three, with missing ones in front.
fn three(values: &[u64], filler: u32) -> [u32; 3] {
    let mut three = [filler; 3];
    for (target, &value) in three.iter_mut().rev().zip(values.iter().rev()) {
        *target = value as u32;
    }
    three
}

/// Lowers a launch with `dispatch`, which takes a number of images: as many at once as bindings hold of each operand, or all of them.
/// `operands` are those that have images.
pub(super) fn by_images(
    operands: &[(Operand, &TensorDesc)],
    gpu: &Target,
    dispatch: impl Fn(u32) -> Dispatch,
) -> Lowered {
    let images = operands.first().map_or(1, |(_, desc)| desc.sizes()[0]);
    let row_bytes = |desc: &TensorDesc| desc.effective_strides()[0] * desc.data_type().size_bytes();
    // Images that are interleaved in memory are not cut apart.
    let entangled = images > 1 && operands.iter().any(|(_, desc)| desc.total_size_bytes() > images * row_bytes(desc));
    let image_bytes = |desc| if images > 1 { row_bytes(desc) } else { desc.total_size_bytes() };
    let rows: Vec<Rows> =
        operands.iter().map(|&(operand, desc)| Rows { operand, row_bytes: image_bytes(desc) }).collect();
    let parts =
        if entangled { std::iter::once(0..images).collect() } else { parts(&rows, images, Beginning::Aligned, gpu) };
    let part = |part: &Range<u64>| {
        let mut dispatch = dispatch((part.end - part.start) as u32);
        for binding in &mut dispatch.bindings {
            if let Some(rows) = rows.iter().find(|rows| rows.operand == binding.operand) {
                *binding = rows.bound(part, images);
            }
        }
        dispatch
    };
    Lowered::from(parts.iter().map(part).collect::<Vec<_>>())
}

/// Checks that all operands are float32.
///
/// # Errors
/// If one of them is not.
pub(super) fn require_float32(reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<(), String> {
    require_type(&reads.iter().chain(writes).collect::<Vec<_>>(), DataType::Float32)
}

/// Checks that an operand is packed.
///
/// # Errors
/// If it is not.
pub(super) fn check_packed(desc: &TensorDesc) -> Result<(), String> {
    if desc.is_packed() { Ok(()) } else { Err(format!("{desc} must be packed")) }
}
