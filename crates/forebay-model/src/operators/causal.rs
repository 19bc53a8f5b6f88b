//! Convolutions along time that see only the past.

use forebay_base::Kernel;
use forebay_base::kernel::{Activation, Convolution, PadMode, UnaryOp, Window};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::size;
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("CausalConvWithState", causal_convolution),
    composed!(MICROSOFT, "CausalConvWithState", causal_convolution),
];

/// The attributes of ONNX Runtime's operator that change layouts.
const LAYOUTS: [&str; 6] = [
    "state_window",
    "channels_last",
    "state_length",
    "state_update_capacity",
    "input_channels",
    "input_channel_offset",
];

/// Refuses attributes of ONNX Runtime's operators that are not 0.
pub(super) fn refuse(view: &NodeView, attributes: &[&str]) -> Result<(), ModelError> {
    match attributes.iter().find(|name| view.int(name, 0).is_ok_and(|value| value != 0)) {
        Some(name) => Err(view.error(format!("attribute {name} is not supported; set it to 0"))),
        None => Ok(()),
    }
}

/// Convolves each channel of [batch, channels, length] separately, preceded by its past state or by zeros.
fn causal_convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    refuse(&view, &LAYOUTS)?;
    let dilation = size(&view, "attribute dilation", view.int("dilation", 1)?)?;
    let mut c = Composer::new(view);
    let (x, weights) = (c.input(0)?, c.input(1)?);
    let (&[batch, channels, length], &[w_channels, 1, taps]) = (x.ty.shape.as_slice(), weights.ty.shape.as_slice())
    else {
        let reason = format!(
            "expected an input [batch, channels, length] and weights [channels, 1, taps], found {} and {}",
            x.ty, weights.ty
        );
        return Err(view.error(reason));
    };
    let state = taps.checked_sub(1).filter(|_| w_channels == channels && dilation > 0);
    let state = state.and_then(|before| before.checked_mul(dilation));
    let state = state.ok_or_else(|| view.error(format!("weights {} do not match {channels} channels", weights.ty)))?;
    let total = length.checked_add(state).ok_or_else(|| view.error(format!("a length of {length} is too large")))?;
    let mut ty = x.ty.clone();
    ty.shape[2] = total;
    let seen = if view.has_input(3) {
        let past = c.input(3)?;
        if past.ty.shape != [batch, channels, state] {
            return Err(view.error(format!("expected a past state [{batch}, {channels}, {state}], found {}", past.ty)));
        }
        c.concatenate(&[&past, &x], 2)?
    } else if state > 0 {
        let kernel = Kernel::Pad { begins: vec![0, 0, state], mode: PadMode::Constant(0.0) };
        c.kernel(kernel, &[&x], ty)
    } else {
        x.clone()
    };
    let one = || vec![1];
    let window = Window {
        kernel: vec![taps],
        strides: one(),
        dilations: vec![dilation],
        pads_begin: vec![0],
        pads_end: vec![0],
    };
    let kernel =
        Kernel::Convolution { convolution: Convolution { window, groups: channels }, activation: Activation::None };
    let bias = if view.has_input(2) { Some(c.input(2)?) } else { None };
    let reads: Vec<&Part> = [Some(&seen), Some(&weights), bias.as_ref()].into_iter().flatten().collect();
    let y = c.kernel(kernel, &reads, x.ty.clone());
    let y = match view.string("activation", "none")? {
        "none" | "" => y,
        "silu" | "swish" => c.unary(UnaryOp::Silu, &y)?,
        other => return Err(view.error(format!("attribute activation must be none, silu or swish, not '{other}'"))),
    };
    let present = c.slice(&seen, 2, length, state)?;
    c.finish_all(vec![y, present])
}
