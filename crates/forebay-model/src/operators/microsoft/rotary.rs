//! ONNX Runtime's rotary position embeddings: the inputs are in a different order from ONNX's, and positions can be in several streams.

use forebay_base::DataType;
use forebay_base::kernel::BinaryOp;

use super::super::attend::numbers;
use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::indices::take;
use super::super::rotary::{Rotation, at_positions, beside_heads, rotated, with_heads};
use super::super::shapes::size;
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "MRotaryEmbedding", rotary_embedding_of_streams),
    composed!(MICROSOFT, "RotaryEmbedding", rotary_embedding),
];

/// The input with its heads, and whether these come first. Refuses packed batches.
fn input_with_heads(c: &mut Composer) -> Result<(Part, bool), ModelError> {
    let view = c.view;
    if view.int("is_packed_batching", 0)? != 0 {
        return Err(view.error("attribute is_packed_batching is not supported; keep batches separate"));
    }
    let (input, cosine) = (c.input(0)?, c.input(2)?);
    let heads = match (view.int("num_heads", 0)?, input.ty.shape.as_slice()) {
        // Without a number of heads, their size follows from the angles.
        (0, &[_, _, hidden]) => {
            let pairs = cosine.ty.shape.last().copied().unwrap_or(0);
            hidden.checked_div(pairs.saturating_mul(2)).unwrap_or(0) as i64
        }
        (heads, _) => heads,
    };
    with_heads(c, &input, heads)
}

/// x rotated by the angles of each position, [batch, length, pairs], and scaled, with the input's shape.
fn turned(mut c: Composer, x: &Part, heads_first: bool, angles: [Part; 2]) -> Result<Decomposition, ModelError> {
    let view = c.view;
    let [cosine, sine] = angles;
    let turned = view.int("rotary_embedding_dim", 0)?;
    if turned != 0 && cosine.ty.shape.last().map(|&pairs| pairs as i64 * 2) != Some(turned) {
        return Err(view.error(format!("angles {} cannot rotate {turned} elements", cosine.ty)));
    }
    let angles = [beside_heads(&mut c, &cosine, heads_first)?, beside_heads(&mut c, &sine, heads_first)?];
    let mut y = rotated(&mut c, x, &Rotation { angles, interleaved: view.int("interleaved", 0)? != 0 })?;
    let scale = view.float("scale", 1.0)?;
    if scale != 1.0 {
        y = c.affine(&y, scale, 0.0)?;
    }
    let y = c.reshape(&y, &view.input_type(0)?.shape)?;
    c.finish(y)
}

/// The positions can be a single number: the first position.
fn rotary_embedding(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (positions, cosine, sine) = (c.input(1)?, c.input(2)?, c.input(3)?);
    let (x, heads_first) = input_with_heads(&mut c)?;
    let length = x.ty.shape[if heads_first { 2 } else { 1 }];
    let positions = match positions.ty.count() {
        1 if length != 1 || x.ty.shape[0] != 1 => {
            let offsets = numbers(&mut c, 0, length, 3)?;
            let offsets = c.reshape(&offsets, &[1, length])?;
            let first = c.reshape(&positions, &[1, 1])?;
            let first = c.cast(&first, DataType::Int64);
            let all = c.binary(BinaryOp::Add, &offsets, &first)?;
            c.expand(&all, &[x.ty.shape[0], length])?
        }
        _ => c.reshape(&positions, &[x.ty.shape[0], length])?,
    };
    let angles = [at_positions(&mut c, &cosine, &positions)?, at_positions(&mut c, &sine, &positions)?];
    turned(c, &x, heads_first, angles)
}

/// Each pair of elements is rotated by the angle of one of three positions: in time, of a row, and of a column.
fn rotary_embedding_of_streams(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (positions, cosine, sine) = (c.input(1)?, c.input(2)?, c.input(3)?);
    let (x, heads_first) = input_with_heads(&mut c)?;
    let (batch, length) = (x.ty.shape[0], x.ty.shape[if heads_first { 2 } else { 1 }]);
    if positions.ty.shape != [3, batch, length] {
        return Err(view.error(format!("positions must be [3, {batch}, {length}], not {}", positions.ty)));
    }
    let pairs = cosine.ty.shape.last().copied().unwrap_or(0);
    let sections = view.ints("mrope_section")?.unwrap_or_default();
    let sections: Vec<u64> =
        sections.iter().map(|&section| size(&view, "a section", section)).collect::<Result<_, _>>()?;
    let total = sections.iter().try_fold(0u64, |sum, &section| sum.checked_add(section));
    if sections.len() != 3 || total != Some(pairs) {
        let reason = format!("attribute mrope_section must be three sizes with a sum of {pairs}, not {sections:?}");
        return Err(view.error(reason));
    }
    let layout = view.int("mrope_layout", 0)?;
    let stream_of = |pair: u64| match layout {
        // One section after the other.
        0 if pair < sections[0] => 0,
        0 if pair < sections[0] + sections[1] => 1,
        0 => 2,
        // Streams in turn, as long as their sections last.
        _ => match pair % 3 {
            stream if pair / 3 < sections[stream as usize] => stream,
            _ => 0,
        },
    };
    if !(0..=1).contains(&layout) {
        return Err(view.error(format!("attribute mrope_layout must be 0 or 1, not {layout}")));
    }
    let places: Vec<i64> = (0..pairs).map(|pair| (stream_of(pair) * pairs + pair) as i64).collect();
    let mut angles_of = |table: &Part| -> Result<Part, ModelError> {
        let mut streams = Vec::with_capacity(3);
        for stream in 0..3 {
            let own = c.slice(&positions, 0, stream, 1)?;
            let own = c.reshape(&own, &[batch, length])?;
            streams.push(at_positions(&mut c, table, &own)?);
        }
        let all = c.concatenate(&streams.iter().collect::<Vec<_>>(), 2)?;
        Ok(take(&mut c, &all, 2, &places))
    };
    let angles = [angles_of(&cosine)?, angles_of(&sine)?];
    turned(c, &x, heads_first, angles)
}
