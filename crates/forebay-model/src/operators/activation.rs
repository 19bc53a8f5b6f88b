//! Functions of one variable: activations and elementary mathematics.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("Abs", |view| unary(view, UnaryOp::Abs)),
    composed!("Acos", |view| unary(view, UnaryOp::Acos)),
    composed!("Acosh", |view| unary(view, UnaryOp::Acosh)),
    composed!("Asin", |view| unary(view, UnaryOp::Asin)),
    composed!("Asinh", |view| unary(view, UnaryOp::Asinh)),
    composed!("Atan", |view| unary(view, UnaryOp::Atan)),
    composed!("Atanh", |view| unary(view, UnaryOp::Atanh)),
    composed!("Ceil", |view| unary(view, UnaryOp::Ceil)),
    composed!("Celu", celu),
    composed!("Clip", clip),
    composed!("Cos", |view| unary(view, UnaryOp::Cos)),
    composed!("Cosh", |view| unary(view, UnaryOp::Cosh)),
    composed!("Elu", |view| unary(view, UnaryOp::Elu { alpha: view.float("alpha", 1.0)? })),
    composed!("Erf", error_function),
    composed!("Exp", |view| unary(view, UnaryOp::Exp)),
    composed!("Floor", |view| unary(view, UnaryOp::Floor)),
    composed!("Gelu", gelu),
    composed!("HardSigmoid", |view| {
        unary(view, UnaryOp::HardSigmoid { alpha: view.float("alpha", 0.2)?, beta: view.float("beta", 0.5)? })
    }),
    composed!("HardSwish", |view| unary(view, UnaryOp::HardSwish)),
    composed!("IsInf", is_infinite),
    composed!("IsNaN", is_nan),
    composed!("LeakyRelu", |view| unary(view, UnaryOp::LeakyRelu { alpha: view.float("alpha", 0.01)? })),
    composed!("Log", |view| unary(view, UnaryOp::Log)),
    composed!("Mish", mish),
    // 0 + -0 is 0, but -0 + -0 is -0: each zero becomes the other one.
    composed!("Neg", |view| unary(view, UnaryOp::Affine { scale: -1.0, shift: -0.0 })),
    composed!("Not", |view| unary(view, UnaryOp::Not)),
    composed!("PRelu", prelu),
    composed!("Reciprocal", |view| unary(view, UnaryOp::Reciprocal)),
    composed!("Relu", |view| unary(view, UnaryOp::Relu)),
    composed!("Round", |view| unary(view, UnaryOp::Round)),
    composed!("Selu", selu),
    composed!("Sigmoid", |view| unary(view, UnaryOp::Sigmoid)),
    composed!("Shrink", shrink),
    composed!("Sign", |view| unary(view, UnaryOp::Sign)),
    composed!("Sin", |view| unary(view, UnaryOp::Sin)),
    composed!("Sinh", |view| unary(view, UnaryOp::Sinh)),
    composed!("Softplus", |view| unary(view, UnaryOp::Softplus)),
    composed!("Softsign", softsign),
    composed!("Sqrt", |view| unary(view, UnaryOp::Sqrt)),
    composed!("SwiGLU", swiglu),
    composed!("Swish", swish),
    composed!("Tan", |view| unary(view, UnaryOp::Tan)),
    composed!("Tanh", |view| unary(view, UnaryOp::Tanh)),
    composed!("ThresholdedRelu", thresholded_relu),
];

fn unary(view: NodeView, op: UnaryOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let is_of_all_numbers = matches!(
        op,
        UnaryOp::Abs
            | UnaryOp::Affine { .. }
            | UnaryOp::Relu
            | UnaryOp::Sign
            | UnaryOp::Ceil
            | UnaryOp::Floor
            | UnaryOp::Round
    );
    if x.ty.data_type.is_integer() && !is_of_all_numbers {
        return Err(view.error(format!("operands of type {} are not supported", x.ty.data_type)));
    }
    let y = c.unary(op, &x)?;
    c.finish(y)
}

/// Integers are treated as real numbers.
fn error_function(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let data_type = x.ty.data_type;
    let real = c.cast(&x, if data_type.is_integer() { DataType::Float64 } else { data_type });
    let y = c.unary(UnaryOp::Erf, &real)?;
    let y = c.cast(&y, data_type);
    c.finish(y)
}

/// max(0, x) + min(0, alpha (exp(x / alpha) - 1)), which is alpha elu(x / alpha) for a positive alpha.
fn celu(view: NodeView) -> Result<Decomposition, ModelError> {
    let alpha = view.float("alpha", 1.0)?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    if alpha < 0.0 {
        let above = c.unary(UnaryOp::Relu, &x)?;
        let below = c.unary(UnaryOp::Clip { low: f32::NEG_INFINITY, high: 0.0 }, &x)?;
        let scaled = c.affine(&below, 1.0 / alpha, 0.0)?;
        let exponential = c.unary(UnaryOp::Exp, &scaled)?;
        let below = c.affine(&exponential, alpha, -alpha)?;
        let y = c.binary(BinaryOp::Add, &above, &below)?;
        return c.finish(y);
    }
    let scaled = c.affine(&x, 1.0 / alpha, 0.0)?;
    let elu = c.unary(UnaryOp::Elu { alpha: 1.0 }, &scaled)?;
    let y = c.affine(&elu, alpha, 0.0)?;
    c.finish(y)
}

