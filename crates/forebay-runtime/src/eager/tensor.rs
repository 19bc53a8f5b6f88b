//! Tensors on the device.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_base::{Command, DataType, Region, TensorDesc};
use forebay_memory::allocator::BlockId;
use forebay_memory::eviction::Access;
use forebay_model::graph::Attribute;
use forebay_model::{Tensor as HostTensor, TensorType};

use super::batch::Batch;
use super::context::Context;
use super::managed::{Buffer, Residency};
use super::operation::{Input, Operation};
use super::shared::{Shared, State};
use super::store::{StoreKind, ALIGNMENT_BYTES};
use super::stream::Stream;
use super::timeline::{Agent, QueueId};
use super::transfer;
use crate::error::RuntimeError;

/// Bytes of device memory. Dropping it frees them; they are used again once every queue that uses them has passed.
pub(super) struct Storage {
    owner: Owner,
    region: Region,
}

/// Whose bytes they are.
enum Owner {
    /// A block of the context's memory.
    Block(Arc<Shared>, BlockId),
    /// A managed buffer, which has memory behind the bytes while a [`Residency`] holds them.
    Managed(Arc<Buffer>),
}

impl Storage {
    /// Bytes for a queue. Where memory runs out, compiled operations are forgotten with their constants first.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or a failure of the device.
    pub fn new(context: &Context, queue: QueueId, size_bytes: u64, owner: &str) -> Result<Storage, RuntimeError> {
        let shared = context.shared();
        let allocate = || shared.allocate(StoreKind::Device, Agent::Queue(queue), size_bytes, owner);
        let place = match allocate() {
            Err(RuntimeError::OutOfMemory(_)) if context.forget_compiled() => allocate()?,
            result => result?,
        };
        Ok(Storage { owner: Owner::Block(shared.clone(), place.block), region: place.region })
    }

    /// The bytes as a residency needs them, where they are managed.
    pub fn managed(&self, access: Access) -> Option<(&Buffer, Range<u64>, Access)> {
        match &self.owner {
            Owner::Block(..) => None,
            Owner::Managed(buffer) => Some((buffer, self.region.range.start..self.region.range.end, access)),
        }
    }

    /// The bytes.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Notes that work at a position of a queue uses the bytes.
    pub fn add_use(&self, state: &mut State, queue: QueueId, position: u64) {
        if let Owner::Block(_, block) = &self.owner {
            state.store(StoreKind::Device).ledger.add_use(*block, queue, position);
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Owner::Block(shared, block) = &self.owner {
            shared.free(StoreKind::Device, *block);
        }
    }
}

/// A tensor in device memory: packed, row-major. Operations on it go to the thread's current stream and return at once; the
/// host waits only in [`Tensor::to_host`]. Work on one stream comes in order. Between streams, order is the caller's
/// ([`Stream::wait_stream`], [`Event`](super::Event)); memory is not: a tensor may be dropped at any time.
///
/// Cheap to clone: clones share the bytes.
#[derive(Clone)]
pub struct Tensor {
    context: Context,
    storage: Arc<Storage>,
    ty: TensorType,
}

impl Tensor {
    /// A tensor of the current stream, whose bytes are not defined yet.
    pub(super) fn uninitialised(
        context: &Context,
        stream: &Stream,
        ty: TensorType,
        owner: &str,
    ) -> Result<Tensor, RuntimeError> {
        let desc = describe(&ty)?;
        let storage = Storage::new(context, stream.queue(), desc.total_size_bytes(), owner)?;
        Ok(Tensor { context: context.clone(), storage: Arc::new(storage), ty })
    }

    /// A tensor in a managed buffer's bytes.
    pub(super) fn in_buffer(
        buffer: &Arc<Buffer>,
        context: &Context,
        ty: TensorType,
        offset_bytes: u64,
    ) -> Result<Tensor, RuntimeError> {
        let size_bytes = describe(&ty)?.total_size_bytes();
        let all = buffer.region();
        if offset_bytes % ALIGNMENT_BYTES != 0 || offset_bytes.saturating_add(size_bytes) > all.range.len() {
            let whole_bytes = all.range.len();
            let reason = format!(
                "{ty} takes {size_bytes} bytes and cannot begin at byte {offset_bytes} of a managed buffer of {whole_bytes}: \
                 it has to lie inside, at a multiple of {ALIGNMENT_BYTES}"
            );
            return Err(RuntimeError::Tensor { reason });
        }
        let region = all.part(offset_bytes, size_bytes);
        let storage = Storage { owner: Owner::Managed(buffer.clone()), region };
        Ok(Tensor { context: context.clone(), storage: Arc::new(storage), ty })
    }

