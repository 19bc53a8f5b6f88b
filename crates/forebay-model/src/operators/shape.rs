//! Operators that only reorder, repeat or rename elements.

use forebay_base::tensor::DIMENSIONS_MAX;
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{attribute_or_input, axes, broadcast_shapes, product, size};
use crate::error::ModelError;
use crate::graph::{FOREBAY, TensorType};
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("DepthToSpace", depth_to_space),
    composed!("Dropout", dropout),
    composed!("Expand", expand),
    composed!("Flatten", flatten),
    composed!("Identity", identity),
    Operator { gradient: Gradient::Zero, ..composed!(FOREBAY, "Identity", identity) },
    Operator { gradient: Gradient::Zero, ..composed!(FOREBAY, "Next", identity) },
    composed!("Reshape", reshape),
    composed!("SpaceToDepth", space_to_depth),
    composed!("Squeeze", squeeze),
    composed!("Tile", tile),
    composed!("Transpose", transpose),
    composed!("Unsqueeze", unsqueeze),
];

fn identity(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let x = c.input(0)?;
    c.finish(x)
}

/// Outside training, nothing is dropped; the mask, if requested, keeps everything.
fn dropout(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    if !matches!(view.node.outputs.get(1), Some(Some(_))) {
        return c.finish(x);
    }
    let data_type = if view.version() < 10 { x.ty.data_type } else { DataType::Bool };
    let mask = c.kernel(Kernel::Fill { value: 1.0 }, &[], TensorType::new(data_type, &x.ty.shape));
    c.finish_all(vec![x, mask])
}

/// A size of 0 copies the input's size unless `allowzero` is set; a single -1 stands for the remaining size.
fn reshape(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let x = c.input(0)?;
    let target = attribute_or_input(&view, "shape", 1)?.ok_or_else(|| view.error("the shape is missing"))?;
    let allow_zero = view.int("allowzero", 0)? != 0;
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (i, &value) in target.iter().enumerate() {
        shape.push(match value {
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            0 if !allow_zero => *x
                .ty
                .shape
                .get(i)
                .ok_or_else(|| view.error(format!("shape {target:?} copies dimension {i}, which {} lacks", x.ty)))?,
            value => size(&view, "a size other than a single -1", value)?,
        });
    }
    if let Some(open) = open {
        let (count, known) = (product(&view, &x.ty.shape)?, product(&view, &shape)?);
        if known == 0 || count % known != 0 {
            return Err(view.error(format!("cannot reshape {} to {target:?}: the numbers of elements differ", x.ty)));
        }
        shape[open] = count / known;
    }
    let y = c.reshape(&x, &shape)?;
    c.finish(y)
}

fn flatten(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let axis = match view.int("axis", 1)? {
        axis if axis == rank as i64 => rank,
        axis => view.axis(axis, rank)?,
    };
    let shape = [product(&view, &x.ty.shape[..axis])?, product(&view, &x.ty.shape[axis..])?];
    let y = c.reshape(&x, &shape)?;
    c.finish(y)
}

fn squeeze(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let removed = match attribute_or_input(&view, "axes", 1)? {
        Some(named) => axes(&view, &named, rank)?,
        None => (0..rank).filter(|&axis| x.ty.shape[axis] == 1).collect(),
    };
    if let Some(axis) = removed.iter().find(|&&axis| x.ty.shape[axis] != 1) {
        return Err(view.error(format!("axis {axis} of {} does not have size 1", x.ty)));
    }
    let shape: Vec<u64> = (0..rank).filter(|axis| !removed.contains(axis)).map(|axis| x.ty.shape[axis]).collect();
    let y = c.reshape(&x, &shape)?;
    c.finish(y)
}

fn unsqueeze(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let x = c.input(0)?;
    let named = attribute_or_input(&view, "axes", 1)?.ok_or_else(|| view.error("the axes are missing"))?;
    let rank = x.ty.shape.len() + named.len();
    let added = axes(&view, &named, rank)?;
    let mut sizes = x.ty.shape.iter().copied();
    let shape: Vec<u64> =
        (0..rank).map(|axis| if added.contains(&axis) { 1 } else { sizes.next().unwrap_or(1) }).collect();
    let y = c.reshape(&x, &shape)?;
    c.finish(y)
}

fn transpose(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let permutation: Vec<usize> = match view.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(named) => {
            if axes(&view, named, rank)?.len() != rank {
                return Err(view.error(format!("attribute perm {named:?} is not a permutation of {rank} dimensions")));
            }
            named.iter().map(|&axis| view.axis(axis, rank)).collect::<Result<_, _>>()?
        }
    };
    let y = c.transpose(&x, &permutation)?;
    c.finish(y)
}

