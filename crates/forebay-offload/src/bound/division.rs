//! Division: which windows count, and how the stalls within them add up.

use std::ops::Range;

use super::recomputation::Counted;
use super::windows::{Best, Step, Window, chosen};
use super::{CopyDirection, Passages};

/// A step is divided at this many places at most if both directions count together.
const DIVISIONS_MAX: usize = 16;
/// It is divided at fewer if that would look at more windows than this.
const LOOKS_MAX: usize = 1 << 22;

/// The windows from one place on.
struct From {
    /// Those of either direction with the longest stalls.
    alone: Vec<Best>,
    /// Those of each direction with the longest copies, if both count together.
    ways: Option<[Vec<Best>; 2]>,
}

/// A stall that is certain, and the windows that it comes from.
struct Part {
    stall_ns: f64,
    counted: Vec<Counted>,
}

/// The stall that is certain up to a place.
#[derive(Clone, Copy)]
struct Sum {
    stall_ns: f64,
    /// Where the last part begins, and whether both directions count together in it.
    from: usize,
    together: bool,
}

impl Step<'_> {
    /// The stalls that are certain in a step that is cut open before a position.
    pub(super) fn certain_stall_ns(&self, cut: i64) -> f64 {
        let ways_ns = [CopyDirection::Out, CopyDirection::Back].map(|direction| self.one_way_ns(cut, direction));
        ways_ns.into_iter().fold(self.divided_ns(cut).max(self.workers_ns(cut)), f64::max)
    }

    /// How much longer the whole step certainly takes because of what crosses in one direction, inputs or outputs included.
    fn one_way_ns(&self, cut: i64, direction: CopyDirection) -> f64 {
        let all = &self.problem.all;
        if self.ports_bytes(direction) == 0 {
            // The windows alone give the same.
            return 0.0;
        }
        let (copies_ns, windows) = self.one_way(cut, direction);
        let stall = self.whole_stall(direction, copies_ns);
        let counted = windows.into_iter().map(|window| self.counted(all, window, stall.per_ns)).collect::<Vec<_>>();
        self.with_recomputation(stall.ns, &counted.iter().collect::<Vec<_>>())
    }

    /// How long the copies of the whole step certainly move in one direction, inputs or outputs included, and the windows that this comes
    /// from.
    pub(super) fn one_way(&self, cut: i64, direction: CopyDirection) -> (f64, Vec<Window>) {
        let all = &self.problem.all;
        let best = self.best(cut, 0, &[direction], |window| self.link_ns(all, window));
        let windows = chosen(&best, 0, best.len() - 1);
        (best[best.len() - 1].0 + self.ports_ns(all, direction, windows.is_empty()), windows)
    }

    /// How much longer the parts of a step certainly take, for the best way to divide it.
    fn divided_ns(&self, cut: i64) -> f64 {
        let places = self.places();
        let last = places.len() - 1;
        let mut sums = vec![Sum { stall_ns: 0.0, from: 0, together: false }; places.len()];
        let mut found = Vec::new();
        for (index, &start) in places[..last].iter().enumerate() {
            let from = self.from(cut, start);
            for (later, &end) in places.iter().enumerate().skip(index + 1) {
                for together in [false, true] {
                    let stall_ns = sums[index].stall_ns + self.part_ns(cut, &from, start..end, together).0;
                    if stall_ns > sums[later].stall_ns {
                        sums[later] = Sum { stall_ns, from: index, together };
                    }
                }
            }
            found.push(from);
        }
        let (mut parts, mut at) = (Vec::new(), last);
        while at > 0 && sums[at].stall_ns > 0.0 {
            let Sum { from, together, .. } = sums[at];
            parts.extend(self.parts(cut, &found[from], places[from]..places[at], together));
            at = from;
        }
        // A smaller sum may be spared less.
        let alone = self.parts(cut, &found[0], 0..self.count, false);
        let one_way = |direction| {
            let best = self.best(cut, 0, &[direction], |window| self.stall(window).0);
            chosen(&best, 0, best.len() - 1).into_iter().map(|window| self.part(window)).collect()
        };
        let ways = [CopyDirection::Out, CopyDirection::Back].map(one_way);
        ways.into_iter().chain([parts, alone]).map(|parts| self.left_ns(&parts)).fold(0.0, f64::max)
    }

    /// What recomputation leaves of the parts: of all of them, of those in which copies never have to wait for more room, or of fewer and
    /// fewer, leaving out those that it could spare the most beyond their stalls, which is no gain for the others.
    fn left_ns(&self, parts: &[Part]) -> f64 {
        let left_ns = |parts: &mut dyn Iterator<Item = &Part>| {
            let (mut stall_ns, mut counted) = (0.0, Vec::new());
            for part in parts {
                stall_ns += part.stall_ns;
                counted.extend(&part.counted);
            }
            self.with_recomputation(stall_ns, &counted)
        };
        let beyond_ns = |part: &Part| {
            let runs = self.runs(&part.counted.iter().collect::<Vec<_>>());
            runs.into_iter().map(|(spared_ns, _)| spared_ns).sum::<f64>() - part.stall_ns
        };
        let never_wait = |part: &&Part| part.counted.iter().all(|counted| counted.per_ns < 1.0);
        let mut most_ns = left_ns(&mut parts.iter().filter(never_wait));
        let mut ranked: Vec<(f64, &Part)> = parts.iter().map(|part| (beyond_ns(part), part)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        while let Some(&(beyond_ns, _)) = ranked.last() {
            most_ns = most_ns.max(left_ns(&mut ranked.iter().map(|&(_, part)| part)));
            if beyond_ns <= 0.0 {
                break;
            }
            ranked.pop();
        }
        most_ns
    }

    /// A part of a single window.
    fn part(&self, window: Window) -> Part {
        let (stall_ns, ns_per_byte, per_ns) = self.stall(&window);
        Part { stall_ns, counted: vec![Counted { window, ns_per_byte, per_ns }] }
    }

    /// The places at which the step is divided, from its start to its end.
    fn places(&self) -> Vec<i64> {
        let looks = if self.problem.shares { LOOKS_MAX / self.entry_count().max(1) } else { 1 };
        let parts = (looks.clamp(1, DIVISIONS_MAX) as i64).min(self.count);
        (0..=parts).map(|part| part * self.count / parts).collect()
    }

    fn from(&self, cut: i64, start: i64) -> From {
        let both = &self.problem.both;
        let directions = [CopyDirection::Out, CopyDirection::Back];
        let way = |direction| self.best(cut, start, &[direction], |window| self.link_ns(both, window));
        From {
            alone: self.best(cut, start, &directions, |window| self.stall(window).0),
            ways: self.problem.shares.then(|| directions.map(way)),
        }
    }

    /// The stall that is certain in a part of the step, and the most nanoseconds of it that a nanosecond less of copies would spare.
    fn part_ns(&self, cut: i64, from: &From, part: Range<i64>, together: bool) -> (f64, f64) {
        let end = 2 * part.end as usize;
        match &from.ways {
            _ if !together => (from.alone[end].0, 0.0),
            None => (0.0, 0.0),
            Some(ways) => {
                let whole = part == (0..self.count);
                let link_ns = [CopyDirection::Out, CopyDirection::Back].map(|direction| {
                    let best = &ways[direction as usize][end];
                    let ports_ns = || self.ports_ns(&self.problem.both, direction, best.0 == 0.0);
                    best.0 + if whole { ports_ns() } else { 0.0 }
                });
                let stall = self.both.stall(cut + part.start..cut + part.end, 0.0, link_ns.iter().sum());
                (stall.ns, stall.per_ns)
            }
        }
    }

    /// The stalls in a part of the step: of each of its windows, or of all of them together.
    fn parts(&self, cut: i64, from: &From, part: Range<i64>, together: bool) -> Vec<Part> {
        let end = 2 * part.end as usize;
        match &from.ways {
            Some(ways) if together => {
                let (stall_ns, per_ns) = self.part_ns(cut, from, part.clone(), true);
                let windows = ways.iter().flat_map(|way| chosen(way, part.start, end));
                let counted = windows.map(|window| self.counted(&self.problem.both, window, per_ns)).collect();
                vec![Part { stall_ns, counted }]
            }
            _ => chosen(&from.alone, part.start, end).into_iter().map(|window| self.part(window)).collect(),
        }
    }

    /// The least time for which copies within a window move.
    fn link_ns(&self, passages: &Passages, window: &Window) -> f64 {
        passages.of(window.direction()).ns(window.certain_bytes)
    }

    pub(super) fn counted(&self, passages: &Passages, window: Window, per_ns: f64) -> Counted {
        Counted { ns_per_byte: per_ns * self.link_ns(passages, &window) / window.certain_bytes, window, per_ns }
    }

    /// The time for which copies of inputs or outputs move. They may be part of other copies unless they are the `only` ones.
    fn ports_ns(&self, passages: &Passages, direction: CopyDirection, only: bool) -> f64 {
        let passage = passages.of(direction);
        match (self.ports_bytes(direction), only) {
            (0, _) => 0.0,
            (bytes, true) => passage.ns(bytes as f64),
            (bytes, false) => bytes as f64 * passage.ns_per_byte,
        }
    }

    /// The bytes of inputs or outputs that cross in a direction in every step.
    fn ports_bytes(&self, direction: CopyDirection) -> u64 {
        match direction {
            CopyDirection::Out => self.problem.taken_bytes,
            CopyDirection::Back => self.problem.given_bytes,
        }
    }
}
