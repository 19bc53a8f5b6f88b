//! Normalizations.

use forebay_base::kernel::{Activation, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{axes, product};
use crate::error::ModelError;
use crate::graph::{FOREBAY, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("BatchNormalization", batch_normalization),
    composed!(FOREBAY, "BatchNormalization", batch_normalization),
    composed!("GroupNormalization", group_normalization),
    composed!("InstanceNormalization", instance_normalization),
    composed!("LRN", local_response_normalization),
    composed!("LayerNormalization", layer_normalization),
    composed!("LpNormalization", lp_normalization),
    composed!("MeanVarianceNormalization", mean_variance_normalization),
    composed!("RMSNormalization", root_mean_square_normalization),
];

fn batch_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let mut parts = (0..5).map(|i| c.input(i)).collect::<Result<Vec<Part>, _>>()?;
    let shape = parts[0].ty.shape.clone();
    if let &[batch] = shape.as_slice() {
        // Without other axes, there is one channel.
        parts[0] = c.reshape(&parts[0], &[batch, 1])?;
    }
    let x = &parts[0];
    if view.int("spatial", 1)? == 0 {
        return Err(view.error("attribute spatial = 0 (statistics per element) is not supported"));
    }
    check_channels(&view, x, &parts[1..])?;
    let (epsilon, activation) = (view.float("epsilon", 1e-5)?, Activation::None);
    if view.int("training_mode", 0)? == 0 {
        let reads: Vec<&Part> = parts.iter().collect();
        let y = c.kernel(Kernel::BatchNormalization { epsilon, activation }, &reads, x.ty.clone());
        let y = c.reshape(&y, &shape)?;
        if view.version() < 14 {
            // Exporters write the outputs of training here as well: the statistics after and of the step, which stay as they are.
            let statistics = [&parts[3], &parts[4], &parts[3], &parts[4]];
            return c.finish_all([&y].into_iter().chain(statistics).cloned().collect());
        }
        return c.finish(y);
    }
    let batch = batch_normalized(&mut c, x, [&parts[1], &parts[2]], epsilon, 1);
    let kernel = Kernel::RunningStatistics { momentum: view.float("momentum", 0.9)?, correction: 1.0 };
    let mut outputs = vec![c.reshape(&batch[0], &shape)?];
    for (running, of_batch) in parts[3..].iter().zip(&batch[1..]) {
        let of_batch = c.cast(of_batch, running.ty.data_type.computed_in());
        outputs.push(c.kernel(kernel.clone(), &[running, &of_batch], running.ty.clone()));
    }
    c.finish_all(outputs)
}

/// Rejects parts that do not have one element for every channel of x.
fn check_channels<'a>(view: &NodeView, x: &Part, parts: impl IntoIterator<Item = &'a Part>) -> Result<(), ModelError> {
    let Some(&channels) = x.ty.shape.get(1) else {
        return Err(view.error(format!("the input {} has no channels (axis 1)", x.ty)));
    };
    match parts.into_iter().find(|part| part.ty.shape != [channels]) {
        Some(part) => Err(view.error(format!("expected [{channels}] for the channels of {}, found {}", x.ty, part.ty))),
        None => Ok(()),
    }
}

/// x normalized by its own statistics per group of channels, with scale and bias, followed by its means and variances.
fn batch_normalized(c: &mut Composer, x: &Part, [scale, bias]: [&Part; 2], epsilon: f32, group_size: u64) -> Vec<Part> {
    let kernel = Kernel::BatchNormalizationTraining { epsilon, activation: Activation::None, group_size };
    let statistics = TensorType::new(x.ty.data_type.computed_in(), &scale.ty.shape);
    c.kernels(kernel, &[x, scale, bias], &[x.ty.clone(), statistics.clone(), statistics])
}

fn layer_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let axis = view.axis(view.int("axis", -1)?, x.ty.shape.len())?;
    let bias = if view.has_input(2) { Some(c.input(2)?) } else { None };
    let [y, mean, deviation] = layer_normalized(&mut c, &x, &scale, bias.as_ref(), axis, view.float("epsilon", 1e-5)?)?;
    let stash_type = match view.int("stash_type", 1)? {
        16 => DataType::BFloat16,
        _ => DataType::Float32,
    };
    let (mean, deviation) = (c.cast(&mean, stash_type), c.cast(&deviation, stash_type));
    c.finish_all(vec![y, mean, deviation])
}

