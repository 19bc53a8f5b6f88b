//! Random numbers: functions of the step's number, the seed and the node.
//!
//! Each training step draws different numbers, and so does each iteration of a loop. Outside training, a model draws the same numbers
//! whenever it runs. The attribute `seed` selects a sequence, which is the same for all nodes with this seed; without it, nodes draw
//! independently of each other.

use std::f64::consts::TAU;

use forebay_base::kernel::{BinaryOp, ReduceOp, ScanOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::conversion::type_attribute;
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::{Operation, TensorType};
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    Operator { gradient: Gradient::Zero, ..composed!("Bernoulli", bernoulli) },
    Operator { gradient: Gradient::Zero, ..composed!("Multinomial", multinomial) },
    Operator { gradient: Gradient::Zero, ..composed!("RandomNormal", |view| distributed(view, 0, normal)) },
    Operator { gradient: Gradient::Zero, ..composed!("RandomNormalLike", |view| distributed(view, 1, normal)) },
    Operator { gradient: Gradient::Zero, ..composed!("RandomUniform", |view| distributed(view, 0, uniform)) },
    Operator { gradient: Gradient::Zero, ..composed!("RandomUniformLike", |view| distributed(view, 1, uniform)) },
];

/// Returns the number of inputs that ONNX gives an operator, if it draws random numbers. In training, and in loops that run repeatedly, one
/// more input follows: the number of the step or iteration, and a seed.
pub(crate) fn inputs_of_draw(operation: &Operation) -> Option<usize> {
    let Operation::Onnx { domain, op_type, .. } = operation else { return None };
    match op_type.as_str() {
        _ if !domain.is_empty() => None,
        "RandomNormal" | "RandomUniform" => Some(0),
        "Bernoulli" | "Multinomial" | "RandomNormalLike" | "RandomUniformLike" => Some(1),
        _ => None,
    }
}

/// An attribute that only Forebay sets: the number of a node's iteration in an unrolled loop. All iterations have the same seed.
pub(crate) const ITERATION: &str = "forebay.iteration";

/// Random numbers in 0..1. Those of different `draw`s are independent of each other.
fn draw(c: &mut Composer, step_input: usize, draw: u64, shape: &[u64]) -> Result<Part, ModelError> {
    let view = c.view;
    let step = match view.has_input(step_input) {
        true => c.input(step_input)?,
        false => c.constant(Tensor::from_i64(&[2], &[0, 0])),
    };
    if step.ty != TensorType::new(DataType::Int64, &[2]) {
        let reason = format!("it has too many inputs: input {step_input}, counted from 0, is {}", step.ty);
        return Err(view.error(reason));
    }
    // Nodes are distinguished by what they compute, or by their seed and iteration.
    let node = match view.attribute("seed") {
        Some(_) => {
            let seed = u64::from(view.float("seed", 0.0)?.to_bits());
            (seed << 32) + view.int(ITERATION, 0)?.rem_euclid(1 << 30) as u64
        }
        None => view.node.outputs.first().copied().flatten().map_or(0, |output| u64::from(output.0)),
    };
    // Dropout numbers its nodes below this bit.
    let kernel = Kernel::Random { node: node | 1 << 30 | draw << 31, first: 0 };
    Ok(c.kernel(kernel, &[&step], TensorType::new(DataType::Float32, shape)))
}

/// Random numbers of a distribution, with the sizes of the node or of its input.
fn distributed(
    view: NodeView,
    inputs: usize,
    distribution: fn(&mut Composer, usize, &[u64]) -> Result<Part, ModelError>,
) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (shape, default) = match inputs {
        0 => {
            let sizes = view.ints("shape")?.ok_or_else(|| view.error("attribute shape is missing"))?;
            let sizes = sizes.iter().map(|&value| size(&view, "a size", value)).collect::<Result<Vec<_>, _>>()?;
            (sizes, DataType::Float32)
        }
        _ => {
            let ty = view.input_type(0)?;
            (ty.shape.clone(), ty.data_type)
        }
    };
    product(&view, &shape)?;
    let result_type = result_type(&view, default)?;
    if !result_type.is_float() {
        return Err(
            view.error(format!("random numbers of a distribution must be floating-point numbers, not {result_type}"))
        );
    }
    let y = distribution(&mut c, inputs, &shape)?;
    let y = c.cast(&y, result_type);
    c.finish(y)
}

