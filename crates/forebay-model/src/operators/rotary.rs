//! Rotary position embeddings: pairs of elements rotated by angles that depend on positions.

use forebay_base::Kernel;
use forebay_base::kernel::BinaryOp;

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("RotaryEmbedding", rotary_embedding)];

/// How elements are rotated.
pub(super) struct Rotation {
    /// Cosines and sines, one for every pair: [.., pairs], which broadcast to x except in its last dimension.
    pub angles: [Part; 2],
    /// Whether the elements of a pair are neighbors; otherwise they are half the number of rotated elements apart.
    pub interleaved: bool,
}

/// Rotates the first elements of x's last dimension, twice as many as there are angles; the rest is unchanged.
pub(super) fn rotated(c: &mut Composer, x: &Part, rotation: &Rotation) -> Result<Part, ModelError> {
    let [cosine, sine] = &rotation.angles;
    let axis = x.ty.shape.len().saturating_sub(1);
    let (Some(&pairs), Some(&all)) = (cosine.ty.shape.last(), x.ty.shape.last()) else {
        return Err(c.view.error("the input and the angles must have dimensions"));
    };
    let turned = product(&c.view, &[pairs, 2])?;
    if turned > all || pairs == 0 || cosine.ty != sine.ty {
        let reason = format!("angles {} and {} do not fit {all} elements of {}", cosine.ty, sine.ty, x.ty);
        return Err(c.view.error(reason));
    }
    let step = if rotation.interleaved { 2 } else { 1 };
    let first = c.strided(x, axis, (0, pairs, step))?;
    let second = c.strided(x, axis, (if rotation.interleaved { 1 } else { pairs }, pairs, step))?;
    let mut of = |a: &Part, b: &Part, op: BinaryOp| -> Result<Part, ModelError> {
        let (a, b) = (c.binary(BinaryOp::Multiply, &first, a)?, c.binary(BinaryOp::Multiply, &second, b)?);
        c.binary(op, &a, &b)
    };
    let (real, imaginary) = (of(cosine, sine, BinaryOp::Subtract)?, of(sine, cosine, BinaryOp::Add)?);
    if real.ty != first.ty {
        return Err(c.view.error(format!("angles {} do not broadcast to pairs {}", cosine.ty, first.ty)));
    }
    let y = if rotation.interleaved {
        let mut shape = real.ty.shape.clone();
        shape.push(1);
        let (real, imaginary) = (c.reshape(&real, &shape)?, c.reshape(&imaginary, &shape)?);
        let pairs = c.concatenate(&[&real, &imaginary], axis + 1)?;
        shape.truncate(axis);
        shape.push(turned);
        c.reshape(&pairs, &shape)?
    } else {
        c.concatenate(&[&real, &imaginary], axis)?
    };
    let rest = all - turned;
    if rest == 0 {
        return Ok(y);
    }
    let rest = c.slice(x, axis, turned, rest)?;
    c.concatenate(&[&y, &rest], axis)
}

/// The rows of a table [positions, pairs] that positions [batch, length] select: [batch, length, pairs].
pub(super) fn at_positions(c: &mut Composer, table: &Part, positions: &Part) -> Result<Part, ModelError> {
    let (&[_, pairs], &[batch, length]) = (table.ty.shape.as_slice(), positions.ty.shape.as_slice()) else {
        return Err(c.view.error(format!("the table {} does not fit positions {}", table.ty, positions.ty)));
    };
    let count = product(&c.view, &[batch, length])?;
    let indices = c.reshape(positions, &[count])?;
    let rows = TensorType::new(table.ty.data_type, &[count, pairs]);
    let rows = c.kernel(Kernel::Gather { axis: 0 }, &[table, &indices], rows);
    c.reshape(&rows, &[batch, length, pairs])
}

/// Angles [batch, length, pairs] for x[batch, heads, length, ..] or x[batch, length, heads, ..].
pub(super) fn beside_heads(c: &mut Composer, angles: &Part, heads_first: bool) -> Result<Part, ModelError> {
    let &[batch, length, pairs] = angles.ty.shape.as_slice() else {
        return Err(c.view.error(format!("expected angles [batch, length, pairs], found {}", angles.ty)));
    };
    c.reshape(angles, &if heads_first { [batch, 1, length, pairs] } else { [batch, length, 1, pairs] })
}

/// x as [batch, heads, length, size], or as [batch, length, heads, size] if its last dimension contains the heads one after the other; and
/// whether heads come first.
pub(super) fn with_heads(c: &mut Composer, x: &Part, heads: i64) -> Result<(Part, bool), ModelError> {
    match *x.ty.shape.as_slice() {
        [_, _, _, _] => Ok((x.clone(), true)),
        [batch, length, hidden] => {
            let heads = size(&c.view, "attribute num_heads", heads)?;
            if heads == 0 || hidden % heads != 0 {
                return Err(c.view.error(format!("cannot split {} into {heads} heads (num_heads)", x.ty)));
            }
            Ok((c.reshape(x, &[batch, length, heads, hidden / heads])?, false))
        }
        _ => Err(c.view.error(format!("expected an input of 3 or 4 dimensions, found {}", x.ty))),
    }
}

fn rotary_embedding(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (input, mut cosine, mut sine) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (x, heads_first) = with_heads(&mut c, &input, view.int("num_heads", 0)?)?;
    if view.has_input(3) {
        let positions = c.input(3)?;
        cosine = at_positions(&mut c, &cosine, &positions)?;
        sine = at_positions(&mut c, &sine, &positions)?;
    }
    let all = x.ty.shape[3];
    let turned = match size(&view, "attribute rotary_embedding_dim", view.int("rotary_embedding_dim", 0)?)? {
        0 => all,
        turned => turned,
    };
    if cosine.ty.shape.last().map(|pairs| pairs * 2) != Some(turned) {
        return Err(view.error(format!("angles {} do not fit {turned} elements of {}", cosine.ty, input.ty)));
    }
    let angles = [beside_heads(&mut c, &cosine, heads_first)?, beside_heads(&mut c, &sine, heads_first)?];
    let y = rotated(&mut c, &x, &Rotation { angles, interleaved: view.int("interleaved", 0)? != 0 })?;
    let y = c.reshape(&y, &input.ty.shape)?;
    c.finish(y)
}
