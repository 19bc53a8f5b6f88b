//! Reductions along any set of axes.
//!
//! The reduced elements of an output are cut into chunks by their number. Partial results of chunks are kept in double precision (64-bit
//! integers for integers) and combined in chunk order.

use forebay_base::kernel::ReduceOp;

use super::super::View;
use super::super::accumulators::ACCUMULATORS;
use super::super::element::{Float, Number, Reducible};
use super::super::normalization::batch;
use super::super::parallel::{CHUNK, Pointer, Walk, for_chunks, wide};
use super::super::strided_layout::StridedLayout;

/// Outputs that one task reduces together if the innermost axis is kept.
const OUTPUTS: usize = 512;

/// How x is reduced: a walk over the kept axes and one over the reduced axes. If the innermost axis is kept, it is not part of `kept`, but
/// `width` (its size) outputs are reduced together.
struct Layout {
    kept: Walk<1>,
    reduced: Walk<1>,
    width: usize,
    inner_reduced: bool,
}

fn layout(axes: &[usize], x: &View, y: &View) -> Result<Layout, String> {
    let sizes = x.sizes();
    let strides: Vec<isize> = x.strides().into_iter().map(|stride| stride as isize).collect();
    let part = |reduced: bool| -> (Vec<usize>, Vec<isize>) {
        let is_reduced = |axis: &usize| axes.contains(axis) == reduced;
        (0..sizes.len()).filter(is_reduced).map(|axis| (sizes[axis], strides[axis])).unzip()
    };
    let (kept_sizes, kept_strides) = part(false);
    let (reduced_sizes, reduced_strides) = part(true);
    let fits = axes.iter().all(|&axis| axis < sizes.len()) && y.count() == kept_sizes.iter().product::<usize>();
    if !fits || !y.desc.is_packed() {
        return Err(format!("{} reduced along {axes:?} does not result in a packed {}", x.desc, y.desc));
    }
    let reduced = Walk::new(&reduced_sizes, &[reduced_strides]);
    let kept = Walk::new(&kept_sizes, &[kept_strides]);
    // Adjacent elements of x are read together: several outputs at once if they belong to a kept axis.
    let inner_kept = kept.inner_strides()[0] == 1 && kept.count() > 1 && reduced.inner_strides()[0] != 1;
    if !inner_kept {
        return Ok(Layout { kept, reduced, width: 1, inner_reduced: true });
    }
    let last = kept.sizes().len() - 1;
    let width = kept.sizes()[last];
    let outer = Walk::new(&kept.sizes()[..last], &[kept.strides(0)[..last].to_vec()]);
    Ok(Layout { kept: outer, reduced, width, inner_reduced: false })
}

/// Computes y = op of x along `axes`, for real numbers.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn run<T: Float + Reducible>(op: ReduceOp, axes: &[usize], x: &View, y: &View) -> Result<(), String> {
    let layout = layout(axes, x, y)?;
    let (x, y) = (Pointer::<T>::of(x), Pointer::<T>::of(y));
    let zero = T::Sum::from_f64(0.0);
    let one = T::Sum::from_f64(1.0);
    let count = T::Sum::from_f64(layout.reduced.count() as f64);
    let plus = |a: T::Sum, b: T::Sum| a.plus(b);
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            ReduceOp::Sum => reduce(&layout, x, y, zero, |a, x| a.plus(x.widen()), plus, |a| T::sixteen_bit(a)),
            ReduceOp::Mean => {
                reduce(&layout, x, y, zero, |a, x| a.plus(x.widen()), plus, |a| T::sixteen_bit(a.over(count)))
            }
            ReduceOp::Max => {
                let lowest = T::Sum::from_f64(f64::NEG_INFINITY);
                reduce(&layout, x, y, lowest, |a, x| x.widen().maximum(a), |a, b| b.maximum(a), |a| T::sixteen_bit(a))
            }
            ReduceOp::Min => {
                let highest = T::Sum::from_f64(f64::INFINITY);
                reduce(&layout, x, y, highest, |a, x| x.widen().minimum(a), |a, b| b.minimum(a), |a| T::sixteen_bit(a))
            }
            ReduceOp::Product => {
                reduce(&layout, x, y, one, |a, x| a.times(x.widen()), |a, b| a.times(b), |a| T::sixteen_bit(a))
            }
            ReduceOp::L1 => {
                reduce(&layout, x, y, zero, |a, x| a.plus(x.widen().magnitude()), plus, |a| T::sixteen_bit(a))
            }
            ReduceOp::L2 => {
                let root = |a: T::Sum| T::sixteen_bit(T::Sum::from_f64(a.to_f64().sqrt()));
                reduce(&layout, x, y, zero, |a, x| a.plus(x.widen().times(x.widen())), plus, root)
            }
            ReduceOp::SumSquare => {
                reduce(&layout, x, y, zero, |a, x| a.plus(x.widen().times(x.widen())), plus, |a| T::sixteen_bit(a))
            }
        }
    }
    Ok(())
}

