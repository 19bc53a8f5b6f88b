//! Softmax cross-entropy: the mean of -log softmax(logits)\[label] over the positions that count.
//!
//! A group consists of positions whose logits are adjacent. If nothing comes after the class axis, a position is a row of memory and loops
//! run along classes; otherwise, loops run along positions. Losses are added position by position within a reduction block
//! ([`forebay_base::kernel::reduction_block_of_losses`]), and blocks are added along the sum tree, regardless of the groups.

use forebay_base::kernel::reduction_block_of_losses;
use forebay_base::{DataType, SumTree, TensorDesc};

use super::super::View;
use super::super::accumulators::{Accumulators, largest};
use super::super::buffer::{BLOCK, Buffer};
use super::super::element::Float;
use super::super::parallel::{Pointer, for_chunks, map_chunks, require_packed, split_at_axis, wide};
use super::super::partial_sums::load_sums;
use super::super::strided_layout::StridedLayout;

/// The maximum number of positions in a group.
const GROUP: usize = BLOCK;

/// The class of a label that is out of range.
const NO_CLASS: i32 = -1;

/// The class of a position that does not count.
const IGNORED: i32 = -2;

#[derive(Clone, Copy)]
struct Operands<T> {
    logits: Pointer<T>,
    layout: Layout,
    labels: Labels,
    ignore_index: Option<i64>,
}

#[derive(Clone, Copy)]
enum Labels {
    Int64(Pointer<i64>),
    Int32(Pointer<i32>),
}

/// The layout of logits: positions consist of images, rows and places.
#[derive(Clone, Copy)]
struct Layout {
    classes: usize,
    /// Whether the logits of a position are adjacent.
    classes_last: bool,
    images: usize,
    rows: usize,
    places: usize,
    image_stride: usize,
    row_stride: usize,
    class_stride: usize,
    /// Whether rows follow each other without gaps, so that a group may have positions of several.
    is_seamless: bool,
}

impl Layout {
    fn of(desc: &TensorDesc, axis: usize) -> Result<Layout, String> {
        let sizes: Vec<usize> = desc.sizes().iter().map(|&size| size as usize).collect();
        if axis >= sizes.len() {
            return Err(format!("{desc} has no class axis {axis}"));
        }
        let (outer, classes, inner) = split_at_axis(&sizes, axis);
        if axis == 1 && inner > 1 {
            let strided_layout = StridedLayout::of(desc)?;
            return Ok(Layout {
                classes,
                classes_last: false,
                images: strided_layout.images,
                rows: strided_layout.rows,
                places: strided_layout.places,
                image_stride: strided_layout.image_stride,
                row_stride: strided_layout.row_stride,
                class_stride: strided_layout.channel_stride,
                is_seamless: strided_layout.is_seamless(),
            });
        }
        if !desc.is_packed() {
            return Err(format!("{desc} must be packed"));
        }
        let classes_last = inner == 1;
        // If classes come first, there are no images, and all positions are one row.
        let images = if axis == 0 { 1 } else { sizes[0] };
        let rows = if classes_last { 1 } else { outer / images };
        let places = outer / images / rows * inner;
        let image_stride = classes * rows * places;
        let class_stride = if classes_last { 1 } else { inner };
        Ok(Layout {
            classes,
            classes_last,
            images,
            rows,
            places,
            image_stride,
            row_stride: classes * places,
            class_stride,
            is_seamless: classes_last,
        })
    }

    fn positions(&self) -> usize {
        self.images * self.rows * self.places
    }

    /// Returns the images and rows of a chunk, and the number of chunks.
    fn chunks(&self) -> (usize, usize, usize) {
        let (images, rows, tree) = self.tree();
        (images, rows, tree.leaves() as usize)
    }

    /// Returns the images and rows of a chunk, and the tree whose leaves are the chunks.
    fn tree(&self) -> (usize, usize, SumTree) {
        let chunk = reduction_block_of_losses(self.classes as u64, self.rows as u64, self.places as u64);
        let (images, rows) = ((chunk.images as usize).min(self.images), chunk.rows as usize);
        (images, rows, SumTree::new(self.images.div_ceil(images) as u64, self.rows.div_ceil(rows) as u64))
    }

