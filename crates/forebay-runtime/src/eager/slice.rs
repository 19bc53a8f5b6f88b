//! Slices: bytes of device memory, the only way in which kernels and copies name them.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use forebay_base::{ByteRange, Command, DataType, MemoryId, Region, StreamId};
use forebay_memory::allocator::BlockId;
use forebay_memory::eviction::Access;

use super::batch::Batch;
use super::context::Context;
use super::managed::{Buffer, PinnedUnits};
use super::shared::{Shared, State};
use super::store::StoreKind;
use super::stream::Stream;
use super::tensor::Tensor;
use super::timeline::{Agent, QueueId};
use super::transfer;
use crate::error::RuntimeError;

/// Whose bytes they are. Dropping it frees them; they are used again once every queue that uses them has passed.
enum Owner {
    /// A block of the context's memory, and the memory that it is in.
    Block(Arc<Shared>, BlockId, MemoryId),
    /// A managed buffer, which has memory behind the bytes while a [`PinnedUnits`] holds them.
    Managed(Arc<Buffer>),
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Owner::Block(shared, block, _) = self {
            shared.free(StoreKind::Device, *block);
        }
    }
}

/// Bytes that are kept alive, without the context, so that what the context keeps can hold them.
#[derive(Clone)]
pub(super) struct Span {
    owner: Arc<Owner>,
    /// Bytes of the block's memory, or of the buffer.
    range: ByteRange,
}

impl Span {
    /// Bytes for an agent. Where memory runs out, compiled operations are forgotten with their constants first.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or a failure of the device.
    pub fn new(context: &Context, origin: Agent, size_bytes: u64, owner: &str) -> Result<Span, RuntimeError> {
        let shared = context.shared();
        let allocate = || shared.allocate(StoreKind::Device, origin, size_bytes, owner);
        let place = match allocate() {
            Err(RuntimeError::OutOfMemory(_)) if context.forget_compiled() => allocate()?,
            result => result?,
        };
        let Region { memory, range } = place.region;
        Ok(Span { owner: Arc::new(Owner::Block(shared.clone(), place.block, memory)), range })
    }

    /// All bytes of a managed buffer.
    pub fn of_buffer(buffer: &Arc<Buffer>) -> Span {
        Span { owner: Arc::new(Owner::Managed(buffer.clone())), range: buffer.region().range }
    }

    /// The bytes. Managed ones without tiles have other addresses each time; they hold while a residency does.
    pub fn region(&self) -> Region {
        let memory = match &*self.owner {
            Owner::Block(_, _, memory) => *memory,
            Owner::Managed(buffer) => buffer.region().memory,
        };
        Region { memory, range: self.range }
    }

    /// Whether both hold a common byte.
    fn overlaps(&self, other: &Span) -> bool {
        let same_memory = match (self.buffer(), other.buffer()) {
            (Some(buffer), Some(other)) => std::ptr::eq(buffer, other),
            (None, None) => Arc::ptr_eq(&self.owner, &other.owner),
            _ => false,
        };
        same_memory && self.range.overlaps(other.range)
    }

    /// The managed buffer that they are in, if they are in one.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &*self.owner {
            Owner::Block(..) => None,
            Owner::Managed(buffer) => Some(buffer),
        }
    }

    /// Bytes of the block's memory, or of the buffer.
    pub fn range(&self) -> Range<u64> {
        self.range.start..self.range.end
    }

    /// The bytes as a residency needs them, where they are managed.
    pub fn managed(&self, access: Access) -> Option<(&Buffer, Range<u64>, Access)> {
        self.buffer().map(|buffer| (buffer, self.range(), access))
    }

    /// Notes that work at a position of a queue uses the bytes.
    pub fn add_use(&self, state: &mut State, queue: QueueId, position: u64) {
        if let Owner::Block(_, block, _) = &*self.owner {
            state.store(StoreKind::Device).block_lifetimes.add_use(*block, queue, position);
        }
    }
}

/// Bytes of device memory: all of a tensor's, of a managed buffer's, of an allocation's, or some of them. Ranges are checked
/// when a slice is made, so that none leaves its block. What it does goes to the thread's current stream and returns at
/// once, but for [`Slice::read`].
///
/// Cheap to clone: clones are the same bytes, and keep them alive.
#[derive(Clone)]
pub struct Slice {
    context: Context,
    span: Span,
}