/// Computes the same for integers. They are rare in models (shapes and masks), so only sums are compiled into loops; other functions are called
/// for each element through a pointer.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn run_integers<T: Reducible>(
    op: ReduceOp,
    axes: &[usize],
    x: &View,
    y: &View,
) -> Result<(), String> {
    let layout = layout(axes, x, y)?;
    let number = T::Sum::from_f64;
    type Unary<T> = fn(T) -> T;
    type Binary<T> = fn(T, T) -> T;
    let (start, of_element, merge): (T::Sum, Unary<T::Sum>, Binary<T::Sum>) = match op {
        ReduceOp::Sum | ReduceOp::Mean => (number(0.0), |x| x, T::Sum::plus),
        ReduceOp::Max => (number(f64::NEG_INFINITY), |x| x, T::Sum::maximum),
        ReduceOp::Min => (number(f64::INFINITY), |x| x, T::Sum::minimum),
        ReduceOp::Product => (number(1.0), |x| x, T::Sum::times),
        ReduceOp::L1 => (number(0.0), T::Sum::magnitude, T::Sum::plus),
        ReduceOp::L2 | ReduceOp::SumSquare => (number(0.0), |x| x.times(x), T::Sum::plus),
    };
    let count = number(layout.reduced.count() as f64);
    let finish = |a: T::Sum| match op {
        ReduceOp::Mean => a.over(count),
        ReduceOp::L2 => number(a.to_f64().sqrt()),
        _ => a,
    };
    let (x, y) = (Pointer::<T>::of(x), Pointer::<T>::of(y));
    let finish = |a: T::Sum| T::sixteen_bit(finish(a));
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => {
                reduce(&layout, x, y, start, |a, x| a.plus(x.widen()), T::Sum::plus, finish);
            }
            _ => reduce(&layout, x, y, start, |a, x| merge(a, of_element(x.widen())), merge, finish),
        }
    }
    Ok(())
}

/// Whether the reduced axes are all but the second, so that the sums are those of channels.
pub(super) fn are_positions(axes: &[usize], x: &View) -> bool {
    let rank = x.desc.sizes().len();
    rank > 2 && axes.iter().copied().eq((0..rank).filter(|&axis| axis != 1)) && StridedLayout::of(x.desc).is_ok()
}

/// Computes y = the sum of x per channel, by chunks, in the same way as parts would sum it.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn channel_sums<T: Float>(x: &View, y: &View) -> Result<(), String> {
    let channels = x.sizes()[1];
    if y.count() != channels || !y.desc.is_packed() {
        return Err(format!("{} does not match the sums of {}", y.desc, x.desc));
    }
    // SAFETY: the caller's promises.
    unsafe {
        let sums = batch::channel_sums::<T>(x)?;
        let y = Pointer::<T>::of(y).slice_mut(0, channels);
        y.iter_mut().zip(sums).for_each(|(y, [sum])| *y = T::from_f64(sum));
    }
    Ok(())
}

/// # Safety
/// As [`run`]; `x` and `y` must be the operands that the layout was made for.
#[inline(always)]
unsafe fn reduce<T: Reducible>(
    layout: &Layout,
    x: Pointer<T>,
    y: Pointer<T>,
    start: T::Sum,
    step: impl Fn(T::Sum, T) -> T::Sum + Sync,
    merge: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
    finish: impl Fn(T::Sum) -> T + Sync,
) {
    let depth = layout.reduced.count();
    let block = layout.width.min(OUTPUTS);
    let blocks = layout.width.div_ceil(block);
    // A chunk has enough reduced elements of each output to read about CHUNK elements.
    let chunk = if layout.inner_reduced { CHUNK } else { (CHUNK * 4 / block).max(1) };
    let chunks = depth.div_ceil(chunk);
    let groups = layout.kept.count() * blocks;
    // Otherwise, each task computes whole outputs.
    let has_parts = chunks != 1;
    let mut partials = vec![start; if has_parts { groups * chunks * block } else { 0 }];
    let partial_pointer = Pointer::new(partials.as_mut_ptr());
    let tasks_together = (CHUNK / (depth.min(chunk) * block)).max(1);
    for_chunks(groups * chunks, tasks_together, |range| {
        wide(
            #[inline(always)]
            || {
                let mut own_sums = [start; OUTPUTS];
                for task in range {
                    // A division would take as long as a short row.
                    let (group, first) = if has_parts { (task / chunks, task % chunks * chunk) } else { (task, 0) };
                    let elements = first..depth.min(first + chunk);
                    if layout.inner_reduced {
                        let base = layout.kept.offsets(group)[0];
                        // SAFETY: the walks stay inside x, and every task writes an element of its own.
                        unsafe {
                            let sum = reduce_runs(&layout.reduced, elements, x, base, start, &step, &merge);
                            match has_parts {
                                true => *partial_pointer.at(task as isize) = sum,
                                false => *y.at(group as isize) = finish(merge(start, sum)),
                            }
                        }
                    } else {
                        let base = layout.kept.offsets(group / blocks)[0] + (group % blocks * block) as isize;
                        let width = block.min(layout.width - group % blocks * block);
                        // SAFETY: every task has a separate part of `partials` or of y, and the walk stays inside x.
                        unsafe {
                            if has_parts {
                                let sums = partial_pointer.slice_mut(task * block, width);
                                add_rows(&layout.reduced, elements, x, base, sums, &step);
                                continue;
                            }
                            let sums = &mut own_sums[..width];
                            sums.fill(start);
                            add_rows(&layout.reduced, elements, x, base, sums, &step);
                            let first = group / blocks * layout.width + group % blocks * block;
                            for (place, &mut sum) in (first..).zip(sums) {
                                *y.at(place as isize) = finish(merge(start, sum));
                            }
                        }
                    }
                }
            },
        );
    });
    if !has_parts {
        return;
    }
    for_chunks(groups, (CHUNK / (chunks * block)).max(1), |range| {
        for group in range {
            let width = block.min(layout.width - group % blocks * block);
            for output in 0..width {
                let mut sum = start;
                for task in group * chunks..(group + 1) * chunks {
                    // SAFETY: no one writes the partial results any more.
                    sum = merge(sum, unsafe { *partial_pointer.at((task * block + output) as isize) });
                }
                let place = group / blocks * layout.width + group % blocks * block + output;
                // SAFETY: in bounds, and every output is written once.
                unsafe { *y.at(place as isize) = finish(sum) };
            }
        }
    });
}

