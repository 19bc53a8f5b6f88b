//! Attention of queries to keys, shared by the operators of several domains.

use forebay_base::kernel::{ATTENTION_SIZE_MAX, AttentionOptions, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::decomposition::{Composer, Part};
use super::matrix::product_of;
use super::shapes::{broadcast_shapes, product};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::precision::widened;

/// The range of the outputs that are kept for the gradient, after those that a model can name: the result with heads first, and the
/// logarithm of each row's sum.
pub(crate) const KEPT_OUTPUTS: std::ops::Range<usize> = 4..6;

/// Queries, keys and values, with the operations applied to the scores.
pub(super) struct Attending {
    /// [batch, heads, rows, size].
    pub queries: Part,
    /// [batch, groups, keys, size]: each group is shared by heads / groups consecutive heads.
    pub keys: Part,
    /// [batch, groups, keys, value size].
    pub values: Part,
    /// Added to the scores; broadcasts to [batch, heads, rows, keys].
    pub bias: Option<Part>,
    /// Booleans that broadcast in the same way: where one is false, a row does not see the key.
    pub masks: Vec<Part>,
    /// If set, row r sees the keys up to r and this many more.
    pub causal: Option<u64>,
    /// Factor applied to the products.
    pub scale: f32,
    /// If this number c is not 0, scores s become c tanh(s / c).
    pub softcap: f32,
    /// The stage of the scores that are also wanted.
    pub wanted: Option<Scores>,
    /// Whether to compute exponentials in float64.
    pub in_double: bool,
}

/// Scores at a stage of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scores {
    /// The scaled products.
    Products,
    /// After the soft cap.
    Capped,
    /// After bias and masks.
    Masked,
    /// Probabilities.
    Probabilities,
}

/// The results of attention.
pub(super) struct Attended {
    /// [batch, heads, rows, value size].
    pub y: Part,
    /// The scores that were wanted: [batch, heads, rows, keys].
    pub scores: Option<Part>,
    /// The outputs that are kept for the gradient, if one kernel computes everything.
    pub kept: Option<[Part; 2]>,
}

/// 1 / sqrt(size).
pub(super) fn default_scale(size: u64) -> f32 {
    (1.0 / (size as f64).sqrt()) as f32
}

/// x[batch, length, heads x size] as [batch, heads, length, size].
pub(super) fn split_heads(c: &mut Composer, x: &Part, heads: u64) -> Result<Part, ModelError> {
    let &[batch, length, hidden] = x.ty.shape.as_slice() else {
        return Err(c.view.error(format!("expected [batch, length, hidden], found {}", x.ty)));
    };
    if heads == 0 || hidden % heads != 0 {
        return Err(c.view.error(format!("cannot split {} into {heads} heads", x.ty)));
    }
    let x = c.reshape(x, &[batch, length, heads, hidden / heads])?;
    c.transpose(&x, &[0, 2, 1, 3])
}

/// x[batch, heads, length, size] as [batch, length, heads x size].
pub(super) fn join_heads(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let &[batch, heads, length, size] = x.ty.shape.as_slice() else {
        return Err(c.view.error(format!("expected [batch, heads, length, size], found {}", x.ty)));
    };
    let x = c.transpose(x, &[0, 2, 1, 3])?;
    let hidden = product(&c.view, &[heads, size])?;
    c.reshape(&x, &[batch, length, hidden])
}

/// The numbers start, start + 1, .. along one of four axes.
pub(super) fn numbers(c: &mut Composer, start: u64, count: u64, axis: usize) -> Result<Part, ModelError> {
    if count > 1 << 24 {
        return Err(c.view.error(format!("a sequence of length {count} is longer than the maximum of {}", 1 << 24)));
    }
    let values: Vec<i64> = (start..start + count).map(|number| number as i64).collect();
    let mut shape = [1; 4];
    shape[axis] = count;
    Ok(c.constant(Tensor::from_i64(&shape, &values)))
}

