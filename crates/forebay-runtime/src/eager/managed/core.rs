//! What moves when, and what waits for what.
//!
//! One lock guards the state of a managed memory, and is held while units move: whoever needs units finds those of others
//! in place or gone, never on their way. All copies go to one stream. A copy comes after every use of its unit, and work
//! comes after the last copy of its units; mappings change when the host has seen that all uses are over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_base::{Command, Region};
use forebay_memory::eviction::{
    Access, Arrival, Eviction, EvictionQueue, Moves, Policy, Prefetch, PrefetchStart, UnitId,
};
use forebay_queue::shim::sync::{Condvar, Mutex, MutexGuard};
use forebay_queue::shim::{lock, wait};

use super::backing::Backing;
use super::homes::{add_use, Home, Homes, Retired};
use super::slots::Slots;
use super::spill::SpillFile;
use super::statistics::ManagedStatistics;
use crate::eager::batch::Batch;
use crate::eager::context::Context;
use crate::eager::ledger::Use;
use crate::eager::stream::Stream;
use crate::eager::timeline::{Agent, QueueId};
use crate::error::RuntimeError;

/// A managed memory, as its handles, buffers and its thread share it.
pub struct Core {
    /// Locks of several memories are taken in this order.
    pub number: u64,
    /// The context.
    pub context: Context,
    /// Where copies go.
    pub copies: Stream,
    /// Size of a unit.
    pub unit_bytes: u64,
    state: Mutex<State>,
    /// Notified when there is a prefetch to carry out, when one was, and at the end.
    pub changed: Condvar,
}

/// Everything that changes.
pub struct State {
    /// Who is on the device, and who goes next.
    pub queue: EvictionQueue,
    /// Where units are.
    pub homes: Homes,
    /// Device memory.
    pub slots: Slots,
    /// Host memory.
    pub backing: Backing,
    /// What is behind host memory, if anything.
    pub file: Option<SpillFile>,
    /// Buffers that are gone, oldest first.
    pub retired: VecDeque<Retired>,
    /// Numbers.
    pub statistics: ManagedStatistics,
    /// The next unit.
    pub next_unit: u64,
    /// Whether a prefetch is being carried out.
    pub prefetching: bool,
    /// Whether the thread for prefetches shall end.
    pub closing: bool,
}

impl State {
    /// A state without units.
    pub fn new(queue: EvictionQueue, slots: Slots, backing: Backing, file: Option<SpillFile>) -> State {
        State {
            queue,
            homes: Homes::new(),
            slots,
            backing,
            file,
            retired: VecDeque::new(),
            statistics: ManagedStatistics::default(),
            next_unit: 0,
            prefetching: false,
            closing: false,
        }
    }

    /// A unit's home.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] for a unit that has none, which is a defect.
    pub fn home(&mut self, unit: UnitId) -> Result<&mut Home, RuntimeError> {
        let reason = || RuntimeError::Plan { reason: format!("managed unit {unit} has no home") };
        self.homes.get_mut(&unit).ok_or_else(reason)
    }
}

/// The way of a copy between a unit's device bytes and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the device to the host.
    Back,
    /// From the host to the device.
    In,
}