/// x normalized from an axis on, with scale and bias, followed by its means and inverse deviations, which do not have 16 bits.
pub(super) fn layer_normalized(
    c: &mut Composer,
    x: &Part,
    scale: &Part,
    bias: Option<&Part>,
    axis: usize,
    epsilon: f32,
) -> Result<[Part; 3], ModelError> {
    let view = c.view;
    let normalized = x.ty.shape[axis..].to_vec();
    let scale = c.expand(scale, &normalized)?;
    let bias = match bias {
        Some(bias) => Some(c.expand(bias, &normalized)?),
        None => None,
    };
    let statistics = TensorType::new(x.ty.data_type.computed_in(), &[product(&view, &x.ty.shape[..axis])?]);
    let types = [x.ty.clone(), statistics.clone(), statistics];
    let kernel = Kernel::LayerNormalization { axis, epsilon };
    let reads: Vec<&Part> = [Some(x), Some(&scale), bias.as_ref()].into_iter().flatten().collect();
    let outputs = c.kernels(kernel, &reads, &types);
    let mut shape = x.ty.shape.clone();
    shape[axis..].fill(1);
    let (mean, deviation) = (c.reshape(&outputs[1], &shape)?, c.reshape(&outputs[2], &shape)?);
    Ok([outputs[0].clone(), mean, deviation])
}

/// Rows of x normalized to mean 0 and variance 1, without scale and bias.
pub(super) fn standardized_rows(c: &mut Composer, x: &Part, row_count: u64, epsilon: f32) -> Result<Part, ModelError> {
    let count = product(&c.view, &x.ty.shape)?;
    if row_count == 0 || count == 0 || count % row_count != 0 {
        return Err(c.view.error(format!("cannot split {} into {row_count} groups", x.ty)));
    }
    let size = count / row_count;
    let rows = c.reshape(x, &[row_count, size])?;
    let data_type = x.ty.data_type;
    let ones = c.kernel(Kernel::Fill { value: 1.0 }, &[], TensorType::new(data_type, &[size]));
    let statistics = TensorType::new(data_type.computed_in(), &[row_count]);
    let types = [rows.ty.clone(), statistics.clone(), statistics];
    Ok(c.kernels(Kernel::LayerNormalization { axis: 1, epsilon }, &[&rows, &ones], &types).remove(0))
}

/// Applies scale and bias, one per channel of [n, channels, ..].
fn scaled(c: &mut Composer, x: &Part, shape: &[u64]) -> Result<Part, ModelError> {
    let x = c.reshape(x, shape)?;
    let mut along_channels = vec![1; shape.len() - 1];
    along_channels[0] = shape[1];
    let (scale, bias) = (c.input(1)?, c.input(2)?);
    let (scale, bias) = (c.reshape(&scale, &along_channels)?, c.reshape(&bias, &along_channels)?);
    let product = c.binary(BinaryOp::Multiply, &x, &scale)?;
    c.binary(BinaryOp::Add, &product, &bias)
}

/// Normalizes each channel of each image by its own statistics.
fn instance_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    if x.ty.shape.len() < 3 {
        return Err(view.error(format!("the input {} has no spatial dimensions", x.ty)));
    }
    if x.ty.shape.contains(&0) {
        return c.finish(x);
    }
    let epsilon = view.float("epsilon", 1e-5)?;
    if x.ty.shape[0] == 1 {
        // For a single image, the statistics are those of the batch, whose kernel can be cut along spatial positions.
        let (scale, bias) = (c.input(1)?, c.input(2)?);
        check_channels(&view, &x, [&scale, &bias])?;
        let y = batch_normalized(&mut c, &x, [&scale, &bias], epsilon, 1).remove(0);
        return c.finish(y);
    }
    let row_count = product(&view, &x.ty.shape[..2])?;
    let rows = standardized_rows(&mut c, &x, row_count, epsilon)?;
    let y = scaled(&mut c, &rows, &x.ty.shape)?;
    c.finish(y)
}

/// Normalizes groups of channels of each image by their own statistics. Scale and bias are per group before opset 21.
fn group_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let groups = super::shapes::size(&view, "attribute num_groups", view.int("num_groups", 0)?)?;
    let (Some(&batch), Some(&channels)) = (x.ty.shape.first(), x.ty.shape.get(1)) else {
        return Err(view.error(format!("the input {} has no channels (axis 1)", x.ty)));
    };
    if groups == 0 || channels % groups != 0 {
        return Err(view.error(format!("cannot split {channels} channels into {groups} groups")));
    }
    if x.ty.shape.contains(&0) {
        return c.finish(x);
    }
    let epsilon = view.float("epsilon", 1e-5)?;
    if batch == 1 {
        // As in InstanceNormalization.
        let (mut scale, mut bias) = (c.input(1)?, c.input(2)?);
        if view.version() < 21 {
            for parameter in [&mut scale, &mut bias] {
                let column = c.reshape(parameter, &[groups, 1])?;
                let of_channels = c.expand(&column, &[groups, channels / groups])?;
                *parameter = c.reshape(&of_channels, &[channels])?;
            }
        }
        check_channels(&view, &x, [&scale, &bias])?;
        let y = batch_normalized(&mut c, &x, [&scale, &bias], epsilon, channels / groups).remove(0);
        return c.finish(y);
    }
    let row_count = product(&view, &[batch, groups])?;
    let rows = standardized_rows(&mut c, &x, row_count, epsilon)?;
    let y = if view.version() < 21 {
        let size = rows.ty.shape[1];
        scaled(&mut c, &rows, &[batch, groups, size])?
    } else {
        scaled(&mut c, &rows, &x.ty.shape)?
    };
    let y = c.reshape(&y, &x.ty.shape)?;
    c.finish(y)
}

