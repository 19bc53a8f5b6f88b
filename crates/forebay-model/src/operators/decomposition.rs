//! Decompositions: operators expressed as a few kernels.
//!
//! Most operators are one kernel or a handful of kernels. An operator that is written once as a decomposition gets its inference, folding,
//! lowering and gradient from it: the types of the results are its output types, each step is a launch, and the gradient goes back through
//! the steps (those whose results the forward pass did not keep are recomputed).

use forebay_base::kernel::{Activation, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::narrow::Narrowing;
use forebay_base::{DataType, Kernel, Tensor, TensorDesc};

use super::evaluate;
use super::shapes::{broadcast_shapes, packed_strides};
use crate::action::Action;
use crate::context::lowering::broadcast;
use crate::context::{GradientBuilder, Lowering, NodeView};
use crate::error::ModelError;
use crate::graph::{Node, TensorType, ValueId};
use crate::kernel_gradient::Application;
use crate::precision::{takes_16_bit, widened};
use crate::program::Operand;

/// A function that expresses an operator as a decomposition.
pub(crate) type Compose = for<'a> fn(NodeView<'a>) -> Result<Decomposition, ModelError>;

/// Where a part comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// The node's input.
    Input(usize),
    /// A constant of the decomposition.
    Constant(usize),
    /// An output of an earlier step.
    Step(usize, usize),
}

/// A value inside a decomposition. Its shape can differ from its source's if it has the same number of elements: it is then a view.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    source: Source,
    /// The type as which it is used.
    pub ty: TensorType,
}

/// One step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// What it does.
    pub action: Action,
    inputs: Vec<Part>,
    outputs: Vec<TensorType>,
}

/// An operator as steps.
#[derive(Clone, Debug)]
pub(crate) struct Decomposition {
    constants: Vec<Tensor>,
    steps: Vec<Step>,
    outputs: Vec<Part>,
}

/// Builds a decomposition step by step.
pub(crate) struct Composer<'a> {
    /// The operator's node.
    pub view: NodeView<'a>,
    constants: Vec<Tensor>,
    steps: Vec<Step>,
}

