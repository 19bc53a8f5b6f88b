//! What the caller makes buffers with, and the thread that carries out prefetches.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use forebay_base::DataType;
use forebay_memory::eviction::{EvictionQueue, Policy, UnitId};
use forebay_model::TensorType;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, PoisonError};
use forebay_queue::shim::thread::{Builder, JoinHandle};

use super::backing::Backing;
use super::buffer::ManagedBuffer;
use super::core::{Core, State};
use super::slots::Slots;
use super::spill::SpillFile;
use super::statistics::ManagedStatistics;
use crate::eager::context::Context;
use crate::eager::stream::Stream;
use crate::eager::tensor::{describe, Tensor};
use crate::error::RuntimeError;

/// Size of a unit, where nobody says.
const UNIT_BYTES: u64 = 2 << 20;
/// Copies of prefetches that are under way at once; others wait and can be cancelled.
const PREFETCHES_UNDER_WAY: usize = 2;

/// Numbers managed memories.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Settings of a managed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedOptions {
    /// The most device bytes that its buffers take together.
    pub device_bytes: u64,
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
        ManagedOptions { device_bytes, policy, host_bytes: None, spill_dir: None, unit_bytes: None }
    }
}

/// Device memory that buffers larger than it share ([`managed`](super)). Cheap to clone: clones are the same memory. It lives
/// as long as a buffer of it does.
#[derive(Clone)]
pub struct ManagedMemory {
    handle: Arc<Handle>,
}

/// Ends the thread when nobody is left.
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
    /// A managed memory without buffers. It takes device memory as it needs it.
    ///
    /// # Errors
    /// A device that cannot map tiles, a budget below one unit, a spill folder that cannot be written, or what the device
    /// reports.
    pub fn new(context: &Context, options: &ManagedOptions) -> Result<ManagedMemory, RuntimeError> {
        let limits = context.device().limits();
        if !limits.tiled {
            let reason = format!("{} cannot map tiles, which managed memory needs", limits.name);
            return Err(RuntimeError::Tensor { reason });
        }
        let tile_bytes = limits.tile_size_bytes;
        let usual = UNIT_BYTES.min((options.device_bytes / 64).max(tile_bytes)).min(limits.heap_size_max_bytes);
        let unit_bytes = options.unit_bytes.unwrap_or(usual).max(1).checked_next_multiple_of(tile_bytes);
        let unit_bytes = unit_bytes.filter(|&bytes| bytes <= limits.heap_size_max_bytes.min(options.device_bytes));
        let Some(unit_bytes) = unit_bytes else {
            let (wanted, budget) = (options.unit_bytes.unwrap_or(usual), options.device_bytes);
            let reason = format!(
                "a managed unit of {wanted} bytes in whole tiles of {tile_bytes} does not fit a heap of {} or the device \
                 budget of {budget}: choose smaller units, or raise the budget",
                limits.heap_size_max_bytes
            );
            return Err(RuntimeError::Tensor { reason });
        };
        let device_count = options.device_bytes / unit_bytes;
        let host_count = options.host_bytes.map_or(u64::MAX, |bytes| bytes / unit_bytes);
        let file = options.spill_dir.as_deref().map(|folder| SpillFile::new(folder, unit_bytes)).transpose()?;
        let state = State::new(
            EvictionQueue::new(options.policy, device_count * unit_bytes),
            Slots::new(unit_bytes, device_count, limits.heap_size_max_bytes),
            Backing::new(unit_bytes, host_count),
            file,
        );
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let core = Core::new(number, context.clone(), Stream::new(context, 0)?, unit_bytes, state);
        let handle = Handle { core: Arc::new(core), thread: Mutex::default() };
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
    pub fn foresee(&self, uses: &[Vec<&ManagedBuffer>]) {
        let units = |buffers: &Vec<&ManagedBuffer>| -> Vec<UnitId> {
            buffers.iter().flat_map(|buffer| buffer.units(self)).collect()
        };
        let uses: Vec<Vec<UnitId>> = uses.iter().map(units).collect();
        self.core().lock().queue.foresee(&uses);
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
            host_bytes: state.backing.reserved_bytes(),
            file_bytes: state.file.as_ref().map_or(0, SpillFile::used_bytes),
            ..state.statistics
        }
    }

    /// The most device bytes that buffers take together: the budget in whole units.
    pub fn capacity_bytes(&self) -> u64 {
        self.core().lock().queue.capacity_bytes()
    }

    /// What moves as a whole.
    pub fn unit_bytes(&self) -> u64 {
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
        // A prefetch that fails is none; whoever uses the unit finds out why.
        under_way.extend(core.prefetch(&mut state).ok().flatten());
        drop(state);
        if under_way.len() >= PREFETCHES_UNDER_WAY {
            if let Some(position) = under_way.pop_front() {
                let _ = core.wait_for(core.copies.queue(), position);
            }
        }
        core.lock().prefetching = false;
        core.changed.notify_all();
    }
}
