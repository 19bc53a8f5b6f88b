//! Operators that take or join parts of tensors.

use forebay_base::{DataType, Kernel, Tensor};

use super::decomposition::{self, Composer, Decomposition, Part, composed};
use super::evaluate;
use super::shapes::{attribute_or_input, axes, packed_strides, size};
use crate::action::Action;
use crate::context::Lowering;
use crate::error::ModelError;
use crate::graph::{Node, TensorType, ValueId};
use crate::operator::{Gradient, GradientBuilder, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    Operator { lower: |view, lowering| lowering.concatenate(view, concat_axis(view)?), ..composed!("Concat", concat) },
    composed!("Gather", gather),
    Operator { lower: lower_slice, ..composed!("Slice", slice) },
    Operator {
        domain: "",
        op_type: "Split",
        infer: infer_split,
        evaluate: Some(evaluate_split),
        lower: lower_split,
        gradient: Gradient::Function(split_gradient),
    },
];

fn concat_axis(view: &NodeView) -> Result<usize, ModelError> {
    view.axis(view.int("axis", 1)?, view.input_type(0)?.shape.len())
}

fn concat(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let parts = (0..view.node.inputs.len()).map(|i| c.input(i)).collect::<Result<Vec<Part>, _>>()?;
    let y = c.concatenate(&parts.iter().collect::<Vec<_>>(), concat_axis(&view)?)?;
    c.finish(y)
}

/// The axis of a `Split`, and the sizes of its parts.
fn split_parts(view: &NodeView) -> Result<(usize, Vec<u64>), ModelError> {
    let x = view.input_type(0)?;
    let axis = view.axis(view.int("axis", 0)?, x.shape.len())?;
    let total = x.shape[axis];
    if let Some(sizes) = attribute_or_input(view, "split", 1)? {
        let parts = sizes.iter().map(|&value| size(view, "a part size", value)).collect::<Result<Vec<_>, _>>()?;
        let sum = parts.iter().try_fold(0u64, |sum, &part| sum.checked_add(part));
        if sum != Some(total) || parts.len() < view.node.outputs.len() {
            return Err(view.error(format!("parts {sizes:?} do not fit axis {axis} of {x}")));
        }
        return Ok((axis, parts));
    }
    let count = view.node.outputs.len() as u64;
    if view.int("num_outputs", count as i64)? != count as i64 {
        return Err(view.error(format!("attribute num_outputs must be the number of outputs, {count}")));
    }
    // From opset 18 on, the last parts can be smaller or empty.
    if count == 0 || (total % count != 0 && view.version() < 18) {
        return Err(view.error(format!("cannot split axis {axis} of {x} into {count} parts")));
    }
    let part = total.div_ceil(count);
    Ok((axis, (0..count).map(|i| part.min(total.saturating_sub(i * part))).collect()))
}

fn infer_split(view: &NodeView) -> Result<Vec<TensorType>, ModelError> {
    let x = view.input_type(0)?;
    let (axis, parts) = split_parts(view)?;
    let part = |&size: &u64| {
        let mut ty = x.clone();
        ty.shape[axis] = size;
        ty
    };
    Ok(parts.iter().map(part).collect())
}

fn evaluate_split(view: &NodeView, inputs: &[Option<&Tensor>]) -> Result<Option<Vec<Tensor>>, ModelError> {
    let Some(x) = inputs.first().copied().flatten() else { return Ok(None) };
    let (axis, _) = split_parts(view)?;
    let mut start = 0;
    let mut parts = Vec::new();
    for ty in infer_split(view)? {
        let kernel = part_kernel(ty.shape.len(), axis, start);
        start += ty.shape[axis];
        let action = Action::Kernel(kernel);
        let Some(part) = evaluate::run(&action, std::slice::from_ref(x), &ty) else { return Ok(None) };
        parts.push(part);
    }
    Ok(Some(parts))
}

fn part_kernel(rank: usize, axis: usize, start: u64) -> Kernel {
    let mut starts = vec![0; rank];
    starts[axis] = start;
    Kernel::Slice { starts, steps: vec![1; rank] }
}

/// The offset of a part in the packed bytes of `x`, if it is one run of bytes that can be a view.
fn view_offset(x: &TensorType, part: &TensorType, axis: usize, start: u64) -> Option<u64> {
    let is_run = x.shape[..axis].iter().all(|&size| size == 1) && x.shape[axis + 1..] == part.shape[axis + 1..];
    let offset_bytes = start * packed_strides(&x.shape)[axis] * x.data_type.size_bytes();
    (is_run && Lowering::can_view(offset_bytes)).then_some(offset_bytes)
}

fn lower_split(view: &NodeView, lowering: &mut Lowering) -> Result<(), ModelError> {
    let x = view.input_type(0)?;
    let (axis, _) = split_parts(view)?;
    let operand = lowering.input(view, 0)?;
    let mut start = 0;
    for (i, part) in infer_split(view)?.iter().enumerate() {
        // Parts without elements never reach a device.
        if matches!(view.node.outputs.get(i), Some(Some(_))) && part.shape[axis] > 0 {
            match view_offset(x, part, axis, start) {
                Some(offset_bytes) => lowering.view(view, i, &operand, offset_bytes)?,
                None => {
                    let output = lowering.output(view, i)?;
                    let kernel = part_kernel(part.shape.len(), axis, start);
                    lowering.launch(view, kernel, vec![operand.clone()], vec![output]);
                }
            }
        }
        start += part.shape[axis];
    }
    Ok(())
}

