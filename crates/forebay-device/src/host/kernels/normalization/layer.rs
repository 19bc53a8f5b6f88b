//! Layer normalization: statistics per row, over the axes from a given one on.

use std::ops::Range;

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block_rows;

use super::super::View;
use super::super::accumulators::Accumulators;
use super::super::block::{run2, run3};
use super::super::buffer::BLOCK;
use super::super::element::Float;
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, tree_sum, wide};

/// Returns the number of rows and their length, after checking that all operands fit.
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
    let data_type = x.desc.data_type();
    for (views, count) in [(&[x][..], x.count()), (others, x.count()), (row_shaped, length), (per_row, rows)] {
        for view in views {
            require_packed(&[**view])?;
            if view.count() != count {
                return Err(format!("{} needs {count} elements for {} normalized from axis {axis}", view.desc, x.desc));
            }
            if view.desc.data_type() != data_type {
                return Err(format!("{} must be {data_type}, because {} is normalized in it", view.desc, x.desc));
            }
        }
    }
    Ok((rows, length))
}

/// y = (x - mean) inverse_deviation scale + bias; the mean and inverse deviation of every row are also written.
///
/// # Safety
/// As for [`super::super::run`], and the views must be of type `T`.
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
                    // SAFETY: the row lies in x and belongs to this task alone.
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

/// Computes the mean and inverse deviation of a row, in two passes.
#[inline(always)]
fn row_statistics<T: Float>(row: &[T], epsilon: f32) -> (T, T) {
    let mut accumulators = Accumulators::new();
    accumulators.add(
        row,
        #[inline(always)]
        |x| [x.to_f64()],
    );
    let mean = accumulators.totals()[0] / row.len() as f64;
    let mut accumulators = Accumulators::new();
    accumulators.add(
        row,
        #[inline(always)]
        |x| {
            let distance = x.to_f64() - mean;
            [distance * distance]
        },
    );
    let variance = accumulators.totals()[0] / row.len() as f64;
    (T::from_f64(mean), T::from_f64(1.0 / (variance + epsilon as f64).sqrt()))
}

/// The operands that the gradient reads: `rows` rows of `length` elements.
struct Operands<T> {
    rows: usize,
    length: usize,
    dy: Pointer<T>,
    x: Pointer<T>,
    mean: Pointer<T>,
    inverse: Pointer<T>,
}

impl<T: Float> Operands<T> {
    fn new(
        axis: usize,
        [dy, x, mean, inverse]: [&View; 4],
        like_x: &[&View],
        row_shaped: &[&View],
    ) -> Result<Operands<T>, String> {
        let (rows, length) = shape(axis, x, &[like_x, &[dy]].concat(), row_shaped, &[mean, inverse])?;
        let [dy, x, mean, inverse] = [dy, x, mean, inverse].map(Pointer::of);
        Ok(Operands { rows, length, dy, x, mean, inverse })
    }

    /// Adds a row to the sums that become dscale and dbias.
    ///
    /// # Safety
    /// The operands must be live, and no one may write them meanwhile.
    #[inline(always)]
    unsafe fn add_row(&self, row: usize, dscale: &mut [f64], dbias: &mut [f64]) {
        let start = row * self.length;
        // SAFETY: the row lies in the operands.
        let (dy, x, mean, inverse) = unsafe {
            let (mean, inverse) = (*self.mean.at(row as isize), *self.inverse.at(row as isize));
            (self.dy.slice(start, self.length), self.x.slice(start, self.length), mean, inverse)
        };
        for ((dscale, dbias), (&dy, &x)) in dscale.iter_mut().zip(dbias).zip(dy.iter().zip(x)) {
            *dscale += dy.to_f64() * ((x - mean) * inverse).to_f64();
            *dbias += dy.to_f64();
        }
    }

    /// Writes a row of dx.
    ///
    /// # Safety
    /// The operands and scale, as long as a row, must be live, and no one else may touch the row of dx.
    #[inline(always)]
    unsafe fn write_row(&self, row: usize, scale: Pointer<T>, dx: Pointer<T>) {
        let start = row * self.length;
        // SAFETY: the row lies in the operands; the caller promises the rest.
        unsafe {
            let (mean, inverse) = (*self.mean.at(row as isize), *self.inverse.at(row as isize));
            let scale = scale.slice(0, self.length);
            let (dy_row, x_row) = (self.dy.slice(start, self.length), self.x.slice(start, self.length));
            let means = row_means(dy_row, x_row, scale, mean, inverse);
            gradient_of_row((self.dy, self.x, dx), start, scale, (mean, inverse), means);
        }
    }

