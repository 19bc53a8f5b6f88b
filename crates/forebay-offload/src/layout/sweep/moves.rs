//! What a choice changes: copies, absences, and the room that is left.

use crate::layout::sweep::choice::{Choice, Effect};
use crate::layout::sweep::Sweep;
use crate::layout::{Absence, Copy};
use crate::schedule::Place;
use crate::timeline::{carried_bytes, carrying_ns};

impl Sweep<'_, '_> {
    /// Makes a slot longer, until it has room for so many bytes in one direction.
    fn stretch(&mut self, slot: usize, place: Place, outwards: bool, bytes: u64) {
        let slot = slot % self.count();
        let machine = &self.layout.workload.machine;
        let (link, ssd_out, ssd_in) =
            (machine.link_bytes_per_s, machine.ssd_write_bytes_per_s, machine.ssd_read_bytes_per_s);
        let granule_bytes = self.layout.granule_bytes;
        let bytes = bytes.next_multiple_of(granule_bytes);
        let before_ns = self.layout.timeline.slots[slot].duration_ns + self.added_ns[slot];
        let capacity = |rate: u64, time_ns: u64| carried_bytes(time_ns, rate, granule_bytes);
        let room = &mut self.layout.room;
        let (on_link, on_ssd) = match outwards {
            true => ((link, room.link_out[slot]), (ssd_out, room.ssd_out[slot])),
            false => ((link, room.link_in[slot]), (ssd_in, room.ssd_in[slot])),
        };
        // Not a granule more: what is left over would be used, for pieces as small.
        let needed_ns = |(rate, room): (u64, u64)| carrying_ns(capacity(rate, before_ns) - room + bytes, rate);
        let after_ns = needed_ns(on_link).max(if place == Place::Ssd { needed_ns(on_ssd) } else { 0 }).max(before_ns);
        self.added_ns[slot] += after_ns - before_ns;
        self.stretched[usize::from(!outwards)].set(slot, true);
        let more = |rate: u64| capacity(rate, after_ns) - capacity(rate, before_ns);
        room.link_out[slot] += more(link);
        room.link_in[slot] += more(link);
        room.ssd_out[slot] += more(ssd_out);
        room.ssd_in[slot] += more(ssd_in);
        self.layout.carried[slot] += more(link);
        self.refresh(slot);
    }

    fn refresh(&mut self, slot: usize) {
        let room = &self.layout.room;
        self.out_free[0].set(slot, room.link_out[slot] > 0);
        self.out_free[1].set(slot, room.link_out[slot].min(room.ssd_out[slot]) > 0);
        self.in_free[0].set(slot, room.link_in[slot] > 0);
        self.in_free[1].set(slot, room.link_in[slot].min(room.ssd_in[slot]) > 0);
    }

    /// When the first bytes of a pause return.
    pub fn first_back(&self, idle: usize) -> usize {
        self.returns[idle].first().map_or(usize::MAX, |(back, _)| *back)
    }

    /// Makes a copy two, the first one of that size.
    fn split(&mut self, copy: usize, size_bytes: u64) {
        let Some(rest) = self.layout.split(copy, size_bytes) else { return };
        for absence in &self.layout.copies[rest].absences {
            self.returns[absence.idle].insert((absence.back, rest));
        }
    }

    /// Makes a copy earlier.
    fn advance(&mut self, copy: usize, made: usize) {
        let count = self.count();
        let Copy { place, size_bytes, made: before, .. } = self.layout.copies[copy];
        let Some(before) = before else { return };
        let charge = size_bytes.next_multiple_of(self.layout.granule_bytes);
        let room = &mut self.layout.room;
        room.link_out[before % count] += charge;
        room.link_out[made % count] -= charge;
        if place == Place::Ssd {
            room.ssd_out[before % count] += charge;
            room.ssd_out[made % count] -= charge;
        } else {
            self.layout.take_host(made, before, size_bytes);
        }
        self.layout.copies[copy].made = Some(made);
        self.refresh(before % count);
    }