    /// Returns the index of the first logit of a position, given by its image and its number within the image.
    fn logit(&self, image: usize, position: usize) -> usize {
        let step = if self.classes_last { self.classes } else { 1 };
        image * self.image_stride + position / self.places * self.row_stride + position % self.places * step
    }

    /// Calls `work(group)` for the groups of a chunk, in order.
    #[inline(always)]
    fn for_each_group(&self, chunk: usize, mut work: impl FnMut(&Group)) {
        let (images, rows, _) = self.chunks();
        let per_image = self.rows.div_ceil(rows);
        let (first_image, first_row) = (chunk / per_image * images, chunk % per_image * rows);
        let end_row = self.rows.min(first_row + rows);
        let image_positions = self.rows * self.places;
        let end_image = self.images.min(first_image + images);
        // Runs are adjacent positions: whole images if classes come last, and rows without gaps.
        let run_rows = if self.is_seamless { end_row - first_row } else { 1 };
        let run_images = if self.classes_last { end_image - first_image } else { 1 };
        for image in (first_image..end_image).step_by(run_images) {
            for row in (first_row..end_row).step_by(run_rows) {
                let count = run_images * run_rows * self.places;
                for first in (0..count).step_by(GROUP) {
                    let position = row * self.places + first;
                    work(&Group {
                        image,
                        position,
                        label: image * image_positions + position,
                        count: GROUP.min(count - first),
                    });
                }
            }
        }
    }
}

/// A group of positions: the first one, its label, and the number of positions.
struct Group {
    image: usize,
    position: usize,
    label: usize,
    count: usize,
}

impl<T: Float> Operands<T> {
    fn new(axis: usize, ignore_index: Option<i64>, logits: &View, labels: &View) -> Result<Operands<T>, String> {
        require_packed(&[*labels])?;
        let layout = Layout::of(logits.desc, axis)?;
        if labels.count() != layout.positions() || layout.classes > i32::MAX as usize {
            return Err(format!("labels {} do not match logits {} with class axis {axis}", labels.desc, logits.desc));
        }
        let labels = match labels.desc.data_type() {
            DataType::Int64 => Labels::Int64(Pointer::of(labels)),
            DataType::Int32 => Labels::Int32(Pointer::of(labels)),
            other => return Err(format!("labels must be int32 or int64, not {other}")),
        };
        Ok(Operands { logits: Pointer::of(logits), layout, labels, ignore_index })
    }

    /// Returns the class of every position of a group, or [`NO_CLASS`] or [`IGNORED`].
    #[inline(always)]
    fn targets(&self, group: &Group) -> [i32; GROUP] {
        let mut targets = [IGNORED; GROUP];
        let target = |label: i64| match label {
            _ if Some(label) == self.ignore_index => IGNORED,
            _ if label >= 0 && label < self.layout.classes as i64 => label as i32,
            _ => NO_CLASS,
        };
        for (i, slot) in targets[..group.count].iter_mut().enumerate() {
            let place = (group.label + i) as isize;
            // SAFETY: the position lies in the labels.
            *slot = target(unsafe {
                match self.labels {
                    Labels::Int64(labels) => *labels.at(place),
                    Labels::Int32(labels) => *labels.at(place) as i64,
                }
            });
        }
        targets
    }

    /// Returns the largest logit and the sum of exp(logit - largest) of every position of a group.
    ///
    /// # Safety
    /// The logits must be live, and no one may write them meanwhile.
    #[inline(always)]
    unsafe fn largest_and_sums(&self, group: &Group) -> ([T; GROUP], [T; GROUP]) {
        let (mut highest, mut sums) = ([T::LOWEST; GROUP], [T::ZERO; GROUP]);
        let Layout { classes, class_stride, .. } = self.layout;
        let first = self.layout.logit(group.image, group.position);
        if self.layout.classes_last {
            for i in 0..group.count {
                // SAFETY: the row lies in the logits.
                let row = unsafe { self.logits.slice(first + i * classes, classes) };
                let row_highest = largest(row);
                let mut accumulators = Accumulators::new();
                accumulators.add(
                    row,
                    #[inline(always)]
                    |x| [(x - row_highest).exponential().to_f64()],
                );
                highest[i] = row_highest;
                sums[i] = T::from_f64(accumulators.totals()[0]);
            }
            return (highest, sums);
        }
        for class in 0..classes {
            // SAFETY: as above.
            let row = unsafe { self.logits.slice(first + class * class_stride, group.count) };
            highest.iter_mut().zip(row).for_each(|(highest, &x)| *highest = x.maximum(*highest));
        }
        for class in 0..classes {
            // SAFETY: as above.
            let row = unsafe { self.logits.slice(first + class * class_stride, group.count) };
            for ((sum, &x), &highest) in sums.iter_mut().zip(row).zip(&highest) {
                *sum += (x - highest).exponential();
            }
        }
        (highest, sums)
    }

