//! Softmax cross-entropy: the mean of -log softmax(logits)\[label] over the positions that count.
//!
//! Logits are \[outer, classes, inner], labels \[outer, inner]. A task takes a group of positions. Where nothing comes after
//! the class axis, a position is a row of memory and loops run along classes; elsewhere loops run along positions.

use forebay_base::DataType;

use super::super::block::Buffer;
use super::super::element::Float;
use super::super::lanes::{largest, Lanes};
use super::super::parallel::{for_chunks, map_chunks, require_packed, split_at_axis, wide, Pointer};
use super::super::View;

/// Positions in a group.
const GROUP: usize = super::super::block::BLOCK;

/// Groups in a task.
const GROUPS_TOGETHER: usize = 16;

/// A class that no logit has: a label out of range.
const NO_CLASS: i32 = -1;

/// A position that does not count.
const IGNORED: i32 = -2;

#[derive(Clone, Copy)]
struct Operands<T> {
    logits: Pointer<T>,
    labels: Labels,
    ignore_index: Option<i64>,
    outer: usize,
    classes: usize,
    inner: usize,
}

#[derive(Clone, Copy)]
enum Labels {
    Int64(Pointer<i64>),
    Int32(Pointer<i32>),
}

/// A group of positions: the first logit and label, and how many there are. Positions of a group lie `inner` = 1 apart, or
/// are whole rows.
struct Group {
    logit: usize,
    label: usize,
    count: usize,
}

impl<T: Float> Operands<T> {
    fn new(axis: usize, ignore_index: Option<i64>, logits: &View, labels: &View) -> Result<Operands<T>, String> {
        require_packed(&[*logits, *labels])?;
        let sizes = logits.sizes();
        if axis >= sizes.len() {
            return Err(format!("{} has no class axis {axis}", logits.desc));
        }
        let (outer, classes, inner) = split_at_axis(&sizes, axis);
        if labels.count() != outer * inner || classes > i32::MAX as usize {
            return Err(format!("labels {} do not fit logits {} with class axis {axis}", labels.desc, logits.desc));
        }
        let labels = match labels.desc.data_type() {
            DataType::Int64 => Labels::Int64(Pointer::of(labels)),
            DataType::Int32 => Labels::Int32(Pointer::of(labels)),
            other => return Err(format!("labels must be int32 or int64, not {other}")),
        };
        Ok(Operands { logits: Pointer::of(logits), labels, ignore_index, outer, classes, inner })
    }

    fn group_count(&self) -> usize {
        if self.inner == 1 {
            self.outer.div_ceil(GROUP)
        } else {
            self.outer * self.inner.div_ceil(GROUP)
        }
    }

    #[inline(always)]
    fn group(&self, group: usize) -> Group {
        if self.inner == 1 {
            let first = group * GROUP;
            return Group { logit: first * self.classes, label: first, count: GROUP.min(self.outer - first) };
        }
        let per_outer = self.inner.div_ceil(GROUP);
        let (row, first) = (group / per_outer, group % per_outer * GROUP);
        Group {
            logit: row * self.classes * self.inner + first,
            label: row * self.inner + first,
            count: GROUP.min(self.inner - first),
        }
    }