impl<'a> Composer<'a> {
    pub(crate) fn new(view: NodeView<'a>) -> Composer<'a> {
        Composer { view, constants: Vec::new(), steps: Vec::new() }
    }

    /// The node's input `i`.
    pub(crate) fn input(&self, i: usize) -> Result<Part, ModelError> {
        Ok(Part { source: Source::Input(i), ty: self.view.input_type(i)?.clone() })
    }

    /// A constant tensor.
    pub(crate) fn constant(&mut self, tensor: Tensor) -> Part {
        let ty = TensorType::new(tensor.data_type(), tensor.shape());
        self.constants.push(tensor);
        Part { source: Source::Constant(self.constants.len() - 1), ty }
    }

    /// The elements of a part, if they are known: a few numbers or many integers.
    pub(crate) fn known(&self, part: &Part) -> Result<Option<&Tensor>, ModelError> {
        match part.source {
            Source::Input(i) => self.view.constant(i),
            Source::Constant(i) => Ok(Some(&self.constants[i])),
            Source::Step(..) => Ok(None),
        }
    }

    /// A constant number of any type except bool.
    pub(crate) fn scalar(&mut self, data_type: DataType, value: f64) -> Result<Part, ModelError> {
        let size = data_type.size_bytes() as usize;
        let bytes = match data_type {
            DataType::Float64 => value.to_le_bytes().to_vec(),
            DataType::UInt64 => (value as u64).to_le_bytes().to_vec(),
            _ if data_type.is_float() => (value as f32).to_le_bytes().to_vec(),
            _ => (value as i64).to_le_bytes()[..size].to_vec(),
        };
        let is_made = data_type.is_sixteen_bit() || data_type.is_float() && data_type.is_narrow();
        let stored = if is_made { DataType::Float32 } else { data_type };
        let tensor = Tensor::new(stored, &[], bytes);
        let tensor = tensor.ok_or_else(|| self.view.error(format!("{value} is not a number of type {data_type}")))?;
        let number = self.constant(tensor);
        Ok(self.cast(&number, data_type))
    }

    /// Constant numbers of a floating-point type, each rounded once. Those of 16-bit types are converted from float32.
    pub(crate) fn floats(&mut self, data_type: DataType, shape: &[u64], values: &[f64]) -> Result<Part, ModelError> {
        if data_type != DataType::Float64 {
            let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
            let numbers =
                self.packed(DataType::Float32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())?;
            return Ok(self.cast(&numbers, data_type));
        }
        self.packed(data_type, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Constant integers of int32 or int64.
    pub(crate) fn integers(&mut self, data_type: DataType, shape: &[u64], values: &[i64]) -> Result<Part, ModelError> {
        let size = data_type.size_bytes() as usize;
        self.packed(data_type, shape, values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect())
    }

    /// A constant with these bytes.
    fn packed(&mut self, data_type: DataType, shape: &[u64], bytes: Vec<u8>) -> Result<Part, ModelError> {
        let count = bytes.len();
        let tensor = Tensor::new(data_type, shape, bytes)
            .ok_or_else(|| self.view.error(format!("{count} bytes are not a {}", TensorType::new(data_type, shape))))?;
        Ok(self.constant(tensor))
    }

    /// A kernel with outputs of the given types. A kernel that does not support 16-bit floating-point types is computed in float32, and its
    /// outputs are converted back.
    pub(crate) fn kernels(&mut self, kernel: Kernel, inputs: &[&Part], outputs: &[TensorType]) -> Vec<Part> {
        let is_16_bit = |ty: &TensorType| ty.data_type.is_sixteen_bit();
        if takes_16_bit(&kernel) || !inputs.iter().any(|input| is_16_bit(&input.ty)) {
            return self.push(Action::Kernel(kernel), inputs, outputs);
        }
        let wide: Vec<Part> = inputs
            .iter()
            .map(|input| if is_16_bit(&input.ty) { self.cast(input, DataType::Float32) } else { (*input).clone() })
            .collect();
        let wide_outputs: Vec<TensorType> = outputs.iter().map(widened).collect();
        let results = self.push(Action::Kernel(kernel), &wide.iter().collect::<Vec<_>>(), &wide_outputs);
        results.iter().zip(outputs).map(|(result, output)| self.cast(result, output.data_type)).collect()
    }

    /// A kernel with one output.
    pub(crate) fn kernel(&mut self, kernel: Kernel, inputs: &[&Part], output: TensorType) -> Part {
        self.kernels(kernel, inputs, &[output]).remove(0)
    }

    /// A function of one variable.
    pub(crate) fn unary(&mut self, op: UnaryOp, x: &Part) -> Result<Part, ModelError> {
        let is_bool = x.ty.data_type == DataType::Bool;
        if is_bool != (op == UnaryOp::Not) {
            return Err(self.view.error(format!("operands of type {} are not supported", x.ty.data_type)));
        }
        Ok(self.kernel(Kernel::Unary(op), &[x], x.ty.clone()))
    }

    /// scale x + shift.
    pub(crate) fn affine(&mut self, x: &Part, scale: f32, shift: f32) -> Result<Part, ModelError> {
        self.unary(UnaryOp::Affine { scale, shift }, x)
    }

    /// A function of two variables, which are broadcast to each other.
    pub(crate) fn binary(&mut self, op: BinaryOp, a: &Part, b: &Part) -> Result<Part, ModelError> {
        if a.ty.data_type != b.ty.data_type {
            return Err(self.view.error(format!("operands {} and {} differ in type", a.ty, b.ty)));
        }
        let is_logic = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
        let is_bool = a.ty.data_type == DataType::Bool;
        if is_logic != is_bool && op != BinaryOp::Equal {
            return Err(self.view.error(format!("operands of type {} are not supported", a.ty.data_type)));
        }
        let shape = broadcast_shapes(&self.view, &a.ty.shape, &b.ty.shape)?;
        let data_type = if op.is_comparison() { DataType::Bool } else { a.ty.data_type };
        let kernel = Kernel::Binary { op, activation: Activation::None };
        Ok(self.kernel(kernel, &[a, b], TensorType { data_type, shape }))
    }

    /// Elements of `a` where the condition holds, else of `b`; all three are broadcast to each other.
    pub(crate) fn select(&mut self, condition: &Part, a: &Part, b: &Part) -> Result<Part, ModelError> {
        if condition.ty.data_type != DataType::Bool || a.ty.data_type != b.ty.data_type {
            let reason = format!(
                "expected a bool condition and two operands of the same type, found {condition_type}, {a_type} and \
                 {b_type}",
                condition_type = condition.ty,
                a_type = a.ty,
                b_type = b.ty
            );
            return Err(self.view.error(reason));
        }
        let shape = broadcast_shapes(&self.view, &a.ty.shape, &b.ty.shape)?;
        let shape = broadcast_shapes(&self.view, &condition.ty.shape, &shape)?;
        Ok(self.kernel(Kernel::Select, &[condition, a, b], TensorType { data_type: a.ty.data_type, shape }))
    }

    /// Converts to another element type; returns the same part if it already has that type.
    pub(crate) fn cast(&mut self, x: &Part, data_type: DataType) -> Part {
        self.convert(x, data_type, Narrowing::default())
    }

    /// Does the same; `narrowing` determines the conversion to 8-bit floating-point types.
    pub(crate) fn convert(&mut self, x: &Part, data_type: DataType, narrowing: Narrowing) -> Part {
        if x.ty.data_type == data_type {
            return x.clone();
        }
        self.kernel(Kernel::Cast(narrowing), &[x], TensorType::new(data_type, &x.ty.shape))
    }

    /// Changes the shape, with the same number of elements. This is only a view, not a step.
    pub(crate) fn reshape(&self, x: &Part, shape: &[u64]) -> Result<Part, ModelError> {
        let ty = TensorType::new(x.ty.data_type, shape);
        let count = |shape: &[u64]| shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        if count(&x.ty.shape).is_none() {
            return Err(self.view.error(format!("{} has more elements than 64 bits can count", x.ty)));
        }
        if count(shape) != count(&x.ty.shape) {
            return Err(self.view.error(format!("cannot reshape {} to {ty}: the numbers of elements differ", x.ty)));
        }
        Ok(Part { source: x.source, ty })
    }

    /// Reorders dimensions; a view if only dimensions of size 1 move.
    pub(crate) fn transpose(&mut self, x: &Part, permutation: &[usize]) -> Result<Part, ModelError> {
        let shape: Vec<u64> = permutation.iter().map(|&axis| x.ty.shape[axis]).collect();
        let moving: Vec<usize> = permutation.iter().copied().filter(|&axis| x.ty.shape[axis] != 1).collect();
        if moving.is_sorted() {
            return self.reshape(x, &shape);
        }
        let output = TensorType::new(x.ty.data_type, &shape);
        Ok(self.push(Action::Transpose(permutation.to_vec()), &[x], &[output]).remove(0))
    }

    /// Broadcasts to a shape; a view if nothing is repeated.
    pub(crate) fn expand(&mut self, x: &Part, shape: &[u64]) -> Result<Part, ModelError> {
        if broadcast_shapes(&self.view, &x.ty.shape, shape)? != shape {
            return Err(self.view.error(format!("{} does not broadcast to {shape:?}", x.ty)));
        }
        let output = TensorType::new(x.ty.data_type, shape);
        if output.count() == x.ty.count() {
            return self.reshape(x, shape);
        }
        Ok(self.push(Action::Expand, &[x], &[output]).remove(0))
    }

    /// Every `step`th element of an axis, `count` of them starting at `start`.
    pub(crate) fn strided(
        &mut self,
        x: &Part,
        axis: usize,
        (start, count, step): (u64, u64, u64),
    ) -> Result<Part, ModelError> {
        let size = x.ty.shape.get(axis).copied().unwrap_or(0);
        if start == 0 && count == size && step == 1 {
            return Ok(x.clone());
        }
        let last = count.saturating_sub(1).checked_mul(step).and_then(|span| span.checked_add(start));
        let Some((step, _)) = i64::try_from(step).ok().zip(last.filter(|&last| last < size || count == 0)) else {
            let reason =
                format!("{count} elements from {start} in steps of {step} are not within axis {axis} of {}", x.ty);
            return Err(self.view.error(reason));
        };
        let rank = x.ty.shape.len();
        let (mut starts, mut steps, mut output) = (vec![0; rank], vec![1; rank], x.ty.clone());
        (starts[axis], steps[axis], output.shape[axis]) = (start, step, count);
        Ok(self.kernel(Kernel::Slice { starts, steps }, &[x], output))
    }

    /// `count` elements of an axis, starting at `start`.
    pub(crate) fn slice(&mut self, x: &Part, axis: usize, start: u64, count: u64) -> Result<Part, ModelError> {
        self.strided(x, axis, (start, count, 1))
    }

    /// Concatenates parts along an axis; those without elements are left out.
    pub(crate) fn concatenate(&mut self, parts: &[&Part], axis: usize) -> Result<Part, ModelError> {
        let others = |part: &Part| {
            let mut ty = part.ty.clone();
            ty.shape.get_mut(axis).map(|size| *size = 1).map(|()| ty)
        };
        let Some(&first) = parts.first() else { return Err(self.view.error("there is nothing to join")) };
        let expected = others(first);
        if let Some(part) = parts.iter().find(|part| expected.is_none() || others(part) != expected) {
            return Err(self.view.error(format!("{} and {} cannot be joined along axis {axis}", first.ty, part.ty)));
        }
        let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.ty.shape[axis]));
        let mut output = first.ty.clone();
        output.shape[axis] = sum.ok_or_else(|| self.view.error(format!("the sizes along axis {axis} overflow")))?;
        let full: Vec<&Part> = parts.iter().copied().filter(|part| part.ty.shape[axis] > 0).collect();
        match full.as_slice() {
            [] => Ok(first.clone()),
            [only] => Ok((*only).clone()),
            _ => Ok(self.push(Action::Concatenate(axis), &full, &[output]).remove(0)),
        }
    }

    /// A reduction that keeps the reduced axes with size 1. The maximum and minimum of booleans are computed as integers. The reduction of
    /// no elements is a constant.
    pub(crate) fn reduce(&mut self, op: ReduceOp, axes: &[usize], x: &Part) -> Result<Part, ModelError> {
        if axes.iter().any(|&axis| x.ty.shape[axis] == 0) {
            return Ok(self.reduce_nothing(op, axes, x));
        }
        if x.ty.data_type == DataType::Bool {
            if !matches!(op, ReduceOp::Max | ReduceOp::Min) {
                return Err(self.view.error(format!("operands of type {} are not supported", x.ty.data_type)));
            }
            let integers = self.cast(x, DataType::Int32);
            let extreme = self.reduce(op, axes, &integers)?;
            return Ok(self.cast(&extreme, DataType::Bool));
        }
        let mut output = x.ty.clone();
        for &axis in axes {
            output.shape[axis] = 1;
        }
        if !axes.is_empty() {
            return Ok(self.kernel(Kernel::Reduce { op, axes: axes.to_vec() }, &[x], output));
        }
        match op {
            ReduceOp::L1 | ReduceOp::L2 => self.unary(UnaryOp::Abs, x),
            ReduceOp::SumSquare => self.binary(BinaryOp::Multiply, x, x),
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min | ReduceOp::Product => Ok(x.clone()),
        }
    }

    /// The result of a reduction of no elements.
    fn reduce_nothing(&mut self, op: ReduceOp, axes: &[usize], x: &Part) -> Part {
        let mut output = x.ty.clone();
        for &axis in axes {
            output.shape[axis] = 1;
        }
        let (least, largest) = match x.ty.data_type {
            DataType::Bool => (0.0, 1.0),
            data_type if data_type.is_float() => (f64::NEG_INFINITY, f64::INFINITY),
            data_type => {
                let bits = 8 * data_type.size_bytes() as i32;
                let is_unsigned =
                    matches!(data_type, DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64);
                let half = 2f64.powi(bits - 1);
                if is_unsigned { (0.0, 2.0 * half - 1.0) } else { (-half, half - 1.0) }
            }
        };
        let value = match op {
            ReduceOp::Sum | ReduceOp::L1 | ReduceOp::L2 | ReduceOp::SumSquare => 0.0,
            ReduceOp::Product => 1.0,
            ReduceOp::Mean => f64::NAN,
            ReduceOp::Max => least,
            ReduceOp::Min => largest,
        };
        self.kernel(Kernel::Fill { value }, &[], output)
    }

    /// The decomposition with this one result.
    pub(crate) fn finish(self, output: Part) -> Result<Decomposition, ModelError> {
        self.finish_all(vec![output])
    }

    /// The decomposition with these results.
    pub(crate) fn finish_all(self, outputs: Vec<Part>) -> Result<Decomposition, ModelError> {
        Ok(Decomposition { constants: self.constants, steps: self.steps, outputs })
    }

    fn push(&mut self, action: Action, inputs: &[&Part], outputs: &[TensorType]) -> Vec<Part> {
        let inputs = inputs.iter().map(|&part| part.clone()).collect();
        self.steps.push(Step { action, inputs, outputs: outputs.to_vec() });
        let step = self.steps.len() - 1;
        let part = |(i, ty): (usize, &TensorType)| Part { source: Source::Step(step, i), ty: ty.clone() };
        outputs.iter().enumerate().map(part).collect()
    }
}

impl Decomposition {
    /// The index of the node's output that is output `i` of step `step`, if the node has such an output.
    fn node_output(&self, node: &Node, step: usize, i: usize) -> Option<usize> {
        let is_it = |part: &Part| part.source == Source::Step(step, i);
        let output = self.outputs.iter().position(is_it)?;
        matches!(node.outputs.get(output), Some(Some(_))).then_some(output)
    }
}

/// Infers the types of an operator's outputs.
pub(super) fn infer(view: &NodeView, compose: Compose) -> Result<Vec<TensorType>, ModelError> {
    Ok(compose(*view)?.outputs.into_iter().map(|part| part.ty).collect())
}

/// Computes an operator's outputs on the host, if all its steps can be computed there.
pub(super) fn evaluate(
    view: &NodeView,
    inputs: &[Option<&Tensor>],
    compose: Compose,
) -> Result<Option<Vec<Tensor>>, ModelError> {
    let decomposition = compose(*view)?;
    let mut results: Vec<Tensor> = Vec::new();
    for step in &decomposition.steps {
        let operands: Option<Vec<Tensor>> =
            step.inputs.iter().map(|part| decomposition.tensor(part, inputs, &results)).collect();
        let result = operands.and_then(|operands| match step.outputs.as_slice() {
            [output] => evaluate::run(&step.action, &operands, output),
            _ => None,
        });
        let Some(result) = result else { return Ok(None) };
        results.push(result);
    }
    Ok(decomposition.outputs.iter().map(|part| decomposition.tensor(part, inputs, &results)).collect())
}

impl Decomposition {
    fn tensor(&self, part: &Part, inputs: &[Option<&Tensor>], results: &[Tensor]) -> Option<Tensor> {
        let tensor = match part.source {
            Source::Input(i) => (*inputs.get(i)?)?,
            Source::Constant(i) => &self.constants[i],
            Source::Step(step, _) => &results[step],
        };
        // The bytes are shared, not copied.
        tensor.clone().reshaped(&part.ty.shape).filter(|tensor| tensor.data_type() == part.ty.data_type)
    }
}

/// Emits an operator's steps.
pub(super) fn lower(view: &NodeView, lowering: &mut Lowering, compose: Compose) -> Result<(), ModelError> {
    let decomposition = compose(*view)?;
    let mut results: Vec<Vec<Operand>> = Vec::new();
    for (i, step) in decomposition.steps.iter().enumerate() {
        // Tensors without elements are not computed, and no tensor with elements depends on them.
        if step.outputs.iter().all(|ty| ty.count() == 0) {
            results.push(Vec::new());
            continue;
        }
        let mut reads = Vec::with_capacity(step.inputs.len());
        for part in &step.inputs {
            let operand = decomposition.operand(view, lowering, part, &results)?;
            reads.push(reshaped(view, &operand, &part.ty)?);
        }
        let mut writes = Vec::with_capacity(step.outputs.len());
        for (k, ty) in step.outputs.iter().enumerate() {
            let operand = match decomposition.node_output(view.node, i, k) {
                Some(output) => lowering.output(view, output)?,
                None => lowering.temporary(&view.node.label(view.graph), ty)?,
            };
            writes.push(reshaped(view, &operand, ty)?);
        }
        results.push(writes.clone());
        if let Action::Concatenate(axis) = step.action {
            lowering.join(view, reads, &writes[0], axis)?;
            continue;
        }
        let kernel = step.device_kernel(view, &mut reads, &writes)?;
        lowering.launch(view, kernel, reads, writes);
    }
    for (i, part) in decomposition.outputs.iter().enumerate() {
        let is_bound = match part.source {
            Source::Step(step, k) => decomposition.node_output(view.node, step, k) == Some(i),
            _ => false,
        };
        if matches!(view.node.outputs.get(i), Some(Some(_))) && !is_bound {
            let operand = decomposition.operand(view, lowering, part, &results)?;
            lowering.view(view, i, &operand, 0)?;
        }
    }
    Ok(())
}

impl Decomposition {
    fn operand(
        &self,
        view: &NodeView,
        lowering: &mut Lowering,
        part: &Part,
        results: &[Vec<Operand>],
    ) -> Result<Operand, ModelError> {
        match part.source {
            Source::Input(i) => lowering.input(view, i),
            Source::Constant(i) => lowering.constant(&view.node.label(view.graph), self.constants[i].clone()),
            Source::Step(step, k) => {
                let operand = results[step].get(k).cloned();
                operand.ok_or_else(|| view.error(format!("{} has no elements to compute with", part.ty)))
            }
        }
    }
}

impl Step {
    /// The kernel that performs this step on a device. Sets the strides of operands that it broadcasts or permutes.
    fn device_kernel(&self, view: &NodeView, reads: &mut [Operand], writes: &[Operand]) -> Result<Kernel, ModelError> {
        let sizes = writes[0].desc.sizes();
        let broadcast = |read: &mut Operand| -> Result<(), ModelError> {
            *read = broadcast(read, sizes).map_err(|error| view.error(error.to_string()))?;
            Ok(())
        };
        match &self.action {
            Action::Kernel(kernel) => {
                check_types(view, kernel, reads, writes)?;
                let broadcasts = kernel.facts().broadcast_from.unwrap_or(reads.len());
                for read in reads.iter_mut().skip(broadcasts) {
                    broadcast(read)?;
                }
                Ok(kernel.clone())
            }
            Action::Expand => {
                broadcast(&mut reads[0])?;
                Ok(Kernel::Copy)
            }
            Action::Concatenate(_) => Err(view.error("a concatenation is not a single kernel")),
            Action::Transpose(permutation) => {
                let strides = packed_strides(reads[0].desc.sizes());
                let strides: Vec<u64> = permutation.iter().map(|&axis| strides[axis]).collect();
                let desc = TensorDesc::strided(reads[0].desc.data_type(), sizes, &strides);
                reads[0].desc = desc.map_err(|error| view.error(error.to_string()))?;
                Ok(Kernel::Copy)
            }
        }
    }
}

/// Checks that a kernel supports the types of a launch's operands.
pub(crate) fn check_types(
    view: &NodeView,
    kernel: &Kernel,
    reads: &[Operand],
    writes: &[Operand],
) -> Result<(), ModelError> {
    let types = |operands: &[Operand]| operands.iter().map(|one| one.desc.data_type()).collect::<Vec<DataType>>();
    let (reads, writes) = (types(reads), types(writes));
    if let Some(data_type) = reads.first().filter(|&&first| !kernel.facts().take(first)) {
        return Err(view.error(format!("{} is not supported in {data_type}; cast to float32 first", kernel.name())));
    }
    let error =
        |reason| view.error(format!("{} (operands counted from 0): {reason}; convert it with Cast", kernel.name()));
    kernel.check_types(&reads, &writes).map_err(error)
}

/// The same bytes with another shape; a scalar becomes [1].
fn reshaped(view: &NodeView, operand: &Operand, ty: &TensorType) -> Result<Operand, ModelError> {
    let sizes: &[u64] = if ty.shape.is_empty() { &[1] } else { &ty.shape };
    let desc = TensorDesc::packed(ty.data_type, sizes).map_err(|error| view.error(error.to_string()))?;
    Ok(Operand { desc, ..operand.clone() })
}

/// Computes the gradients of an operator's inputs by going back through its steps.
pub(super) fn gradient(
    builder: &mut GradientBuilder,
    node: &Node,
    d_outputs: &[Option<ValueId>],
    compose: Compose,
) -> Result<Vec<Option<ValueId>>, ModelError> {
    let decomposition = compose(NodeView { graph: builder.graph, node })?;
    let values = decomposition.forward_values(builder, node);
    let needed = decomposition.needed_steps(builder, node);
    let mut d_inputs = vec![None; node.inputs.len()];
    let mut d_steps: Vec<Vec<Option<ValueId>>> =
        decomposition.steps.iter().map(|step| vec![None; step.outputs.len()]).collect();
    let mut add = |builder: &mut GradientBuilder, part: &Part, d_steps: &mut [Vec<Option<ValueId>>], d: ValueId| {
        let (slot, shape) = match part.source {
            Source::Input(i) if builder.needs(node, i) => {
                (&mut d_inputs[i], node.inputs[i].map(|input| builder.ty(input).shape))
            }
            Source::Step(step, k) if needed[step] => {
                (&mut d_steps[step][k], Some(decomposition.steps[step].outputs[k].shape.clone()))
            }
            _ => return,
        };
        let d = shape.map_or(d, |shape| builder.reshape(d, &shape));
        *slot = Some(builder.accumulate(*slot, d));
    };
    for (part, d) in decomposition.outputs.iter().zip(d_outputs) {
        if let Some(d) = d {
            add(builder, part, &mut d_steps, *d);
        }
    }
    for (i, step) in decomposition.steps.iter().enumerate().rev() {
        if !needed[i] || d_steps[i].iter().all(Option::is_none) {
            continue;
        }
        let inputs: Vec<ValueId> =
            step.inputs.iter().map(|part| decomposition.value(builder, node, part, &values)).collect();
        let application = Application {
            action: &step.action,
            inputs: &inputs,
            outputs: &values[i],
            gradients: &d_steps[i].clone(),
            needs: &step
                .inputs
                .iter()
                .map(|part| decomposition.needs(builder, node, &needed, part))
                .collect::<Vec<_>>(),
        };
        let error = |builder: &GradientBuilder| ModelError::NoGradient {
            op_type: node.operation.name().to_string(),
            node: node.label(builder.graph),
        };
        let gradients = application.gradients(builder).ok_or_else(|| error(builder))?;
        for (part, d) in step.inputs.iter().zip(gradients) {
            if let Some(d) = d {
                add(builder, part, &mut d_steps, d);
            }
        }
    }
    Ok(d_inputs)
}

impl Decomposition {
    /// The values of every step: outputs of the node that hold them, rounded or not; otherwise they are recomputed.
    fn forward_values(&self, builder: &mut GradientBuilder, node: &Node) -> Vec<Vec<ValueId>> {
        let mut values: Vec<Vec<ValueId>> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            let kept: Option<Vec<ValueId>> = (0..step.outputs.len())
                .map(|k| self.node_output(node, i, k).and_then(|output| node.outputs[output]))
                .collect();
            let step_values = match (kept, self.rounded(node, i)) {
                (Some(kept), _) => {
                    kept.iter().zip(&step.outputs).map(|(&value, ty)| builder.reshape(value, &ty.shape)).collect()
                }
                (None, Some(rounded)) => {
                    let rounded = builder.reshape(rounded, &step.outputs[0].shape);
                    vec![builder.one(Kernel::cast(), &[rounded], step.outputs[0].clone())]
                }
                (None, None) => {
                    let inputs: Vec<ValueId> =
                        step.inputs.iter().map(|part| self.value(builder, node, part, &values)).collect();
                    builder.action(&step.action, &inputs, &step.outputs)
                }
            };
            values.push(step_values);
        }
        values
    }

