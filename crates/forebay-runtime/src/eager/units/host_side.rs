//! The host's copies of units: blocks, the files behind them, and the host's own reads and writes.

use forebay_base::MemoryId;
use forebay_memory::eviction::{DeviceCopy, UnitId};
use forebay_sync::race::HostAction;

use super::core::{Core, State, Way, device_error};
use super::slab_pool::Slab;
use super::stop::Stop;
use crate::error::RuntimeError;

/// The number of units that are spilled at once: the first is waited for while the others are under way.
const SPILLS_AT_ONCE: usize = 2;

impl State {
    /// Discards the spill file's copy of a unit, which is out of date.
    pub fn forget_file(&mut self, unit: UnitId) {
        let place = self.locations.get_mut(&unit).and_then(|location| location.file.take());
        self.give_back_file(place);
    }

    /// Takes back a place in a spill file. Copies from and to it are ordered by their stream.
    pub fn give_back_file(&mut self, place: Option<Slab<MemoryId>>) {
        if let Some(files) = &mut self.files {
            files.slab_pool.give_back(place);
        }
    }

    /// Takes a unit's block away.
    fn take_block(&mut self, unit: UnitId) {
        let block = self.locations.get_mut(&unit).and_then(|location| location.block.take());
        self.holders.retain(|&holder| holder != unit);
        self.blocks.give_back(block);
    }
}

impl Core {
    /// Ensures that a unit has a block, with any contents. Units that are `moving` keep theirs, except for what a file can hold.
    ///
    /// # Errors
    /// Fails if host memory runs out or the device fails; or returns uses to wait for.
    pub fn provide_block(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), Stop> {
        if state.location(unit)?.block.is_some() {
            return Ok(());
        }
        let size_bytes = state.location(unit)?.size_bytes();
        loop {
            let device = &self.shared.device;
            let taken = state.blocks.take_or_grow(size_bytes, |size_bytes| device.create_host_block(size_bytes));
            if let Some(block) = taken.map_err(device_error("while creating host memory for managed memory"))? {
                let location = state.location(unit)?;
                (location.block, location.block_used) = (Some(block), 0);
                state.holders.push_back(unit);
                return Ok(());
            }
            let (in_use_bytes, reserved_bytes) = (state.blocks.in_use_bytes(), state.blocks.reserved_bytes());
            self.reap(state);
            if self.unit_bytes.is_none() {
                // Blocks of other sizes are only in the way.
                state.blocks.take_unused().into_iter().for_each(|memory| device.destroy_memory(memory));
            }
            if (state.blocks.in_use_bytes(), state.blocks.reserved_bytes()) == (in_use_bytes, reserved_bytes) {
                self.free_block(state, unit, moving)?;
            }
        }
    }

    /// Frees the block of some unit: one without valuable contents, or else one with data that the device also has, or else one that is
    /// spilled to a file, or else one that a moving unit would use again. If there is none, takes back the blocks of a dropped buffer.
    fn free_block(&self, state: &mut State, wanted_by: UnitId, moving: &[UnitId]) -> Result<(), Stop> {
        let holders = |accept: &dyn Fn(UnitId) -> bool| -> Vec<UnitId> {
            let others = state.holders.iter().copied().filter(|&unit| unit != wanted_by && accept(unit));
            others.take(SPILLS_AT_ONCE).collect()
        };
        let in_file = |unit: UnitId| state.locations.get(&unit).is_some_and(|location| location.file.is_some());
        let worthless = |unit: UnitId| !state.queue.has_host_copy(unit);
        let stale = |unit: UnitId| worthless(unit) && !moving.contains(&unit);
        let spare = |unit: UnitId| state.queue.can_spare_host_copy(unit) && !moving.contains(&unit);
        let only = |unit: UnitId| state.queue.has_host_copy(unit) && state.files.is_some();
        if let Some(&unit) = holders(&|unit| stale(unit) || in_file(unit)).first() {
            self.require_block(state, unit)?;
            state.take_block(unit);
        } else if let Some(&unit) = holders(&spare).first() {
            self.require_block(state, unit)?;
            state.queue.spare_host_copy(unit);
            state.take_block(unit);
        } else if let Some((&unit, next)) = holders(&only).split_first() {
            self.spill(state, unit)?;
            // The next one would be the next to be spilled. If it cannot be, no one needs it yet.
            let _ = next.first().map(|&unit| self.spill(state, unit));
        } else if let Some(&unit) = holders(&worthless).first() {
            self.require_block(state, unit)?;
            state.take_block(unit);
        } else {
            let cap_bytes = state.blocks.cap_bytes();
            self.wait_for_oldest_retired(state, || RuntimeError::HostMemory { cap_bytes })?;
        }
        Ok(())
    }

