//! The trait that every device implements.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_queue::QueueError;

use crate::communicator::Communicator;
use crate::loan::Loan;
use crate::readable::Readable;

/// What a device has handed out, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Heap bytes that exist now (placed memories included).
    pub heap_bytes: u64,
    /// The most heap bytes that ever existed at once.
    pub heap_peak_bytes: u64,
    /// Host block bytes that exist now, packing buffers of kernels and buffers for spill files included.
    pub host_bytes: u64,
    /// The most host block bytes that ever existed at once.
    pub host_peak_bytes: u64,
    /// Bytes of spill files that exist now.
    pub disk_bytes: u64,
    /// The most bytes of spill files that ever existed at once.
    pub disk_peak_bytes: u64,
}

/// When a command ran, measured by the device, for traces and measured costs.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    /// The stream.
    pub stream: StreamId,
    /// What ran: a launch's label, or none for copies and fills.
    pub label: Option<u32>,
    /// Kernel name, `copy` or `fill`.
    pub name: &'static str,
    /// Bytes moved, for copies and fills.
    pub bytes: u64,
    /// Start, since the device was made.
    pub start: Duration,
    /// End, since the device was made.
    pub end: Duration,
    /// For how long a copy kept one of the device's workers ([`Limits::workers`]) busy; zero where that is not known, and for all else.
    pub worker_time: Duration,
}

/// An index that a kernel found out of range. The launch goes on as the kernel's row says: what such an index chooses is 0, and
/// what it adds to is nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexFault {
    /// The launch's label.
    pub label: u32,
    /// Which element of the launch's indices it is, in row-major order.
    pub element: u64,
    /// The index.
    pub index: i64,
    /// Number of entries to choose from: indices from `-limit` to `limit - 1` are in range.
    pub limit: u64,
}

/// What a device reports: only what its caller could not foresee.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceError {
    /// Physical memory could not be had.
    OutOfMemory {
        /// What was asked for.
        what: &'static str,
        /// Bytes asked for.
        requested_bytes: u64,
        /// The system's own words.
        reason: String,
    },
    /// The system does not give something that is no memory, such as threads.
    Refused {
        /// What was asked for.
        what: String,
        /// The system's own words.
        reason: String,
    },
    /// A spill file cannot be made, written or read.
    Spill {
        /// The folder that it is in.
        folder: PathBuf,
        /// What failed: `make`, `reserve`, `write` or `read`.
        action: &'static str,
        /// How many bytes it was about.
        bytes: u64,
        /// The system's own words.
        reason: String,
    },
    /// What a device only reads cannot be read: weights in the files of a model.
    Read {
        /// What, and why.
        reason: String,
    },
    /// A kernel cannot run with these operands on this device.
    Unsupported {
        /// The kernel, or the method that was called.
        kernel: &'static str,
        /// Why.
        reason: String,
    },
    /// A setting that the device cannot have.
    Setting {
        /// Which, why, and what is possible.
        reason: String,
    },
    /// The device failed and can no longer be used.
    Lost {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::OutOfMemory { what, requested_bytes, reason } => {
                write!(f, "the device could not provide {requested_bytes} bytes for {what}: {reason}")
            }
            DeviceError::Refused { what, reason } => write!(f, "the system did not give {what}: {reason}"),
            DeviceError::Spill { folder, action, bytes, reason } => write!(
                f,
                "cannot {action} {bytes} bytes of a spill file in {}: {reason} (free space there, or name another folder \
                 with --spill-dir)",
                folder.display()
            ),
            DeviceError::Read { reason } => f.write_str(reason),
            DeviceError::Unsupported { kernel, reason } => write!(f, "{kernel} cannot run: {reason}"),
            DeviceError::Setting { reason } => f.write_str(reason),
            DeviceError::Lost { reason } => write!(f, "the device was lost: {reason}"),
        }
    }
}

impl std::error::Error for DeviceError {}

impl From<QueueError> for DeviceError {
    fn from(error: QueueError) -> Self {
        DeviceError::Lost { reason: error.to_string() }
    }
}

