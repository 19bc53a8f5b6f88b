//! Windows: stretches of a step within which bytes certainly cross.

use std::ops::Range;

use super::gaps::{BlockGap, gaps};
use super::overlap::{Cover, Overlap, Stall, before};
use super::{CopyDirection, Position, Prices, Problem};

/// About the most windows that are looked at in each direction, so that memory does not grow with the square of the number of positions.
const WINDOWS_MAX: usize = 1 << 21;
/// The windows that are looked at for a peak in any case.
const WINDOWS_MIN: usize = 16;
/// The number of neighboring positions that share a list of the gaps around them.
const NEIGHBORS: usize = 64;

/// A stretch of the step within which bytes certainly cross in one direction.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The position with the need.
    pub peak: i64,
    /// The position at the other end of the window: before the peak if bytes leave, after it if they return.
    pub other: i64,
    /// The least that crosses, and how much of it is on the disk in the meantime.
    pub certain_bytes: f64,
    pub disk_bytes: f64,
    /// How long copies can move within the positions at both ends.
    ends_ns: f64,
    /// The time that belongs to the window alone: even numbers are the waits before positions, odd numbers the positions themselves,
    /// counted from the cut.
    pub slots: Range<usize>,
}

impl Window {
    pub fn direction(&self) -> CopyDirection {
        if self.other < self.peak { CopyDirection::Out } else { CopyDirection::Back }
    }

    /// The positions between both ends.
    fn inside(&self) -> Range<i64> {
        match self.direction() {
            CopyDirection::Out => self.other + 1..self.peak,
            CopyDirection::Back => self.peak + 1..self.other,
        }
    }
}

/// A position at which some of what is idle at a peak appeared or is due, as a distance from the peak, with its bytes, and the longest time
/// for which they can move within that position.
type Entry = (i64, f64, f64);

/// What is idle at a peak, and when it appeared or is due: the nearest position first.
struct Profile {
    entries: Vec<Entry>,
    /// The idle bytes minus the bytes that must be elsewhere: this many need not cross within any window.
    room_bytes: f64,
}

/// At most `most` of the entries, evenly spread. The bytes of those that are left out count at the next one, so fewer windows begin or end
/// there, but each that remains is the same.
fn thinned(entries: &[Entry], most: usize) -> Vec<Entry> {
    let merged = |together: &[Entry]| -> Option<Entry> {
        let &(distance, _, end_ns) = together.last()?;
        Some((distance, together.iter().map(|entry| entry.1).sum(), end_ns))
    };
    entries.chunks(entries.len().div_ceil(most).max(1)).filter_map(merged).collect()
}

/// By position of a step: the bytes of the gaps that it lies in. These are sums of whole numbers, so their order does not matter.
fn gap_bytes(gaps: &[BlockGap], count: i64) -> Vec<f64> {
    // What begins and ends where, in this step and the next one.
    let mut changes = vec![0.0; 2 * count as usize + 1];
    for gap in gaps.iter().filter(|gap| gap.from + 1 < gap.to) {
        changes[gap.from as usize + 1] += gap.bytes;
        changes[gap.to as usize] -= gap.bytes;
    }
    let mut gap_bytes = vec![0.0; count as usize];
    let mut sum = 0.0;
    for (at, change) in changes[..2 * count as usize].iter().enumerate() {
        sum += change;
        gap_bytes[at % count as usize] += sum;
    }
    gap_bytes
}

/// The best windows up to a slot: what they are worth together, and the last of them. Most slots have none.
pub(super) type Best = (f64, Option<Box<Window>>);

