//! Mixtures of experts: each token passes through the few small networks that its scores choose.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::super::activation::swish_of;
use super::super::causal::refuse;
use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::indices::{integer, steps, take_elements, take_rows};
use super::super::products;
use super::super::shapes::{product, size};
use super::quantized::unpacked;
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "MoE", |view| mixture(view, false)),
    composed!(MICROSOFT, "QMoE", |view| mixture(view, true)),
];

/// Which experts compute what.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: u64,
    experts: u64,
    /// Number of experts of each token.
    k: u64,
    /// Whether each chosen expert's weights are copied for its token, because that takes less than running all experts on all tokens.
    is_sparse: bool,
}

/// The inputs of one layer of the experts.
struct Layer {
    weights: usize,
    scales: Option<usize>,
    bias: usize,
    zeros: usize,
    bits: &'static str,
}

/// The layers of the experts: up, down, and the factor of what the activation returns, which is optional.
fn layers(is_quantized: bool) -> [Layer; 3] {
    let bits = ["fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"];
    [0, 1, 2].map(|i| match is_quantized {
        false => Layer { weights: 2 + 2 * i, scales: None, bias: 3 + 2 * i, zeros: 0, bits: bits[i] },
        true => {
            let weights = 2 + 3 * i;
            Layer { weights, scales: Some(weights + 1), bias: weights + 2, zeros: 11 + i, bits: bits[i] }
        }
    })
}

/// The sum of what the chosen experts return, each times its share.
fn mixture(view: NodeView, is_quantized: bool) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (input, scores) = (c.input(0)?, c.input(1)?);
    let (&[.., hidden], &[tokens, experts]) = (input.ty.shape.as_slice(), scores.ty.shape.as_slice()) else {
        let reason =
            format!("expected tokens [.., size] and scores [tokens, experts], found {} and {}", input.ty, scores.ty);
        return Err(view.error(reason));
    };
    let k = size(&view, "attribute k", view.int("k", 1)?)?;
    let all = product(&view, &input.ty.shape[..input.ty.shape.len() - 1])?;
    if all != tokens || k == 0 || k > experts {
        let reason = format!("scores {} cannot choose {k} experts for each token of {}", scores.ty, input.ty);
        return Err(view.error(reason));
    }
    refuse(&view, &["use_sparse_mixer", "swiglu_limit_after_activation"])?;
    let kind = view.string("quant_type", "int")?;
    if kind != "int" {
        return Err(
            view.error(format!("attribute quant_type '{kind}' is not supported; quantize the experts to integers"))
        );
    }
    if tokens == 0 {
        return c.finish(input);
    }
    let sizes = Sizes { tokens, experts, k, is_sparse: tokens.saturating_mul(k) <= experts };
    let (chosen, shares) = routes(&mut c, &scores, sizes, is_quantized)?;
    let x = c.reshape(&input, &[tokens, hidden])?;
    // One row for each chosen expert, or all rows for every expert.
    let x = match sizes.is_sparse {
        true => {
            let x = c.reshape(&x, &[tokens, 1, hidden])?;
            let x = c.expand(&x, &[tokens, k, hidden])?;
            c.reshape(&x, &[tokens * k, 1, hidden])?
        }
        false => c.reshape(&x, &[1, tokens, hidden])?,
    };
    let [up, down, factor] = layers(is_quantized);
    let h = applied(&mut c, &x, &up, &chosen, sizes)?;
    let factor =
        if view.has_input(factor.weights) { Some(applied(&mut c, &x, &factor, &chosen, sizes)?) } else { None };
    let h = activated(&mut c, &h, factor)?;
    let y = applied(&mut c, &h, &down, &chosen, sizes)?;
    if y.ty.shape[2] != hidden {
        return Err(view.error(format!("experts that return {} elements do not fit {}", y.ty.shape[2], input.ty)));
    }
    let y = match sizes.is_sparse {
        true => c.reshape(&y, &[tokens, k, hidden])?,
        false => {
            // The row of a token's expert among those of all experts.
            let token = steps(&mut c, tokens, 1)?;
            let token = c.reshape(&token, &[tokens, 1])?;
            let count = integer(&mut c, DataType::Int64, tokens as i64)?;
            let expert = c.reshape(&chosen, &[tokens, k])?;
            let first = c.binary(BinaryOp::Multiply, &expert, &count)?;
            let rows = c.binary(BinaryOp::Add, &first, &token)?;
            let rows = c.reshape(&rows, &[product(&view, &[tokens, k])?])?;
            let outputs = product(&view, &[experts, tokens])?;
            take_rows(&mut c, &y, [outputs, hidden], &rows, &[tokens, k, hidden])?
        }
    };
    let wide = c.cast(&y, DataType::Float32);
    let shares = c.reshape(&shares, &[tokens, k, 1])?;
    let y = c.binary(BinaryOp::Multiply, &wide, &shares)?;
    let y = c.reduce(ReduceOp::Sum, &[1], &y)?;
    let y = c.cast(&y, input.ty.data_type);
    let y = c.reshape(&y, &input.ty.shape)?;
    c.finish(y)
}