/// A machine: memories, streams, events, and the commands that connect them.
///
/// Commands are asynchronous: `submit` returns at once, work happens in stream order as `forebay_base::command` says.
/// A failure inside a stream is sticky: `synchronize` and `wait_event` return it, and later commands are skipped.
/// All methods may be called from any thread.
pub trait Device: Send + Sync {
    /// What the device can do.
    fn limits(&self) -> &Limits;

    /// Temporary bytes that a launch of `kernel` with these operands needs, a function of them alone; a launch may have less where
    /// [`Kernel::runs_in_less_workspace`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device cannot run the kernel with these operands.
    fn workspace_bytes(&self, kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc])
    -> Result<u64, DeviceError>;

    /// Temporary bytes that a launch of `kernel` needs whose operands are in host blocks: such launches, and their workspace with
    /// them, run on the host with the host device's kernels, for what the device itself cannot run.
    ///
    /// The first call may take threads and bounded buffers of host memory, which are counted until the device goes.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the host cannot run the kernel with these operands either, or the device has nothing
    /// run on the host; [`DeviceError::OutOfMemory`] where the buffers do not fit.
    fn host_workspace_bytes(
        &self,
        kernel: &Kernel,
        _reads: &[TensorDesc],
        _writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        let reason = "this device has nothing run on the host".to_string();
        Err(DeviceError::Unsupported { kernel: kernel.name(), reason })
    }

    /// Says ahead whether that much memory of the machine could be had in all, for what takes it piece by piece and would fail at
    /// the last one. A device whose heaps are no memory of the machine looks at `host_bytes` alone; one that cannot say agrees.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn check_room(&self, _heap_bytes: u64, _host_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Obtains physical memory in one piece, for mapping into reservations; rounded up to whole tiles.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError>;

    /// Gives a heap back. No tile of it may be mapped.
    fn destroy_heap(&self, heap: HeapId);

    /// Reserves addresses without memory behind them; rounded up to whole tiles. Only where `limits().tiled`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where addresses run out; [`DeviceError::Unsupported`] where there are no tiles.
    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Obtains addressable physical memory in one piece (a placed heap); rounded up to whole tiles.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Obtains a block of host memory that commands can copy from and to.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// The same, but the block may take memory only as it is written: [`Device::fill_host`] takes the rest. Until then it is for the
    /// host alone. For bytes that move from one block to another within the memory that one of them takes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_released_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_host_block(size_bytes)
    }

    /// Says that what a part of a host block holds is not needed any longer: a device may give its memory back to the system. It
    /// holds anything afterwards. Where device memory is the host's, so may be what holds a part of that; it comes back as commands write
    /// there. No submitted command may still use the part.
    fn release_host(&self, _region: Region) {}

    /// Takes the memory of a host block that it does not have, because it was released or never written.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn fill_host(&self, _block: MemoryId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Obtains a spill file: a memory in disk space, reached by copies alone, from and to host blocks and device memory. All
    /// of its space is taken at once, so that a full disk is an error here; it has no name, so that nothing is left of it
    /// when the process ends, however that happens. Copies of whole multiples of 4096 bytes at such offsets are fastest.
    ///
    /// The first spill file may take bounded buffers of host memory, which are counted until the device goes.
    ///
    /// # Errors
    /// [`DeviceError::Spill`] where the folder, its file system or the space there does not allow it;
    /// [`DeviceError::OutOfMemory`] where the buffers do not fit.
    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Makes a memory in disk space of bytes that lie in other files, which copies read and nothing writes. A step whose copies cannot read
    /// them fails with [`DeviceError::Read`], and the device goes on after [`Device::recover`].
    ///
    /// # Errors
    /// Where the system refuses, for example a thread.
    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError>;

    /// Whether kernels can work on memory of the process where it is: whether there is [`Device::create_loan`].
    fn takes_loans(&self) -> bool {
        false
    }

    /// Makes a memory of device space behind which is what the process lends: nothing before [`Device::lend`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device cannot use memory of the process.
    fn create_loan(&self, _size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let reason = "this device has memory of its own".to_string();
        Err(DeviceError::Unsupported { kernel: "create_loan", reason })
    }

    /// Puts memory of the process behind a memory that [`Device::create_loan`] made. Commands that are submitted from then on find it there;
    /// those that would write what was lent to be read are refused.
    ///
    /// # Errors
    /// The loan, where it has another size than the memory, begins at an address that is not a multiple of 16, or where there is one already.
    fn lend(&self, _memory: MemoryId, loan: Loan) -> Result<(), Loan> {
        Err(loan)
    }

    /// Takes back what is behind such a memory; none where nothing is. No submitted command may still use it.
    fn give_back(&self, _memory: MemoryId) -> Option<Loan> {
        None
    }

    /// Where a region begins in the memory of the process, for those who read or write it there and order that against commands; none on a
    /// device with memory of its own. It stays there for as long as the region has the memory that it has.
    fn host_address(&self, _region: Region) -> Option<*mut u8> {
        None
    }

    /// Gives a memory back. No submitted command may still use it; mapped tiles are unmapped.
    fn destroy_memory(&self, memory: MemoryId);

    /// Makes a stream. `name` appears in traces.
    ///
    /// Of work that may start, that of the stream with the lowest `priority` starts first, where the device can choose; work
    /// that runs is not interrupted. 0 is usual, as in CUDA and its frameworks; a device with fewer levels takes the nearest.
    ///
    /// # Errors
    /// Where the system refuses, for example a thread.
    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError>;

    /// Gives a stream back after all its commands are complete.
    fn destroy_stream(&self, stream: StreamId);

    /// Makes an event; its generation is 0.
    ///
    /// # Errors
    /// Where the system refuses.
    fn create_event(&self) -> Result<EventId, DeviceError>;

    /// Gives an event back. No submitted command may still name it.
    fn destroy_event(&self, event: EventId);

    /// Appends commands to their streams, in list order; mapping happens before this returns.
    ///
    /// # Errors
    /// Failures of mapping, and a sticky failure of the device.
    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError>;

    /// Waits until every command submitted to the stream is complete.
    ///
    /// # Errors
    /// The first failure inside the stream.
    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// Waits until nothing runs any more, and forgets a failure that left all memories usable, such as that of a spill file.
    /// What it kept from running never runs; what is submitted from then on does. A device that knows no such failures has
    /// nothing to forget.
    ///
    /// # Errors
    /// A failure that stays.
    fn recover(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Waits until a generation of the event has fired.
    ///
    /// # Errors
    /// A failure that keeps it from firing.
    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError>;

    /// The latest generation of the event that has fired; 0 before the first.
    fn query_event(&self, event: EventId) -> u64;

    /// When `generation` of the event fired, on the device's clock, which starts when the device is made and never goes
    /// back. Only the latest generation that fired is known: none for earlier ones, and for those that have not fired.
    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration>;

    /// Writes bytes of a host block, or of any memory where `limits().unified`, from the host, at once. The caller orders it against commands.
    ///
    /// # Panics
    /// If the host has no access to the memory, or the lengths differ.
    fn write_host(&self, region: Region, bytes: &[u8]);

    /// Reads bytes of a host block, or of any memory where `limits().unified`, on the host, at once. The caller orders it against commands.
    ///
    /// # Panics
    /// If the host has no access to the memory, or the lengths differ.
    fn read_host(&self, region: Region, bytes: &mut [u8]);

    /// Makes the device part of a run of several processes: [`Kernel::Exchange`] goes to the others from then on.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] where it is part of one already; [`DeviceError::Unsupported`] where the device runs alone.
    fn join(&self, _communicator: Arc<dyn Communicator>) -> Result<(), DeviceError> {
        let reason = "this device computes for one process alone".to_string();
        Err(DeviceError::Unsupported { kernel: "join", reason })
    }

    /// Takes one of the indices out of range that kernels found since this was last asked, and forgets the others. What a launch
    /// found is known once a wait for it returned. On the host device it is the first one of the launch with the lowest label.
    fn take_index_fault(&self) -> Option<IndexFault>;

    /// Bytes handed out, now and at most.
    fn usage(&self) -> DeviceUsage;

    /// Starts or stops recording when commands run.
    fn set_trace(&self, enabled: bool);

    /// Takes the records so far.
    fn take_trace(&self) -> Vec<TraceRecord>;
}
