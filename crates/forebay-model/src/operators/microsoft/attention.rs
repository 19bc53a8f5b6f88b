//! ONNX Runtime's attention operators: heads come last, and there are biases, masks of lengths, and caches.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::super::attend::{Attending, Scores, attend, default_scale, join_heads, numbers, outputs, split_heads};
use super::super::attention::within_lengths;
use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::integer::{Factor, real_product, scale as integer_scale};
use super::super::matrix::product_of;
use super::super::rotary::{Rotation, at_positions, rotated};
use super::super::shapes::{product, size};
use super::MICROSOFT;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "Attention", attention),
    composed!(MICROSOFT, "GroupQueryAttention", group_query_attention),
    composed!(MICROSOFT, "MultiHeadAttention", multi_head_attention),
    composed!(MICROSOFT, "QAttention", quantized_attention),
];

fn heads_of(view: &NodeView, name: &str) -> Result<u64, ModelError> {
    size(view, &format!("attribute {name}"), view.int(name, 0)?)
}

/// The scale of a node, or 1 / sqrt(size) if it is 0 or absent.
fn scale_of(view: &NodeView, size: u64) -> Result<f32, ModelError> {
    match view.float("scale", 0.0)? {
        0.0 => Ok(default_scale(size)),
        scale => Ok(scale),
    }
}

/// `count` elements of the last dimension, from `start` on.
fn columns(c: &mut Composer, x: &Part, start: u64, count: u64) -> Result<Part, ModelError> {
    c.slice(x, x.ty.shape.len().saturating_sub(1), start, count)
}

/// x plus some elements of a one-dimensional bias.
fn plus_part(c: &mut Composer, x: &Part, bias: Option<&Part>, start: u64) -> Result<Part, ModelError> {
    let (Some(bias), Some(&hidden)) = (bias, x.ty.shape.last()) else { return Ok(x.clone()) };
    let bias = c.slice(bias, 0, start, hidden)?;
    c.binary(BinaryOp::Add, x, &bias)
}

/// A mask of keys, converted to a summand: 0 if the key counts, and the node's filter value otherwise. The mask holds lengths [batch],
/// ends and then starts [2 batch], or flags [batch, keys] or [batch, rows, keys]. Flags [batch, 1] stand for no mask.
fn key_mask(c: &mut Composer, mask: &Part, batch: u64, keys: u64) -> Result<Option<Part>, ModelError> {
    let counts = match *mask.ty.shape.as_slice() {
        [count] if count == batch => within_lengths(c, mask, keys)?,
        [count] if Some(count) == batch.checked_mul(2) => {
            let (ends, starts) = (c.slice(mask, 0, 0, batch)?, c.slice(mask, 0, batch, batch)?);
            let (is_before_end, is_before_start) = (within_lengths(c, &ends, keys)?, within_lengths(c, &starts, keys)?);
            let is_started = c.unary(UnaryOp::Not, &is_before_start)?;
            c.binary(BinaryOp::And, &is_before_end, &is_started)?
        }
        [own, count] if own == batch && count == keys => {
            let flags = c.cast(mask, DataType::Bool);
            c.reshape(&flags, &[batch, 1, 1, keys])?
        }
        [own, rows, count] if own == batch && count == keys => {
            let flags = c.cast(mask, DataType::Bool);
            c.reshape(&flags, &[batch, 1, rows, keys])?
        }
        [1, 1] => return Ok(None),
        [own, 1] if own == batch => return Ok(None),
        _ => {
            let forms =
                format!("[{batch}], [{}], [{batch}, {keys}] or [{batch}, rows, {keys}]", batch.saturating_mul(2));
            return Err(c.view.error(format!("the mask of keys must be {forms}, not {}", mask.ty)));
        }
    };
    let filter = c.view.float("mask_filter_value", -10000.0)?;
    let scalar = |c: &mut Composer, value: f32| {
        let kernel = Kernel::Fill { value: f64::from(value) };
        c.kernel(kernel, &[], TensorType::new(DataType::Float32, &[1]))
    };
    let (zero, filter) = (scalar(c, 0.0), scalar(c, filter));
    c.select(&counts, &zero, &filter).map(Some)
}

/// The sum of two optional summands of the scores.
fn joined(c: &mut Composer, a: Option<Part>, b: Option<Part>) -> Result<Option<Part>, ModelError> {
    match (a, b) {
        (Some(a), Some(b)) => {
            let (a, b) = (c.cast(&a, DataType::Float32), c.cast(&b, DataType::Float32));
            c.binary(BinaryOp::Add, &a, &b).map(Some)
        }
        (one, None) | (None, one) => Ok(one),
    }
}

