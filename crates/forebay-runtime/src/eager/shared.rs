//! The state that all handles of a context share: queues, clocks, memory, and the ways in which the host waits.
//!
//! One lock guards the state. The host never holds it while waiting: it finds out what to wait for, releases the lock, waits, and looks
//! again.

use std::sync::Arc;

use forebay_base::{Command, EventId, StreamId};
use forebay_device::{Device, DeviceError, IndexFault};
use forebay_memory::allocator::BlockId;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, MutexGuard, PoisonError};
use forebay_sync::Tracker;
use forebay_sync::race::HostAction;

use super::batch::Batch;
use super::block_lifetimes::Relief;
use super::options::ContextOptions;
use super::recording::Recording;
use super::ring::Ring;
use super::store::{Allocation, Store, StoreKind};
use super::timeline::{Agent, QueueId, Timelines};
use super::timers::Timers;
use crate::error::RuntimeError;

/// The most records that can be open before the host asks which have fired, so that their number stays bounded.
const OPEN_RECORDS_MAX: usize = 64;

/// A stream of the device, which the user's streams share over time.
struct Queue {
    stream: StreamId,
    /// Recorded only by this queue, whose marks are the event's generations.
    event: EventId,
    priority: i32,
    /// The latest generation of the event whose record the device accepted.
    accepted: u64,
    /// The number of the user's streams that use it now.
    leases: usize,
    tracker: Tracker,
}

/// The mutable state.
pub struct State {
    queues: Vec<Queue>,
    /// Tracks who has waited for what.
    pub timelines: Timelines,
    stores: [Store; 2],
    /// What is recorded for the race checker, while recording is on.
    pub recording: Option<Recording>,
    /// The events that measure time.
    pub timers: Timers,
    /// The number of the next operation, for names.
    pub operation_count: u64,
    /// The error of the first commands that the device refused. The timelines count them as submitted.
    refusal: Option<DeviceError>,
}

/// A context's device and state.
pub struct Shared {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The unit in which heaps are mapped.
    pub tile_bytes: u64,
    queues_max: usize,
    state: Mutex<State>,
    /// The holders of host blocks.
    pub ring: Ring,
}

fn device_error(action: &'static str) -> impl FnOnce(DeviceError) -> RuntimeError {
    move |error| RuntimeError::Device { action, error }
}

/// The error for an index fault of an operation, which is known by its number.
fn index_error(fault: IndexFault) -> RuntimeError {
    let IndexFault { label, element, index, limit } = fault;
    RuntimeError::Index { name: format!("operation #{label}"), launch: label, element, index, limit }
}

