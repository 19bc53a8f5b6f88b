//! Which pause helps best in a slot, and how.

use crate::layout::sweep::Sweep;
use crate::schedule::Place;

/// A slot in which something crosses the link.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    pub slot: usize,
    /// Whether the slot has to be stretched for it.
    pub stretched: bool,
}

/// What becomes of a pause's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They leave and return.
    Absent,
    /// They are back by then, and return later instead.
    Later,
    /// They leave later, and do so sooner instead.
    Sooner,
}

/// How a pause could help in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub idle: usize,
    pub place: Place,
    /// The slot, counted as the pause counts.
    pub at: usize,
    /// A copy that is there already.
    pub copy: Option<usize>,
    pub effect: Effect,
    /// Where a new copy is made, if one is.
    pub out: Option<Crossing>,
    /// Where bytes return.
    pub back: Crossing,
    pub most_bytes: u64,
}

impl Choice {
    /// How often waiting has to pay for a byte.
    fn price(&self) -> usize {
        usize::from(self.out.is_some_and(|out| out.stretched)) + usize::from(self.back.stretched)
    }
}

impl Sweep<'_, '_> {
    /// The pause that helps best in a slot.
    pub fn choose(&mut self, slot: usize) -> Option<Choice> {
        loop {
            let (end, idle) = self.most_promising(slot)?;
            let found = self.ask(idle, self.layout.needs.idles[idle].end - (end - slot));
            if found.is_some() {
                return found;
            }
            // It is asked again in the next slot.
            self.active.remove(&(end, idle));
            self.refused.push((end, idle));
        }
    }

    /// The pause that seems to help best: the least of it has to be waited for, and it ends last.
    ///
    /// In one slot prices do not fall, so the search goes on where it last ended.
    fn most_promising(&mut self, slot: usize) -> Option<(usize, usize)> {
        let mut best: Option<(usize, (usize, usize))> = None;
        let mut spent = Vec::new();
        if let Some((_, price, entry)) = self.found_last.filter(|(at, ..)| *at == slot) {
            best = self.least_waited_for(slot, price, Some(entry), &mut spent).filter(|(least, _)| *least <= price);
        }
        if best.is_none() {
            best = self.least_waited_for(slot, 0, None, &mut spent);
        }
        for (end, idle) in spent {
            self.active.remove(&(end, idle));
            // What returns early may return later.
            let returned = (end + self.first_back(idle)).saturating_sub(self.layout.needs.idles[idle].end);
            if returned + 1 < end && returned < self.count() {
                self.starts[returned].push((end, idle));
            }
        }
        self.found_last = best.map(|(price, entry)| (slot, price, entry));
        best.map(|(_, entry)| entry)
    }

    /// The first pause, from one on towards those that end earlier, of which no more has to be waited for than `enough`; where
    /// there is none, the one of which least has to be. Pauses that are wholly absent are `spent`.
    fn least_waited_for(
        &self,
        slot: usize,
        enough: usize,
        from: Option<(usize, usize)>,
        spent: &mut Vec<(usize, usize)>,
    ) -> Option<(usize, (usize, usize))> {
        let (layout, count) = (&*self.layout, self.count());
        // Over one step, where the link has room last before the slot, and first after it.
        let place = usize::from(self.manner.prefers_ssd());
        let last_out = self.out_free[place].last(slot, slot + count);
        let first_in = self.in_free[place].first(slot + 1, slot + 1 + count);
        let mut best: Option<(usize, (usize, usize))> = None;
        for &(end, idle) in self.active.range(..=from.unwrap_or((usize::MAX, usize::MAX))).rev() {
            let pause = layout.needs.idles[idle];
            let version = layout.needs.versions[pause.version];
            let used_bytes = self.used_bytes[idle];
            let at = pause.end - (end - slot);
            let is_used = used_bytes >= layout.workload.tensors[version.tensor].size_bytes;
            if is_used && self.first_back(idle) > at {
                spent.push((end, idle));
                continue;
            }
            let is_written =
                |free: usize| version.written_before.is_none_or(|written| written + slot + count <= at + free);
            let leaves = is_used
                || layout.copied_bytes[pause.version] > used_bytes
                || version.written_before.is_none()
                || last_out.is_some_and(is_written);
            let price = usize::from(!leaves) + usize::from(first_in.is_none_or(|free| free >= end));
            if best.is_none_or(|(least, _)| price < least) {
                best = Some((price, (end, idle)));
            }
            if price <= enough {
                break;
            }
        }
        best
    }

    /// How a pause could help in a slot.
    fn ask(&mut self, idle: usize, at: usize) -> Option<Choice> {
        let layout = &*self.layout;
        let pause = layout.needs.idles[idle];
        let version = layout.needs.versions[pause.version];
        let size_bytes = layout.workload.tensors[version.tensor].size_bytes;
        if self.used_bytes[idle] >= size_bytes {
            let (_, copy) = *self.returns[idle].first().filter(|(back, _)| *back <= at)?;
            let (place, most_bytes) = (layout.copies[copy].place, layout.copies[copy].size_bytes);
            let back = self.back_of(idle, place, at);
            let room = self.host_room(place, layout.copies[copy].made, back.slot, Some(copy));
            return (room >= most_bytes).then_some(Choice {
                idle,
                place,
                at,
                copy: Some(copy),
                effect: Effect::Later,
                out: None,
                back,
                most_bytes,
            });
        }
        // A copy that is there costs nothing outwards.
        while let Some(&number) = layout.of_version[pause.version].get(self.passed[idle]) {
            let copy = &layout.copies[number];
            let is_made = copy.made.is_none_or(|made| made < at);
            if is_made && !copy.absences.iter().any(|absence| absence.idle == idle) {
                let back = self.back_of(idle, copy.place, at);
                let most_bytes = self.host_room(copy.place, copy.made, back.slot, Some(number));
                if most_bytes >= copy.size_bytes {
                    let (place, copy, most_bytes) = (copy.place, Some(number), copy.size_bytes);
                    return Some(Choice { idle, place, at, copy, effect: Effect::Absent, out: None, back, most_bytes });
                }
            }
            self.passed[idle] += 1;
        }
        self.ask_for_a_copy(idle, at)
    }

