//! Softmax, log-softmax and their gradients along any axis.
//!
//! A task takes a group of columns (places after the axis) and goes along the axis. If nothing comes after the axis, a column is a row of
//! memory. All reads of a column's sums come before its writes, and elements are written where they were read, so that everything works in
//! place.

use super::super::View;
use super::super::accumulators::{Accumulators, largest};
use super::super::block::{run1, run2, run3};
use super::super::element::Float;
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, split_at_axis, wide};

/// Columns that one task processes together along the axis.
const COLUMNS: usize = 256;

/// Computes y = exp(x - max) / sum(exp(x - max)), or its logarithm.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn forward<T: Float>(axis: usize, logarithm: bool, x: &View, y: &View) -> Result<(), String> {
    let (outer, size, inner) = shape(axis, &[*x, *y])?;
    let (x, y) = (Pointer::<T>::of(x), Pointer::<T>::of(y));
    for_columns(
        outer,
        size,
        inner,
        #[inline(always)]
        |start, columns| {
            // SAFETY: these columns are inside the operands and belong to this task alone.
            unsafe {
                match (inner, logarithm) {
                    (1, false) => softmax_row(x, y, start, size),
                    (1, true) => log_softmax_row(x, y, start, size),
                    (_, false) => softmax_columns(x, y, start, size, inner, columns),
                    (_, true) => log_softmax_columns(x, y, start, size, inner, columns),
                }
            }
        },
    );
    Ok(())
}

/// Computes dx = y (dy - sum(dy y)) for softmax, dx = dy - exp(y) sum(dy) for its logarithm.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn gradient<T: Float>(
    axis: usize,
    logarithm: bool,
    dy: &View,
    y: &View,
    dx: &View,
) -> Result<(), String> {
    let (outer, size, inner) = shape(axis, &[*dy, *y, *dx])?;
    let (dy, y, dx) = (Pointer::<T>::of(dy), Pointer::<T>::of(y), Pointer::<T>::of(dx));
    for_columns(
        outer,
        size,
        inner,
        #[inline(always)]
        |start, columns| {
            let mut sums = [0.0; COLUMNS];
            // SAFETY: these columns are inside the operands and belong to this task alone.
            unsafe {
                if inner == 1 {
                    let mut accumulators = Accumulators::new();
                    let (dy, y) = (dy.slice(start, size), y.slice(start, size));
                    accumulators.add2(
                        dy,
                        y,
                        #[inline(always)]
                        |dy, y| if logarithm { [dy.to_f64()] } else { [dy.to_f64() * y.to_f64()] },
                    );
                    [sums[0]] = accumulators.totals();
                } else {
                    for k in 0..size {
                        let (dy, y) = (dy.slice(start + k * inner, columns), y.slice(start + k * inner, columns));
                        for (sum, (dy, y)) in sums.iter_mut().zip(dy.iter().zip(y)) {
                            *sum += if logarithm { dy.to_f64() } else { dy.to_f64() * y.to_f64() };
                        }
                    }
                }
                let mut rounded = [T::ZERO; COLUMNS];
                rounded.iter_mut().zip(&sums).for_each(|(rounded, &sum)| *rounded = T::from_f64(sum));
                // A row is a run of `size` elements with one sum; a group of columns is `size` runs with a sum per column.
                let (runs, length, sum_stride) = if inner == 1 { (1, size, 0) } else { (size, columns, 1) };
                for k in 0..runs {
                    let place = (start + k * inner) as isize;
                    let (dy, y, sum) =
                        ((dy.at(place) as *const T, 1), (y.at(place) as *const T, 1), (rounded.as_ptr(), sum_stride));
                    if logarithm {
                        run3(
                            dy,
                            y,
                            sum,
                            dx.at(place),
                            length,
                            #[inline(always)]
                            |dy: T, y: T, sum: T| dy - y.exponential() * sum,
                        );
                    } else {
                        run3(dy, y, sum, dx.at(place), length, |dy: T, y: T, sum: T| y * (dy - sum));
                    }
                }
            }
        },
    );
    Ok(())
}

fn shape(axis: usize, views: &[View]) -> Result<(usize, usize, usize), String> {
    require_packed(views)?;
    let sizes = views[0].sizes();
    if axis >= sizes.len() || views.iter().any(|view| view.count() != views[0].count()) {
        return Err(format!("{} has no axis {axis}, or the operands' sizes differ", views[0].desc));
    }
    Ok(split_at_axis(&sizes, axis))
}

/// Calls `work(first element, columns)` for every group of columns, in parallel, as vector code.
#[inline(always)]
fn for_columns(outer: usize, size: usize, inner: usize, work: impl Fn(usize, usize) + Sync) {
    let groups = inner.div_ceil(COLUMNS);
    let together = (CHUNK / (size * inner.min(COLUMNS))).max(1);
    for_chunks(outer * groups, together, |range| {
        wide(
            #[inline(always)]
            || {
                for task in range {
                    let first = task % groups * COLUMNS;
                    work(task / groups * size * inner + first, COLUMNS.min(inner - first));
                }
            },
        );
    });
}

