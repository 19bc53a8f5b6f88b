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

/// The memory that a device has allocated, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// The number of heap bytes that exist now, including placed memories.
    pub heap_bytes: u64,
    /// The largest number of heap bytes that ever existed at once.
    pub heap_peak_bytes: u64,
    /// The number of host block bytes that exist now, including packing buffers of kernels and buffers for spill files.
    pub host_bytes: u64,
    /// The largest number of host block bytes that ever existed at once.
    pub host_peak_bytes: u64,
    /// The number of bytes of spill files that exist now.
    pub disk_bytes: u64,
    /// The largest number of bytes of spill files that ever existed at once.
    pub disk_peak_bytes: u64,
}

/// The time at which a command ran, as measured by the device, for traces and measured costs.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    /// The stream.
    pub stream: StreamId,
    /// The label of a launch; `None` for copies and fills.
    pub label: Option<u32>,
    /// The name of the kernel, `copy` or `fill`.
    pub name: &'static str,
    /// The number of bytes moved, for copies and fills.
    pub bytes: u64,
    /// The start, as the time since the device was created.
    pub start: Duration,
    /// The end, as the time since the device was created.
    pub end: Duration,
    /// How long a copy kept one of the device's workers ([`Limits::workers`]) busy; zero if that is not known, and for anything but copies.
    pub worker_time: Duration,
}

/// An index that a kernel found out of range. The launch continues as documented for the kernel: such an index selects 0 and adds to
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexFault {
    /// The label of the launch.
    pub label: u32,
    /// The position of the index among the indices of the launch, in row-major order.
    pub element: u64,
    /// The index.
    pub index: i64,
    /// The number of entries to choose from: indices from `-limit` to `limit - 1` are in range.
    pub limit: u64,
}

/// An error of a device, which reports only what its caller could not foresee.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceError {
    /// Physical memory could not be allocated.
    OutOfMemory {
        /// What was asked for.
        what: &'static str,
        /// The number of bytes asked for.
        requested_bytes: u64,
        /// The system's error message.
        reason: String,
    },
    /// The system refused something other than memory, such as threads.
    Refused {
        /// What was asked for.
        what: String,
        /// The system's error message.
        reason: String,
    },
    /// A spill file could not be made, written or read.
    Spill {
        /// The folder that contains the file.
        folder: PathBuf,
        /// What failed: `create`, `reserve`, `write` or `read`.
        action: &'static str,
        /// The number of bytes concerned.
        bytes: u64,
        /// The system's error message.
        reason: String,
    },
    /// Data that a device only reads, such as weights in the files of a model, could not be read.
    Read {
        /// What could not be read, and why.
        reason: String,
    },
    /// A kernel cannot run with these operands on this device.
    Unsupported {
        /// The kernel or the method that was called.
        kernel: &'static str,
        /// Why.
        reason: String,
    },
    /// The device does not support a setting.
    Setting {
        /// The setting, why it is not supported, and what is possible.
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
                write!(f, "the device cannot provide {requested_bytes} bytes for {what}: {reason}")
            }
            DeviceError::Refused { what, reason } => write!(f, "the system refused to provide {what}: {reason}"),
            DeviceError::Spill { folder, action, bytes, reason } => {
                let advice = if *action == "read" { "its disk may be failing:" } else { "free space there, or" };
                write!(
                    f,
                    "cannot {action} {bytes} bytes of a spill file in {}: {reason} ({advice} name another folder with \
                     --spill-dir)",
                    folder.display()
                )
            }
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

/// A device: memories, streams, events, and the commands that connect them.
///
/// Commands are asynchronous: `submit` returns at once, and the work happens in stream order, as described in `forebay_base::command`. A
/// failure inside a stream is sticky: `synchronize` and `wait_event` return it, and later commands are skipped. All methods can be called
/// from any thread.
pub trait Device: Send + Sync {
    /// Returns the properties and limits of the device.
    fn limits(&self) -> &Limits;