    /// Adds up the losses of the positions of a group that count, and their number.
    ///
    /// # Safety
    /// The logits must be live, and no one may write them meanwhile.
    #[inline(always)]
    unsafe fn add_group(&self, group: &Group, [total, count]: &mut [f64; 2]) {
        let targets = self.targets(group);
        // SAFETY: the caller's promise.
        let (highest, sums) = unsafe { self.largest_and_sums(group) };
        let mut logarithms = [T::ZERO; GROUP];
        for (logarithm, &sum) in logarithms.iter_mut().zip(&sums[..group.count]) {
            // The largest term is 1, so a sum is at least 1; a sum that is NaN must not become a number.
            *logarithm = if sum >= T::ONE { sum.logarithm_of_normal() } else { T::NAN };
        }
        let first = self.layout.logit(group.image, group.position);
        let position_stride = if self.layout.classes_last { self.layout.classes } else { 1 };
        for i in 0..group.count {
            if targets[i] == IGNORED {
                continue;
            }
            *count += 1.0;
            *total += if targets[i] == NO_CLASS {
                f64::NAN
            } else {
                let place = first + i * position_stride + targets[i] as usize * self.layout.class_stride;
                // SAFETY: the target is a class, so the logit exists.
                let logit = unsafe { *self.logits.at(place as isize) };
                (logarithms[i] + (highest[i] - logit)).to_f64()
            };
        }
    }

    /// Returns the number of positions that count.
    fn counted(&self) -> f64 {
        if self.ignore_index.is_none() {
            return self.layout.positions() as f64;
        }
        let (.., chunks) = self.layout.chunks();
        let counts = map_chunks(chunks, 1, |range| {
            let mut count = 0;
            for chunk in range {
                self.layout.for_each_group(chunk, |group| {
                    count += self.targets(group)[..group.count].iter().filter(|&&target| target != IGNORED).count();
                });
            }
            count
        });
        counts.into_iter().sum::<usize>() as f64
    }
}

/// Returns the sum of the losses of all positions that count, and their number.
///
/// # Safety
/// As for [`super::super::run`], and the logits must be of type `T`.
pub(in super::super) unsafe fn sums<T: Float>(
    axis: usize,
    ignore_index: Option<i64>,
    logits: &View,
    labels: &View,
) -> Result<[f64; 2], String> {
    let operands = Operands::<T>::new(axis, ignore_index, logits, labels)?;
    let (.., tree) = operands.layout.tree();
    let chunk_sums = map_chunks(tree.leaves() as usize, 1, |range| {
        wide(
            #[inline(always)]
            || {
                let mut sums = [0.0; 2];
                for chunk in range {
                    operands.layout.for_each_group(
                        chunk,
                        #[inline(always)]
                        // SAFETY: the caller's promise.
                        |group| unsafe { operands.add_group(group, &mut sums) },
                    );
                }
                sums
            },
        )
    });
    let add = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
    Ok(tree.sum(chunk_sums, add).unwrap_or_default())
}

/// Returns the loss from [`sums`].
pub(in super::super) fn mean<T: Float>([sum, count]: [f64; 2]) -> T {
    T::from_f64(sum / count)
}

/// loss = the mean over all positions that are not ignored.
///
/// # Safety
/// As for [`super::super::run`], and the logits must be of type `T`.
pub(super) unsafe fn forward<T: Float>(
    axis: usize,
    ignore_index: Option<i64>,
    logits: &View,
    labels: &View,
    loss: &View,
) -> Result<(), String> {
    // SAFETY: the caller's promises; the loss has one element.
    unsafe {
        let sums = sums::<T>(axis, ignore_index, logits, labels)?;
        *Pointer::<T>::of(loss).at(0) = mean(sums);
    }
    Ok(())
}

