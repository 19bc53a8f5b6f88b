//! Second placement of returns: when absent bytes come back, once it is known which bytes are absent.
//!
//! A sweep decides when bytes return as it goes, so it fills slots that become free later, and waits for bytes that it could not know would
//! be spared. Here, the absences are given. Those that turn out to fit the device after all are spared, the shortest first. The others
//! return as late as the links allow, those needed last first, so that none takes memory from bytes that are needed sooner. If the slots
//! before a launch are all taken, its gate is widened.

use std::ops::Range;

use crate::layout::free::Free;
use crate::layout::least::LeastOfRanges;
use crate::layout::sweep::{absent_bytes, whole_excess};
use crate::layout::{Absence, Layout};
use crate::schedule::MemorySpace;
use crate::timeline::{carried_bytes, carrying_ns};

/// The number of loads of a slot: out and in over the link, and of these, to and from the SSD.
const LOADS: usize = 4;

/// The pass.
struct Returns<'l, 'w> {
    layout: &'l mut Layout<'w>,
    /// How much longer each slot becomes.
    added_ns: Vec<u64>,
    /// What each slot carries, and what it can carry.
    loads: Vec<[u64; LOADS]>,
    capacities: Vec<[u64; LOADS]>,
    /// The room that the device has left in each slot that has a length.
    unused: LeastOfRanges,
    /// The slots with room inwards, for the host and for the SSD.
    free: [Free; 2],
    /// By copy: the copies that it was split into, itself included.
    parts: Vec<Vec<usize>>,
}

impl Layout<'_> {
    /// Places all returns again, and returns how much longer each slot becomes. What leaves, and when, stays the same, and so does what
    /// returns from a host that is full at times.
    pub fn place_again(&mut self) -> Vec<u64> {
        let mut returns = Returns::new(self);
        returns.spare();
        returns.place();
        returns.added_ns
    }
}

impl<'l, 'w> Returns<'l, 'w> {
    /// Starts with everything returning just before it is needed, in no time.
    fn new(layout: &'l mut Layout<'w>) -> Returns<'l, 'w> {
        let count = layout.excess.len();
        let whole = whole_excess(layout);
        for copy in &mut layout.copies {
            if layout.host_is_ample || copy.place == MemorySpace::Ssd {
                for absence in &mut copy.absences {
                    absence.back = layout.needs.reuse_gaps[absence.span].end - 1;
                }
            }
        }
        let unused = whole.iter().zip(absent_bytes(layout)).map(|(whole, absent)| absent - whole);
        let unused = LeastOfRanges::new(unused.zip(layout.timeline.slots.iter().map(|slot| slot.duration_ns > 0)));
        let mut returns = Returns {
            layout,
            added_ns: vec![0; count],
            loads: vec![[0; LOADS]; count],
            capacities: vec![[0; LOADS]; count],
            unused,
            free: [Free::new(vec![false; count].into_iter()), Free::new(vec![false; count].into_iter())],
            parts: Vec::new(),
        };
        for copy in 0..returns.layout.copies.len() {
            let of = &returns.layout.copies[copy];
            let (place, made, charge) = (of.place, of.made, returns.charge(of.size_bytes));
            let fixed: Vec<usize> = match returns.is_fixed(place) {
                true => of.absences.iter().map(|absence| absence.back).collect(),
                false => Vec::new(),
            };
            made.into_iter().for_each(|made| returns.load(made, place, false, charge as i64));
            fixed.into_iter().for_each(|back| returns.load(back, place, true, charge as i64));
        }
        (0..count).for_each(|slot| returns.fit(slot));
        returns
    }

    fn is_fixed(&self, place: MemorySpace) -> bool {
        !self.layout.host_is_ample && place == MemorySpace::Host
    }

    fn charge(&self, size_bytes: u64) -> u64 {
        size_bytes.next_multiple_of(self.layout.transfer_quantum_bytes)
    }

    /// Adds bytes to the loads of a slot, or removes them.
    fn load(&mut self, slot: usize, place: MemorySpace, inwards: bool, bytes: i64) {
        let slot = slot % self.loads.len();
        let loads = &mut self.loads[slot];
        let (link, ssd) = if inwards { (1, 3) } else { (0, 2) };
        loads[link] = loads[link].saturating_add_signed(bytes);
        if place == MemorySpace::Ssd {
            loads[ssd] = loads[ssd].saturating_add_signed(bytes);
        }
    }

    /// Makes a slot long enough for what it carries.
    fn fit(&mut self, slot: usize) {
        let machine = &self.layout.workload.machine;
        let link = machine.link_bytes_per_s;
        let rates = [link, link, machine.ssd_write_bytes_per_s, machine.ssd_read_bytes_per_s];
        let own_ns = self.layout.timeline.slots[slot].duration_ns;
        let loads = self.loads[slot];
        let needed_ns = loads.into_iter().zip(rates).filter(|(load, _)| *load > 0);
        let needed_ns = needed_ns.map(|(load, rate)| carrying_ns(load, rate)).max().unwrap_or(0);
        self.added_ns[slot] = needed_ns.saturating_sub(own_ns);
        let time_ns = own_ns + self.added_ns[slot];
        self.unused.count(slot, time_ns > 0);
        self.capacities[slot] = rates.map(|rate| carried_bytes(time_ns, rate, self.layout.transfer_quantum_bytes));
        self.refresh(slot);
    }