    /// Returns the number of temporary bytes that a launch of `kernel` with these operands needs, which depends on the kernel and the
    /// operands alone. A launch may have less if [`Kernel::runs_in_less_workspace`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device cannot run the kernel with these operands.
    fn workspace_bytes(&self, kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc])
    -> Result<u64, DeviceError>;

    /// Returns the number of temporary bytes that a launch of `kernel` on the host needs. Such launches have their operands and workspace
    /// in host blocks and use the host device's kernels, for kernels that the device itself cannot run.
    ///
    /// The first call may create threads and bounded buffers in host memory, which are counted until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the host cannot run the kernel with these operands either, or if the device runs nothing on the
    /// host; [`DeviceError::OutOfMemory`] if the buffers do not fit.
    fn host_workspace_bytes(
        &self,
        kernel: &Kernel,
        _reads: &[TensorDesc],
        _writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        let reason = "this device cannot run launches on the host".to_string();
        Err(DeviceError::Unsupported { kernel: kernel.name(), reason })
    }

    /// Checks in advance whether the machine has this much memory in total, for callers that allocate it piece by piece and would otherwise
    /// fail at the last piece. A device whose heaps are not in the machine's memory checks `host_bytes` alone; a device that cannot tell
    /// returns `Ok`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn check_room(&self, _heap_bytes: u64, _host_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Allocates physical memory in one piece, for mapping into reservations. The size is rounded up to whole tiles.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError>;

    /// Frees a heap. None of its tiles may be mapped.
    fn destroy_heap(&self, heap: HeapId);

    /// Reserves addresses without memory behind them. The size is rounded up to whole tiles. Available only if `limits().tiled`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if addresses run out; [`DeviceError::Unsupported`] if the device has no tiles.
    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Allocates addressable physical memory in one piece (a placed heap). The size is rounded up to whole tiles.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Allocates a block of host memory that commands can copy from and to.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Like [`Device::create_host_block`], but the block may take memory only as it is written: [`Device::fill_host`] takes the rest. Until
    /// then, only the host may use it. Moving bytes from one block to another this way takes the memory of one block, not of two.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn create_released_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_host_block(size_bytes)
    }

    /// Declares that the contents of a part of a host block are no longer needed, so that the device may return its memory to the system.
    /// The contents are unspecified afterwards. If device memory is the host's, the part may also be one of device memory, which gets its
    /// pages back as commands write there. No submitted command may still use the part.
    fn release_host(&self, _region: Region) {}

    /// Sets whether device memory that is mapped or created from now on takes memory of the host only as commands write it. Contents can
    /// then move into it one after the other, each freed where it was, without ever taking the memory of all of them twice. Has no effect
    /// if device memory is not the host's.
    fn allocate_late(&self, _enabled: bool) {}

    /// Allocates the memory that a host block lacks because it was released or never written.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn fill_host(&self, _block: MemoryId) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Creates a spill file: a memory in disk space that only copies can access, from and to host blocks and device memory. All of its
    /// space is allocated at once, so that a full disk is an error here. The file has no name, so that nothing is left of it when the
    /// process ends, however that happens. Copies are fastest if their sizes and offsets are multiples of 4096 bytes.
    ///
    /// The first spill file may allocate bounded buffers in host memory, which are counted until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Spill`] if the folder, its file system or the space there does not allow it; [`DeviceError::OutOfMemory`] if the
    /// buffers do not fit.
    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError>;

    /// Creates a memory in disk space from bytes in other files, which copies read and nothing writes. A step whose copies cannot read the
    /// bytes fails with [`DeviceError::Read`], and the device can be used again after [`Device::recover`].
    ///
    /// # Errors
    /// Returns an error if the system refuses a resource, such as a thread.
    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError>;

    /// Returns whether kernels can work on memory of the process in place, that is, whether [`Device::create_loan`] is supported.
    fn takes_loans(&self) -> bool {
        false
    }

    /// Creates a memory in device space that is backed by memory that the process lends; it has no backing before [`Device::lend`].
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device cannot use memory of the process.
    fn create_loan(&self, _size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let reason = "this device has separate memory".to_string();
        Err(DeviceError::Unsupported { kernel: "create_loan", reason })
    }

    /// Backs a memory that [`Device::create_loan`] created with memory of the process. Commands submitted from then on use it; commands
    /// that would write to a loan that may only be read are refused.
    ///
    /// # Errors
    /// The loan, if its size differs from that of the memory, if it begins at an address that is not a multiple of 16, or if the memory has
    /// a loan already.
    fn lend(&self, _memory: MemoryId, loan: Loan) -> Result<(), Loan> {
        Err(loan)
    }

    /// Takes the loan back from such a memory; returns `None` if it has no loan. No submitted command may still use it.
    fn give_back(&self, _memory: MemoryId) -> Option<Loan> {
        None
    }

    /// Returns the address of a region in the memory of the process, or `None` on a device with its own memory. Callers that read or write
    /// there order their accesses against commands. The address is valid for as long as the region keeps its current memory.
    fn host_address(&self, _region: Region) -> Option<*mut u8> {
        None
    }

    /// Frees a memory. No submitted command may still use it; mapped tiles are unmapped.
    fn destroy_memory(&self, memory: MemoryId);

    /// Creates a stream. `name` appears in traces.
    ///
    /// If the device can choose among work that may start, the work of the stream with the lowest `priority` starts first; running work is
    /// not interrupted. 0 is the default, as in CUDA and its frameworks; a device with fewer levels uses the nearest one.
    ///
    /// # Errors
    /// Returns an error if the system refuses a resource, such as a thread.
    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError>;

    /// Destroys a stream after all its commands are complete.
    fn destroy_stream(&self, stream: StreamId);

    /// Creates an event, whose generation is 0.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    fn create_event(&self) -> Result<EventId, DeviceError>;

    /// Destroys an event. No submitted command may still name it.
    fn destroy_event(&self, event: EventId);

    /// Appends commands to their streams, in list order; mapping happens before this returns.
    ///
    /// # Errors
    /// Failures of mapping, and a sticky failure of the device.
    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError>;

    /// Waits until every command submitted to the stream is complete. If the device has failed, waits until none of them is running any
    /// more, so that their memory can be freed.
    ///
    /// # Errors
    /// A sticky failure of the device.
    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// Waits until nothing is running, and clears a failure that left all memories usable, such as a failure of a spill file. Commands that
    /// the failure kept from running never run; commands submitted from then on do. A device that has no such failures has nothing to
    /// clear.
    ///
    /// # Errors
    /// A failure that cannot be cleared.
    fn recover(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Waits until a generation of the event has fired. If the device has failed, does not wait: commands before the record may still be
    /// running.
    ///
    /// # Errors
    /// A sticky failure of the device, even if the generation has fired: commands before its record may have failed or been skipped.
    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError>;

    /// Returns the latest generation of the event that has fired, or 0 if none has.
    fn query_event(&self, event: EventId) -> u64;

    /// Returns the time at which `generation` of the event fired, on the device's clock, which starts when the device is created and never
    /// goes back. Only the time of the latest generation that fired is known: returns `None` for earlier generations and for those that
    /// have not fired.
    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration>;

    /// Writes bytes of a host block, or of any memory if `limits().unified`, from the host, at once. The caller orders this against
    /// commands.
    ///
    /// # Panics
    /// If the host has no access to the memory, or if the lengths differ.
    fn write_host(&self, region: Region, bytes: &[u8]);

    /// Reads bytes of a host block, or of any memory if `limits().unified`, on the host, at once. The caller orders this against commands.
    ///
    /// # Panics
    /// If the host has no access to the memory, or if the lengths differ.
    fn read_host(&self, region: Region, bytes: &mut [u8]);

    /// Makes the device part of a run of several processes: from then on, [`Kernel::Exchange`] exchanges bytes with the others.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] if the device is already part of a run; [`DeviceError::Unsupported`] if the device can only run alone.
    fn join(&self, _communicator: Arc<dyn Communicator>) -> Result<(), DeviceError> {
        let reason = "this device supports only one process".to_string();
        Err(DeviceError::Unsupported { kernel: "join", reason })
    }

    /// Takes one of the out-of-range indices that kernels found since the last call, and forgets the others. The findings of a launch are
    /// available once a wait for the launch has returned. On the host device, this is the first such index of the launch with the lowest
    /// label.
    fn take_index_fault(&self) -> Option<IndexFault>;

    /// Returns the current and the peak number of allocated bytes.
    fn usage(&self) -> DeviceUsage;

    /// Starts or stops recording the times at which commands run.
    fn set_trace(&self, enabled: bool);

    /// Takes the records made so far.
    fn take_trace(&self) -> Vec<TraceRecord>;
}
