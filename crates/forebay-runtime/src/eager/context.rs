//! A context: a device with its streams and memory, for eager work.

use std::fmt;
use std::sync::{Arc, Weak};

use forebay_device::Device;
use forebay_model::Tensor as HostTensor;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, MutexGuard};

use super::compiled::Cache;
use super::current;
use super::managed::Core;
use super::operation::Operation;
use super::options::ContextOptions;
use super::recording::{Races, Recording};
use super::shared::Shared;
use super::slice::{Slice, Span};
use super::store::StoreKind;
use super::stream::{Lease, Stream};
use super::tensor::Tensor;
use super::timeline::Agent;
use super::transfer;
use crate::error::RuntimeError;

/// A device with its streams and memory. Cheap to clone: clones are the same context. It lives as long as anything made
/// with it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    cache: Mutex<Cache>,
    /// Managed memories on the device, as far as they are still there.
    managed: Mutex<Vec<Weak<Core>>>,
    default_lease: Arc<Lease>,
    shared: Arc<Shared>,
}

impl Context {
    /// A context on a device, with its default stream.
    ///
    /// # Errors
    /// Settings that contradict each other or the device, and what the device reports.
    pub fn new(device: Arc<dyn Device>, options: &ContextOptions) -> Result<Context, RuntimeError> {
        let shared = Arc::new(Shared::new(device, options)?);
        let default_lease = Arc::new(Lease::new(shared.clone(), 0)?);
        Ok(Context {
            inner: Arc::new(Inner { cache: Mutex::default(), managed: Mutex::default(), default_lease, shared }),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.shared.device
    }

    /// The stream that work goes to where no other was entered.
    pub fn default_stream(&self) -> Stream {
        Stream::of_lease(self.clone(), self.inner.default_lease.clone())
    }

    /// The stream that this thread's work goes to: the one entered last ([`Stream::enter`]), else the default stream.
    pub fn current_stream(&self) -> Stream {
        current::of_context(self).unwrap_or_else(|| self.default_stream())
    }

    /// The unit in which heaps are mapped ([`ContextOptions::tile_bytes`]).
    pub fn tile_bytes(&self) -> u64 {
        self.inner.shared.tile_bytes
    }

    /// An ONNX operator to run on the current stream.
    pub fn operation<'a>(&'a self, op_type: &str) -> Operation<'a> {
        Operation::new(self, op_type)
    }

    /// Waits until everything that was submitted to any stream is complete.
    ///
    /// # Errors
    /// A failure of the device, then or earlier; an index out of range, found by an operation that is complete.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.inner.shared.synchronize_all()
    }

    /// Starts to record what is submitted, for [`Context::check`]. What was recorded before is forgotten.
    pub fn start_recording(&self) {
        self.inner.shared.lock().recording = Some(Recording::default());
    }

    /// What has been recorded so far; nothing where recording was not started.
    pub fn recording(&self) -> Recording {
        self.inner.shared.lock().recording.clone().unwrap_or_default()
    }

    /// Looks for hazards between operations that nothing orders, in everything recorded so far
    /// ([`ContextOptions::record`], [`Context::start_recording`]).
    ///
    /// # Errors
    /// All that were found: both operations, their streams, the bytes, and what is missing.
    pub fn check(&self) -> Result<forebay_sync::race::RaceReport, Races> {
        self.recording().check()
    }

    /// Bytes of device memory, not defined until they are written. `owner` names them in snapshots and messages.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or a failure of the device.
    pub fn allocate(&self, size_bytes: u64, owner: &str) -> Result<Slice, RuntimeError> {
        let origin = Agent::Queue(self.current_stream().queue());
        Ok(Slice::new(self, Span::new(self, origin, size_bytes, owner)?))
    }

    /// Reads bytes on the host, after the current stream's work so far, and waits for all of them together.
    ///
    /// # Errors
    /// Slices of another context, no memory, or a failure of the device, then or earlier.
    pub fn read(&self, slices: &[&Slice]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        if slices.iter().any(|slice| !slice.context().is(self)) {
            return Err(RuntimeError::OtherContext { what: "a context and bytes to read" });
        }
        let own: Vec<&Span> = slices.iter().map(|slice| slice.span()).filter(|span| span.buffer().is_none()).collect();
        let mut own = transfer::read(self, &self.current_stream(), &own)?.into_iter();
        let read = |slice: &&Slice| match slice.span().buffer() {
            None => Ok(own.next().unwrap_or_default()),
            Some(buffer) => {
                let mut bytes = transfer::zeroed(slice.size_bytes())?;
                buffer.read(slice.span().range(), &mut bytes)?;
                Ok(bytes)
            }
        };
        slices.iter().map(read).collect()
    }

    /// Copies tensors to the host, after the current stream's work so far, and waits for all of them together.
    ///
    /// # Errors
    /// Tensors of another context, no memory, or a failure of the device, then or earlier.
    pub fn to_host(&self, tensors: &[&Tensor]) -> Result<Vec<HostTensor>, RuntimeError> {
        let slices = tensors.iter().map(|tensor| tensor.elements()).collect::<Result<Vec<Slice>, _>>()?;
        let read = self.read(&slices.iter().collect::<Vec<_>>())?;
        let array = |(tensor, bytes): (&&Tensor, Vec<u8>)| {
            let refused = || RuntimeError::Tensor { reason: format!("{tensor:?} was read in part") };
            HostTensor::new(tensor.data_type(), tensor.shape(), bytes).ok_or_else(refused)
        };
        tensors.iter().zip(read).map(array).collect()
    }

    /// Waits for all work, forgets compiled operations with their constants, and gives memory that no one uses back to the
    /// device, that of managed memories and blocks of the host included, unless it was taken at the start for good
    /// ([`ContextOptions::growth`]). The bytes given back.
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn trim(&self) -> Result<u64, RuntimeError> {
        self.forget_compiled();
        self.synchronize()?;
        let managed: Vec<Arc<Core>> = lock(&self.inner.managed).iter().filter_map(Weak::upgrade).collect();
        let managed_bytes: u64 = managed.iter().map(|core| core.trim()).sum();
        let mut state = self.inner.shared.lock();
        Ok(managed_bytes
            + self.inner.shared.trim(&mut state, StoreKind::Device)
            + self.inner.shared.trim(&mut state, StoreKind::Staging))
    }

    /// Takes note of a managed memory on the device.
    pub(super) fn add_managed(&self, core: &Arc<Core>) {
        let mut managed = lock(&self.inner.managed);
        managed.retain(|core| core.strong_count() > 0);
        managed.push(Arc::downgrade(core));
    }

    /// Whether both are the same context.
    pub fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.inner.cache)
    }

    /// Forgets compiled operations. Whether there were any.
    pub(super) fn forget_compiled(&self) -> bool {
        let forgotten = std::mem::take(&mut *self.cache());
        !forgotten.is_empty()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(on {})", self.device().limits().name)
    }
}
