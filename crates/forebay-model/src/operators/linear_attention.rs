//! Linear attention: a state of keys by values that each position updates and reads.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::attend::default_scale;
use super::causal::refuse;
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::products;
use super::shapes::size;
use crate::error::ModelError;
use crate::graph::{MICROSOFT, Operation};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] =
    &[composed!("LinearAttention", linear_attention), composed!(MICROSOFT, "LinearAttention", linear_attention)];

/// Maximum number of positions. Each takes several kernels.
const LENGTH_MAX: u64 = 4096;

/// Sizes of the operands.
#[derive(Clone, Copy)]
struct Sizes {
    batch: u64,
    length: u64,
    /// Number of heads of keys and values.
    heads: u64,
    /// Number of query heads that share a head of keys.
    group: u64,
    /// Number of heads of keys that share a query head.
    shared: u64,
    key: u64,
    value: u64,
}

impl Sizes {
    /// Number of query heads, or of groups of them that share a head of keys.
    fn query_heads(&self) -> u64 {
        self.heads / self.shared
    }
}

/// Processes the positions one after the other, in float32.
fn linear_attention(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (query, key, value) = (c.input(0)?, c.input(1)?, c.input(2)?);
    refuse(&view, &["state_window"])?;
    let sizes = sizes(&view, &query, &key, &value)?;
    let Sizes { batch, length, heads, group, key: key_size, value: value_size, .. } = sizes;
    let (decays, corrects) = match view.string("update_rule", "gated_delta")? {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => {
            let reason = format!("attribute update_rule must be linear, gated, delta or gated_delta, not '{other}'");
            return Err(view.error(reason));
        }
    };
    for (i, name, is_needed) in [(4, "decay", decays), (5, "beta", corrects)] {
        if view.has_input(i) != is_needed {
            let what = if is_needed { "requires" } else { "does not accept" };
            return Err(view.error(format!("the update rule {what} input {name}")));
        }
    }
    let data_type = query.ty.data_type;
    let state_type = if view.has_input(3) { view.input_type(3)?.data_type } else { data_type };
    let mut wide = |part: &Part, shape: &[u64]| {
        let part = c.cast(part, DataType::Float32);
        c.reshape(&part, shape)
    };
    let query = wide(&query, &[batch, length, sizes.query_heads(), group, key_size])?;
    let key = wide(&key, &[batch, length, heads, key_size])?;
    let value = wide(&value, &[batch, length, heads, value_size])?;
    // In ONNX Runtime's operator, several heads of keys can also share a query head.
    let query = match sizes.shared {
        1 => query,
        shared => {
            let query = c.expand(&query, &[batch, length, sizes.query_heads(), shared, key_size])?;
            c.reshape(&query, &[batch, length, heads, 1, key_size])?
        }
    };
    let decay = if decays { Some(decay(&mut c, sizes)?) } else { None };
    let beta = if corrects { Some(beta(&mut c, sizes)?) } else { None };
    let state_shape = [batch, heads, key_size, value_size];
    let mut state = if view.has_input(3) {
        let past = c.input(3)?;
        if past.ty.shape != state_shape {
            return Err(view.error(format!("expected a past state {state_shape:?}, found {}", past.ty)));
        }
        c.cast(&past, DataType::Float32)
    } else {
        let zero = c.scalar(DataType::Float32, 0.0)?;
        c.expand(&zero, &state_shape)?
    };
    let mut results = Vec::new();
    for position in 0..length {
        let mut at = |part: &Part, shape: &[u64]| {
            let part = c.slice(part, 1, position, 1)?;
            c.reshape(&part, shape)
        };
        let q = at(&query, &[batch, heads, group, key_size])?;
        let k = at(&key, &[batch, heads, key_size, 1])?;
        let mut v = at(&value, &[batch, heads, 1, value_size])?;
        if let Some(decay) = &decay {
            let factor = at(decay, &[batch, heads, decay.ty.shape[3], 1])?;
            state = c.binary(BinaryOp::Multiply, &state, &factor)?;
        }
        if let Some(beta) = &beta {
            let rate = {
                let part = c.slice(beta, 1, position, 1)?;
                c.reshape(&part, &[batch, beta.ty.shape[2], 1, 1])?
            };
            let known = products::product(&mut c, (&k, true), (&state, false), &[batch, heads, 1, value_size])?;
            v = c.binary(BinaryOp::Subtract, &v, &known)?;
            v = c.binary(BinaryOp::Multiply, &v, &rate)?;
        }
        let added = c.binary(BinaryOp::Multiply, &k, &v)?;
        state = c.binary(BinaryOp::Add, &state, &added)?;
        let read = products::product(&mut c, (&q, false), (&state, false), &[batch, heads, group, value_size])?;
        results.push(c.reshape(&read, &[batch, 1, heads * group * value_size])?);
    }
    let y = match results.as_slice() {
        [] => c.reshape(&value, &[batch, 0, heads * group * value_size])?,
        results => c.concatenate(&results.iter().collect::<Vec<_>>(), 1)?,
    };
    let scale = match view.float("scale", 0.0)? {
        0.0 => default_scale(key_size),
        scale => scale,
    };
    let y = c.affine(&y, scale, 0.0)?;
    let (y, state) = (c.cast(&y, data_type), c.cast(&state, state_type));
    c.finish_all(vec![y, state])
}

