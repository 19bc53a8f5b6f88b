//! Operators of the domain `com.microsoft`, which ONNX Runtime's optimizers write.

pub mod attention;
pub mod diffusion;
pub mod embedding;
pub mod experts;
pub mod quantized;
pub mod recurrent;
pub mod rotary;

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};

use super::activation::{SELU, above, scaled_elu, softsign_of};
use super::convolution::correlated;
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::matrix::{general_product, product_of};
use super::normalization::{layer_normalized, root_mean_square_normalized};
use crate::error::ModelError;
use crate::graph::{Attribute, MICROSOFT};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "BiasGelu", bias_gelu),
    composed!(MICROSOFT, "CDist", distances),
    composed!(MICROSOFT, "FastGelu", fast_gelu),
    composed!(MICROSOFT, "FusedConv", fused_convolution),
    composed!(MICROSOFT, "FusedGemm", fused_gemm),
    composed!(MICROSOFT, "FusedMatMul", fused_product),
    composed!(MICROSOFT, "Gelu", gelu),
    composed!(MICROSOFT, "QuickGelu", quick_gelu),
    composed!(MICROSOFT, "SimplifiedLayerNormalization", simplified_normalization),
    composed!(MICROSOFT, "SkipLayerNormalization", skip_normalization),
    composed!(MICROSOFT, "SkipSimplifiedLayerNormalization", skip_simplified_normalization),
    // The former name of FusedMatMul.
    composed!(MICROSOFT, "TransposeMatMul", fused_product),
    // ONNX Runtime also writes this one without a domain.
    composed!("SimplifiedLayerNormalization", simplified_normalization),
];

fn gelu(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = c.unary(UnaryOp::Gelu, &x)?;
    c.finish(y)
}

fn bias_gelu(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = biased(&mut c, 1)?;
    let y = c.unary(UnaryOp::Gelu, &x)?;
    c.finish(y)
}

fn fast_gelu(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = biased(&mut c, 1)?;
    let y = c.unary(UnaryOp::TanhGelu, &x)?;
    c.finish(y)
}

/// x sigmoid(alpha x).
fn quick_gelu(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let scaled = c.affine(&x, view.float("alpha", 1.702)?, 0.0)?;
    let gate = c.unary(UnaryOp::Sigmoid, &scaled)?;
    let y = c.binary(BinaryOp::Multiply, &x, &gate)?;
    c.finish(y)
}

/// Input 0 plus input `bias`, if that is given. The bias must not enlarge input 0.
fn biased(c: &mut Composer, bias: usize) -> Result<Part, ModelError> {
    let x = c.input(0)?;
    plus(c, &x, bias)
}

/// x plus an input, if that is given. The input must not enlarge x.
fn plus(c: &mut Composer, x: &Part, input: usize) -> Result<Part, ModelError> {
    if !c.view.has_input(input) {
        return Ok(x.clone());
    }
    let other = c.input(input)?;
    let sum = c.binary(BinaryOp::Add, x, &other)?;
    match sum.ty == x.ty {
        true => Ok(sum),
        false => Err(c.view.error(format!("input {input} ({}) does not broadcast to {}", other.ty, x.ty))),
    }
}

/// A list of floats, which is empty if there is no such attribute.
fn floats<'a>(view: &NodeView<'a>, name: &str) -> Result<&'a [f32], ModelError> {
    match view.attribute(name) {
        None => Ok(&[]),
        Some(Attribute::Floats(values)) => Ok(values),
        Some(_) => Err(view.error(format!("attribute {name} must be a list of floats"))),
    }
}

/// The activation that a fused operator names, with its parameters: alpha, beta and gamma.
fn activated(c: &mut Composer, x: &Part, parameters: [Option<f32>; 3]) -> Result<Part, ModelError> {
    let [alpha, beta, gamma] = parameters;
    let op = match c.view.string("activation", "")? {
        "" => return Ok(x.clone()),
        "Relu" => UnaryOp::Relu,
        "Tanh" => UnaryOp::Tanh,
        "Sigmoid" => UnaryOp::Sigmoid,
        "LeakyRelu" => UnaryOp::LeakyRelu { alpha: alpha.unwrap_or(0.01) },
        "Elu" => UnaryOp::Elu { alpha: alpha.unwrap_or(1.0) },
        "Selu" => return scaled_elu(c, x, alpha.unwrap_or(SELU[0]), gamma.unwrap_or(SELU[1])),
        "Softplus" => UnaryOp::Softplus,
        "Softsign" => return softsign_of(c, x),
        "ThresholdedRelu" => return above(c, x, alpha.unwrap_or(1.0)),
        "HardSwish" => UnaryOp::HardSwish,
        "HardSigmoid" => UnaryOp::HardSigmoid { alpha: alpha.unwrap_or(0.2), beta: beta.unwrap_or(0.5) },
        "Clip" => UnaryOp::Clip { low: alpha.unwrap_or(f32::NEG_INFINITY), high: beta.unwrap_or(f32::INFINITY) },
        other => {
            let known = "Relu, Tanh, Sigmoid, LeakyRelu, Elu, HardSigmoid, HardSwish, Selu, Softplus, Softsign, \
                         ThresholdedRelu, Clip";
            return Err(c.view.error(format!("activation '{other}' is not supported; use one of {known}")));
        }
    };
    c.unary(op, x)
}

