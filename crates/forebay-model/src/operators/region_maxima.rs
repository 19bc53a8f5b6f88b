//! `MaxRoiPool`: the largest element of each bin of a region.
//!
//! Bins can have any size, which is computed at run time. The maxima of all windows of 1, 2, 4, .. elements along both axes are therefore
//! computed first; the maximum of a bin is that of four of these windows, which begin or end where it does.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::sampling::{self, Taps};
use super::shapes::{product, require_few, size};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("MaxRoiPool", max_roi_pool)];

/// The bins of all regions along an axis.
struct Bins {
    /// The starts of the two windows of each bin: [count, bins, 2], in float32.
    begins: Part,
    /// The logarithm of their length: [count, bins], in float32.
    levels: Part,
    /// Whether a bin has elements: [count, bins].
    is_full: Part,
}

fn max_roi_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, regions) = (c.input(0)?, c.input(1)?);
    let (&[batch, channels, height, width], &[count, 5]) = (x.ty.shape.as_slice(), regions.ty.shape.as_slice()) else {
        let reason = format!("expected images [n, c, h, w] and regions [count, 5], found {} and {}", x.ty, regions.ty);
        return Err(view.error(reason));
    };
    if x.ty.shape.contains(&0) && count > 0 {
        return Err(view.error(format!("the images {} of {count} regions are empty", x.ty)));
    }
    let pooled = match view.ints("pooled_shape")? {
        Some(&[height, width]) => [
            size(&view, "attribute pooled_shape", height)?.max(1),
            size(&view, "attribute pooled_shape", width)?.max(1),
        ],
        _ => return Err(view.error("attribute pooled_shape must have two sizes")),
    };
    if count == 0 {
        let y = sampling::nothing(&mut c, x.ty.data_type, &[0, channels, pooled[0], pooled[1]]);
        return c.finish(y);
    }
    let scale = view.float("spatial_scale", 1.0)?;
    let regions = c.cast(&regions, DataType::Float32);
    let column = |c: &mut Composer, i: u64| c.slice(&regions, 1, i, 1);
    let images_of = column(&mut c, 0)?;
    let mut axes = Vec::with_capacity(2);
    for (axis, &size) in [height, width].iter().enumerate() {
        let (first, last) = (column(&mut c, 2 - axis as u64)?, column(&mut c, 4 - axis as u64)?);
        axes.push(bins(&mut c, (first, last), scale, pooled[axis], size)?);
    }
    let [level_rows, level_columns] = [height, width].map(|size| u64::from(size.ilog2()) + 1);
    let place = product(&view, &[height, width])?;
    let images = product(&view, &[batch, place])?;
    let by_rows = product(&view, &[level_rows, images])?;
    let index_type = sampling::index_type(product(&view, &[level_columns, by_rows])?);
    // Windows along the rows, then windows of these along the columns, each with the shorter ones first.
    let table = sampling::rows(&mut c, &x)?;
    let table = c.reshape(&table, &[batch, height, width, channels])?;
    let table = maxima(&mut c, &table, 1)?;
    let table = maxima(&mut c, &table, 2)?;
    let table = c.reshape(&table, &[level_columns * by_rows, channels])?;
    // Numbers of the windows in the table: [count, height, width, 2, 2].
    let mut number = |part: &Part, factor: u64, shape: [u64; 5]| {
        let part = c.cast(part, index_type);
        let factor = c.integers(index_type, &[], &[factor as i64])?;
        let part = c.binary(BinaryOp::Multiply, &part, &factor)?;
        c.reshape(&part, &shape)
    };
    let [rows, columns] = pooled;
    let parts = [
        number(&axes[0].levels, images, [count, rows, 1, 1, 1])?,
        number(&axes[0].begins, width, [count, rows, 1, 2, 1])?,
        number(&axes[1].levels, by_rows, [count, 1, columns, 1, 1])?,
        number(&axes[1].begins, 1, [count, 1, columns, 1, 2])?,
    ];
    let mut indices = number(&images_of, place, [count, 1, 1, 1, 1])?;
    for part in &parts {
        indices = c.binary(BinaryOp::Add, &indices, part)?;
    }
    let bins = rows * columns;
    let taps = Taps { indices: c.reshape(&indices, &[count, bins, 4])?, weights: None };
    let windows = sampling::terms(&mut c, &table, &taps)?;
    let largest = c.reduce(ReduceOp::Max, &[2], &windows)?;
    let largest = c.reshape(&largest, &[count, bins, channels])?;
    let full_rows = c.reshape(&axes[0].is_full, &[count, rows, 1])?;
    let full_columns = c.reshape(&axes[1].is_full, &[count, 1, columns])?;
    let is_full = c.binary(BinaryOp::And, &full_rows, &full_columns)?;
    let is_full = c.reshape(&is_full, &[count, bins, 1])?;
    let zero = c.scalar(x.ty.data_type, 0.0)?;
    let y = c.select(&is_full, &largest, &zero)?;
    let y = sampling::image(&mut c, &y, &pooled)?;
    c.finish(y)
}

