//! A step as a sequence of dispatches, copies and fills, and the places of its bytes in buffers.
//!
//! [`operations`] lowers a step's launches as the Vulkan device does. Its operands are regions of Forebay's memories, which a
//! [layout](crate::layout) turns into places in buffers.

use forebay_base::{Binding, Command, Region};
use forebay_gpu_kernels::{lower, Dispatch, Target, Unsupported};

use crate::recorder::Step;

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The index of the buffer.
    pub buffer: usize,
    /// The first byte.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub size_bytes: u64,
}

impl Place {
    /// Returns a part of these bytes, or all from `offset_bytes` on if no size is given.
    pub fn part(self, offset_bytes: u64, size_bytes: Option<u64>) -> Place {
        let size_bytes = size_bytes.unwrap_or(self.size_bytes - offset_bytes);
        Place { buffer: self.buffer, offset_bytes: self.offset_bytes + offset_bytes, size_bytes }
    }
}

/// One of the operations that a step performs in order, with operands of type `P`.
#[derive(Clone, Debug)]
pub enum Operation<P> {
    /// Dispatches that do not depend on each other, with the launch's operands.
    Launch { reads: Vec<P>, writes: Vec<P>, workspace: Option<P>, dispatches: Vec<Dispatch> },
    /// Copies bytes.
    Copy { from: P, to: P },
    /// Fills bytes with a pattern.
    Fill { to: P, pattern: [u8; 4] },
}

/// Returns a step's operations in the order of its commands, which all its barriers and waits allow.
///
/// # Errors
/// If there is a launch that the device would not run.
pub fn operations(step: &Step, target: &Target) -> Result<Vec<Operation<Region>>, Unsupported> {
    let regions = |bindings: &[Binding]| bindings.iter().map(|binding| binding.region).collect::<Vec<_>>();
    let descs = |bindings: &[Binding]| bindings.iter().map(|binding| binding.desc.clone()).collect::<Vec<_>>();
    let mut operations = Vec::new();
    for command in step.lists.iter().flatten() {
        match command {
            Command::Launch { launch, .. } => {
                let (reads, writes) = (descs(&launch.reads), descs(&launch.writes));
                let dispatches = lower(&launch.kernel, &reads, &writes, target)?.dispatches;
                let (reads, writes) = (regions(&launch.reads), regions(&launch.writes));
                operations.push(Operation::Launch { reads, writes, workspace: launch.workspace, dispatches });
            }
            Command::Copy { from, to, .. } => operations.push(Operation::Copy { from: *from, to: *to }),
            Command::Fill { region, pattern, .. } => {
                operations.push(Operation::Fill { to: *region, pattern: *pattern });
            }
            _ => {}
        }
    }
    Ok(operations)
}

impl<P> Operation<P> {
    /// Returns the dispatches, of which copies and fills have none.
    pub fn dispatches(&self) -> &[Dispatch] {
        match self {
            Operation::Launch { dispatches, .. } => dispatches,
            _ => &[],
        }
    }

    /// Returns the same operation with other operands.
    pub fn map<Q>(&self, mut place: impl FnMut(&P) -> Q) -> Operation<Q> {
        match self {
            Operation::Launch { reads, writes, workspace, dispatches } => Operation::Launch {
                reads: reads.iter().map(&mut place).collect(),
                writes: writes.iter().map(&mut place).collect(),
                workspace: workspace.as_ref().map(&mut place),
                dispatches: dispatches.clone(),
            },
            Operation::Copy { from, to } => Operation::Copy { from: place(from), to: place(to) },
            Operation::Fill { to, pattern } => Operation::Fill { to: place(to), pattern: *pattern },
        }
    }
}
