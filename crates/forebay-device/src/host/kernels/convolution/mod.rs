//! Convolution in one to three spatial dimensions: forward, data gradient, weight gradient.
//!
//! Every direction packs a block of its source into a small per-thread buffer, aligned for vectors and surrounded by zeros, and runs
//! register tiles over it; no buffer grows with the problem. 16-bit elements are widened when they are packed, and results are rounded when
//! their sums are complete. Everything that affects the order of summation depends only on spatial sizes and channels, never on the batch
//! or on threads, so a batch gives the same bits whole and in parts.

mod axis;
mod block_gradient;
mod block_sums;
mod channel_vectors;
mod channelwise;
mod correlation;
mod depthwise;
mod depthwise_gradient;
mod depthwise_rows;
mod families;
mod lanes;
mod microkernel;
mod patch_gradient;
mod pointwise;
mod quads;
mod slab;
mod tiles;
mod turned;
mod waiting;
mod weight_gradient;
mod weight_tiles;
mod window_gradient;
mod window_sums;
mod winograd;

use forebay_base::kernel::{Convolution, Window};
use forebay_base::{Kernel, TensorDesc};

use super::applied::function;
use super::parallel::{Pointer, for_each, require_packed};
use super::sixteen_bit::check_types;
use super::spatial::{Spatial, spatial3};
use super::stored::Stored;
use super::{View, unsupported};
use crate::device::DeviceError;
use channel_vectors::ChannelVectors;
use correlation::Correlation;
use depthwise::Depthwise;
use depthwise_rows::DepthwiseRows;
use slab::{Span, spans};
use turned::turn_weights;
use weight_gradient::WeightGradient;

/// Elements that a task widens at once.
const WIDENED_AT_ONCE: usize = 64 * 1024;
/// The most positions of an image's plane for which images are computed together.
const POSITIONS_JOINED_MAX: usize = 256;
/// Windows reach less far than this in each dimension, so that distances between taps, padding and positions can be computed.
const REACH_MAX: u64 = 1 << 60;

/// A convolution's sizes, always with three spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub batch: usize,
    pub groups: usize,
    /// Channels of x in a group.
    pub inputs: usize,
    /// Channels of y in a group.
    pub outputs: usize,
    /// Spatial sizes of x.
    pub source: [usize; 3],
    /// Spatial sizes of y.
    pub target: [usize; 3],
    pub kernel: [usize; 3],
    pub strides: [usize; 3],
    pub dilations: [usize; 3],
    pub pads: [usize; 3],
    /// The layouts of x and of y.
    pub x: Spatial,
    pub y: Spatial,
    /// The first spatial dimension, among three.
    first: usize,
}

impl Geometry {
    /// The geometry of operands with these descriptors, of any element type.
    ///
    /// # Errors
    /// Returns an error if the sizes do not fit each other.
    pub fn new(convolution: &Convolution, x: &TensorDesc, w: &TensorDesc, y: &TensorDesc) -> Result<Geometry, String> {
        let sizes = |desc: &TensorDesc| desc.sizes().iter().map(|&size| size as usize).collect::<Vec<_>>();
        let layouts = (Spatial::of(x)?, Spatial::of(y)?);
        let (x, w, y) = (sizes(x), sizes(w), sizes(y));
        let rank = x.len();
        if !(3..=5).contains(&rank) || w.len() != rank || y.len() != rank {
            return Err(format!(
                "the host supports convolutions of 1 to 3 spatial dimensions, not sizes {x:?}, {w:?}, {y:?}"
            ));
        }
        let groups = convolution.groups as usize;
        let fits = groups > 0
            && x[0] == y[0]
            && w[0] == y[1]
            && w[1].checked_mul(groups) == Some(x[1])
            && w[0] % groups == 0
            && convolution.window.kernel.len() == rank - 2
            && [&convolution.window.strides, &convolution.window.dilations, &convolution.window.pads_begin]
                .iter()
                .all(|values| values.len() == rank - 2)
            && !convolution.window.strides.contains(&0)
            && convolution.window.kernel.iter().zip(&w[2..]).all(|(&a, &b)| a as usize == b);
        if !fits {
            return Err(format!("sizes {x:?}, {w:?} and {y:?} do not match {groups} groups"));
        }
        check_reach(&convolution.window, &y[2..])?;
        let three = |values: &[u64], filler| spatial3(&values.iter().map(|&v| v as usize).collect::<Vec<_>>(), filler);
        Ok(Geometry {
            batch: x[0],
            groups,
            inputs: w[1],
            outputs: w[0] / groups,
            source: spatial3(&x[2..], 1),
            target: spatial3(&y[2..], 1),
            kernel: spatial3(&w[2..], 1),
            strides: three(&convolution.window.strides, 1),
            dilations: three(&convolution.window.dilations, 1),
            pads: three(&convolution.window.pads_begin, 0),
            x: layouts.0,
            y: layouts.1,
            first: 5 - rank,
        })
    }

