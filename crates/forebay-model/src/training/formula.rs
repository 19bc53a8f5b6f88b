//! Formulas as nodes: the building blocks of losses and updates, on top of those of gradients.

use std::ops::{Deref, DerefMut};

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use crate::context::GradientBuilder;
use crate::graph::{Graph, TensorType, ValueId};
use crate::infer::infer_node;

/// Appends float32 nodes to a graph. The builder's methods are available as well.
pub(super) struct Formula<'a>(GradientBuilder<'a>);

impl<'a> Deref for Formula<'a> {
    type Target = GradientBuilder<'a>;

    fn deref(&self) -> &GradientBuilder<'a> {
        &self.0
    }
}

impl<'a> DerefMut for Formula<'a> {
    fn deref_mut(&mut self) -> &mut GradientBuilder<'a> {
        &mut self.0
    }
}

impl<'a> Formula<'a> {
    /// Creates a formula at the end of a graph; the names of new values begin with `prefix`.
    pub(super) fn new(graph: &'a mut Graph, prefix: &'a str) -> Formula<'a> {
        Formula(GradientBuilder::without_gradients(graph, infer_node, prefix))
    }

    /// Returns scale x + shift.
    pub(super) fn affine(&mut self, x: ValueId, scale: f32, shift: f32) -> ValueId {
        self.unary(UnaryOp::Affine { scale, shift }, x)
    }

    pub(super) fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(BinaryOp::Add, a, b)
    }

    pub(super) fn subtract(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(BinaryOp::Subtract, a, b)
    }

    pub(super) fn multiply(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(BinaryOp::Multiply, a, b)
    }

    pub(super) fn divide(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.binary(BinaryOp::Divide, a, b)
    }

    /// Returns x raised to a power that is the same for all elements.
    pub(super) fn power(&mut self, x: ValueId, exponent: f32) -> ValueId {
        match exponent {
            1.0 => x,
            2.0 => self.multiply(x, x),
            _ => {
                let exponent = self.number(exponent);
                self.binary(BinaryOp::Power, x, exponent)
            }
        }
    }

    /// Returns a constant to broadcast.
    pub(super) fn number(&mut self, value: f32) -> ValueId {
        self.constant(Tensor::from_f32(&[], &[value]))
    }

    /// Converts x to float32.
    pub(super) fn floats(&mut self, x: ValueId) -> ValueId {
        let ty = self.ty(x);
        if ty.data_type == DataType::Float32 {
            return x;
        }
        self.one(Kernel::cast(), &[x], TensorType { data_type: DataType::Float32, ..ty })
    }

    /// Returns the sum of all elements, of shape []. It is a sum over positions in reduction blocks, so it can be computed in parts.
    pub(super) fn total(&mut self, x: ValueId) -> ValueId {
        let shape = self.ty(x).shape;
        let (&images, places) = shape.split_first().unwrap_or((&1, &[]));
        let (&rows, row) = places.split_first().unwrap_or((&1, &[]));
        let images = self.reshape(x, &[images, 1, rows, row.iter().product()]);
        let sum = self.sum(images, &[0, 2, 3]);
        self.reshape(sum, &[])
    }

    /// Returns the mean of all elements, of shape [].
    pub(super) fn mean(&mut self, x: ValueId) -> ValueId {
        let count = self.ty(x).count();
        let sum = self.total(x);
        self.scaled(sum, (1.0 / count as f64) as f32)
    }
}