impl Shared {
    /// Creates a state without work. The first queue that is leased belongs to the default stream, and is the last that other streams
    /// share.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn new(device: Arc<dyn Device>, options: &ContextOptions) -> Result<Shared, RuntimeError> {
        let [device_store, staging_store] = options.stores(device.limits())?;
        // Each queue has an event; the remaining events measure time.
        let queues_max = (options.event_limit / 2).clamp(1, 32);
        let mut state = State {
            queues: Vec::new(),
            timelines: Timelines::default(),
            stores: [Store::new(StoreKind::Device, device_store), Store::new(StoreKind::Staging, staging_store)],
            recording: options.record.then(Recording::default),
            timers: Timers::new(options.event_limit.saturating_sub(queues_max)),
            operation_count: 0,
            refusal: None,
        };
        state.store(StoreKind::Device).block_lifetimes.start_history(options.memory_history);
        let shared = Shared {
            device,
            tile_bytes: device_store.tile_bytes,
            queues_max,
            state: Mutex::new(state),
            ring: Ring::default(),
        };
        if !options.growth {
            shared.reserve_all(options.device_memory_bytes)?;
        }
        Ok(shared)
    }

    /// Takes all device memory that is allowed.
    fn reserve_all(&self, device_memory_bytes: Option<u64>) -> Result<(), RuntimeError> {
        let Some(bytes) = device_memory_bytes else {
            let reason =
                "memory that does not grow requires a size; set ContextOptions::device_memory_bytes".to_string();
            return Err(RuntimeError::Tensor { reason });
        };
        let mut state = self.lock();
        match state.reserve(&*self.device, StoreKind::Device, bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(state.out_of_memory(StoreKind::Device, bytes, None)),
            Err(error) => Err(state.out_of_memory(StoreKind::Device, bytes, Some(error))),
        }
    }

    /// Locks the state. Everything in it is valid between statements, so a panic elsewhere does no harm.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Leases a queue of this priority: an unused one, or else a new one, or else a shared one.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn lease_queue(&self, priority: i32) -> Result<QueueId, RuntimeError> {
        let mut state = self.lock();
        let unused = state.queues.iter().position(|queue| queue.leases == 0 && queue.priority == priority);
        let queue = match unused {
            Some(queue) => queue,
            None if state.queues.len() < self.queues_max => self.create_queue(&mut state, priority)?,
            None => {
                let alike = |&queue: &QueueId| queue > 0 && state.queues[queue].priority == priority;
                let shared = (0..state.queues.len()).filter(alike).min_by_key(|&queue| state.queues[queue].leases);
                // Sharing a queue orders more than was asked for, but breaks nothing.
                shared.unwrap_or(state.queues.len() - 1)
            }
        };
        state.queues[queue].leases += 1;
        Ok(queue)
    }

    fn create_queue(&self, state: &mut State, priority: i32) -> Result<QueueId, RuntimeError> {
        let name = format!("eager {}", state.queues.len());
        let making = "while creating a stream";
        let stream = self.device.create_stream(&name, priority).map_err(device_error(making))?;
        let event = match self.device.create_event() {
            Ok(event) => event,
            Err(error) => {
                self.device.destroy_stream(stream);
                return Err(device_error(making)(error));
            }
        };
        state.queues.push(Queue { stream, event, priority, accepted: 0, leases: 0, tracker: Tracker::default() });
        Ok(state.timelines.add_queue())
    }

    /// Gives a queue back, for another stream to use.
    pub fn return_queue(&self, queue: QueueId) {
        self.lock().queues[queue].leases -= 1;
    }

    /// Submits commands and records them for the race checker.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn submit(&self, state: &mut State, batch: &Batch) -> Result<(), RuntimeError> {
        if batch.commands().is_empty() {
            return Ok(());
        }
        if let Err(error) = self.device.submit(batch.commands()) {
            state.refusal.get_or_insert_with(|| error.clone());
            return Err(device_error("while submitting commands")(error));
        }
        state.note(batch);
        let mut records = false;
        for command in batch.commands() {
            if let Command::Record { event, generation, .. } = *command {
                records = true;
                state.accept(event, generation);
            }
        }
        if records && state.timelines.mark_count() > OPEN_RECORDS_MAX {
            self.poll(state);
        }
        Ok(())
    }

    /// Marks the current position of a queue. Returns the generation to wait for.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn record(&self, state: &mut State, queue: QueueId) -> Result<u64, RuntimeError> {
        let mut batch = Batch::default();
        let generation = state.record(queue, &mut batch);
        self.submit(state, &batch)?;
        Ok(generation)
    }

    /// Waits on the host until a generation of a queue has fired. Does not report indices out of range: the caller can be a thread that
    /// moves memory, and faults are meant for callers that wait for the operation.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier, or refused the record of this generation.
    pub fn wait(&self, queue: QueueId, generation: u64) -> Result<(), RuntimeError> {
        let action = "while waiting for a stream";
        let state = self.lock();
        let Queue { event, accepted, .. } = state.queues[queue];
        if let Some(error) = state.refusal.as_ref().filter(|_| accepted < generation) {
            // The record never fires, even if someone else who uses the device has cleared its failure.
            return Err(device_error(action)(error.clone()));
        }
        drop(state);
        self.device.wait_event(event, generation).map_err(device_error(action))?;
        self.lock().see(queue, generation);
        Ok(())
    }

    /// Waits for a generation of a queue on behalf of the user, to whom indices out of range are reported.
    ///
    /// # Errors
    /// As for [`Shared::wait`]; also if a completed operation of any queue found an index out of range.
    pub fn wait_for_results(&self, queue: QueueId, generation: u64) -> Result<(), RuntimeError> {
        self.wait(queue, generation)?;
        match self.device.take_index_fault() {
            Some(fault) => Err(index_error(fault)),
            None => Ok(()),
        }
    }

    /// Waits on the host for everything submitted to a queue.
    ///
    /// # Errors
    /// As for [`Shared::wait_for_results`].
    pub fn synchronize(&self, queue: QueueId) -> Result<(), RuntimeError> {
        let generation = self.record(&mut self.lock(), queue)?;
        self.wait_for_results(queue, generation)
    }

    /// Waits on the host for everything submitted to any queue.
    ///
    /// # Errors
    /// As for [`Shared::wait_for_results`].
    pub fn synchronize_all(&self) -> Result<(), RuntimeError> {
        let queues = self.lock().queues.len();
        (0..queues).try_for_each(|queue| self.synchronize(queue))
    }

    /// Whether a generation of a queue has fired.
    pub fn query(&self, state: &mut State, queue: QueueId, generation: u64) -> bool {
        let fired = self.device.query_event(state.queues[queue].event);
        if fired > 0 {
            state.see(queue, fired);
        }
        fired >= generation
    }

    /// Allocates bytes for `origin`. Maps free tiles together if that needs no waiting; otherwise takes more from the device if that is
    /// allowed; then waits for as much as it needs, the oldest first; then gives empty segments back and tries again.
    ///
    /// # Errors
    /// Returns [`RuntimeError::OutOfMemory`] if even that is not enough, or a failure of the device.
    pub fn allocate(
        &self,
        kind: StoreKind,
        origin: Agent,
        size_bytes: u64,
        owner: &str,
    ) -> Result<Allocation, RuntimeError> {
        loop {
            let mut state = self.lock();
            if let Some(place) = state.store(kind).allocate(origin, size_bytes, owner) {
                return Ok(place);
            }
            self.poll(&mut state);
            if let Some(place) = state.store(kind).allocate(origin, size_bytes, owner) {
                return Ok(place);
            }
            if let Some(place) = self.assemble(&mut state, kind, origin, size_bytes, owner, false)? {
                return Ok(place);
            }
            let grown = match state.stores[kind as usize].grows() {
                true => state.reserve(&*self.device, kind, size_bytes),
                false => Ok(false),
            };
            let refusal = match grown {
                Ok(true) => continue,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            let queues = state.queues.len();
            let state_now = &mut *state;
            let relief = state_now.stores[kind as usize].block_lifetimes.next_relief(&state_now.timelines, queues);
            if let Some(relief) = relief {
                let (queue, generation) = self.behind(&mut state, relief)?;
                drop(state);
                self.wait(queue, generation)?;
                continue;
            }
            if let Some(place) = self.assemble(&mut state, kind, origin, size_bytes, owner, true)? {
                return Ok(place);
            }
            if self.trim(&mut state, kind) == 0 {
                return Err(state.out_of_memory(kind, size_bytes, refusal));
            }
        }
    }

    /// Assembles a range of free tiles; unless the caller has `waited`, only of tiles that no one uses any more.
    fn assemble(
        &self,
        state: &mut State,
        kind: StoreKind,
        origin: Agent,
        size_bytes: u64,
        owner: &str,
        waited: bool,
    ) -> Result<Option<Allocation>, RuntimeError> {
        let mut commands = Vec::new();
        let place = state.store(kind).assemble(&*self.device, origin, size_bytes, owner, waited, &mut commands);
        state.note(&Batch::from(commands));
        place.map_err(device_error("while mapping free tiles together"))
    }

    /// The record of a queue after which memory becomes free.
    fn behind(&self, state: &mut State, relief: Relief) -> Result<(QueueId, u64), RuntimeError> {
        let (queue, mark) = match relief {
            Relief::Use((queue, position)) => (queue, state.timelines.mark_behind(queue, position)),
            Relief::Queue(queue) => (queue, None),
        };
        match mark {
            Some(generation) => Ok((queue, generation)),
            None => Ok((queue, self.record(state, queue)?)),
        }
    }

    /// Finds out, without waiting, what has completed, and releases the memory that this frees.
    fn poll(&self, state: &mut State) {
        for queue in 0..state.queues.len() {
            if state.timelines.has_unseen_marks(queue) {
                let fired = self.device.query_event(state.queues[queue].event);
                if fired > 0 {
                    state.see(queue, fired);
                }
            }
        }
        state.settle();
    }

    /// Gives empty segments back to the device, as far as their uses are known to be over. Returns the number of bytes given back, which is
    /// 0 for memory that does not grow, because it could not be taken again.
    pub fn trim(&self, state: &mut State, kind: StoreKind) -> u64 {
        self.poll(state);
        if !state.store(kind).grows() {
            return 0;
        }
        let mut commands = Vec::new();
        let bytes = state.store(kind).trim(&*self.device, &mut commands);
        state.note(&Batch::from(commands));
        bytes
    }

    /// Gives host blocks back if less than half of them was in use at any time since the previous call. One segment can stay.
    pub fn shrink_staging(&self, state: &mut State) {
        let store = state.store(StoreKind::Staging);
        let in_use_peak_bytes = store.block_lifetimes.allocator().statistics().in_use_peak_bytes;
        store.block_lifetimes.reset_peaks();
        let needed_bytes = in_use_peak_bytes.saturating_mul(2).max(store.segment_bytes());
        if store.reserved_bytes() > needed_bytes {
            self.trim(state, StoreKind::Staging);
        }
    }

    /// Frees a block. If another queue still uses it, a record is added after that use, so that its return can be seen.
    pub fn free(&self, kind: StoreKind, block: BlockId) {
        let mut state = self.lock();
        let state = &mut *state;
        for (queue, position) in state.stores[kind as usize].block_lifetimes.free(block, &state.timelines) {
            if state.timelines.mark_behind(queue, position).is_none() {
                // On a lost device, no return is needed.
                let _ = self.record(state, queue);
            }
        }
    }
}

