//! The building blocks of gradients: small graphs of kernels and views, with typed values.

use std::collections::BTreeMap;

use forebay_base::kernel::{Activation, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use crate::action::Action;
use crate::context::GradientBuilder;
use crate::graph::{Attribute, NEWEST_OPSET, Node, Operation, TensorType, ValueId};

impl GradientBuilder<'_> {
    /// Adds a constant, which never trains.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        let value = self.graph.add_initializer(&format!("{}.constant", self.prefix), tensor);
        self.graph.constants.insert(value);
        value
    }

    /// Returns a tensor with every element equal to `value`.
    pub fn fill(&mut self, value: f64, ty: &TensorType) -> ValueId {
        self.one(Kernel::Fill { value }, &[], ty.clone())
    }

    /// Appends a kernel with one output.
    pub fn one(&mut self, kernel: Kernel, inputs: &[ValueId], output: TensorType) -> ValueId {
        self.kernel(kernel.name(), kernel.clone(), inputs, &[output]).remove(0)
    }

    /// Applies a function of one variable.
    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let ty = self.ty(x);
        self.one(Kernel::Unary(op), &[x], ty)
    }

    /// Returns `scale` times x, or x itself if that is the same.
    pub fn scaled(&mut self, x: ValueId, scale: f32) -> ValueId {
        if scale == 1.0 {
            return x;
        }
        self.unary(UnaryOp::Affine { scale, shift: 0.0 }, x)
    }

    /// Applies a function of two variables, one of which broadcasts to the other.
    ///
    /// # Panics
    /// If the shapes do not broadcast: gradients are built for operands that do.
    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let (mut ty, other) = (self.ty(a), self.ty(b).shape);
        ty.shape = broadcast(&ty.shape, &other);
        if op.is_comparison() {
            ty.data_type = DataType::Bool;
        }
        self.one(Kernel::Binary { op, activation: Activation::None }, &[a, b], ty)
    }

    /// Returns elements of `a` where the condition holds and of `b` elsewhere.
    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.ty(a);
        let shape = broadcast(&broadcast(&ty.shape, &self.ty(b).shape), &self.ty(condition).shape);
        self.one(Kernel::Select, &[condition, a, b], TensorType { data_type: ty.data_type, shape })
    }

    /// Returns 0 in the type of a value, to broadcast.
    pub fn zero(&mut self, like: ValueId) -> ValueId {
        let data_type = self.ty(like).data_type;
        let bytes = vec![0; data_type.size_bytes() as usize];
        self.constant(Tensor::new(data_type, &[], bytes).expect("one element"))
    }

    /// Adds a gradient of a value to the sum of earlier ones, which may not exist yet.
    pub fn accumulate(&mut self, sum: Option<ValueId>, d: ValueId) -> ValueId {
        match sum {
            None => d,
            Some(sum) => self.binary(BinaryOp::Add, sum, d),
        }
    }

    /// Returns a view of another shape, or the value itself if it has that shape.
    pub fn reshape(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        let ty = self.ty(x);
        if ty.shape == shape {
            return x;
        }
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let target = self.ints(&sizes);
        self.operator(
            "Reshape",
            &[x, target],
            &[("allowzero", Attribute::Int(1))],
            TensorType::new(ty.data_type, shape),
        )
    }

    /// Reorders dimensions.
    pub fn transpose(&mut self, x: ValueId, permutation: &[usize]) -> ValueId {
        let ty = self.ty(x);
        let shape: Vec<u64> = permutation.iter().map(|&axis| ty.shape[axis]).collect();
        let attribute = Attribute::Ints(permutation.iter().map(|&axis| axis as i64).collect());
        self.operator("Transpose", &[x], &[("perm", attribute)], TensorType::new(ty.data_type, &shape))
    }

    /// Broadcasts x to a shape and multiplies it by `scale`.
    pub fn expand_scaled(&mut self, x: ValueId, shape: &[u64], scale: f32) -> ValueId {
        let ty = self.ty(x);
        if ty.shape == shape {
            return self.scaled(x, scale);
        }
        self.one(Kernel::Unary(UnaryOp::Affine { scale, shift: 0.0 }), &[x], TensorType::new(ty.data_type, shape))
    }

    /// Returns the sum over everything that broadcasting `shape` to the shape of x repeats.
    pub fn sum_to(&mut self, x: ValueId, shape: &[u64]) -> ValueId {
        let ty = self.ty(x);
        let added = ty.shape.len().saturating_sub(shape.len());
        let repeated = |&axis: &usize| axis < added || shape[axis - added] != ty.shape[axis];
        let axes: Vec<usize> = (0..ty.shape.len()).filter(repeated).collect();
        let sum = self.sum(x, &axes);
        self.reshape(sum, shape)
    }

    /// Returns the sum along some axes, which are kept with size 1.
    pub fn sum(&mut self, x: ValueId, axes: &[usize]) -> ValueId {
        if axes.iter().all(|&axis| self.ty(x).shape[axis] == 1) {
            return x;
        }
        let mut ty = self.ty(x);
        for &axis in axes {
            ty.shape[axis] = 1;
        }
        self.one(Kernel::Reduce { op: ReduceOp::Sum, axes: axes.to_vec() }, &[x], ty)
    }

    /// Splits x along an axis; returns `None` for the parts that are not wanted.
    pub fn split(&mut self, x: ValueId, axis: usize, sizes: &[u64], wanted: &[bool]) -> Vec<Option<ValueId>> {
        let ty = self.ty(x);
        let target = self.ints(&sizes.iter().map(|&size| size as i64).collect::<Vec<_>>());
        let name = format!("{}.Split", self.prefix);
        let mut parts = Vec::with_capacity(sizes.len());
        for (&size, &is_wanted) in sizes.iter().zip(wanted) {
            let mut part = ty.clone();
            part.shape[axis] = size;
            parts.push(is_wanted.then(|| self.graph.add_value(&name, Some(part))));
        }
        self.graph.nodes.push(Node {
            name,
            operation: Operation::onnx("Split", &[("axis", Attribute::Int(axis as i64))]),
            inputs: vec![Some(x), Some(target)],
            outputs: parts.clone(),
        });
        parts
    }

    /// Concatenates values along an axis.
    pub fn concatenate(&mut self, values: &[ValueId], axis: usize, ty: TensorType) -> ValueId {
        self.operator("Concat", values, &[("axis", Attribute::Int(axis as i64))], ty)
    }

    /// Appends a step of a decomposition as nodes.
    pub(crate) fn action(&mut self, action: &Action, inputs: &[ValueId], outputs: &[TensorType]) -> Vec<ValueId> {
        match action {
            Action::Kernel(kernel) => self.kernel(kernel.name(), kernel.clone(), inputs, outputs),
            Action::Transpose(permutation) => vec![self.transpose(inputs[0], permutation)],
            Action::Concatenate(axis) => vec![self.concatenate(inputs, *axis, outputs[0].clone())],
            Action::Expand => {
                let sizes: Vec<i64> = outputs[0].shape.iter().map(|&size| size as i64).collect();
                let target = self.ints(&sizes);
                vec![self.operator("Expand", &[inputs[0], target], &[], outputs[0].clone())]
            }
        }
    }

    /// Appends an operator whose result type is known. Unlike [`GradientBuilder::onnx`], it never folds.
    fn operator(
        &mut self,
        op_type: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
        ty: TensorType,
    ) -> ValueId {
        let name = format!("{}.{op_type}", self.prefix);
        let output = self.graph.add_value(&name, Some(ty));
        let attributes: BTreeMap<String, Attribute> =
            attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let (domain, version) = (String::new(), NEWEST_OPSET);
        self.graph.nodes.push(Node {
            name,
            operation: Operation::Onnx { domain, op_type: op_type.to_string(), version, attributes },
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        output
    }
}

/// Broadcasts shapes that are known to be compatible, by NumPy's rules.
fn broadcast(a: &[u64], b: &[u64]) -> Vec<u64> {
    let rank = a.len().max(b.len());
    let size = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank).map(|i| if size(a, i) == 1 { size(b, i) } else { size(a, i) }).collect()
}
