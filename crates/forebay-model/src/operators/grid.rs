//! Sampling of images at a grid of positions, and grids of affine maps.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::sampling::{self, Polynomials, Taps};
use super::shapes::{product, require_few};
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("AffineGrid", affine_grid),
    composed!("GridSample", grid_sample),
    composed!(MICROSOFT, "GridSample", grid_sample),
];

/// Coefficient of the cubic kernel.
const CUBIC: f64 = -0.75;

/// How samples are interpolated, and how positions outside are treated.
struct Sampler<'a> {
    mode: &'a str,
    padding: &'a str,
    align_corners: bool,
}

fn grid_sample(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, grid) = (c.input(0)?, c.input(1)?);
    let dimensions = x.ty.shape.len().saturating_sub(2);
    let fits = dimensions > 0
        && grid.ty.shape.len() == x.ty.shape.len()
        && grid.ty.shape[0] == x.ty.shape[0]
        && grid.ty.shape.last() == Some(&(dimensions as u64))
        && grid.ty.data_type.is_float();
    let shape: Vec<u64> =
        x.ty.shape.iter().take(2).chain(grid.ty.shape.iter().skip(1).take(dimensions)).copied().collect();
    let is_empty = shape.contains(&0);
    if !fits || (x.ty.shape.contains(&0) && !is_empty) {
        return Err(view.error(format!("the grid {} does not match the input {}", grid.ty, x.ty)));
    }
    let sampler = Sampler {
        mode: match view.string("mode", "linear")? {
            "linear" | "bilinear" => "linear",
            "cubic" | "bicubic" => "cubic",
            "nearest" => "nearest",
            other => {
                return Err(view.error(format!("attribute mode must be nearest, linear or cubic, not '{other}'")));
            }
        },
        padding: match view.string("padding_mode", "zeros")? {
            padding @ ("zeros" | "border" | "reflection") => padding,
            other => {
                let reason = format!("attribute padding_mode must be zeros, border or reflection, not '{other}'");
                return Err(view.error(reason));
            }
        },
        align_corners: view.int("align_corners", 0)? != 0,
    };
    if is_empty {
        let y = sampling::nothing(&mut c, x.ty.data_type, &shape);
        return c.finish(y);
    }
    let n = x.ty.shape[0];
    let places = grid.ty.shape[1..=dimensions].to_vec();
    let place_count = product(&view, &places)?;
    let row_count = product(&view, &[n, product(&view, &x.ty.shape[2..])?])?;
    require_few(&view, &[n])?;
    let index_type = sampling::index_type(row_count);
    let grid = c.cast(&grid, sampling::place_type(x.ty.data_type));
    let grid = c.reshape(&grid, &[n, place_count, dimensions as u64])?;
    let mut axes = Vec::with_capacity(dimensions);
    for (axis, &size) in x.ty.shape[2..].iter().enumerate() {
        // The grid lists the last axis first.
        let place = c.slice(&grid, 2, (dimensions - 1 - axis) as u64, 1)?;
        axes.push((sampler.taps(&mut c, &place, size, index_type)?, size));
    }
    let firsts: Vec<i64> = (0..n).map(|image| (image * (row_count / n)) as i64).collect();
    let first = c.integers(index_type, &[n, 1, 1], &firsts)?;
    let taps = sampling::combined(&mut c, &first, axes)?;
    let rows = sampling::rows(&mut c, &x)?;
    let samples = sampling::samples(&mut c, &rows, &taps)?;
    let y = sampling::image(&mut c, &samples, &places)?;
    c.finish(y)
}

