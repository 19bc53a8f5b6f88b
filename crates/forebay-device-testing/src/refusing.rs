//! A device that refuses calls, to check that nothing leaks and that the error says which call it was.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_base::{Command, EventId, HeapId, MemoryId, StreamId};
use forebay_device::{Device, DeviceError, Readable, forward};

/// A device that refuses the n-th call that obtains, maps or unmaps something, and all later such calls.
pub struct Refusing {
    /// The device that executes what is not refused.
    pub inner: Arc<dyn Device>,
    /// The number of calls until all are refused.
    pub calls_left: AtomicUsize,
    /// Whether heaps for tiles are always refused.
    pub tiles_refused: bool,
}

impl Refusing {
    /// Creates a device that refuses everything after this number of calls.
    pub fn new(inner: Arc<dyn Device>, calls: usize) -> Refusing {
        Refusing { inner, calls_left: AtomicUsize::new(calls), tiles_refused: false }
    }

    /// Stops refusing calls.
    pub fn stop_refusing(&self) {
        self.calls_left.store(usize::MAX, Ordering::SeqCst);
    }

    fn call(&self, what: &'static str) -> Result<(), DeviceError> {
        let counted = self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let refused = DeviceError::OutOfMemory { what, requested_bytes: 1, reason: "on purpose".to_string() };
        counted.map(|_| ()).map_err(|_| refused)
    }
}

impl Device for Refusing {
    forward! {
        inner: limits workspace_bytes host_workspace_bytes destroy_heap destroy_memory destroy_stream destroy_event synchronize recover wait_event
        query_event event_time write_host read_host join take_index_fault usage set_trace take_trace
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        if self.tiles_refused {
            return Err(DeviceError::OutOfMemory {
                what: "a heap",
                requested_bytes: size_bytes,
                reason: "no tiles today".to_string(),
            });
        }
        self.call("a heap")?;
        self.inner.create_heap(size_bytes)
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.call("a reservation")?;
        self.inner.create_reservation(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.call("a placed heap")?;
        self.inner.create_placed(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.call("a host block")?;
        self.inner.create_host_block(size_bytes)
    }

    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.call("a spill file")?;
        self.inner.create_spill(folder, size_bytes)
    }

    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        self.call("bytes to read")?;
        self.inner.create_read_only(bytes)
    }

    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError> {
        self.call("a stream")?;
        self.inner.create_stream(name, priority)
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.call("an event")?;
        self.inner.create_event()
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        if commands.iter().any(|command| matches!(command, Command::Map { .. } | Command::Unmap { .. })) {
            self.call("a mapping")?;
        }
        self.inner.submit(commands)
    }
}
