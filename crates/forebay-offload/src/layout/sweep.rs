//! A pass over the step in which waits grow if nothing else helps.
//!
//! Slot by slot, what the device cannot hold leaves: of the bytes that are idle at that time, those needed again last go first. They leave
//! as early as the link is free after they were written, and come back as late as it is free before they are needed. Needs are met in order
//! of time, so earlier ones get the earlier link, and bytes wait for the link only if it is busy with what is more urgent. If no idle bytes
//! have a crossing left, a gate is widened: the one before the launch that lacks room, in which bytes leave, or the one before the launch
//! that needs bytes back. The returns of what is absent are then placed again, if that is shorter (`returns`).

mod choice;
mod moves;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::layout::Layout;
use crate::layout::extremes::greatest_of_blocks;
use crate::layout::free::Free;
use crate::tuning::{BUSY_PARTS, LAPS};

/// The result of a sweep.
pub struct Relief {
    /// Whether everything fits.
    pub fits: bool,
    /// How much longer each slot becomes.
    pub added_ns: Vec<u64>,
    /// For each launch, what the way out after it is worth.
    pub out: Vec<Price>,
    /// For each launch, what the way back before it is worth.
    pub back: Vec<Price>,
}

/// What it is worth not to cross the link at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Price {
    /// Nothing: the link has room.
    Free,
    /// Nothing now, but further crossings would wait.
    Busy,
    /// The time that the crossing takes, because something waits for it.
    Waits,
}

/// The pass.
struct Sweep<'l, 'w> {
    layout: &'l mut Layout<'w>,
    strategy: Strategy,
    /// How much longer each slot becomes.
    added_ns: Vec<u64>,
    /// The slots with room on the link, for the host and for the SSD.
    out_free: [Free; 2],
    in_free: [Free; 2],
    /// The slots that were widened so that bytes can leave or return.
    widened: [Free; 2],
    /// The bytes that leave and return, by slot.
    changes: Vec<i64>,
    /// The bytes that are absent in the current slot.
    absent_bytes: i64,
    /// The bytes of each gap that are absent in some part of it.
    used_bytes: Vec<u64>,
    /// For each gap, when these bytes return, and the copy.
    returns: Vec<BTreeSet<(usize, usize)>>,
    /// The gaps that may help from each slot on.
    starts: Vec<Vec<(usize, usize)>>,
    /// The gaps around the current slot, by end and number.
    active: BTreeSet<(usize, usize)>,
    /// The slot, price and gap that were found last.
    found_last: Option<(usize, usize, (usize, usize))>,
    /// The gaps around the current slot that cannot help in it after all.
    refused: Vec<(usize, usize)>,
    /// For each gap, how many copies of its version it uses or cannot use.
    passed: Vec<usize>,
    /// For each gap, how many of the first copies of its version are known to be made before a slot, and that slot.
    timely: Vec<(usize, usize)>,
    /// The pressure with nothing absent.
    whole: Vec<i64>,
}

/// Which bytes go to the SSD if the host is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// As few as possible: what the host cannot hold is found first.
    HostFirst,
    /// As many as its links have time for; the host gets the rest.
    SsdFirst,
    /// Like `SsdFirst`, but what the host cannot hold is found first.
    SsdFound,
}

impl Strategy {
    /// Every strategy; the one for hosts that are large enough comes first.
    pub const ALL: [Strategy; 3] = [Strategy::HostFirst, Strategy::SsdFirst, Strategy::SsdFound];

    /// Whether bytes go to the SSD rather than to the host.
    pub fn prefers_ssd(self) -> bool {
        self != Strategy::HostFirst
    }
}

impl Layout<'_> {
    /// Relieves every slot.
    pub fn sweep(&mut self, strategy: Strategy) -> Relief {
        if strategy != Strategy::SsdFirst {
            self.find_for_ssd();
        }
        let mut relief = Sweep::new(self, strategy).run();
        if relief.fits {
            let mut other = self.clone();
            let added_ns = other.place_again();
            if added_ns.iter().sum::<u64>() < relief.added_ns.iter().sum() {
                *self = other;
                relief.added_ns = added_ns;
            }
        }
        relief
    }
}

impl<'l, 'w> Sweep<'l, 'w> {
    fn new(layout: &'l mut Layout<'w>, strategy: Strategy) -> Sweep<'l, 'w> {
        let count = layout.excess.len();
        let free = |unused: &[u64]| Free::new(unused.iter().map(|unused| *unused > 0));
        let both = |link: &[u64], ssd: &[u64]| Free::new(link.iter().zip(ssd).map(|(link, ssd)| *link > 0 && *ssd > 0));
        let unused = &layout.unused;
        let out_free = [free(&unused.link_out), both(&unused.link_out, &unused.ssd_out)];
        let in_free = [free(&unused.link_in), both(&unused.link_in, &unused.ssd_in)];
        let mut used_bytes = vec![0; layout.needs.reuse_gaps.len()];
        let mut returns = vec![BTreeSet::new(); layout.needs.reuse_gaps.len()];
        for (number, copy) in layout.copies.iter().enumerate() {
            for absence in &copy.absences {
                used_bytes[absence.span] += copy.size_bytes;
                returns[absence.span].insert((absence.back, number));
            }
        }
        let whole = whole_excess(layout);
        Sweep {
            whole,
            added_ns: vec![0; count],
            out_free,
            in_free,
            widened: [Free::new(vec![false; count].into_iter()), Free::new(vec![false; count].into_iter())],
            changes: Vec::new(),
            absent_bytes: 0,
            used_bytes,
            returns,
            starts: Vec::new(),
            active: BTreeSet::new(),
            found_last: None,
            refused: Vec::new(),
            passed: vec![0; layout.needs.reuse_gaps.len()],
            timely: vec![(0, 0); layout.needs.reuse_gaps.len()],
            layout,
            strategy,
        }
    }

