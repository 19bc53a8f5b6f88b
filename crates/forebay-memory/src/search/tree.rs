//! Tree search for a placement below a capacity.
//!
//! Each decision takes a block that no other can lie below, and either places it at its lowest possible base or refuses it that base for
//! good; [`Bounds`] derives what follows. The two alternatives leave no placement out, so a search that finishes proves its result. Three
//! things keep it short: it continues where the fewest blocks can come next (rules differ, see [`Rule`]), blocks that no time connects any
//! more are searched separately, and states that failed are remembered by a hash of the blocks and their bounds.
//!
//! Sections, bounds by section and the separate search of parts that a cut in time separates are from M. D. Moffitt, "MiniMalloc" (ASPLOS
//! 2023); refusals and the choice of the section are not.

use std::collections::HashSet;
use std::ops::Range;

use forebay_base::random::mixed;

use super::bounds::{Bounds, PLACED};
use super::instance::Instance;

/// The most states that are remembered; further failures are forgotten.
const MEMORY_MAX: usize = 1 << 20;

/// Which section the next block is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The section with the lowest floor; among equals, the one that failed most often.
    LowestFloor,
    /// The section with the fewest blocks that can come next, relative to how often it failed.
    FewestChoices,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Found,
    /// There is no placement.
    None,
    /// The nodes are spent.
    Spent,
}

/// Hashes of states without a placement, for one instance and one capacity.
pub(super) type Failed = HashSet<u64>;

/// A search that goes on until its nodes are spent.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    bounds: Bounds<'a>,
    failed: &'a mut Failed,
    rule: Rule,
    /// By block: its place in the order that breaks ties.
    ranks: &'a [u32],
    nodes: u64,
    /// By section: how many blocks without a base are live in it and in the next one.
    links: Vec<u32>,
    /// The blocks of the parts that are being searched, part after part.
    parts: Vec<u32>,
}

