//! Managed memory, in which the caller creates buffers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::Limits;
use forebay_memory::eviction::{EvictionQueue, Policy};

use crate::eager::context::Context;
use crate::eager::lease::Lease;
use crate::eager::units::{Core, Handle, ManagedStatistics, SlabPool, SpillFiles, State, device_error};
use crate::error::RuntimeError;

/// The default size of a unit.
const UNIT_BYTES: u64 = 2 << 20;
/// The approximate size of host blocks, chosen so that their number stays small.
const BLOCK_BYTES_MAX: u64 = 32 << 20;
/// Numbers managed memories.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Settings of a managed memory.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_memory::eviction::Policy;
/// use forebay_runtime::eager::{Context, ContextOptions, ManagedMemory, ManagedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let options = ManagedOptions::new(1 << 20, Policy::Touch).host_bytes(8 << 20);
/// let memory = ManagedMemory::new(&context, &options)?;
/// assert!(memory.capacity_bytes() <= 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagedOptions {
    /// The most device bytes that all buffers take together.
    pub device_bytes: u64,
    /// Whether device memory is taken as buffers need it. If not, all of it is taken at the start and stays, which needs a device with
    /// tiles.
    pub growth: bool,
    /// The policy that determines the eviction order.
    pub policy: Policy,
    /// The most bytes of host blocks, or `None` for as many as there are.
    pub host_bytes: Option<u64>,
    /// A folder for a file that takes what exceeds `host_bytes`; without it, exceeding the limit is an error. The file has no name.
    pub spill_dir: Option<PathBuf>,
    /// The size of the units that move, rounded up to whole tiles, or `None` for 2 MiB, or less if few of them would fit.
    pub unit_bytes: Option<u64>,
}

impl ManagedOptions {
    /// Options with a device budget and a policy, and the defaults for the rest.
    pub fn new(device_bytes: u64, policy: Policy) -> ManagedOptions {
        ManagedOptions { device_bytes, growth: true, policy, host_bytes: None, spill_dir: None, unit_bytes: None }
    }

    /// Sets whether device memory is taken as it is needed. If not, all of it is taken at the start.
    pub fn growth(mut self, growth: bool) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the most host bytes for data that is not on the device.
    pub fn host_bytes(mut self, host_bytes: u64) -> Self {
        self.host_bytes = Some(host_bytes);
        self
    }

    /// Sets the folder for data that exceeds the host bytes.
    pub fn spill_dir(mut self, spill_dir: impl Into<std::path::PathBuf>) -> Self {
        self.spill_dir = Some(spill_dir.into());
        self
    }

    /// Sets the size of the units that move.
    pub fn unit_bytes(mut self, unit_bytes: u64) -> Self {
        self.unit_bytes = Some(unit_bytes);
        self
    }
}

/// Device memory shared by buffers that can be larger than it ([`managed`](super)). Cheap to clone: clones are the same memory. It lives as
/// long as any of its buffers.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::DataType;
/// use forebay_memory::eviction::Policy;
/// use forebay_runtime::eager::{Context, ContextOptions, ManagedMemory, ManagedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let memory = ManagedMemory::new(&context, &ManagedOptions::new(1 << 20, Policy::Driver))?;
/// let a = memory.tensor(DataType::Float32, &[1 << 17])?; // 512 KiB each
/// let b = memory.tensor(DataType::Float32, &[1 << 17])?;
/// let c = memory.tensor(DataType::Float32, &[1 << 17])?; // more than the device holds
/// assert_eq!(a.shape(), b.shape());
/// assert_eq!(b.shape(), c.shape());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ManagedMemory {
    context: Context,
    handle: Arc<Handle>,
}