/// Queries, keys and values, split into heads, with biases added.
fn projected(c: &mut Composer, heads: u64) -> Result<[Part; 3], ModelError> {
    let view = c.view;
    let query = c.input(0)?;
    let bias = if view.has_input(3) { Some(c.input(3)?) } else { None };
    // Splits [batch, length, heads, parts, size] into one tensor for each part.
    let packed = |c: &mut Composer, x: &Part| -> Result<Vec<Part>, ModelError> {
        let &[batch, length, own, count, size] = x.ty.shape.as_slice() else {
            return Err(c
                .view
                .error(format!("expected packed heads [batch, length, heads, parts, size], found {}", x.ty)));
        };
        let mut parts = Vec::with_capacity(count as usize);
        for part in 0..count {
            let part = c.slice(x, 3, part, 1)?;
            let hidden = product(&c.view, &[own, size])?;
            parts.push(c.reshape(&part, &[batch, length, hidden])?);
        }
        Ok(parts)
    };
    let mut parts = match query.ty.shape.len() {
        5 => packed(c, &query)?,
        _ => vec![query],
    };
    if parts.len() == 1 {
        let key = c.input(1)?;
        match key.ty.shape.len() {
            5 => parts.extend(packed(c, &key)?),
            _ => parts.extend([key, c.input(2)?]),
        }
    }
    let Ok([query, key, value]) = <[Part; 3]>::try_from(parts) else {
        return Err(view.error("expected query, key and value, either separate or packed"));
    };
    let mut start = 0;
    let mut by_heads = Vec::with_capacity(3);
    for part in [query, key, value] {
        if part.ty.shape.len() == 4 {
            by_heads.push(part);
            continue;
        }
        let biased = plus_part(c, &part, bias.as_ref(), start)?;
        start += part.ty.shape.last().copied().unwrap_or(0);
        by_heads.push(split_heads(c, &biased, heads)?);
    }
    <[Part; 3]>::try_from(by_heads).map_err(|_| view.error("expected exactly query, key and value"))
}

fn multi_head_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let heads = heads_of(&view, "num_heads")?;
    if view.has_input(8) || view.has_input(9) {
        return Err(view.error("inputs past_sequence_length and cache_indirection (shared caches) are not supported"));
    }
    let [queries, mut keys, mut values] = projected(&mut c, heads)?;
    let mut past = 0;
    if view.has_input(6) && view.has_input(7) {
        let (past_keys, past_values) = (c.input(6)?, c.input(7)?);
        past = past_keys.ty.shape.get(2).copied().unwrap_or(0);
        keys = c.concatenate(&[&past_keys, &keys], 2)?;
        values = c.concatenate(&[&past_values, &values], 2)?;
    }
    let (batch, count) = (keys.ty.shape[0], keys.ty.shape[2]);
    let mask = match view.has_input(4) {
        true => {
            let mask = c.input(4)?;
            key_mask(&mut c, &mask, batch, count)?
        }
        false => None,
    };
    let added = if view.has_input(5) { Some(c.input(5)?) } else { None };
    let attending = Attending {
        scale: scale_of(&view, queries.ty.shape[3])?,
        queries,
        keys: keys.clone(),
        values: values.clone(),
        bias: joined(&mut c, mask, added)?,
        masks: Vec::new(),
        causal: (view.int("unidirectional", 0)? != 0).then_some(past),
        softcap: 0.0,
        wanted: matches!(view.node.outputs.get(3), Some(Some(_))).then_some(Scores::Products),
        in_double: false,
    };
    let attended = attend(&mut c, attending)?;
    let y = join_heads(&mut c, &attended.y)?;
    c.finish_all(outputs(y, [keys, values], attended))
}

/// Attention that first projects x to queries, keys and values.
fn attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let heads = heads_of(&view, "num_heads")?;
    if view.int("do_rotary", 0)? != 0 || view.has_input(6) {
        return Err(view.error("attribute do_rotary and input past_sequence_length are not supported"));
    }
    let (x, weights) = (c.input(0)?, c.input(1)?);
    let all = product_of(&mut c, &x, &weights, [false, false], 1.0)?;
    let bias = if view.has_input(2) { Some(c.input(2)?) } else { None };
    let all = plus_part(&mut c, &all, bias.as_ref(), 0)?;
    let added = if view.has_input(5) { Some(c.input(5)?) } else { None };
    let places = Places { heads, mask: 3, past: 4, added };
    attended(c, &all, places)
}

