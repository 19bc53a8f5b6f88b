//! Finds the simple items that share a time with a given one, without looking at all of them.

use crate::conflicts::Simple;

/// Simple items by the time for which they are live.
#[derive(Clone, Debug)]
pub(super) struct Overlaps {
    /// Beginning and item, the earliest first.
    starts: Vec<(u32, u32)>,
    /// The ends, the earliest first.
    ends: Vec<u32>,
    /// A binary tree over `starts`: the latest end below each node, the children of `i` being `2 i` and `2 i + 1`.
    latest: Vec<u32>,
    leaves: usize,
}

impl Overlaps {
    /// Creates the index of these items, given with their numbers.
    pub fn new(items: impl Iterator<Item = (usize, Simple)>) -> Overlaps {
        let mut pieces: Vec<(u32, u32, u32)> =
            items.map(|(item, simple)| (simple.times.0, item as u32, simple.times.1)).collect();
        pieces.sort_unstable();
        let mut ends: Vec<u32> = pieces.iter().map(|&(_, _, end)| end).collect();
        let leaves = pieces.len().next_power_of_two();
        let mut latest = vec![0; 2 * leaves];
        latest[leaves..leaves + ends.len()].copy_from_slice(&ends);
        for node in (1..leaves).rev() {
            latest[node] = latest[2 * node].max(latest[2 * node + 1]);
        }
        ends.sort_unstable();
        Overlaps { starts: pieces.iter().map(|&(start, item, _)| (start, item)).collect(), ends, latest, leaves }
    }

    /// The number of items that are live at some time within `times`.
    pub fn count(&self, times: (u32, u32)) -> usize {
        let begun = self.starts.partition_point(|&(start, _)| start < times.1);
        begun - self.ends.partition_point(|&end| end <= times.0)
    }

    /// Calls `visit` with every item that is live at some time within `times`.
    pub fn visit(&self, times: (u32, u32), mut visit: impl FnMut(usize)) {
        let begun = self.starts.partition_point(|&(start, _)| start < times.1);
        if begun > 0 {
            self.visit_below(1, (0, self.leaves), begun, times.0, &mut visit);
        }
    }

    /// Visits those of the first `begun` items that are below a node, which covers `span`, and end after a time.
    fn visit_below(&self, node: usize, span: (usize, usize), begun: usize, time: u32, visit: &mut impl FnMut(usize)) {
        if span.0 >= begun || self.latest[node] <= time {
            return;
        }
        if node >= self.leaves {
            visit(self.starts[span.0].1 as usize);
            return;
        }
        let middle = (span.0 + span.1) / 2;
        self.visit_below(2 * node, (span.0, middle), begun, time, visit);
        self.visit_below(2 * node + 1, (middle, span.1), begun, time, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::random::Xorshift64;

    #[test]
    fn those_found_are_those_of_a_plain_list() {
        let mut random = Xorshift64::new();
        for count in [0, 1, 2, 7, 64, 65, 300] {
            let pieces: Vec<Simple> = (0..count)
                .map(|_| {
                    let start = random.below(100) as u32;
                    Simple { times: (start, start + 1 + random.below(30) as u32), bytes: (0, 1) }
                })
                .collect();
            let overlaps = Overlaps::new(pieces.iter().copied().enumerate());
            for start in 0..130 {
                let times = (start, start + 1 + random.below(20) as u32);
                let expected: Vec<usize> = (0..count).filter(|&item| pieces[item].coincides(times)).collect();
                let mut found = Vec::new();
                overlaps.visit(times, |item| found.push(item));
                found.sort_unstable();
                assert_eq!(found, expected, "{times:?} of {count}");
                assert_eq!(overlaps.count(times), expected.len(), "{times:?} of {count}");
            }
        }
    }
}