    /// Returns the sums over all rows for each position in a row. `then` is called with the rows of each reduction block after they have
    /// been summed.
    ///
    /// # Safety
    /// The operands must be live, and no one may write them before `then` does.
    unsafe fn sums(&self, then: impl Fn(Range<usize>) + Sync) -> Vec<[f64; 2]> {
        let length = self.length;
        let block_rows = reduction_block_rows(length as u64) as usize;
        let block_sums = |block: usize| {
            let range = block * block_rows..self.rows.min((block + 1) * block_rows);
            let mut sums = vec![0.0f64; 2 * length];
            wide(
                #[inline(always)]
                || {
                    let (dscale, dbias) = sums.split_at_mut(length);
                    for row in range.clone() {
                        // SAFETY: the caller's promise.
                        unsafe { self.add_row(row, dscale, dbias) };
                    }
                },
            );
            then(range);
            sums
        };
        let add = |mut earlier: Vec<f64>, later: Vec<f64>| {
            earlier.iter_mut().zip(later).for_each(|(earlier, later)| *earlier += later);
            earlier
        };
        let sums = tree_sum(SumTree::flat(self.rows.div_ceil(block_rows) as u64), block_sums, add);
        let sums = sums.unwrap_or_else(|| vec![0.0; 2 * length]);
        let (dscale, dbias) = sums.split_at(length);
        dscale.iter().zip(dbias).map(|(&dscale, &dbias)| [dscale, dbias]).collect()
    }
}

/// Computes dx of [`forward`], and dscale and dbias if there are results for them.
///
/// # Safety
/// As for [`forward`].
pub(super) unsafe fn gradient<T: Float>(axis: usize, reads: &[View], writes: &[View]) -> Result<(), String> {
    let [dy, x, scale, mean, inverse] = [0, 1, 2, 3, 4].map(|i: usize| &reads[i]);
    let row_shaped: Vec<&View> = writes[1..].iter().chain([scale]).collect();
    let operands = &Operands::<T>::new(axis, [dy, x, mean, inverse], &[&writes[0]], &row_shaped)?;
    let (scale, dx) = (Pointer::<T>::of(scale), Pointer::<T>::of(&writes[0]));
    let write = |range: Range<usize>| {
        wide(
            #[inline(always)]
            || {
                for row in range {
                    // SAFETY: the caller's promise; each row is in one range.
                    unsafe { operands.write_row(row, scale, dx) };
                }
            },
        );
    };
    if writes.len() == 1 {
        for_chunks(operands.rows, reduction_block_rows(operands.length as u64) as usize, write);
        return Ok(());
    }
    // SAFETY: the caller's promises.
    unsafe {
        let sums = operands.sums(write);
        store_parameter_gradients::<T>(&sums, &writes[1..]);
    }
    Ok(())
}

/// Returns the sums that become dscale and dbias, for each position in a row.
///
/// # Safety
/// As for [`forward`].
pub(in super::super) unsafe fn parameter_sums<T: Float>(axis: usize, reads: &[View]) -> Result<Vec<[f64; 2]>, String> {
    let operands = Operands::<T>::new(axis, [0, 1, 2, 3].map(|i: usize| &reads[i]), &[], &[])?;
    // SAFETY: the caller's promises.
    Ok(unsafe { operands.sums(|_| {}) })
}

/// Writes dscale and dbias.
///
/// # Safety
/// The views must be of type `T` and as long as the sums, and no one else may use them.
pub(in super::super) unsafe fn store_parameter_gradients<T: Float>(sums: &[[f64; 2]], writes: &[View]) {
    for (number, view) in writes.iter().enumerate() {
        // SAFETY: the caller's promise.
        let gradient = unsafe { Pointer::<T>::of(view).slice_mut(0, sums.len()) };
        gradient.iter_mut().zip(sums).for_each(|(gradient, sums)| *gradient = T::from_f64(sums[number]));
    }
}

/// Returns the means over a row of dy scale, and of dy scale times the normalized x.
#[inline(always)]
fn row_means<T: Float>(dy: &[T], x: &[T], scale: &[T], mean: T, inverse: T) -> (T, T) {
    let mut accumulators = Accumulators::<2>::new();
    let mut slopes = [T::ZERO; BLOCK];
    for ((dy, x), scale) in dy.chunks(BLOCK).zip(x.chunks(BLOCK)).zip(scale.chunks(BLOCK)) {
        for (slope, (&dy, &scale)) in slopes.iter_mut().zip(dy.iter().zip(scale)) {
            *slope = dy * scale;
        }
        accumulators.add2(
            &slopes[..dy.len()],
            x,
            #[inline(always)]
            |slope, x| [slope.to_f64(), slope.to_f64() * ((x - mean) * inverse).to_f64()],
        );
    }
    let [slope, product] = accumulators.totals();
    (T::from_f64(slope / dy.len() as f64), T::from_f64(product / dy.len() as f64))
}

/// dx = inverse (dy scale - mean(dy scale) - x^ mean(dy scale x^)), where x^ is the normalized x.
///
/// # Safety
/// The row from `start`, as long as `scale`, must lie in all operands, and no one else may touch that of dx.
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
            let normalized = (x - mean) * inverse;
            inverse * ((dy * scale - mean_slope) - normalized * mean_product)
        });
    }
}