impl<'a> Tree<'a> {
    pub fn new(
        instance: &'a Instance,
        capacity: i64,
        rule: Rule,
        ranks: &'a [u32],
        failed: &'a mut Failed,
    ) -> Tree<'a> {
        let mut links = vec![0; instance.sections.len()];
        for block in &instance.blocks {
            links[block.sections.start..block.sections.end - 1].iter_mut().for_each(|link| *link += 1);
        }
        let parts = (0..instance.blocks.len() as u32).collect();
        Tree { bounds: Bounds::new(instance, capacity), failed, rule, ranks, nodes: 0, links, parts }
    }

    /// Searches with at most `nodes` decisions; also returns how many were left.
    pub fn run(&mut self, nodes: u64) -> (Outcome, u64) {
        self.nodes = nodes;
        if self.bounds.remainders.iter().any(|&remainder| remainder > self.bounds.capacity) {
            return (Outcome::None, nodes);
        }
        let mut cuts = Vec::new();
        let mut first = 0;
        for (section, _) in self.links.iter().enumerate().filter(|&(_, &link)| link == 0) {
            cuts.push(first..section + 1);
            first = section + 1;
        }
        let outcome = self.search_parts(0..self.parts.len(), cuts);
        (outcome, self.nodes)
    }

    /// By block: its base, after [`Outcome::Found`].
    pub fn into_bases(self) -> Vec<i64> {
        self.bounds.bases
    }

    /// Searches a part: the blocks at `range` in the list of parts, which are live in `sections`.
    fn search(&mut self, range: Range<usize>, sections: Range<usize>) -> Outcome {
        let start = self.bounds.mark();
        let mut first_state = None;
        let outcome = loop {
            if self.nodes == 0 {
                break Outcome::Spent;
            }
            self.nodes -= 1;
            let state = self.state(range.clone());
            if self.failed.contains(&state) {
                break Outcome::None;
            }
            first_state.get_or_insert(state);
            let Some(block) = self.pick(sections.clone()) else { break Outcome::Found };
            let mark = self.bounds.mark();
            if self.bounds.place(block) {
                match self.descend(block, range.clone(), sections.clone()) {
                    Outcome::None => {}
                    outcome => break outcome,
                }
            }
            self.bounds.undo(mark);
            if !self.bounds.refuse(block) {
                break Outcome::None;
            }
        };
        if outcome == Outcome::None {
            if let Some(state) = first_state.filter(|_| self.failed.len() < MEMORY_MAX) {
                self.failed.insert(state);
            }
            self.bounds.undo(start);
        }
        outcome
    }

    /// Searches the rest of a part after a block was placed, split into parts that no block connects.
    fn descend(&mut self, block: usize, range: Range<usize>, sections: Range<usize>) -> Outcome {
        let instance = self.bounds.instance;
        let taken = instance.blocks[block].sections.clone();
        let mut cuts = Vec::new();
        let mut first = sections.start;
        for section in taken.start..taken.end - 1 {
            self.links[section] -= 1;
            if self.links[section] == 0 {
                cuts.push(first..section + 1);
                first = section + 1;
            }
        }
        cuts.push(first..sections.end);
        let outcome = self.search_parts(range, cuts);
        self.links[taken.start..taken.end - 1].iter_mut().for_each(|link| *link += 1);
        outcome
    }

    /// Searches the rest of a part in each range of sections: the smallest first, since a failure spares the others.
    fn search_parts(&mut self, range: Range<usize>, cuts: Vec<Range<usize>>) -> Outcome {
        let start = self.parts.len();
        let mut parts = Vec::with_capacity(cuts.len());
        for sections in cuts {
            let first = self.parts.len();
            for index in range.clone() {
                let block = self.parts[index];
                let live = &self.bounds.instance.blocks[block as usize].sections;
                let inside = sections.start <= live.start && live.end <= sections.end;
                if inside && self.bounds.lows[block as usize] != PLACED {
                    self.parts.push(block);
                }
            }
            if self.parts.len() > first {
                parts.push((first..self.parts.len(), sections));
            }
        }
        parts.sort_by_key(|(blocks, _)| blocks.len());
        let mut outcome = Outcome::Found;
        for (blocks, sections) in parts {
            outcome = self.search(blocks, sections);
            if outcome != Outcome::Found {
                break;
            }
        }
        self.parts.truncate(start);
        outcome
    }

    /// A hash of the blocks of a part and their bounds, which alone determine whether the part has a placement.
    fn state(&self, range: Range<usize>) -> u64 {
        let mut state = 0u64;
        for &block in &self.parts[range] {
            let low = self.bounds.lows[block as usize];
            if low != PLACED {
                state = state.wrapping_add(mixed((low as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(block)));
            }
        }
        state
    }

    /// A block of the part in these sections that no other can lie below; `None` if all have a base.
    fn pick(&self, sections: Range<usize>) -> Option<usize> {
        let bounds = &self.bounds;
        let height = |&block: &u32| (bounds.lows[block as usize], self.ranks[block as usize]);
        let open = sections.filter(|&section| bounds.remainders[section] > 0);
        let section = open.min_by_key(|&section| self.priority(section))?;
        // A block with a base has the highest bound.
        let mut block = bounds.instance.sections[section].iter().copied().min_by_key(height)?;
        // A block that can lie below comes first. Each step goes to a lower base, so this ends.
        loop {
            let low = bounds.lows[block as usize];
            let below = bounds.instance.neighbors[block as usize].iter().copied();
            let below = below.filter(|&other| bounds.tops[other as usize] <= low);
            match below.min_by_key(height) {
                Some(other) => block = other,
                None => return Some(block as usize),
            }
        }
    }

    /// Sections with the least priority come first.
    fn priority(&self, section: usize) -> (i64, i64) {
        let bounds = &self.bounds;
        let failures = bounds.failures[section] as i64;
        let choices = i64::from(bounds.choices[section]);
        match self.rule {
            Rule::LowestFloor => (bounds.floors[section], -failures),
            Rule::FewestChoices => (-((failures + 1) << 20) / choices.max(1), 0),
        }
    }
}
