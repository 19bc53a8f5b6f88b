//! ONNX Runtime's attention operators: heads come last, and there are biases, masks of lengths, and caches.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::super::attend::{Attending, Scores, attend, default_scale, join_heads, numbers, outputs, split_heads};
use super::super::attention::within_lengths;
use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::integer::{Factor, real_product, scale as integer_scale};
use super::super::matrix::product_of;
use super::super::rotary::{Rotation, at_positions, beside_heads, rotated};
use super::super::shapes::{broadcast_shapes, product, size};
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
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
        let &[batch, length, own, count @ 1..=3, size] = x.ty.shape.as_slice() else {
            let form = "packed heads [batch, length, heads, 1 to 3 parts, size]";
            return Err(c.view.error(format!("expected {form}, found {}", x.ty)));
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
        wanted: matches!(view.node.outputs.get(3), Some(Some(_))).then_some(Scores::Masked),
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

/// The positions of keys in a cache, which grows by the new keys or has room for them.
struct Cache {
    /// Number of positions before the call.
    past: u64,
    /// Number of positions after it.
    present: u64,
    /// The position of the first new key, and the one after the last, unless the sequences of a batch have their own.
    start: u64,
    end: u64,
    /// The position of the only new key of each sequence, [batch, 1, 1, 1], if these can differ.
    own: Option<Part>,
}

impl Cache {
    /// The cache of a call with `length` new keys.
    fn of(view: &NodeView, length: u64) -> Result<Cache, ModelError> {
        let past = match view.has_input(3) {
            true => view.input_type(3)?.shape.get(2).copied().unwrap_or(0),
            false => 0,
        };
        // Only the total tells whether the cache grows, so the graph is specialized for it.
        let total = match past > 0 && view.has_input(6) {
            true => Some(view.needed(6)?),
            false => view.constant(6)?,
        };
        let total = total.and_then(Tensor::to_i64).and_then(|values| values.first().copied());
        let grown = past.saturating_add(length);
        let fits = |&end: &u64| end == grown || (length..=past).contains(&end);
        let end = match total {
            None => grown,
            Some(total) => u64::try_from(total).ok().filter(fits).ok_or_else(|| {
                let room = match length <= past {
                    true => format!(", or {length} to {past} if the cache has room for the new keys"),
                    false => String::new(),
                };
                view.error(format!(
                    "a total length (input 6) of {total} does not fit {past} positions of the cache and {length} new \
                     keys; it must be {grown}{room}"
                ))
            })?,
        };
        Ok(Cache { past, present: end.max(past), start: end - length, end, own: None })
    }

    /// Past keys or values with the new ones in their places, and zeros after them.
    fn with(&self, c: &mut Composer, past: &Part, new: &Part) -> Result<Part, ModelError> {
        let zeros = |c: &mut Composer, count: u64| {
            let mut ty = new.ty.clone();
            ty.shape[2] = count;
            c.kernel(Kernel::Fill { value: 0.0 }, &[], ty)
        };
        let Some(own) = &self.own else {
            let before = c.slice(past, 2, 0, self.start)?;
            let after = zeros(c, self.present - self.end);
            return c.concatenate(&[&before, new, &after], 2);
        };
        let added = zeros(c, self.present - self.past);
        let all = c.concatenate(&[past, &added], 2)?;
        let place = numbers(c, 0, self.present, 2)?;
        let (is_past, is_new) = (c.binary(BinaryOp::Less, &place, own)?, c.binary(BinaryOp::Equal, &place, own)?);
        let zero = c.scalar(new.ty.data_type, 0.0)?;
        let kept = c.select(&is_past, &all, &zero)?;
        c.select(&is_new, new, &kept)
    }
}

/// Causal attention in which groups of heads share keys. New keys and values follow the past ones of their sequence in the cache. Sequences
/// whose pasts differ can each have one new key.
fn group_query_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (heads, groups) = (heads_of(&view, "num_heads")?, heads_of(&view, "kv_num_heads")?);
    if view.int("causal", 1)? == 0 || view.int("sliding_window_cache", 0)? != 0 {
        return Err(view.error("attributes causal = 0 and sliding_window_cache are not supported"));
    }
    if (12..17).any(|i| view.has_input(i)) {
        let reason = "inputs 12 to 16 (scales of a quantized cache, weights that normalize queries and keys, lengths of \
                      padded queries) are not supported";
        return Err(view.error(reason));
    }
    let wanted = match (view.node.outputs.get(3), view.int("qk_output", 0)?) {
        (None | Some(None), _) => None,
        (_, 1) => Some(Scores::Masked),
        (_, 2) => Some(Scores::Probabilities),
        (_, other) => {
            return Err(
                view.error(format!("output 3 (output_qk) requires attribute qk_output to be 1 or 2, not {other}"))
            );
        }
    };
    let sinks = sinks(&mut c, heads)?;
    if sinks.is_some() && wanted.is_some() {
        let reason = "output 3 (output_qk) is not supported together with smooth_softmax or input 11 (head_sink)";
        return Err(view.error(reason));
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
    let length = queries.ty.shape[2];
    let mut cache = Cache::of(&view, keys.ty.shape[2])?;
    let last = c.input(5)?;
    let last = c.cast(&last, DataType::Int64);
    let last = c.reshape(&last, &[last.ty.count(), 1, 1, 1])?;
    let has_room = cache.present == cache.past;
    if cache.past > 0 && [&keys, &values].iter().any(|part| part.ty.shape[2] != length) {
        let reason = format!("queries {}, keys {} and values {} differ in length", queries.ty, keys.ty, values.ty);
        return Err(view.error(reason));
    }
    if cache.past > 0 && length == 1 && (has_room || queries.ty.shape[0] > 1) {
        cache.own = Some(last.clone());
    }
    if view.int("do_rotary", 0)? != 0 {
        let rotation = rotation(&mut c, &cache, length)?;
        queries = rotated(&mut c, &queries, &rotation)?;
        keys = rotated(&mut c, &keys, &rotation)?;
    }
    if cache.past > 0 {
        let (past_keys, past_values) = (c.input(3)?, c.input(4)?);
        keys = cache.with(&mut c, &past_keys, &keys)?;
        values = cache.with(&mut c, &past_values, &values)?;
    }
    // No row sees the positions after the new keys.
    let count = cache.end;
    let [seen_keys, seen_values] = match cache.present > count {
        true => [c.slice(&keys, 2, 0, count)?, c.slice(&values, 2, 0, count)?],
        false => [keys.clone(), values.clone()],
    };
    let key = numbers(&mut c, 0, count, 3)?;
    let mut masks = vec![c.binary(BinaryOp::LessOrEqual, &key, &last)?];
    let window = view.int("local_window_size", -1)?;
    if let Ok(window) = u64::try_from(window) {
        // The window ends with the row's own key.
        let row = match &cache.own {
            Some(own) => own.clone(),
            None => numbers(&mut c, cache.start, length, 2)?,
        };
        let reach = numbers(&mut c, window.min(count), count, 3)?;
        masks.push(c.binary(BinaryOp::Greater, &reach, &row)?);
    }
    let added = if view.has_input(10) { Some(c.input(10)?) } else { None };
    let mut attending = Attending {
        scale: scale_of(&view, queries.ty.shape[3])?,
        queries,
        keys: seen_keys,
        values: seen_values,
        bias: added,
        masks,
        causal: cache.own.is_none().then_some(cache.start),
        softcap: view.float("softcap", 0.0)?,
        wanted,
        in_double: false,
    };
    if let Some(sinks) = sinks {
        attending = with_sinks(&mut c, attending, &sinks)?;
    }
    let attended = attend(&mut c, attending)?;
    let y = join_heads(&mut c, &attended.y)?;
    c.finish_all(outputs(y, [keys, values], attended))
}

/// What the exponential of each head adds to the sums of its softmax: [1, heads, 1, 1].
fn sinks(c: &mut Composer, heads: u64) -> Result<Option<Part>, ModelError> {
    let shape = [1, heads, 1, 1];
    if c.view.has_input(11) {
        let sinks = c.input(11)?;
        if sinks.ty.shape != [heads] {
            return Err(c.view.error(format!("input 11 (head_sink) must be [{heads}], not {}", sinks.ty)));
        }
        let sinks = c.cast(&sinks, DataType::Float32);
        return c.reshape(&sinks, &shape).map(Some);
    }
    let is_smooth = c.view.int("smooth_softmax", 0)? > 0;
    Ok(is_smooth.then(|| c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(DataType::Float32, &shape))))
}