    /// The class of every position of a group, [`NO_CLASS`] or [`IGNORED`].
    #[inline(always)]
    fn targets(&self, group: &Group) -> [i32; GROUP] {
        let mut targets = [IGNORED; GROUP];
        let target = |label: i64| match label {
            _ if Some(label) == self.ignore_index => IGNORED,
            _ if label >= 0 && label < self.classes as i64 => label as i32,
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

    /// The largest logit and the sum of exp(logit - largest) of every position of a group.
    ///
    /// # Safety
    /// The logits must be live and unwritten.
    #[inline(always)]
    unsafe fn largest_and_sums(&self, group: &Group) -> ([T; GROUP], [T; GROUP]) {
        let (mut highest, mut sums) = ([T::LOWEST; GROUP], [T::ZERO; GROUP]);
        if self.inner == 1 {
            for i in 0..group.count {
                // SAFETY: the row lies in the logits.
                let row = unsafe { self.logits.slice(group.logit + i * self.classes, self.classes) };
                let row_highest = largest(row);
                let mut lanes = Lanes::new();
                lanes.add(row, |x| [(x - row_highest).exp().to_f64()]);
                highest[i] = row_highest;
                sums[i] = T::from_f64(lanes.totals()[0]);
            }
            return (highest, sums);
        }
        for class in 0..self.classes {
            // SAFETY: as above.
            let row = unsafe { self.logits.slice(group.logit + class * self.inner, group.count) };
            highest.iter_mut().zip(row).for_each(|(highest, &x)| *highest = x.maximum(*highest));
        }
        for class in 0..self.classes {
            // SAFETY: as above.
            let row = unsafe { self.logits.slice(group.logit + class * self.inner, group.count) };
            for ((sum, &x), &highest) in sums.iter_mut().zip(row).zip(&highest) {
                *sum += (x - highest).exp();
            }
        }
        (highest, sums)
    }
}

/// Runs `work` on every group, in parallel, as vector code, and adds up the results in order.
#[inline(always)]
fn sum_over_groups(group_count: usize, work: impl Fn(usize) -> (f64, u64) + Sync) -> (f64, u64) {
    let add = |a: (f64, u64), b: (f64, u64)| (a.0 + b.0, a.1 + b.1);
    map_chunks(group_count, GROUPS_TOGETHER, |range| {
        wide(
            #[inline(always)]
            || range.map(&work).fold((0.0, 0), add),
        )
    })
    .into_iter()
    .fold((0.0, 0), add)
}

/// loss = the mean over all positions that are not ignored.
///
/// # Safety
/// As [`super::super::run`], and the logits must be of type `T`.
pub(super) unsafe fn forward<T: Float>(
    axis: usize,
    ignore_index: Option<i64>,
    logits: &View,
    labels: &View,
    loss: &View,
) -> Result<(), String> {
    let operands = Operands::<T>::new(axis, ignore_index, logits, labels)?;
    let class_stride = operands.inner;
    let position_stride = if operands.inner == 1 { operands.classes } else { 1 };
    let (sum, count) = sum_over_groups(
        operands.group_count(),
        #[inline(always)]
        |group| {
            let group = operands.group(group);
            let targets = operands.targets(&group);
            // SAFETY: the caller's promise.
            let (highest, sums) = unsafe { operands.largest_and_sums(&group) };
            let mut logarithms = [T::ZERO; GROUP];
            for (logarithm, &sum) in logarithms.iter_mut().zip(&sums[..group.count]) {
                // The largest term is 1, so a sum is at least 1; one that is none must not become a number.
                *logarithm = if sum >= T::ONE { sum.ln_of_normal() } else { T::NAN };
            }
            let (mut total, mut count) = (0.0, 0);
            for i in 0..group.count {
                if targets[i] == IGNORED {
                    continue;
                }
                count += 1;
                total += if targets[i] == NO_CLASS {
                    f64::NAN
                } else {
                    let place = group.logit + i * position_stride + targets[i] as usize * class_stride;
                    // SAFETY: the target is a class, so the logit exists.
                    let logit = unsafe { *operands.logits.at(place as isize) };
                    (logarithms[i] + (highest[i] - logit)).to_f64()
                };
            }
            (total, count)
        },
    );
    // SAFETY: the loss has one element.
    unsafe { *Pointer::<T>::of(loss).at(0) = T::from_f64(sum / count as f64) };
    Ok(())
}

/// dlogits = dloss / count (softmax(logits) - one at the label), 0 where ignored, NaN where the label is no class.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn gradient<T: Float>(
    axis: usize,
    ignore_index: Option<i64>,
    dloss: &View,
    logits: &View,
    labels: &View,
    dlogits: &View,
) -> Result<(), String> {
    require_packed(&[*dlogits])?;
    let operands = Operands::<T>::new(axis, ignore_index, logits, labels)?;
    let counted = |group: usize| {
        let group = operands.group(group);
        let ignored = operands.targets(&group)[..group.count].iter().filter(|&&target| target == IGNORED).count();
        (0.0, (group.count - ignored) as u64)
    };
    let (_, count) = match ignore_index {
        None => (0.0, (operands.outer * operands.inner) as u64),
        Some(_) => sum_over_groups(operands.group_count(), counted),
    };
    // SAFETY: dloss has one element.
    let dloss = unsafe { *Pointer::<T>::of(dloss).at(0) };
    let scale = T::from_f64(dloss.to_f64() / count as f64);
    let dlogits = Pointer::<T>::of(dlogits);
    for_chunks(operands.group_count(), GROUPS_TOGETHER, |range| {
        wide(
            #[inline(always)]
            || {
                for group in range {
                    // SAFETY: the caller's promise; groups are disjoint.
                    unsafe { gradient_of_group(&operands, &operands.group(group), scale, dlogits) };
                }
            },
        );
    });
    Ok(())
}

/// # Safety
/// As [`gradient`], and nobody else may touch the group's logits or gradients.
#[inline(always)]
unsafe fn gradient_of_group<T: Float>(operands: &Operands<T>, group: &Group, scale: T, dlogits: Pointer<T>) {
    let targets = operands.targets(group);
    // SAFETY: the caller's promise. All logits are read for the sums before any gradient is written in their place.
    let (highest, sums) = unsafe { operands.largest_and_sums(group) };
    let slope = |x: T, highest: T, sum: T, is_label: bool, target: i32| {
        let probability = (x - highest).exp() / sum;
        let slope = scale * (if is_label { probability - T::ONE } else { probability });
        match target {
            IGNORED => T::ZERO,
            NO_CLASS => T::NAN,
            _ => slope,
        }
    };
    let mut buffer = Buffer::new();
    if operands.inner == 1 {
        for i in 0..group.count {
            let start = group.logit + i * operands.classes;
            for first in (0..operands.classes).step_by(GROUP) {
                let count = GROUP.min(operands.classes - first);
                // SAFETY: the row lies in both operands; the buffer keeps what is read apart from what is written.
                let (row, drow) = unsafe {
                    let drow = dlogits.slice_mut(start + first, count);
                    (buffer.load(operands.logits.at((start + first) as isize), 1, count, drow.as_ptr()), drow)
                };
                for (class, (dx, &x)) in (first as i32..).zip(drow.iter_mut().zip(row)) {
                    *dx = slope(x, highest[i], sums[i], class == targets[i], targets[i]);
                }
            }
        }
        return;
    }
    for class in 0..operands.classes {
        let start = group.logit + class * operands.inner;
        // SAFETY: as above.
        let (row, drow) = unsafe {
            let drow = dlogits.slice_mut(start, group.count);
            (buffer.load(operands.logits.at(start as isize), 1, group.count, drow.as_ptr()), drow)
        };
        let positions = highest.iter().zip(&sums).zip(&targets);
        for ((dx, &x), ((&highest, &sum), &target)) in drow.iter_mut().zip(row).zip(positions) {
            *dx = slope(x, highest, sum, class as i32 == target, target);
        }
    }
}