/// The usual alpha and gamma of SELU.
pub(super) const SELU: [f32; 2] = [1.673_263_2, 1.050_701];

/// gamma (x for x > 0, else alpha (exp(x) - 1)). Before opset 6, the usual numbers had fewer digits.
fn selu(view: NodeView) -> Result<Decomposition, ModelError> {
    let [alpha, gamma] = if view.version() < 6 { [1.6732, 1.0507] } else { SELU };
    let (alpha, gamma) = (view.float("alpha", alpha)?, view.float("gamma", gamma)?);
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = scaled_elu(&mut c, &x, alpha, gamma)?;
    c.finish(y)
}

/// gamma x for x >= 0, else gamma alpha (exp(x) - 1).
pub(super) fn scaled_elu(c: &mut Composer, x: &Part, alpha: f32, gamma: f32) -> Result<Part, ModelError> {
    let elu = c.unary(UnaryOp::Elu { alpha }, x)?;
    c.affine(&elu, gamma, 0.0)
}

/// The limits are attributes before opset 11 and inputs, which can be computed, from then on. The attributes' defaults are the outermost
/// finite numbers of float32.
fn clip(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let constant = |i: usize, name: &str, default: f32| -> Result<Option<f32>, ModelError> {
        if !view.has_input(i) {
            return view.float(name, default).map(Some);
        }
        Ok(view.unchanging(i)?.and_then(|tensor| tensor.to_f32()).and_then(|values| values.first().copied()))
    };
    let is_finite = view.version() < 11 && x.ty.data_type == DataType::Float32;
    let (lowest, highest) = if is_finite { (f32::MIN, f32::MAX) } else { (f32::NEG_INFINITY, f32::INFINITY) };
    let (low, high) = (constant(1, "min", lowest)?, constant(2, "max", highest)?);
    if let (Some(low), Some(high), DataType::Float32) = (low, high, x.ty.data_type.computed_in()) {
        // Like NumPy, ONNX returns the upper limit if the lower one is above it.
        let y = c.unary(UnaryOp::Clip { low: low.min(high), high }, &x)?;
        return c.finish(y);
    }
    let mut y = x;
    let limits = [(1, BinaryOp::Maximum, low.filter(|low| low.is_finite())), (2, BinaryOp::Minimum, high)];
    for (i, op, attribute) in limits {
        let limit = match attribute.filter(|limit| limit.is_finite()) {
            _ if view.has_input(i) => c.input(i)?,
            Some(limit) => c.scalar(y.ty.data_type, f64::from(limit))?,
            None => continue,
        };
        y = c.binary(op, &y, &limit)?;
    }
    c.finish(y)
}

fn gelu(view: NodeView) -> Result<Decomposition, ModelError> {
    match view.string("approximate", "none")? {
        "none" => unary(view, UnaryOp::Gelu),
        "tanh" => unary(view, UnaryOp::TanhGelu),
        other => Err(view.error(format!("attribute approximate must be none or tanh, not '{other}'"))),
    }
}

fn mish(view: NodeView) -> Result<Decomposition, ModelError> {
    gated(view, |c, x| {
        let softplus = c.unary(UnaryOp::Softplus, x)?;
        c.unary(UnaryOp::Tanh, &softplus)
    })
}

/// x sigmoid(alpha x).
fn swish(view: NodeView) -> Result<Decomposition, ModelError> {
    let alpha = view.float("alpha", 1.0)?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = swish_of(&mut c, &x, alpha)?;
    c.finish(y)
}

/// x sigmoid(alpha x).
pub(super) fn swish_of(c: &mut Composer, x: &Part, alpha: f32) -> Result<Part, ModelError> {
    if alpha == 1.0 {
        return c.unary(UnaryOp::Silu, x);
    }
    let scaled = c.affine(x, alpha, 0.0)?;
    let gate = c.unary(UnaryOp::Sigmoid, &scaled)?;
    c.binary(BinaryOp::Multiply, x, &gate)
}

/// Swish of the first input times the second input.
fn swiglu(view: NodeView) -> Result<Decomposition, ModelError> {
    let alpha = view.float("alpha", 1.0)?;
    let mut c = Composer::new(view);
    let (gate, x) = (c.input(0)?, c.input(1)?);
    if gate.ty.shape != x.ty.shape {
        return Err(view.error(format!("expected inputs of the same shape, found {} and {}", gate.ty, x.ty)));
    }
    let gate = swish_of(&mut c, &gate, alpha)?;
    let y = c.binary(BinaryOp::Multiply, &gate, &x)?;
    c.finish(y)
}