    fn count(&self) -> usize {
        self.layout.excess.len()
    }

    fn run(mut self) -> Relief {
        let mut fits = false;
        for _ in 0..LAPS {
            if self.lap() {
                fits = true;
                break;
            }
        }
        let (out, back) = self.prices();
        Relief { fits, added_ns: self.added_ns, out, back }
    }

    /// For each launch, what the way of a byte out after it and back before it are worth.
    ///
    /// The way out is waited for if the link has no room from the end of the launch until something waits for bytes to leave; it is busy if
    /// the link has no room for long. The same holds for the way back, backwards in time.
    fn prices(&self) -> (Vec<Price>, Vec<Price>) {
        let (count, layout) = (self.count(), &*self.layout);
        let place = usize::from(self.strategy.prefers_ssd());
        let long_ns = layout.timeline.step_ns / BUSY_PARTS;
        let price = |free: Option<usize>, is_waited_for: bool, from: usize| match free {
            _ if is_waited_for => Price::Waits,
            Some(free) if layout.time_ns(free).abs_diff(layout.time_ns(from)) < long_ns => Price::Free,
            _ => Price::Busy,
        };
        let out = |run: &Range<usize>| {
            let free = self.out_free[place].first(run.end, run.end + count);
            let waits = self.widened[0].first(run.end, run.end + count);
            price(free, waits.is_some_and(|waits| free.is_none_or(|free| waits <= free)), run.end)
        };
        let back = |run: &Range<usize>| {
            let free = self.in_free[place].last(run.start, run.start + count);
            let waits = self.widened[1].last(run.start, run.start + count);
            price(free, waits.is_some_and(|waits| free.is_none_or(|free| waits >= free)), run.start + count)
        };
        let runs = &layout.timeline.runs;
        (runs.iter().map(out).collect(), runs.iter().map(back).collect())
    }

    /// Whether a slot has a length.
    fn exists(&self, slot: usize) -> bool {
        self.layout.timeline.slots[slot].duration_ns + self.added_ns[slot] > 0
    }

    /// Makes one pass. Returns whether it found nothing to do.
    fn lap(&mut self) -> bool {
        let count = self.count();
        self.changes = vec![0; count];
        self.absent_bytes = 0;
        self.active.clear();
        self.refused.clear();
        self.found_last = None;
        self.passed.fill(0);
        self.starts = vec![Vec::new(); count];
        for (number, gap) in self.layout.needs.reuse_gaps.iter().enumerate() {
            let begin = gap.begin % count;
            let end = gap.end - gap.begin + begin;
            // A gap that ends in the slot in which it begins has no time to be used.
            if end - begin > 2 || (begin..end).any(|slot| self.exists(slot % count)) {
                self.starts[begin].push((end, number));
                if end > count {
                    self.active.insert((end - count, number));
                }
            }
        }
        let mut quiet = true;
        for slot in 0..count {
            self.absent_bytes += std::mem::take(&mut self.changes[slot]);
            self.active.extend(std::mem::take(&mut self.refused));
            while self.active.first().is_some_and(|(end, _)| *end <= slot + 1) {
                self.active.pop_first();
            }
            let started = std::mem::take(&mut self.starts[slot]);
            self.active.extend(started.into_iter().filter(|(end, _)| *end > slot + 1));
            if !self.exists(slot) {
                continue;
            }
            while self.layout.excess[slot] > self.absent_bytes {
                quiet = false;
                let short_bytes = (self.layout.excess[slot] - self.absent_bytes) as u64;
                let Some(choice) = self.choose(slot) else { break };
                self.commit(slot, choice, short_bytes);
            }
        }
        self.settle();
        quiet
    }

    /// Recomputes the pressure from what is absent.
    fn settle(&mut self) {
        let absent = absent_bytes(self.layout);
        self.layout.excess = self.whole.iter().zip(absent).map(|(whole, absent)| whole - absent).collect();
        self.layout.excess_blocks = greatest_of_blocks(&self.layout.excess);
    }
}

/// The pressure with nothing absent, by slot.
pub(super) fn whole_excess(layout: &Layout<'_>) -> Vec<i64> {
    layout.excess.iter().zip(absent_bytes(layout)).map(|(left, absent)| left + absent).collect()
}

/// The bytes that are absent, by slot.
pub(super) fn absent_bytes(layout: &Layout<'_>) -> Vec<i64> {
    let count = layout.excess.len();
    let mut changes = vec![0i64; count];
    for copy in &layout.copies {
        for absence in &copy.absences {
            let bytes = copy.size_bytes as i64;
            changes[absence.from % count] += bytes;
            changes[absence.back % count] -= bytes;
            changes[0] += if absence.from / count == absence.back / count { 0 } else { bytes };
        }
    }
    changes
        .into_iter()
        .scan(0, |absent, change| {
            *absent += change;
            Some(*absent)
        })
        .collect()
}
