//! A context: a device with its streams and memory, for eager work.

use std::fmt;
use std::sync::{Arc, Weak};

use forebay_device::Device;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, MutexGuard};

use super::compiled::Cache;
use super::lease::Lease;
use super::options::ContextOptions;
use super::recording::{Races, Recording};
use super::shared::Shared;
use super::span::Span;
use super::store::StoreKind;
use super::timeline::Agent;
use super::units::Core;
use crate::error::RuntimeError;

/// A device with its streams and memory. Cheap to clone: clones are the same context. It lives as long as anything created with it.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::DataType;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let x = DeviceTensor::zeros(&context, DataType::Float32, &[4])?;
/// x.add(&x)?;
/// context.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    cache: Mutex<Cache>,
    /// The managed memories on the device that still exist.
    managed: Mutex<Vec<Weak<Core>>>,
    default_lease: Arc<Lease>,
    shared: Arc<Shared>,
}

impl Context {
    /// Creates a context on a device, with its default stream.
    ///
    /// # Errors
    /// Fails if settings contradict each other or the device, or if the device reports an error.
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

    /// The unit in which heaps are mapped ([`ContextOptions::tile_bytes`]).
    pub fn tile_bytes(&self) -> u64 {
        self.inner.shared.tile_bytes
    }

    /// Waits until everything submitted to any stream is complete.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier, or if a completed operation found an index out of range.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.inner.shared.synchronize_all()
    }

    /// Starts recording what is submitted, for [`Context::check`]. Anything recorded before is discarded.
    pub fn start_recording(&self) {
        self.inner.shared.lock().recording = Some(Recording::default());
    }

    /// Returns what has been recorded so far, which is nothing if recording was not started.
    pub fn recording(&self) -> Recording {
        self.inner.shared.lock().recording.clone().unwrap_or_default()
    }

    /// Looks for hazards between unordered operations in everything recorded so far ([`ContextOptions::record`],
    /// [`Context::start_recording`]).
    ///
    /// # Errors
    /// Returns all hazards that were found: both operations, their streams, the bytes, and what is missing.
    pub fn check(&self) -> Result<forebay_sync::race::RaceReport, Races> {
        self.recording().check()
    }

    /// Waits for all work, drops compiled operations with their constants, and gives unused memory back to the device, including that of
    /// managed memories and host blocks, unless it was taken for good at the start ([`ContextOptions::growth`]). Returns the number of
    /// bytes given back.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
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

    /// Allocates bytes for an agent. If memory runs out, compiled operations are dropped with their constants first.
    ///
    /// # Errors
    /// Returns [`RuntimeError::OutOfMemory`] if memory runs out, or a failure of the device.
    pub(super) fn span(&self, origin: Agent, size_bytes: u64, owner: &str) -> Result<Span, RuntimeError> {
        match Span::new(self.shared(), origin, size_bytes, owner) {
            Err(RuntimeError::OutOfMemory(_)) if self.forget_compiled() => {
                Span::new(self.shared(), origin, size_bytes, owner)
            }
            result => result,
        }
    }

    /// Registers a managed memory on the device.
    pub(super) fn add_managed(&self, core: &Arc<Core>) {
        let mut managed = lock(&self.inner.managed);
        managed.retain(|core| core.strong_count() > 0);
        managed.push(Arc::downgrade(core));
    }

    /// Whether both are the same context.
    pub fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn default_lease(&self) -> &Arc<Lease> {
        &self.inner.default_lease
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.inner.cache)
    }

    /// Drops compiled operations. Returns whether there were any.
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