/// The same with integers: the scales of inputs 0 and 1 are inputs 3 and 4, and their zero points are inputs 6 and 7.
fn quantized_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let heads = heads_of(&view, "num_heads")?;
    if view.int("do_rotary", 0)? != 0 {
        return Err(view.error("attribute do_rotary is not supported"));
    }
    let (x, weights) = (Factor::of(&mut c, 0, 6)?, Factor::of(&mut c, 1, 7)?);
    let (of_x, of_weights) = (integer_scale(&mut c, 3, false)?, integer_scale(&mut c, 4, false)?);
    let all = real_product(&mut c, [&x, &weights], [&of_x, &of_weights], 2)?;
    attended(c, &all, Places { heads, mask: 5, past: 8, added: None })
}

/// The number of heads of an attention that projects, and its inputs except those of the projection.
struct Places {
    heads: u64,
    mask: usize,
    past: usize,
    /// The bias to add to the scores.
    added: Option<Part>,
}

/// Attention of queries, keys and values that follow each other in the last dimension.
fn attended(mut c: Composer, all: &Part, places: Places) -> Result<Decomposition, ModelError> {
    let (view, heads) = (c.view, places.heads);
    let hidden = all.ty.shape.last().copied().unwrap_or(0);
    let sizes: Vec<u64> = match view.ints("qkv_hidden_sizes")? {
        Some(sizes) => sizes.iter().map(|&own| size(&view, "a hidden size", own)).collect::<Result<_, _>>()?,
        None => vec![hidden / 3; 3],
    };
    let &[q_size, k_size, v_size] = sizes.as_slice() else {
        return Err(view.error(format!("attribute qkv_hidden_sizes must be three sizes, not {sizes:?}")));
    };
    let queries = columns(&mut c, all, 0, q_size)?;
    let keys = columns(&mut c, all, q_size, k_size)?;
    let values = columns(&mut c, all, q_size.saturating_add(k_size), v_size)?;
    let queries = split_heads(&mut c, &queries, heads)?;
    let mut keys = split_heads(&mut c, &keys, heads)?;
    let mut values = split_heads(&mut c, &values, heads)?;
    let mut past = 0;
    if view.has_input(places.past) {
        let caches = c.input(places.past)?;
        past = caches.ty.shape.get(3).copied().unwrap_or(0);
        let half = |c: &mut Composer, i: u64, like: &Part| {
            let half = c.slice(&caches, 0, i, 1)?;
            let shape = [like.ty.shape[0], like.ty.shape[1], past, like.ty.shape[3]];
            let half = c.reshape(&half, &shape)?;
            c.concatenate(&[&half, like], 2)
        };
        (keys, values) = (half(&mut c, 0, &keys)?, half(&mut c, 1, &values)?);
    }
    let (batch, count) = (keys.ty.shape[0], keys.ty.shape[2]);
    let mask = match view.has_input(places.mask) {
        true => {
            let mask = c.input(places.mask)?;
            key_mask(&mut c, &mask, batch, count)?
        }
        false => None,
    };
    let attending = Attending {
        scale: scale_of(&view, queries.ty.shape[3])?,
        queries,
        keys: keys.clone(),
        values: values.clone(),
        bias: joined(&mut c, mask, places.added)?,
        masks: Vec::new(),
        causal: (view.int("unidirectional", 0)? != 0).then_some(past),
        softcap: 0.0,
        wanted: None,
        in_double: false,
    };
    let attended = attend(&mut c, attending)?;
    let y = join_heads(&mut c, &attended.y)?;
    // Keys and values form one output.
    let one = |c: &Composer, part: &Part| c.reshape(part, &[&[1], part.ty.shape.as_slice()].concat());
    let present = match matches!(view.node.outputs.get(1), Some(Some(_))) {
        true => {
            let (keys, values) = (one(&c, &keys)?, one(&c, &values)?);
            c.concatenate(&[&keys, &values], 0)?
        }
        false => y.clone(),
    };
    c.finish_all(outputs(y.clone(), [present, y], attended))
}