impl Core {
    /// A managed memory.
    pub fn new(number: u64, context: Context, copies: Stream, unit_bytes: u64, state: State) -> Core {
        Core { number, context, copies, unit_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The state. Everything in it is valid between statements, so a panic elsewhere does no harm.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits for a change, with the lock given up meanwhile.
    pub fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        wait(&self.changed, state)
    }

    /// Makes units resident for work that is about to be submitted, and notes what it does with them.
    ///
    /// # Errors
    /// Units that do not fit together, no host memory for what has to go, or a failure of the device or the spill file.
    pub fn make_resident(&self, state: &mut State, uses: &[(UnitId, Access)]) -> Result<(), RuntimeError> {
        let moves = state.queue.plan(uses)?;
        state.statistics.faults += moves.arrivals.len() as u64;
        self.carry_out(state, &moves)?;
        state.queue.note_uses(uses);
        for &(unit, _) in uses.iter().filter(|(_, access)| *access != Access::Read) {
            state.forget_file(unit);
        }
        Ok(())
    }

    /// Moves units, and tells the queue. What fails half-way leaves units where the queue says.
    ///
    /// # Errors
    /// As [`Core::make_resident`].
    pub fn carry_out(&self, state: &mut State, moves: &Moves) -> Result<(), RuntimeError> {
        if moves.is_empty() {
            return Ok(());
        }
        let moving: Vec<UnitId> = moves.evictions.iter().map(|eviction| eviction.unit).collect();
        for eviction in moves.evictions.iter().filter(|eviction| eviction.copy_back) {
            self.copy_back(state, eviction.unit, &moving)?;
        }
        self.provide_slots(state, moves)?;
        self.evict(state, &moves.evictions)?;
        moves.arrivals.iter().try_for_each(|arrival| self.arrive(state, *arrival, &moving))
    }

    /// Takes as much device memory as arrivals need beside what evictions free.
    fn provide_slots(&self, state: &mut State, moves: &Moves) -> Result<(), RuntimeError> {
        self.reap(state);
        loop {
            let available = state.slots.free_count() + moves.evictions.len();
            let missing = moves.arrivals.len().saturating_sub(available) as u64;
            if missing == 0 {
                return Ok(());
            }
            let grown = state.slots.grow(&**self.context.device(), missing);
            if grown.map_err(|error| RuntimeError::Device { action: "while making room for managed memory", error })? {
                continue;
            }
            let Some(oldest) = state.retired.front().map(|retired| retired.uses.clone()) else {
                return Err(RuntimeError::Plan {
                    reason: "managed memory lost count of its device memory".to_string(),
                });
            };
            self.wait(state, &oldest)?;
            self.reap(state);
        }
    }

    /// Takes units from the device. Their data is on the host, on its way there, or dead.
    fn evict(&self, state: &mut State, evictions: &[Eviction]) -> Result<(), RuntimeError> {
        let mut uses = Vec::new();
        for eviction in evictions {
            let home = state.home(eviction.unit)?;
            home.uses.drain(..).for_each(|one| add_use(&mut uses, one));
        }
        self.wait(state, &uses)?;
        let mut commands = Vec::new();
        for eviction in evictions {
            commands.push(Command::Unmap { region: state.home(eviction.unit)?.region });
        }
        self.submit(commands)?;
        for &eviction in evictions {
            let slot = state.home(eviction.unit)?.slot.take();
            state.slots.give_back(slot);
            state.statistics.evictions += 1;
            if !eviction.copy_back {
                state.statistics.dropped_bytes += self.unit_bytes;
            }
            state.queue.carry_out(&Moves { evictions: vec![eviction], arrivals: Vec::new() });
        }
        Ok(())
    }

    /// Brings a unit to the device: there is memory for it.
    fn arrive(&self, state: &mut State, arrival: Arrival, moving: &[UnitId]) -> Result<(), RuntimeError> {
        if arrival.copy {
            // Before anything is mapped: this is what can fail.
            self.load(state, arrival.unit, moving)?;
        }
        let Some(slot) = state.slots.take() else {
            return Err(RuntimeError::Plan { reason: "managed memory lost count of its device memory".to_string() });
        };
        let region = state.home(arrival.unit)?.region;
        let map = Command::Map { region, heap: slot.heap, heap_offset_bytes: slot.offset_bytes };
        if let Err(error) = self.submit(vec![map]) {
            state.slots.give_back([slot]);
            return Err(error);
        }
        state.home(arrival.unit)?.slot = Some(slot);
        state.queue.carry_out(&Moves { evictions: Vec::new(), arrivals: vec![arrival] });
        if arrival.copy {
            self.copy(state, arrival.unit, Way::In)?;
        } else {
            state.statistics.mapped_bytes += self.unit_bytes;
        }
        Ok(())
    }

    /// Copies a unit between its device bytes and its block, after all uses of it.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn copy(&self, state: &mut State, unit: UnitId, way: Way) -> Result<(), RuntimeError> {
        let queue = self.copies.queue();
        let home = state.home(unit)?;
        let Some(block) = home.block else {
            return Err(RuntimeError::Plan { reason: format!("managed unit {unit} has no host memory") });
        };
        let (from, to, name) = match way {
            Way::Back => (home.region, block, "managed copy back"),
            Way::In => (block, home.region, "managed fetch"),
        };
        let shared = self.context.shared();
        let mut order = shared.lock();
        let mut batch = Batch::default();
        for &(on, position) in &home.uses {
            order.come_after(queue, on, position, &mut batch);
        }
        let command = Command::Copy { stream: order.stream(queue), from, to };
        let position = order.work(queue, command, &name.into(), &mut batch)?;
        shared.submit(&mut order, &batch)?;
        drop(order);
        home.add_use(queue, position);
        (home.moved, home.block_used) = (position, position);
        match way {
            Way::Back => state.statistics.copied_back_bytes += self.unit_bytes,
            Way::In => state.statistics.fetched_bytes += self.unit_bytes,
        }
        Ok(())
    }

    /// Copies a unit to the host; its bytes on the device stay. The host copies of `moving` units stay, too.
    ///
    /// # Errors
    /// No host memory, or a failure of the device or the spill file.
    pub fn copy_back(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), RuntimeError> {
        self.provide_block(state, unit, moving)?;
        self.copy(state, unit, Way::Back)?;
        state.forget_file(unit);
        state.queue.copied_back(unit);
        Ok(())
    }

