//! Interpolation along one axis by constant weights: each element of the result is a sum of elements of the input.

use forebay_base::kernel::{BinaryOp, ReduceOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Part};
use super::indices::take;
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;

/// The taps of one element of the result: elements of the input, and the weight of each.
pub(super) type Taps = Vec<(u64, f64)>;

/// With more taps than this, elements are multiplied by a matrix of all weights instead of being gathered.
const GATHERED_TAPS_MAX: usize = 8;
/// Largest number of weights in a matrix.
const MATRIX_MAX: u64 = 1 << 24;

/// Weighted sums along an axis. A few taps are gathered, weighted and added, which takes memory for one result per tap; many taps become a
/// product with a matrix that is 0 where there is no tap.
pub(super) fn weighted_sums(c: &mut Composer, x: &Part, axis: usize, rows: &[Taps]) -> Result<Part, ModelError> {
    let shape = x.ty.shape.clone();
    let (size, count) = (shape[axis], rows.len() as u64);
    let (outer, inner) = (product(&c.view, &shape[..axis])?, product(&c.view, &shape[axis + 1..])?);
    let taps = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let x = c.reshape(x, &[outer, size, inner])?;
    let weights_fit = size.checked_mul(count).is_some_and(|weights| weights <= MATRIX_MAX);
    let y = if taps > GATHERED_TAPS_MAX && weights_fit && x.ty.data_type != DataType::Float64 {
        let mut matrix = vec![0.0; (size * count) as usize];
        for (i, row) in rows.iter().enumerate() {
            for &(tap, weight) in row {
                matrix[i * size as usize + tap as usize] += weight;
            }
        }
        let matrix = c.floats(x.ty.data_type, &[1, count, size], &matrix)?;
        let ty = TensorType::new(x.ty.data_type, &[outer, count, inner]);
        c.kernel(Kernel::product(false, false), &[&matrix, &x], ty)
    } else {
        let (mut indices, mut weights) = (Vec::new(), Vec::new());
        for row in rows {
            // A tap of weight 0 is replaced by half of one that counts, because 0 times an infinite element is not 0.
            let mut used: Taps = row.iter().copied().filter(|&(_, weight)| weight != 0.0).collect();
            used.resize(taps, (0, 0.0));
            for k in 1..taps {
                if used[k].1 == 0.0 {
                    used[k - 1].1 *= 0.5;
                    used[k] = used[k - 1];
                }
            }
            indices.extend(used.iter().map(|&(tap, _)| tap as i64));
            weights.extend(used.iter().map(|&(_, weight)| weight));
        }
        let weights = c.floats(x.ty.data_type, &[count, taps as u64, 1], &weights)?;
        let taken = take(c, &x, 1, &indices);
        let taken = c.reshape(&taken, &[outer, count, taps as u64, inner])?;
        let terms = c.binary(BinaryOp::Multiply, &taken, &weights)?;
        c.reduce(ReduceOp::Sum, &[2], &terms)?
    };
    let mut result = shape;
    result[axis] = count;
    c.reshape(&y, &result)
}

/// An interpolation kernel, whose weights depend on the distance from a position.
pub(super) struct InterpolationKernel {
    /// Coefficient of the cubic kernel; `None` for the linear one.
    pub cubic: Option<f64>,
    /// Factor, at least 1, by which the kernel is stretched to avoid aliasing.
    pub stretch: f64,
    /// Whether elements outside the input are ignored; otherwise the first or last element is used for them.
    pub exclude_outside: bool,
}

impl InterpolationKernel {
    /// The taps of `position` along an axis of `size` elements.
    pub(super) fn taps(&self, position: f64, size: u64) -> Taps {
        let reach = if self.cubic.is_some() { 2.0 } else { 1.0 } * self.stretch;
        // The left neighbor of a whole position is the element before it.
        let left = position.ceil() - 1.0;
        let first = (-reach).floor() as i64 + 1;
        let mut taps: Vec<(i64, f64)> = (first..2 - first)
            .map(|i| (left as i64 + i, self.weight((left - position + i as f64) / self.stretch)))
            .collect();
        let last = size as i64 - 1;
        if self.exclude_outside {
            taps.retain(|&(tap, _)| (0..=last).contains(&tap));
        }
        let sum: f64 = taps.iter().map(|tap| tap.1).sum();
        let is_scaled = (self.exclude_outside || self.stretch > 1.0) && sum != 0.0;
        let divisor = if is_scaled { sum } else { 1.0 };
        taps.into_iter().map(|(tap, weight)| (tap.clamp(0, last) as u64, weight / divisor)).collect()
    }

    /// The kernel's weight at a distance.
    fn weight(&self, distance: f64) -> f64 {
        let d = distance.abs();
        match self.cubic {
            None => (1.0 - d).max(0.0),
            Some(a) if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            Some(a) if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            Some(_) => 0.0,
        }
    }
}
