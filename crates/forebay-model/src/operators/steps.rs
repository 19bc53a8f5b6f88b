//! Steps of optimizers as operators (`ai.onnx.preview.training`). Each takes a learning rate, the number of previous updates, and the
//! tensors that it optimizes with their gradients and states.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::decomposition::{Composer, Decomposition, Part, composed};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The domain of these operators.
const PREVIEW: &str = "ai.onnx.preview.training";

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(PREVIEW, "Adagrad", adagrad),
    composed!(PREVIEW, "Adam", adam),
    composed!(PREVIEW, "Momentum", momentum),
];

/// The optimized tensors, each with its gradient and `states` states.
fn tensors(c: &Composer, states: usize) -> Result<Vec<Vec<Part>>, ModelError> {
    let (inputs, each) = (c.view.node.inputs.len().saturating_sub(2), states + 2);
    if inputs == 0 || inputs % each != 0 {
        return Err(c
            .view
            .error(format!("expected {each} tensors for each optimized tensor, found {inputs} in total")));
    }
    let count = inputs / each;
    (0..count).map(|i| (0..each).map(|kind| c.input(2 + kind * count + i)).collect()).collect()
}

/// Returns results in the operators' order: all tensors, then all first states, and so on.
fn finish(c: Composer, results: Vec<Vec<Part>>) -> Result<Decomposition, ModelError> {
    let kinds = results.first().map_or(0, Vec::len);
    let outputs = (0..kinds).flat_map(|kind| results.iter().map(move |of_one| of_one[kind].clone()));
    let outputs = outputs.collect();
    c.finish_all(outputs)
}

/// The gradient plus that of the norm, coefficient / 2 |x|^2.
fn regularized(c: &mut Composer, x: &Part, gradient: &Part) -> Result<Part, ModelError> {
    let coefficient = c.view.float("norm_coefficient", 0.0)?;
    if coefficient == 0.0 {
        return Ok(gradient.clone());
    }
    let decay = c.affine(x, coefficient, 0.0)?;
    c.binary(BinaryOp::Add, &decay, gradient)
}

/// The number of previous updates, as a number of a type.
fn updates(c: &mut Composer, data_type: DataType) -> Result<Part, ModelError> {
    let count = c.input(1)?;
    Ok(c.cast(&count, data_type))
}

/// x - rate direction.
fn moved(c: &mut Composer, x: &Part, rate: &Part, direction: &Part) -> Result<Part, ModelError> {
    let step = c.binary(BinaryOp::Multiply, direction, rate)?;
    let y = c.binary(BinaryOp::Subtract, x, &step)?;
    if y.ty.shape != x.ty.shape {
        return Err(c.view.error(format!("{} and {} do not fit the sizes of {}", rate.ty, direction.ty, x.ty)));
    }
    Ok(y)
}

fn adagrad(view: NodeView) -> Result<Decomposition, ModelError> {
    let (decay, epsilon) = (view.float("decay_factor", 0.0)?, view.float("epsilon", 1e-6)?);
    let mut c = Composer::new(view);
    let mut results = Vec::new();
    for tensors in tensors(&c, 1)? {
        let (x, squares) = (&tensors[0], &tensors[2]);
        let mut rate = c.input(0)?;
        if decay != 0.0 {
            let count = updates(&mut c, rate.ty.data_type)?;
            let divisor = c.affine(&count, decay, 1.0)?;
            rate = c.binary(BinaryOp::Divide, &rate, &divisor)?;
        }
        let gradient = regularized(&mut c, x, &tensors[1])?;
        let square = c.binary(BinaryOp::Multiply, &gradient, &gradient)?;
        let squares = c.binary(BinaryOp::Add, squares, &square)?;
        let root = c.unary(UnaryOp::Sqrt, &squares)?;
        let divisor = c.affine(&root, 1.0, epsilon)?;
        let direction = c.binary(BinaryOp::Divide, &gradient, &divisor)?;
        results.push(vec![moved(&mut c, x, &rate, &direction)?, squares]);
    }
    finish(c, results)
}

