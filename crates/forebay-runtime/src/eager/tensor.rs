//! Tensors on the device.

use std::fmt;

use forebay_base::DataType;
use forebay_model::{Tensor, TensorType};
use forebay_sync::race::HostAction;

use super::context::Context;
use super::slice::Slice;
use super::store::ALIGNMENT_BYTES;
use super::stream::Stream;
use super::timeline::Agent;
use super::transfer;
use crate::error::RuntimeError;

/// A tensor in device memory: packed, row-major. Operations on it go to the thread's current stream and return at once; the host waits only
/// in [`DeviceTensor::to_host`]. Work on one stream runs in order. Between streams, the caller ensures the order ([`Stream::wait_stream`],
/// [`Event`](super::Event)), but need not care about memory: a tensor can be dropped at any time.
///
/// Cheap to clone: clones share the bytes.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::Tensor;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]))?;
/// let product = a.matmul(&a)?;
/// assert_eq!(product.to_host()?.to_f32(), Some(vec![7.0, 10.0, 15.0, 22.0]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceTensor {
    slice: Slice,
    ty: TensorType,
}

impl DeviceTensor {
    /// Creates a tensor of the current stream, whose bytes are not defined yet.
    pub(super) fn uninitialized(
        context: &Context,
        stream: &Stream,
        ty: TensorType,
        owner: &str,
    ) -> Result<DeviceTensor, RuntimeError> {
        let size_bytes = space(&ty)?;
        let span = context.span(Agent::Queue(stream.queue()), size_bytes, owner)?;
        Ok(DeviceTensor { slice: Slice::new(context, span), ty })
    }

    /// Creates a tensor in the first bytes of a slice.
    pub(super) fn in_slice(slice: &Slice, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let ty = TensorType::new(data_type, shape);
        let size_bytes = space(&ty)?;
        let (start, has_bytes) = (slice.span().range().start, slice.size_bytes());
        if start % ALIGNMENT_BYTES != 0 || size_bytes > has_bytes {
            let reason = format!(
                "{ty} takes {size_bytes} bytes and cannot be placed in {has_bytes} bytes starting at byte {start} of \
                 its memory: it must fit, and begin at a multiple of {ALIGNMENT_BYTES}"
            );
            return Err(RuntimeError::Tensor { reason });
        }
        Ok(DeviceTensor { slice: slice.part(..size_bytes)?, ty })
    }

    /// Copies an array to the device, on the current stream.
    ///
    /// # Errors
    /// Fails if memory runs out, or if the device fails.
    pub fn from_host(context: &Context, array: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        let (stream, ty) = (context.current_stream(), array.ty());
        let size_bytes = space(&ty)?;
        let (span, _) = transfer::upload(context, &stream, array.bytes(), size_bytes, "from_host")?;
        Ok(DeviceTensor { slice: Slice::new(context, span), ty })
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// Fails if memory runs out, or if the device fails.
    pub fn zeros(context: &Context, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let stream = context.current_stream();
        let tensor = DeviceTensor::uninitialized(context, &stream, TensorType::new(data_type, shape), "zeros")?;
        tensor.slice.fill_as([0; 4], "zeros")?;
        Ok(tensor)
    }

    /// Copies the tensor to the host, on the current stream, and waits for it. For several tensors, use [`Context::to_host`].
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
    pub fn to_host(&self) -> Result<Tensor, RuntimeError> {
        let mut arrays = self.context().to_host(&[self])?;
        arrays.pop().ok_or_else(|| RuntimeError::Tensor { reason: format!("{} was not read", self.ty) })
    }

    /// Overwrites the tensor with another's elements, on the current stream. All tensors that share its bytes change.
    ///
    /// # Errors
    /// Fails if the types or shapes differ, if the tensors belong to different contexts, or if the device fails.
    pub fn copy_from(&self, other: &DeviceTensor) -> Result<(), RuntimeError> {
        if !self.context().is(other.context()) {
            return Err(RuntimeError::OtherContext { what: "two tensors" });
        }
        if self.ty != other.ty {
            return Err(RuntimeError::Tensor { reason: format!("{} cannot be copied to {}", other.ty, self.ty) });
        }
        self.slice.copy_from(&other.slice)
    }

    /// Waits for the current stream's work so far, and returns the address of the elements in the process's memory; `None` on a device with
    /// separate memory, and for managed memory, which moves. The elements stay there as long as anyone holds the tensor. Callers that read
    /// or write them must order that against later work.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
    pub fn host_address(&self) -> Result<Option<*mut u8>, RuntimeError> {
        let (span, context) = (self.slice.span(), self.context());
        if span.buffer().is_some() {
            return Ok(None);
        }
        let address = context.device().host_address(span.region());
        if address.is_some() {
            context.shared().synchronize(context.current_stream().queue())?;
            context.shared().lock().note_host(HostAction::Read(span.region()));
        }
        Ok(address)
    }

    /// The tensor's bytes, in whole groups of four.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The bytes of the elements, without those that fill up the last group of four.
    pub(super) fn elements(&self) -> Result<Slice, RuntimeError> {
        self.slice.part(..self.ty.count() * self.ty.data_type.size_bytes())
    }

    /// The sizes in elements; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.ty.shape
    }

    /// The element type.
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
}

/// The number of bytes that a tensor takes, in whole groups of four. One without elements takes the place of one element, which nothing reads,
/// as in programs.
///
/// # Errors
/// Fails if there are more than can be addressed.
pub(super) fn space(ty: &TensorType) -> Result<u64, RuntimeError> {
    let has_elements = !ty.shape.contains(&0);
    let placed = if has_elements { ty.packed() } else { TensorType::new(ty.data_type, &[]).packed() };
    let desc = placed.map_err(|error| RuntimeError::Tensor { reason: format!("{ty}: {error}") })?;
    Ok(desc.total_size_bytes())
}

impl Slice {
    /// Returns a tensor in the first bytes of the slice, which must begin at a multiple of 256 in its memory.
    ///
    /// # Errors
    /// Fails if there are too few bytes, or if the offset is not such a multiple.
    pub fn tensor(&self, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        DeviceTensor::in_slice(self, data_type, shape)
    }
}

impl Context {
    /// Copies tensors to the host, after the current stream's work so far, and waits for all of them together.
    ///
    /// # Errors
    /// Fails if tensors belong to another context, if memory runs out, or if the device fails or has failed earlier.
    pub fn to_host(&self, tensors: &[&DeviceTensor]) -> Result<Vec<Tensor>, RuntimeError> {
        let slices = tensors.iter().map(|tensor| tensor.elements()).collect::<Result<Vec<Slice>, _>>()?;
        let read = self.read(&slices.iter().collect::<Vec<_>>())?;
        let array = |(tensor, bytes): (&&DeviceTensor, Vec<u8>)| {
            let refused = || RuntimeError::Tensor { reason: format!("{tensor:?} was only partly read") };
            Tensor::new(tensor.data_type(), tensor.shape(), bytes).ok_or_else(refused)
        };
        tensors.iter().zip(read).map(array).collect()
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} at {})", self.ty, self.slice.span().region())
    }
}
