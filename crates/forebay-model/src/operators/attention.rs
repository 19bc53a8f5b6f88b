//! ONNX's attention operators.

use forebay_base::kernel::{BinaryOp, PadMode};
use forebay_base::{DataType, Kernel, Tensor};

use super::attend::{Attending, Scores, attend, default_scale, join_heads, numbers, outputs, split_heads};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::size;
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The domain of ONNX's preview operators.
const PREVIEW: &str = "ai.onnx.preview";

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Attention", attention), composed!(PREVIEW, "FlexAttention", flex_attention)];

fn attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let mut parts = [c.input(0)?, c.input(1)?, c.input(2)?];
    let has_heads_last = parts[0].ty.shape.len() == 3;
    if has_heads_last {
        for (part, name) in parts.iter_mut().zip(["q_num_heads", "kv_num_heads", "kv_num_heads"]) {
            let heads = size(&view, &format!("attribute {name}"), view.int(name, 0)?)?;
            *part = split_heads(&mut c, part, heads)?;
        }
    }
    let [queries, mut keys, mut values] = parts;
    let mut past = 0;
    if view.has_input(4) && view.has_input(5) {
        let (past_keys, past_values) = (c.input(4)?, c.input(5)?);
        past = past_keys.ty.shape.get(2).copied().unwrap_or(0);
        keys = c.concatenate(&[&past_keys, &keys], 2)?;
        values = c.concatenate(&[&past_values, &values], 2)?;
    } else if view.has_input(4) || view.has_input(5) {
        return Err(view.error("past_key and past_value must be given together, but only one of them is given"));
    }
    let (Some(&count), Some(&head_size)) = (keys.ty.shape.get(2), queries.ty.shape.get(3)) else {
        return Err(view.error(format!("expected four dimensions, found {} and {}", queries.ty, keys.ty)));
    };
    let (mut bias, mut masks) = (None, Vec::new());
    if view.has_input(3) {
        let mask = c.input(3)?;
        let mask = padded_mask(&mut c, &mask, count)?;
        match mask.ty.data_type {
            DataType::Bool => masks.push(mask),
            _ => bias = Some(mask),
        }
    }
    let mut causal = (view.int("is_causal", 0)? != 0).then_some(past);
    let lengths = if view.has_input(6) { Some(c.input(6)?) } else { None };
    if let Some(lengths) = &lengths {
        masks.push(within_lengths(&mut c, lengths, count)?);
    }
    let windows = [window(&view, "left_window_size")?, window(&view, "right_window_size")?];
    if windows != [None; 2] || (causal.is_some() && lengths.is_some()) {
        let rows = queries.ty.shape[2];
        let own = positions(&mut c, rows, past, lengths.as_ref())?;
        let key = numbers(&mut c, 0, count, 3)?;
        let right = [windows[1], causal.map(|_| 0)].into_iter().flatten().min();
        if let Some(right) = right {
            let last = moved(&mut c, &own, right)?;
            masks.push(c.binary(BinaryOp::LessOrEqual, &key, &last)?);
        }
        if let Some(left) = windows[0] {
            let first = moved(&mut c, &own, -left)?;
            masks.push(c.binary(BinaryOp::GreaterOrEqual, &key, &first)?);
        }
        causal = None;
    }
    let mode = view.int("qk_matmul_output_mode", 0)?;
    let stages = [Scores::Products, Scores::Capped, Scores::Masked, Scores::Probabilities];
    let stage = usize::try_from(mode).ok().and_then(|mode| stages.get(mode).copied());
    let stage =
        stage.ok_or_else(|| view.error(format!("attribute qk_matmul_output_mode must be 0 to 3, not {mode}")))?;
    let attending = Attending {
        queries,
        keys: keys.clone(),
        values: values.clone(),
        bias,
        masks,
        causal,
        scale: view.float("scale", default_scale(head_size))?,
        softcap: view.float("softcap", 0.0)?,
        wanted: matches!(view.node.outputs.get(3), Some(Some(_))).then_some(stage),
        in_double: is_double(&view)?,
    };
    let attended = attend(&mut c, attending)?;
    let y = if has_heads_last { join_heads(&mut c, &attended.y)? } else { attended.y.clone() };
    c.finish_all(outputs(y, [keys, values], attended))
}