/// x times a function of x.
fn gated(
    view: NodeView,
    gate: impl Fn(&mut Composer, &Part) -> Result<Part, ModelError>,
) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let gate = gate(&mut c, &x)?;
    let y = c.binary(BinaryOp::Multiply, &x, &gate)?;
    c.finish(y)
}

/// x / (1 + |x|).
fn softsign(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = softsign_of(&mut c, &x)?;
    c.finish(y)
}

/// x / (1 + |x|).
pub(super) fn softsign_of(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let absolute = c.unary(UnaryOp::Abs, x)?;
    let divisor = c.affine(&absolute, 1.0, 1.0)?;
    c.binary(BinaryOp::Divide, x, &divisor)
}

/// x times 1 for x > 0, else times the slope, which broadcasts to x. Before opset 7, a slope of one dimension has one element per channel.
fn prelu(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, mut slope) = (c.input(0)?, c.input(1)?);
    if let (true, &[channels], 3..) = (view.version() < 7, slope.ty.shape.as_slice(), x.ty.shape.len()) {
        let shape = [vec![channels], vec![1; x.ty.shape.len() - 2]].concat();
        slope = c.reshape(&slope, &shape)?;
    }
    // The factor is selected, not the product: a slope that is not finite does not affect positive elements or their gradients.
    let (zero, one) = (c.scalar(x.ty.data_type, 0.0)?, c.scalar(x.ty.data_type, 1.0)?);
    let is_above = c.binary(BinaryOp::Greater, &x, &zero)?;
    let factor = c.select(&is_above, &one, &slope)?;
    let y = c.binary(BinaryOp::Multiply, &x, &factor)?;
    if y.ty.shape != x.ty.shape {
        return Err(view.error(format!("the slope {} does not broadcast to {}", slope.ty, x.ty)));
    }
    c.finish(y)
}

/// x for x > alpha, else 0.
fn thresholded_relu(view: NodeView) -> Result<Decomposition, ModelError> {
    let alpha = view.float("alpha", 1.0)?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = above(&mut c, &x, alpha)?;
    c.finish(y)
}

/// x where it is above a threshold, else 0.
pub(super) fn above(c: &mut Composer, x: &Part, threshold: f32) -> Result<Part, ModelError> {
    let data_type = x.ty.data_type;
    let (threshold, zero) = (c.scalar(data_type, f64::from(threshold))?, c.scalar(data_type, 0.0)?);
    let is_above = c.binary(BinaryOp::Greater, x, &threshold)?;
    c.select(&is_above, x, &zero)
}

/// x + bias for x < -lambd, else x - bias for x > lambd, else 0. Integers are treated as real numbers.
fn shrink(view: NodeView) -> Result<Decomposition, ModelError> {
    let (threshold, bias) = (view.float("lambd", 0.5)?, view.float("bias", 0.0)?);
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let real = if x.ty.data_type.is_float() { x.clone() } else { c.cast(&x, DataType::Float64) };
    let data_type = real.ty.data_type;
    let (above, below) = (c.scalar(data_type, f64::from(threshold))?, c.scalar(data_type, f64::from(-threshold))?);
    let zero = c.scalar(data_type, 0.0)?;
    let is_above = c.binary(BinaryOp::Greater, &real, &above)?;
    let is_below = c.binary(BinaryOp::Less, &real, &below)?;
    let (less, more) = (c.affine(&real, 1.0, -bias)?, c.affine(&real, 1.0, bias)?);
    let y = c.select(&is_above, &less, &zero)?;
    let y = c.select(&is_below, &more, &y)?;
    let y = c.cast(&y, x.ty.data_type);
    c.finish(y)
}

/// Whether elements are infinite, counting only the signs that the attributes select.
fn is_infinite(view: NodeView) -> Result<Decomposition, ModelError> {
    let wanted = [("detect_negative", f64::NEG_INFINITY), ("detect_positive", f64::INFINITY)];
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let mut found = None;
    for (name, infinity) in wanted {
        if view.int(name, 1)? == 0 {
            continue;
        }
        let infinity = c.scalar(x.ty.data_type, infinity)?;
        let is_it = c.binary(BinaryOp::Equal, &x, &infinity)?;
        found = Some(match found {
            None => is_it,
            Some(found) => c.binary(BinaryOp::Or, &found, &is_it)?,
        });
    }
    let y = match found {
        Some(found) => found,
        // Neither sign is selected: no number is less than itself.
        None => c.binary(BinaryOp::Less, &x, &x)?,
    };
    c.finish(y)
}

/// Only NaN is not equal to itself.
fn is_nan(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let is_number = c.binary(BinaryOp::Equal, &x, &x)?;
    let y = c.unary(UnaryOp::Not, &is_number)?;
    c.finish(y)
}
