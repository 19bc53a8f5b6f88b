//! Chaos: any device, with the most permissive legal reordering, so that a missing barrier or wait shows as a wrong result.
//!
//! Submitted commands are held back and run one at a time on the device inside, in an order that is chosen at random (with
//! a leaning to the latest) among all that the contract of commands allows to start. A consumer that nothing orders after
//! its producer soon runs before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};

use crate::device::{Device, DeviceError, DeviceUsage, TraceRecord};

/// A device that reorders whatever it may.
pub struct ChaosDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
    scheduler: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<StreamId, Vec<Pending>>,
    events: BTreeMap<EventId, u64>,
    failure: Option<DeviceError>,
    random: u64,
    submitted: u64,
    next_id: u32,
    closing: bool,
}

struct Pending {
    command: Command,
    /// Grows with every command submitted.
    number: u64,
    done: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Passes every barrier, wait and record that may be passed, and lists the work that may start, by stream and index.
    fn settle(&mut self) -> Vec<(StreamId, usize)> {
        loop {
            let mut ready = Vec::new();
            let mut fired = false;
            for (&stream, pending) in &mut self.streams {
                fired |= scan(stream, pending, &mut self.events, &mut ready);
                let finished = pending.iter().take_while(|item| item.done).count();
                pending.drain(..finished);
                ready.iter_mut().filter(|(of, _)| *of == stream).for_each(|(_, index)| *index -= finished);
            }
            if !fired {
                return ready;
            }
        }
    }

    /// Chooses among the work that may start: half of the time the latest submitted, else any.
    fn choose(&mut self, ready: &[(StreamId, usize)]) -> (StreamId, usize) {
        if self.below(2) == 0 {
            let number = |&&(stream, index): &&(StreamId, usize)| self.streams[&stream][index].number;
            return *ready.iter().max_by_key(number).expect("something may start");
        }
        ready[self.below(ready.len() as u64) as usize]
    }
}

/// Goes through one stream's commands from the front; whether any event fired.
fn scan(
    stream: StreamId,
    pending: &mut [Pending],
    events: &mut BTreeMap<EventId, u64>,
    ready: &mut Vec<(StreamId, usize)>,
) -> bool {
    let (mut all_done, mut fired) = (true, false);
    for (index, item) in pending.iter_mut().enumerate() {
        if item.done {
            continue;
        }
        match item.command {
            Command::Barrier { .. } if all_done => item.done = true,
            Command::Barrier { .. } => break,
            Command::Record { event, generation, .. } => {
                if all_done {
                    let value = events.entry(event).or_default();
                    *value = (*value).max(generation);
                    (item.done, fired) = (true, true);
                }
            }
            Command::Wait { event, generation, .. } => {
                if events.get(&event).copied().unwrap_or(0) < generation {
                    break;
                }
                item.done = true;
            }
            _ => {
                ready.push((stream, index));
                all_done = false;
            }
        }
    }
    fired
}

impl ChaosDevice {
    /// Wraps a device. The same seed makes the same choices where commands are submitted at the same pace.
    ///
    /// # Errors
    /// Where the device inside, or the system, refuses a stream.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Result<ChaosDevice, DeviceError> {
        let stream = inner.create_stream("chaos")?;
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = Mutex::new(State { random, ..State::default() });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let (device, scheduled) = (inner.clone(), shared.clone());
        let scheduler = std::thread::Builder::new()
            .name("chaos".to_string())
            .spawn(move || schedule(&*device, stream, &scheduled))
            .map_err(|error| DeviceError::Lost { reason: error.to_string() })?;
        Ok(ChaosDevice { inner, shared, scheduler: Some(scheduler) })
    }

    /// Waits until `finished` holds or the device has failed.
    fn wait_until(&self, finished: impl Fn(&State) -> bool) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if finished(&state) {
                return Ok(());
            }
            state = self.shared.wait(state);
        }
    }
}

/// Runs held commands one at a time until the device is dropped and nothing is left.
fn schedule(device: &dyn Device, stream: StreamId, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let ready = state.settle();
        shared.changed.notify_all();
        if ready.is_empty() || state.failure.is_some() {
            if state.closing {
                break;
            }
            state = shared.wait(state);
            continue;
        }
        let (of, index) = state.choose(&ready);
        let number = state.streams[&of][index].number;
        let command = on_stream(&state.streams[&of][index].command, stream);
        let delay = Duration::from_micros(if state.below(8) == 0 { state.below(200) } else { 0 });
        drop(state);
        std::thread::sleep(delay);
        let outcome = device.submit(&[command]).and_then(|()| device.synchronize(stream));
        state = shared.lock();
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        if let Some(item) = state.streams.get_mut(&of).and_then(|list| list.iter_mut().find(|i| i.number == number)) {
            item.done = true;
        }
    }
    drop(state);
    device.destroy_stream(stream);
}

fn on_stream(command: &Command, to: StreamId) -> Command {
    let mut command = command.clone();
    if let Command::Launch { stream, .. } | Command::Copy { stream, .. } | Command::Fill { stream, .. } = &mut command {
        *stream = to;
    }
    command
}

impl Device for ChaosDevice {
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

    fn destroy_memory(&self, memory: MemoryId) {
        self.inner.destroy_memory(memory);
    }

    fn create_stream(&self, _: &str) -> Result<StreamId, DeviceError> {
        let mut state = self.shared.lock();
        let id = StreamId(state.id());
        state.streams.insert(id, Vec::new());
        Ok(id)
    }

    fn destroy_stream(&self, stream: StreamId) {
        // A failure leaves commands behind that nobody will run.
        let _ = self.synchronize(stream);
        self.shared.lock().streams.remove(&stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.shared.lock();
        let id = EventId(state.id());
        state.events.insert(id, 0);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        self.shared.lock().events.remove(&event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        for command in commands {
            let Some(stream) = command.stream() else {
                self.inner.submit(std::slice::from_ref(command))?;
                continue;
            };
            state.submitted += 1;
            let number = state.submitted;
            let list = state.streams.get_mut(&stream);
            let list = list.ok_or_else(|| DeviceError::Lost { reason: format!("stream {stream} does not exist") })?;
            list.push(Pending { command: command.clone(), number, done: false });
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let finished = |state: &State| state.streams.get(&stream).is_none_or(|list| list.iter().all(|item| item.done));
        self.wait_until(finished)
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.wait_until(|state| state.events.get(&event).copied().unwrap_or(0) >= generation)
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.shared.lock().events.get(&event).copied().unwrap_or(0)
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

impl Drop for ChaosDevice {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(scheduler) = self.scheduler.take() {
            let _ = scheduler.join();
        }
    }
}