    /// What a slot can still carry inwards.
    fn room_in(&self, slot: usize, place: MemorySpace) -> u64 {
        let slot = slot % self.loads.len();
        let left = |load: usize| self.capacities[slot][load].saturating_sub(self.loads[slot][load]);
        if place == MemorySpace::Ssd { left(1).min(left(3)) } else { left(1) }
    }

    fn refresh(&mut self, slot: usize) {
        self.free[0].set(slot, self.room_in(slot, MemorySpace::Host) > 0);
        self.free[1].set(slot, self.room_in(slot, MemorySpace::Ssd) > 0);
    }

    /// The least room that the device has in slots that have a length.
    fn least_room(&self, slots: Range<usize>) -> u64 {
        let least = self.unused.least(slots).map_or(u64::MAX, |least| least.max(0) as u64);
        least - least % self.layout.transfer_quantum_bytes
    }

    fn take_room(&mut self, slots: Range<usize>, bytes: u64) {
        self.unused.add(slots, -(bytes as i64));
    }

    /// Every absence and its copy, which is whole for now.
    fn absences(&mut self) -> Vec<(usize, Absence)> {
        let copies = self.layout.copies.iter().enumerate();
        self.parts = copies.clone().map(|(number, _)| vec![number]).collect();
        copies.flat_map(|(number, copy)| copy.absences.iter().map(move |absence| (number, *absence))).collect()
    }

    /// Splits a part of a copy in two, the first of the given size; returns the number of the second.
    fn split(&mut self, whole: usize, part: usize, size_bytes: u64) -> Option<usize> {
        let rest = self.layout.split(part, size_bytes);
        self.parts[whole].extend(rest);
        rest
    }

    /// Keeps on the device what fits after all.
    fn spare(&mut self) {
        let mut absences = self.absences();
        let duration_ns = |absence: &Absence| self.layout.time_ns(absence.back) - self.layout.time_ns(absence.from);
        absences.sort_by_cached_key(|(copy, absence)| (duration_ns(absence), *copy, absence.span));
        for (whole, absence) in absences {
            let slots = absence.from..absence.back;
            let mut room_bytes = self.least_room(slots.clone());
            for part in self.parts[whole].clone() {
                let spared_bytes = room_bytes.min(self.layout.copies[part].size_bytes);
                if spared_bytes > 0 {
                    self.split(whole, part, spared_bytes);
                    self.take_room(slots.clone(), spared_bytes);
                    self.keep(part, absence);
                    room_bytes -= self.charge(spared_bytes).min(room_bytes);
                }
            }
        }
        self.layout.copies.retain(|copy| !copy.absences.is_empty());
    }

    /// Removes an absence from a copy, and the copy itself if that was its only one.
    fn keep(&mut self, copy: usize, absence: Absence) {
        let of = &mut self.layout.copies[copy];
        of.absences.retain(|other| other.span != absence.span);
        let (place, made, is_last) = (of.place, of.made, of.absences.is_empty());
        let charge = self.charge(self.layout.copies[copy].size_bytes) as i64;
        if self.is_fixed(place) {
            self.load(absence.back, place, true, -charge);
            self.fit(absence.back % self.loads.len());
        }
        if let (true, Some(made)) = (is_last, made) {
            self.load(made, place, false, -charge);
            self.fit(made % self.loads.len());
        }
    }

    /// Places the returns of what is absent; what is needed last comes first.
    fn place(&mut self) {
        let count = self.loads.len();
        let mut absences = self.absences();
        absences.retain(|(copy, _)| !self.is_fixed(self.layout.copies[*copy].place));
        absences.sort_by_key(|(copy, absence)| {
            (std::cmp::Reverse(absence.back % count), std::cmp::Reverse(absence.from), *copy)
        });
        for (whole, absence) in absences {
            for part in self.parts[whole].clone() {
                self.place_part(whole, part, absence);
            }
        }
    }

    /// Lets a part of a copy return as late as it can; what cannot return before it is needed returns in the gate.
    fn place_part(&mut self, whole: usize, mut part: usize, absence: Absence) {
        let (count, gate) = (self.loads.len(), absence.back);
        let place = self.layout.copies[part].place;
        let (mut room_bytes, mut known) = (u64::MAX, gate);
        while let Some(slot) = self.free[usize::from(place == MemorySpace::Ssd)].last(absence.from, known + 1) {
            room_bytes = room_bytes.min(self.least_room(slot..known));
            known = slot;
            let placed_bytes = self.layout.copies[part].size_bytes.min(room_bytes).min(self.room_in(slot, place));
            if placed_bytes == 0 {
                break;
            }
            let rest = self.split(whole, part, placed_bytes);
            self.take_room(slot..gate, placed_bytes);
            room_bytes -= self.charge(placed_bytes).min(room_bytes);
            self.load(slot, place, true, self.charge(placed_bytes) as i64);
            self.refresh(slot % count);
            let placed = &mut self.layout.copies[part].absences;
            placed.iter_mut().filter(|other| other.span == absence.span).for_each(|other| other.back = slot);
            match rest {
                Some(rest) => part = rest,
                None => return,
            }
        }
        let charge = self.charge(self.layout.copies[part].size_bytes);
        self.load(gate, place, true, charge as i64);
        self.fit(gate % count);
    }
}