impl Slice {
    pub(super) fn new(context: &Context, span: Span) -> Slice {
        Slice { context: context.clone(), span }
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// How many bytes it has.
    pub fn size_bytes(&self) -> u64 {
        self.span.range.len()
    }

    /// Some of its bytes.
    ///
    /// # Errors
    /// Bytes beyond the end.
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<Slice, RuntimeError> {
        let Range { start, end } = bounds(range, self.size_bytes())?;
        let range = ByteRange::new(self.span.range.start + start, self.span.range.start + end);
        Ok(Slice { context: self.context.clone(), span: Span { owner: self.span.owner.clone(), range } })
    }

    /// A tensor in the first bytes. It has to begin at a multiple of 256 of its memory.
    ///
    /// # Errors
    /// Too few bytes, another offset, or a shape without elements.
    pub fn tensor(&self, data_type: DataType, shape: &[u64]) -> Result<Tensor, RuntimeError> {
        Tensor::in_slice(self, data_type, shape)
    }

    /// Writes bytes from the host, as many as the slice has. Returns when they have been read.
    ///
    /// # Errors
    /// Another number of bytes, no memory, or a failure of the device.
    pub fn write(&self, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.len() as u64 != self.size_bytes() {
            let (given, has) = (bytes.len(), self.size_bytes());
            return Err(RuntimeError::Tensor {
                reason: format!("{given} bytes cannot be written to a slice of {has}: cut one of them (Slice::part)"),
            });
        }
        match self.span.buffer() {
            Some(buffer) => buffer.write(self.span.range(), bytes),
            None => transfer::write(&self.context, &self.context.current_stream(), &self.span, bytes, "write"),
        }
    }

    /// Reads its bytes on the host, and waits for them. For several slices: [`Context::read`].
    ///
    /// # Errors
    /// No memory, or a failure of the device, then or earlier.
    pub fn read(&self) -> Result<Vec<u8>, RuntimeError> {
        let mut read = self.context.read(&[self])?;
        Ok(read.pop().unwrap_or_default())
    }

    /// Copies another slice's bytes, as many as this one has.
    ///
    /// # Errors
    /// Another number of bytes, slices that overlap, another context, or a failure of the device.
    pub fn copy_from(&self, other: &Slice) -> Result<(), RuntimeError> {
        self.copy_as(other, "copy_from")
    }

    fn copy_as(&self, other: &Slice, name: &str) -> Result<(), RuntimeError> {
        if !self.context.is(&other.context) {
            return Err(RuntimeError::OtherContext { what: "two slices" });
        }
        if self.size_bytes() != other.size_bytes() {
            let (from, to) = (other.size_bytes(), self.size_bytes());
            return Err(RuntimeError::Tensor { reason: format!("{from} bytes cannot be copied to {to}") });
        }
        if self.span.overlaps(&other.span) {
            if self.span.range == other.span.range {
                return Ok(());
            }
            return Err(RuntimeError::Tensor {
                reason: "bytes that overlap cannot be copied to each other".to_string(),
            });
        }
        self.submit(name, Some(&other.span), |stream, to| {
            // The addresses are looked up when both are on the device.
            Command::Copy { stream, from: other.span.region(), to }
        })
    }

    /// Fills its bytes with a pattern of four.
    ///
    /// # Errors
    /// A slice that is not made of whole groups of four bytes, or a failure of the device.
    pub fn fill(&self, pattern: [u8; 4]) -> Result<(), RuntimeError> {
        self.fill_as(pattern, "fill")
    }

    pub(super) fn fill_as(&self, pattern: [u8; 4], name: &str) -> Result<(), RuntimeError> {
        let range = self.span.range;
        if range.start % 4 != 0 || range.end % 4 != 0 {
            return Err(RuntimeError::Tensor {
                reason: format!(
                    "bytes {range} cannot be filled with four bytes at a time: begin and end at multiples of 4"
                ),
            });
        }
        self.submit(name, None, |stream, region| Command::Fill { stream, region, pattern })
    }

    /// Fills its bytes with zeros.
    ///
    /// # Errors
    /// As [`Slice::fill`].
    pub fn zero(&self) -> Result<(), RuntimeError> {
        self.fill_as([0; 4], "zero")
    }

    /// Submits one command that writes the bytes, and may read others, on the current stream.
    fn submit(
        &self,
        name: &str,
        other: Option<&Span>,
        command: impl FnOnce(StreamId, Region) -> Command,
    ) -> Result<(), RuntimeError> {
        if self.size_bytes() == 0 {
            return Ok(());
        }
        let stream: Stream = self.context.current_stream();
        let shared = self.context.shared();
        let written = self.span.managed(Access::Overwrite);
        let read = other.and_then(|other| other.managed(Access::Read));
        let mut residency = PinnedUnits::new(written.into_iter().chain(read))?;
        let mut state = shared.lock();
        let mut batch = Batch::default();
        residency.order(stream.queue(), &mut state, &mut batch);
        let command = command(state.stream(stream.queue()), self.span.region());
        let position = state.work(stream.queue(), command, &name.into(), &mut batch)?;
        residency.add_use(stream.queue(), position);
        for span in other.into_iter().chain([&self.span]) {
            span.add_use(&mut state, stream.queue(), position);
        }
        shared.submit(&mut state, &batch)
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({})", self.span.region())
    }
}

/// A range of `size_bytes` bytes as numbers.
///
/// # Errors
/// One that leaves them.
pub(super) fn bounds(range: impl RangeBounds<u64>, size_bytes: u64) -> Result<Range<u64>, RuntimeError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size_bytes,
    };
    if start > end || end > size_bytes {
        return Err(RuntimeError::Tensor { reason: format!("bytes {start}..{end} are not inside {size_bytes} bytes") });
    }
    Ok(start..end)
}