/// Checks that a part's shape broadcasts to the shape of the scores, and reshapes it to four dimensions.
fn like_scores(c: &Composer, part: &Part, scores: &[u64]) -> Result<Part, ModelError> {
    if broadcast_shapes(&c.view, &part.ty.shape, scores)? != scores {
        return Err(c.view.error(format!("the mask {} does not broadcast to scores {scores:?}", part.ty)));
    }
    let mut shape = vec![1; 4 - part.ty.shape.len()];
    shape.extend(&part.ty.shape);
    c.reshape(part, &shape)
}

/// Composes attention.
pub(super) fn attend(c: &mut Composer, attending: Attending) -> Result<Attended, ModelError> {
    let data_type = attending.queries.ty.data_type;
    let own = attending;
    let wide = |c: &mut Composer, part: &Part| c.cast(part, widened(&part.ty).data_type);
    let (q, k, v) = (wide(c, &own.queries), wide(c, &own.keys), wide(c, &own.values));
    let shapes = (q.ty.shape.as_slice(), k.ty.shape.as_slice(), v.ty.shape.as_slice());
    let (&[batch, heads, rows, size], &[k_batch, groups, keys, k_size], &[v_batch, v_groups, v_keys, v_size]) = shapes
    else {
        return Err(c.view.error(format!("expected four dimensions, found {}, {} and {}", q.ty, k.ty, v.ty)));
    };
    let fits = [k_batch, v_batch] == [batch; 2] && k_size == size && [v_groups, v_keys] == [groups, keys];
    let types = [k.ty.data_type, v.ty.data_type] == [q.ty.data_type; 2];
    if !fits || !types || groups == 0 || heads % groups != 0 {
        return Err(c.view.error(format!("queries {}, keys {} and values {} do not match", q.ty, k.ty, v.ty)));
    }
    let scores = [batch, heads, rows, keys];
    product(&c.view, &scores)?;
    let bias = match &own.bias {
        Some(bias) => {
            let bias = c.cast(bias, q.ty.data_type);
            Some(like_scores(c, &bias, &scores)?)
        }
        None => None,
    };
    let masks = own.masks.iter().map(|mask| like_scores(c, mask, &scores)).collect::<Result<Vec<_>, _>>()?;
    let is_large = size > ATTENTION_SIZE_MAX || v_size > ATTENTION_SIZE_MAX;
    let is_fused = own.wanted.is_none()
        && !own.in_double
        && !is_large
        && q.ty.data_type == DataType::Float32
        && ![batch, heads, rows, size, keys, v_size].contains(&0);
    if is_fused {
        let causal = own.causal.map(|more| i64::try_from(more).unwrap_or(i64::MAX));
        let options = AttentionOptions { scale: own.scale, softcap: own.softcap, causal };
        let mask = joined_mask(c, bias, masks, keys)?;
        let y = TensorType::new(DataType::Float32, &[batch, heads, rows, v_size]);
        let types = [y, TensorType::new(DataType::Float32, &[batch, heads, rows, 2])];
        let reads: Vec<&Part> = [Some(&q), Some(&k), Some(&v), mask.as_ref()].into_iter().flatten().collect();
        let results = c.kernels(Kernel::Attention(options), &reads, &types);
        let y = c.cast(&results[0], data_type);
        let kept = [results[0].clone(), results[1].clone()];
        return Ok(Attended { y, scores: None, kept: Some(kept) });
    }
    // The heads of a group become rows of one matrix.
    let group_rows = product(&c.view, &[heads / groups, rows])?;
    let q = c.reshape(&q, &[batch, groups, group_rows, size])?;
    let products = product_of(c, &q, &k, [false, true], own.scale)?;
    let products = c.reshape(&products, &scores)?;
    let mut found = vec![(Scores::Products, products.clone())];
    let mut s = products;
    if own.softcap != 0.0 {
        s = c.affine(&s, 1.0 / own.softcap, 0.0)?;
        s = c.unary(UnaryOp::Tanh, &s)?;
        s = c.affine(&s, own.softcap, 0.0)?;
    }
    found.push((Scores::Capped, s.clone()));
    if let Some(bias) = &bias {
        s = c.binary(BinaryOp::Add, &s, bias)?;
    }
    let causal = match own.causal {
        Some(more) => {
            let (last, key) = (numbers(c, more, rows, 2)?, numbers(c, 0, keys, 3)?);
            Some(c.binary(BinaryOp::GreaterOrEqual, &last, &key)?)
        }
        None => None,
    };
    for mask in masks.iter().chain(&causal) {
        let unseen = c.kernel(Kernel::Fill { value: f64::NEG_INFINITY }, &[], TensorType::new(s.ty.data_type, &[1]));
        s = c.select(mask, &s, &unseen)?;
    }
    found.push((Scores::Masked, s.clone()));
    let precise = if own.in_double { DataType::Float64 } else { s.ty.data_type };
    // The probabilities of a row that sees no key are 0 rather than the result of 0 / 0.
    let sees = match bias.is_some() || !masks.is_empty() {
        true if keys > 0 => Some(sees_keys(c, &s)?),
        _ => None,
    };
    let zero = c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(s.ty.data_type, &[1]));
    let s = match &sees {
        Some(sees) => c.select(sees, &s, &zero)?,
        None => s,
    };
    let s = c.cast(&s, precise);
    let p = c.kernel(Kernel::Softmax { axis: 3 }, &[&s], s.ty.clone());
    let p = c.cast(&p, q.ty.data_type);
    let p = match &sees {
        Some(sees) => c.select(sees, &p, &zero)?,
        None => p,
    };
    found.push((Scores::Probabilities, p.clone()));
    let p = c.reshape(&p, &[batch, groups, group_rows, keys])?;
    let y = product_of(c, &p, &v, [false, false], 1.0)?;
    let y = c.reshape(&y, &[batch, heads, rows, v_size])?;
    let y = c.cast(&y, data_type);
    let scores = own.wanted.and_then(|wanted| found.into_iter().find(|(stage, _)| *stage == wanted));
    let scores = scores.map(|(_, scores)| c.cast(&scores, data_type));
    Ok(Attended { y, scores, kept: None })
}