/// The experts of each token, as int64\[tokens k], and their shares, as float32\[tokens, k]: of equal scores, the last ones count as the
/// largest.
fn routes(c: &mut Composer, scores: &Part, sizes: Sizes, is_quantized: bool) -> Result<(Part, Part), ModelError> {
    let Sizes { tokens, k, .. } = sizes;
    let scores = c.cast(scores, DataType::Float32);
    let kernel = Kernel::TopK { axis: 1, largest: true, nan_first: true, last: true };
    let chosen = c.kernel(kernel, &[&scores], TensorType::new(DataType::Int64, &[tokens, k]));
    let is_normalized = c.view.int("normalize_routing_weights", 0)? != 0;
    let shares = if is_quantized && c.view.has_input(14) {
        let weights = c.input(14)?;
        if weights.ty.shape != scores.ty.shape {
            return Err(c.view.error(format!("weights {} of experts do not match scores {}", weights.ty, scores.ty)));
        }
        let weights = c.cast(&weights, DataType::Float32);
        let shares = take_elements(c, &weights, 1, &chosen, true)?;
        match is_normalized {
            true => {
                let sum = c.reduce(ReduceOp::Sum, &[1], &shares)?;
                let sum = c.reshape(&sum, &[tokens, 1])?;
                c.binary(BinaryOp::Divide, &shares, &sum)?
            }
            false => shares,
        }
    } else if is_quantized || is_normalized {
        // QMoE takes the softmax of the chosen scores, whatever the attribute says.
        let shares = take_elements(c, &scores, 1, &chosen, true)?;
        c.kernel(Kernel::Softmax { axis: 1 }, &[&shares], shares.ty.clone())
    } else {
        let shares = c.kernel(Kernel::Softmax { axis: 1 }, &[&scores], scores.ty.clone());
        take_elements(c, &shares, 1, &chosen, true)?
    };
    Ok((c.reshape(&chosen, &[tokens * k])?, shares))
}

/// Rows of a tensor of all experts, for those that are chosen, or the tensor as it is.
fn of_chosen(c: &mut Composer, part: &Part, chosen: &Part, sizes: Sizes) -> Result<Part, ModelError> {
    if part.ty.shape.first() != Some(&sizes.experts) {
        return Err(c.view.error(format!("expected a tensor of {} experts, found {}", sizes.experts, part.ty)));
    }
    if !sizes.is_sparse {
        return Ok(part.clone());
    }
    let inner = product(&c.view, &part.ty.shape[1..])?;
    let shape = [&[sizes.tokens * sizes.k], &part.ty.shape[1..]].concat();
    take_rows(c, part, [sizes.experts, inner], chosen, &shape)
}

/// x weights^T + bias for each expert: [experts, tokens, outputs], or one token for each chosen expert.
fn applied(c: &mut Composer, x: &Part, layer: &Layer, chosen: &Part, sizes: Sizes) -> Result<Part, ModelError> {
    let inputs = x.ty.shape[2];
    let weights = c.input(layer.weights)?;
    let weights = of_chosen(c, &weights, chosen, sizes)?;
    let weights = match layer.scales {
        Some(scales) => widened(c, &weights, scales, layer, inputs, chosen, sizes)?,
        None => weights,
    };
    let &[count, outputs, width] = weights.ty.shape.as_slice() else {
        return Err(c.view.error(format!("weights {} do not match [experts, outputs, {inputs}]", weights.ty)));
    };
    if width != inputs {
        return Err(c
            .view
            .error(format!("weights {} of experts do not match {inputs} elements of a token", weights.ty)));
    }
    let weights = c.cast(&weights, x.ty.data_type);
    let y = products::product(c, (x, false), (&weights, true), &[count, x.ty.shape[1], outputs])?;
    if !c.view.has_input(layer.bias) {
        return Ok(y);
    }
    let bias = c.input(layer.bias)?;
    let bias = of_chosen(c, &bias, chosen, sizes)?;
    let bias = c.cast(&bias, x.ty.data_type);
    let bias = c.reshape(&bias, &[count, 1, outputs])?;
    c.binary(BinaryOp::Add, &y, &bias)
}

