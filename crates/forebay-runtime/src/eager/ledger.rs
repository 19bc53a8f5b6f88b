//! Lifetimes: who uses which block, and when freed memory may be used again. Pure.
//!
//! A block belongs to the agent that it was allocated for, its home. When it is freed, its home may use the bytes again at
//! once, unless another queue uses them and the home has not seen that use return: by a wait for a later record of that
//! queue, directly or through other queues, or through the host. Until then the block is kept. Nobody has to say anything
//! (source: seed 001, which keeps one event per use and knows no transitive return).

use std::collections::{BTreeMap, VecDeque};

use forebay_memory::allocator::{Allocator, Block, BlockId, PoolId};

use super::timeline::{Agent, QueueId, Timelines};

/// A use of a block: a position of a queue.
pub type Use = (QueueId, u64);

/// What the host can wait for so that more memory becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relief {
    /// A use of a freed block.
    Use(Use),
    /// Everything of a queue, whose freed memory only it may use until then.
    Queue(QueueId),
}

/// A live block.
#[derive(Clone, Debug)]
struct Holding {
    home: Agent,
    /// The latest use by each queue other than the home.
    uses: Vec<Use>,
}

/// Blocks and their lifetimes.
pub struct Ledger {
    tracks_uses: bool,
    allocator: Allocator,
    live: BTreeMap<BlockId, Holding>,
    /// Freed blocks whose uses have not returned to their homes, oldest first.
    returning: VecDeque<(BlockId, Holding)>,
}

fn pool(agent: Agent) -> PoolId {
    match agent {
        Agent::Host => PoolId(0),
        Agent::Queue(queue) => PoolId(queue as u32 + 1),
    }
}

fn has_returned(holding: &Holding, timelines: &Timelines) -> bool {
    holding.uses.iter().all(|&(queue, position)| timelines.known(holding.home, queue) >= position)
}

impl Ledger {
    /// A ledger without memory; blocks begin at multiples of `alignment_bytes`. One that does not track uses lets go of
    /// memory that other queues still use, which is wrong: it is there to show so.
    pub fn new(alignment_bytes: u64, tracks_uses: bool) -> Ledger {
        let allocator = Allocator::new(alignment_bytes);
        Ledger { tracks_uses, allocator, live: BTreeMap::new(), returning: VecDeque::new() }
    }

    /// Where the bytes are: segments and blocks.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Where the bytes are, to add segments and take out empty ones.
    pub fn allocator_mut(&mut self) -> &mut Allocator {
        &mut self.allocator
    }

    /// A block for `home`, from what it or nobody uses any more; none where nothing fits.
    pub fn allocate(&mut self, home: Agent, size_bytes: u64, owner: &str) -> Option<Block> {
        let block = self.allocator.allocate(pool(home), size_bytes, owner)?;
        self.live.insert(block.id, Holding { home, uses: Vec::new() });
        Some(block)
    }

    /// Notes that work at a position of a queue uses a block.
    pub fn add_use(&mut self, block: BlockId, queue: QueueId, position: u64) {
        let Some(holding) = self.live.get_mut(&block) else { return };
        if holding.home == Agent::Queue(queue) || !self.tracks_uses {
            return;
        }
        match holding.uses.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, latest)) => *latest = position.max(*latest),
            None => holding.uses.push((queue, position)),
        }
    }

    /// Frees a block. The uses that have to return before its bytes can be used again: each needs a record behind it.
    pub fn free(&mut self, block: BlockId, timelines: &Timelines) -> Vec<Use> {
        let Some(holding) = self.live.remove(&block) else { return Vec::new() };
        if has_returned(&holding, timelines) {
            self.give_back(block);
            return Vec::new();
        }
        let open = |&(queue, position): &Use| timelines.known(holding.home, queue) < position;
        let uses = holding.uses.iter().copied().filter(open).collect();
        self.returning.push_back((block, holding));
        uses
    }

    fn give_back(&mut self, block: BlockId) {
        // Every block of the ledger is the allocator's, and leaves the ledger once.
        let freed = self.allocator.free(block);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    /// Gives back what has returned meanwhile; memory of queues that are quiet becomes everybody's.
    pub fn settle(&mut self, timelines: &Timelines, queues: usize) {
        for _ in 0..self.returning.len() {
            let Some((block, holding)) = self.returning.pop_front() else { break };
            if has_returned(&holding, timelines) {
                self.give_back(block);
            } else {
                self.returning.push_back((block, holding));
            }
        }
        // What the host gave back, it had seen complete.
        self.allocator.share(pool(Agent::Host));
        (0..queues).filter(|&queue| timelines.is_quiet(queue)).for_each(|queue| {
            self.allocator.share(pool(Agent::Queue(queue)));
        });
    }

    /// What the host should wait for next so that more memory becomes free: first the oldest use that has not returned,
    /// then queues with freed memory. None where waiting does not help any more.
    pub fn next_relief(&self, timelines: &Timelines, queues: usize) -> Option<Relief> {
        let unseen = |&&(queue, position): &&Use| timelines.known(Agent::Host, queue) < position;
        let oldest = self.returning.iter().find_map(|(_, holding)| holding.uses.iter().find(unseen).copied());
        let holds =
            |&queue: &QueueId| !timelines.is_quiet(queue) && self.allocator.free_bytes(pool(Agent::Queue(queue))) > 0;
        oldest.map(Relief::Use).or_else(|| (0..queues).find(holds).map(Relief::Queue))
    }

    /// Number of blocks that are in use or not returned.
    pub fn block_count(&self) -> usize {
        self.live.len() + self.returning.len()
    }
}
