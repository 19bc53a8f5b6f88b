//! How low each block can still lie, given the blocks that have a base. The bounds are updated and undone during a tree search.
//!
//! In a placement that cannot be lowered, every block lies at 0 or rests on another block. A block that is *refused* its lowest base
//! therefore has to rest on a block that has no base yet, and lies no lower than the lowest top of those. In a section, the blocks without
//! a base are stacked in some order, each no lower than its bound. If even the order of the bounds ends above the capacity, no order fits.
//! A block whose bound leaves too little room above it for all the others does not come first, so it lies on one that can. These rules are
//! applied until nothing changes.

use super::instance::Instance;

/// The bound of a block that has a base.
pub(super) const PLACED: i64 = i64::MAX;
/// The most raises by support between two decisions; after these, the rule is suspended. Small blocks that rest on each other climb slowly,
/// and a bound that is too low only costs time.
const SUPPORTS_MAX: u32 = 1000;

/// What a decision changed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Low { block: u32, before: i64 },
    Refused { block: u32, before: bool },
    Section { section: u32, floor: i64, choices: u32 },
    Place { block: u32, base: i64 },
}

/// Bounds of all blocks and sections.
#[derive(Clone, Debug)]
pub(super) struct Bounds<'a> {
    pub instance: &'a Instance,
    pub capacity: i64,
    /// By block: its lowest possible base, or [`PLACED`].
    pub lows: Vec<i64>,
    /// By block: its lowest possible top, or [`PLACED`].
    pub tops: Vec<i64>,
    /// By block: the base, if it has one.
    pub bases: Vec<i64>,
    /// By section: the lowest possible base of the blocks that have none yet.
    pub floors: Vec<i64>,
    /// By section: the total size of its blocks without a base.
    pub remainders: Vec<i64>,
    /// By section: how many blocks can come next in it.
    pub choices: Vec<u32>,
    /// By section: how often it turned out too high.
    pub failures: Vec<u64>,
    /// By block: whether it has to rest on a block without a base.
    refused: Vec<bool>,
    changes: Vec<Change>,
    /// Blocks whose bound was raised, and sections to look at.
    raised: Vec<u32>,
    is_raised: Vec<bool>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// Workspace: bounds and blocks of one section.
    stack: Vec<(i64, u32)>,
}

