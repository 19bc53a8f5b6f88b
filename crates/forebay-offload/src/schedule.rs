//! A schedule as plain data: what runs when, what moves when, and what is dropped when, for one step that repeats forever.
//!
//! Times are whole nanoseconds from the start of the step. The step starts with `resident` in the memories, and ends in the same state; a
//! transfer that crosses the boundary is recorded as two. Every piece is a range of bytes of a tensor: tensors can move in parts, but a
//! kernel needs all bytes of the tensors that it touches.

use serde::{Deserialize, Serialize};

/// A memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemorySpace {
    /// Where kernels run.
    Device,
    /// The host.
    Host,
    /// The disk.
    Ssd,
}

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Away from the device.
    Out,
    /// To the device.
    In,
}

/// A range of bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// The number of the tensor.
    pub tensor: usize,
    /// Where the bytes start in the tensor.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub size_bytes: u64,
}

/// A run of a kernel, from `start_ns` for its duration (at least one nanosecond).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The number of the kernel in the workload.
    pub kernel: usize,
    /// When it starts.
    pub start_ns: u64,
    /// Whether the kernel runs again to recompute contents that were dropped.
    pub recomputation: bool,
}

/// A copy of a piece between the device and another memory. The source of the copy stays until it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The bytes.
    #[serde(flatten)]
    pub piece: Piece,
    /// The direction.
    pub direction: Direction,
    /// The memory at the other end: the host or the SSD.
    pub place: MemorySpace,
    /// When it starts; its target takes memory from then on.
    pub start_ns: u64,
    /// When the last byte has arrived.
    pub end_ns: u64,
}

/// The removal of a piece from a memory, without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// The bytes.
    #[serde(flatten)]
    pub piece: Piece,
    /// The memory.
    pub place: MemorySpace,
    /// When it happens. Whatever ends at the same time ends before it; whatever starts at the same time starts after it.
    pub at_ns: u64,
}

/// A piece that is in a memory when the step starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resident {
    /// The bytes.
    #[serde(flatten)]
    pub piece: Piece,
    /// The memory.
    pub place: MemorySpace,
}

/// One step that repeats forever.
///
/// ```
/// use forebay_offload::schedule::Schedule;
///
/// let schedule = Schedule { step_ns: 1_000_000, ..Schedule::default() };
/// assert!(schedule.transfers.is_empty() && schedule.drops.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The time from one start of the step to the next.
    pub step_ns: u64,
    /// What is where when the step starts, and again when it ends.
    pub resident: Vec<Resident>,
    /// Kernels, in the order in which they run.
    pub launches: Vec<Launch>,
    /// Copies, ordered by start.
    pub transfers: Vec<Transfer>,
    /// Drops, ordered by time.
    pub drops: Vec<Drop>,
}

impl std::fmt::Display for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end_bytes = self.offset_bytes.saturating_add(self.size_bytes);
        write!(f, "tensor {}, bytes {}..{end_bytes}", self.tensor, self.offset_bytes)
    }
}
