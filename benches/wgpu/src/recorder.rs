//! A device that records what a training step submits to it.
//!
//! It sits between the product and its device and changes nothing. The comparison therefore uses what the product really runs, with the
//! bytes that it found and the bytes that it left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_base::{Command, MemoryId, Region};
use forebay_device::{forward, Device, DeviceError};
use forebay_vulkan::VulkanDevice;

/// The contents of memories.
pub type Picture = BTreeMap<MemoryId, Vec<u8>>;

/// One step, as the device received it.
pub struct Step {
    /// The commands that were submitted, list by list.
    pub lists: Vec<Vec<Command>>,
    /// The contents of the memories before the step.
    pub before: Picture,
    /// The contents of the memories after the step.
    pub after: Picture,
}

/// A Vulkan device whose first step is recorded.
pub struct Recorder {
    device: VulkanDevice,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Placed memories (true) and host blocks (false), with their sizes in bytes.
    memories: BTreeMap<MemoryId, (bool, u64)>,
    /// The commands that were submitted since the first launch, and the bytes from before it.
    lists: Vec<Vec<Command>>,
    before: Picture,
    done: bool,
}

impl Recorder {
    /// Records the first step on this device.
    pub fn new(device: VulkanDevice) -> Recorder {
        Recorder { device, state: Mutex::default() }
    }

    /// Returns the device itself.
    pub fn device(&self) -> &VulkanDevice {
        &self.device
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the step that has just been run, and stops recording.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn take(&self) -> Result<Step, DeviceError> {
        let mut state = self.lock();
        state.done = true;
        let (lists, before) = (std::mem::take(&mut state.lists), std::mem::take(&mut state.before));
        Ok(Step { lists, before, after: self.picture(&state)? })
    }

    /// Returns the contents of all memories. Nothing else runs meanwhile.
    fn picture(&self, state: &State) -> Result<Picture, DeviceError> {
        let stream = self.device.create_stream("picture", 0)?;
        let mut picture = Picture::new();
        for (&memory, &(placed, size_bytes)) in &state.memories {
            let region = Region::new(memory, 0, size_bytes);
            let mut bytes = vec![0; size_bytes as usize];
            if placed {
                let block = self.device.create_host_block(size_bytes)?;
                let to = Region::new(block, 0, size_bytes);
                self.device.submit(&[Command::Copy { stream, from: region, to }])?;
                self.device.synchronize(stream)?;
                self.device.read_host(to, &mut bytes);
                self.device.destroy_memory(block);
            } else {
                self.device.read_host(region, &mut bytes);
            }
            picture.insert(memory, bytes);
        }
        self.device.destroy_stream(stream);
        Ok(picture)
    }

    fn know(&self, memory: MemoryId, placed: bool, size_bytes: u64) -> MemoryId {
        self.lock().memories.insert(memory, (placed, size_bytes));
        memory
    }
}

impl Device for Recorder {
    forward! {
        device: limits workspace_bytes create_heap destroy_heap create_reservation create_spill create_stream
        destroy_stream create_event destroy_event synchronize recover wait_event query_event event_time write_host
        read_host take_index_fault usage set_trace take_trace
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        Ok(self.know(self.device.create_placed(size_bytes)?, true, size_bytes))
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        Ok(self.know(self.device.create_host_block(size_bytes)?, false, size_bytes))
    }

    fn destroy_memory(&self, memory: MemoryId) {
        self.lock().memories.remove(&memory);
        self.device.destroy_memory(memory);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let launches = commands.iter().any(|command| matches!(command, Command::Launch { .. }));
        if !state.done && (launches || !state.lists.is_empty()) {
            if state.lists.is_empty() {
                state.before = self.picture(&state)?;
            }
            state.lists.push(commands.to_vec());
        }
        self.device.submit(commands)
    }
}