/// The type that the node requests.
fn result_type(view: &NodeView, default: DataType) -> Result<DataType, ModelError> {
    match view.attribute("dtype") {
        None => Ok(default),
        Some(_) => type_attribute(view, "dtype"),
    }
}

/// Random numbers between two limits.
fn uniform(c: &mut Composer, step_input: usize, shape: &[u64]) -> Result<Part, ModelError> {
    let (low, high) = (c.view.float("low", 0.0)?, c.view.float("high", 1.0)?);
    let x = draw(c, step_input, 0, shape)?;
    c.affine(&x, high - low, low)
}

/// Normally distributed random numbers. Of two numbers in 0..1, the first gives a distance and the second a direction (Box-Muller
/// transform). None is more than 5.8 deviations from the mean.
fn normal(c: &mut Composer, step_input: usize, shape: &[u64]) -> Result<Part, ModelError> {
    let (mean, scale) = (c.view.float("mean", 0.0)?, c.view.float("scale", 1.0)?);
    let (distance, direction) = (draw(c, step_input, 0, shape)?, draw(c, step_input, 1, shape)?);
    let distance = c.affine(&distance, -1.0, 1.0)?;
    let distance = c.unary(UnaryOp::Log, &distance)?;
    let distance = c.affine(&distance, -2.0, 0.0)?;
    let distance = c.unary(UnaryOp::Sqrt, &distance)?;
    let direction = c.affine(&direction, TAU as f32, 0.0)?;
    let direction = c.unary(UnaryOp::Cos, &direction)?;
    let x = c.binary(BinaryOp::Multiply, &distance, &direction)?;
    c.affine(&x, scale, mean)
}

/// 1 with the probability given by each element of the input, else 0.
fn bernoulli(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let probabilities = c.input(0)?;
    let result_type = result_type(&view, probabilities.ty.data_type)?;
    let x = draw(&mut c, 1, 0, &probabilities.ty.shape)?;
    let probabilities = c.cast(&probabilities, DataType::Float32);
    let is_one = c.binary(BinaryOp::Less, &x, &probabilities)?;
    let y = c.cast(&is_one, result_type);
    c.finish(y)
}

/// Draws classes by their log probabilities [batch, classes]. The class is the number of classes whose cumulative sum is not larger than a
/// random number.
fn multinomial(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let logits = c.input(0)?;
    let samples = size(&view, "attribute sample_size", view.int("sample_size", 1)?)?;
    let &[batch, classes] = logits.ty.shape.as_slice() else {
        return Err(view.error(format!("expected probabilities [batch, classes], found {}", logits.ty)));
    };
    if classes == 0 {
        return Err(view.error("there are no classes to choose from"));
    }
    product(&view, &[batch, samples, classes])?;
    let result_type = result_type(&view, DataType::Int32)?;
    let logits = c.cast(&logits, DataType::Float32);
    let probabilities = c.kernel(Kernel::Softmax { axis: 1 }, &[&logits], logits.ty.clone());
    let running = Kernel::Scan { axis: 1, op: ScanOp::Sum, exclusive: false, reverse: false };
    let sums = c.kernel(running, &[&probabilities], probabilities.ty.clone());
    let sums = c.reshape(&sums, &[batch, 1, classes])?;
    let x = draw(&mut c, 1, 0, &[batch, samples, 1])?;
    let is_passed = c.binary(BinaryOp::LessOrEqual, &sums, &x)?;
    let is_passed = c.cast(&is_passed, DataType::Int32);
    let passed = c.reduce(ReduceOp::Sum, &[2], &is_passed)?;
    let passed = c.reshape(&passed, &[batch, samples])?;
    // The last sum can be rounded to less than 1.
    let last = c.integers(DataType::Int32, &[], &[classes as i64 - 1])?;
    let y = c.binary(BinaryOp::Minimum, &passed, &last)?;
    let y = c.cast(&y, result_type);
    c.finish(y)
}