/// Reduces one output: element i of a run goes to accumulator i mod ACCUMULATORS.
///
/// # Safety
/// The walk from `base` must stay inside x.
#[inline(always)]
unsafe fn reduce_runs<T: Reducible>(
    reduced: &Walk<1>,
    elements: std::ops::Range<usize>,
    x: Pointer<T>,
    base: isize,
    start: T::Sum,
    step: &impl Fn(T::Sum, T) -> T::Sum,
    merge: &impl Fn(T::Sum, T::Sum) -> T::Sum,
) -> T::Sum {
    let [stride] = reduced.inner_strides();
    let mut accumulators = [start; ACCUMULATORS];
    let count = elements.len();
    match reduced.sizes() {
        // SAFETY: the elements lie in x.
        [_] => unsafe { add_run(&mut accumulators, x, base + elements.start as isize * stride, stride, count, step) },
        _ => reduced.runs(
            elements,
            #[inline(always)]
            // SAFETY: the run lies in x.
            |[offset], length| unsafe { add_run(&mut accumulators, x, base + offset, stride, length, step) },
        ),
    }
    // Accumulators without elements have the start, which changes no result.
    accumulators.into_iter().take(count).fold(start, merge)
}

/// Reduces a run of elements to the accumulators.
///
/// # Safety
/// The run must lie in x.
#[inline(always)]
unsafe fn add_run<T: Reducible>(
    accumulators: &mut [T::Sum; ACCUMULATORS],
    x: Pointer<T>,
    first: isize,
    stride: isize,
    length: usize,
    step: &impl Fn(T::Sum, T) -> T::Sum,
) {
    if stride != 1 {
        for i in 0..length {
            // SAFETY: the element lies in x.
            let x = unsafe { *x.at(first + i as isize * stride) };
            accumulators[i % ACCUMULATORS] = step(accumulators[i % ACCUMULATORS], x);
        }
        return;
    }
    // SAFETY: the run lies in x.
    let run = unsafe { std::slice::from_raw_parts(x.at(first), length) };
    let mut blocks = run.chunks_exact(ACCUMULATORS);
    for block in &mut blocks {
        for accumulator in 0..ACCUMULATORS {
            accumulators[accumulator] = step(accumulators[accumulator], block[accumulator]);
        }
    }
    for (accumulator, &x) in accumulators.iter_mut().zip(blocks.remainder()) {
        *accumulator = step(*accumulator, x);
    }
}

/// Reduces several adjacent outputs: rows of x are added to them one after the other.
///
/// # Safety
/// As [`reduce_runs`], for as many outputs as there are sums.
#[inline(always)]
unsafe fn add_rows<T: Reducible>(
    reduced: &Walk<1>,
    elements: std::ops::Range<usize>,
    x: Pointer<T>,
    base: isize,
    sums: &mut [T::Sum],
    step: &impl Fn(T::Sum, T) -> T::Sum,
) {
    let ([stride], width) = (reduced.inner_strides(), sums.len());
    reduced.runs(
        elements,
        #[inline(always)]
        |[offset], length| {
            // SAFETY: the row lies in x.
            let row =
                |i: usize| unsafe { std::slice::from_raw_parts(x.at(base + offset + i as isize * stride), width) };
            let mut i = 0;
            // Several rows at a time, for which each sum is loaded and stored once.
            while i + 4 <= length {
                let [first, second, third, fourth] = [row(i), row(i + 1), row(i + 2), row(i + 3)];
                let elements = first.iter().zip(second).zip(third).zip(fourth);
                for (sum, (((&first, &second), &third), &fourth)) in sums.iter_mut().zip(elements) {
                    *sum = step(step(step(step(*sum, first), second), third), fourth);
                }
                i += 4;
            }
            for i in i..length {
                for (sum, &x) in sums.iter_mut().zip(row(i)) {
                    *sum = step(*sum, x);
                }
            }
        },
    );
}
