//! What is done with tensors: operators by name.

use forebay_model::graph::Attribute;
use forebay_model::{Tensor, TensorType};

use super::context::Context;
use super::operation::{Input, Operation};
use super::tensor::DeviceTensor;
use crate::error::RuntimeError;

/// Common operations. All others: [`Context::operation`].
///
/// Each goes to the current stream and returns at once. Errors: shapes or types that do not fit, tensors of several
/// contexts, no memory, or a failure of the device.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($input:ident),*) = $op_type:literal;)*) => {
        impl DeviceTensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Operands that do not fit, tensors of several contexts, no memory, or a failure of the device.
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
    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// No memory, or a failure of the device.
    pub fn sum(&self) -> Result<DeviceTensor, RuntimeError> {
        self.operation("ReduceSum").attribute("keepdims", Attribute::Int(0)).run_single()
    }

    /// Cross-correlation with a weight (output channels, input channels, extents...), stride 1, without padding. For others:
    /// `context.operation("Conv")`.
    ///
    /// # Errors
    /// Shapes or types that do not fit, no memory, or a failure of the device.
    pub fn convolution(&self, weight: &DeviceTensor) -> Result<DeviceTensor, RuntimeError> {
        self.operation("Conv").input(weight).run_single()
    }

    /// The same elements, in the same order, with other sizes.
    ///
    /// # Errors
    /// Sizes that hold another number of elements, no memory, or a failure of the device.
    pub fn reshape(&self, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let sizes: Vec<i64> = shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
        self.operation("Reshape").input(Tensor::from_i64(&[sizes.len() as u64], &sizes)).run_single()
    }

    /// The dimensions in another order.
    ///
    /// # Errors
    /// An order that is none of the dimensions', no memory, or a failure of the device.
    pub fn transpose(&self, order: &[i64]) -> Result<DeviceTensor, RuntimeError> {
        self.operation("Transpose").attribute("perm", Attribute::Ints(order.to_vec())).run_single()
    }
}

impl DeviceTensor {
    /// A tensor whose elements all have the value of an array of one element.
    ///
    /// # Errors
    /// A shape without elements, an array of several, no memory, or a failure of the device.
    pub fn full(context: &Context, shape: &[u64], value: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        if pattern(value)?.is_none() {
            let sizes: Vec<i64> = shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
            let sizes = Tensor::from_i64(&[sizes.len() as u64], &sizes);
            return context.operation("Expand").input(value.clone()).input(sizes).run_single();
        }
        let stream = context.current_stream();
        let tensor = DeviceTensor::uninitialised(context, &stream, TensorType::new(value.data_type(), shape), "full")?;
        tensor.fill(value)?;
        Ok(tensor)
    }

    /// Overwrites all elements, for everybody who shares the bytes, with the value of an array of one element, on the
    /// current stream.
    ///
    /// # Errors
    /// Another type, an array of several elements, no memory, or a failure of the device.
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

/// The four bytes whose repetition is an array's only element again and again; none where an element has more and other ones.
fn pattern(value: &Tensor) -> Result<Option<[u8; 4]>, RuntimeError> {
    let element = &value.bytes();
    if element.is_empty() || element.len() as u64 != value.data_type().size_bytes() {
        return Err(RuntimeError::Tensor { reason: format!("{} is not one element", value.ty()) });
    }
    let mut pattern = [0; 4];
    pattern.iter_mut().enumerate().for_each(|(i, byte)| *byte = element[i % element.len()]);
    Ok(element.chunks(4).all(|group| pattern.starts_with(group)).then_some(pattern))
}