    /// Copies an array to the device, on the current stream.
    ///
    /// # Errors
    /// An array without elements, no memory, or a failure of the device.
    pub fn from_host(context: &Context, array: &HostTensor) -> Result<Tensor, RuntimeError> {
        let stream = context.current_stream();
        let tensor = Tensor::uninitialised(context, &stream, array.ty(), "from_host")?;
        transfer::upload(context, &stream, &array.bytes, &tensor.storage)?;
        Ok(tensor)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// A shape without elements, no memory, or a failure of the device.
    pub fn zeros(context: &Context, data_type: DataType, shape: &[u64]) -> Result<Tensor, RuntimeError> {
        let stream = context.current_stream();
        let tensor = Tensor::uninitialised(context, &stream, TensorType::new(data_type, shape), "zeros")?;
        tensor.write(&stream, "zeros", None, |state, region| Command::Fill {
            stream: state.stream(stream.queue()),
            region,
            pattern: [0; 4],
        })?;
        Ok(tensor)
    }

    /// Copies the tensor to the host, on the current stream, and waits for it.
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn to_host(&self) -> Result<HostTensor, RuntimeError> {
        let stream = self.context.current_stream();
        let size_bytes = self.ty.count() * self.ty.data_type.size_bytes();
        let bytes = match self.storage.managed(Access::Read) {
            Some((buffer, range, _)) => buffer.read(range.start..range.start + size_bytes)?,
            None => transfer::download(&self.context, &stream, &self.storage, size_bytes)?,
        };
        HostTensor::new(self.ty.data_type, &self.ty.shape, bytes)
            .ok_or_else(|| RuntimeError::Tensor { reason: format!("{} does not hold {size_bytes} bytes", self.ty) })
    }

    /// Overwrites the tensor, for everybody who shares its bytes, with another's elements, on the current stream.
    ///
    /// # Errors
    /// Another type or shape, another context, or a failure of the device.
    pub fn copy_from(&self, other: &Tensor) -> Result<(), RuntimeError> {
        if !self.context.is(&other.context) {
            return Err(RuntimeError::OtherContext { what: "two tensors" });
        }
        if self.ty != other.ty {
            return Err(RuntimeError::Tensor { reason: format!("{} cannot be copied to {}", other.ty, self.ty) });
        }
        if Arc::ptr_eq(&self.storage, &other.storage) {
            return Ok(());
        }
        let (from, to) = (other.storage.region(), self.storage.region());
        if from.overlaps(to) {
            return Err(RuntimeError::Tensor {
                reason: "tensors that overlap cannot be copied to each other".to_string(),
            });
        }
        let stream = self.context.current_stream();
        self.write(&stream, "copy_from", Some(&other.storage), |state, to| Command::Copy {
            stream: state.stream(stream.queue()),
            from,
            to,
        })
    }

    /// Submits one command that writes the tensor's bytes, and may read another's.
    fn write(
        &self,
        stream: &Stream,
        name: &str,
        other: Option<&Storage>,
        command: impl FnOnce(&State, Region) -> Command,
    ) -> Result<(), RuntimeError> {
        let shared = self.context.shared();
        let written = self.storage.managed(Access::Overwrite);
        let read = other.and_then(|other| other.managed(Access::Read));
        let mut residency = Residency::new(written.into_iter().chain(read))?;
        let mut state = shared.lock();
        let mut batch = Batch::default();
        residency.order(stream.queue(), &mut state, &mut batch);
        let command = command(&state, self.storage.region());
        let position = state.work(stream.queue(), command, &name.into(), &mut batch)?;
        residency.add_use(stream.queue(), position);
        for storage in other.into_iter().chain([&*self.storage]) {
            storage.add_use(&mut state, stream.queue(), position);
        }
        shared.submit(&mut state, &batch)
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
        &self.context
    }

    pub(super) fn ty(&self) -> &TensorType {
        &self.ty
    }

    pub(super) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    fn operation<'a>(&'a self, op_type: &str) -> Operation<'a> {
        self.context.operation(op_type).input(self)
    }
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
        impl Tensor {
            $($(#[$doc])*
            ///
            /// # Errors
            /// Operands that do not fit, tensors of several contexts, no memory, or a failure of the device.
            #[allow(clippy::needless_lifetimes, reason = "some operations have inputs")]
            pub fn $name<'a>(&'a self, $($input: impl Into<Input<'a>>),*) -> Result<Tensor, RuntimeError> {
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

impl Tensor {
    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// No memory, or a failure of the device.
    pub fn sum(&self) -> Result<Tensor, RuntimeError> {
        self.operation("ReduceSum").attribute("keepdims", Attribute::Int(0)).run_single()
    }

    /// Cross-correlation with a weight (output channels, input channels, extents...), stride 1, without padding. For others:
    /// `context.operation("Conv")`.
    ///
    /// # Errors
    /// Shapes or types that do not fit, no memory, or a failure of the device.
    pub fn convolution(&self, weight: &Tensor) -> Result<Tensor, RuntimeError> {
        self.operation("Conv").input(weight).run_single()
    }

    /// The same elements, in the same order, with other sizes.
    ///
    /// # Errors
    /// Sizes that hold another number of elements, no memory, or a failure of the device.
    pub fn reshape(&self, shape: &[u64]) -> Result<Tensor, RuntimeError> {
        let sizes: Vec<i64> = shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
        self.operation("Reshape").input(HostTensor::from_i64(&[sizes.len() as u64], &sizes)).run_single()
    }

    /// The dimensions in another order.
    ///
    /// # Errors
    /// An order that is none of the dimensions', no memory, or a failure of the device.
    pub fn transpose(&self, order: &[i64]) -> Result<Tensor, RuntimeError> {
        self.operation("Transpose").attribute("perm", Attribute::Ints(order.to_vec())).run_single()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} at {})", self.ty, self.storage.region())
    }
}
