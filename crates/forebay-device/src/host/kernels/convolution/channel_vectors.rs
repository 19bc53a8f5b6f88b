//! Transposed convolutions whose window is one element and whose vectors hold channels, because images have few positions. They are matrix
//! products of positions by channels of the source and channels of the source by channels of the target.
//!
//! Each element is one sum over the channels of the source, in their order, as in [`super::correlation`].

use forebay_base::kernel::{Activation, PRODUCT_TERMS, fills_vectors_with_channels};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::super::applied::apply_to;
use super::super::parallel::{for_each, threads, wide};
use super::super::product::{Matrix, PANEL, PackedRows, Rows, continue_sums};
use super::super::simd::{SummedVector, WIDTH_MAX, dispatch, limited};
use super::super::thread_buffer::with_buffer;
use super::lanes::gather_lines;
use super::slab::{Span, spans};
use super::{Geometry, Operands};

/// Channels of the source that are packed together.
const SOURCES: usize = PRODUCT_TERMS as usize;
/// Sums of a task, if those of a panel are not more: they stay in a core's first-level cache until they are stored.
const SUMS_MAX: usize = 8 * 1024;

/// A transposed convolution in this form. Its source is y, and its target is x.
pub(super) struct ChannelVectors {
    geometry: Geometry,
    /// Positions of an image.
    positions: usize,
    /// Channels of the target in a task.
    targets: usize,
}

impl ChannelVectors {
    /// Returns `None` if vectors of channels are of no use to a kernel, if elements are not float32, or if positions are not adjacent.
    pub fn of(kernel: &Kernel, geometry: &Geometry, reads: &[TensorDesc]) -> Option<ChannelVectors> {
        let geometry = geometry.flat();
        let Geometry { batch, inputs, outputs, target: [1, 1, positions], .. } = geometry else { return None };
        let [all_positions, sources, targets] = [batch * positions, outputs, inputs].map(|count| count as u64);
        let is_of_use = matches!(kernel, Kernel::ConvolutionDataGradient { .. })
            && geometry.sees_itself()
            && fills_vectors_with_channels(all_positions, [sources, targets]);
        if !is_of_use || reads.iter().any(|read| read.data_type() != DataType::Float32) {
            return None;
        }
        let panels = (SUMS_MAX / (batch * positions) / PANEL).max(1);
        let parts = inputs.div_ceil(panels * PANEL).next_multiple_of(threads());
        // Whole panels are the fastest, but all threads should have as many channels.
        let unit = if threads() == 1 { PANEL } else { WIDTH_MAX };
        Some(ChannelVectors { geometry, positions, targets: inputs.div_ceil(parts).next_multiple_of(unit) })
    }

    /// Writes activation(convolution + bias) to the target.
    ///
    /// # Safety
    /// The operands must have the geometry's sizes; no one may write the source and the weights, or touch the target.
    pub unsafe fn run(&self, activation: Activation, operands: &Operands) {
        let Geometry { batch, groups, inputs, outputs, .. } = self.geometry;
        let parts = inputs.div_ceil(self.targets);
        for_each(groups * parts, |index| {
            let (group, first) = (index / parts, index % parts * self.targets);
            let targets = Span { start: first, len: self.targets.min(inputs - first) };
            let rows = batch * self.positions;
            let packed_count = if batch == 1 { 0 } else { PackedRows::count(rows, SOURCES.min(outputs)) };
            with_buffer(packed_count + rows * targets.len, |buffer| {
                let (packed, sums) = buffer.split_at_mut(packed_count);
                // SAFETY: the group and its channels exist; every task writes different elements.
                unsafe {
                    self.sum(operands, group, targets, packed, sums);
                    self.store(activation, operands, group, targets, sums);
                }
            });
        });
    }

    /// Computes the sums of some channels of a group: for each position, those of all channels.
    ///
    /// # Safety
    /// As [`ChannelVectors::run`]; there must be room for the packed rows and the sums.
    unsafe fn sum(&self, operands: &Operands, group: usize, targets: Span, packed: &mut [f32], sums: &mut [f32]) {
        let Geometry { batch, inputs, outputs, y, .. } = self.geometry;
        match operands.bias {
            Some(bias) => {
                let bias = &bias[group * inputs + targets.start..][..targets.len];
                sums.chunks_exact_mut(targets.len).for_each(|sums| sums.copy_from_slice(bias));
            }
            None => sums.fill(0.0),
        }
        for block in spans(outputs, SOURCES) {
            let first = group * outputs + block.start;
            // SAFETY: the caller's promises; the channels and their weights exist.
            unsafe {
                let positions = if batch == 1 {
                    // The positions of a single image are read in place.
                    let source = operands.source.at((first * y.channel) as isize);
                    Rows::of(Matrix::rows(source, y.channel).transposed())
                } else {
                    let mut rows = PackedRows::new(packed, block.len);
                    for (term, image) in (0..block.len).flat_map(|term| (0..batch).map(move |image| (term, image))) {
                        let start = image * y.image + (first + term) * y.channel;
                        rows.pack(term, image * self.positions, operands.source.slice(start, self.positions));
                    }
                    rows.rows()
                };
                let weights = operands.weights.at((first * inputs + targets.start) as isize);
                let sums = Matrix::rows(sums.as_mut_ptr(), targets.len);
                let sizes = (batch * self.positions, targets.len, block.len);
                continue_sums(sizes, positions, Matrix::rows(weights, inputs), sums);
            }
        }
    }

    /// Stores the sums of some channels of a group, with the activation.
    ///
    /// # Safety
    /// As [`ChannelVectors::run`]; the sums must be complete.
    unsafe fn store(&self, activation: Activation, operands: &Operands, group: usize, targets: Span, sums: &mut [f32]) {
        let Geometry { inputs, x, .. } = self.geometry;
        let limits @ [low, high] = activation.limits();
        if limits != Activation::None.limits() {
            wide(
                #[inline(always)]
                || sums.iter_mut().for_each(|sum| *sum = limited(*sum, low, high)),
            );
        }
        for (image, sums) in sums.chunks_exact(self.positions * targets.len).enumerate() {
            let first = image * x.image + (group * inputs + targets.start) * x.channel;
            // SAFETY: the caller's promises.
            unsafe {
                let target = operands.target.at(first as isize);
                let (positions, channels, stride) = (self.positions, targets.len, x.channel);
                transpose(&Transposed { sums: sums.as_ptr(), positions, channels, target, stride });
                if let Some(function) = activation.function() {
                    apply_to(function, target, [(1, 0), (1, 0), (channels, stride)], positions);
                }
            }
        }
    }
}

/// Sums of positions by channels, which become channels of positions.
struct Transposed {
    sums: *const f32,
    positions: usize,
    channels: usize,
    target: *mut f32,
    /// Elements between channels.
    stride: usize,
}

dispatch! {
    /// # Safety
    /// The sums must be readable, and the channels writable.
    fn transpose, transpose_with(job: &Transposed)
}

/// # Safety
/// As [`transpose`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn transpose_with<V: SummedVector>(job: &Transposed) {
    let Transposed { sums, positions, channels, target, stride } = *job;
    // SAFETY: the caller's promises.
    unsafe { gather_lines::<V>(sums, channels, positions, channels, target, stride) };
}