/// Packed weights as real numbers: (bits - zero point) scale, with one scale for each output, or for each block of inputs.
fn widened(
    c: &mut Composer,
    packed: &Part,
    scales: usize,
    layer: &Layer,
    inputs: u64,
    chosen: &Part,
    sizes: Sizes,
) -> Result<Part, ModelError> {
    let view = c.view;
    let bits = match view.int(layer.bits, 0)? {
        0 => view.int("expert_weight_bits", 4)?,
        bits => bits,
    };
    let block = match view.int("block_size", 0)? {
        ..=0 => inputs,
        block => size(&view, "attribute block_size", block)?,
    };
    if ![2, 4, 8].contains(&bits)
        || block == 0
        || !inputs.is_multiple_of(block)
        || packed.ty.data_type != DataType::UInt8
    {
        let reason = format!("blocks of {block} of {inputs} {bits}-bit weights in {} are not supported", packed.ty);
        return Err(view.error(reason));
    }
    let &[count, outputs, bytes] = packed.ty.shape.as_slice() else {
        return Err(view.error(format!("expected weights [experts, outputs, bytes], found {}", packed.ty)));
    };
    if bytes.checked_mul(8 / bits as u64) != Some(inputs) {
        return Err(view.error(format!("{} does not hold {inputs} weights of {bits} bits for each output", packed.ty)));
    }
    let (rows, blocks) = (product(&view, &[count, outputs])?, inputs / block);
    let numbers = unpacked(c, packed, rows, inputs, bits)?;
    let numbers = c.reshape(&numbers, &[count, outputs, blocks, block])?;
    let scales = c.input(scales)?;
    let scales = of_chosen(c, &scales, chosen, sizes)?;
    let scales = c.cast(&scales, DataType::Float32);
    let scales = c.reshape(&scales, &[count, outputs, blocks, 1])?;
    let above = if view.has_input(layer.zeros) {
        let zeros = c.input(layer.zeros)?;
        let zeros = of_chosen(c, &zeros, chosen, sizes)?;
        let per_byte = 8 / bits as u64;
        // Without blocks, the zero points of all outputs of an expert follow each other.
        let (rows, width) = if view.int("block_size", 0)? > 0 { (rows, blocks) } else { (count, outputs) };
        let zeros = unpacked(c, &zeros, rows, width.div_ceil(per_byte) * per_byte, bits)?;
        let zeros = c.slice(&zeros, 1, 0, width)?;
        let zeros = c.reshape(&zeros, &[count, outputs, blocks, 1])?;
        c.binary(BinaryOp::Subtract, &numbers, &zeros)?
    } else {
        c.affine(&numbers, 1.0, -f32::from(1u8 << (bits - 1)))?
    };
    let weights = c.binary(BinaryOp::Multiply, &above, &scales)?;
    c.reshape(&weights, &[count, outputs, inputs])
}

/// The activation of the experts, times a factor if there is one.
fn activated(c: &mut Composer, h: &Part, factor: Option<Part>) -> Result<Part, ModelError> {
    let view = c.view;
    let kind = view.string("activation_type", "relu")?;
    let (mut gate, mut factor) = match (kind, view.int("swiglu_fusion", 0)?, factor) {
        ("swiglu", 0, Some(factor)) => (h.clone(), Some(factor)),
        ("swiglu", fusion @ 1..=2, None) if h.ty.shape[2].is_multiple_of(2) => {
            let [experts, tokens, half] = [h.ty.shape[0], h.ty.shape[1], h.ty.shape[2] / 2];
            // Interleaved, or one after the other.
            let (shape, axis) = if fusion == 1 { ([half, 2], 3) } else { ([2, half], 2) };
            let pairs = c.reshape(h, &[experts, tokens, shape[0], shape[1]])?;
            let mut part = |i: u64| {
                let part = c.slice(&pairs, axis, i, 1)?;
                c.reshape(&part, &[experts, tokens, half])
            };
            (part(0)?, Some(part(1)?))
        }
        ("swiglu", fusion, factor) => {
            let with = if factor.is_some() { "with" } else { "without" };
            let reason =
                format!("swiglu_fusion {fusion} of {} {with} input fc3_experts_weights is not supported", h.ty);
            return Err(view.error(reason));
        }
        (_, _, factor) => (h.clone(), factor),
    };
    let y = match kind {
        "relu" => c.unary(UnaryOp::Relu, &gate)?,
        "gelu" => c.unary(UnaryOp::TanhGelu, &gate)?,
        "silu" => c.unary(UnaryOp::Silu, &gate)?,
        "identity" => gate,
        "swiglu" => {
            if view.attribute("swiglu_limit").is_some() {
                let limit = view.float("swiglu_limit", f32::INFINITY)?;
                gate = c.unary(UnaryOp::Clip { low: f32::NEG_INFINITY, high: limit }, &gate)?;
                factor = match factor {
                    Some(factor) => Some(c.unary(UnaryOp::Clip { low: -limit, high: limit }, &factor)?),
                    None => None,
                };
            }
            let beta = view.float("activation_beta", 0.0)?;
            factor = match factor {
                Some(factor) if beta != 0.0 => Some(c.affine(&factor, 1.0, beta)?),
                factor => factor,
            };
            swish_of(c, &gate, view.float("activation_alpha", 1.0)?)?
        }
        other => {
            let reason = format!("activation_type must be relu, gelu, silu, swiglu or identity, not '{other}'");
            return Err(view.error(reason));
        }
    };
    match factor {
        Some(factor) => c.binary(BinaryOp::Multiply, &y, &factor),
        None => Ok(y),
    }
}
