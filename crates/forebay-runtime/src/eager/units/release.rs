//! How memory comes back: of units that leave the device, of buffers that are gone, and all of it in the end.

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
    /// Takes a unit's device memory away: no one uses it, and it is mapped nowhere.
    ///
    /// # Errors
    /// [`RuntimeError::Plan`] for a unit without a location.
    pub fn take_slot(&self, state: &mut State, unit: UnitId) -> Result<(), RuntimeError> {
        let location = state.location(unit)?;
        location.uses.clear();
        let slot = location.slot.take();
        state.slots.give_back(slot);
        self.return_placed(state);
        Ok(())
    }

    /// Gives placed heaps without a buffer back to the device: another buffer has another size.
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

    /// Removes a buffer's units. Their memory is used again when no one uses it any more.
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
                // A lost device needs no return.
                let _ = self.shared.record(&mut order, queue);
            }
        }
        state.retired.push_back(Retired { reservation, locations, uses });
        self.reap(&mut state);
    }

    /// Takes back the memory of buffers that are gone, as far as their users have passed. Does not wait.
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

    /// Gives memory that no one uses back to the device: the bytes. Does not wait. What was taken for good stays.
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
            // Copies may be on their way from and to places that no one has any more.
            unused.extend(state.files.iter_mut().flat_map(|files| files.slab_pool.take_unused()));
        }
        unused.into_iter().for_each(|memory| self.shared.device.destroy_memory(memory));
        bytes
    }

    /// Takes back the memory of the buffer that has been gone for longest.
    ///
    /// # Errors
    /// Its uses where they are not over, and what `otherwise` says where there is none.
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
            // What failed was reported where it mattered.
            let _ = self.wait_for(queue, position);
        }
        let mut state = self.lock();
        self.release(&mut state, retired);
        self.destroy(state.slots.take_all());
        let files = state.files.take().map(|mut files| files.slab_pool.take_all());
        let blocks = state.blocks.take_all();
        blocks.into_iter().chain(files.into_iter().flatten()).for_each(|memory| device.destroy_memory(memory));
    }
}