    /// Where bytes return that are absent in a slot.
    fn back_of(&self, idle: usize, place: Place, at: usize) -> Crossing {
        let end = self.layout.needs.idles[idle].end;
        let free = self.in_free[usize::from(place == Place::Ssd)].last(at + 1, end);
        Crossing { slot: free.unwrap_or(end - 1), stretched: free.is_none() }
    }

    /// How a pause could help with a new copy, or with one that is made earlier.
    fn ask_for_a_copy(&mut self, idle: usize, at: usize) -> Option<Choice> {
        let version = self.layout.needs.idles[idle].version;
        let tensor = self.layout.needs.versions[version].tensor;
        let fresh_bytes = self.layout.workload.tensors[tensor].size_bytes - self.layout.copied_bytes[version];
        let copy = if fresh_bytes == 0 { Some(self.late_copy(idle, at)?) } else { None };
        let layout = &*self.layout;
        let written_before = layout.needs.versions[version].written_before;
        let left_bytes = copy.map_or(fresh_bytes, |copy| layout.copies[copy].size_bytes);
        let own = |copy: usize| layout.copies[copy].absences.iter().find(|absence| absence.idle == idle);
        let leaves_later = copy.and_then(own);
        let effect = if leaves_later.is_some() { Effect::Sooner } else { Effect::Absent };
        let mut found: Option<Choice> = None;
        let places = match self.manner.prefers_ssd() {
            true => [Place::Ssd, Place::Host],
            false => [Place::Host, Place::Ssd],
        };
        for place in places {
            if copy.is_some_and(|copy| layout.copies[copy].place != place) {
                continue;
            }
            let out = match written_before {
                None => None,
                Some(written) => match self.out_free[usize::from(place == Place::Ssd)].first(written, at) {
                    Some(slot) => Some(Crossing { slot, stretched: false }),
                    None => Some(Crossing { slot: self.out_gate(idle, at)?, stretched: true }),
                },
            };
            let back = match leaves_later {
                Some(absence) => Crossing { slot: absence.back, stretched: false },
                None => self.back_of(idle, place, at),
            };
            let made = out.map(|out| out.slot);
            let most_bytes = self.host_room(place, made, back.slot, None).min(left_bytes);
            let choice = Choice { idle, place, at, copy, effect, out, back, most_bytes };
            if most_bytes > 0 && found.is_none_or(|found| choice.price() < found.price()) {
                found = Some(choice);
            }
        }
        found
    }

    /// A copy that is made too late for a slot, and may be made earlier.
    fn late_copy(&mut self, idle: usize, at: usize) -> Option<usize> {
        let layout = &*self.layout;
        let copies = &layout.of_version[layout.needs.idles[idle].version];
        // What was made in time for a slot is so for later ones.
        let (known, since) = self.timely[idle];
        let from = if since <= at { known } else { 0 };
        let is_late = |copy: &usize| layout.copies[*copy].made.is_some_and(|made| made >= at);
        let place = copies[from..].iter().position(is_late).map(|place| from + place);
        let found = place.map(|place| copies[place]);
        self.timely[idle] = (place.unwrap_or(copies.len()), at);
        found
    }

    /// Room on the host for a copy while it is kept.
    fn host_room(&self, place: Place, made: Option<usize>, back: usize, copy: Option<usize>) -> u64 {
        if place != Place::Host || self.layout.host_is_ample {
            return u64::MAX;
        }
        let slots = match (copy, made) {
            (Some(copy), _) => match self.layout.stay(&self.layout.copies[copy]) {
                Some((_, end)) if end <= back => end..back + 1,
                _ => return u64::MAX,
            },
            (None, Some(made)) => made..back + 1,
            (None, None) => 0..self.count(),
        };
        let least = self.layout.host_least(slots).max(0) as u64;
        least - least % self.layout.granule_bytes
    }

    /// The last gate before a slot in which a pause's bytes may leave.
    fn out_gate(&self, idle: usize, at: usize) -> Option<usize> {
        let count = self.count();
        let pause = self.layout.needs.idles[idle];
        let written = self.layout.needs.versions[pause.version].written_before?;
        let slot = at % count;
        let runs = &self.layout.timeline.runs;
        // The launch that runs in the slot, or the next one; its first gate follows the launch before.
        let launch = runs.partition_point(|run| run.end <= slot);
        let gate_of = |launch: usize| if launch == 0 { 0 } else { runs[launch - 1].end };
        let own = if launch < runs.len() { gate_of(launch) } else { return None };
        let gate = if own < slot {
            at - (slot - own)
        } else if launch > 0 {
            at - (slot - gate_of(launch - 1))
        } else {
            (at + gate_of(runs.len() - 1)).checked_sub(count + slot)?
        };
        (gate >= written).then_some(gate)
    }
}
