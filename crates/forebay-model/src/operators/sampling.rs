//! Samples of images at computed positions: each is a weighted sum of the elements around it.
//!
//! Images become rows of channels, one for each position. Samples gather rows by computed indices, so gradients go back to images (by the
//! transpose of the gather) and to positions (by the weights).

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Part};
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;

/// Elements along an axis around positions: their numbers and their weights, with an axis of taps last.
pub(super) struct Taps {
    /// Numbers of the elements, in the type given by [`index_type`].
    pub indices: Part,
    /// Weights of the elements; `None` if each has weight 1.
    pub weights: Option<Part>,
}

/// Polynomials in the distance from the left neighbor, whose values are the weights of the taps.
pub(super) struct Polynomials {
    /// Position of the first tap relative to the left neighbor.
    pub first: i64,
    /// The taps' coefficients for each power, from the highest to the constant.
    pub coefficients: Vec<Vec<f64>>,
}

impl Polynomials {
    /// Linear interpolation between the two neighbors.
    pub(super) fn linear() -> Polynomials {
        Polynomials { first: 0, coefficients: vec![vec![-1.0, 1.0], vec![1.0, 0.0]] }
    }

    /// Cubic convolution of four neighbors with coefficient `a`.
    pub(super) fn cubic(a: f64) -> Polynomials {
        let coefficients = vec![
            vec![a, a + 2.0, -a - 2.0, -a],
            vec![-2.0 * a, -a - 3.0, 2.0 * a + 3.0, a],
            vec![a, 0.0, -a, 0.0],
            vec![0.0, 1.0, 0.0, 0.0],
        ];
        Polynomials { first: -1, coefficients }
    }

    /// Positions of the taps around each of `positions` (whose last axis is 1), and their weights.
    pub(super) fn at(&self, c: &mut Composer, positions: &Part) -> Result<(Part, Part), ModelError> {
        let data_type = positions.ty.data_type;
        let count = self.coefficients[0].len();
        let offsets: Vec<f64> = (0..count).map(|i| (self.first + i as i64) as f64).collect();
        let left = c.unary(UnaryOp::Floor, positions)?;
        let fraction = c.binary(BinaryOp::Subtract, positions, &left)?;
        let mut weights: Option<Part> = None;
        for coefficients in &self.coefficients {
            let coefficients = c.floats(data_type, &[count as u64], coefficients)?;
            weights = Some(match weights {
                None => coefficients,
                Some(weights) => {
                    let product = c.binary(BinaryOp::Multiply, &weights, &fraction)?;
                    c.binary(BinaryOp::Add, &product, &coefficients)?
                }
            });
        }
        let weights = weights.ok_or_else(|| c.view.error("an interpolation needs at least one tap"))?;
        let offsets = c.floats(data_type, &[count as u64], &offsets)?;
        Ok((c.binary(BinaryOp::Add, &left, &offsets)?, weights))
    }
}

/// The type in which positions and weights are computed for elements of a type.
pub(super) fn place_type(data_type: DataType) -> DataType {
    if data_type == DataType::Float64 { DataType::Float64 } else { DataType::Float32 }
}

/// The type of numbers below a count: int32 if it can hold them, otherwise int64.
pub(super) fn index_type(count: u64) -> DataType {
    if count <= i32::MAX as u64 { DataType::Int32 } else { DataType::Int64 }
}

/// A result without elements, such as the samples of no images.
pub(super) fn nothing(c: &mut Composer, data_type: DataType, shape: &[u64]) -> Part {
    c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(data_type, shape))
}

/// Clamps numbers to 0..=last, in their own type.
pub(super) fn clamped(c: &mut Composer, x: &Part, last: u64) -> Result<Part, ModelError> {
    c.unary(UnaryOp::Clip { low: 0.0, high: last as f32 }, x)
}

/// The weights of the taps that lie within an axis with this last element; 0 for those outside.
pub(super) fn inside(
    c: &mut Composer,
    positions: &Part,
    weights: Option<&Part>,
    last: u64,
) -> Result<Part, ModelError> {
    let nearest = clamped(c, positions, last)?;
    let is_inside = c.binary(BinaryOp::Equal, positions, &nearest)?;
    match weights {
        None => Ok(c.cast(&is_inside, positions.ty.data_type)),
        Some(weights) => {
            let zero = c.floats(weights.ty.data_type, &[], &[0.0])?;
            c.select(&is_inside, weights, &zero)
        }
    }
}

