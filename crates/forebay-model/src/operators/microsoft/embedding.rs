//! Embeddings of words, positions and segments, added and normalized.

use forebay_base::kernel::{BinaryOp, ReduceOp};
use forebay_base::{DataType, Tensor};

use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::normalization::layer_normalized;
use super::super::quantized::{centered, given_number, number};
use super::super::selection::gathered;
use super::super::shapes::{require_few, size};
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "EmbedLayerNormalization", |view| {
        // Positions are the ninth input, after the mask.
        embedded(view, 7, Some(8), &|c, input| c.input(input))
    }),
    composed!(MICROSOFT, "QEmbedLayerNormalization", |view| {
        // The scales of the five tables and vectors begin at input 8, and their zero points at input 13.
        embedded(view, 7, None, &|c, input| {
            let (x, scale, zero) = (c.input(input)?, given_number(c, input + 6)?, number(c, input + 11)?);
            let x = centered(c, &x, zero.as_ref())?;
            c.binary(BinaryOp::Multiply, &x, &scale)
        })
    }),
    composed!(MICROSOFT, "RelativePositionBias", relative_positions),
];

/// The scores that attention adds for the distances of keys from queries, \[1, heads, queries, keys]: rows of a table \[buckets, heads], where
/// larger distances share a bucket.
fn relative_positions(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let table = c.input(0)?;
    let &[buckets, heads] = table.ty.shape.as_slice() else {
        return Err(view.error(format!("expected a table [buckets, heads], found {}", table.ty)));
    };
    let length = |i: usize| size(&view, &format!("input {i}"), view.constant_integer(i)?);
    let (queries, keys) = (length(1)?, length(2)?);
    let is_bidirectional = view.int("is_bidirectional", 0)? != 0;
    let farthest = size(&view, "attribute max_distance", view.int("max_distance", 0)?)?;
    let one_sided = if is_bidirectional { buckets / 2 } else { buckets };
    // The first half of the buckets is for a distance each.
    let exact = one_sided / 2;
    if exact == 0 || farthest <= exact {
        return Err(view.error(format!("{buckets} buckets do not fit a max_distance of {farthest}")));
    }
    let count = require_few(&view, &[queries, keys])?;
    let logarithm = |distance: u64| libm::logf(distance as f32 / exact as f32);
    let bucket = |query: u64, key: u64| -> i64 {
        let distance = if is_bidirectional { query.abs_diff(key) } else { query.saturating_sub(key) };
        let near = match distance {
            _ if distance < exact => distance,
            _ => {
                let beyond = logarithm(distance) / logarithm(farthest) * (one_sided - exact) as f32;
                (exact + beyond as u64).min(one_sided - 1)
            }
        };
        (near + if is_bidirectional && key > query { one_sided } else { 0 }) as i64
    };
    let mut places = Vec::with_capacity(count);
    for query in 0..queries {
        places.extend((0..keys).map(|key| bucket(query, key)));
    }
    let places = c.constant(Tensor::from_i64(&[queries, keys], &places));
    let y = gathered(&mut c, &table, &places, 0)?;
    let y = c.transpose(&y, &[2, 0, 1])?;
    let y = c.reshape(&y, &[1, heads, queries, keys])?;
    c.finish(y)
}

/// Returns one of the inputs from 2 on as real numbers.
type Real<'a> = &'a dyn Fn(&mut Composer, usize) -> Result<Part, ModelError>;

/// The rows of a table at the given indices.
fn rows(c: &mut Composer, table: &Part, indices: &Part) -> Result<Part, ModelError> {
    if table.ty.shape.len() != 2 {
        return Err(c.view.error(format!("an embedding table must have two dimensions, but is {}", table.ty)));
    }
    gathered(c, table, indices, 0)
}

/// The normalized sum, the number of elements that the mask keeps in each sequence (0 without a mask), and the sum.
fn embedded(view: NodeView, mask: usize, positions: Option<usize>, real: Real) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let words = c.input(0)?;
    let &[batch, length] = words.ty.shape.as_slice() else {
        return Err(view.error(format!("word indices must have two dimensions, but are {}", words.ty)));
    };
    let table = real(&mut c, 2)?;
    let mut sum = rows(&mut c, &table, &words)?;
    let table = real(&mut c, 3)?;
    let of_positions = match positions.filter(|&positions| view.has_input(positions)) {
        Some(positions) => {
            let positions = c.input(positions)?;
            rows(&mut c, &table, &positions)?
        }
        None => {
            require_few(&view, &[length])?;
            let all: Vec<i64> = (0..length as i64).collect();
            let all = c.constant(Tensor::from_i64(&[1, length], &all));
            rows(&mut c, &table, &all)?
        }
    };
    sum = c.binary(BinaryOp::Add, &sum, &of_positions)?;
    if view.has_input(1) && view.has_input(4) {
        let (segments, table) = (c.input(1)?, real(&mut c, 4)?);
        let of_segments = rows(&mut c, &table, &segments)?;
        sum = c.binary(BinaryOp::Add, &sum, &of_segments)?;
    }
    let (scale, bias) = (real(&mut c, 5)?, real(&mut c, 6)?);
    let [y, ..] = layer_normalized(&mut c, &sum, &scale, Some(&bias), 2, super::epsilon(&view)?)?;
    let counts = match view.has_input(mask) {
        true => {
            let mask = c.input(mask)?;
            if mask.ty.shape != [batch, length] {
                return Err(view.error(format!("the mask {} does not match the words {}", mask.ty, words.ty)));
            }
            let mask = c.cast(&mask, DataType::Int32);
            let counts = c.reduce(ReduceOp::Sum, &[1], &mask)?;
            c.reshape(&counts, &[batch])?
        }
        false => {
            let none = vec![0; require_few(&view, &[batch])?];
            c.integers(DataType::Int32, &[batch], &none)?
        }
    };
    c.finish_all(vec![y, counts, sum])
}