    /// The same convolution with all positions in one row, if a window of one element sees each position separately and positions are
    /// contiguous: short rows would fill vectors poorly.
    fn flat(&self) -> Geometry {
        let [planes, rows, columns] = self.source;
        if !self.sees_itself() || !self.x.is_dense(self.source) || !self.y.is_dense(self.source) {
            return *self;
        }
        let all = [1, 1, planes * rows * columns];
        Geometry { source: all, target: all, ..*self }
    }

    /// Whether each position sees only itself.
    fn sees_itself(&self) -> bool {
        [self.kernel, self.strides] == [[1; 3]; 2] && self.pads == [0; 3] && self.source == self.target
    }

    /// The same convolution with images as planes, if they are so small that the positions of each would fill vectors poorly, and see the
    /// weights only a few times.
    fn joined(&self) -> Geometry {
        let Geometry { batch, groups, inputs, outputs, x, y, .. } = *self;
        let positions = self.target.iter().product::<usize>();
        // Volumes have no dimension left. The images of x are one run of elements, which no one else writes.
        let is_possible = self.first > 0 && x.image == groups * inputs * x.channel;
        if batch == 1 || !is_possible || positions > POSITIONS_JOINED_MAX || [inputs, outputs] == [1, 1] {
            return *self;
        }
        let with_images = |sizes: [usize; 3]| [batch, sizes[1], sizes[2]];
        let layout = |of: Spatial| Spatial { plane: of.image, span: (batch - 1) * of.image + of.span, ..of };
        let (source, target) = (with_images(self.source), with_images(self.target));
        Geometry { batch: 1, source, target, x: layout(x), y: layout(y), ..*self }
    }

    /// Whether images are planes.
    fn is_joined(&self) -> bool {
        self.first > 0 && self.target[0] > 1
    }

    /// Elements of x that adjacent positions see in a dimension, including those between taps and in the padding.
    fn seen(&self, d: usize, positions: usize) -> usize {
        let of_window = (self.kernel[d] - 1).saturating_mul(self.dilations[d]).saturating_add(1);
        (positions - 1).saturating_mul(self.strides[d]).saturating_add(of_window)
    }

    /// The positions of some rows of the first spatial dimension, in blocks of a size.
    fn position_blocks(&self, rows: Span, size: usize) -> impl Iterator<Item = Span> + use<> {
        let of_row = self.target[self.first + 1..].iter().product::<usize>();
        spans(rows.len * of_row, size).map(move |block| Span { start: rows.start * of_row + block.start, ..block })
    }

    /// Whether any position sees an element, and not only padding, through a tap in a dimension.
    fn sees(&self, d: usize, tap: usize) -> bool {
        let offset = tap.saturating_mul(self.dilations[d]);
        // The first position that sees no padding before the elements.
        let first = self.pads[d].saturating_sub(offset).div_ceil(self.strides[d]);
        first < self.target[d]
            && first.saturating_mul(self.strides[d]).saturating_add(offset)
                < self.source[d].saturating_add(self.pads[d])
    }

    /// Weights per channel of a filter.
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
}

/// The locations of the operands of one direction, in float32.
struct Operands<'a> {
    source: Pointer<f32>,
    weights: Pointer<f32>,
    bias: Option<&'a [f32]>,
    target: Pointer<f32>,
}