fn expand(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let target = view.constant_ints(1)?;
    let target = target.iter().map(|&value| size(&view, "a size", value)).collect::<Result<Vec<_>, _>>()?;
    let shape = broadcast_shapes(&view, &x.ty.shape, &target)?;
    product(&view, &shape)?;
    let y = c.expand(&x, &shape)?;
    c.finish(y)
}

/// Repetition along an axis is a broadcast dimension before it.
fn tile(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let repeats = view.constant_ints(1)?;
    if repeats.len() != x.ty.shape.len() {
        return Err(view.error(format!("{} repeats do not fit the input {}", repeats.len(), x.ty)));
    }
    let repeats = repeats.iter().map(|&value| size(&view, "a repeat", value)).collect::<Result<Vec<_>, _>>()?;
    let (mut before, mut repeated, mut shape) = (Vec::new(), Vec::new(), Vec::new());
    for (&from, &repeat) in x.ty.shape.iter().zip(&repeats) {
        if repeat != 1 {
            before.push(1);
            repeated.push(repeat);
        }
        before.push(from);
        repeated.push(from);
        shape.push(product(&view, &[from, repeat])?);
    }
    product(&view, &shape)?;
    if repeated.len() > DIMENSIONS_MAX {
        let y = repeated_by_axis(&mut c, x, &repeats)?;
        return c.finish(y);
    }
    let blocks = c.reshape(&x, &before)?;
    let blocks = c.expand(&blocks, &repeated)?;
    let y = c.reshape(&blocks, &shape)?;
    c.finish(y)
}

/// x repeated along one axis after the other, from the last one on: blocks of the elements from the axis on are repeated.
fn repeated_by_axis(c: &mut Composer, x: Part, repeats: &[u64]) -> Result<Part, ModelError> {
    let view = c.view;
    let mut y = x;
    for (axis, &repeat) in repeats.iter().enumerate().rev().filter(|&(_, &repeat)| repeat != 1) {
        let mut shape = y.ty.shape.clone();
        let (outer, block) = (product(&view, &shape[..axis])?, product(&view, &shape[axis..])?);
        shape[axis] *= repeat;
        let blocks = c.reshape(&y, &[outer, 1, block])?;
        let blocks = c.expand(&blocks, &[outer, repeat, block])?;
        y = c.reshape(&blocks, &shape)?;
    }
    Ok(y)
}

fn block_size(view: &NodeView, ty: &TensorType) -> Result<u64, ModelError> {
    let block = size(view, "attribute blocksize", view.int("blocksize", 0)?)?;
    if ty.shape.len() != 4 || block == 0 || block > 1 << 20 {
        return Err(view.error(format!("expected an input [n, c, h, w] and a valid blocksize, found {ty} and {block}")));
    }
    Ok(block)
}

fn depth_to_space(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let block = block_size(&view, &x.ty)?;
    let &[n, channels, height, width] = x.ty.shape.as_slice() else {
        return Err(view.error("expected four dimensions"));
    };
    if channels % (block * block) != 0 {
        return Err(view.error(format!("cannot split {channels} channels into blocks of {block} x {block}")));
    }
    let depth = channels / (block * block);
    let (split, permutation) = match view.string("mode", "DCR")? {
        "DCR" => ([n, block, block, depth, height, width], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, depth, block, block, height, width], [0, 1, 4, 2, 5, 3]),
        other => return Err(view.error(format!("attribute mode must be DCR or CRD, not '{other}'"))),
    };
    let parts = c.reshape(&x, &split)?;
    let parts = c.transpose(&parts, &permutation)?;
    let shape = [n, depth, product(&view, &[height, block])?, product(&view, &[width, block])?];
    let y = c.reshape(&parts, &shape)?;
    c.finish(y)
}

fn space_to_depth(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let block = block_size(&view, &x.ty)?;
    let &[n, channels, height, width] = x.ty.shape.as_slice() else {
        return Err(view.error("expected four dimensions"));
    };
    if height % block != 0 || width % block != 0 {
        return Err(view.error(format!("cannot split {} into blocks of {block} x {block}", x.ty)));
    }
    let parts = c.reshape(&x, &[n, channels, height / block, block, width / block, block])?;
    let permutation = match view.string("mode", "DCR")? {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        other => return Err(view.error(format!("attribute mode must be DCR or CRD, not '{other}'"))),
    };
    let parts = c.transpose(&parts, &permutation)?;
    let depth = product(&view, &[channels, block * block])?;
    let y = c.reshape(&parts, &[n, depth, height / block, width / block])?;
    c.finish(y)
}
