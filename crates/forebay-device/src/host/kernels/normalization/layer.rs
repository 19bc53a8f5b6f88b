//! Layer normalisation: statistics per row, over the axes from a given one on.

use super::super::block::{run2, run3, BLOCK};
use super::super::element::Float;
use super::super::lanes::Lanes;
use super::super::parallel::{for_chunks, map_chunks, require_packed, wide, Pointer, CHUNK};
use super::super::View;

/// Rows and their length, where all operands fit.
fn shape(
    axis: usize,
    x: &View,
    others: &[&View],
    row_shaped: &[&View],
    per_row: &[&View],
) -> Result<(usize, usize), String> {
    let sizes = x.sizes();
    if axis >= sizes.len() {
        return Err(format!("{} has no axis {axis}", x.desc));
    }
    let (rows, length) = (sizes[..axis].iter().product(), sizes[axis..].iter().product());
    for (views, count) in [(&[x][..], x.count()), (others, x.count()), (row_shaped, length), (per_row, rows)] {
        for view in views {
            require_packed(&[**view])?;
            if view.count() != count {
                return Err(format!("{} needs {count} elements for {} normalised from axis {axis}", view.desc, x.desc));
            }
        }
    }
    Ok((rows, length))
}

/// y = (x - mean) inverse_deviation scale + bias; mean and inverse deviation of every row are written too.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn forward<T: Float>(
    axis: usize,
    epsilon: f32,
    reads: &[View],
    writes: &[View],
) -> Result<(), String> {
    let parameters: Vec<&View> = reads[1..].iter().collect();
    let statistics: Vec<&View> = writes[1..].iter().collect();
    let (rows, length) = shape(axis, &reads[0], &[&writes[0]], &parameters, &statistics)?;
    let pointer = |view: &View| Pointer::<T>::of(view);
    let (x, scale, bias, y) = (pointer(&reads[0]), pointer(&reads[1]), reads.get(2).map(pointer), pointer(&writes[0]));
    let (mean_pointer, inverse_pointer) = (writes.get(1).map(pointer), writes.get(2).map(pointer));
    for_chunks(rows, (CHUNK / length).max(1), |range| {
        wide(
            #[inline(always)]
            || {
                for row in range {
                    let start = row * length;
                    // SAFETY: the row lies in x and is this task's alone.
                    let (mean, inverse) = unsafe { row_statistics(x.slice(start, length), epsilon) };
                    // SAFETY: every row has one element.
                    unsafe {
                        if let Some(pointer) = mean_pointer {
                            *pointer.at(row as isize) = mean;
                        }
                        if let Some(pointer) = inverse_pointer {
                            *pointer.at(row as isize) = inverse;
                        }
                    }
                    // SAFETY: as above; scale and bias are as long as a row.
                    unsafe {
                        let (x, y) = ((x.at(start as isize) as *const T, 1), y.at(start as isize));
                        let scale = (scale.at(0) as *const T, 1);
                        match bias {
                            Some(bias) => {
                                let bias = (bias.at(0) as *const T, 1);
                                run3(x, scale, bias, y, length, |x, scale, bias| (x - mean) * inverse * scale + bias);
                            }
                            None => run2(x, scale, y, length, |x, scale| (x - mean) * inverse * scale),
                        }
                    }
                }
            },
        );
    });
    Ok(())
}

/// Mean and inverse deviation of a row, in two passes.
#[inline(always)]
fn row_statistics<T: Float>(row: &[T], epsilon: f32) -> (T, T) {
    let mut lanes = Lanes::new();
    lanes.add(row, |x| [x.to_f64()]);
    let mean = lanes.totals()[0] / row.len() as f64;
    let mut lanes = Lanes::new();
    lanes.add(row, |x| {
        let distance = x.to_f64() - mean;
        [distance * distance]
    });
    let variance = lanes.totals()[0] / row.len() as f64;
    (T::from_f64(mean), T::from_f64(1.0 / (variance + epsilon as f64).sqrt()))
}

