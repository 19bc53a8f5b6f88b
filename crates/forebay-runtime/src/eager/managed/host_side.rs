//! The host's copies of units: blocks, the file behind them, and what the host itself reads and writes.

use forebay_base::Command;
use forebay_memory::eviction::{DeviceCopy, UnitId};
use forebay_sync::race::HostAction;

use super::core::{Core, State, Way};
use crate::error::RuntimeError;

impl State {
    /// The spill file's copy of a unit is out of date.
    pub fn forget_file(&mut self, unit: UnitId) {
        let place = self.homes.get_mut(&unit).and_then(|home| home.file.take());
        if let (Some(file), Some(place)) = (&mut self.file, place) {
            file.give_back(place);
        }
    }

    /// Takes a unit's block away.
    fn take_block(&mut self, unit: UnitId) {
        let block = self.homes.get_mut(&unit).and_then(|home| home.block.take());
        self.backing.remove_holder(unit);
        self.backing.give_back(block);
    }
}

impl Core {
    /// Sees to it that a unit has a block, whatever is in it. Units that are `moving` keep theirs, but for what the file can
    /// hold.
    ///
    /// # Errors
    /// No host memory, or a failure of the device or the spill file.
    pub fn provide_block(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), RuntimeError> {
        if state.home(unit)?.block.is_some() {
            return Ok(());
        }
        loop {
            let taken = state.backing.take(&**self.context.device());
            let action = "while making host memory for managed memory";
            if let Some(block) = taken.map_err(|error| RuntimeError::Device { action, error })? {
                let home = state.home(unit)?;
                (home.block, home.block_used) = (Some(block), 0);
                state.backing.add_holder(unit);
                return Ok(());
            }
            self.reap(state);
            if !state.backing.has_free() {
                self.free_block(state, unit, moving)?;
            }
        }
    }

    /// Frees the block of some unit: one that holds nothing of worth, else one that the device has the same data of, else one
    /// that goes to the file; else waits for those of a buffer that is gone.
    fn free_block(&self, state: &mut State, wanted_by: UnitId, moving: &[UnitId]) -> Result<(), RuntimeError> {
        let holder = |accept: &dyn Fn(&State, UnitId) -> bool| {
            state.backing.holders().find(|&unit| unit != wanted_by && accept(state, unit))
        };
        let in_file = |state: &State, unit: UnitId| state.homes.get(&unit).is_some_and(|home| home.file.is_some());
        let stale = |state: &State, unit: UnitId| !state.queue.has_host_copy(unit) && !moving.contains(&unit);
        let spare = |state: &State, unit: UnitId| state.queue.can_spare_host_copy(unit) && !moving.contains(&unit);
        let only = |state: &State, unit: UnitId| state.queue.has_host_copy(unit);
        if let Some(unit) = holder(&|state, unit| stale(state, unit) || in_file(state, unit)) {
            self.wait_for_block(state, unit)?;
            state.take_block(unit);
        } else if let Some(unit) = holder(&spare) {
            self.wait_for_block(state, unit)?;
            state.queue.spare_host_copy(unit);
            state.take_block(unit);
        } else if let Some(unit) = holder(&only).filter(|_| state.file.is_some()) {
            self.spill(state, unit)?;
        } else if let Some(oldest) = state.retired.front().map(|retired| retired.uses.clone()) {
            self.wait(state, &oldest)?;
        } else {
            return Err(RuntimeError::HostMemory { cap_bytes: state.backing.cap_bytes() });
        }
        Ok(())
    }

    /// Writes a unit's block to the file, and frees it.
    fn spill(&self, state: &mut State, unit: UnitId) -> Result<(), RuntimeError> {
        self.wait_for_block(state, unit)?;
        let block = state.home(unit)?.block;
        let (Some(block), Some(file)) = (block, &mut state.file) else { return Ok(()) };
        let mut bytes = vec![0; self.unit_bytes as usize];
        self.context.device().read_host(block, &mut bytes);
        self.context.shared().lock().note_host(HostAction::Read(block));
        let place = file.write(&bytes)?;
        state.home(unit)?.file = Some(place);
        state.statistics.spilled_bytes += self.unit_bytes;
        state.take_block(unit);
        Ok(())
    }