/// The bins along an axis of regions between two coordinates [count, 1], both included.
fn bins(c: &mut Composer, limits: (Part, Part), scale: f32, bins: u64, size: u64) -> Result<Bins, ModelError> {
    require_few(&c.view, &[bins])?;
    let nearest = |c: &mut Composer, x: &Part| {
        // Halves are rounded away from zero.
        let x = c.affine(x, scale, 0.0)?;
        let sign = c.unary(UnaryOp::Sign, &x)?;
        let magnitude = c.unary(UnaryOp::Abs, &x)?;
        let magnitude = c.affine(&magnitude, 1.0, 0.5)?;
        let magnitude = c.unary(UnaryOp::Floor, &magnitude)?;
        c.binary(BinaryOp::Multiply, &sign, &magnitude)
    };
    let (first, last) = (nearest(c, &limits.0)?, nearest(c, &limits.1)?);
    let extent = c.binary(BinaryOp::Subtract, &last, &first)?;
    let extent = c.affine(&extent, 1.0, 1.0)?;
    let extent = c.unary(UnaryOp::Clip { low: 1.0, high: f32::MAX }, &extent)?;
    let parts = c.scalar(DataType::Float32, bins as f64)?;
    let bin = c.binary(BinaryOp::Divide, &extent, &parts)?;
    let mut border = |i: u64, op: UnaryOp| {
        let numbers: Vec<f64> = (i..i + bins).map(|number| number as f64).collect();
        let numbers = c.floats(DataType::Float32, &[1, bins], &numbers)?;
        let place = c.binary(BinaryOp::Multiply, &numbers, &bin)?;
        let place = c.unary(op, &place)?;
        let place = c.binary(BinaryOp::Add, &place, &first)?;
        sampling::clamped(c, &place, size)
    };
    let (begin, end) = (border(0, UnaryOp::Floor)?, border(1, UnaryOp::Ceil)?);
    let length = c.binary(BinaryOp::Subtract, &end, &begin)?;
    let mut levels = c.affine(&length, 0.0, 0.0)?;
    let mut window = c.affine(&length, 0.0, 1.0)?;
    for level in 1..=size.ilog2() {
        let long = c.scalar(DataType::Float32, libm::exp2(f64::from(level)))?;
        let is_long = c.binary(BinaryOp::GreaterOrEqual, &length, &long)?;
        let is_long = c.cast(&is_long, DataType::Float32);
        levels = c.binary(BinaryOp::Add, &levels, &is_long)?;
        let more = c.affine(&is_long, libm::exp2(f64::from(level - 1)) as f32, 0.0)?;
        window = c.binary(BinaryOp::Add, &window, &more)?;
    }
    let second = c.binary(BinaryOp::Subtract, &end, &window)?;
    let count = begin.ty.shape[0];
    // Bins without elements get an arbitrary window.
    let mut column = |part: &Part| {
        let part = sampling::clamped(c, part, size - 1)?;
        c.reshape(&part, &[count, bins, 1])
    };
    let (begin, second) = (column(&begin)?, column(&second)?);
    let begins = c.concatenate(&[&begin, &second], 2)?;
    let zero = c.scalar(DataType::Float32, 0.0)?;
    let is_full = c.binary(BinaryOp::Greater, &length, &zero)?;
    Ok(Bins { begins, levels, is_full })
}

/// The maxima of windows of 1, 2, 4, .. elements along an axis, starting at each element. The window sizes follow each other along the
/// first axis.
fn maxima(c: &mut Composer, x: &Part, axis: usize) -> Result<Part, ModelError> {
    let size = x.ty.shape[axis];
    require_few(&c.view, &[size])?;
    let mut levels = vec![x.clone()];
    for level in 0..size.ilog2() {
        let shorter = levels[level as usize].clone();
        let next: Vec<i64> = (0..size).map(|i| (i + (1 << level)).min(size - 1) as i64).collect();
        let next = take(c, &shorter, axis, &next);
        levels.push(c.binary(BinaryOp::Maximum, &shorter, &next)?);
    }
    c.concatenate(&levels.iter().collect::<Vec<_>>(), 0)
}