impl<'a> Bounds<'a> {
    /// Creates the bounds before any block has a base. Some section may already be too high.
    pub fn new(instance: &'a Instance, capacity: i64) -> Bounds<'a> {
        let (blocks, sections) = (&instance.blocks, &instance.sections);
        let size = |&block: &u32| blocks[block as usize].size;
        Bounds {
            instance,
            capacity,
            lows: vec![0; blocks.len()],
            tops: blocks.iter().map(|block| block.size).collect(),
            bases: vec![0; blocks.len()],
            floors: vec![0; sections.len()],
            remainders: sections.iter().map(|live| live.iter().map(size).sum()).collect(),
            choices: sections.iter().map(|live| live.len() as u32).collect(),
            failures: vec![0; sections.len()],
            refused: vec![false; blocks.len()],
            changes: Vec::new(),
            raised: Vec::new(),
            is_raised: vec![false; blocks.len()],
            touched: Vec::new(),
            is_touched: vec![false; sections.len()],
            stack: Vec::new(),
        }
    }

    /// A mark to which [`Bounds::undo`] goes back.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Undoes every change since a mark.
    pub fn undo(&mut self, mark: usize) {
        while self.changes.len() > mark {
            match self.changes.pop() {
                Some(Change::Low { block, before }) => self.set_low(block as usize, before),
                Some(Change::Refused { block, before }) => self.refused[block as usize] = before,
                Some(Change::Section { section, floor, choices }) => {
                    self.floors[section as usize] = floor;
                    self.choices[section as usize] = choices;
                }
                Some(Change::Place { block, base }) => {
                    let instance = self.instance;
                    let taken = &instance.blocks[block as usize];
                    self.remainders[taken.sections.clone()].iter_mut().for_each(|remainder| *remainder += taken.size);
                    self.set_low(block as usize, base);
                }
                None => {}
            }
        }
    }

    /// Gives a block its lowest possible base. The caller ensures that no block without a base fits below it.
    pub fn place(&mut self, block: usize) -> bool {
        let instance = self.instance;
        let taken = &instance.blocks[block];
        let (base, top) = (self.lows[block], self.tops[block]);
        self.changes.push(Change::Place { block: block as u32, base });
        self.bases[block] = base;
        (self.lows[block], self.tops[block]) = (PLACED, PLACED);
        for section in taken.sections.clone() {
            self.remainders[section] -= taken.size;
            self.touch(section);
        }
        for &other in &instance.neighbors[block] {
            let other = other as usize;
            // A refused block that can lie as low as this one allows now rests on a block with a base.
            if self.refused[other] && self.lows[other] <= instance.blocks[other].aligned(top) {
                self.set_refused(other, false);
            }
            self.raise(other, top);
        }
        // Those that could have rested on nothing but the block's later bases.
        for &other in &instance.neighbors[block] {
            if self.refused[other as usize] {
                self.support(other as usize);
            }
        }
        self.propagate()
    }

    /// Decides that a block lies higher than its lowest possible base. The caller ensures that no block without a base fits below it.
    pub fn refuse(&mut self, block: usize) -> bool {
        let instance = self.instance;
        let low = self.lows[block];
        // Identical blocks are refused together, since exchanging them changes nothing.
        let twin = |&other: &usize| self.lows[other] == low && instance.blocks[other] == instance.blocks[block];
        let twins: Vec<usize> = instance.neighbors[block].iter().map(|&other| other as usize).filter(twin).collect();
        for &refused in twins.iter().chain([&block]) {
            if !self.refused[refused] {
                self.set_refused(refused, true);
            }
        }
        for &refused in twins.iter().chain([&block]) {
            self.support(refused);
        }
        self.propagate()
    }

    fn set_low(&mut self, block: usize, low: i64) {
        self.lows[block] = low;
        self.tops[block] = low + self.instance.blocks[block].size;
    }

    fn set_refused(&mut self, block: usize, refused: bool) {
        self.changes.push(Change::Refused { block: block as u32, before: self.refused[block] });
        self.refused[block] = refused;
    }

    fn touch(&mut self, section: usize) {
        if !self.is_touched[section] {
            self.is_touched[section] = true;
            self.touched.push(section as u32);
        }
    }

    /// Raises the lowest possible base of a block without a base to at least `bound`.
    fn raise(&mut self, block: usize, bound: i64) {
        let before = self.lows[block];
        if before >= bound {
            return;
        }
        let instance = self.instance;
        let raised = &instance.blocks[block];
        let low = raised.aligned(bound);
        self.changes.push(Change::Low { block: block as u32, before });
        self.set_low(block, low);
        if !self.is_raised[block] {
            self.is_raised[block] = true;
            self.raised.push(block as u32);
        }
        for section in raised.sections.clone() {
            let latest = self.capacity - self.remainders[section];
            if self.floors[section] >= before || (before <= latest && low > latest) {
                self.touch(section);
            }
        }
    }

    /// Applies the rule that a refused block rests on a block without a base.
    fn support(&mut self, block: usize) {
        let low = self.lows[block];
        let mut lowest = PLACED;
        for &other in &self.instance.neighbors[block] {
            lowest = lowest.min(self.tops[other as usize]);
            if lowest <= low {
                return;
            }
        }
        // If it can rest on nothing, it fits nowhere.
        self.raise(block, lowest.min(self.capacity));
    }

    /// Applies the rules until nothing changes. Returns `false` if some block or section no longer fits.
    fn propagate(&mut self) -> bool {
        let instance = self.instance;
        let mut supports = SUPPORTS_MAX;
        let mut fits = true;
        while fits {
            if let Some(block) = self.raised.pop() {
                let block = block as usize;
                self.is_raised[block] = false;
                fits = self.tops[block] <= self.capacity;
                for &other in &instance.neighbors[block] {
                    if self.refused[other as usize] && supports > 0 && self.lows[other as usize] != PLACED {
                        supports -= 1;
                        self.support(other as usize);
                    }
                }
            } else if let Some(section) = self.touched.pop() {
                self.is_touched[section as usize] = false;
                fits = self.look_at(section as usize);
            } else {
                return true;
            }
        }
        while let Some(block) = self.raised.pop() {
            self.is_raised[block as usize] = false;
        }
        while let Some(section) = self.touched.pop() {
            self.is_touched[section as usize] = false;
        }
        false
    }

    /// Finds the floor of a section and how many blocks can come next in it. Returns whether its blocks fit above the floor.
    fn look_at(&mut self, section: usize) -> bool {
        let remainder = self.remainders[section];
        if remainder == 0 {
            return true;
        }
        let latest = self.capacity - remainder;
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        let (mut floor, mut choices, mut lowest_top) = (PLACED, 0, PLACED);
        for &block in &self.instance.sections[section] {
            let low = self.lows[block as usize];
            if low == PLACED {
                continue;
            }
            stack.push((low, block));
            floor = floor.min(low);
            if low <= latest {
                choices += 1;
                lowest_top = lowest_top.min(self.tops[block as usize]);
            }
        }
        let before = (self.floors[section], self.choices[section]);
        if before != (floor, choices) {
            self.changes.push(Change::Section { section: section as u32, floor: before.0, choices: before.1 });
            (self.floors[section], self.choices[section]) = (floor, choices);
        }
        let mut fits = floor <= latest;
        // If every block can come first, the bounds leave room for any order.
        if fits && (choices as usize) < stack.len() {
            for (low, block) in stack.iter_mut().filter(|(low, _)| *low > latest) {
                self.raise(*block as usize, lowest_top);
                *low = self.lows[*block as usize];
            }
            stack.sort_unstable();
            let size = |block: u32| self.instance.blocks[block as usize].size;
            fits = stack.iter().fold(0, |top, &(low, block)| low.max(top) + size(block)) <= self.capacity;
        }
        if !fits {
            self.failures[section] += 1;
        }
        self.stack = stack;
        fits
    }
}