    /// Sees to it that the host's copy of a unit is in a block.
    ///
    /// # Errors
    /// As [`Core::provide_block`].
    pub fn load(&self, state: &mut State, unit: UnitId, moving: &[UnitId]) -> Result<(), RuntimeError> {
        if state.home(unit)?.block.is_some() {
            return Ok(());
        }
        self.provide_block(state, unit, moving)?;
        let home = state.home(unit)?;
        let (Some(block), Some(place)) = (home.block, home.file) else { return Ok(()) };
        let mut bytes = vec![0; self.unit_bytes as usize];
        let Some(file) = &state.file else { return Ok(()) };
        if let Err(error) = file.read(place, &mut bytes) {
            state.take_block(unit);
            return Err(error);
        }
        self.context.device().write_host(block, &bytes);
        self.context.shared().lock().note_host(HostAction::Write(block));
        state.statistics.unspilled_bytes += self.unit_bytes;
        Ok(())
    }

    /// Waits until no copy uses a unit's block.
    fn wait_for_block(&self, state: &mut State, unit: UnitId) -> Result<(), RuntimeError> {
        let block_used = state.home(unit)?.block_used;
        self.wait(state, &[(self.copies.queue(), block_used)])
    }

    /// Reads a part of a unit on the host, after everything that was submitted to write it. What was never written is 0.
    ///
    /// # Errors
    /// As [`Core::provide_block`].
    pub fn host_read(
        &self,
        state: &mut State,
        unit: UnitId,
        offset_bytes: u64,
        bytes: &mut [u8],
    ) -> Result<(), RuntimeError> {
        if !state.queue.has_data(unit) {
            bytes.fill(0);
            return Ok(());
        }
        if state.queue.host_read_copies_back(unit) {
            self.copy_back(state, unit, &[unit])?;
        }
        self.load(state, unit, &[unit])?;
        self.wait_for_block(state, unit)?;
        if let Some(block) = state.home(unit)?.block {
            let part = block.part(offset_bytes, bytes.len() as u64);
            self.context.device().read_host(part, bytes);
            self.context.shared().lock().note_host(HostAction::Read(part));
        }
        Ok(())
    }

    /// Writes a part of a unit on the host, after everything that was submitted to use it. `whole`: the unit's other bytes
    /// are nobody's.
    ///
    /// # Errors
    /// As [`Core::provide_block`].
    pub fn host_write(
        &self,
        state: &mut State,
        unit: UnitId,
        offset_bytes: u64,
        bytes: &[u8],
        whole: bool,
    ) -> Result<(), RuntimeError> {
        let write = state.queue.host_write(unit, whole);
        if write.copy_back {
            self.copy_back(state, unit, &[unit])?;
        }
        if state.queue.has_data(unit) && !whole {
            self.load(state, unit, &[unit])?;
        } else {
            self.provide_block(state, unit, &[unit])?;
        }
        self.wait_for_block(state, unit)?;
        if write.device_copy == DeviceCopy::Dropped {
            let uses = state.home(unit)?.uses.clone();
            self.wait(state, &uses)?;
            let home = state.home(unit)?;
            home.uses.clear();
            self.submit(vec![Command::Unmap { region: home.region }])?;
            let slot = home.slot.take();
            state.slots.give_back(slot);
        }
        if let Some(block) = state.home(unit)?.block {
            let part = block.part(offset_bytes, bytes.len() as u64);
            self.context.device().write_host(part, bytes);
            self.context.shared().lock().note_host(HostAction::Write(part));
        }
        state.forget_file(unit);
        state.queue.host_wrote(unit, write);
        if write.device_copy == DeviceCopy::Updated {
            self.copy(state, unit, Way::In)?;
        }
        Ok(())
    }
}
