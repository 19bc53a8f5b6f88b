//! Spans: bytes that are kept alive, without their context.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::{ByteRange, MemoryId, Region};
use forebay_memory::allocator::BlockId;
use forebay_memory::eviction::Access;

use super::shared::{Shared, State};
use super::store::StoreKind;
use super::timeline::{Agent, QueueId};
use super::units::Buffer;
use crate::error::RuntimeError;

/// The owner of the bytes. Dropping it frees them; they are reused once every queue that uses them has passed.
enum Owner {
    /// A block of the context's memory, and the memory that contains it.
    Block(Arc<Shared>, BlockId, MemoryId),
    /// A managed buffer, which has memory behind the bytes while a `PinnedUnits` holds them.
    Managed(Arc<Buffer>),
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Owner::Block(shared, block, _) = self {
            shared.free(StoreKind::Device, *block);
        }
    }
}

/// Bytes that are kept alive without their context, so that objects that the context keeps can hold them.
#[derive(Clone)]
pub(super) struct Span {
    owner: Arc<Owner>,
    /// The bytes' range in the block's memory or in the buffer.
    range: ByteRange,
}

impl Span {
    /// Allocates bytes for an agent.
    ///
    /// # Errors
    /// Returns [`RuntimeError::OutOfMemory`] if memory runs out, or a failure of the device.
    pub fn new(shared: &Arc<Shared>, origin: Agent, size_bytes: u64, owner: &str) -> Result<Span, RuntimeError> {
        let place = shared.allocate(StoreKind::Device, origin, size_bytes, owner)?;
        let Region { memory, range } = place.region;
        Ok(Span { owner: Arc::new(Owner::Block(shared.clone(), place.block, memory)), range })
    }

    /// All bytes of a managed buffer.
    pub fn of_buffer(buffer: &Arc<Buffer>) -> Span {
        Span { owner: Arc::new(Owner::Managed(buffer.clone())), range: buffer.region().range }
    }

    /// The addresses of the bytes. Without tiles, managed bytes get different addresses each time; these are valid while a `PinnedUnits`
    /// holds them.
    pub fn region(&self) -> Region {
        let memory = match &*self.owner {
            Owner::Block(_, _, memory) => *memory,
            Owner::Managed(buffer) => buffer.region().memory,
        };
        Region { memory, range: self.range }
    }

    /// Some of the bytes; `range` refers to the block's memory or the buffer.
    pub fn part(&self, range: ByteRange) -> Span {
        Span { owner: self.owner.clone(), range }
    }

    /// Whether the two spans have a byte in common.
    pub fn overlaps(&self, other: &Span) -> bool {
        let same_memory = match (self.buffer(), other.buffer()) {
            (Some(buffer), Some(other)) => std::ptr::eq(buffer, other),
            (None, None) => Arc::ptr_eq(&self.owner, &other.owner),
            _ => false,
        };
        same_memory && self.range.overlaps(other.range)
    }

    /// The managed buffer that contains the bytes, if there is one.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &*self.owner {
            Owner::Block(..) => None,
            Owner::Managed(buffer) => Some(buffer),
        }
    }

    /// The bytes' range in the block's memory or in the buffer.
    pub fn range(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// The bytes as `PinnedUnits` needs them, if they are managed.
    pub fn managed(&self, access: Access) -> Option<(&Buffer, Range<u64>, Access)> {
        self.buffer().map(|buffer| (buffer, self.range(), access))
    }

    /// Records that work at a position of a queue uses the bytes.
    pub fn add_use(&self, state: &mut State, queue: QueueId, position: u64) {
        if let Owner::Block(_, block, _) = &*self.owner {
            state.store(StoreKind::Device).block_lifetimes.add_use(*block, queue, position);
        }
    }
}
