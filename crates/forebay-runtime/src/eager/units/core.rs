//! Decides what moves when, and what waits for what.
//!
//! One lock guards the state of a managed memory, and is held while moves are decided and submitted: a thread that needs units finds those
//! of others in place or gone, never on their way. All copies go to one stream. A copy comes after every use of its unit, and work comes
//! after the last copy of its units; mappings change once the host has seen that all uses are over. If it has not yet, the change stops,
//! the host waits without the lock, and the change starts again ([`Core::run`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::{Command, MemoryId};
use forebay_device::DeviceError;
use forebay_memory::eviction::{
    Access, Arrival, Eviction, EvictionQueue, Moves, Policy, Prefetch, PrefetchStart, UnitId,
};
use forebay_queue::shim::sync::{Condvar, Mutex, MutexGuard};
use forebay_queue::shim::{lock, wait};

use super::locations::{DeviceSegment, Retired, UnitLocation, UnitLocations, add_use};
use super::slab_pool::SlabPool;
use super::spill::SpillFiles;
use super::statistics::ManagedStatistics;
use super::stop::Stop;
use crate::eager::batch::Batch;
use crate::eager::block_lifetimes::Use;
use crate::eager::lease::Lease;
use crate::eager::shared::Shared;
use crate::eager::timeline::{Agent, QueueId};
use crate::error::RuntimeError;

/// A managed memory, as shared by its handles, its buffers and its thread.
pub struct Core {
    /// The number by which locks of several memories are ordered.
    pub number: u64,
    /// The device, and what the context's handles share.
    pub shared: Arc<Shared>,
    /// The queue that copies go to.
    pub copies: Lease,
    /// The size of a unit, or `None` if each buffer is a unit because the device has no tiles.
    pub unit_bytes: Option<u64>,
    /// Whether device memory is taken and given back as buffers come and go.
    pub grows: bool,
    state: Mutex<State>,
    /// Notified when a prefetch is to be carried out, when one has been, and at the end.
    pub changed: Condvar,
}

/// The mutable state.
pub struct State {
    /// Tracks which units are on the device, and which go next.
    pub queue: EvictionQueue,
    /// Where units are.
    pub locations: UnitLocations,
    /// Device memory.
    pub slots: SlabPool<DeviceSegment>,
    /// Host memory.
    pub blocks: SlabPool<MemoryId>,
    /// Units with bytes on the host, in the order in which they got them.
    pub holders: VecDeque<UnitId>,
    /// The spill files behind host memory, if there are any.
    pub files: Option<SpillFiles>,
    /// Buffers that were dropped, oldest first.
    pub retired: VecDeque<Retired>,
    /// Counts of what was moved and waited for.
    pub statistics: ManagedStatistics,
    /// The number of the next unit.
    pub next_unit: u64,
    /// Whether a prefetch is being carried out.
    pub prefetching: bool,
    /// Whether the thread for prefetches should end.
    pub closing: bool,
}

impl State {
    /// Creates a state without units.
    pub fn new(
        queue: EvictionQueue,
        slots: SlabPool<DeviceSegment>,
        blocks: SlabPool<MemoryId>,
        files: Option<SpillFiles>,
    ) -> State {
        State {
            queue,
            locations: UnitLocations::new(),
            slots,
            blocks,
            holders: VecDeque::new(),
            files,
            retired: VecDeque::new(),
            statistics: ManagedStatistics::default(),
            next_unit: 0,
            prefetching: false,
            closing: false,
        }
    }

    /// A unit's location.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] for a unit that has none, which is a defect.
    pub fn location(&mut self, unit: UnitId) -> Result<&mut UnitLocation, RuntimeError> {
        let reason = || RuntimeError::Plan { reason: format!("managed unit {unit} has no backing location") };
        self.locations.get_mut(&unit).ok_or_else(reason)
    }

    fn size_bytes(&self, units: impl Iterator<Item = UnitId>) -> u64 {
        units.filter_map(|unit| self.locations.get(&unit)).map(UnitLocation::size_bytes).sum()
    }
}

/// The direction of a copy between a unit's locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the device to its block on the host.
    Back,
    /// From its block to the device.
    In,
    /// From its block to a spill file.
    Spill,
    /// From a spill file to its block.
    Unspill,
}

/// The reason why units move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Work that is about to be submitted.
    Work,
    /// A prefetch.
    Prefetch,
}

/// Adds to a failure of the device what was being done.
pub fn device_error(action: &'static str) -> impl FnOnce(DeviceError) -> RuntimeError {
    move |error| RuntimeError::Device { action, error }
}