/// A problem, prepared for queries about windows.
pub(super) struct Step<'a> {
    pub problem: &'a Problem,
    pub count: i64,
    gaps: Vec<BlockGap>,
    /// By position: the bytes of all gaps that it lies in.
    gap_bytes: Vec<f64>,
    /// For each [`NEIGHBORS`] positions: the gaps around those of them at which not all fit.
    around: Vec<Vec<u32>>,
    profiles: [Vec<Profile>; 2],
    /// The sum of the least times before each position.
    elapsed_ns: Vec<f64>,
    /// How long positions leave workers idle, in ascending order.
    pub idle_ns: Vec<f64>,
    /// For copies in one direction alone.
    overlaps: [Overlap; 2],
    /// For both directions together.
    pub both: Overlap,
}

impl<'a> Step<'a> {
    pub fn new(problem: &'a Problem) -> Step<'a> {
        let positions = &problem.positions;
        let count = positions.len() as i64;
        let gaps = gaps(&problem.blocks, count);
        let gap_bytes = gap_bytes(&gaps, count);
        let room_bytes = |position: &Position| problem.device_memory_bytes as f64 - position.set_bytes as f64;
        let is_short = |&at: &usize| gap_bytes[at] > room_bytes(&positions[at]);
        // The short positions of two steps, since gaps continue into the next one.
        let short: Vec<usize> = (0..positions.len()).filter(is_short).collect();
        let short: Vec<i64> =
            [0, count].iter().flat_map(|step| short.iter().map(move |&at| at as i64 + step)).collect();
        let mut around: Vec<Vec<u32>> = vec![Vec::new(); positions.len().div_ceil(NEIGHBORS)];
        for (index, gap) in gaps.iter().enumerate() {
            let first = short.partition_point(|&at| at <= gap.from);
            for &position in short[first..].iter().take_while(|&&at| at < gap.to) {
                let near = &mut around[position.rem_euclid(count) as usize / NEIGHBORS];
                if near.last() != Some(&(index as u32)) {
                    near.push(index as u32);
                }
            }
        }
        let mut elapsed_ns = vec![0.0];
        for (before, position) in positions.iter().enumerate() {
            elapsed_ns.push(elapsed_ns[before] + position.duration_ns);
        }
        let overlap = |price: fn(&Prices) -> f64| {
            let cover = |&(duration_ns, prices): &(f64, Prices)| Cover { duration_ns, price: price(&prices) };
            let covers = |position: &Position| position.covers.iter().map(cover).collect::<Vec<_>>();
            Overlap::new(&positions.iter().map(covers).collect::<Vec<_>>())
        };
        let overlaps = [overlap(|prices| prices.out), overlap(|prices| prices.back)];
        let both = overlap(|prices| prices.both);
        let mut idle_ns: Vec<f64> = positions.iter().map(|position| position.idle_ns).collect();
        idle_ns.sort_by(f64::total_cmp);
        let profiles = Default::default();
        let mut step = Step { problem, count, gaps, gap_bytes, around, profiles, elapsed_ns, idle_ns, overlaps, both };
        step.profiles = [CopyDirection::Out, CopyDirection::Back]
            .map(|direction| (0..count).map(|peak| step.profile(peak, direction)).collect());
        step
    }

    /// The cuts before and after the position at which the most must be elsewhere: a step that is cut open there sees all of that return,
    /// or leave. Empty if everything fits.
    pub fn around_worst(&self) -> Vec<i64> {
        let need_bytes = |at: &i64| {
            let set_bytes = self.problem.positions[*at as usize].set_bytes as f64;
            self.gap_bytes[*at as usize] + set_bytes - self.problem.device_memory_bytes as f64
        };
        let worst = (0..self.count).max_by(|a, b| need_bytes(a).total_cmp(&need_bytes(b)));
        worst.filter(|at| need_bytes(at) > 0.0).map_or(Vec::new(), |at| vec![at, (at + 1) % self.count])
    }

    /// The gaps around a position at which not all of them fit, in the step in which that position is `peak`.
    pub fn around(&self, peak: i64) -> impl Iterator<Item = BlockGap> + '_ {
        let index = peak.rem_euclid(self.count);
        let near = self.around[index as usize / NEIGHBORS].iter().map(move |&gap| self.gaps[gap as usize]);
        // A gap may continue into the next step.
        let lies_in = move |gap: &BlockGap| [index, index + self.count].iter().any(|&at| gap.from < at && at < gap.to);
        near.filter(lies_in).map(move |gap| gap.around(peak, self.count))
    }

