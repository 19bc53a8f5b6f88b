//! What the caller makes buffers with.

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

/// Size of a unit, where no one says.
const UNIT_BYTES: u64 = 2 << 20;
/// Host blocks are about this large, so that their number stays small.
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
    /// The most device bytes that its buffers take together.
    pub device_bytes: u64,
    /// Whether device memory is taken as buffers need it. Without, all of it is taken at the start and stays, which needs a
    /// device with tiles.
    pub growth: bool,
    /// What changes the order of eviction.
    pub policy: Policy,
    /// The most bytes of host blocks; none for as many as there are.
    pub host_bytes: Option<u64>,
    /// A folder for a file that takes what exceeds `host_bytes`; without, that is an error. The file has no name.
    pub spill_dir: Option<PathBuf>,
    /// What moves as a whole, rounded up to whole tiles; none for 2 MiB, or less where few of them would fit.
    pub unit_bytes: Option<u64>,
}

impl ManagedOptions {
    /// A device budget and a policy; the rest as usual.
    pub fn new(device_bytes: u64, policy: Policy) -> ManagedOptions {
        ManagedOptions { device_bytes, growth: true, policy, host_bytes: None, spill_dir: None, unit_bytes: None }
    }

    /// Whether device memory is taken as it is needed. Without, all of it is taken at the start.
    pub fn growth(mut self, growth: bool) -> Self {
        self.growth = growth;
        self
    }

    /// The most host bytes for what is not on the device.
    pub fn host_bytes(mut self, host_bytes: u64) -> Self {
        self.host_bytes = Some(host_bytes);
        self
    }

    /// A folder for what exceeds the host bytes.
    pub fn spill_dir(mut self, spill_dir: impl Into<std::path::PathBuf>) -> Self {
        self.spill_dir = Some(spill_dir.into());
        self
    }

    /// The unit that moves.
    pub fn unit_bytes(mut self, unit_bytes: u64) -> Self {
        self.unit_bytes = Some(unit_bytes);
        self
    }
}

/// Device memory that buffers larger than it share ([`managed`](super)). Cheap to clone: clones are the same memory. It lives
/// as long as a buffer of it does.
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
    /// A managed memory without buffers.
    ///
    /// # Errors
    /// A budget below one unit, memory that shall not grow on a device without tiles, a spill folder that cannot be written,
    /// or what the device reports.
    pub fn new(context: &Context, options: &ManagedOptions) -> Result<ManagedMemory, RuntimeError> {
        let (device, limits) = (context.device(), context.device().limits());
        // Before the files: what is made last needs no care when it fails.
        let copies = Lease::new(context.shared().clone(), 0)?;
        let (step_bytes, segment_bytes_max, unit_bytes) = match limits.tiled {
            true => {
                let unit_bytes = unit_bytes(limits, context.tile_bytes(), options)?;
                (unit_bytes, limits.heap_size_max_bytes / unit_bytes * unit_bytes, Some(unit_bytes))
            }
            false if !options.growth => {
                let reason = format!(
                    "managed memory that does not grow needs tiles: on {}, which cannot map any, each buffer is a heap of \
                     its own",
                    limits.name
                );
                return Err(RuntimeError::Tensor { reason });
            }
            // Placed heaps serve a buffer each.
            false => (context.tile_bytes(), 0, None),
        };
        let device_bytes = options.device_bytes / step_bytes * step_bytes;
        let host_bytes = options.host_bytes.map_or(u64::MAX, |bytes| bytes / step_bytes * step_bytes);
        let files = options.spill_dir.as_deref().map(|folder| SpillFiles::new(&**device, folder, step_bytes));
        let files = files.transpose().map_err(device_error("while making a spill file"))?;
        let state = State::new(
            EvictionQueue::new(options.policy, device_bytes),
            SlabPool::new(device_bytes, segment_bytes_max),
            SlabPool::new(host_bytes, BLOCK_BYTES_MAX),
            files,
        );
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let core = Arc::new(Core::new(number, context.shared().clone(), copies, unit_bytes, options.growth, state));
        if !options.growth {
            core.take_all().map_err(device_error("while taking all managed memory at the start"))?;
        }
        context.add_managed(&core);
        Ok(ManagedMemory { context: context.clone(), handle: Arc::new(Handle::new(core)) })
    }

    /// Waits until no prefetch is in line and all copies are complete.
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        let mut state = self.core().lock();
        while state.prefetching || state.queue.prefetches().next().is_some() {
            state = self.core().wait_for_change(state);
        }
        drop(state);
        self.core().copies.synchronize()
    }

    /// What was moved and waited for so far.
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

    /// The most device bytes that buffers take together: the budget in whole units.
    pub fn capacity_bytes(&self) -> u64 {
        self.core().lock().queue.capacity_bytes()
    }

    /// What moves as a whole; none on a device without tiles, where each buffer does.
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

/// Size of a unit in whole tiles.
///
/// # Errors
/// One that fits neither a heap nor the budget.
fn unit_bytes(limits: &Limits, tile_bytes: u64, options: &ManagedOptions) -> Result<u64, RuntimeError> {
    let usual = UNIT_BYTES.min((options.device_bytes / 64).max(tile_bytes)).min(limits.heap_size_max_bytes);
    let wanted = options.unit_bytes.unwrap_or(usual);
    let unit_bytes = wanted.max(1).checked_next_multiple_of(tile_bytes);
    unit_bytes.filter(|&bytes| bytes <= limits.heap_size_max_bytes.min(options.device_bytes)).ok_or_else(|| {
        let (heap_bytes, budget) = (limits.heap_size_max_bytes, options.device_bytes);
        let reason = format!(
            "a managed unit of {wanted} bytes in whole tiles of {tile_bytes} does not fit a heap of {heap_bytes} or the \
             device budget of {budget}: choose smaller units, or raise the budget"
        );
        RuntimeError::Tensor { reason }
    })
}