/// dlogits = dloss / count (softmax(logits) - one at the label), 0 if ignored, NaN if the label is not a class. Reads dloss, logits, labels
/// and optionally the sums of all positions, of which the operands can be a part.
///
/// # Safety
/// As for [`forward`].
pub(super) unsafe fn gradient<T: Float>(
    axis: usize,
    ignore_index: Option<i64>,
    reads: &[View],
    dlogits: &View,
) -> Result<(), String> {
    let mut operands = Operands::<T>::new(axis, ignore_index, &reads[1], &reads[2])?;
    let layout = Layout::of(dlogits.desc, axis)?;
    if dlogits.desc.sizes() != reads[1].desc.sizes() {
        return Err(format!("{} and {} differ in size", reads[1].desc, dlogits.desc));
    }
    // A group's positions are adjacent in both operands, which may be stored differently.
    operands.layout.is_seamless &= layout.is_seamless;
    let count = match reads.get(3) {
        // SAFETY: the caller's promise.
        Some(sums) => unsafe { load_sums::<2>(sums, 1)?[0][1] },
        None => operands.counted(),
    };
    // SAFETY: dloss has one element.
    let dloss = unsafe { *Pointer::<T>::of(&reads[0]).at(0) };
    let scale = T::from_f64(dloss.to_f64() / count);
    let dlogits = Pointer::<T>::of(dlogits);
    let (.., chunks) = operands.layout.chunks();
    for_chunks(chunks, 1, |range| {
        wide(
            #[inline(always)]
            || {
                for chunk in range {
                    operands.layout.for_each_group(
                        chunk,
                        #[inline(always)]
                        // SAFETY: the caller's promise; groups are disjoint.
                        |group| unsafe { gradient_of_group(&operands, group, scale, dlogits, layout) },
                    );
                }
            },
        );
    });
    Ok(())
}

/// Returns the gradient with respect to a logit, from the largest logit of its position and the sum of the exponentials of the differences
/// from it.
#[inline(always)]
fn slope<T: Float>(scale: T, (x, highest, sum): (T, T, T), is_label: bool, target: i32) -> T {
    let probability = (x - highest).exponential() / sum;
    let slope = scale * (if is_label { probability - T::ONE } else { probability });
    match target {
        IGNORED => T::ZERO,
        NO_CLASS => T::NAN,
        _ => slope,
    }
}

/// # Safety
/// As for [`gradient`], and no one else may touch the group's logits or gradients.
#[inline(always)]
unsafe fn gradient_of_group<T: Float>(
    operands: &Operands<T>,
    group: &Group,
    scale: T,
    dlogits: Pointer<T>,
    layout: Layout,
) {
    let targets = operands.targets(group);
    // SAFETY: the caller's promise. All logits are read for the sums before any gradient overwrites them.
    let (highest, sums) = unsafe { operands.largest_and_sums(group) };
    let mut buffer = Buffer::new();
    let Layout { classes, class_stride, .. } = operands.layout;
    let first_logit = operands.layout.logit(group.image, group.position);
    let first_slope = layout.logit(group.image, group.position);
    if layout.classes_last {
        for i in 0..group.count {
            for first in (0..classes).step_by(GROUP) {
                let (count, start) = (GROUP.min(classes - first), i * classes + first);
                // SAFETY: the row lies in both operands; the buffer separates the values read from those written.
                let (row, drow) = unsafe {
                    let drow = dlogits.slice_mut(first_slope + start, count);
                    (buffer.load(operands.logits.at((first_logit + start) as isize), 1, count, drow.as_ptr()), drow)
                };
                for (class, (dx, &x)) in (first as i32..).zip(drow.iter_mut().zip(row)) {
                    *dx = slope(scale, (x, highest[i], sums[i]), class == targets[i], targets[i]);
                }
            }
        }
        return;
    }
    for class in 0..classes {
        // SAFETY: as above.
        let (row, drow) = unsafe {
            let drow = dlogits.slice_mut(first_slope + class * layout.class_stride, group.count);
            let logits = operands.logits.at((first_logit + class * class_stride) as isize);
            (buffer.load(logits, 1, group.count, drow.as_ptr()), drow)
        };
        let positions = highest.iter().zip(&sums).zip(&targets);
        for ((dx, &x), ((&highest, &sum), &target)) in drow.iter_mut().zip(row).zip(positions) {
            *dx = slope(scale, (x, highest, sum), class as i32 == target, target);
        }
    }
}
