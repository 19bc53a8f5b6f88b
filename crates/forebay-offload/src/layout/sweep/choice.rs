//! Finds which gap helps best in a slot, and how.

use crate::layout::sweep::Sweep;
use crate::schedule::MemorySpace;

/// A slot in which something crosses the link.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    pub slot: usize,
    /// Whether the slot has to be widened for it.
    pub widened: bool,
}

/// What happens to the bytes of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They leave and return.
    Absent,
    /// They would be back by then, and return later instead.
    Later,
    /// They would leave later, and leave sooner instead.
    Sooner,
}

/// How a gap could help in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub span: usize,
    pub place: MemorySpace,
    /// The slot, in the numbering of the gap.
    pub at: usize,
    /// A copy that already exists.
    pub copy: Option<usize>,
    pub effect: Effect,
    /// Where a new copy is made, if any.
    pub out: Option<Crossing>,
    /// Where bytes return.
    pub back: Crossing,
    pub most_bytes: u64,
}

impl Choice {
    /// How many crossings of a byte have to be paid for by waiting.
    fn price(&self) -> usize {
        usize::from(self.out.is_some_and(|out| out.widened)) + usize::from(self.back.widened)
    }
}

impl Sweep<'_, '_> {
    /// The gap that helps best in a slot.
    pub fn choose(&mut self, slot: usize) -> Option<Choice> {
        loop {
            let (end, span) = self.most_promising(slot)?;
            let found = self.ask(span, self.layout.needs.reuse_gaps[span].end - (end - slot));
            if found.is_some() {
                return found;
            }
            // The gap is tried again in the next slot.
            self.active.remove(&(end, span));
            self.refused.push((end, span));
        }
    }

    /// The gap that seems to help best: the one that needs the least waiting and ends last.
    ///
    /// Prices do not fall within a slot, so the search goes on where it last ended.
    fn most_promising(&mut self, slot: usize) -> Option<(usize, usize)> {
        let mut best: Option<(usize, (usize, usize))> = None;
        let mut spent = Vec::new();
        if let Some((_, price, entry)) = self.found_last.filter(|(at, ..)| *at == slot) {
            best = self.least_waited_for(slot, price, Some(entry), &mut spent).filter(|(least, _)| *least <= price);
        }
        if best.is_none() {
            best = self.least_waited_for(slot, 0, None, &mut spent);
        }
        for (end, span) in spent {
            self.active.remove(&(end, span));
            // Bytes that return early may return later instead.
            let returned = (end + self.first_back(span)).saturating_sub(self.layout.needs.reuse_gaps[span].end);
            if returned + 1 < end && returned < self.count() {
                self.starts[returned].push((end, span));
            }
        }
        self.found_last = best.map(|(price, entry)| (slot, price, entry));
        best.map(|(_, entry)| entry)
    }

    /// The first gap, from `from` on towards those that end earlier, that needs no more waiting than `enough`; if there is none, the one
    /// that needs the least. Gaps that are wholly absent are `spent`.
    fn least_waited_for(
        &self,
        slot: usize,
        enough: usize,
        from: Option<(usize, usize)>,
        spent: &mut Vec<(usize, usize)>,
    ) -> Option<(usize, (usize, usize))> {
        let (layout, count) = (&*self.layout, self.count());
        // Within one step, the last slot before this one and the first one after it in which the link has room.
        let place = usize::from(self.strategy.prefers_ssd());
        let last_out = self.out_free[place].last(slot, slot + count);
        let first_in = self.in_free[place].first(slot + 1, slot + 1 + count);
        let mut best: Option<(usize, (usize, usize))> = None;
        for &(end, span) in self.active.range(..=from.unwrap_or((usize::MAX, usize::MAX))).rev() {
            let gap = layout.needs.reuse_gaps[span];
            let version = layout.needs.versions[gap.version];
            let used_bytes = self.used_bytes[span];
            let at = gap.end - (end - slot);
            let is_used = used_bytes >= layout.workload.tensors[version.tensor].size_bytes;
            if is_used && self.first_back(span) > at {
                spent.push((end, span));
                continue;
            }
            let is_written =
                |free: usize| version.written_before.is_none_or(|written| written + slot + count <= at + free);
            let leaves = is_used
                || layout.copied_bytes[gap.version] > used_bytes
                || version.written_before.is_none()
                || last_out.is_some_and(is_written);
            let price = usize::from(!leaves) + usize::from(first_in.is_none_or(|free| free >= end));
            if best.is_none_or(|(least, _)| price < least) {
                best = Some((price, (end, span)));
            }
            if price <= enough {
                break;
            }
        }
        best
    }