/// Causal attention in which groups of heads share keys. The cache grows: new keys and values follow all past ones, in every batch.
fn group_query_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (heads, groups) = (heads_of(&view, "num_heads")?, heads_of(&view, "kv_num_heads")?);
    if view.int("smooth_softmax", 0)? > 0 || view.has_input(11) {
        return Err(view.error("attribute smooth_softmax and input head_sink are not supported"));
    }
    if matches!(view.node.outputs.get(3), Some(Some(_))) {
        return Err(view.error("output 3 (output_qk, the scores) is not supported"));
    }
    let query = c.input(0)?;
    let parts = if view.has_input(1) {
        [query, c.input(1)?, c.input(2)?]
    } else {
        let all = query.ty.shape.last().copied().unwrap_or(0);
        let count = heads.saturating_add(groups.saturating_mul(2));
        let head = all.checked_div(count).filter(|head| head * count == all);
        let head = head.ok_or_else(|| view.error(format!("cannot split {} into {count} heads", query.ty)))?;
        let (q_size, k_size) = (heads * head, groups * head);
        [
            columns(&mut c, &query, 0, q_size)?,
            columns(&mut c, &query, q_size, k_size)?,
            columns(&mut c, &query, q_size + k_size, k_size)?,
        ]
    };
    let mut queries = split_heads(&mut c, &parts[0], heads)?;
    let mut keys = split_heads(&mut c, &parts[1], groups)?;
    let mut values = split_heads(&mut c, &parts[2], groups)?;
    let past = match view.has_input(3) {
        true => view.input_type(3)?.shape.get(2).copied().unwrap_or(0),
        false => 0,
    };
    let length = queries.ty.shape[2];
    if view.int("do_rotary", 0)? != 0 {
        let rotation = rotation(&mut c, past, length)?;
        queries = rotated(&mut c, &queries, &rotation)?;
        keys = rotated(&mut c, &keys, &rotation)?;
    }
    if past > 0 {
        let (past_keys, past_values) = (c.input(3)?, c.input(4)?);
        keys = c.concatenate(&[&past_keys, &keys], 2)?;
        values = c.concatenate(&[&past_values, &values], 2)?;
    }
    let count = keys.ty.shape[2];
    // Only the total says whether the cache is larger than its contents, so the graph is specialized for it.
    let total = match past > 0 && view.has_input(6) {
        true => Some(view.needed(6)?),
        false => view.constant(6)?,
    };
    let total = total.and_then(Tensor::to_i64).and_then(|values| values.first().copied());
    if let Some(total) = total.filter(|&total| u64::try_from(total) != Ok(count)) {
        let reason = format!(
            "{past} keys in the cache and {length} new ones do not add up to {total}; a cache that is larger than \
             its contents is not supported, so pass one of the right size"
        );
        return Err(view.error(reason));
    }
    let last = c.input(5)?;
    let last = c.cast(&last, DataType::Int64);
    let batch = last.ty.count();
    let last = c.reshape(&last, &[batch, 1, 1, 1])?;
    let key = numbers(&mut c, 0, count, 3)?;
    let mut masks = vec![c.binary(BinaryOp::LessOrEqual, &key, &last)?];
    let window = view.int("local_window_size", -1)?;
    if let Ok(window) = u64::try_from(window) {
        // The window ends with the row's own key.
        let row = numbers(&mut c, past, length, 2)?;
        let reach = numbers(&mut c, window.min(count), count, 3)?;
        masks.push(c.binary(BinaryOp::Greater, &reach, &row)?);
    }
    let added = if view.has_input(10) { Some(c.input(10)?) } else { None };
    let attending = Attending {
        scale: scale_of(&view, queries.ty.shape[3])?,
        queries,
        keys: keys.clone(),
        values: values.clone(),
        bias: added,
        masks,
        causal: Some(past),
        softcap: view.float("softcap", 0.0)?,
        wanted: None,
        in_double: false,
    };
    let attended = attend(&mut c, attending)?;
    let y = join_heads(&mut c, &attended.y)?;
    c.finish_all(outputs(y, [keys, values], attended))
}

/// The angles of the new positions, which follow the positions in the cache unless they are given.
fn rotation(c: &mut Composer, past: u64, length: u64) -> Result<Rotation, ModelError> {
    let view = c.view;
    let tables = [c.input(7)?, c.input(8)?];
    let mut angles = Vec::with_capacity(2);
    for table in &tables {
        let own = match view.has_input(9) {
            true => {
                let positions = c.input(9)?;
                at_positions(c, table, &positions)?
            }
            false => {
                let rows = c.slice(table, 0, past, length)?;
                let shape = [&[1], rows.ty.shape.as_slice()].concat();
                c.reshape(&rows, &shape)?
            }
        };
        angles.push(super::beside_heads(c, &own, true)?);
    }
    let angles = <[Part; 2]>::try_from(angles).map_err(|_| view.error("expected exactly cosines and sines"))?;
    Ok(Rotation { angles, interleaved: view.int("rotary_interleaved", 0)? != 0 })
}