/// Checks that the operands' sizes fit each other, and returns them.
fn sizes(view: &NodeView, query: &Part, key: &Part, value: &Part) -> Result<Sizes, ModelError> {
    let q_heads = size(view, "attribute q_num_heads", view.int("q_num_heads", 0)?)?;
    let heads = size(view, "attribute kv_num_heads", view.int("kv_num_heads", 0)?)?;
    let is_microsoft = matches!(&view.node.operation, Operation::Onnx { domain, .. } if domain == MICROSOFT);
    let (group, shared) = match (q_heads, heads) {
        (1.., 1..) if q_heads % heads == 0 => (q_heads / heads, 1),
        (1.., 1..) if is_microsoft && heads % q_heads == 0 => (1, heads / q_heads),
        _ => return Err(view.error(format!("{q_heads} query heads cannot share {heads} key heads"))),
    };
    let fits = || {
        let &[batch, length, hidden] = query.ty.shape.as_slice() else { return None };
        let key_size = Some(hidden / q_heads).filter(|size| size * q_heads == hidden)?;
        let &[v_batch, v_length, v_hidden] = value.ty.shape.as_slice() else { return None };
        let value_size = Some(v_hidden / heads).filter(|size| size * heads == v_hidden)?;
        let same = [v_batch, v_length] == [batch, length] && key.ty.shape == [batch, length, heads * key_size];
        same.then_some(Sizes { batch, length, heads, group, shared, key: key_size, value: value_size })
    };
    let sizes = fits().ok_or_else(|| {
        view.error(format!(
            "query {}, key {} and value {} do not match [batch, length, size] with {q_heads} and {heads} heads",
            query.ty, key.ty, value.ty
        ))
    })?;
    if sizes.length > LENGTH_MAX {
        let length = sizes.length;
        let reason = format!("{length} positions are more than the maximum of {LENGTH_MAX}; run them in several parts");
        return Err(view.error(reason));
    }
    Ok(sizes)
}

/// The factor by which the state is multiplied at each position: [batch, length, heads, key size or 1].
fn decay(c: &mut Composer, sizes: Sizes) -> Result<Part, ModelError> {
    let Sizes { batch, length, heads, key, .. } = sizes;
    let decay = c.input(4)?;
    let width = match *decay.ty.shape.as_slice() {
        [b, l, width] if [b, l] == [batch, length] && width == heads => 1,
        [b, l, width] if [b, l] == [batch, length] && width == heads * key => key,
        _ => {
            let reason = format!("decay must be [{batch}, {length}, {heads} or {}], not {}", heads * key, decay.ty);
            return Err(c.view.error(reason));
        }
    };
    let decay = c.cast(&decay, DataType::Float32);
    let decay = c.reshape(&decay, &[batch, length, heads, width])?;
    c.unary(UnaryOp::Exp, &decay)
}

/// The update rate: [batch, length, heads or 1].
fn beta(c: &mut Composer, sizes: Sizes) -> Result<Part, ModelError> {
    let beta = c.input(5)?;
    match beta.ty.shape.as_slice() {
        &[batch, length, width]
            if [batch, length] == [sizes.batch, sizes.length] && (width == sizes.heads || width == 1) => {}
        _ => {
            let Sizes { batch, length, heads, .. } = sizes;
            return Err(c.view.error(format!("beta must be [{batch}, {length}, {heads} or 1], not {}", beta.ty)));
        }
    }
    Ok(c.cast(&beta, DataType::Float32))
}
