//! What the caller makes buffers with, and the thread that carries out prefetches.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use forebay_base::{DataType, Limits};
use forebay_memory::eviction::{EvictionQueue, Policy, UnitId};
use forebay_model::TensorType;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, PoisonError};
use forebay_queue::shim::thread::{Builder, JoinHandle};

use super::buffer::ManagedBuffer;
use super::core::{device_error, Core, State};
use super::slab_pool::SlabPool;
use super::spill::SpillFiles;
use super::statistics::ManagedStatistics;
use crate::eager::context::Context;
use crate::eager::stream::Stream;
use crate::eager::tensor::{describe, Tensor};
use crate::error::RuntimeError;

/// Size of a unit, where no one says.
const UNIT_BYTES: u64 = 2 << 20;
/// Host blocks are about this large, so that their number stays small.
const BLOCK_BYTES_MAX: u64 = 32 << 20;
/// Copies of prefetches that are under way at once; others wait and can be cancelled.
const PREFETCHES_UNDER_WAY: usize = 2;

/// Numbers managed memories.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Settings of a managed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

/// Device memory that buffers larger than it share ([`managed`](super)). Cheap to clone: clones are the same memory. It lives
/// as long as a buffer of it does.
#[derive(Clone)]
pub struct ManagedMemory {
    handle: Arc<Handle>,
}

/// Ends the thread when no one is left.
pub struct Handle {
    /// What the thread has, too.
    pub core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.lock().closing = true;
        self.core.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // It ends without a result.
            let _ = thread.join();
        }
    }
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
        let copies = Stream::new(context, 0)?;
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
        let core = Arc::new(Core::new(number, context.clone(), copies, unit_bytes, options.growth, state));
        if !options.growth {
            core.take_all().map_err(device_error("while taking all managed memory at the start"))?;
        }
        context.add_managed(&core);
        let handle = Handle { core, thread: Mutex::default() };
        Ok(ManagedMemory { handle: Arc::new(handle) })
    }

    /// A buffer. It takes addresses now and memory as it is used; what it holds is not defined until it is written.
    ///
    /// # Errors
    /// A size of 0, no addresses, or a failure of the device.
    pub fn buffer(&self, size_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
        ManagedBuffer::new(self.handle.clone(), size_bytes)
    }

    /// A tensor in a buffer of its own, not defined until it is written.
    ///
    /// # Errors
    /// A shape without elements, no addresses, or a failure of the device.
    pub fn tensor(&self, data_type: DataType, shape: &[u64]) -> Result<Tensor, RuntimeError> {
        let size_bytes = describe(&TensorType::new(data_type, shape))?.total_size_bytes();
        self.buffer(size_bytes)?.tensor(data_type, shape, 0)
    }

    /// Tells what will be used next, for [`Policy::Planned`]: the buffers of each coming operation, in order. Replaces what
    /// was told before.
    pub fn set_next_uses(&self, uses: &[Vec<&ManagedBuffer>]) {
        let units = |buffers: &Vec<&ManagedBuffer>| -> Vec<UnitId> {
            buffers.iter().flat_map(|buffer| buffer.units(self)).collect()
        };
        let uses: Vec<Vec<UnitId>> = uses.iter().map(units).collect();
        self.core().lock().queue.set_next_uses(&uses);
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
        &self.core().context
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &ManagedMemory) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    pub(super) fn core(&self) -> &Core {
        &self.handle.core
    }

    pub(super) fn of_handle(handle: Arc<Handle>) -> ManagedMemory {
        ManagedMemory { handle }
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

impl Handle {
    /// Sees to it that prefetches are carried out, where the caller does not do so itself.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub fn start_thread(&self) -> Result<(), RuntimeError> {
        let mut thread = lock(&self.thread);
        if thread.is_some() || self.core.lock().queue.policy() == Policy::Driver {
            return Ok(());
        }
        let core = self.core.clone();
        let started = Builder::new().name("forebay prefetch".to_string()).spawn(move || carry_out(&core));
        let refused = |error| RuntimeError::Tensor { reason: format!("the system refuses a thread: {error}") };
        *thread = Some(started.map_err(refused)?);
        Ok(())
    }
}

/// Carries out prefetches, a few at a time, until the end.
fn carry_out(core: &Core) {
    let mut under_way = VecDeque::new();
    loop {
        let mut state = core.lock();
        while !state.closing && state.queue.prefetches().next().is_none() {
            state = core.wait_for_change(state);
        }
        if state.closing {
            return;
        }
        state.prefetching = true;
        drop(state);
        // A prefetch that fails is none; whoever uses the unit finds out why.
        let prefetched = core.run(|state| core.prefetch(state));
        if prefetched.is_err() && core.copies.query().is_err() {
            // A lost device brings nothing any more.
            core.lock().queue.cancel_prefetches();
        }
        under_way.extend(prefetched.ok().flatten());
        if under_way.len() >= PREFETCHES_UNDER_WAY {
            if let Some(position) = under_way.pop_front() {
                let _ = core.wait_for(core.copies.queue(), position);
            }
        }
        core.lock().prefetching = false;
        core.changed.notify_all();
    }
}