impl State {
    /// The memory of a kind.
    pub fn store(&mut self, kind: StoreKind) -> &mut Store {
        &mut self.stores[kind as usize]
    }

    /// Takes a segment for this many bytes from the device. Returns false if the cap forbids it.
    fn reserve(&mut self, device: &dyn Device, kind: StoreKind, size_bytes: u64) -> Result<bool, DeviceError> {
        let mut commands = Vec::new();
        let reserved = self.store(kind).grow(device, size_bytes, &mut commands)?;
        self.note(&Batch::from(commands));
        Ok(reserved)
    }

    /// The device's stream that a queue uses.
    pub fn stream(&self, queue: QueueId) -> StreamId {
        self.queues[queue].stream
    }

    /// Adds a command that uses bytes to a queue, preceded by a barrier if a hazard within the queue requires one. Returns its position.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] for a region that is not mapped, which is a defect.
    pub fn work(
        &mut self,
        queue: QueueId,
        command: Command,
        name: &Arc<str>,
        batch: &mut Batch,
    ) -> Result<u64, RuntimeError> {
        let Queue { stream, tracker, .. } = &mut self.queues[queue];
        let barrier = tracker
            .submit(&command.reads(), &command.writes())
            .map_err(|error| RuntimeError::Plan { reason: error.to_string() })?;
        if barrier {
            batch.order(Command::Barrier { stream: *stream });
        }
        batch.work(command, name);
        Ok(self.timelines.issue(queue))
    }