    /// Starts copying a unit's block to a file. The block is free once that is done.
    fn spill(&self, state: &mut State, unit: UnitId) -> Result<(), RuntimeError> {
        let size_bytes = state.location(unit)?.size_bytes();
        let Some(files) = &mut state.files else { return Ok(()) };
        let place = files.take(&*self.shared.device, size_bytes);
        let place = place.map_err(device_error("while making room in a spill file"))?;
        state.location(unit)?.file = place;
        let copied = self.copy(state, unit, Way::Spill);
        if copied.is_err() {
            state.forget_file(unit);
        }
        copied
    }

    /// Ensures that the host's copy of a unit is in a block, or on its way there.
    ///
    /// # Errors
    /// As for [`Core::provide_block`].
    pub fn load(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), Stop> {
        if state.location(unit)?.block.is_some() {
            return Ok(());
        }
        self.provide_block(state, unit, moving)?;
        if state.location(unit)?.file.is_none() {
            return Ok(());
        }
        let loaded = self.copy(state, unit, Way::Unspill);
        if loaded.is_err() {
            state.take_block(unit);
        }
        Ok(loaded?)
    }

    /// Ensures that no copy uses a unit's block.
    fn require_block(&self, state: &mut State, unit: UnitId) -> Result<(), Stop> {
        let block_used = state.location(unit)?.block_used;
        self.require(&[(self.copies.queue(), block_used)])
    }

    /// Reads a part of a unit on the host, after all submitted work that writes it. Bytes that were never written are 0.
    ///
    /// # Errors
    /// As for [`Core::provide_block`].
    pub fn host_read(&self, state: &mut State, unit: UnitId, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Stop> {
        if !state.queue.has_data(unit) {
            bytes.fill(0);
            return Ok(());
        }
        if state.queue.host_read_copies_back(unit) {
            self.copy_back(state, unit, &[unit])?;
        }
        self.load(state, unit, &[unit])?;
        self.require_block(state, unit)?;
        if let Some(block) = state.location(unit)?.block_region() {
            let part = block.part(offset_bytes, bytes.len() as u64);
            self.shared.device.read_host(part, bytes);
            self.shared.lock().note_host(HostAction::Read(part));
        }
        Ok(())
    }

    /// Writes a part of a unit on the host, after all submitted work that uses it. `whole` says that the unit's other bytes belong to no
    /// one.
    ///
    /// # Errors
    /// As for [`Core::provide_block`].
    pub fn host_write(
        &self,
        state: &mut State,
        unit: UnitId,
        offset_bytes: u64,
        bytes: &[u8],
        whole: bool,
    ) -> Result<(), Stop> {
        let write = state.queue.host_write(unit, whole);
        if write.copy_back {
            self.copy_back(state, unit, &[unit])?;
        }
        if state.queue.has_data(unit) && !whole {
            self.load(state, unit, &[unit])?;
        } else {
            self.provide_block(state, unit, &[unit])?;
        }
        self.require_block(state, unit)?;
        if write.device_copy == DeviceCopy::Dropped {
            let uses = state.location(unit)?.uses.clone();
            self.require(&uses)?;
            self.submit(state.location(unit)?.unmapping().into_iter().collect())?;
            self.take_slot(state, unit)?;
        }
        if let Some(block) = state.location(unit)?.block_region() {
            let part = block.part(offset_bytes, bytes.len() as u64);
            self.shared.device.write_host(part, bytes);
            self.shared.lock().note_host(HostAction::Write(part));
        }
        state.forget_file(unit);
        state.queue.host_wrote(unit, write);
        if write.device_copy == DeviceCopy::Updated {
            self.copy(state, unit, Way::In)?;
        }
        Ok(())
    }
}
