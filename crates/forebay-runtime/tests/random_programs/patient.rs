//! A device that runs nothing and never tells that an event fired before the host has waited for it. So nothing is ordered
//! in a recording but by what the program, or the runtime, really waited for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError, DeviceUsage, TraceRecord};

/// A null device whose events fire when they are waited for.
pub struct PatientDevice {
    inner: NullDevice,
    waited: Mutex<BTreeMap<EventId, u64>>,
}

impl PatientDevice {
    pub fn new() -> PatientDevice {
        PatientDevice { inner: NullDevice::new(NullProfile::Tiled), waited: Mutex::default() }
    }
}

impl Device for PatientDevice {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn workspace_bytes(&self, kernel: &Kernel, from: &[TensorDesc], to: &[TensorDesc]) -> Result<u64, DeviceError> {
        self.inner.workspace_bytes(kernel, from, to)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        self.inner.create_heap(size_bytes)
    }

    fn destroy_heap(&self, heap: HeapId) {
        self.inner.destroy_heap(heap);
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.inner.create_reservation(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.inner.create_placed(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.inner.create_host_block(size_bytes)
    }

    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.inner.create_spill(folder, size_bytes)
    }

    fn destroy_memory(&self, memory: MemoryId) {
        self.inner.destroy_memory(memory);
    }

    fn create_stream(&self, name: &str, priority: i32) -> Result<StreamId, DeviceError> {
        self.inner.create_stream(name, priority)
    }

    fn destroy_stream(&self, stream: StreamId) {
        self.inner.destroy_stream(stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.inner.create_event()
    }

    fn destroy_event(&self, event: EventId) {
        self.inner.destroy_event(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        self.inner.submit(commands)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.synchronize(stream)
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.inner.wait_event(event, generation)?;
        let mut waited = self.waited.lock().expect("no panic while locked");
        let latest = waited.entry(event).or_default();
        *latest = generation.max(*latest);
        Ok(())
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.waited.lock().expect("no panic while locked").get(&event).copied().unwrap_or(0)
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