    /// The node's output that is a step's result rounded to 16 bits. It is kept for later nodes anyway, so the gradient uses it too.
    fn rounded(&self, node: &Node, step: usize) -> Option<ValueId> {
        let [ty] = self.steps[step].outputs.as_slice() else { return None };
        if ty.data_type != DataType::Float32 {
            return None;
        }
        let rounds = |next: &usize| {
            let Step { action, inputs, outputs, .. } = &self.steps[*next];
            let is_cast = matches!(action, Action::Kernel(Kernel::Cast { .. }));
            let is_of_step =
                matches!(inputs.as_slice(), [part] if matches!(part.source, Source::Step(of, 0) if of == step));
            is_cast && is_of_step && matches!(outputs.as_slice(), [ty] if ty.data_type.is_sixteen_bit())
        };
        let next = (step + 1..self.steps.len()).find(rounds)?;
        node.outputs[self.node_output(node, next, 0)?]
    }

    fn value(&self, builder: &mut GradientBuilder, node: &Node, part: &Part, values: &[Vec<ValueId>]) -> ValueId {
        let value = match part.source {
            Source::Input(i) => node.inputs[i].expect("composing asked for the type of this input"),
            Source::Constant(i) => builder.constant(self.constants[i].clone()),
            Source::Step(step, k) => values[step][k],
        };
        builder.reshape(value, &part.ty.shape)
    }