    /// How a gap could help in a slot.
    fn ask(&mut self, span: usize, at: usize) -> Option<Choice> {
        let layout = &*self.layout;
        let gap = layout.needs.reuse_gaps[span];
        let version = layout.needs.versions[gap.version];
        let size_bytes = layout.workload.tensors[version.tensor].size_bytes;
        if self.used_bytes[span] >= size_bytes {
            let (_, copy) = *self.returns[span].first().filter(|(back, _)| *back <= at)?;
            let (place, most_bytes) = (layout.copies[copy].place, layout.copies[copy].size_bytes);
            let back = self.back_of(span, place, at);
            let unused = self.host_room(place, layout.copies[copy].made, back.slot, Some(copy));
            return (unused >= most_bytes).then_some(Choice {
                span,
                place,
                at,
                copy: Some(copy),
                effect: Effect::Later,
                out: None,
                back,
                most_bytes,
            });
        }
        // An existing copy costs nothing outwards.
        while let Some(&number) = layout.of_version[gap.version].get(self.passed[span]) {
            let copy = &layout.copies[number];
            let is_made = copy.made.is_none_or(|made| made < at);
            if is_made && !copy.absences.iter().any(|absence| absence.span == span) {
                let back = self.back_of(span, copy.place, at);
                let most_bytes = self.host_room(copy.place, copy.made, back.slot, Some(number));
                if most_bytes >= copy.size_bytes {
                    let (place, copy, most_bytes) = (copy.place, Some(number), copy.size_bytes);
                    return Some(Choice { span, place, at, copy, effect: Effect::Absent, out: None, back, most_bytes });
                }
            }
            self.passed[span] += 1;
        }
        self.ask_for_a_copy(span, at)
    }

    /// Where bytes that are absent in a slot return.
    fn back_of(&self, span: usize, place: MemorySpace, at: usize) -> Crossing {
        let end = self.layout.needs.reuse_gaps[span].end;
        let free = self.in_free[usize::from(place == MemorySpace::Ssd)].last(at + 1, end);
        Crossing { slot: free.unwrap_or(end - 1), widened: free.is_none() }
    }

    /// Finds how a gap could help with a new copy, or with one that is made earlier.
    fn ask_for_a_copy(&mut self, span: usize, at: usize) -> Option<Choice> {
        let version = self.layout.needs.reuse_gaps[span].version;
        let tensor = self.layout.needs.versions[version].tensor;
        let fresh_bytes = self.layout.workload.tensors[tensor].size_bytes - self.layout.copied_bytes[version];
        let copy = if fresh_bytes == 0 { Some(self.late_copy(span, at)?) } else { None };
        let layout = &*self.layout;
        let written_before = layout.needs.versions[version].written_before;
        let left_bytes = copy.map_or(fresh_bytes, |copy| layout.copies[copy].size_bytes);
        let own = |copy: usize| layout.copies[copy].absences.iter().find(|absence| absence.span == span);
        let leaves_later = copy.and_then(own);
        let effect = if leaves_later.is_some() { Effect::Sooner } else { Effect::Absent };
        let mut found: Option<Choice> = None;
        let places = match self.strategy.prefers_ssd() {
            true => [MemorySpace::Ssd, MemorySpace::Host],
            false => [MemorySpace::Host, MemorySpace::Ssd],
        };
        for place in places {
            if copy.is_some_and(|copy| layout.copies[copy].place != place) {
                continue;
            }
            let out = match written_before {
                None => None,
                Some(written) => match self.out_free[usize::from(place == MemorySpace::Ssd)].first(written, at) {
                    Some(slot) => Some(Crossing { slot, widened: false }),
                    None => Some(Crossing { slot: self.out_gate(span, at)?, widened: true }),
                },
            };
            let back = match leaves_later {
                Some(absence) => Crossing { slot: absence.back, widened: false },
                None => self.back_of(span, place, at),
            };
            let made = out.map(|out| out.slot);
            let most_bytes = self.host_room(place, made, back.slot, None).min(left_bytes);
            let choice = Choice { span, place, at, copy, effect, out, back, most_bytes };
            if most_bytes > 0 && found.is_none_or(|found| choice.price() < found.price()) {
                found = Some(choice);
            }
        }
        found
    }

    /// A copy that is made too late for a slot, and could be made earlier.
    fn late_copy(&mut self, span: usize, at: usize) -> Option<usize> {
        let layout = &*self.layout;
        let copies = &layout.of_version[layout.needs.reuse_gaps[span].version];
        // A copy made in time for a slot is also in time for later ones.
        let (known, since) = self.timely[span];
        let from = if since <= at { known } else { 0 };
        let is_late = |copy: &usize| layout.copies[*copy].made.is_some_and(|made| made >= at);
        let place = copies[from..].iter().position(is_late).map(|place| from + place);
        let found = place.map(|place| copies[place]);
        self.timely[span] = (place.unwrap_or(copies.len()), at);
        found
    }

    /// The room on the host for a copy while it is kept.
    fn host_room(&self, place: MemorySpace, made: Option<usize>, back: usize, copy: Option<usize>) -> u64 {
        if place != MemorySpace::Host || self.layout.host_is_ample {
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
        least - least % self.layout.transfer_quantum_bytes
    }

    /// The last gate before a slot in which the bytes of a gap can leave.
    fn out_gate(&self, span: usize, at: usize) -> Option<usize> {
        let count = self.count();
        let gap = self.layout.needs.reuse_gaps[span];
        let written = self.layout.needs.versions[gap.version].written_before?;
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