impl ManagedMemory {
    /// Creates a managed memory without buffers.
    ///
    /// # Errors
    /// Fails if the budget is below one unit, if memory that does not grow is requested on a device without tiles, if the spill folder
    /// cannot be written, or if the device reports an error.
    pub fn new(context: &Context, options: &ManagedOptions) -> Result<ManagedMemory, RuntimeError> {
        let (device, limits) = (context.device(), context.device().limits());
        // Created before the files: what is created last needs no cleanup when it fails.
        let copies = Lease::new(context.shared().clone(), 0)?;
        let (step_bytes, segment_bytes_max, unit_bytes) = match limits.tiled {
            true => {
                let unit_bytes = unit_bytes(limits, context.tile_bytes(), options)?;
                (unit_bytes, limits.heap_size_max_bytes / unit_bytes * unit_bytes, Some(unit_bytes))
            }
            false if !options.growth => {
                let reason = format!(
                    "managed memory that does not grow requires tiles: on {}, which cannot map any, each buffer is a \
                     separate heap",
                    limits.name
                );
                return Err(RuntimeError::Tensor { reason });
            }
            // Each placed heap serves one buffer.
            false => (context.tile_bytes(), 0, None),
        };
        let device_bytes = options.device_bytes / step_bytes * step_bytes;
        let host_bytes = options.host_bytes.map_or(u64::MAX, |bytes| bytes / step_bytes * step_bytes);
        let files = options.spill_dir.as_deref().map(|folder| SpillFiles::new(&**device, folder, step_bytes));
        let files = files.transpose().map_err(device_error("while creating a spill file"))?;
        let state = State::new(
            EvictionQueue::new(options.policy, device_bytes),
            SlabPool::new(device_bytes, segment_bytes_max),
            SlabPool::new(host_bytes, BLOCK_BYTES_MAX),
            files,
        );
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let core = Arc::new(Core::new(number, context.shared().clone(), copies, unit_bytes, options.growth, state));
        if !options.growth {
            core.take_all().map_err(device_error("while allocating all managed memory at the start"))?;
        }
        context.add_managed(&core);
        Ok(ManagedMemory { context: context.clone(), handle: Arc::new(Handle::new(core)) })
    }

    /// Waits until no prefetch is pending and all copies are complete.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        let mut state = self.core().lock();
        while state.prefetching || state.queue.prefetches().next().is_some() {
            state = self.core().wait_for_change(state);
        }
        drop(state);
        self.core().copies.synchronize()
    }

    /// What has been moved and waited for so far.
    pub fn statistics(&self) -> ManagedStatistics {
        let state = self.core().lock();
        ManagedStatistics {
            resident_bytes: state.queue.resident_bytes(),
            device_bytes: state.slots.reserved_bytes(),
            host_bytes: state.blocks.reserved_bytes(),
            file_bytes: state.files.as_ref().map_or(0, |files| files.slab_pool.in_use_bytes()),
            ..state.statistics
        }
    }

    /// The most device bytes that all buffers take together: the budget in whole units.
    pub fn capacity_bytes(&self) -> u64 {
        self.core().lock().queue.capacity_bytes()
    }

    /// The size of the units that move, or `None` on a device without tiles, where each buffer moves as a whole.
    pub fn unit_bytes(&self) -> Option<u64> {
        self.core().unit_bytes
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.core().lock().queue.policy()
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &ManagedMemory) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    pub(super) fn core(&self) -> &Core {
        &self.handle.core
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(super) fn of_handle(context: Context, handle: Arc<Handle>) -> ManagedMemory {
        ManagedMemory { context, handle }
    }
}

impl fmt::Debug for ManagedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagedMemory({:?}, {} bytes)", self.policy(), self.capacity_bytes())
    }
}

/// The size of a unit in whole tiles.
///
/// # Errors
/// Fails if the unit does not fit a heap or the budget.
fn unit_bytes(limits: &Limits, tile_bytes: u64, options: &ManagedOptions) -> Result<u64, RuntimeError> {
    let usual = UNIT_BYTES.min((options.device_bytes / 64).max(tile_bytes)).min(limits.heap_size_max_bytes);
    let wanted = options.unit_bytes.unwrap_or(usual);
    let unit_bytes = wanted.max(1).checked_next_multiple_of(tile_bytes);
    unit_bytes.filter(|&bytes| bytes <= limits.heap_size_max_bytes.min(options.device_bytes)).ok_or_else(|| {
        let (heap_bytes, budget) = (limits.heap_size_max_bytes, options.device_bytes);
        let reason = format!(
            "a managed unit of {wanted} bytes in whole tiles of {tile_bytes} does not fit in a heap of {heap_bytes} or \
             the device budget of {budget}; choose smaller units, or raise the budget"
        );
        RuntimeError::Tensor { reason }
    })
}