    /// Carries out the first prefetch in line. The position of its copy to wait for, where it copies.
    ///
    /// # Errors
    /// As [`Core::make_resident`]; the prefetch is gone then.
    pub fn prefetch(&self, state: &mut State) -> Result<Option<u64>, RuntimeError> {
        let Some((Prefetch { unit, .. }, start)) = state.queue.start_prefetch() else { return Ok(None) };
        state.queue.finish_prefetch(&PrefetchStart::Nothing);
        match &start {
            PrefetchStart::Fetch(moves) => self.carry_out(state, moves)?,
            PrefetchStart::CopyBack => self.copy_back(state, unit, &[unit])?,
            PrefetchStart::Nothing => return Ok(None),
        }
        state.statistics.prefetches += 1;
        Ok(Some(state.home(unit)?.moved))
    }

    /// Notes that prefetches were asked for: a driver starts them at once, others leave them to the thread.
    ///
    /// # Errors
    /// As [`Core::make_resident`].
    pub fn prefetches_were_added(&self, state: &mut State) -> Result<(), RuntimeError> {
        if state.queue.policy() == Policy::Driver {
            while state.queue.prefetches().next().is_some() {
                self.prefetch(state)?;
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Removes a buffer's units. Their memory is used again when nobody uses it any more.
    pub fn retire(&self, units: impl Iterator<Item = UnitId>, reservation: Region) {
        let mut state = self.lock();
        let (mut homes, mut uses) = (Vec::new(), Vec::new());
        for unit in units {
            state.queue.remove(unit);
            let Some(home) = state.homes.remove(&unit) else { continue };
            if home.block.is_some() {
                state.backing.remove_holder(unit);
            }
            home.uses.iter().for_each(|&one| add_use(&mut uses, one));
            add_use(&mut uses, (self.copies.queue(), home.block_used));
            homes.push(home);
        }
        for &(queue, position) in &uses {
            let mut order = self.context.shared().lock();
            if order.timelines.known(Agent::Host, queue) < position
                && order.timelines.mark_behind(queue, position).is_none()
            {
                // A lost device needs no return.
                let _ = self.context.shared().record(&mut order, queue);
            }
        }
        state.retired.push_back(Retired { reservation: reservation.memory, homes, uses });
        self.reap(&mut state);
    }

    /// Takes back the memory of buffers that are gone, as far as their users have passed. Does not wait.
    pub fn reap(&self, state: &mut State) {
        let (gone, kept) = state.retired.drain(..).partition(|retired: &Retired| self.have_passed(&retired.uses));
        state.retired = kept;
        self.release(state, gone);
    }

    /// Takes back the memory of buffers that nobody uses.
    pub fn release(&self, state: &mut State, gone: VecDeque<Retired>) {
        for retired in gone {
            let mapped = retired.homes.iter().filter(|home| home.slot.is_some());
            // A lost device keeps its mappings; destroying a reservation unmaps it.
            let _ = self.submit(mapped.map(|home| Command::Unmap { region: home.region }).collect());
            self.context.device().destroy_memory(retired.reservation);
            for home in retired.homes {
                state.slots.give_back(home.slot);
                state.backing.give_back(home.block);
                if let (Some(file), Some(place)) = (&mut state.file, home.file) {
                    file.give_back(place);
                }
            }
        }
    }

    /// Submits mapping.
    pub fn submit(&self, commands: Vec<Command>) -> Result<(), RuntimeError> {
        let shared = self.context.shared();
        let mut order = shared.lock();
        shared.submit(&mut order, &Batch::from(commands))
    }

    /// Waits on the host until uses are over, and counts that.
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn wait(&self, state: &mut State, uses: &[Use]) -> Result<(), RuntimeError> {
        let start = Instant::now();
        let mut waited = false;
        for &(queue, position) in uses {
            waited |= self.wait_for(queue, position)?;
        }
        if waited {
            state.statistics.stalls += 1;
            state.statistics.stall += start.elapsed();
        }
        Ok(())
    }

    /// Waits on the host until a position of a queue is complete. Whether that was news.
    ///
    /// # Errors
    /// A failure of the device, then or earlier.
    pub fn wait_for(&self, queue: QueueId, position: u64) -> Result<bool, RuntimeError> {
        let shared = self.context.shared();
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
    fn have_passed(&self, uses: &[Use]) -> bool {
        let shared = self.context.shared();
        let mut order = shared.lock();
        uses.iter().all(|&(queue, position)| {
            let known = |order: &crate::eager::shared::State| order.timelines.known(Agent::Host, queue) >= position;
            if !known(&order) {
                if let Some(generation) = order.timelines.mark_behind(queue, position) {
                    shared.query(&mut order, queue, generation);
                }
            }
            known(&order)
        })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let device: Arc<_> = self.context.device().clone();
        let retired = std::mem::take(&mut self.lock().retired);
        for (queue, position) in retired.iter().flat_map(|retired| retired.uses.iter().copied()) {
            // What failed was reported where it mattered.
            let _ = self.wait_for(queue, position);
        }
        let mut state = self.lock();
        self.release(&mut state, retired);
        state.slots.clear(&*device);
        state.backing.clear(&*device);
    }
}