impl Sampler<'_> {
    /// The taps for coordinates in -1..1 along an axis.
    fn taps(&self, c: &mut Composer, place: &Part, size: u64, index_type: DataType) -> Result<Taps, ModelError> {
        let last = size - 1;
        let (factor, summand) = if self.align_corners { (last as f32, 0.0) } else { (size as f32, -0.5) };
        let place = c.affine(place, 0.5, 0.5)?;
        let mut position = c.affine(&place, factor, summand)?;
        if self.mode == "nearest" {
            position = rounded(c, &position)?;
        }
        position = match self.padding {
            // For cubic samples outside, taps are clamped one by one, as in PyTorch and ONNX Runtime.
            "border" if self.mode != "cubic" => {
                // Up to half an element outside, taps are clamped one by one.
                let (low, high) = self.limits(size);
                let nearest = c.unary(UnaryOp::Clip { low, high }, &position)?;
                let is_near = c.binary(BinaryOp::Equal, &position, &nearest)?;
                let inside = sampling::clamped(c, &position, last)?;
                c.select(&is_near, &position, &inside)?
            }
            "reflection" => self.reflected(c, &position, size)?,
            _ => position,
        };
        let (mut positions, mut weights) = match self.mode {
            "nearest" => (position, None),
            mode => {
                let polynomials = if mode == "cubic" { Polynomials::cubic(CUBIC) } else { Polynomials::linear() };
                let (positions, weights) = polynomials.at(c, &position)?;
                (positions, Some(weights))
            }
        };
        match self.padding {
            "zeros" => weights = Some(sampling::inside(c, &positions, weights.as_ref(), last)?),
            "reflection" => positions = self.reflected(c, &positions, size)?,
            _ => {}
        }
        sampling::taps(c, &positions, weights, last, index_type)
    }

    /// The outer borders of the first and last elements, or their centers.
    fn limits(&self, size: u64) -> (f32, f32) {
        if self.align_corners { (0.0, (size - 1) as f32) } else { (-0.5, size as f32 - 0.5) }
    }

    /// Reflects positions at the borders until they lie within, by counting the distance from the lower border in widths.
    fn reflected(&self, c: &mut Composer, position: &Part, size: u64) -> Result<Part, ModelError> {
        let (low, high) = self.limits(size);
        let width = high - low;
        if width == 0.0 {
            return c.affine(position, 0.0, 0.0);
        }
        let distance = c.affine(position, 1.0, -low)?;
        let distance = c.unary(UnaryOp::Abs, &distance)?;
        let divisor = c.floats(position.ty.data_type, &[], &[f64::from(width)])?;
        let widths = c.binary(BinaryOp::Divide, &distance, &divisor)?;
        let widths = c.unary(UnaryOp::Floor, &widths)?;
        let whole = c.binary(BinaryOp::Multiply, &widths, &divisor)?;
        let rest = c.binary(BinaryOp::Subtract, &distance, &whole)?;
        let is_odd = odd(c, &widths)?;
        let (from_low, from_high) = (c.affine(&rest, 1.0, low)?, c.affine(&rest, -1.0, high)?);
        c.select(&is_odd, &from_high, &from_low)
    }
}

/// Whether whole numbers are odd.
fn odd(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let half = c.affine(x, 0.5, 0.0)?;
    let whole = c.unary(UnaryOp::Floor, &half)?;
    c.binary(BinaryOp::Greater, &half, &whole)
}

/// The nearest whole number; ties go to the even one.
fn rounded(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let shifted = c.affine(x, 1.0, 0.5)?;
    let above = c.unary(UnaryOp::Floor, &shifted)?;
    let is_between = c.binary(BinaryOp::Equal, &shifted, &above)?;
    let is_odd = odd(c, &above)?;
    let is_off = c.binary(BinaryOp::And, &is_between, &is_odd)?;
    let below = c.affine(&above, 1.0, -1.0)?;
    c.select(&is_off, &below, &above)
}

/// Positions of an image of the given size under affine maps [n, d, d + 1]: a product with the positions in the image itself.
fn affine_grid(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let theta = c.input(0)?;
    let sizes = view.constant_ints(1)?;
    let sizes = sizes.iter().map(|&size| super::shapes::size(&view, "a size", size)).collect::<Result<Vec<_>, _>>()?;
    let d = sizes.len().saturating_sub(2);
    let (batch, places) = (sizes.first().copied().unwrap_or(0), sizes.get(2..).unwrap_or_default());
    if !(2..=3).contains(&d) || theta.ty.shape != [batch, d as u64, d as u64 + 1] || places.contains(&0) {
        return Err(view.error(format!("maps {} do not match images {sizes:?}", theta.ty)));
    }
    let count = product(&view, places)?;
    require_few(&view, &[count, d as u64 + 1])?;
    let coordinate = |i: u64, size: u64, align: bool| match align {
        true if size == 1 => 0.0,
        true => -1.0 + 2.0 * i as f64 / (size - 1) as f64,
        false => -1.0 + (2.0 * i as f64 + 1.0) / size as f64,
    };
    let align = view.int("align_corners", 0)? != 0;
    let mut grid = Vec::with_capacity(count as usize * (d + 1));
    for place in 0..count {
        // The last axis of the image is the first coordinate of a position.
        let mut left = place;
        for &size in places.iter().rev() {
            grid.push(coordinate(left % size, size, align));
            left /= size;
        }
        grid.push(1.0);
    }
    let grid = c.floats(theta.ty.data_type, &[1, count, d as u64 + 1], &grid)?;
    let y = super::products::product(&mut c, (&grid, false), (&theta, true), &[batch, count, d as u64])?;
    let y = c.reshape(&y, &[&[batch], places, &[d as u64]].concat())?;
    c.finish(y)
}
