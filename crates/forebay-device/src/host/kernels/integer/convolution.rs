//! Convolutions of 8-bit integers: products of filters with panels of the elements that windows see.
//!
//! An image is copied once with its padding, separated by the phase of the stride. The elements that one tap of all windows sees are then
//! in the order of the windows, one after the other, row after row. The sums between the last window of a row and the first of the next are
//! computed and discarded.

use forebay_base::kernel::Convolution;
use forebay_base::{DataType, TensorDesc};

use super::super::View;
use super::super::convolution::Geometry;
use super::super::parallel::{Pointer, for_chunks, for_each, wide};
use super::dots::{Engine, Rows};
use super::finish::{Along, Quantized, limits, take_zeros};
use super::panels::{COLUMNS, PanelProduct, interleave, panels, rows_of_task, sum};
use super::{QUANTIZED_READS, byte_at};

/// The number of filters whose sums one task computes.
const SUMMED_ROWS: usize = 16;

/// The layout of the elements that windows see.
struct Layout {
    geometry: Geometry,
    /// For each axis, the phases of the stride that taps have.
    phases: [Vec<usize>; 3],
    /// The sizes of a channel in one phase.
    sizes: [usize; 3],
    /// Whether x itself has this layout.
    is_x: bool,
}

impl Layout {
    fn of(convolution: &Convolution, reads: &[TensorDesc], y: &TensorDesc) -> Result<Layout, String> {
        let geometry = Geometry::new(convolution, &reads[0], &reads[1], y)?;
        let tap = |axis: usize, tap: usize| tap * geometry.dilations[axis];
        let phases = std::array::from_fn(|axis| {
            let mut phases: Vec<usize> =
                (0..geometry.kernel[axis]).map(|k| tap(axis, k) % geometry.strides[axis]).collect();
            phases.sort_unstable();
            phases.dedup();
            phases
        });
        let sizes = std::array::from_fn(|axis| {
            geometry.target[axis] + tap(axis, geometry.kernel[axis] - 1) / geometry.strides[axis]
        });
        let x = &geometry.x;
        let is_x = geometry.strides == [1; 3]
            && geometry.pads == [0; 3]
            && sizes == geometry.source
            && (sizes[1] == 1 || x.row == sizes[2])
            && (sizes[0] == 1 || x.plane == sizes[1] * sizes[2]);
        Ok(Layout { geometry, phases, sizes, is_x })
    }

    fn phase_bytes(&self) -> usize {
        self.sizes.iter().product()
    }

    fn channel_bytes(&self) -> usize {
        self.phase_bytes() * self.phases.iter().map(Vec::len).product::<usize>()
    }

    fn channels(&self) -> usize {
        self.geometry.inputs * self.geometry.groups
    }

    fn filters(&self) -> usize {
        self.geometry.outputs * self.geometry.groups
    }

    /// Returns the number of bytes of an image with its padding, or 0 if x itself is used.
    fn image_bytes(&self) -> usize {
        if self.is_x { 0 } else { self.channels() * self.channel_bytes() }
    }

    /// Returns, for each tap, the offset from the channel's first byte of the element that the first window sees.
    fn taps(&self) -> Vec<usize> {
        let Geometry { kernel, dilations, strides, .. } = self.geometry;
        let mut taps = Vec::with_capacity(self.geometry.taps());
        for z in 0..kernel[0] {
            for y in 0..kernel[1] {
                for x in 0..kernel[2] {
                    let (mut phase, mut place) = (0, 0);
                    for (axis, tap) in [z, y, x].into_iter().enumerate() {
                        let distance = tap * dilations[axis];
                        let own = self.phases[axis].iter().position(|&own| own == distance % strides[axis]);
                        phase = phase * self.phases[axis].len() + own.unwrap_or(0);
                        place = place * self.sizes[axis] + distance / strides[axis];
                    }
                    taps.push(phase * self.phase_bytes() + place);
                }
            }
        }
        taps
    }