    /// Lets bytes that are back by then return later.
    fn postpone(&mut self, slot: usize, choice: Choice, size_bytes: u64) {
        let (count, back) = (self.count(), choice.back.slot);
        let Some(copy) = choice.copy else { return };
        self.split(copy, size_bytes);
        let before_stay = self.layout.stay(&self.layout.copies[copy]);
        let absences = &mut self.layout.copies[copy].absences;
        let Some(absence) = absences.iter_mut().find(|absence| absence.idle == choice.idle) else { return };
        let before = std::mem::replace(&mut absence.back, back);
        let after_stay = self.layout.stay(&self.layout.copies[copy]);
        if let (Some((_, from)), Some((_, to)), Place::Host) = (before_stay, after_stay, choice.place) {
            self.layout.take_host(from, to, size_bytes);
        }
        let charge = size_bytes.next_multiple_of(self.layout.granule_bytes);
        let room = &mut self.layout.room;
        room.link_in[before % count] += charge;
        room.link_in[back % count] -= charge;
        if choice.place == Place::Ssd {
            room.ssd_in[before % count] += charge;
            room.ssd_in[back % count] -= charge;
        }
        self.refresh(before % count);
        self.refresh(back % count);
        self.returns[choice.idle].remove(&(before, copy));
        self.returns[choice.idle].insert((back, copy));
        self.note(slot, choice.at, before, back, size_bytes as i64);
    }

    /// Lets bytes that are still there leave sooner.
    fn leave_sooner(&mut self, slot: usize, choice: Choice, size_bytes: u64) {
        let (Some(copy), Some(out)) = (choice.copy, choice.out) else { return };
        self.split(copy, size_bytes);
        self.advance(copy, out.slot);
        self.refresh(out.slot % self.count());
        let from = self.layout.needs.idles[choice.idle].begin.max(out.slot + 1);
        let absences = &mut self.layout.copies[copy].absences;
        let Some(absence) = absences.iter_mut().find(|absence| absence.idle == choice.idle) else { return };
        let before = std::mem::replace(&mut absence.from, from);
        self.note(slot, choice.at, from, before, size_bytes as i64);
    }

    /// Moves at most so many bytes as a slot is short of.
    pub fn commit(&mut self, slot: usize, choice: Choice, short_bytes: u64) {
        let count = self.count();
        let begin = self.layout.needs.idles[choice.idle].begin;
        let granule_bytes = self.layout.granule_bytes;
        let mut size_bytes = choice.most_bytes.min(short_bytes.next_multiple_of(granule_bytes));
        if let Some(out) = choice.out.filter(|out| !out.stretched) {
            size_bytes = size_bytes.min(self.layout.room_out(out.slot, choice.place));
        }
        if choice.effect != Effect::Sooner && !choice.back.stretched {
            size_bytes = size_bytes.min(self.layout.room_in(choice.back.slot, choice.place));
        }
        if let Some(out) = choice.out.filter(|out| out.stretched) {
            self.stretch(out.slot, choice.place, true, size_bytes);
        }
        if choice.back.stretched {
            self.stretch(choice.back.slot, choice.place, false, size_bytes);
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
        let absence = Absence { idle: choice.idle, from, back };
        let copy = choice.copy.unwrap_or(self.layout.copies.len());
        self.returns[choice.idle].insert((back, copy));
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
        let charge = size_bytes.next_multiple_of(granule_bytes);
        self.layout.room.link_in[back % count] -= charge;
        if choice.place == Place::Ssd {
            self.layout.room.ssd_in[back % count] -= charge;
        }
        self.refresh(back % count);
        if let Some(made) = made {
            self.refresh(made % count);
        }
        self.used_bytes[choice.idle] += size_bytes;
        self.note(slot, choice.at, from, back, size_bytes as i64);
    }

    /// Notes that bytes are absent in a slot, which is `at` in their pause's count, and when they leave and return.
    fn note(&mut self, slot: usize, at: usize, from: usize, back: usize, bytes: i64) {
        let count = self.count();
        self.absent_bytes += bytes;
        // In the pause's count, this lap's slots start at `base`. What is absent before them is absent at the lap's end, too.
        let base = at - slot;
        if back < base + count {
            self.changes[back - base] -= bytes;
        }
        if from < base && from + count - base > slot {
            self.changes[from + count - base] += bytes;
        }
    }
}
