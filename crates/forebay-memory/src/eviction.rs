//! The eviction queue of managed memory: which units are on the device, which of them are evicted to make room for others, and what is
//! copied. Pure: no device, no clock.
//!
//! A unit (one or more tiles) has up to two copies, one on the device and one on the host. Units on the device form a queue; those at its
//! head are evicted first. The policy determines what moves a unit in the queue:
//!
//! | | [`Policy::Driver`] | [`Policy::Touch`] | [`Policy::Planned`] |
//! |---|---|---|---|
//! | the unit arrives on the device | to the tail | to the tail | to the tail |
//! | work uses the unit | | to the tail | to the tail |
//! | prefetch to the device | to the tail | to the tail | to the tail |
//! | prefetch to the host, its device copy stays | to the head | to the head | to the head |
//! | advice | | | |
//! | discard | to the head | to the head | to the head |
//! | what is evicted first | the head | the head | the unit used furthest in the future, then the head |
//! | a prefetch can be canceled | no | until it starts | until it starts |
//!
//! The first column is the measured behavior of a driver with unified memory (Negishi and others, "Consideration on Application of CUDA
//! Unified Memory to Deep Learning", 2018, sections 3.8 and 3.9): work does not change the order, so the unit that is used most is evicted
//! as readily as one that is never used again.
//!
//! A device copy that equals the host copy is not copied back on eviction, nor is data that is no longer needed
//! ([`EvictionQueue::discard`]). A unit without data is mapped without being copied in.

mod next_uses;
#[cfg(test)]
mod tests;
mod unit;
mod words;

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

use next_uses::NextUseOracle;
use unit::Unit;

pub use words::{
    Access, Advice, Arrival, DeviceCopy, Eviction, EvictionError, HostWrite, Location, Moves, Policy, Prefetch,
    PrefetchStart, UnitId,
};

/// The units of managed memory and their order of eviction.
///
/// ```
/// use forebay_memory::eviction::{Access, EvictionQueue, Policy, UnitId};
///
/// let mut queue = EvictionQueue::new(Policy::Touch, 200);
/// (0..3).for_each(|unit| queue.add(UnitId(unit), 100));
/// queue.use_units(&[(UnitId(0), Access::Overwrite)])?;
/// queue.use_units(&[(UnitId(1), Access::Overwrite)])?;
/// queue.use_units(&[(UnitId(0), Access::Read)])?;
/// let moves = queue.use_units(&[(UnitId(2), Access::Overwrite)])?;
/// assert_eq!(moves.evictions[0].unit, UnitId(1), "unit 0 was used later");
/// assert!(moves.evictions[0].copy_back && !moves.arrivals[0].copy);
/// # Ok::<(), forebay_memory::eviction::EvictionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct EvictionQueue {
    policy: Policy,
    capacity_bytes: u64,
    resident_bytes: u64,
    units: BTreeMap<UnitId, Unit>,
    /// The units on the device by their places in the queue; the first is evicted first.
    order: BTreeMap<i64, UnitId>,
    prefetches: VecDeque<Prefetch>,
    next_uses: NextUseOracle,
}

impl EvictionQueue {
    /// Creates a queue without units for a device that holds `capacity_bytes`.
    pub fn new(policy: Policy, capacity_bytes: u64) -> EvictionQueue {
        EvictionQueue {
            policy,
            capacity_bytes,
            resident_bytes: 0,
            units: BTreeMap::new(),
            order: BTreeMap::new(),
            prefetches: VecDeque::new(),
            next_uses: NextUseOracle::default(),
        }
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The most bytes that the units on the device can take.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The bytes of the units on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// The units on the device, in the order in which they are evicted (as far as the queue decides).
    pub fn residents(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.order.values().copied()
    }

    /// Whether a unit is on the device.
    pub fn is_resident(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(Unit::is_resident)
    }

    /// Whether the host has an up-to-date copy of a unit.
    pub fn has_host_copy(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|unit| unit.host_copy)
    }