    /// Copies a channel with its padding.
    ///
    /// # Safety
    /// Both channels must exist, and no one else may use the target.
    unsafe fn copy_channel(&self, x: *const u8, padding: u8, to: *mut u8) {
        let Geometry { source, strides, pads, x: layout, .. } = self.geometry;
        let [depth, height, width] = self.sizes;
        let mut to = to;
        // The position in x, along an axis, of an index in a phase.
        let place = |axis: usize, phase: usize, index: usize| {
            (index * strides[axis] + phase).checked_sub(pads[axis]).filter(|&at| at < source[axis])
        };
        for &plane in &self.phases[0] {
            for &row in &self.phases[1] {
                for &column in &self.phases[2] {
                    // The indices of a row that lie in x.
                    let (stride, pad) = (strides[2], pads[2]);
                    let first = pad.saturating_sub(column).div_ceil(stride).min(width);
                    let end = (source[2] + pad).saturating_sub(column).div_ceil(stride).clamp(first, width);
                    for z in 0..depth {
                        for y in 0..height {
                            // SAFETY: the caller's promises; places lie in x.
                            unsafe {
                                let own = std::slice::from_raw_parts_mut(to, width);
                                to = to.add(width);
                                let (Some(z), Some(y)) = (place(0, plane, z), place(1, row, y)) else {
                                    own.fill(padding);
                                    continue;
                                };
                                own[..first].fill(padding);
                                own[end..].fill(padding);
                                if first == end {
                                    continue;
                                }
                                let from = x.add(z * layout.plane + y * layout.row + first * stride + column - pad);
                                if stride == 1 {
                                    std::ptr::copy_nonoverlapping(from, own[first..].as_mut_ptr(), end - first);
                                } else {
                                    let own = own[first..end].iter_mut().enumerate();
                                    own.for_each(|(i, byte)| *byte = *from.add(i * stride));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A run of windows of a panel that lie in one row of y.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The first column, within the panel.
    column: usize,
    count: usize,
    /// The offset of the first window in its channel of y.
    place: usize,
}

impl Layout {
    /// Returns the runs of windows among `count` columns from `first` on, numbered in the order of the elements that they see.
    fn runs(&self, first: usize, count: usize) -> Vec<Run> {
        let Geometry { target, y, .. } = self.geometry;
        let [_, height, width] = self.sizes;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = first;
        while at < first + count {
            let (line, column) = (at / width, at % width);
            let end = (at - column + width).min(first + count);
            let (plane, row) = (line / height, line % height);
            if row < target[1] && column < target[2] {
                let count = (end - at).min(target[2] - column);
                runs.push(Run { column: at - first, count, place: plane * y.plane + row * y.row + column });
            }
            at = end;
        }
        runs
    }

    /// Returns the number of columns from the first window to the last, including those between rows.
    fn columns(&self) -> usize {
        let [depth, height, width] = self.geometry.target;
        ((depth - 1) * self.sizes[1] + height - 1) * self.sizes[2] + width
    }
}

/// Returns the number of bytes of the workspace: for the sums of the filters, and for an image with its padding.
pub(super) fn workspace_bytes(convolution: &Convolution, reads: &[TensorDesc], y: &TensorDesc) -> Result<u64, String> {
    let layout = Layout::of(convolution, reads, y)?;
    for (desc, name) in reads[2..].iter().zip(["x's zero point", "w's zero point", "bias", "scale", "y's zero point"]) {
        let count = desc.element_count() as usize;
        let fits = count == 1 || count == layout.filters() && !name.starts_with(['x', 'y']);
        if !fits || !desc.is_packed() {
            return Err(format!("{name} {desc} must be one number, or one for each of {} filters", layout.filters()));
        }
    }
    if !reads[1].is_packed() {
        return Err(format!("{} must be packed", reads[1]));
    }
    Ok((layout.filters() * size_of::<i32>() + layout.image_bytes()) as u64)
}

/// One number, or one for each filter.
struct ByFilter<T> {
    base: Pointer<T>,
    step: usize,
}

impl<T: Copy> ByFilter<T> {
    fn of(view: &View) -> ByFilter<T> {
        ByFilter { base: Pointer::of(view), step: usize::from(view.count() > 1) }
    }

    /// # Safety
    /// The operand must be of this type, and no one may write it meanwhile.
    #[inline(always)]
    unsafe fn at(&self, filter: usize) -> T {
        // SAFETY: the caller's promises.
        unsafe { *self.base.at((filter * self.step) as isize) }
    }
}

/// Runs the kernel, whose operands were checked by [`workspace_bytes`].
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(convolution: &Convolution, reads: &[View], y: &View, scratch: View) -> Result<(), String> {
    let descs: Vec<TensorDesc> = reads.iter().map(|view| view.desc.clone()).collect();
    let layout = Layout::of(convolution, &descs, y.desc)?;
    let geometry = &layout.geometry;
    let terms = geometry.inputs * geometry.taps();
    let (x_type, w_type) = (descs[0].data_type(), descs[1].data_type());
    // Filters are treated as signed numbers and images as unsigned ones, by subtracting or adding 128.
    let (flip, w_shift) =
        (if x_type == DataType::Int8 { 0x80u8 } else { 0 }, if w_type == DataType::Int8 { 0 } else { 128 });
    // SAFETY: the caller's promises.
    let (padding, x_zero) = unsafe { (*reads[2].pointer, byte_at(reads[2].pointer, x_type) + i32::from(flip)) };
    let weights = Pointer::<u8>::of(&reads[1]);
    let filter_sums = Pointer::<i32>::of(&scratch);
    for_chunks(layout.filters(), SUMMED_ROWS, |range| {
        wide(
            #[inline(always)]
            || {
                for filter in range {
                    // SAFETY: the filter exists; every task writes different sums.
                    unsafe {
                        let own = sum(weights.slice(filter * terms, terms), w_type == DataType::Int8);
                        *filter_sums.at(filter as isize) = own.wrapping_sub((terms as i32).wrapping_mul(w_shift));
                    }
                }
            },
        );
    });
    let image = Pointer::<u8>::new(scratch.pointer.wrapping_add(layout.filters() * size_of::<i32>()));
    let (x, target) = (Pointer::<u8>::of(&reads[0]), Pointer::<u8>::of(y));
    let taps = layout.taps();
    let engine = Engine::best();
    let (columns, is_bytes) = (layout.columns(), reads.len() == QUANTIZED_READS);
    let (panel_count, width) = panels(columns);
    let rows_at_once = rows_of_task(geometry.outputs, panel_count * geometry.groups);
    let parts = geometry.outputs.div_ceil(rows_at_once);
    let w_zeros = ByFilter::<u8>::of(&reads[3]);
    // Absent operands are not read.
    let (biases, scales) = (
        ByFilter::<i32>::of(reads.get(4).unwrap_or(&reads[3])),
        ByFilter::<f32>::of(reads.get(5).unwrap_or(&reads[3])),
    );
    // SAFETY: the caller's promises.
    let y_zero = if is_bytes { unsafe { byte_at(reads[6].pointer, y.desc.data_type()) as f32 } } else { 0.0 };
    for number in 0..geometry.batch {
        let x_first = number * geometry.x.image;
        let (source, channel_pitch) = match layout.is_x {
            // SAFETY: the image exists.
            true => (Pointer::new(unsafe { x.at(x_first as isize) }), geometry.x.channel),
            false => {
                for_each(layout.channels(), |channel| {
                    // SAFETY: channels exist, and every task writes a different one.
                    unsafe {
                        let from = x.at((x_first + channel * geometry.x.channel) as isize);
                        let to = image.at((channel * layout.channel_bytes()) as isize);
                        layout.copy_channel(from, padding, to);
                    }
                });
                (image, layout.channel_bytes())
            }
        };
        for_each(geometry.groups * panel_count * parts, |task| {
            let (group, place) = (task / (panel_count * parts), task % (panel_count * parts));
            let (column, row) = (place / parts * width, place % parts * rows_at_once);
            let (count, rows) = (width.min(columns - column), rows_at_once.min(geometry.outputs - row));
            let runs = layout.runs(column, count);
            if runs.is_empty() {
                return;
            }
            let first_filter = group * geometry.outputs + row;
            // SAFETY: all places lie in the operands; every task writes a different part of y.
            unsafe {
                let w_zero = |filter: usize| {
                    let zero = w_zeros.at(filter);
                    byte_at(&zero, w_type) - w_shift
                };
                let flips = if w_type == DataType::Int8 { 0 } else { 0x8080_8080 };
                let first = weights.at((first_filter * terms) as isize).cast_const();
                let product = PanelProduct {
                    engine,
                    rows: Rows { first, pitch: terms, count: rows, flip: flips },
                    terms,
                    columns: count,
                    sums_columns: (first_filter..first_filter + rows).any(|filter| w_zero(filter) != 0),
                };
                let group_first = source.at((group * geometry.inputs * channel_pitch + column) as isize).cast_const();
                // Missing terms become 0.
                let nothing = [flip; COLUMNS];
                let pack = |term: usize, terms: usize, panel: *mut u8, width: usize| {
                    let (mut channel, mut tap) = (term / taps.len(), term % taps.len());
                    for quad in 0..terms.div_ceil(4) {
                        let lines = std::array::from_fn(|i| {
                            if quad * 4 + i >= terms {
                                return nothing.as_ptr();
                            }
                            let line = group_first.add(channel * channel_pitch + taps[tap]);
                            tap += 1;
                            if tap == taps.len() {
                                (channel, tap) = (channel + 1, 0);
                            }
                            line
                        });
                        interleave(lines, flip, count, panel.add(quad * width * 4));
                    }
                };
                product.run(pack, |own, sums, of_columns| {
                    let filter = first_filter + own;
                    let zero = w_zero(filter);
                    let rest = (*filter_sums.at(filter as isize)).wrapping_sub((terms as i32).wrapping_mul(zero));
                    let channel = number * geometry.y.image + filter * geometry.y.channel;
                    wide(
                        #[inline(always)]
                        || {
                            take_zeros(sums, zero, of_columns, Along::One(x_zero), rest);
                            if !is_bytes {
                                for run in &runs {
                                    let out: Pointer<i32> = Pointer::of(y);
                                    let out = out.slice_mut(channel + run.place, run.count);
                                    out.copy_from_slice(&sums[run.column..][..run.count]);
                                }
                                return;
                            }
                            let quantized = Quantized {
                                bias: Along::One(biases.at(filter)),
                                scale: Along::One(scales.at(filter)),
                                zero: y_zero,
                                limits: limits(y.desc.data_type()),
                            };
                            let mut bytes = [0; COLUMNS];
                            quantized.write(sums, &mut bytes[..count]);
                            for run in &runs {
                                let out = target.slice_mut(channel + run.place, run.count);
                                out.copy_from_slice(&bytes[run.column..][..run.count]);
                            }
                        },
                    );
                });
            }
        });
    }
    Ok(())
}