/// x / sqrt(mean(x^2) + epsilon) x scale.
fn root_mean_square_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, scale) = (c.input(0)?, c.input(1)?);
    let axis = view.axis(view.int("axis", -1)?, x.ty.shape.len())?;
    let (y, _) = root_mean_square_normalized(&mut c, &x, &scale, axis, view.float("epsilon", 1e-5)?)?;
    c.finish(y)
}

/// x / sqrt(mean(x^2) + epsilon) x scale from an axis on, in the scale's type, and that root.
pub(super) fn root_mean_square_normalized(
    c: &mut Composer,
    x: &Part,
    scale: &Part,
    axis: usize,
    epsilon: f32,
) -> Result<(Part, Part), ModelError> {
    let size = product(&c.view, &x.ty.shape[axis..])?;
    let axes: Vec<usize> = (axis..x.ty.shape.len()).collect();
    // Sums of squares can exceed the range of float16.
    let x = c.cast(x, x.ty.data_type.computed_in());
    let sum = c.reduce(ReduceOp::SumSquare, &axes, &x)?;
    let mean = c.affine(&sum, 1.0 / size as f32, epsilon)?;
    let root = c.unary(UnaryOp::Sqrt, &mean)?;
    let normalized = c.binary(BinaryOp::Divide, &x, &root)?;
    let normalized = c.cast(&normalized, scale.ty.data_type);
    Ok((c.binary(BinaryOp::Multiply, &normalized, scale)?, root))
}

/// (x - mean) / (deviation + 1e-9) along axes.
fn mean_variance_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let given = c.input(0)?;
    // Squares can exceed the range of float16.
    let x = c.cast(&given, given.ty.data_type.computed_in());
    let along = axes(&view, view.ints("axes")?.unwrap_or(&[0, 2, 3]), x.ty.shape.len())?;
    let mean = c.reduce(ReduceOp::Mean, &along, &x)?;
    let centered = c.binary(BinaryOp::Subtract, &x, &mean)?;
    let square = c.binary(BinaryOp::Multiply, &centered, &centered)?;
    let variance = c.reduce(ReduceOp::Mean, &along, &square)?;
    // The root has no derivative at 0. The limit is too small to change a divisor in float32.
    let variance = c.unary(UnaryOp::Clip { low: f32::MIN_POSITIVE, high: f32::INFINITY }, &variance)?;
    let deviation = c.unary(UnaryOp::Sqrt, &variance)?;
    let divisor = c.affine(&deviation, 1.0, 1e-9)?;
    let y = c.binary(BinaryOp::Divide, &centered, &divisor)?;
    let y = c.cast(&y, given.ty.data_type);
    c.finish(y)
}

/// x divided by its norm along an axis; zeros stay zero.
fn lp_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let given = c.input(0)?;
    // Norms can exceed the range of float16.
    let x = c.cast(&given, given.ty.data_type.computed_in());
    let axis = view.axis(view.int("axis", -1)?, x.ty.shape.len())?;
    let op = match view.int("p", 2)? {
        1 => ReduceOp::L1,
        2 => ReduceOp::L2,
        p => return Err(view.error(format!("attribute p must be 1 or 2, not {p}"))),
    };
    let norm = c.reduce(op, &[axis], &x)?;
    let (zero, one) = (c.floats(x.ty.data_type, &[], &[0.0])?, c.floats(x.ty.data_type, &[], &[1.0])?);
    let is_zero = c.binary(BinaryOp::Equal, &norm, &zero)?;
    let norm = c.select(&is_zero, &one, &norm)?;
    let y = c.binary(BinaryOp::Divide, &x, &norm)?;
    let y = c.cast(&y, given.ty.data_type);
    c.finish(y)
}

fn local_response_normalization(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let size = super::shapes::size(&view, "attribute size", view.int("size", 0)?)?;
    if size == 0 || x.ty.shape.len() < 2 {
        return Err(view.error(format!("attribute size = {size} is not allowed for the input {}", x.ty)));
    }
    let kernel = Kernel::LocalResponseNormalization {
        size,
        alpha: view.float("alpha", 1e-4)?,
        beta: view.float("beta", 0.75)?,
        bias: view.float("bias", 1.0)?,
    };
    let y = c.kernel(kernel, &[&x], x.ty.clone());
    c.finish(y)
}
