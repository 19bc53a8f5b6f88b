//! A program: kernels on logical buffers, before anything is known about addresses, streams or budgets.

use std::collections::BTreeMap;

use forebay_base::{Kernel, TensorDesc};

use crate::tensor::Tensor;

/// A logical buffer of a program: its place in [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// What a buffer is for, which says where its contents come from and how long they last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Fed by the caller before every step; lives on the host until it is used.
    Input,
    /// Never changes.
    Constant,
    /// Trained: lasts from step to step, changes in the update phase.
    Parameter,
    /// Lasts from step to step and changes in the update phase: optimizer state, running statistics.
    State,
    /// Computed and used within one step.
    Temporary,
}

/// A logical buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name of the value it was made for.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What it is for.
    pub role: Role,
}

/// A tensor in a logical buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferId,
    /// Where the tensor's base lies in the buffer, in bytes.
    pub offset_bytes: u64,
    /// How the tensor lies from there.
    pub desc: TensorDesc,
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramLaunch {
    /// The node it comes from, for people.
    pub name: String,
    /// What to run.
    pub kernel: Kernel,
    /// Inputs in the kernel's order.
    pub reads: Vec<Operand>,
    /// Outputs in the kernel's order. An update in place names the same operand as the read.
    pub writes: Vec<Operand>,
    /// Temporary bytes that the device asks for ([`Program::set_scratch`]).
    pub scratch_bytes: u64,
}

/// A graph's input or output, with the operand that holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The value's name in the graph.
    pub name: String,
    /// Its sizes in the graph: a scalar has none, where the operand has [1].
    pub shape: Vec<u64>,
    /// Where it lies.
    pub operand: Operand,
}

/// Kernels on logical buffers, in an order that respects every dependence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// All buffers, by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// All launches, in order.
    pub launches: Vec<ProgramLaunch>,
    /// Launches from here on belong to the update phase: the only ones that write parameters and state.
    pub update_start: usize,
    /// What the caller feeds.
    pub inputs: Vec<Port>,
    /// What the caller gets, the loss included.
    pub outputs: Vec<Port>,
    /// Initial contents of constants, parameters and state. A persistent buffer without an entry starts as zeros.
    pub contents: BTreeMap<BufferId, Tensor>,
    /// Names of parameters and state (as in the graph) with their operands.
    pub persistent: Vec<Port>,
}

impl Program {
    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}
