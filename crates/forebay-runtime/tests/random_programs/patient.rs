//! A device that runs nothing and never reports that an event fired before the host has waited for it. A recording is therefore ordered
//! only by what the program or the runtime actually waited for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay_base::EventId;
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError, forward};

/// A null device whose events fire when someone waits for them.
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
    forward! {
        inner: limits workspace_bytes host_workspace_bytes create_heap destroy_heap create_reservation create_placed create_host_block
        create_spill create_read_only destroy_memory create_stream destroy_stream create_event destroy_event submit synchronize recover
        event_time write_host read_host join take_index_fault usage set_trace take_trace
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
}
