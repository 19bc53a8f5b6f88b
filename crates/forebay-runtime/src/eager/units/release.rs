//! How memory is given back: that of units that leave the device, that of dropped buffers, and finally all of it.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_base::MemoryId;
use forebay_memory::eviction::UnitId;

use super::core::{Core, State};
use super::locations::{DeviceSegment, Retired, UnitLocation, add_use};
use super::stop::Stop;
use crate::eager::timeline::Agent;
use crate::error::RuntimeError;

impl Core {
    /// Takes a unit's device memory away, which no one uses and which is mapped nowhere.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Plan`] for a unit without a location.
    pub fn take_slot(&self, state: &mut State, unit: UnitId) -> Result<(), RuntimeError> {
        let location = state.location(unit)?;
        location.uses.clear();
        let slot = location.slot.take();
        state.slots.give_back(slot);
        self.return_placed(state);
        Ok(())
    }

    /// Gives placed heaps without a buffer back to the device, since another buffer has another size.
    fn return_placed(&self, state: &mut State) {
        if self.unit_bytes.is_none() {
            self.destroy(state.slots.take_unused());
        }
    }

    /// Gives segments back to the device.
    fn destroy(&self, segments: Vec<DeviceSegment>) {
        let device = &self.shared.device;
        for segment in segments {
            match segment {
                DeviceSegment::Heap(heap) => device.destroy_heap(heap),
                DeviceSegment::Placed(memory) => device.destroy_memory(memory),
            }
        }
    }

    /// Removes a buffer's units. Their memory is reused once no one uses it any more.
    pub fn retire(&self, units: impl Iterator<Item = UnitId>, reservation: Option<MemoryId>) {
        let mut state = self.lock();
        let (mut locations, mut uses) = (Vec::new(), Vec::new());
        for unit in units {
            state.queue.remove(unit);
            let Some(location) = state.locations.remove(&unit) else { continue };
            if location.block.is_some() {
                state.holders.retain(|&holder| holder != unit);
            }
            location.uses.iter().for_each(|&one| add_use(&mut uses, one));
            add_use(&mut uses, (self.copies.queue(), location.block_used));
            locations.push(location);
        }
        for &(queue, position) in &uses {
            let mut order = self.shared.lock();
            if order.timelines.known(Agent::Host, queue) < position
                && order.timelines.mark_behind(queue, position).is_none()
            {
                // On a lost device, no return is needed.
                let _ = self.shared.record(&mut order, queue);
            }
        }
        state.retired.push_back(Retired { reservation, locations, uses });
        self.reap(&mut state);
    }

    /// Takes back the memory of those dropped buffers whose uses are over. Does not wait.
    pub fn reap(&self, state: &mut State) {
        let (gone, kept) = state.retired.drain(..).partition(|retired: &Retired| self.have_passed(&retired.uses));
        state.retired = kept;
        self.release(state, gone);
    }

    /// Takes back the memory of buffers that no one uses.
    pub fn release(&self, state: &mut State, gone: VecDeque<Retired>) {
        for retired in gone {
            // A lost device keeps its mappings; destroying a reservation unmaps it.
            let _ = self.submit(retired.locations.iter().filter_map(UnitLocation::unmapping).collect());
            retired.reservation.into_iter().for_each(|memory| self.shared.device.destroy_memory(memory));
            for location in retired.locations {
                state.slots.give_back(location.slot);
                state.blocks.give_back(location.block);
                state.give_back_file(location.file);
            }
        }
        self.return_placed(state);
    }

    /// Gives unused memory back to the device and returns the number of bytes. Does not wait. Memory that was taken for good stays.
    pub fn trim(&self) -> u64 {
        let mut state = self.lock();
        self.reap(&mut state);
        let before_bytes = state.slots.reserved_bytes() + state.blocks.reserved_bytes();
        if self.grows {
            self.destroy(state.slots.take_unused());
        }
        let mut unused = state.blocks.take_unused();
        let bytes = before_bytes - state.slots.reserved_bytes() - state.blocks.reserved_bytes();
        let copied = self.shared.lock().timelines.issued(self.copies.queue());
        if self.have_passed(&[(self.copies.queue(), copied)]) {
            // Copies may still be on their way from and to places that no one owns any more.
            unused.extend(state.files.iter_mut().flat_map(|files| files.slab_pool.take_unused()));
        }
        unused.into_iter().for_each(|memory| self.shared.device.destroy_memory(memory));
        bytes
    }

    /// Takes back the memory of the buffer that was dropped first.
    ///
    /// # Errors
    /// Returns the buffer's uses if they are not over, and the result of `otherwise` if there is no such buffer.
    pub fn wait_for_oldest_retired(
        &self,
        state: &mut State,
        otherwise: impl FnOnce() -> RuntimeError,
    ) -> Result<(), Stop> {
        let oldest = state.retired.front().map(|retired| retired.uses.clone()).ok_or_else(otherwise)?;
        self.require(&oldest)?;
        self.reap(state);
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let device: Arc<_> = self.shared.device.clone();
        let retired = std::mem::take(&mut self.lock().retired);
        for (queue, position) in retired.iter().flat_map(|retired| retired.uses.iter().copied()) {
            if self.wait_for(queue, position).is_err() {
                // The failure was reported where it mattered. What the device had started before it can still use this memory.
                let stream = self.shared.lock().stream(queue);
                let _ = device.synchronize(stream);
            }
        }
        let mut state = self.lock();
        self.release(&mut state, retired);
        self.destroy(state.slots.take_all());
        let files = state.files.take().map(|mut files| files.slab_pool.take_all());
        let blocks = state.blocks.take_all();
        blocks.into_iter().chain(files.into_iter().flatten()).for_each(|memory| device.destroy_memory(memory));
    }
}