/// Taps at whole positions, which are clamped to the axis.
pub(super) fn taps(
    c: &mut Composer,
    positions: &Part,
    weights: Option<Part>,
    last: u64,
    index_type: DataType,
) -> Result<Taps, ModelError> {
    let positions = clamped(c, positions, last)?;
    Ok(Taps { indices: c.cast(&positions, index_type), weights })
}

/// Combines the taps of the axes of an image. `axes` has the taps of each axis, which all have the same shape except for the number of
/// taps, and the axis' size; `first` is the number of the image's first row, and broadcasts to them.
pub(super) fn combined(c: &mut Composer, first: &Part, axes: Vec<(Taps, u64)>) -> Result<Taps, ModelError> {
    let mut all: Option<Taps> = None;
    for (taps, size) in axes {
        let Some(before) = all else {
            all = Some(taps);
            continue;
        };
        let size = c.integers(first.ty.data_type, &[], &[size as i64])?;
        let indices = c.binary(BinaryOp::Multiply, &before.indices, &size)?;
        let indices = pairs(c, BinaryOp::Add, &indices, &taps.indices)?;
        let weights = match (before.weights, taps.weights) {
            (Some(a), Some(b)) => Some(pairs(c, BinaryOp::Multiply, &a, &b)?),
            (a, b) => a.or(b),
        };
        all = Some(Taps { indices, weights });
    }
    let taps = all.ok_or_else(|| c.view.error("cannot sample an image without axes"))?;
    Ok(Taps { indices: c.binary(BinaryOp::Add, &taps.indices, first)?, ..taps })
}

/// A function of all pairs of taps: [.., a] and [.., b] give [.., a b].
fn pairs(c: &mut Composer, op: BinaryOp, a: &Part, b: &Part) -> Result<Part, ModelError> {
    let (mut left, mut right) = (a.ty.shape.clone(), b.ty.shape.clone());
    left.push(1);
    right.insert(right.len() - 1, 1);
    let (a, b) = (c.reshape(a, &left)?, c.reshape(b, &right)?);
    let y = c.binary(op, &a, &b)?;
    let mut shape = y.ty.shape.clone();
    let last = shape.pop().unwrap_or(1);
    if let Some(taps) = shape.last_mut() {
        *taps *= last;
    }
    c.reshape(&y, &shape)
}

/// An image [n, c, ..] as rows of channels: [n positions, c].
pub(super) fn rows(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let (n, channels) = (x.ty.shape[0], x.ty.shape[1]);
    let places = product(&c.view, &x.ty.shape[2..])?;
    let x = c.reshape(x, &[n, channels, places])?;
    let x = c.transpose(&x, &[0, 2, 1])?;
    c.reshape(&x, &[product(&c.view, &[n, places])?, channels])
}

/// The weighted elements of the taps: [n, positions, taps, channels] from rows [.., channels] and taps [n, positions, taps].
pub(super) fn terms(c: &mut Composer, rows: &Part, taps: &Taps) -> Result<Part, ModelError> {
    let mut shape = taps.indices.ty.shape.clone();
    shape.push(rows.ty.shape[1]);
    product(&c.view, &shape)?;
    let taken =
        c.kernel(Kernel::Gather { axis: 0 }, &[rows, &taps.indices], TensorType::new(rows.ty.data_type, &shape));
    let Some(weights) = &taps.weights else { return Ok(taken) };
    let mut shape = weights.ty.shape.clone();
    shape.push(1);
    let weights = c.reshape(weights, &shape)?;
    let taken = c.cast(&taken, weights.ty.data_type);
    c.binary(BinaryOp::Multiply, &taken, &weights)
}

/// The sums of the taps' elements: [n, positions, channels], in the rows' type.
pub(super) fn samples(c: &mut Composer, rows: &Part, taps: &Taps) -> Result<Part, ModelError> {
    let terms = terms(c, rows, taps)?;
    let sum = match terms.ty.shape[2] {
        1 => terms,
        _ => c.reduce(ReduceOp::Sum, &[2], &terms)?,
    };
    let shape = [sum.ty.shape[0], sum.ty.shape[1], sum.ty.shape[3]];
    let sum = c.reshape(&sum, &shape)?;
    Ok(c.cast(&sum, rows.ty.data_type))
}

/// Samples [n, positions, channels] as an image [n, channels, ..].
pub(super) fn image(c: &mut Composer, samples: &Part, places: &[u64]) -> Result<Part, ModelError> {
    let (n, channels) = (samples.ty.shape[0], samples.ty.shape[2]);
    let y = c.transpose(samples, &[0, 2, 1])?;
    c.reshape(&y, &[&[n, channels], places].concat())
}
