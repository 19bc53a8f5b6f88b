//! Reports on a context's memory: numbers, every block with its owner and stream, and who had which bytes when.

use forebay_memory::History;
use forebay_memory::allocator::{AllocatorStatistics, BlockState, PoolId, Snapshot};
use serde_json::{Value, json};

use super::block_lifetimes::pool;
use super::context::Context;
use super::store::StoreKind;
use super::timeline::Agent;

impl Context {
    /// Statistics of device memory. Peaks are those since the context was created or [`Context::reset_peaks`] was called.
    pub fn memory_statistics(&self) -> AllocatorStatistics {
        self.shared().lock().store(StoreKind::Device).block_lifetimes.allocator().statistics()
    }

    /// Resets the peaks of device memory to the current values.
    pub fn reset_peaks(&self) {
        self.shared().lock().store(StoreKind::Device).block_lifetimes.reset_peaks();
    }

    /// Every block of device memory.
    pub fn memory_snapshot(&self) -> Snapshot {
        self.shared().lock().store(StoreKind::Device).block_lifetimes.allocator().snapshot()
    }

    /// Every block of device memory as JSON: `segments`, each with `segment`, `size_bytes` and `blocks`. Blocks have `offset_bytes`,
    /// `size_bytes` and `state` (`live`, `free` or `hole`); live ones also have `owner`, `stream` (null for the host's) and
    /// `requested_bytes`. The numbers of [`Context::memory_statistics`] are included.
    pub fn memory_snapshot_json(&self) -> Value {
        let (statistics, snapshot) = {
            let mut state = self.shared().lock();
            let allocator = state.store(StoreKind::Device).block_lifetimes.allocator();
            (allocator.statistics(), allocator.snapshot())
        };
        let segments = snapshot.segments.iter().map(|segment| {
            let blocks = segment.blocks.iter().map(|block| {
                let (offset_bytes, size_bytes) = (block.range.start, block.range.len());
                match &block.state {
                    BlockState::Live { pool, owner, requested_bytes, .. } => json!({
                        "offset_bytes": offset_bytes, "size_bytes": size_bytes, "state": "live", "owner": owner,
                        "stream": stream(*pool), "requested_bytes": requested_bytes,
                    }),
                    BlockState::Free { pool } => json!({
                        "offset_bytes": offset_bytes, "size_bytes": size_bytes, "state": "free",
                        "stream": pool.and_then(stream),
                    }),
                    BlockState::Hole => {
                        json!({ "offset_bytes": offset_bytes, "size_bytes": size_bytes, "state": "hole" })
                    }
                }
            });
            let blocks: Vec<Value> = blocks.collect();
            json!({ "segment": segment.segment.0, "size_bytes": segment.size_bytes, "blocks": blocks })
        });
        json!({
            "in_use_bytes": statistics.in_use_bytes,
            "in_use_peak_bytes": statistics.in_use_peak_bytes,
            "requested_bytes": statistics.requested_bytes,
            "requested_peak_bytes": statistics.requested_peak_bytes,
            "reserved_bytes": statistics.reserved_bytes,
            "reserved_peak_bytes": statistics.reserved_peak_bytes,
            "live_blocks": statistics.live_block_count,
            "allocations": statistics.allocation_count,
            "largest_free_bytes": statistics.largest_free_bytes,
            "fragmentation": statistics.fragmentation,
            "segments": segments.collect::<Vec<_>>(),
        })
    }

    /// Starts recording who has which bytes of device memory when, with at most `block_count` freed blocks. Anything recorded before is
    /// discarded; with 0, recording stops.
    pub fn start_memory_history(&self, block_count: usize) {
        self.shared().lock().store(StoreKind::Device).block_lifetimes.start_history(block_count);
    }

    /// Who had which bytes of device memory when, if that is recorded ([`ContextOptions::memory_history`],
    /// [`Context::start_memory_history`]). `history.picture(title).svg()` draws it.
    ///
    /// [`ContextOptions::memory_history`]: super::ContextOptions::memory_history
    pub fn memory_history(&self) -> Option<History> {
        self.shared().lock().store(StoreKind::Device).block_lifetimes.history().cloned()
    }

    /// The history as JSON: `segments` and `blocks` with their sizes, and their `start` and `end` (null while they exist), counted in
    /// events; blocks also have `segment`, `offset_bytes`, `owner` and `stream`. Empty if no history is recorded.
    pub fn memory_history_json(&self) -> Value {
        let history = self.memory_history().unwrap_or_default();
        let segments = history.segments().map(|(id, life)| {
            json!({ "segment": id.0, "size_bytes": life.size_bytes, "start": life.start, "end": life.end })
        });
        let blocks = history.blocks().map(|life| {
            json!({
                "segment": life.segment.0, "offset_bytes": life.range.start, "size_bytes": life.range.len(),
                "owner": life.owner, "stream": stream(life.pool), "start": life.start, "end": life.end,
            })
        });
        json!({
            "events": history.event_count(),
            "known_from": history.known_from(),
            "segments": segments.collect::<Vec<_>>(),
            "blocks": blocks.collect::<Vec<_>>(),
        })
    }
}

/// The number of the stream that a pool belongs to, or `None` for the host's pool.
fn stream(of: PoolId) -> Option<u32> {
    (of != pool(Agent::Host)).then(|| of.0 - pool(Agent::Queue(0)).0)
}