/// old weight + new (1 - weight).
fn average(c: &mut Composer, old: &Part, new: &Part, weight: f32) -> Result<Part, ModelError> {
    let (old, new) = (c.affine(old, weight, 0.0)?, c.affine(new, 1.0 - weight, 0.0)?);
    c.binary(BinaryOp::Add, &old, &new)
}

/// 1 - base^count.
fn correction(c: &mut Composer, base: f32, count: &Part) -> Result<Part, ModelError> {
    let base = c.scalar(count.ty.data_type, f64::from(base))?;
    let power = c.binary(BinaryOp::Power, &base, count)?;
    c.affine(&power, -1.0, 1.0)
}

fn adam(view: NodeView) -> Result<Decomposition, ModelError> {
    let (alpha, beta, epsilon) = (view.float("alpha", 0.9)?, view.float("beta", 0.999)?, view.float("epsilon", 1e-6)?);
    let decay = view.float("norm_coefficient_post", 0.0)?;
    let mut c = Composer::new(view);
    let mut results = Vec::new();
    for tensors in tensors(&c, 2)? {
        let x = &tensors[0];
        let gradient = regularized(&mut c, x, &tensors[1])?;
        let first = average(&mut c, &tensors[2], &gradient, alpha)?;
        let square = c.binary(BinaryOp::Multiply, &gradient, &gradient)?;
        let second = average(&mut c, &tensors[3], &square, beta)?;
        let root = c.unary(UnaryOp::Sqrt, &second)?;
        let divisor = c.affine(&root, 1.0, epsilon)?;
        // The first update is not corrected.
        let rate = c.input(0)?;
        let count = updates(&mut c, rate.ty.data_type)?;
        let (of_first, of_second) = (correction(&mut c, alpha, &count)?, correction(&mut c, beta, &count)?);
        let of_second = c.unary(UnaryOp::Sqrt, &of_second)?;
        let corrected = c.binary(BinaryOp::Multiply, &rate, &of_second)?;
        let corrected = c.binary(BinaryOp::Divide, &corrected, &of_first)?;
        let zero = c.scalar(count.ty.data_type, 0.0)?;
        let is_later = c.binary(BinaryOp::Greater, &count, &zero)?;
        let rate = c.select(&is_later, &corrected, &rate)?;
        let direction = c.binary(BinaryOp::Divide, &first, &divisor)?;
        let y = moved(&mut c, x, &rate, &direction)?;
        let y = if decay == 0.0 { y } else { c.affine(&y, 1.0 - decay, 0.0)? };
        results.push(vec![y, first, second]);
    }
    finish(c, results)
}

fn momentum(view: NodeView) -> Result<Decomposition, ModelError> {
    let (alpha, beta) = (view.float("alpha", 0.0)?, view.float("beta", 1.0)?);
    let is_nesterov = match view.string("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        other => return Err(view.error(format!("attribute mode must be standard or nesterov, not '{other}'"))),
    };
    let mut c = Composer::new(view);
    let mut results = Vec::new();
    for tensors in tensors(&c, 1)? {
        let x = &tensors[0];
        let gradient = regularized(&mut c, x, &tensors[1])?;
        let rate = c.input(0)?;
        let count = updates(&mut c, gradient.ty.data_type)?;
        let (zero, one) = (c.scalar(count.ty.data_type, 0.0)?, c.scalar(count.ty.data_type, 1.0)?);
        let share = c.scalar(count.ty.data_type, f64::from(beta))?;
        let is_later = c.binary(BinaryOp::Greater, &count, &zero)?;
        // The first update uses the whole gradient.
        let share = c.select(&is_later, &share, &one)?;
        let (kept, taken) = (c.affine(&tensors[2], alpha, 0.0)?, c.binary(BinaryOp::Multiply, &gradient, &share)?);
        let velocity = c.binary(BinaryOp::Add, &kept, &taken)?;
        let direction = if is_nesterov {
            let ahead = c.affine(&velocity, alpha, 0.0)?;
            c.binary(BinaryOp::Add, &gradient, &ahead)?
        } else {
            velocity.clone()
        };
        results.push(vec![moved(&mut c, x, &rate, &direction)?, velocity]);
    }
    finish(c, results)
}
