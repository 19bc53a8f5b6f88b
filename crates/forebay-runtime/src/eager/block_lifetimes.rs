//! Lifetimes: who uses which block, and when freed memory can be reused. This module is pure.
//!
//! A block belongs to the agent that it was allocated for, its origin. When it is freed, its origin can reuse the bytes at once, unless
//! another queue uses them and the origin has not seen that use return: by a wait for a later record of that queue, directly, through other
//! queues, or through the host. Until then the block is kept. The user does not have to say anything, as in MindSpore ("Stream Management",
//! on memory that several streams use), which keeps one event per use and does not recognize transitive returns.

use std::collections::{BTreeMap, VecDeque};

use forebay_memory::History;
use forebay_memory::allocator::{Allocator, Assembly, Block, BlockId, PoolId, SegmentId};

use super::timeline::{Agent, QueueId, Timelines};

/// A use of a block: a position in a queue.
pub type Use = (QueueId, u64);

/// What the host can wait for to free more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relief {
    /// A use of a freed block.
    Use(Use),
    /// All work of a queue; until it is complete, only that queue can use its freed memory.
    Queue(QueueId),
}

/// A live block.
#[derive(Clone, Debug)]
struct Holding {
    origin: Agent,
    /// The latest use by each queue other than the origin.
    uses: Vec<Use>,
}

/// Blocks and their lifetimes.
pub struct BlockLifetimes {
    tracks_uses: bool,
    allocator: Allocator,
    live: BTreeMap<BlockId, Holding>,
    /// Freed blocks whose uses have not returned to their origins, oldest first.
    returning: VecDeque<(BlockId, Holding)>,
    /// The history, while it is recorded.
    history: Option<History>,
}

/// The pool of an agent's blocks.
pub fn pool(agent: Agent) -> PoolId {
    match agent {
        Agent::Host => PoolId(0),
        Agent::Queue(queue) => PoolId(queue as u32 + 1),
    }
}

fn has_returned(holding: &Holding, timelines: &Timelines) -> bool {
    holding.uses.iter().all(|&(queue, position)| timelines.known(holding.origin, queue) >= position)
}

impl BlockLifetimes {
    /// Creates block lifetimes without memory; blocks begin at multiples of `alignment_bytes`. Without `tracks_uses`, memory that other
    /// queues still use is released, which is wrong; the option exists to demonstrate that.
    pub fn new(alignment_bytes: u64, tracks_uses: bool) -> BlockLifetimes {
        let allocator = Allocator::new(alignment_bytes);
        BlockLifetimes { tracks_uses, allocator, live: BTreeMap::new(), returning: VecDeque::new(), history: None }
    }

    /// The allocator, which knows where the bytes are: segments and blocks.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Adds a segment. If `tile_bytes` is given, its tiles of this size can be mapped elsewhere.
    pub fn add_segment(&mut self, size_bytes: u64, tile_bytes: Option<u64>) -> SegmentId {
        let id = match tile_bytes {
            Some(tile_bytes) => self.allocator.add_tiled_segment(size_bytes, tile_bytes),
            None => self.allocator.add_segment(size_bytes),
        };
        if let Some(history) = &mut self.history {
            history.segment_added(id, size_bytes);
        }
        id
    }

    /// Removes the segments that are entirely free, for the caller to give back to the device.
    pub fn take_empty_segments(&mut self) -> Vec<SegmentId> {
        let taken = self.allocator.take_empty_segments();
        if let Some(history) = &mut self.history {
            taken.iter().for_each(|&segment| history.segment_removed(segment));
        }
        taken
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&mut self) {
        self.allocator.reset_peaks();
    }

    /// Starts recording who had which bytes when, with at most `count_max` freed blocks; records nothing if it is 0.
    pub fn start_history(&mut self, count_max: usize) {
        self.history = (count_max > 0).then(|| History::new(count_max, &self.allocator.snapshot()));
    }

    /// Who had which bytes when, if that is recorded.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Allocates a block for `origin` from memory that it can reuse or that no one uses any more; returns `None` if nothing fits.
    pub fn allocate(&mut self, origin: Agent, size_bytes: u64, owner: &str) -> Option<Block> {
        let block = self.allocator.allocate(pool(origin), size_bytes, owner)?;
        self.live.insert(block.id, Holding { origin, uses: Vec::new() });
        if let Some(history) = &mut self.history {
            history.allocated(&block, pool(origin), owner);
        }
        Some(block)
    }

    /// Allocates a block for `origin` in a new segment of free tiles, if there are enough. See [`BlockLifetimes::can_assemble`].
    pub fn assemble(&mut self, origin: Agent, size_bytes: u64, tile_bytes: u64, owner: &str) -> Option<Assembly> {
        let assembly = self.allocator.assemble(pool(origin), size_bytes, tile_bytes, owner)?;
        self.live.insert(assembly.block.id, Holding { origin, uses: Vec::new() });
        if let Some(history) = &mut self.history {
            assembly.emptied.iter().for_each(|&segment| history.segment_removed(segment));
            history.segment_added(assembly.block.segment, assembly.segment_size_bytes);
            history.allocated(&assembly.block, pool(origin), owner);
        }
        Some(assembly)
    }