fn lost_count() -> RuntimeError {
    RuntimeError::Plan { reason: "managed memory lost track of its device memory".to_string() }
}

impl Core {
    /// Creates a managed memory.
    pub fn new(
        number: u64,
        shared: Arc<Shared>,
        copies: Lease,
        unit_bytes: Option<u64>,
        grows: bool,
        state: State,
    ) -> Core {
        Core { number, shared, copies, unit_bytes, grows, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Locks the state. Everything in it is valid between statements, so a panic elsewhere does no harm.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits for a change, with the lock released in the meantime.
    pub fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        wait(&self.changed, state)
    }

    /// Changes the state; if the change has to wait, waits without the lock and tries again.
    ///
    /// # Errors
    /// Returns what the change or the wait reports.
    pub fn run<T>(&self, mut change: impl FnMut(&mut State) -> Result<T, Stop>) -> Result<T, RuntimeError> {
        loop {
            let changed = change(&mut self.lock());
            match changed {
                Ok(result) => return Ok(result),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Wait(uses)) => self.wait(&uses)?,
            }
        }
    }

    /// Makes units resident for work that is about to be submitted, and records how it accesses them.
    ///
    /// # Errors
    /// Fails if the units do not fit at once, if host memory for evicted data runs out, or if the device fails; or returns uses to wait
    /// for.
    pub fn make_resident(&self, state: &mut State, uses: &[(UnitId, Access)]) -> Result<(), Stop> {
        let moves = state.queue.plan(uses)?;
        self.carry_out(state, &moves, Cause::Work)?;
        state.queue.note_uses(uses);
        for &(unit, _) in uses.iter().filter(|(_, access)| *access != Access::Read) {
            state.forget_file(unit);
        }
        Ok(())
    }

    /// Moves units, and tells the queue. If it fails half-way, units are where the queue says.
    ///
    /// # Errors
    /// As for [`Core::make_resident`].
    pub fn carry_out(&self, state: &mut State, moves: &Moves, cause: Cause) -> Result<(), Stop> {
        if moves.is_empty() {
            return Ok(());
        }
        let moving: Vec<UnitId> = moves.evictions.iter().map(|eviction| eviction.unit).collect();
        for eviction in moves.evictions.iter().filter(|eviction| eviction.copy_back) {
            self.copy_back(state, eviction.unit, &moving)?;
        }
        self.provide_slots(state, moves)?;
        self.evict(state, &moves.evictions)?;
        moves.arrivals.iter().try_for_each(|arrival| self.arrive(state, *arrival, &moving, cause))
    }

