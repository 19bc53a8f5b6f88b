//! Applies a choice: changes copies, absences, and the room that is left.

use crate::layout::sweep::Sweep;
use crate::layout::sweep::choice::{Choice, Effect};
use crate::layout::{Absence, Copy};
use crate::schedule::MemorySpace;
use crate::timeline::{carried_bytes, carrying_ns};

impl Sweep<'_, '_> {
    /// Makes a slot longer, until this many bytes can cross in one direction.
    fn widen(&mut self, slot: usize, place: MemorySpace, outwards: bool, bytes: u64) {
        let slot = slot % self.count();
        let machine = &self.layout.workload.machine;
        let (link, ssd_out, ssd_in) =
            (machine.link_bytes_per_s, machine.ssd_write_bytes_per_s, machine.ssd_read_bytes_per_s);
        let transfer_quantum_bytes = self.layout.transfer_quantum_bytes;
        let bytes = bytes.next_multiple_of(transfer_quantum_bytes);
        let before_ns = self.layout.timeline.slots[slot].duration_ns + self.added_ns[slot];
        let capacity = |rate: u64, time_ns: u64| carried_bytes(time_ns, rate, transfer_quantum_bytes);
        let unused = &mut self.layout.unused;
        let (on_link, on_ssd) = match outwards {
            true => ((link, unused.link_out[slot]), (ssd_out, unused.ssd_out[slot])),
            false => ((link, unused.link_in[slot]), (ssd_in, unused.ssd_in[slot])),
        };
        // Not a transfer quantum more: the surplus would be used for equally small pieces.
        let needed_ns = |(rate, unused): (u64, u64)| carrying_ns(capacity(rate, before_ns) - unused + bytes, rate);
        let after_ns =
            needed_ns(on_link).max(if place == MemorySpace::Ssd { needed_ns(on_ssd) } else { 0 }).max(before_ns);
        self.added_ns[slot] += after_ns - before_ns;
        self.widened[usize::from(!outwards)].set(slot, true);
        let more = |rate: u64| capacity(rate, after_ns) - capacity(rate, before_ns);
        unused.link_out[slot] += more(link);
        unused.link_in[slot] += more(link);
        unused.ssd_out[slot] += more(ssd_out);
        unused.ssd_in[slot] += more(ssd_in);
        self.refresh(slot);
    }

    fn refresh(&mut self, slot: usize) {
        let unused = &self.layout.unused;
        self.out_free[0].set(slot, unused.link_out[slot] > 0);
        self.out_free[1].set(slot, unused.link_out[slot].min(unused.ssd_out[slot]) > 0);
        self.in_free[0].set(slot, unused.link_in[slot] > 0);
        self.in_free[1].set(slot, unused.link_in[slot].min(unused.ssd_in[slot]) > 0);
    }

    /// The slot in which the first bytes of a gap return.
    pub fn first_back(&self, span: usize) -> usize {
        self.returns[span].first().map_or(usize::MAX, |(back, _)| *back)
    }

    /// Splits a copy in two, the first of the given size.
    fn split(&mut self, copy: usize, size_bytes: u64) {
        let Some(rest) = self.layout.split(copy, size_bytes) else { return };
        for absence in &self.layout.copies[rest].absences {
            self.returns[absence.span].insert((absence.back, rest));
        }
    }

    /// Moves the making of a copy to an earlier slot.
    fn advance(&mut self, copy: usize, made: usize) {
        let count = self.count();
        let Copy { place, size_bytes, made: before, .. } = self.layout.copies[copy];
        let Some(before) = before else { return };
        let charge = size_bytes.next_multiple_of(self.layout.transfer_quantum_bytes);
        let unused = &mut self.layout.unused;
        unused.link_out[before % count] += charge;
        unused.link_out[made % count] -= charge;
        if place == MemorySpace::Ssd {
            unused.ssd_out[before % count] += charge;
            unused.ssd_out[made % count] -= charge;
        } else {
            self.layout.take_host(made, before, size_bytes);
        }
        self.layout.copies[copy].made = Some(made);
        self.refresh(before % count);
    }