/// dx, dscale and dbias of [`forward`]. The sums over rows run over fixed groups of rows, combined in order.
///
/// # Safety
/// As [`forward`].
pub(super) unsafe fn gradient<T: Float>(axis: usize, reads: &[View], writes: &[View]) -> Result<(), String> {
    let [dy, x, scale, mean, inverse] = [0, 1, 2, 3, 4].map(|i: usize| &reads[i]);
    let sums_views: Vec<&View> = writes[1..].iter().chain([scale]).collect();
    let (rows, length) = shape(axis, x, &[dy, &writes[0]], &sums_views, &[mean, inverse])?;
    let pointer = |view: &View| Pointer::<T>::of(view);
    let (dy, x, scale, dx) = (pointer(dy), pointer(x), pointer(scale), pointer(&writes[0]));
    let (mean, inverse) = (pointer(mean), pointer(inverse));
    // A group's sums are as long as a row: groups of at least 32 rows keep them small beside x.
    let partials = map_chunks(rows, (CHUNK / length).max(32), |range| {
        // The first half is dscale, the second dbias.
        let mut sums = vec![0.0f64; 2 * length];
        wide(
            #[inline(always)]
            || {
                for row in range {
                    // SAFETY: the row lies in the operands and is this task's alone.
                    unsafe {
                        let (mean, inverse) = (*mean.at(row as isize), *inverse.at(row as isize));
                        let start = row * length;
                        let (dy_row, x_row) = (dy.slice(start, length), x.slice(start, length));
                        let (dscale, dbias) = sums.split_at_mut(length);
                        let terms = dscale.iter_mut().zip(dbias).zip(dy_row.iter().zip(x_row));
                        for ((dscale, dbias), (&dy, &x)) in terms {
                            *dscale += dy.to_f64() * ((x - mean) * inverse).to_f64();
                            *dbias += dy.to_f64();
                        }
                        let means = row_means(dy_row, x_row, scale.slice(0, length), mean, inverse);
                        gradient_of_row((dy, x, dx), start, scale.slice(0, length), (mean, inverse), means);
                    }
                }
            },
        );
        sums
    });
    let mut totals = vec![0.0; 2 * length];
    for sums in &partials {
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    for (view, totals) in writes[1..].iter().zip(totals.chunks(length)) {
        // SAFETY: as long as a row.
        let sums = unsafe { pointer(view).slice_mut(0, length) };
        sums.iter_mut().zip(totals).for_each(|(sum, &total)| *sum = T::from_f64(total));
    }
    Ok(())
}

/// The means over a row of dy scale, and of that times the normalised x.
#[inline(always)]
fn row_means<T: Float>(dy: &[T], x: &[T], scale: &[T], mean: T, inverse: T) -> (T, T) {
    let mut lanes = Lanes::<2>::new();
    let mut slopes = [T::ZERO; BLOCK];
    for ((dy, x), scale) in dy.chunks(BLOCK).zip(x.chunks(BLOCK)).zip(scale.chunks(BLOCK)) {
        for (slope, (&dy, &scale)) in slopes.iter_mut().zip(dy.iter().zip(scale)) {
            *slope = dy * scale;
        }
        lanes.add2(&slopes[..dy.len()], x, |slope, x| {
            [slope.to_f64(), slope.to_f64() * ((x - mean) * inverse).to_f64()]
        });
    }
    let [slope, product] = lanes.totals();
    (T::from_f64(slope / dy.len() as f64), T::from_f64(product / dy.len() as f64))
}

/// dx = inverse (dy scale - mean(dy scale) - x^ mean(dy scale x^)), x^ being the normalised x.
///
/// # Safety
/// The row from `start`, as long as `scale`, must lie in all operands, and nobody else may touch dx's.
#[inline(always)]
unsafe fn gradient_of_row<T: Float>(
    (dy, x, dx): (Pointer<T>, Pointer<T>, Pointer<T>),
    start: usize,
    scale: &[T],
    (mean, inverse): (T, T),
    (mean_slope, mean_product): (T, T),
) {
    let start = start as isize;
    // SAFETY: the caller's promise.
    unsafe {
        let (dy, x) = ((dy.at(start) as *const T, 1), (x.at(start) as *const T, 1));
        run3(dy, x, (scale.as_ptr(), 1), dx.at(start), scale.len(), |dy, x, scale| {
            let normalised = (x - mean) * inverse;
            inverse * ((dy * scale - mean_slope) - normalised * mean_product)
        });
    }
}