    /// Marks the current position of a queue, with a record if there is none yet. Returns the generation to wait for.
    pub fn record(&mut self, queue: QueueId, batch: &mut Batch) -> u64 {
        let (generation, new) = self.timelines.record(queue);
        if new {
            let Queue { stream, event, .. } = self.queues[queue];
            batch.order(Command::Record { stream, event, generation });
        }
        generation
    }

    /// Makes a queue wait for a generation of another, unless it comes after it anyway.
    pub fn wait(&mut self, queue: QueueId, on: QueueId, generation: u64, batch: &mut Batch) {
        if self.timelines.wait(queue, on, generation) {
            let (stream, event) = (self.queues[queue].stream, self.queues[on].event);
            batch.order(Command::Wait { stream, event, generation });
            self.settle();
        }
    }

    /// Releases memory whose uses have returned.
    fn settle(&mut self) {
        let (queues, timelines) = (self.queues.len(), &self.timelines);
        self.stores.iter_mut().for_each(|store| store.block_lifetimes.settle(timelines, queues));
    }

    /// Orders a queue's later work after a position of another queue, unless it is ordered already.
    pub fn come_after(&mut self, queue: QueueId, on: QueueId, position: u64, batch: &mut Batch) {
        if self.timelines.known(Agent::Queue(queue), on) < position {
            let mark = self.timelines.mark_behind(on, position);
            let generation = mark.unwrap_or_else(|| self.record(on, batch));
            self.wait(queue, on, generation, batch);
        }
    }