/// Whether the softmax is requested in float64. For all other types, it is computed at least in float32.
fn is_double(view: &NodeView) -> Result<bool, ModelError> {
    const DOUBLE: i64 = 11;
    Ok(view.int("softmax_precision", 0)? == DOUBLE)
}

/// How many keys a row sees on one side of its own position; `None` if there is no limit.
fn window(view: &NodeView, name: &str) -> Result<Option<i64>, ModelError> {
    match view.int(name, -1)? {
        -1 => Ok(None),
        size @ 0.. => Ok(Some(size.min(1 << 32))),
        size => Err(view.error(format!("attribute {name} must be -1 (no limit) or a number of positions, not {size}"))),
    }
}

/// Adds an offset to positions.
fn moved(c: &mut Composer, positions: &Part, by: i64) -> Result<Part, ModelError> {
    let by = c.constant(Tensor::from_i64(&[1], &[by]));
    c.binary(BinaryOp::Add, positions, &by)
}

/// The positions of rows among the keys, [1 or batch, 1, rows, 1]: they follow the past, or are the last positions within each batch's
/// length.
fn positions(c: &mut Composer, rows: u64, past: u64, lengths: Option<&Part>) -> Result<Part, ModelError> {
    let Some(lengths) = lengths else { return numbers(c, past, rows, 2) };
    let lengths = c.cast(lengths, DataType::Int64);
    let batch = lengths.ty.count();
    let lengths = c.reshape(&lengths, &[batch, 1, 1, 1])?;
    let row = numbers(c, 0, rows, 2)?;
    let begin = moved(c, &lengths, -(rows as i64))?;
    c.binary(BinaryOp::Add, &begin, &row)
}

/// Pads a mask so that its last dimension covers all keys. Keys after its end are not seen.
fn padded_mask(c: &mut Composer, mask: &Part, keys: u64) -> Result<Part, ModelError> {
    let rank = mask.ty.shape.len();
    let Some(&own) = mask.ty.shape.last().filter(|&&own| own <= keys && rank <= 4) else {
        return Err(c.view.error(format!("cannot apply the mask {} to {keys} keys", mask.ty)));
    };
    if own == keys {
        return Ok(mask.clone());
    }
    let mut ty = mask.ty.clone();
    ty.shape[rank - 1] = keys;
    let unseen = if ty.data_type == DataType::Bool { 0.0 } else { f32::NEG_INFINITY };
    Ok(c.kernel(Kernel::Pad { begins: vec![0; rank], mode: PadMode::Constant(unseen) }, &[mask], ty))
}

/// Whether keys lie within each batch's length: lengths [batch] become booleans [batch, 1, 1, keys].
pub(super) fn within_lengths(c: &mut Composer, lengths: &Part, keys: u64) -> Result<Part, ModelError> {
    let lengths = c.cast(lengths, DataType::Int64);
    let batch = lengths.ty.count();
    let lengths = c.reshape(&lengths, &[batch, 1, 1, 1])?;
    let key = numbers(c, 0, keys, 3)?;
    c.binary(BinaryOp::Less, &key, &lengths)
}

/// `FlexAttention` without functions of scores and probabilities. Those are graphs, with which the node is expanded into other nodes
/// instead.
fn flex_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (queries, keys, values) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let scale = default_scale(queries.ty.shape.last().copied().unwrap_or(1));
    let attending = Attending {
        queries,
        keys: keys.clone(),
        values: values.clone(),
        bias: None,
        masks: Vec::new(),
        causal: None,
        scale: view.float("scale", scale)?,
        softcap: 0.0,
        wanted: None,
        in_double: is_double(&view)?,
    };
    let attended = attend(&mut c, attending)?;
    c.finish_all(outputs(attended.y.clone(), [keys, values], attended))
}