/// Whether each row has a score above minus infinity (or NaN): [batch, heads, rows, 1].
fn sees_keys(c: &mut Composer, scores: &Part) -> Result<Part, ModelError> {
    let largest = c.reduce(ReduceOp::Max, &[3], scores)?;
    let unseen = c.kernel(Kernel::Fill { value: f64::NEG_INFINITY }, &[], TensorType::new(scores.ty.data_type, &[1]));
    let blind = c.binary(BinaryOp::Equal, &largest, &unseen)?;
    c.unary(UnaryOp::Not, &blind)
}

/// Combines bias and masks into one operand of the kernel. Each of its dimensions is that of the scores or 1; the last one is that of the
/// scores.
fn joined_mask(c: &mut Composer, bias: Option<Part>, masks: Vec<Part>, keys: u64) -> Result<Option<Part>, ModelError> {
    let mut mask: Option<Part> = None;
    for other in masks {
        mask = Some(match mask {
            Some(mask) => c.binary(BinaryOp::And, &mask, &other)?,
            None => other,
        });
    }
    let joined = match (bias, mask) {
        (Some(bias), Some(mask)) => {
            let unseen = TensorType::new(bias.ty.data_type, &[1]);
            let unseen = c.kernel(Kernel::Fill { value: f64::NEG_INFINITY }, &[], unseen);
            c.select(&mask, &bias, &unseen)?
        }
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Ok(None),
    };
    let mut shape = joined.ty.shape.clone();
    shape[3] = keys;
    c.expand(&joined, &shape).map(Some)
}

/// Outputs in the operators' order: result, keys, values and scores (replaced by the result if absent), then those kept for the gradient.
pub(super) fn outputs(y: Part, present: [Part; 2], attended: Attended) -> Vec<Part> {
    let [keys, values] = present;
    let scores = attended.scores.unwrap_or_else(|| y.clone());
    let mut outputs = vec![y, keys, values, scores];
    outputs.extend(attended.kept.into_iter().flatten());
    outputs
}