fn split_gradient(
    builder: &mut GradientBuilder,
    node: &Node,
    d_outputs: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, ModelError> {
    let view = NodeView { graph: builder.graph, node };
    let (axis, _) = split_parts(&view)?;
    let types = infer_split(&view)?;
    let x = view.input_type(0)?.clone();
    let mut parts = Vec::with_capacity(types.len());
    for (i, ty) in types.iter().enumerate().filter(|(_, ty)| ty.shape[axis] > 0) {
        parts.push(match d_outputs.get(i).copied().flatten() {
            Some(d) => d,
            None => builder.fill(0.0, ty),
        });
    }
    let mut gradients = vec![None; node.inputs.len()];
    gradients[0] = Some(builder.concatenate(&parts, axis, x));
    Ok(gradients)
}

/// First index, step and number of elements along every axis of a `Slice`.
fn slice_ranges(view: &NodeView) -> Result<Vec<(u64, i64, u64)>, ModelError> {
    let x = view.input_type(0)?;
    let rank = x.shape.len();
    let list = |name: &str, i: usize| attribute_or_input(view, name, i);
    let missing = |name: &str| view.error(format!("the {name} are missing"));
    let starts = list("starts", 1)?.ok_or_else(|| missing("starts"))?;
    let ends = list("ends", 2)?.ok_or_else(|| missing("ends"))?;
    let along = list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = if view.has_input(4) { view.constant_ints(4)? } else { vec![1; starts.len()] };
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        return Err(
            view.error(format!("starts {starts:?}, ends {ends:?}, axes {along:?}, steps {steps:?} differ in length"))
        );
    }
    axes(view, &along, rank)?;
    let mut ranges: Vec<(u64, i64, u64)> = x.shape.iter().map(|&size| (0, 1, size)).collect();
    for i in 0..starts.len() {
        let axis = view.axis(along[i], rank)?;
        let (total, step) = (i128::from(x.shape[axis]), i128::from(steps[i]));
        let index = |value: i64| i128::from(value) + if value < 0 { total } else { 0 };
        let (start, count) = match step.signum() {
            0 => return Err(view.error(format!("the step along axis {axis} is 0"))),
            1 => {
                let (start, end) = (index(starts[i]).clamp(0, total), index(ends[i]).clamp(0, total));
                (start, (end - start + step - 1) / step)
            }
            _ if total == 0 => (0, 0),
            _ => {
                let (start, end) = (index(starts[i]).clamp(0, total - 1), index(ends[i]).clamp(-1, total - 1));
                (start, (start - end - step - 1) / -step)
            }
        };
        // If nothing is taken, the start can lie outside.
        let (start, count) = (start as u64, count.max(0) as u64);
        ranges[axis] = (start, if count <= 1 { 1 } else { steps[i] }, count);
    }
    Ok(ranges)
}

fn slice(view: NodeView) -> Result<Decomposition, ModelError> {
    let ranges = slice_ranges(&view)?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let shape: Vec<u64> = ranges.iter().map(|range| range.2).collect();
    if shape == x.ty.shape && ranges.iter().all(|range| range.1 == 1) {
        return c.finish(x);
    }
    let (starts, steps) = ranges.iter().map(|range| (range.0, range.1)).unzip();
    let y = c.kernel(Kernel::Slice { starts, steps }, &[&x], TensorType::new(x.ty.data_type, &shape));
    c.finish(y)
}

/// A part that is one run of bytes is a view.
fn lower_slice(view: &NodeView, lowering: &mut Lowering) -> Result<(), ModelError> {
    let (x, y) = (view.input_type(0)?, view.output_type(0)?);
    let ranges = slice_ranges(view)?;
    let mut taken = (0..ranges.len()).filter(|&axis| ranges[axis].2 != x.shape[axis] || ranges[axis].1 != 1);
    if let (Some(axis), None) = (taken.next(), taken.next()) {
        let offset = view_offset(x, y, axis, ranges[axis].0).filter(|_| ranges[axis].1 == 1);
        if let Some(offset_bytes) = offset {
            let operand = lowering.input(view, 0)?;
            return lowering.view(view, 0, &operand, offset_bytes);
        }
    }
    decomposition::lower(view, lowering, slice)
}

fn gather(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices) = (c.input(0)?, c.input(1)?);
    let axis = view.axis(view.int("axis", 0)?, data.ty.shape.len())?;
    let y = gathered(&mut c, &data, &indices, axis)?;
    c.finish(y)
}

/// The elements along an axis that indices select.
pub(super) fn gathered(c: &mut Composer, data: &Part, indices: &Part, axis: usize) -> Result<Part, ModelError> {
    let view = c.view;
    if !matches!(indices.ty.data_type, DataType::Int32 | DataType::Int64) {
        return Err(view.error(format!("indices must be int32 or int64, not {}", indices.ty.data_type)));
    }
    let size = data.ty.shape[axis];
    let valid = -i128::from(size)..i128::from(size);
    let constant = c.known(indices)?.and_then(Tensor::to_i64).unwrap_or_default();
    if let Some(index) = constant.iter().find(|&&index| !valid.contains(&i128::from(index))) {
        return Err(view.error(format!("index {index} is out of range for axis {axis} of {}", data.ty)));
    }
    let count = super::shapes::product(&view, &indices.ty.shape)?;
    let joined = |middle: &[u64]| [&data.ty.shape[..axis], middle, &data.ty.shape[axis + 1..]].concat();
    let shape = joined(&indices.ty.shape);
    super::shapes::product(&view, &shape)?;
    let indices = c.reshape(indices, &[count])?;
    let y = c.kernel(Kernel::Gather { axis }, &[data, &indices], TensorType::new(data.ty.data_type, &joined(&[count])));
    c.reshape(&y, &shape)
}