/// The distances between the rows of two matrices, or their squares: |a|^2 + |b|^2 - 2 a b. Rounding can make that negative; it then counts
/// as 0, and so does its gradient.
fn distances(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let is_squared = match view.string("metric", "sqeuclidean")? {
        "sqeuclidean" => true,
        "euclidean" => false,
        other => {
            return Err(view.error(format!("attribute metric must be sqeuclidean or euclidean, not '{other}'")));
        }
    };
    let (&[a_rows, columns], &[b_rows, b_columns]) = (a.ty.shape.as_slice(), b.ty.shape.as_slice()) else {
        return Err(view.error(format!("operands {} and {} are not matrices", a.ty, b.ty)));
    };
    let data_type = a.ty.data_type;
    if columns != b_columns || columns == 0 || data_type != b.ty.data_type || !data_type.is_float() {
        return Err(view.error(format!("rows of {} and of {} have no distances", a.ty, b.ty)));
    }
    let products = product_of(&mut c, &a, &b, [false, true], -2.0)?;
    let of_a = squares(&mut c, &a, &[a_rows, 1])?;
    let of_b = squares(&mut c, &b, &[1, b_rows])?;
    let sum = c.binary(BinaryOp::Add, &products, &of_a)?;
    let sum = c.binary(BinaryOp::Add, &sum, &of_b)?;
    let square = c.unary(UnaryOp::Relu, &sum)?;
    if is_squared {
        return c.finish(square);
    }
    // The gradient of the square root is infinite at 0.
    let zero = c.scalar(data_type, 0.0)?;
    let one = c.scalar(data_type, 1.0)?;
    let is_apart = c.binary(BinaryOp::Greater, &square, &zero)?;
    let positive = c.select(&is_apart, &square, &one)?;
    let root = c.unary(UnaryOp::Sqrt, &positive)?;
    let y = c.select(&is_apart, &root, &zero)?;
    c.finish(y)
}

/// The sum of squares of each row, in a given shape.
fn squares(c: &mut Composer, x: &Part, shape: &[u64]) -> Result<Part, ModelError> {
    let square = c.binary(BinaryOp::Multiply, x, x)?;
    let sum = c.reduce(ReduceOp::Sum, &[1], &square)?;
    c.reshape(&sum, shape)
}

/// activation(convolution + z).
fn fused_convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = correlated(&mut c)?;
    let y = plus(&mut c, &y, 3)?;
    let parameters = floats(&view, "activation_params")?;
    let y = activated(&mut c, &y, [parameters.first().copied(), parameters.get(1).copied(), None])?;
    c.finish(y)
}

fn fused_gemm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = general_product(&mut c)?;
    let parameter = |name: &str| match view.attribute(name) {
        Some(_) => view.float(name, 0.0).map(Some),
        None => Ok(None),
    };
    let [alpha, beta, gamma] = ["activation_alpha", "activation_beta", "activation_gamma"].map(parameter);
    let y = activated(&mut c, &y, [alpha?, beta?, gamma?])?;
    c.finish(y)
}

/// alpha op(a) op(b), where op can move the first dimension to just before the last one, and can then transpose the last two.
fn fused_product(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let mut factors = [c.input(0)?, c.input(1)?];
    let mut transposed = [false; 2];
    for (i, factor) in factors.iter_mut().enumerate() {
        let [name, batch] = [["transA", "transBatchA"], ["transB", "transBatchB"]][i];
        transposed[i] = view.int(name, 0)? != 0;
        let rank = factor.ty.shape.len();
        if view.int(batch, 0)? != 0 && rank >= 3 {
            // [m, batch .., k] to [batch .., m, k].
            let order: Vec<usize> = (1..rank - 1).chain([0, rank - 1]).collect();
            *factor = c.transpose(factor, &order)?;
        }
    }
    let y = product_of(&mut c, &factors[0], &factors[1], transposed, view.float("alpha", 1.0)?)?;
    c.finish(y)
}

fn simplified_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let axis = view.axis(view.int("axis", -1)?, x.ty.shape.len())?;
    let scale = c.input(1)?;
    let (y, root) = root_mean_square_normalized(&mut c, &x, &scale, axis, view.float("epsilon", 1e-5)?)?;
    let inverse = c.unary(UnaryOp::Reciprocal, &root)?;
    c.finish_all(vec![y, inverse])
}

/// The epsilon of normalizations of sums, whose default is smaller than that of ONNX's normalizations.
fn epsilon(view: &NodeView) -> Result<f32, ModelError> {
    view.float("epsilon", 1e-12)
}

/// The layer normalization of input + skip + bias, its mean and inverse deviation, and that sum.
fn skip_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let sum = biased(&mut c, 1)?;
    let sum = plus(&mut c, &sum, 4)?;
    let axis = view.axis(-1, sum.ty.shape.len())?;
    let scale = c.input(2)?;
    let bias = if view.has_input(3) { Some(c.input(3)?) } else { None };
    let [y, mean, deviation] = layer_normalized(&mut c, &sum, &scale, bias.as_ref(), axis, epsilon(&view)?)?;
    c.finish_all(vec![y, mean, deviation, sum])
}

/// The same without the bias and the mean of the normalization: ONNX Runtime never computes the mean, which is output 1.
fn skip_simplified_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let sum = biased(&mut c, 1)?;
    let sum = plus(&mut c, &sum, 3)?;
    let axis = view.axis(-1, sum.ty.shape.len())?;
    let scale = c.input(2)?;
    let (y, root) = root_mean_square_normalized(&mut c, &sum, &scale, axis, epsilon(&view)?)?;
    let inverse = match matches!(view.node.outputs.get(2), Some(Some(_))) {
        true => c.unary(UnaryOp::Reciprocal, &root)?,
        false => root.clone(),
    };
    c.finish_all(vec![y, root, inverse, sum])
}
