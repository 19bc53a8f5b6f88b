//! A device that refuses calls, to see that nothing leaks then and that the error says which call it was.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::{Device, DeviceError, DeviceUsage, TraceRecord};

/// A device that refuses the n-th call that obtains, maps or unmaps something, and all later ones.
pub struct Refusing {
    pub inner: Arc<dyn Device>,
    /// Calls until all are refused.
    pub calls_left: AtomicUsize,
    /// Whether heaps for tiles are always refused.
    pub tiles_refused: bool,
}

impl Refusing {
    /// Refuses everything after so many calls.
    pub fn new(inner: Arc<dyn Device>, calls: usize) -> Refusing {
        Refusing { inner, calls_left: AtomicUsize::new(calls), tiles_refused: false }
    }

    /// Refuses nothing any more.
    pub fn relent(&self) {
        self.calls_left.store(usize::MAX, Ordering::SeqCst);
    }

    fn call(&self, what: &'static str) -> Result<(), DeviceError> {
        let counted = self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let refused = DeviceError::OutOfMemory { what, requested_bytes: 1, reason: "as told".to_string() };
        counted.map(|_| ()).map_err(|_| refused)
    }
}

impl Device for Refusing {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
    fn workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        self.inner.workspace_bytes(kernel, reads, writes)
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
    fn destroy_heap(&self, heap: HeapId) {
        self.inner.destroy_heap(heap);
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
    fn destroy_memory(&self, memory: MemoryId) {
        self.inner.destroy_memory(memory);
    }
    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError> {
        self.call("a stream")?;
        self.inner.create_stream(name, priority)
    }
    fn destroy_stream(&self, stream: StreamId) {
        self.inner.destroy_stream(stream);
    }
    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.call("an event")?;
        self.inner.create_event()
    }
    fn destroy_event(&self, event: EventId) {
        self.inner.destroy_event(event);
    }
    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        if commands.iter().any(|command| matches!(command, Command::Map { .. } | Command::Unmap { .. })) {
            self.call("a mapping")?;
        }
        self.inner.submit(commands)
    }
    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.synchronize(stream)
    }
    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.inner.wait_event(event, generation)
    }
    fn query_event(&self, event: EventId) -> u64 {
        self.inner.query_event(event)
    }
    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        self.inner.event_time(event, generation)
    }
    fn write_host(&self, region: Region, bytes: &[u8]) {
        self.inner.write_host(region, bytes);
    }
    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        self.inner.read_host(region, bytes);
    }
    fn usage(&self) -> DeviceUsage {
        self.inner.usage()
    }
    fn set_trace(&self, enabled: bool) {
        self.inner.set_trace(enabled);
    }
    fn take_trace(&self) -> Vec<TraceRecord> {
        self.inner.take_trace()
    }
}
