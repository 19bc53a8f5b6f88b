//! Slices: bytes of device memory, the only way in which kernels and copies refer to them.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};

use forebay_base::{ByteRange, Command, Region, StreamId};
use forebay_memory::eviction::Access;

use super::batch::Batch;
use super::context::Context;
use super::span::Span;
use super::stream::Stream;
use super::timeline::Agent;
use super::transfer;
use super::units::PinnedUnits;
use crate::error::RuntimeError;

/// Bytes of device memory: all or some of those of a tensor, a managed buffer or an allocation. Ranges are checked when a slice is created,
/// so that none leaves its block. Operations on a slice go to the thread's current stream and return at once, except for [`Slice::read`].
///
/// Cheap to clone: clones are the same bytes, and keep them alive.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_runtime::eager::{Context, ContextOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let slice = context.allocate(8, "numbers")?;
/// slice.write(&[1, 2, 3, 4, 5, 6, 7, 8])?;
/// assert_eq!(slice.part(4..)?.read()?, [5, 6, 7, 8]);
/// # Ok(())
/// # }
/// ```
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

    /// The number of bytes in the slice.
    pub fn size_bytes(&self) -> u64 {
        let Range { start, end } = self.span.range();
        end - start
    }

    /// Returns some of the slice's bytes.
    ///
    /// # Errors
    /// Fails if the range exceeds the slice.
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<Slice, RuntimeError> {
        let Range { start, end } = bounds(range, self.size_bytes())?;
        let first = self.span.range().start;
        let span = self.span.part(ByteRange::new(first + start, first + end));
        Ok(Slice { context: self.context.clone(), span })
    }

    /// Writes bytes from the host, as many as the slice has. Returns once they have been read.
    ///
    /// # Errors
    /// Fails if the number of bytes differs, if memory runs out, or if the device fails.
    pub fn write(&self, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.len() as u64 != self.size_bytes() {
            let (given, has) = (bytes.len(), self.size_bytes());
            return Err(RuntimeError::Tensor {
                reason: format!(
                    "{given} bytes cannot be written to a slice of {has} bytes; cut one of them (Slice::part)"
                ),
            });
        }
        match self.span.buffer() {
            Some(buffer) => buffer.write(self.span.range(), bytes),
            None => transfer::write(&self.context, &self.context.current_stream(), &self.span, bytes, "write"),
        }
    }

    /// Reads the slice's bytes on the host, and waits for them. For several slices, use [`Context::read`].
    ///
    /// # Errors
    /// Fails if memory runs out, or if the device fails or has failed earlier.
    pub fn read(&self) -> Result<Vec<u8>, RuntimeError> {
        let mut read = self.context.read(&[self])?;
        Ok(read.pop().unwrap_or_default())
    }

    /// Copies the bytes of another slice of the same size.
    ///
    /// # Errors
    /// Fails if the sizes differ, if the slices overlap, if they belong to different contexts, or if the device fails.
    pub fn copy_from(&self, other: &Slice) -> Result<(), RuntimeError> {
        self.copy_as(other, "copy_from")
    }

    fn copy_as(&self, other: &Slice, name: &str) -> Result<(), RuntimeError> {
        if !self.context.is(&other.context) {
            return Err(RuntimeError::OtherContext { what: "two slices" });
        }
        if self.size_bytes() != other.size_bytes() {
            let (from, to) = (other.size_bytes(), self.size_bytes());
            return Err(RuntimeError::Tensor { reason: format!("{from} bytes cannot be copied to {to} bytes") });
        }
        if self.span.overlaps(&other.span) {
            if self.span.range() == other.span.range() {
                return Ok(());
            }
            return Err(RuntimeError::Tensor {
                reason: "overlapping bytes cannot be copied to each other".to_string(),
            });
        }
        self.submit(name, Some(&other.span), |stream, to| {
            // The addresses are looked up once both are on the device.
            Command::Copy { stream, from: other.span.region(), to }
        })
    }

    /// Fills the slice with a pattern of four bytes.
    ///
    /// # Errors
    /// Fails if the slice is not made of whole groups of four bytes, or if the device fails.
    pub fn fill(&self, pattern: [u8; 4]) -> Result<(), RuntimeError> {
        self.fill_as(pattern, "fill")
    }

    pub(super) fn fill_as(&self, pattern: [u8; 4], name: &str) -> Result<(), RuntimeError> {
        let Range { start, end } = self.span.range();
        let range = ByteRange::new(start, end);
        if !range.start.is_multiple_of(4) || !range.end.is_multiple_of(4) {
            return Err(RuntimeError::Tensor {
                reason: format!(
                    "bytes {range} cannot be filled four at a time; they must begin and end at multiples of 4"
                ),
            });
        }
        self.submit(name, None, |stream, region| Command::Fill { stream, region, pattern })
    }

    /// Fills the slice with zeros.
    ///
    /// # Errors
    /// As for [`Slice::fill`].
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

impl Context {
    /// Allocates device memory, whose contents are undefined until they are written. `owner` names it in snapshots and messages.
    ///
    /// # Errors
    /// Returns [`RuntimeError::OutOfMemory`] if memory runs out, or a failure of the device.
    pub fn allocate(&self, size_bytes: u64, owner: &str) -> Result<Slice, RuntimeError> {
        let origin = Agent::Queue(self.current_stream().queue());
        Ok(Slice::new(self, self.span(origin, size_bytes, owner)?))
    }

    /// Reads bytes on the host, after the current stream's work so far, and waits for all of them together.
    ///
    /// # Errors
    /// Fails if slices belong to another context, if memory runs out, or if the device fails or has failed earlier.
    pub fn read(&self, slices: &[&Slice]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        if slices.iter().any(|slice| !slice.context().is(self)) {
            return Err(RuntimeError::OtherContext { what: "a context and bytes to read" });
        }
        let own: Vec<&Span> = slices.iter().map(|slice| slice.span()).filter(|span| span.buffer().is_none()).collect();
        let mut own = transfer::read(self, &self.current_stream(), &own)?.into_iter();
        let read = |slice: &&Slice| match slice.span().buffer() {
            None => Ok(own.next().unwrap_or_default()),
            Some(buffer) => {
                let mut bytes = transfer::zeroed(slice.size_bytes())?;
                buffer.read(slice.span().range(), &mut bytes)?;
                Ok(bytes)
            }
        };
        slices.iter().map(read).collect()
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({})", self.span.region())
    }
}

/// The bounds of a range within `size_bytes` bytes, as numbers.
///
/// # Errors
/// Fails if the range exceeds them.
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
        return Err(RuntimeError::Tensor {
            reason: format!("bytes {start}..{end} are out of range for {size_bytes} bytes"),
        });
    }
    Ok(start..end)
}
