//! Operations on tensors: operators as methods.

use forebay_model::graph::Attribute;
use forebay_model::{Tensor, TensorType};

use super::context::Context;
use super::operation::{Input, Operation};
use super::tensor::DeviceTensor;
use crate::error::RuntimeError;

/// Common operations. For all others, use [`Context::operation`].
///
/// Each goes to the current stream and returns at once. It fails if shapes or types do not fit, if tensors belong to different contexts, if
/// memory runs out, or if the device fails.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($input:ident),*) = $op_type:literal;)*) => {
        impl DeviceTensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Fails if operands do not fit, if tensors belong to different contexts, if memory runs out, or if the device fails.
            #[allow(clippy::needless_lifetimes, reason = "some operations have inputs")]
            pub fn $name<'a>(&'a self, $($input: impl Into<Input<'a>>),*) -> Result<DeviceTensor, RuntimeError> {
                self.operation($op_type)$(.input($input))*.run_single()
            })*
        }
    };
}

operations! {
    /// self + other, with broadcasting; `other` is a tensor, a number or an array.
    add(other) = "Add";
    /// self - other, with broadcasting.
    sub(other) = "Sub";
    /// self x other, with broadcasting.
    mul(other) = "Mul";
    /// self / other, with broadcasting.
    div(other) = "Div";
    /// Matrix product over the last two dimensions, with broadcasting of the others.
    matmul(other) = "MatMul";
    /// max(self, 0).
    relu() = "Relu";
    /// e to the power of self.
    exp() = "Exp";
    /// Square root.
    sqrt() = "Sqrt";
    /// Hyperbolic tangent.
    tanh() = "Tanh";
    /// 1 / (1 + e to the power of -self).
    sigmoid() = "Sigmoid";
}

impl DeviceTensor {
    /// The sum of all elements, as a scalar.
    ///
    /// # Errors
    /// Fails if memory runs out, or if the device fails.
    pub fn sum(&self) -> Result<DeviceTensor, RuntimeError> {
        self.operation("ReduceSum").attribute("keepdims", Attribute::Int(0)).run_single()
    }

    /// Cross-correlation with a weight (output channels, input channels, extents...), with stride 1 and without padding. For others, use
    /// `context.operation("Conv")`.
    ///
    /// # Errors
    /// Fails if shapes or types do not fit, if memory runs out, or if the device fails.
    pub fn convolution(&self, weight: &DeviceTensor) -> Result<DeviceTensor, RuntimeError> {
        self.operation("Conv").input(weight).run_single()
    }

    /// Returns the same elements, in the same order, with different sizes.
    ///
    /// # Errors
    /// Fails if the sizes hold a different number of elements, if memory runs out, or if the device fails.
    pub fn reshape(&self, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let sizes: Vec<i64> = shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
        let sizes = Tensor::from_i64(&[sizes.len() as u64], &sizes);
        // A size of 0 is itself, not the tensor's former one.
        self.operation("Reshape").input(sizes).attribute("allowzero", Attribute::Int(1)).run_single()
    }

    /// Returns the tensor with its dimensions in another order.
    ///
    /// # Errors
    /// Fails if the order is not a permutation of the dimensions, if memory runs out, or if the device fails.
    pub fn transpose(&self, order: &[i64]) -> Result<DeviceTensor, RuntimeError> {
        self.operation("Transpose").attribute("perm", Attribute::Ints(order.to_vec())).run_single()
    }
}

impl DeviceTensor {
    /// Creates a tensor whose elements all have the value of an array of one element.
    ///
    /// # Errors
    /// Fails if the array has several elements, if memory runs out, or if the device fails.
    pub fn full(context: &Context, shape: &[u64], value: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        if pattern(value)?.is_none() {
            let sizes: Vec<i64> = shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
            let sizes = Tensor::from_i64(&[sizes.len() as u64], &sizes);
            return context.operation("Expand").input(value.clone()).input(sizes).run_single();
        }
        let stream = context.current_stream();
        let tensor = DeviceTensor::uninitialized(context, &stream, TensorType::new(value.data_type(), shape), "full")?;
        tensor.fill(value)?;
        Ok(tensor)
    }

    /// Overwrites all elements with the value of an array of one element, on the current stream. All tensors that share the bytes change.
    ///
    /// # Errors
    /// Fails if the types differ, if the array has several elements, if memory runs out, or if the device fails.
    pub fn fill(&self, value: &Tensor) -> Result<(), RuntimeError> {
        if value.data_type() != self.data_type() {
            return Err(RuntimeError::Tensor { reason: format!("{} cannot be filled with {}", self.ty(), value.ty()) });
        }
        match pattern(value)? {
            Some(pattern) => self.slice().fill_as(pattern, "fill"),
            // An element of more than four bytes.
            None => self.copy_from(&DeviceTensor::full(self.context(), self.shape(), value)?),
        }
    }

    fn operation<'a>(&'a self, op_type: &str) -> Operation<'a> {
        self.context().operation(op_type).input(self)
    }
}

/// The four bytes whose repetition fills memory with an array's only element, or `None` if the element has more bytes and they do not
/// repeat.
fn pattern(value: &Tensor) -> Result<Option<[u8; 4]>, RuntimeError> {
    let element = &value.bytes();
    if element.is_empty() || element.len() as u64 != value.data_type().size_bytes() {
        return Err(RuntimeError::Tensor { reason: format!("{} does not have exactly one element", value.ty()) });
    }
    let mut pattern = [0; 4];
    pattern.iter_mut().enumerate().for_each(|(i, byte)| *byte = element[i % element.len()]);
    Ok(element.chunks(4).all(|group| pattern.starts_with(group)).then_some(pattern))
}