/// Checks how far the windows of this many positions in each dimension reach.
///
/// # Errors
/// Returns an error with the window if that is too far.
fn check_reach(window: &Window, positions: &[usize]) -> Result<(), String> {
    let Window { kernel, strides, dilations, pads_begin, .. } = window;
    let taps = dilations.iter().zip(kernel).map(|(dilation, taps)| dilation.saturating_mul(taps - 1));
    let steps = strides.iter().zip(positions).map(|(stride, &count)| stride.saturating_mul(count as u64));
    if taps.chain(steps).chain(pads_begin.iter().copied()).all(|reach| reach < REACH_MAX) {
        return Ok(());
    }
    Err(format!(
        "windows {kernel:?} with strides {strides:?}, dilations {dilations:?} and padding {pads_begin:?} reach too far for the \
         host: 2^60 elements or more"
    ))
}

/// The geometry of a kernel of this family, and its operands sorted into x, w and y.
fn geometry(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Geometry, DeviceError> {
    let refuse = |reason| unsupported(kernel, reason);
    check_types(kernel, reads.iter(), &writes[0]).map_err(refuse)?;
    match kernel {
        Kernel::Convolution { convolution, .. } => Geometry::new(convolution, &reads[0], &reads[1], &writes[0]),
        Kernel::ConvolutionDataGradient { convolution, .. } => {
            Geometry::new(convolution, &writes[0], &reads[1], &reads[0])
        }
        Kernel::ConvolutionWeightGradient { convolution } => {
            Geometry::new(convolution, &reads[0], &writes[0], &reads[1])
        }
        _ => Err("not a convolution".to_string()),
    }
    .map_err(refuse)
}

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`]; the workspace is as long as [`workspace_bytes`] says, or shorter if the kernel can run in less.
pub(super) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    let others = match kernel {
        Kernel::ConvolutionWeightGradient { .. } => [&reads[2..], writes],
        _ => [&reads[1..], &[]],
    };
    others.into_iter().try_for_each(require_packed).map_err(|reason| unsupported(kernel, reason))?;
    let descs = |views: &[View]| views.iter().map(|view| view.desc.clone()).collect::<Vec<_>>();
    let read_descs = descs(reads);
    let geometry = geometry(kernel, &read_descs, &descs(writes))?;
    let refuse = |reason: String| unsupported(kernel, reason);
    let workspace_count = workspace.as_ref().map_or(0, |view| view.desc.total_size_bytes() as usize / size_of::<f32>());
    let workspace = workspace.as_ref().map(Pointer::<f32>::of);
    let missing = || refuse("its workspace is missing".to_string());
    let [first, second] = [Stored::of(&reads[0]), Stored::of(&reads[1])];
    if let Kernel::ConvolutionWeightGradient { .. } = kernel {
        let gradient = WeightGradient::new(&geometry).map_err(refuse)?.within(workspace_count);
        // SAFETY: the caller's promises; the geometry was checked against the operands' sizes.
        unsafe { gradient.run(first, second, Stored::of(&writes[0]), workspace) };
        return Ok(());
    }
    let target = Stored::written(&writes[0], &[]);
    if let Kernel::Convolution { activation, .. } | Kernel::ConvolutionDataGradient { activation, .. } = kernel {
        function(*activation, writes[0].desc).map_err(refuse)?;
    }
    let counts = WorkspaceCounts::of(kernel, &geometry, &read_descs);
    // SAFETY: the caller's promises; the geometry was checked against the operands' sizes. Weights and a bias are packed, and the workspace
    // has room for the elements of `counts`, one after the other.
    unsafe {
        let workspace_at = |start: usize| workspace.map(|workspace| workspace.at(start as isize));
        let in_float32 = |read: &View, start: usize| {
            let (elements, count) = (Stored::of(read), read.desc.element_count() as usize);
            let place = elements.own().or_else(|| workspace_at(start)).ok_or_else(missing)?;
            if !elements.is_own() {
                widen(elements, count, place);
            }
            Ok::<&[f32], DeviceError>(Pointer::new(place).slice(0, count))
        };
        let bias = reads.get(2).map(|bias| in_float32(bias, counts.weights)).transpose()?;
        let own_operands = |weights: Option<Pointer<f32>>| {
            let [source, target] = [first.own()?, target.own()?].map(Pointer::new);
            Some(Operands { source, weights: weights?, bias, target })
        };
        match kernel {
            Kernel::Convolution { activation, .. } => {
                let weights = Pointer::new(in_float32(&reads[1], 0)?.as_ptr().cast_mut());
                if let Some(operands) = own_operands(Some(weights)) {
                    if let Some(rows) = DepthwiseRows::of(&geometry) {
                        rows.run(*activation, &operands);
                        return Ok(());
                    }
                    if let Some(depthwise) = Depthwise::forward(&geometry) {
                        depthwise.run(*activation, &operands);
                        return Ok(());
                    }
                }
                let correlation = Correlation::forward(&geometry).map_err(refuse)?;
                correlation.run(*activation, first, weights, bias, target);
            }
            Kernel::ConvolutionDataGradient { activation, .. } => {
                if let Some(operands) = own_operands(second.own().map(Pointer::new)) {
                    if let Some(depthwise) = Depthwise::transposed(&geometry) {
                        depthwise.run(*activation, &operands);
                        return Ok(());
                    }
                    if let Some(vectors) = ChannelVectors::of(kernel, &geometry, &read_descs) {
                        vectors.run(*activation, &operands);
                        return Ok(());
                    }
                }
                let correlation = Correlation::transposed(&geometry).map_err(refuse)?;
                let weights = workspace.ok_or_else(missing)?;
                turn_weights(&geometry, &correlation, second, weights);
                correlation.run(*activation, first, weights, bias, target);
            }
            _ => return Err(refuse("not a convolution".to_string())),
        }
    }
    Ok(())
}

/// Elements in the workspace of a convolution or a data gradient: reordered or float32 weights, then a bias in float32.
struct WorkspaceCounts {
    weights: usize,
    bias: usize,
}

impl WorkspaceCounts {
    fn of(kernel: &Kernel, geometry: &Geometry, reads: &[TensorDesc]) -> WorkspaceCounts {
        let count = |desc: &TensorDesc, has_copy: bool| if has_copy { desc.element_count() as usize } else { 0 };
        let is_narrow = |desc: &TensorDesc| desc.data_type().is_sixteen_bit();
        let has_order = matches!(kernel, Kernel::ConvolutionDataGradient { .. })
            && ChannelVectors::of(kernel, geometry, reads).is_none();
        WorkspaceCounts {
            weights: count(&reads[1], has_order || is_narrow(&reads[1])),
            bias: reads.get(2).map_or(0, |bias| count(bias, is_narrow(bias))),
        }
    }
}

/// Widens 16-bit elements to float32.
///
/// # Safety
/// The elements must be readable, and as many elements must be writable at `target` and belong to no one else.
unsafe fn widen(from: Stored<f32>, count: usize, target: *mut f32) {
    let target = Pointer::new(target);
    for_each(count.div_ceil(WIDENED_AT_ONCE), |part| {
        let start = part * WIDENED_AT_ONCE;
        let len = WIDENED_AT_ONCE.min(count - start);
        // SAFETY: the caller's promises; every task writes different elements.
        unsafe { from.slice(start, len).copy_to(target.slice_mut(start, len), 0, 1) };
    });
}

/// The temporary bytes that a kernel needs: the data gradient keeps reordered weights, the weight gradient keeps the sums of subtrees until
/// they are added, and 16-bit weights and biases are widened.
pub(super) fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    let geometry = geometry(kernel, reads, writes)?;
    let refuse = |reason| unsupported(kernel, reason);
    let counts = WorkspaceCounts::of(kernel, &geometry, reads);
    let count = match kernel {
        Kernel::ConvolutionDataGradient { .. } => {
            Correlation::transposed(&geometry).map_err(refuse)?;
            counts.weights + counts.bias
        }
        Kernel::ConvolutionWeightGradient { .. } => WeightGradient::new(&geometry).map_err(refuse)?.workspace_count(),
        _ => {
            Correlation::forward(&geometry).map_err(refuse)?;
            counts.weights + counts.bias
        }
    };
    Ok(((count * size_of::<f32>()) as u64).next_multiple_of(256))
}

#[cfg(test)]
mod tests;