/// Attention with one more key, which comes first and which every row sees. Its score is the sink, and its value is 0.
fn with_sinks(c: &mut Composer, own: Attending, sinks: &Part) -> Result<Attending, ModelError> {
    let zero_first = |c: &mut Composer, x: &Part| {
        let mut ty = x.ty.clone();
        ty.shape[2] = 1;
        let zero = c.kernel(Kernel::Fill { value: 0.0 }, &[], ty);
        c.concatenate(&[&zero, x], 2)
    };
    let (keys, values) = (zero_first(c, &own.keys)?, zero_first(c, &own.values)?);
    let count = own.keys.ty.shape[2];
    let (bias, sinks) = match own.bias {
        None => {
            let ty = TensorType::new(DataType::Float32, &[1, sinks.ty.shape[1], 1, count]);
            (c.kernel(Kernel::Fill { value: 0.0 }, &[], ty), sinks.clone())
        }
        Some(bias) => {
            let bias = c.cast(&bias, DataType::Float32);
            let mut shape = broadcast_shapes(&c.view, &bias.ty.shape, &[1, sinks.ty.shape[1], 1, count])?;
            let bias = c.expand(&bias, &shape)?;
            shape[3] = 1;
            (bias, c.expand(sinks, &shape)?)
        }
    };
    let seen = numbers(c, 0, 1, 3)?;
    let mut masks = Vec::with_capacity(own.masks.len());
    for mask in &own.masks {
        let shape = &mask.ty.shape;
        let seen = c.expand(&seen, &[shape[0], shape[1], shape[2], 1])?;
        let seen = c.binary(BinaryOp::Equal, &seen, &seen)?;
        masks.push(c.concatenate(&[&seen, mask], 3)?);
    }
    let causal = own.causal.map(|more| more.saturating_add(1));
    let bias = Some(c.concatenate(&[&sinks, &bias], 3)?);
    Ok(Attending { keys, values, bias, masks, causal, ..own })
}