    /// Lets bytes that would be back by then return later.
    fn postpone(&mut self, slot: usize, choice: Choice, size_bytes: u64) {
        let (count, back) = (self.count(), choice.back.slot);
        let Some(copy) = choice.copy else { return };
        self.split(copy, size_bytes);
        let before_stay = self.layout.stay(&self.layout.copies[copy]);
        let absences = &mut self.layout.copies[copy].absences;
        let Some(absence) = absences.iter_mut().find(|absence| absence.span == choice.span) else { return };
        let before = std::mem::replace(&mut absence.back, back);
        let after_stay = self.layout.stay(&self.layout.copies[copy]);
        if let (Some((_, from)), Some((_, to)), MemorySpace::Host) = (before_stay, after_stay, choice.place) {
            self.layout.take_host(from, to, size_bytes);
        }
        let charge = size_bytes.next_multiple_of(self.layout.transfer_quantum_bytes);
        let unused = &mut self.layout.unused;
        unused.link_in[before % count] += charge;
        unused.link_in[back % count] -= charge;
        if choice.place == MemorySpace::Ssd {
            unused.ssd_in[before % count] += charge;
            unused.ssd_in[back % count] -= charge;
        }
        self.refresh(before % count);
        self.refresh(back % count);
        self.returns[choice.span].remove(&(before, copy));
        self.returns[choice.span].insert((back, copy));
        self.note(slot, choice.at, before, back, size_bytes as i64);
    }

    /// Lets bytes that would still be there leave sooner.
    fn leave_sooner(&mut self, slot: usize, choice: Choice, size_bytes: u64) {
        let (Some(copy), Some(out)) = (choice.copy, choice.out) else { return };
        self.split(copy, size_bytes);
        self.advance(copy, out.slot);
        self.refresh(out.slot % self.count());
        let from = self.layout.needs.reuse_gaps[choice.span].begin.max(out.slot + 1);
        let absences = &mut self.layout.copies[copy].absences;
        let Some(absence) = absences.iter_mut().find(|absence| absence.span == choice.span) else { return };
        let before = std::mem::replace(&mut absence.from, from);
        self.note(slot, choice.at, from, before, size_bytes as i64);
    }

    /// Moves at most as many bytes as a slot is short of.
    pub fn commit(&mut self, slot: usize, choice: Choice, short_bytes: u64) {
        let count = self.count();
        let begin = self.layout.needs.reuse_gaps[choice.span].begin;
        let transfer_quantum_bytes = self.layout.transfer_quantum_bytes;
        let mut size_bytes = choice.most_bytes.min(short_bytes.next_multiple_of(transfer_quantum_bytes));
        if let Some(out) = choice.out.filter(|out| !out.widened) {
            size_bytes = size_bytes.min(self.layout.room_out(out.slot, choice.place));
        }
        if choice.effect != Effect::Sooner && !choice.back.widened {
            size_bytes = size_bytes.min(self.layout.room_in(choice.back.slot, choice.place));
        }
        if let Some(out) = choice.out.filter(|out| out.widened) {
            self.widen(out.slot, choice.place, true, size_bytes);
        }
        if choice.back.widened {
            self.widen(choice.back.slot, choice.place, false, size_bytes);
        }
        match choice.effect {
            Effect::Absent => {}
            Effect::Later => return self.postpone(slot, choice, size_bytes),
            Effect::Sooner => return self.leave_sooner(slot, choice, size_bytes),
        }
        let back = choice.back.slot;
        let made = choice.out.map(|out| out.slot);
        let copy_made = made.or_else(|| choice.copy.and_then(|copy| self.layout.copies[copy].made));
        let from = copy_made.map_or(begin, |made| begin.max(made + 1));
        let absence = Absence { span: choice.span, from, back };
        let copy = choice.copy.unwrap_or(self.layout.copies.len());
        self.returns[choice.span].insert((back, copy));
        match choice.copy {
            Some(copy) => {
                self.split(copy, size_bytes);
                if let Some(made) = made {
                    self.advance(copy, made);
                }
                self.layout.use_copy(copy, absence);
            }
            None => self.layout.add_copy(choice.place, made, size_bytes, absence),
        }
        let charge = size_bytes.next_multiple_of(transfer_quantum_bytes);
        self.layout.unused.link_in[back % count] -= charge;
        if choice.place == MemorySpace::Ssd {
            self.layout.unused.ssd_in[back % count] -= charge;
        }
        self.refresh(back % count);
        if let Some(made) = made {
            self.refresh(made % count);
        }
        self.used_bytes[choice.span] += size_bytes;
        self.note(slot, choice.at, from, back, size_bytes as i64);
    }

    /// Notes that bytes are absent in a slot, which is `at` in the numbering of their gap, and when they leave and return.
    fn note(&mut self, slot: usize, at: usize, from: usize, back: usize, bytes: i64) {
        let count = self.count();
        self.absent_bytes += bytes;
        // In the numbering of the gap, the slots of this lap start at `base`. What is absent before them is also absent at the end of the
        // lap.
        let base = at - slot;
        if back < base + count {
            self.changes[back - base] -= bytes;
        }
        if from < base && from + count - base > slot {
            self.changes[from + count - base] += bytes;
        }
    }
}