    /// For each step, whether it depends on an input of the node whose gradient is wanted.
    fn needed_steps(&self, builder: &GradientBuilder, node: &Node) -> Vec<bool> {
        let mut needed = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let is_needed = step.inputs.iter().any(|part| self.needs(builder, node, &needed, part));
            needed.push(is_needed);
        }
        needed
    }

    fn needs(&self, builder: &GradientBuilder, node: &Node, needed: &[bool], part: &Part) -> bool {
        match part.source {
            Source::Input(i) => builder.needs(node, i),
            Source::Constant(_) => false,
            Source::Step(step, _) => needed[step],
        }
    }
}

/// A row whose functions all come from its decomposition. The domain is the default one if none is named.
macro_rules! composed {
    ($op_type:literal, $compose:expr) => {
        $crate::operators::decomposition::composed!("", $op_type, $compose)
    };
    ($domain:expr, $op_type:literal, $compose:expr) => {
        $crate::operator::Operator {
            domain: $domain,
            op_type: $op_type,
            infer: |view| $crate::operators::decomposition::infer(view, $compose),
            evaluate: Some(|view, inputs| $crate::operators::decomposition::evaluate(view, inputs, $compose)),
            lower: |view, lowering| $crate::operators::decomposition::lower(view, lowering, $compose),
            gradient: $crate::operator::Gradient::Function(|builder, node, d_outputs| {
                $crate::operators::decomposition::gradient(builder, node, d_outputs, $compose)
            }),
        }
    };
}
pub(super) use composed;