    /// Whether a unit holds data, in whatever location.
    pub fn has_data(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|unit| unit.has_data)
    }

    /// Adds a unit without data, which is in neither location. If the number is in use, its unit is kept.
    pub fn add(&mut self, unit: UnitId, size_bytes: u64) {
        if let Entry::Vacant(entry) = self.units.entry(unit) {
            entry.insert(Unit::new(size_bytes));
        }
    }

    /// Removes a unit with its data. Returns whether it was on the device.
    pub fn remove(&mut self, unit: UnitId) -> bool {
        let was_resident = self.leave(unit);
        self.units.remove(&unit);
        self.prefetches.retain(|prefetch| prefetch.unit != unit);
        self.next_uses.forget(unit);
        was_resident
    }

    /// Returns what has to move for work to find these units on the device. Changes nothing; [`EvictionQueue::commit`] does.
    ///
    /// # Errors
    /// If the units do not fit together, or one of them does not exist.
    pub fn plan(&self, uses: &[(UnitId, Access)]) -> Result<Moves, EvictionError> {
        let uses = merged(uses);
        let mut needed_bytes = 0u64;
        for &(unit, _) in &uses {
            let size_bytes = self.units.get(&unit).ok_or(EvictionError::UnknownUnit { unit })?.size_bytes;
            needed_bytes = needed_bytes.saturating_add(size_bytes);
        }
        if needed_bytes > self.capacity_bytes {
            return Err(EvictionError::TooLarge { needed_bytes, capacity_bytes: self.capacity_bytes });
        }
        let arrival = |&(unit, access): &(UnitId, Access)| Arrival {
            unit,
            copy: self.units[&unit].has_data && access != Access::Overwrite,
        };
        let arrivals: Vec<Arrival> = uses.iter().filter(|(unit, _)| !self.is_resident(*unit)).map(arrival).collect();
        let stays = |unit: UnitId| uses.binary_search_by_key(&unit, |&(used, _)| used).is_ok();
        let evictions = self.evictions(&arrivals, stays);
        Ok(Moves { evictions, arrivals })
    }

    /// Carries out a plan for these uses, and notes the uses.
    pub fn commit(&mut self, uses: &[(UnitId, Access)], moves: &Moves) {
        self.carry_out(moves);
        self.note_uses(uses);
    }

    /// Notes that these moves were done: those of a plan, all at once or one after the other.
    pub fn carry_out(&mut self, moves: &Moves) {
        for eviction in &moves.evictions {
            self.copied_back(eviction.unit);
            self.leave(eviction.unit);
        }
        for arrival in &moves.arrivals {
            let place = self.tail();
            let Some(state) = self.units.get_mut(&arrival.unit).filter(|unit| !unit.is_resident()) else { continue };
            state.place = Some(place);
            self.resident_bytes += state.size_bytes;
            self.order.insert(place, arrival.unit);
        }
    }

    /// Notes that work uses these units, which are on the device.
    pub fn note_uses(&mut self, uses: &[(UnitId, Access)]) {
        self.next_uses.advance(uses.iter().map(|(unit, _)| *unit));
        for &(unit, access) in uses {
            let Some(state) = self.units.get_mut(&unit) else { continue };
            if access != Access::Read {
                (state.has_data, state.host_copy) = (true, false);
            }
            let prefers_host = state.preferred == Some(Location::Host);
            match self.policy {
                Policy::Driver => {}
                Policy::Touch | Policy::Planned if prefers_host => self.move_to_head(unit),
                Policy::Touch | Policy::Planned => self.move_to_tail(unit),
            }
        }
    }

    /// Plans and commits at once.
    ///
    /// # Errors
    /// As [`EvictionQueue::plan`].
    pub fn use_units(&mut self, uses: &[(UnitId, Access)]) -> Result<Moves, EvictionError> {
        let moves = self.plan(uses)?;
        self.commit(uses, &moves);
        Ok(moves)
    }

    /// Sets what will be used next: the units of each coming commit, in order. Replaces what was set before.
    pub fn set_next_uses(&mut self, uses: &[Vec<UnitId>]) {
        self.next_uses.replace(uses);
    }

    /// Requests a copy of a unit in a location. Its place in the order changes now; the moves themselves wait in line
    /// ([`EvictionQueue::start_prefetch`]).
    ///
    /// # Errors
    /// If the unit does not exist.
    pub fn prefetch(&mut self, unit: UnitId, to: Location) -> Result<(), EvictionError> {
        if !self.units.contains_key(&unit) {
            return Err(EvictionError::UnknownUnit { unit });
        }
        if self.policy != Policy::Driver {
            self.prefetches.retain(|prefetch| prefetch.unit != unit);
        }
        match to {
            Location::Device => self.move_to_tail(unit),
            Location::Host => self.move_to_head(unit),
        }
        self.prefetches.push_back(Prefetch { unit, to });
        Ok(())
    }

    /// Cancels the prefetches of a unit that have not started. Returns whether there were any; under [`Policy::Driver`], none can be
    /// canceled.
    pub fn cancel_prefetch(&mut self, unit: UnitId) -> bool {
        let count = self.prefetches.len();
        if self.policy != Policy::Driver {
            self.prefetches.retain(|prefetch| prefetch.unit != unit);
        }
        self.prefetches.len() < count
    }

    /// Cancels all prefetches, whatever the policy, because nothing can be carried out any more.
    pub fn cancel_prefetches(&mut self) {
        self.prefetches.clear();
    }

    /// The prefetches that have not started, in order.
    pub fn prefetches(&self) -> impl Iterator<Item = Prefetch> + '_ {
        self.prefetches.iter().copied()
    }

    /// Returns what the first prefetch in line does if it starts now; `None` if nothing is in line. Changes nothing;
    /// [`EvictionQueue::finish_prefetch`] does.
    pub fn start_prefetch(&self) -> Option<(Prefetch, PrefetchStart)> {
        let prefetch = *self.prefetches.front()?;
        let Some(unit) = self.units.get(&prefetch.unit) else { return Some((prefetch, PrefetchStart::Nothing)) };
        let start = match prefetch.to {
            Location::Host if unit.is_resident() && unit.has_data && !unit.host_copy => PrefetchStart::CopyBack,
            Location::Host => PrefetchStart::Nothing,
            Location::Device if unit.is_resident() || unit.size_bytes > self.capacity_bytes => PrefetchStart::Nothing,
            Location::Device => {
                let arrivals = vec![Arrival { unit: prefetch.unit, copy: unit.has_data }];
                let evictions = self.evictions(&arrivals, |_| false);
                let own = self.next_uses.next_use(prefetch.unit);
                let pays = |eviction: &Eviction| self.next_uses.next_use(eviction.unit) >= own;
                match self.policy {
                    Policy::Planned if !evictions.iter().all(pays) => PrefetchStart::Nothing,
                    _ => PrefetchStart::SwapIn(Moves { evictions, arrivals }),
                }
            }
        };
        Some((prefetch, start))
    }

    /// Removes the first prefetch from the line and notes what it did.
    pub fn finish_prefetch(&mut self, start: &PrefetchStart) {
        let Some(prefetch) = self.prefetches.pop_front() else { return };
        match start {
            PrefetchStart::SwapIn(moves) => self.carry_out(moves),
            PrefetchStart::CopyBack => self.copied_back(prefetch.unit),
            PrefetchStart::Nothing => {}
        }
    }

    /// Notes advice about a unit.
    ///
    /// # Errors
    /// If the unit does not exist.
    pub fn advise(&mut self, unit: UnitId, advice: Advice) -> Result<(), EvictionError> {
        self.units.get_mut(&unit).ok_or(EvictionError::UnknownUnit { unit })?.advise(advice, true);
        Ok(())
    }

    /// Withdraws advice about a unit.
    ///
    /// # Errors
    /// If the unit does not exist.
    pub fn withdraw_advice(&mut self, unit: UnitId, advice: Advice) -> Result<(), EvictionError> {
        self.units.get_mut(&unit).ok_or(EvictionError::UnknownUnit { unit })?.advise(advice, false);
        Ok(())
    }

    /// Drops the data of a unit: it is neither copied back when the unit is evicted nor copied in when the unit is used again.
    pub fn discard(&mut self, unit: UnitId) {
        if let Some(state) = self.units.get_mut(&unit) {
            (state.has_data, state.host_copy) = (false, false);
            self.move_to_head(unit);
        }
    }

    /// Whether a unit has to be copied back before the host can read it.
    pub fn host_read_copies_back(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|unit| unit.has_data && !unit.host_copy)
    }

    /// Notes that the data of a unit was copied to the host; its device copy stays.
    pub fn copied_back(&mut self, unit: UnitId) {
        if let Some(state) = self.units.get_mut(&unit).filter(|unit| unit.has_data) {
            state.host_copy = true;
        }
    }

    /// Returns what happens when the host writes a unit, in whole or in part. Changes nothing; [`EvictionQueue::host_wrote`] does.
    pub fn host_write(&self, unit: UnitId, whole: bool) -> HostWrite {
        let Some(state) = self.units.get(&unit) else {
            return HostWrite { copy_back: false, device_copy: DeviceCopy::None };
        };
        let device_copy = match state.is_resident() {
            false => DeviceCopy::None,
            true if state.follows_host_writes() => DeviceCopy::Updated,
            true => DeviceCopy::Dropped,
        };
        HostWrite { copy_back: state.has_data && !state.host_copy && !whole, device_copy }
    }

    /// Notes that the host wrote a unit, and that what [`EvictionQueue::host_write`] returned was done.
    pub fn host_wrote(&mut self, unit: UnitId, write: HostWrite) {
        if write.device_copy == DeviceCopy::Dropped {
            self.leave(unit);
        }
        if let Some(state) = self.units.get_mut(&unit) {
            (state.has_data, state.host_copy) = (true, true);
        }
    }

    /// Whether the host copy of a unit can be given up when host memory is short, because the device has the same data.
    pub fn can_spare_host_copy(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|unit| unit.is_resident() && unit.host_copy && !unit.read_mostly)
    }

    /// Gives up the host copy of a unit if it can be spared. Returns whether it could.
    pub fn spare_host_copy(&mut self, unit: UnitId) -> bool {
        let spared = self.can_spare_host_copy(unit);
        if let Some(state) = self.units.get_mut(&unit).filter(|_| spared) {
            state.host_copy = false;
        }
        spared
    }

    /// The evictions that make room for these arrivals; units for which `stays` is true are not evicted.
    fn evictions(&self, arrivals: &[Arrival], stays: impl Fn(UnitId) -> bool) -> Vec<Eviction> {
        let arriving_bytes: u64 = arrivals.iter().map(|arrival| self.units[&arrival.unit].size_bytes).sum();
        let mut wanted_bytes = (self.resident_bytes + arriving_bytes).saturating_sub(self.capacity_bytes);
        if wanted_bytes == 0 {
            return Vec::new();
        }
        let mut in_queue = self.residents().filter(|&unit| !stays(unit));
        let mut furthest = Vec::new();
        if self.policy == Policy::Planned {
            furthest.extend(in_queue.by_ref());
            // The sort is stable: among equals, the head is evicted first.
            furthest.sort_by_cached_key(|&unit| std::cmp::Reverse(self.next_uses.next_use(unit)));
        }
        let mut evictions = Vec::new();
        for unit in furthest.into_iter().chain(in_queue) {
            if wanted_bytes == 0 {
                break;
            }
            let state = &self.units[&unit];
            wanted_bytes = wanted_bytes.saturating_sub(state.size_bytes);
            evictions.push(Eviction { unit, copy_back: state.has_data && !state.host_copy });
        }
        evictions
    }

    fn tail(&self) -> i64 {
        self.order.last_key_value().map_or(0, |(place, _)| place + 1)
    }

    fn move_to_tail(&mut self, unit: UnitId) {
        self.move_to(unit, self.tail());
    }

    fn move_to_head(&mut self, unit: UnitId) {
        self.move_to(unit, self.order.first_key_value().map_or(0, |(place, _)| place - 1));
    }

    /// Moves a unit that is on the device to another place in the queue.
    fn move_to(&mut self, unit: UnitId, place: i64) {
        let Some(state) = self.units.get_mut(&unit) else { return };
        if let Some(old) = state.place {
            self.order.remove(&old);
            self.order.insert(place, unit);
            state.place = Some(place);
        }
    }

    /// Removes a unit from the device. Returns whether it was there.
    fn leave(&mut self, unit: UnitId) -> bool {
        let Some(state) = self.units.get_mut(&unit) else { return false };
        let Some(place) = state.place.take() else { return false };
        self.order.remove(&place);
        self.resident_bytes -= state.size_bytes;
        true
    }
}

/// Each unit once, in ascending order; different accesses to one unit count as an update.
fn merged(uses: &[(UnitId, Access)]) -> Vec<(UnitId, Access)> {
    let mut merged: BTreeMap<UnitId, Access> = BTreeMap::new();
    for &(unit, access) in uses {
        let known = merged.entry(unit).or_insert(access);
        if *known != access {
            *known = Access::Update;
        }
    }
    merged.into_iter().collect()
}