    /// Whether there are enough free tiles for this many bytes among those that are no longer used and, if `origin` is given, those that it
    /// can use as well.
    pub fn can_assemble(&self, origin: Option<Agent>, size_bytes: u64, tile_bytes: u64) -> bool {
        let pool = origin.map_or(PoolId(u32::MAX), pool);
        self.allocator.assembly_growth_bytes(pool, size_bytes, tile_bytes) == Some(0)
    }

    /// Records that work at a position of a queue uses a block.
    pub fn add_use(&mut self, block: BlockId, queue: QueueId, position: u64) {
        let Some(holding) = self.live.get_mut(&block) else { return };
        if holding.origin == Agent::Queue(queue) || !self.tracks_uses {
            return;
        }
        match holding.uses.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, latest)) => *latest = position.max(*latest),
            None => holding.uses.push((queue, position)),
        }
    }

    /// Frees a block. Returns the uses that have to return before its bytes can be reused; each needs a record after it.
    pub fn free(&mut self, block: BlockId, timelines: &Timelines) -> Vec<Use> {
        let Some(holding) = self.live.remove(&block) else { return Vec::new() };
        if has_returned(&holding, timelines) {
            self.give_back(block);
            return Vec::new();
        }
        let open = |&(queue, position): &Use| timelines.known(holding.origin, queue) < position;
        let uses = holding.uses.iter().copied().filter(open).collect();
        self.returning.push_back((block, holding));
        uses
    }

    fn give_back(&mut self, block: BlockId) {
        // Every block here is the allocator's, and is removed from here once.
        let freed = self.allocator.free(block);
        debug_assert!(freed.is_ok(), "{freed:?}");
        if let Some(history) = &mut self.history {
            history.freed(block);
        }
    }

    /// Gives back the blocks whose uses have returned in the meantime. Memory of quiet queues becomes available to all.
    pub fn settle(&mut self, timelines: &Timelines, queues: usize) {
        for _ in 0..self.returning.len() {
            let Some((block, holding)) = self.returning.pop_front() else { break };
            if has_returned(&holding, timelines) {
                self.give_back(block);
            } else {
                self.returning.push_back((block, holding));
            }
        }
        // The host had seen that all work on the blocks that it gave back was complete.
        self.allocator.share(pool(Agent::Host));
        (0..queues).filter(|&queue| timelines.is_quiet(queue)).for_each(|queue| {
            self.allocator.share(pool(Agent::Queue(queue)));
        });
    }

    /// What the host should wait for next to free more memory: first the oldest use that has not returned, then queues with freed memory.
    /// Returns `None` if waiting does not help any more.
    pub fn next_relief(&self, timelines: &Timelines, queues: usize) -> Option<Relief> {
        let unseen = |&&(queue, position): &&Use| timelines.known(Agent::Host, queue) < position;
        let oldest = self.returning.iter().find_map(|(_, holding)| holding.uses.iter().find(unseen).copied());
        let holds =
            |&queue: &QueueId| !timelines.is_quiet(queue) && self.allocator.free_bytes(pool(Agent::Queue(queue))) > 0;
        oldest.map(Relief::Use).or_else(|| (0..queues).find(holds).map(Relief::Queue))
    }

    /// The number of blocks that are in use or have not returned.
    pub fn block_count(&self) -> usize {
        self.live.len() + self.returning.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use forebay_testing::Random;

    const QUEUES: usize = 4;

    /// The contract of commands, command by command, with sets of commands instead of clocks.
    #[derive(Default)]
    struct Naive {
        /// By command: its queue.
        commands: Vec<QueueId>,
        /// By queue: what is complete before its next command.
        before: [BTreeSet<usize>; QUEUES],
        seen: BTreeSet<usize>,
        /// By record: what is complete when it has fired.
        records: BTreeMap<(QueueId, u64), BTreeSet<usize>>,
        /// By byte range: the command that used it.
        uses: Vec<(u64, u64, usize)>,
    }

    impl Naive {
        fn may_use(&self, agent: Agent, command: usize) -> bool {
            self.seen.contains(&command)
                || match agent {
                    Agent::Host => false,
                    Agent::Queue(queue) => self.commands[command] == queue || self.before[queue].contains(&command),
                }
        }
    }

    struct Test {
        random: Random,
        timelines: Timelines,
        block_lifetimes: BlockLifetimes,
        naive: Naive,
        blocks: Vec<Block>,
    }

    impl Test {
        fn new(seed: u64) -> Test {
            let mut timelines = Timelines::default();
            (0..QUEUES).for_each(|_| assert!(timelines.add_queue() < QUEUES));
            let mut block_lifetimes = BlockLifetimes::new(256, true);
            block_lifetimes.add_segment(16 * 256, None);
            let random = Random::new(seed);
            Test { random, timelines, block_lifetimes, naive: Naive::default(), blocks: Vec::new() }
        }

        fn queue(&mut self) -> QueueId {
            self.random.below(QUEUES as u64) as usize
        }

        fn record(&mut self, queue: QueueId) -> u64 {
            let (generation, new) = self.timelines.record(queue);
            let mut complete = self.naive.before[queue].clone();
            complete.extend((0..self.naive.commands.len()).filter(|&command| self.naive.commands[command] == queue));
            complete.extend(&self.naive.seen);
            if new {
                self.naive.records.insert((queue, generation), complete);
            } else {
                let recorded = &self.naive.records[&(queue, generation)];
                assert!(complete.iter().all(|command| recorded.contains(command) || self.naive.seen.contains(command)));
            }
            generation
        }

        fn allocate(&mut self) {
            let origin = if self.random.below(5) == 0 { Agent::Host } else { Agent::Queue(self.queue()) };
            let size_bytes = 1 + self.random.below(4 * 256);
            let Some(block) = self.block_lifetimes.allocate(origin, size_bytes, "test") else { return };
            let (start, end) = (block.offset_bytes, block.offset_bytes + block.size_bytes);
            for &(from, to, command) in &self.naive.uses {
                let early = from < end && start < to && !self.naive.may_use(origin, command);
                assert!(!early, "{origin:?} got bytes that command {command} may still use");
            }
            self.blocks.push(block);
        }

        /// Makes a command of a queue use a block, after everything that used it before, as the caller must ensure.
        fn use_block(&mut self) {
            if self.blocks.is_empty() {
                return;
            }
            let block = self.blocks[self.random.below(self.blocks.len() as u64) as usize];
            let queue = self.queue();
            let command = self.naive.commands.len();
            self.naive.commands.push(queue);
            let position = self.timelines.issue(queue);
            self.block_lifetimes.add_use(block.id, queue, position);
            self.naive.uses.push((block.offset_bytes, block.offset_bytes + block.size_bytes, command));
        }

        fn free(&mut self) {
            if self.blocks.is_empty() {
                return;
            }
            let index = self.random.below(self.blocks.len() as u64) as usize;
            let block = self.blocks.swap_remove(index);
            for (queue, position) in self.block_lifetimes.free(block.id, &self.timelines) {
                if self.timelines.mark_behind(queue, position).is_none() {
                    self.record(queue);
                }
            }
        }

        fn wait(&mut self) {
            let (queue, on) = (self.queue(), self.queue());
            let generation = self.record(on);
            self.timelines.wait(queue, on, generation);
            if queue != on {
                let complete = self.naive.records[&(on, generation)].clone();
                self.naive.before[queue].extend(complete);
            }
            self.block_lifetimes.settle(&self.timelines, QUEUES);
        }

        fn see(&mut self, queue: QueueId) {
            let generation = self.record(queue);
            self.timelines.see(queue, generation);
            let complete = self.naive.records[&(queue, generation)].clone();
            self.naive.seen.extend(complete);
            self.block_lifetimes.settle(&self.timelines, QUEUES);
        }
    }

    #[test]
    fn no_bytes_are_given_out_before_their_uses_have_returned() {
        for seed in 1..300 {
            let mut test = Test::new(seed);
            for _ in 0..200 {
                match test.random.below(12) {
                    0..=2 => test.allocate(),
                    3..=5 => test.use_block(),
                    6..=8 => test.free(),
                    9 | 10 => test.wait(),
                    _ => {
                        let queue = test.queue();
                        test.see(queue);
                    }
                }
            }
            // Everything that was freed comes back once the host has waited as it is told to.
            test.blocks.drain(..).for_each(|block| drop(test.block_lifetimes.free(block.id, &test.timelines)));
            while let Some(relief) = test.block_lifetimes.next_relief(&test.timelines, QUEUES) {
                match relief {
                    Relief::Use((queue, _)) | Relief::Queue(queue) => test.see(queue),
                }
            }
            test.block_lifetimes.settle(&test.timelines, QUEUES);
            assert_eq!(test.block_lifetimes.block_count(), 0, "seed {seed}");
            assert_eq!(test.block_lifetimes.take_empty_segments().len(), 1, "seed {seed}");
        }
    }

    #[test]
    fn the_oldest_use_is_waited_for_first() {
        let mut test = Test::new(1);
        let origin = Agent::Queue(0);
        for queue in [2, 1] {
            let block = test.block_lifetimes.allocate(origin, 256, "test").unwrap();
            let position = test.timelines.issue(queue);
            test.block_lifetimes.add_use(block.id, queue, position);
            assert_eq!(test.block_lifetimes.free(block.id, &test.timelines), [(queue, position)]);
        }
        assert_eq!(test.block_lifetimes.next_relief(&test.timelines, QUEUES), Some(Relief::Use((2, 1))));
        test.see(2);
        assert_eq!(test.block_lifetimes.next_relief(&test.timelines, QUEUES), Some(Relief::Use((1, 1))));
        test.see(1);
        assert_eq!(test.block_lifetimes.next_relief(&test.timelines, QUEUES), None);
        assert_eq!(test.block_lifetimes.block_count(), 0);
    }
}
