//! Tensors on the device.

use std::fmt;

use forebay_base::{DataType, TensorDesc};
use forebay_model::graph::Attribute;
use forebay_model::{Tensor, TensorType};

use super::context::Context;
use super::operation::{Input, Operation};
use super::slice::{Slice, Span};
use super::store::ALIGNMENT_BYTES;
use super::stream::Stream;
use super::timeline::Agent;
use super::transfer;
use crate::error::RuntimeError;

/// A tensor in device memory: packed, row-major. Operations on it go to the thread's current stream and return at once; the
/// host waits only in [`DeviceTensor::to_host`]. Work on one stream comes in order. Between streams, order is the caller's
/// ([`Stream::wait_stream`], [`Event`](super::Event)); memory is not: a tensor may be dropped at any time.
///
/// Cheap to clone: clones share the bytes.
#[derive(Clone)]
pub struct DeviceTensor {
    slice: Slice,
    ty: TensorType,
}

impl DeviceTensor {
    /// A tensor of the current stream, whose bytes are not defined yet.
    pub(super) fn uninitialised(
        context: &Context,
        stream: &Stream,
        ty: TensorType,
        owner: &str,
    ) -> Result<DeviceTensor, RuntimeError> {
        let size_bytes = describe(&ty)?.total_size_bytes();
        let span = Span::new(context, Agent::Queue(stream.queue()), size_bytes, owner)?;
        Ok(DeviceTensor { slice: Slice::new(context, span), ty })
    }

    /// A tensor in the first bytes of a slice.
    pub(super) fn in_slice(slice: &Slice, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let ty = TensorType::new(data_type, shape);
        let size_bytes = describe(&ty)?.total_size_bytes();
        let (start, has_bytes) = (slice.span().range().start, slice.size_bytes());
        if start % ALIGNMENT_BYTES != 0 || size_bytes > has_bytes {
            let reason = format!(
                "{ty} takes {size_bytes} bytes and cannot lie in {has_bytes} bytes from byte {start} of its memory on: it \
                 has to fit, and to begin at a multiple of {ALIGNMENT_BYTES}"
            );
            return Err(RuntimeError::Tensor { reason });
        }
        Ok(DeviceTensor { slice: slice.part(..size_bytes)?, ty })
    }

    /// Copies an array to the device, on the current stream.
    ///
    /// # Errors
    /// An array without elements, no memory, or a failure of the device.
    pub fn from_host(context: &Context, array: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        let (stream, ty) = (context.current_stream(), array.ty());
        let size_bytes = describe(&ty)?.total_size_bytes();
        let (span, _) = transfer::upload(context, &stream, array.bytes(), size_bytes, "from_host")?;
        Ok(DeviceTensor { slice: Slice::new(context, span), ty })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// A shape without elements, no memory, or a failure of the device.
    pub fn zeros(context: &Context, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let stream = context.current_stream();
        let tensor = DeviceTensor::uninitialised(context, &stream, TensorType::new(data_type, shape), "zeros")?;
        tensor.slice.fill_as([0; 4], "zeros")?;
        Ok(tensor)
    }

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
        if value.data_type() != self.ty.data_type {
            return Err(RuntimeError::Tensor { reason: format!("{} cannot be filled with {}", self.ty, value.ty()) });
        }
        match pattern(value)? {
            Some(pattern) => self.slice.fill_as(pattern, "fill"),
            // An element of more than four bytes.
            None => self.copy_from(&DeviceTensor::full(self.context(), &self.ty.shape, value)?),
        }
    }

    /// Copies the tensor to the host, on the current stream, and waits for it. For several tensors: [`Context::to_host`].
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn to_host(&self) -> Result<Tensor, RuntimeError> {
        let mut arrays = self.context().to_host(&[self])?;
        arrays.pop().ok_or_else(|| RuntimeError::Tensor { reason: format!("{} was not read", self.ty) })
    }

    /// Overwrites the tensor, for everybody who shares its bytes, with another's elements, on the current stream.
    ///
    /// # Errors
    /// Another type or shape, another context, or a failure of the device.
    pub fn copy_from(&self, other: &DeviceTensor) -> Result<(), RuntimeError> {
        if !self.context().is(other.context()) {
            return Err(RuntimeError::OtherContext { what: "two tensors" });
        }
        if self.ty != other.ty {
            return Err(RuntimeError::Tensor { reason: format!("{} cannot be copied to {}", other.ty, self.ty) });
        }
        self.slice.copy_from(&other.slice)
    }

    /// Its bytes, whole groups of four.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The bytes that its elements take, without those that fill the last group of four.
    pub(super) fn elements(&self) -> Result<Slice, RuntimeError> {
        self.slice.part(..self.ty.count() * self.ty.data_type.size_bytes())
    }

    /// Sizes in elements; none for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.ty.shape
    }

    /// Element type.
    pub fn data_type(&self) -> DataType {
        self.ty.data_type
    }

    /// The context.
    pub fn context(&self) -> &Context {
        self.slice.context()
    }

    pub(super) fn ty(&self) -> &TensorType {
        &self.ty
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

/// The descriptor of a type; a scalar becomes [1].
pub(super) fn describe(ty: &TensorType) -> Result<TensorDesc, RuntimeError> {
    ty.packed().map_err(|error| RuntimeError::Tensor { reason: format!("{ty}: {error}") })
}

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

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} at {})", self.ty, self.slice.span().region())
    }
}