/// The angles of the new positions, which follow the past ones unless they are given.
fn rotation(c: &mut Composer, cache: &Cache, length: u64) -> Result<Rotation, ModelError> {
    let view = c.view;
    let tables = [c.input(7)?, c.input(8)?];
    let mut angles = Vec::with_capacity(2);
    for table in &tables {
        let rows = match &cache.own {
            _ if view.has_input(9) => {
                let positions = c.input(9)?;
                at_positions(c, table, &positions)?
            }
            Some(own) => {
                if table.ty.shape.first().is_none_or(|&rows| rows < cache.end) {
                    let reason = format!("the table {} has no row for each of {} positions", table.ty, cache.end);
                    return Err(view.error(reason));
                }
                let positions = c.reshape(own, &[own.ty.count(), 1])?;
                at_positions(c, table, &positions)?
            }
            None => {
                let rows = c.slice(table, 0, cache.start, length)?;
                let shape = [&[1], rows.ty.shape.as_slice()].concat();
                c.reshape(&rows, &shape)?
            }
        };
        angles.push(beside_heads(c, &rows, true)?);
    }
    let angles = <[Part; 2]>::try_from(angles).map_err(|_| view.error("expected exactly cosines and sines"))?;
    Ok(Rotation { angles, interleaved: view.int("rotary_interleaved", 0)? != 0 })
}