    /// Notes that the device has accepted a record, unless its event measures time.
    fn accept(&mut self, event: EventId, generation: u64) {
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.event == event) {
            queue.accepted = generation;
        }
    }

    /// Notes that the host has seen a generation of a queue fire. Returns whether that is news.
    fn see(&mut self, queue: QueueId, generation: u64) -> bool {
        if !self.timelines.see(queue, generation) {
            return false;
        }
        let event = self.queues[queue].event;
        self.note_host(HostAction::WaitEvent { event, generation });
        self.settle();
        for (queue, Queue { tracker, .. }) in self.queues.iter_mut().enumerate() {
            if self.timelines.is_quiet(queue) {
                tracker.barrier();
            }
        }
        true
    }

    /// Records what the host did, for the race checker.
    pub fn note_host(&mut self, action: HostAction) {
        if let Some(recording) = &mut self.recording {
            recording.host(action);
        }
    }

    /// Records commands that were submitted elsewhere, for the race checker.
    fn note(&mut self, batch: &Batch) {
        if let Some(recording) = &mut self.recording {
            recording.submitted(batch);
        }
    }

    fn out_of_memory(&mut self, kind: StoreKind, requested_bytes: u64, refusal: Option<DeviceError>) -> RuntimeError {
        let store = self.store(kind);
        let allocator = store.block_lifetimes.allocator();
        let statistics = allocator.statistics();
        RuntimeError::OutOfMemory(Box::new(crate::error::OutOfMemory {
            what: if kind == StoreKind::Device { "device memory" } else { "staging memory" },
            requested_bytes,
            cap_bytes: Some(store.cap_bytes()).filter(|&bytes| bytes < u64::MAX),
            reserved_bytes: store.reserved_bytes(),
            in_use_bytes: statistics.in_use_bytes,
            largest_free_bytes: statistics.largest_free_bytes,
            holders: allocator.largest_holders(4).into_iter().map(|holder| (holder.owner, holder.size_bytes)).collect(),
            refusal: refusal.map(|error| error.to_string()),
        }))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for queue in &state.queues {
            // Failures were reported where they mattered.
            let _ = self.device.synchronize(queue.stream);
        }
        for queue in &state.queues {
            self.device.destroy_stream(queue.stream);
            self.device.destroy_event(queue.event);
        }
        state.timers.clear(&*self.device);
        state.stores.iter_mut().for_each(|store| store.clear(&*self.device));
    }
}
