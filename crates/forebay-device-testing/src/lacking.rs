//! A device that lacks kernels, which then run on the host.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_base::{Command, Kernel, Launch, MemoryId, TensorDesc};
use forebay_device::{Device, DeviceError, forward};

/// A device that runs some kernels only in host blocks. Other kernels run in the memory where their operands are, since the parts of a
/// launch run where the launch does, but not in both at once.
pub struct Lacking {
    inner: Arc<dyn Device>,
    lacks: fn(&Kernel) -> bool,
    host_blocks: Mutex<BTreeSet<MemoryId>>,
    host_launches: AtomicUsize,
}

impl Lacking {
    /// Creates a device without these kernels.
    pub fn new(inner: Arc<dyn Device>, lacks: fn(&Kernel) -> bool) -> Lacking {
        Lacking { inner, lacks, host_blocks: Mutex::default(), host_launches: AtomicUsize::new(0) }
    }

    /// Returns how many launches have run on the host so far.
    pub fn host_launches(&self) -> usize {
        self.host_launches.load(Ordering::SeqCst)
    }

    fn unsupported(kernel: &Kernel) -> DeviceError {
        DeviceError::Unsupported { kernel: kernel.name(), reason: "the device lacks it on purpose".to_string() }
    }

    fn note_block(&self, block: Result<MemoryId, DeviceError>) -> Result<MemoryId, DeviceError> {
        block.inspect(|&block| {
            self.host_blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(block);
        })
    }

    /// Checks that a launch is where it can run.
    fn check(&self, launch: &Launch) -> Result<(), DeviceError> {
        let blocks = self.host_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let operands = launch.reads.iter().chain(&launch.writes).map(|binding| binding.region).chain(launch.workspace);
        let on_host = (self.lacks)(&launch.kernel);
        self.host_launches.fetch_add(usize::from(on_host), Ordering::SeqCst);
        let in_blocks: Vec<bool> = operands.map(|region| blocks.contains(&region.memory)).collect();
        let is_together = in_blocks.windows(2).all(|pair| pair[0] == pair[1]);
        let is_there = is_together && (!on_host || in_blocks.iter().all(|&in_block| in_block));
        is_there.then_some(()).ok_or_else(|| Lacking::unsupported(&launch.kernel))
    }
}

impl Device for Lacking {
    forward! {
        inner: limits host_workspace_bytes check_room create_heap destroy_heap create_reservation create_placed release_host allocate_late
        fill_host create_spill create_read_only destroy_memory create_stream destroy_stream create_event destroy_event synchronize recover wait_event
        query_event event_time write_host read_host join take_index_fault usage set_trace take_trace
    }

    fn workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        match (self.lacks)(kernel) {
            true => Err(Lacking::unsupported(kernel)),
            false => self.inner.workspace_bytes(kernel, reads, writes),
        }
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.note_block(self.inner.create_host_block(size_bytes))
    }

    fn create_released_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.note_block(self.inner.create_released_host_block(size_bytes))
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        for command in commands {
            if let Command::Launch { launch, .. } = command {
                self.check(launch)?;
            }
        }
        self.inner.submit(commands)
    }
}