    /// Takes all device memory that is allowed.
    ///
    /// # Errors
    /// Fails if a heap cannot be created.
    pub fn take_all(&self) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let cap_bytes = state.slots.cap_bytes();
        while state.slots.grow(self.unit_bytes.unwrap_or(cap_bytes), cap_bytes, |bytes| self.create_heap(bytes))? {}
        Ok(())
    }

    fn create_heap(&self, size_bytes: u64) -> Result<DeviceSegment, DeviceError> {
        self.shared.device.create_heap(size_bytes).map(DeviceSegment::Heap)
    }

    /// Takes as much device memory as arrivals need in addition to what evictions free.
    fn provide_slots(&self, state: &mut State, moves: &Moves) -> Result<(), Stop> {
        let arriving_bytes = state.size_bytes(moves.arrivals.iter().map(|arrival| arrival.unit));
        let leaving_bytes = state.size_bytes(moves.evictions.iter().map(|eviction| eviction.unit));
        self.reap(state);
        loop {
            // A placed heap is created when its buffer arrives; here it only needs room.
            let room_bytes = match self.unit_bytes {
                Some(_) => state.slots.free_bytes(),
                None => state.slots.cap_bytes() - state.slots.reserved_bytes(),
            };
            let missing_bytes = arriving_bytes.saturating_sub(room_bytes + leaving_bytes);
            if missing_bytes == 0 {
                return Ok(());
            }
            if let Some(unit_bytes) = self.unit_bytes {
                let grown = state.slots.grow(unit_bytes, missing_bytes, |bytes| self.create_heap(bytes));
                if grown.map_err(device_error("while making room for managed memory"))? {
                    continue;
                }
            }
            self.wait_for_oldest_retired(state, lost_count)?;
        }
    }

    /// Evicts units from the device. Their data is on the host, on its way there, or dead.
    fn evict(&self, state: &mut State, evictions: &[Eviction]) -> Result<(), Stop> {
        let mut uses = Vec::new();
        for eviction in evictions {
            state.location(eviction.unit)?.uses.iter().for_each(|&one| add_use(&mut uses, one));
        }
        self.require(&uses)?;
        let mut commands = Vec::new();
        for eviction in evictions {
            commands.extend(state.location(eviction.unit)?.unmapping());
        }
        self.submit(commands)?;
        for &eviction in evictions {
            state.statistics.evictions += 1;
            if !eviction.copy_back {
                state.statistics.dropped_bytes += state.location(eviction.unit)?.size_bytes();
            }
            self.take_slot(state, eviction.unit)?;
            state.queue.carry_out(&Moves { evictions: vec![eviction], arrivals: Vec::new() });
        }
        Ok(())
    }

    /// Brings a unit to the device, which has memory for it.
    fn arrive(&self, state: &mut State, arrival: Arrival, moving: &[UnitId], cause: Cause) -> Result<(), Stop> {
        if arrival.copy {
            // Before anything is mapped, because this can fail.
            self.load(state, arrival.unit, moving)?;
        }
        let size_bytes = state.location(arrival.unit)?.size_bytes();
        let make = |size_bytes| self.shared.device.create_placed(size_bytes).map(DeviceSegment::Placed);
        let slot = match self.unit_bytes {
            Some(_) => state.slots.take(size_bytes),
            None => {
                let action = device_error("while making room for a managed buffer");
                state.slots.take_or_grow(size_bytes, make).map_err(action)?
            }
        };
        let slot = slot.ok_or_else(lost_count)?;
        match slot.memory {
            DeviceSegment::Placed(memory) => state.location(arrival.unit)?.address.set(memory),
            DeviceSegment::Heap(heap) => {
                let region = state.location(arrival.unit)?.region();
                let map = Command::Map { region, heap, heap_offset_bytes: slot.offset_bytes };
                if let Err(error) = self.submit(vec![map]) {
                    state.slots.give_back([slot]);
                    return Err(error.into());
                }
            }
        }
        state.location(arrival.unit)?.slot = Some(slot);
        state.queue.carry_out(&Moves { evictions: Vec::new(), arrivals: vec![arrival] });
        state.statistics.faults += u64::from(cause == Cause::Work);
        if arrival.copy {
            self.copy(state, arrival.unit, Way::In)?;
        } else {
            state.statistics.mapped_bytes += size_bytes;
        }
        Ok(())
    }

    /// Copies a unit between two of its locations, after everything that used it before.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn copy(&self, state: &mut State, unit: UnitId, way: Way) -> Result<(), RuntimeError> {
        let queue = self.copies.queue();
        let location = state.location(unit)?;
        let nowhere = |what| RuntimeError::Plan { reason: format!("managed unit {unit} has no {what}") };
        let block = location.block_region().ok_or_else(|| nowhere("host memory"))?;
        let file = location.file_region().ok_or_else(|| nowhere("place in a spill file"));
        let (from, to, name) = match way {
            Way::Back => (location.region(), block, "managed copy back"),
            Way::In => (block, location.region(), "managed fetch"),
            Way::Spill => (block, file?, "managed spill"),
            Way::Unspill => (file?, block, "managed read of the spill file"),
        };
        let shared = &self.shared;
        let mut order = shared.lock();
        let mut batch = Batch::default();
        let on_device = matches!(way, Way::Back | Way::In);
        if on_device {
            for &(on, position) in &location.uses {
                order.come_after(queue, on, position, &mut batch);
            }
        }
        let command = Command::Copy { stream: order.stream(queue), from, to };
        let position = order.work(queue, command, &name.into(), &mut batch)?;
        shared.submit(&mut order, &batch)?;
        drop(order);
        location.block_used = position;
        if on_device {
            location.add_use(queue, position);
            location.moved = position;
        }
        let statistics = &mut state.statistics;
        let count = match way {
            Way::Back => &mut statistics.copied_back_bytes,
            Way::In => &mut statistics.fetched_bytes,
            Way::Spill => &mut statistics.spilled_bytes,
            Way::Unspill => &mut statistics.unspilled_bytes,
        };
        *count += from.range.len();
        Ok(())
    }

    /// Copies a unit to the host and keeps its bytes on the device. The host copies of `moving` units are kept, too.
    ///
    /// # Errors
    /// Fails if host memory runs out or the device fails; or returns uses to wait for.
    pub fn copy_back(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), Stop> {
        self.provide_block(state, unit, moving)?;
        self.copy(state, unit, Way::Back)?;
        state.forget_file(unit);
        state.queue.copied_back(unit);
        Ok(())
    }

    /// Carries out the first pending prefetch. Returns the position of its copy to wait for, if it copies.
    ///
    /// # Errors
    /// As for [`Core::make_resident`]; a prefetch that fails is removed, one that waits stays pending.
    pub fn prefetch(&self, state: &mut State) -> Result<Option<u64>, Stop> {
        let Some((Prefetch { unit, .. }, start)) = state.queue.start_prefetch() else { return Ok(None) };
        let done = match &start {
            PrefetchStart::SwapIn(moves) => self.carry_out(state, moves, Cause::Prefetch),
            PrefetchStart::CopyBack => self.copy_back(state, unit, &[unit]),
            PrefetchStart::Nothing => Ok(()),
        };
        if let Err(Stop::Wait(uses)) = done {
            return Err(Stop::Wait(uses));
        }
        // The queue already knows what it did.
        state.queue.finish_prefetch(&PrefetchStart::Nothing);
        done?;
        if start == PrefetchStart::Nothing {
            return Ok(None);
        }
        state.statistics.prefetches += 1;
        Ok(Some(state.location(unit)?.moved))
    }

    /// Notes that prefetches were requested: with [`Policy::Driver`] they start at once, otherwise they are left to the thread.
    ///
    /// # Errors
    /// As for [`Core::make_resident`], except for the waits.
    pub fn prefetches_were_added(&self) -> Result<(), RuntimeError> {
        let carried_out = self.run(|state| {
            while state.queue.policy() == Policy::Driver && state.queue.prefetches().next().is_some() {
                self.prefetch(state)?;
            }
            Ok(())
        });
        if carried_out.is_err() {
            // With this policy, there is no thread to carry out the others.
            self.lock().queue.cancel_prefetches();
        }
        self.changed.notify_all();
        carried_out
    }

    /// Submits mapping commands.
    pub fn submit(&self, commands: Vec<Command>) -> Result<(), RuntimeError> {
        let shared = &self.shared;
        let mut order = shared.lock();
        shared.submit(&mut order, &Batch::from(commands))
    }

    /// Ensures that uses are over, and that the copies among them did what they should.
    ///
    /// # Errors
    /// Returns the uses if they are not over, or the failure of a device that has failed: its events fire, too, but copies before them may
    /// have failed or never run.
    pub fn require(&self, uses: &[Use]) -> Result<(), Stop> {
        match self.have_passed(uses) {
            true => self.check().map_err(Stop::from),
            false => Err(Stop::Wait(uses.to_vec())),
        }
    }

    /// Checks that the device has not failed. Does not wait.
    ///
    /// # Errors
    /// The failure of the device.
    pub fn check(&self) -> Result<(), RuntimeError> {
        // Every event has fired generation 0.
        self.shared.wait(self.copies.queue(), 0)
    }

    /// Waits on the host until uses are over, and counts the wait. The lock must not be held.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
    pub fn wait(&self, uses: &[Use]) -> Result<(), RuntimeError> {
        let start = Instant::now();
        let mut waited = false;
        for &(queue, position) in uses {
            waited |= self.wait_for(queue, position)?;
        }
        if waited {
            let mut state = self.lock();
            state.statistics.stalls += 1;
            state.statistics.stall += start.elapsed();
        }
        Ok(())
    }

    /// Waits on the host until a position of a queue is complete. Returns whether that was news.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier.
    pub fn wait_for(&self, queue: QueueId, position: u64) -> Result<bool, RuntimeError> {
        let shared = &self.shared;
        let mut order = shared.lock();
        if order.timelines.known(Agent::Host, queue) >= position {
            return Ok(false);
        }
        let generation = match order.timelines.mark_behind(queue, position) {
            Some(generation) => generation,
            None => shared.record(&mut order, queue)?,
        };
        drop(order);
        shared.wait(queue, generation)?;
        Ok(true)
    }

    /// Whether uses are over. Does not wait.
    pub fn have_passed(&self, uses: &[Use]) -> bool {
        let shared = &self.shared;
        let mut order = shared.lock();
        uses.iter().all(|&(queue, position)| {
            let known = |order: &crate::eager::shared::State| order.timelines.known(Agent::Host, queue) >= position;
            if !known(&order)
                && let Some(generation) = order.timelines.mark_behind(queue, position)
            {
                shared.query(&mut order, queue, generation);
            }
            known(&order)
        })
    }
}