    fn profile(&self, peak: i64, direction: CopyDirection) -> Profile {
        let position = &self.problem.positions[peak as usize];
        let room_bytes = self.problem.device_memory_bytes as f64 - position.set_bytes as f64;
        if self.gap_bytes[peak as usize] <= room_bytes {
            return Profile { entries: Vec::new(), room_bytes };
        }
        let duration_ns = |at: i64| self.problem.positions[at.rem_euclid(self.count) as usize].duration_ns;
        let crossing = |gap: BlockGap| match direction {
            CopyDirection::Out => {
                let at = gap.written?;
                // What nothing wrote can appear at any time before it is touched.
                let done_ns = gap.writer.map_or(0.0, |writer| writer.done_ns);
                Some((at - peak, gap.bytes, duration_ns(at) - done_ns))
            }
            CopyDirection::Back => Some((gap.to - peak, gap.bytes, duration_ns(gap.to) - gap.due_ns)),
        };
        let mut entries: Vec<Entry> = self.around(peak).filter_map(crossing).collect();
        entries.sort_by_key(|entry| entry.0.abs());
        entries.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                *kept = (kept.0, kept.1 + next.1, kept.2.max(next.2));
            }
            same
        });
        let most = (WINDOWS_MAX / self.count as usize).max(WINDOWS_MIN);
        Profile { entries: thinned(&entries, most), room_bytes }
    }

    /// The windows at a peak, from the shortest on, that lie in the step that begins at `cut`.
    fn windows(&self, cut: i64, peak: i64, direction: CopyDirection) -> impl Iterator<Item = Window> + '_ {
        let index = peak.rem_euclid(self.count) as usize;
        let profile = &self.profiles[direction as usize][index];
        let position = &self.problem.positions[index];
        // What happens within a position also takes up the time of the position itself.
        let several = |at: i64, end_ns: f64| {
            i64::from(end_ns > 0.0 || self.problem.positions[at.rem_euclid(self.count) as usize].several)
        };
        let mut crossed_bytes = 0.0;
        let windows = profile.entries.iter().map(move |&(distance, bytes, end_ns)| {
            crossed_bytes += bytes;
            let (other, certain_bytes) = (peak + distance, crossed_bytes - profile.room_bytes);
            let (slots, peak_ns) = match direction {
                CopyDirection::Out => (
                    2 * (other + 1 - cut) - several(other, end_ns)..2 * (peak - cut) + 1 + several(peak, 0.0),
                    position.duration_ns - position.due_ns,
                ),
                CopyDirection::Back => (
                    2 * (peak - cut) + 2 - several(peak, 0.0)..2 * (other - cut) + 1 + several(other, end_ns),
                    position.duration_ns - position.done_ns,
                ),
            };
            (slots, other, certain_bytes, end_ns + peak_ns)
        });
        let last = 2 * self.count;
        let inside = windows.take_while(move |(slots, ..)| slots.start >= 0 && slots.end <= last);
        let host_bytes = self.problem.host_memory_bytes as f64;
        inside.filter(|(_, _, certain_bytes, _)| *certain_bytes > 0.0).map(
            move |(slots, other, certain_bytes, ends_ns)| Window {
                peak,
                other,
                certain_bytes,
                disk_bytes: certain_bytes - host_bytes,
                ends_ns,
                slots: slots.start as usize..slots.end as usize,
            },
        )
    }

    /// The stall that is certain within a window, and the most nanoseconds of it that a byte less would spare, or a nanosecond less of
    /// copies.
    pub fn stall(&self, window: &Window) -> (f64, f64, f64) {
        let (direction, inside) = (window.direction(), window.inside());
        let link_ns = self.problem.all.of(direction).ns(window.certain_bytes);
        let Stall { ns, per_ns } = self.overlaps[direction as usize].stall(inside.clone(), window.ends_ns, link_ns);
        let by_link = (ns, per_ns * link_ns / window.certain_bytes, per_ns);
        if window.disk_bytes <= 0.0 {
            return by_link;
        }
        let disk_ns = self.problem.disk.of(direction).ns(window.disk_bytes);
        let hidden_ns = before(&self.elapsed_ns, inside.end) - before(&self.elapsed_ns, inside.start);
        let by_disk = (disk_ns - hidden_ns - window.ends_ns, disk_ns / window.disk_bytes, 1.0);
        if by_disk.0 > by_link.0 { by_disk } else { by_link }
    }

    /// The most windows that there can be.
    pub fn entry_count(&self) -> usize {
        self.profiles.iter().flatten().map(|profile| profile.entries.len()).sum()
    }

    /// The cost of copies in one direction that move for `link_ns` within the whole step.
    pub fn whole_stall(&self, direction: CopyDirection, link_ns: f64) -> Stall {
        self.overlaps[direction as usize].stall(0..self.count, 0.0, link_ns)
    }

    /// For each slot of the step that begins at `cut`: the windows from `start` on that end before it, share no slot, and are worth the
    /// most together.
    pub fn best(
        &self,
        cut: i64,
        start: i64,
        directions: &[CopyDirection],
        worth: impl Fn(&Window) -> f64,
    ) -> Vec<Best> {
        let first = 2 * start as usize;
        let mut best: Vec<Best> = vec![(0.0, None); 2 * self.count as usize + 1];
        let enter = |best: &mut Vec<Best>, peak: i64, direction: CopyDirection| {
            if !directions.contains(&direction) {
                return;
            }
            for window in self.windows(cut, peak, direction) {
                if window.slots.start < first {
                    break;
                }
                let sum = best[window.slots.start].0 + worth(&window);
                let end = window.slots.end;
                if sum > best[end].0 {
                    best[end] = (sum, Some(Box::new(window)));
                }
            }
        };
        let carry = |best: &mut Vec<Best>, slot: usize| {
            if best[slot - 1].0 > best[slot].0 {
                best[slot] = (best[slot - 1].0, None);
            }
        };
        for index in start..self.count {
            let wait = 2 * index as usize;
            if wait > first {
                carry(&mut best, wait);
            }
            enter(&mut best, cut + index, CopyDirection::Out);
            carry(&mut best, wait + 1);
            if !self.problem.positions[((cut + index) % self.count) as usize].several {
                // Windows after this position begin with the next wait, and nothing else ends in between.
                carry(&mut best, wait + 2);
            }
            enter(&mut best, cut + index, CopyDirection::Back);
        }
        carry(&mut best, 2 * self.count as usize);
        best
    }
}

/// The windows that [`Step::best`] found up to a slot.
pub(super) fn chosen(best: &[Best], start: i64, end: usize) -> Vec<Window> {
    let mut chosen = Vec::new();
    let mut at = end;
    while at > 2 * start as usize {
        match &best[at].1 {
            Some(window) => {
                chosen.push(Window::clone(window));
                at = window.slots.start;
            }
            None => at -= 1,
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::thinned;

    #[test]
    fn what_is_left_out_counts_at_the_next_farther_position() {
        let entries: Vec<(i64, f64, f64)> = (1..=10).map(|at| (-at, at as f64, 0.5 * at as f64)).collect();
        assert_eq!(thinned(&entries, 10), entries);
        assert_eq!(thinned(&entries, 4), [(-3, 6.0, 1.5), (-6, 15.0, 3.0), (-9, 24.0, 4.5), (-10, 10.0, 5.0)]);
        assert_eq!(thinned(&entries, 1), [(-10, 55.0, 5.0)]);
        assert!(thinned(&[], 4).is_empty());
    }
}