/// # Safety
/// `size` elements from `start` must be inside both operands, and no one else may touch those of y.
#[inline(always)]
unsafe fn softmax_row<T: Float>(x: Pointer<T>, y: Pointer<T>, start: usize, size: usize) {
    let place = start as isize;
    // SAFETY: the caller's promise.
    unsafe {
        let highest = largest(x.slice(start, size));
        run1(
            (x.at(place).cast_const(), 1),
            y.at(place),
            size,
            #[inline(always)]
            |x: T| (x - highest).exponential(),
        );
        let mut accumulators = Accumulators::new();
        accumulators.add(
            y.slice(start, size),
            #[inline(always)]
            |e: T| [e.to_f64()],
        );
        let sum = T::from_f64(accumulators.totals()[0]);
        run1((y.at(place).cast_const(), 1), y.at(place), size, |e: T| e / sum);
    }
}

/// # Safety
/// As [`softmax_row`].
#[inline(always)]
unsafe fn log_softmax_row<T: Float>(x: Pointer<T>, y: Pointer<T>, start: usize, size: usize) {
    let place = start as isize;
    // SAFETY: the caller's promise.
    unsafe {
        let row = x.slice(start, size);
        let highest = largest(row);
        let mut accumulators = Accumulators::new();
        accumulators.add(
            row,
            #[inline(always)]
            |x: T| [(x - highest).exponential().to_f64()],
        );
        let logarithm = T::from_f64(accumulators.totals()[0].logarithm());
        run1((x.at(place).cast_const(), 1), y.at(place), size, |x: T| x - highest - logarithm);
    }
}

/// The largest element of every column.
///
/// # Safety
/// `columns` elements from every `start + k inner` must be inside x.
#[inline(always)]
unsafe fn largest_of_columns<T: Float>(
    x: Pointer<T>,
    start: usize,
    size: usize,
    inner: usize,
    columns: usize,
) -> [T; COLUMNS] {
    let mut highest = [T::LOWEST; COLUMNS];
    for k in 0..size {
        // SAFETY: the caller's promise.
        let values = unsafe { x.slice(start + k * inner, columns) };
        highest.iter_mut().zip(values).for_each(|(highest, &x)| *highest = x.maximum(*highest));
    }
    highest
}

/// # Safety
/// As [`largest_of_columns`] for both operands, and no one else may touch those of y.
#[inline(always)]
unsafe fn softmax_columns<T: Float>(
    x: Pointer<T>,
    y: Pointer<T>,
    start: usize,
    size: usize,
    inner: usize,
    columns: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let highest = largest_of_columns(x, start, size, inner, columns);
        let mut sums = [0.0; COLUMNS];
        for k in 0..size {
            let place = (start + k * inner) as isize;
            run2(
                (x.at(place).cast_const(), 1),
                (highest.as_ptr(), 1),
                y.at(place),
                columns,
                #[inline(always)]
                |x: T, highest: T| (x - highest).exponential(),
            );
            let exponentials = y.slice(start + k * inner, columns);
            sums.iter_mut().zip(exponentials).for_each(|(sum, e)| *sum += e.to_f64());
        }
        let mut rounded = [T::ZERO; COLUMNS];
        rounded.iter_mut().zip(&sums).for_each(|(rounded, &sum)| *rounded = T::from_f64(sum));
        for k in 0..size {
            let place = (start + k * inner) as isize;
            run2((y.at(place).cast_const(), 1), (rounded.as_ptr(), 1), y.at(place), columns, |e: T, sum: T| e / sum);
        }
    }
}

/// # Safety
/// As [`softmax_columns`].
#[inline(always)]
unsafe fn log_softmax_columns<T: Float>(
    x: Pointer<T>,
    y: Pointer<T>,
    start: usize,
    size: usize,
    inner: usize,
    columns: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let highest = largest_of_columns(x, start, size, inner, columns);
        let mut sums = [0.0; COLUMNS];
        for k in 0..size {
            let values = x.slice(start + k * inner, columns);
            for (sum, (&x, &highest)) in sums.iter_mut().zip(values.iter().zip(&highest)) {
                *sum += (x - highest).exponential().to_f64();
            }
        }
        let mut logarithms = [T::ZERO; COLUMNS];
        logarithms
            .iter_mut()
            .zip(&sums[..columns])
            .for_each(|(logarithm, sum)| *logarithm = T::from_f64(sum.logarithm()));
        for k in 0..size {
            let place = (start + k * inner) as isize;
            let (highest, logarithms) = ((highest.as_ptr(), 1), (logarithms.as_ptr(), 1));
            run3(
                (x.at(place).cast_const(), 1),
                highest,
                logarithms,
                y.at(place),
                columns,
                |x: T, highest: T, logarithm: T| x - highest - logarithm,
            );
        }
    }
}
