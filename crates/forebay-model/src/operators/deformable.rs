//! Convolution whose taps are displaced by computed offsets.

use forebay_base::kernel::BinaryOp;

use super::convolution::{groups, per_dimension};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::sampling::{self, Polynomials};
use super::shapes::{product, require_few, size};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("DeformConv", deformable_convolution)];

/// The taps' elements are gathered (interpolated linearly, 0 outside) into the columns of a matrix, which is multiplied by the weights.
/// This takes memory for one element per tap, output position and input channel, and four times as much for the gather.
fn deformable_convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w, offsets) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let d = x.ty.shape.len().saturating_sub(2);
    let refuse = || view.error(format!("input {}, weight {} and offsets {} do not match", x.ty, w.ty, offsets.ty));
    let ranks_fit = (1..=3).contains(&d) && [&w, &offsets].iter().all(|part| part.ty.shape.len() == d + 2);
    // Only the batch may be empty.
    let is_empty = |part: &Part, i: usize| part.ty.shape.iter().skip(i).any(|&size| size == 0);
    if !ranks_fit || is_empty(&x, 1) || is_empty(&w, 0) || is_empty(&offsets, 1) {
        return Err(refuse());
    }
    let group_count = groups(&view)?;
    let offset_groups = size(&view, "attribute offset_group", view.int("offset_group", 1)?)?;
    let (n, channels, filters) = (x.ty.shape[0], x.ty.shape[1], w.ty.shape[0]);
    let taps = product(&view, &w.ty.shape[2..])?;
    let places = product(&view, &offsets.ty.shape[2..])?;
    let groups_fit = w.ty.shape[1].checked_mul(group_count) == Some(channels)
        && filters % group_count == 0
        && offset_groups > 0
        && channels % offset_groups == 0
        && offsets.ty.shape[0] == n
        && Some(offsets.ty.shape[1]) == offset_groups.checked_mul(taps).and_then(|taps| taps.checked_mul(d as u64));
    if !groups_fit {
        return Err(refuse());
    }
    let strides = per_dimension(&view, "strides", d, 1, 1)?;
    let dilations = per_dimension(&view, "dilations", d, 1, 1)?;
    let pads = per_dimension(&view, "pads", 2 * d, 0, 0)?;
    let shape = [&[n, filters], &offsets.ty.shape[2..]].concat();
    if n == 0 {
        let y = sampling::nothing(&mut c, x.ty.data_type, &shape);
        return c.finish(y);
    }
    let images = product(&view, &[n, offset_groups])?;
    let elements = product(&view, &x.ty.shape[2..])?;
    require_few(&view, &[images])?;
    require_few(&view, &[taps, places])?;
    let index_type = sampling::index_type(product(&view, &[images, elements])?);
    let offsets = c.cast(&offsets, sampling::place_type(x.ty.data_type));
    let moved = c.reshape(&offsets, &[images, taps, d as u64, places])?;
    let mut axes = Vec::with_capacity(d);
    for axis in 0..d {
        let offset = c.slice(&moved, 2, axis as u64, 1)?;
        let offset = c.reshape(&offset, &[images, taps * places, 1])?;
        // The positions of the taps without offsets.
        let index = |place: u64, sizes: &[u64]| (place / sizes[axis + 1..].iter().product::<u64>()) % sizes[axis];
        let mut positions = Vec::with_capacity((taps * places) as usize);
        for tap in 0..taps {
            for place in 0..places {
                let from = index(place, &offsets.ty.shape[2..]) as f64 * strides[axis] as f64 - pads[axis] as f64;
                positions.push(from + index(tap, &w.ty.shape[2..]) as f64 * dilations[axis] as f64);
            }
        }
        let positions = c.floats(offset.ty.data_type, &[1, taps * places, 1], &positions)?;
        let positions = c.binary(BinaryOp::Add, &offset, &positions)?;
        let last = x.ty.shape[2 + axis] - 1;
        let (positions, weights) = Polynomials::linear().at(&mut c, &positions)?;
        let weights = sampling::inside(&mut c, &positions, Some(&weights), last)?;
        axes.push((sampling::taps(&mut c, &positions, Some(weights), last, index_type)?, last + 1));
    }
    let firsts: Vec<i64> = (0..images).map(|image| (image * elements) as i64).collect();
    let first = c.integers(index_type, &[images, 1, 1], &firsts)?;
    let around = sampling::combined(&mut c, &first, axes)?;
    let image = c.reshape(&x, &[images, channels / offset_groups, elements])?;
    let rows = sampling::rows(&mut c, &image)?;
    let mut samples = sampling::samples(&mut c, &rows, &around)?;
    if view.has_input(4) {
        let mask = c.input(4)?;
        let mask = c.reshape(&mask, &[images, taps * places, 1])?;
        samples = c.binary(BinaryOp::Multiply, &samples, &mask)?;
    }
    let columns = c.transpose(&samples, &[0, 2, 1])?;
    let terms = channels / group_count * taps;
    let columns = c.reshape(&columns, &[n, group_count, terms, places])?;
    let weights = c.reshape(&w, &[1, group_count, filters / group_count, terms])?;
    let by_group = [n, group_count, filters / group_count, places];
    let y = super::products::product(&mut c, (&weights, false), (&columns, false), &by_group)?;
    let mut y = c.reshape(&y, &shape)?;
    if view.has_input(3) {
        let bias = c.input(3)?;
        let mut shape = vec![1; d + 1];
        shape[0] = filters;
        let bias = c.reshape(&bias, &shape)?;
        y = c.binary(BinaryOp::Add, &y, &bias)?;
    }
    c.finish(y)
}
