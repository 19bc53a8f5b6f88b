//! Programs: kernels on logical buffers, before addresses, streams or budgets are known.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::kernel::facts::OperandRef;
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{ByteRange, Kernel, TensorDesc};

use crate::error::ModelError;
use crate::tensor::Contents;

/// A logical buffer of a program: its index in [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// The purpose of a buffer, which determines where its contents come from and how long they last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Fed by the caller before every step; lives on the host until it is used.
    Input,
    /// Never changes.
    Constant,
    /// Trained: persists across steps and changes in the update phase.
    Parameter,
    /// Persists across steps and changes in the update phase: optimizer state, running statistics.
    State,
    /// Computed and used within one step.
    Temporary,
    /// Computed by the backward pass and used within one step.
    Gradient,
}

impl Role {
    /// Whether the contents persist across steps.
    pub const fn is_persistent(self) -> bool {
        matches!(self, Role::Constant | Role::Parameter | Role::State)
    }

    /// Whether the contents are computed and used within one step.
    pub const fn is_temporary(self) -> bool {
        matches!(self, Role::Temporary | Role::Gradient)
    }

    /// The usual name of such contents, as in PyTorch's memory profiler.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Input => "inputs",
            Role::Constant => "constants",
            Role::Parameter => "parameters",
            Role::State => "optimizer state",
            Role::Temporary => "activations",
            Role::Gradient => "gradients",
        }
    }
}

/// A logical buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name of the value that it was created for.
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
    /// Offset of the tensor's base in the buffer, in bytes.
    pub offset_bytes: u64,
    /// The tensor's layout from there.
    pub desc: TensorDesc,
}

impl Operand {
    /// The bytes of the buffer from the tensor's base to its end, gaps included.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset_bytes, self.offset_bytes + self.desc.total_size_bytes())
    }
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramLaunch {
    /// The name of the node that it comes from, for readers.
    pub name: String,
    /// The kernel to run.
    pub kernel: Kernel,
    /// Inputs, in the kernel's order.
    pub reads: Vec<Operand>,
    /// Outputs, in the kernel's order. An in-place update names the same operand in both lists.
    pub writes: Vec<Operand>,
    /// Bytes of workspace that it needs on the device or host where it runs ([`Program::set_workspace`]).
    pub workspace_bytes: u64,
    /// Whether it runs on the host ([`Program::set_workspace`]), either because the device cannot run it or because its operands are in
    /// host memory.
    pub on_host: bool,
    /// Whether its operands are in host memory while it runs, as in an update on the host. Otherwise they are on the device, even if the
    /// host runs it between copies.
    pub in_host_memory: bool,
}

/// The workspace that a launch needs, and where it runs.
///
/// ```
/// use forebay_model::program::Workspace;
///
/// assert_eq!(Workspace::from(256), Workspace { bytes: 256, on_host: false }, "what a device says is about itself");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the launch runs on the host because the device cannot run it.
    pub on_host: bool,
}

impl From<u64> for Workspace {
    fn from(bytes: u64) -> Workspace {
        Workspace { bytes, on_host: false }
    }
}

impl ProgramLaunch {
    /// Creates a launch on the device, without workspace.
    pub fn new(name: impl Into<String>, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) -> ProgramLaunch {
        let (name, workspace_bytes, on_host, in_host_memory) = (name.into(), 0, false, false);
        ProgramLaunch { name, kernel, reads, writes, workspace_bytes, on_host, in_host_memory }
    }

    /// Returns an operand.
    pub fn operand(&self, operand: OperandRef) -> Option<&Operand> {
        match operand {
            OperandRef::Read(index) => self.reads.get(index),
            OperandRef::Write(index) => self.writes.get(index),
        }
    }

    /// Bytes of workspace that it needs in device memory.
    pub fn device_workspace_bytes(&self) -> u64 {
        if self.on_host { 0 } else { self.workspace_bytes }
    }

    /// The descriptor of an operand.
    pub fn desc(&self, operand: OperandRef) -> Option<&TensorDesc> {
        self.operand(operand).map(|operand| &operand.desc)
    }

    /// The position, among the operands read, of the one that holds indices, and the number of entries that they choose from; `None` for
    /// kernels without indices.
    pub fn index_limit(&self) -> Option<(usize, u64)> {
        self.kernel.index_limit(|operand| self.desc(operand))
    }
}

/// A graph's input or output, with the operand that holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedOperand {
    /// The value's name in the graph.
    pub name: String,
    /// Its sizes in the graph. A scalar has none, but its operand has \[1].
    pub shape: Vec<u64>,
    /// The operand that holds it.
    pub operand: Operand,
}

/// Kernels on logical buffers, in an order that respects every dependence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// All buffers, by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// All launches, in order.
    pub launches: Vec<ProgramLaunch>,
    /// Index of the first launch of the update phase. Only launches from there on write parameters and state.
    pub update_start: usize,
    /// Inputs that the caller feeds.
    pub inputs: Vec<NamedOperand>,
    /// Outputs that the caller receives, including the loss.
    pub outputs: Vec<NamedOperand>,
    /// Initial contents of constants, parameters and state. A persistent buffer without an entry is initially zero.
    pub contents: BTreeMap<BufferId, Contents>,
    /// Names of parameters and state (as in the graph) with their operands.
    pub persistent: Vec<NamedOperand>,
}

impl Program {
    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The launches before the update phase, and those of the update phase.
    ///
    /// ```
    /// use forebay_base::Kernel;
    /// use forebay_model::program::{Program, ProgramLaunch};
    ///
    /// let launch = |name: &str| ProgramLaunch::new(name, Kernel::Copy, Vec::new(), Vec::new());
    /// let launches = ["product", "gradient", "update"].map(launch).to_vec();
    /// let program = Program { launches, update_start: 2, ..Program::default() };
    /// let (before, updates) = program.phases();
    /// assert_eq!((before.len(), updates[0].name.as_str()), (2, "update"));
    /// ```
    pub fn phases(&self) -> (&[ProgramLaunch], &[ProgramLaunch]) {
        self.launches.split_at(self.update_start.min(self.launches.len()))
    }

    /// Total size in bytes of all buffers with a role, each counted once; saturating.
    pub fn size_bytes(&self, role: Role) -> u64 {
        let sizes = self.buffers.iter().filter(|buffer| buffer.role == role).map(|buffer| buffer.size_bytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// Sets each launch's workspace, and whether it runs on the host, to what `ask` (a device) returns for the descriptors of its inputs
    /// and outputs. Operands can be in host memory only for launches that run on the host. Called after fusion, before budgets are known.
    ///
    /// # Errors
    /// Returns the first error from `ask`.
    pub fn set_workspace<E, W: Into<Workspace>>(
        &mut self,
        ask: impl Fn(&ProgramLaunch, &[TensorDesc], &[TensorDesc]) -> Result<W, E>,
    ) -> Result<(), E> {
        let descs = |operands: &[Operand]| operands.iter().map(|operand| operand.desc.clone()).collect::<Vec<_>>();
        for launch in &mut self.launches {
            let Workspace { bytes, on_host } = ask(launch, &descs(&launch.reads), &descs(&launch.writes))?.into();
            (launch.workspace_bytes, launch.on_host) = (bytes, on_host);
            launch.in_host_memory &= on_host;
        }
        Ok(())
    }

    /// Checks the invariants of every program: operands lie within their buffers and are aligned; nothing is read before it is written or
    /// provided; only the update phase writes parameters and state, and nothing writes inputs or constants.
    ///
    /// # Errors
    /// Returns an error for the first launch or named operand that violates an invariant.
    pub fn validate(&self) -> Result<(), ModelError> {
        let mut written: Vec<bool> = self.buffers.iter().map(|buffer| !buffer.role.is_temporary()).collect();
        for (i, launch) in self.launches.iter().enumerate() {
            let error = |reason: String| ModelError::Operator {
                op_type: launch.kernel.name().to_string(),
                node: launch.name.clone(),
                reason: format!("launch {i}: {reason}"),
            };
            for operand in launch.reads.iter().chain(&launch.writes) {
                self.check_operand(operand).map_err(error)?;
            }
            for read in &launch.reads {
                if !written[read.buffer.0 as usize] {
                    let name = &self.buffer(read.buffer).name;
                    return Err(error(format!("'{name}' is read before anything is written to it")));
                }
            }
            for write in &launch.writes {
                let Buffer { name, role, .. } = self.buffer(write.buffer);
                let allowed = match role {
                    Role::Temporary | Role::Gradient => true,
                    Role::Parameter | Role::State => i >= self.update_start,
                    Role::Input | Role::Constant => false,
                };
                if !allowed {
                    return Err(error(format!("'{name}' ({role:?}) must not be written here")));
                }
                written[write.buffer.0 as usize] = true;
            }
        }
        for named in self.inputs.iter().chain(&self.outputs).chain(&self.persistent) {
            let error = |reason| ModelError::Request { reason: format!("'{}': {reason}", named.name) };
            self.check_operand(&named.operand).map_err(error)?;
            if !written[named.operand.buffer.0 as usize] {
                return Err(error("nothing is written to it".to_string()));
            }
        }
        Ok(())
    }

    fn check_operand(&self, operand: &Operand) -> Result<(), String> {
        let Some(buffer) = self.buffers.get(operand.buffer.0 as usize) else {
            return Err(format!("buffer {} does not exist", operand.buffer.0));
        };
        let end = operand.offset_bytes.checked_add(operand.desc.total_size_bytes());
        if end.is_none_or(|end| end > buffer.size_bytes) {
            let Buffer { name, size_bytes, .. } = buffer;
            return Err(format!("{operand} does not fit in '{name}' of {size_bytes} bytes"));
        }
        if !operand.offset_bytes.is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES) {
            return Err(format!("{operand} is not aligned to {BASE_OFFSET_ALIGNMENT_BYTES} bytes"));
        }
        Ok(())
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.buffer.0)?;
        if self.offset_bytes > 0 {
            write!(f, "+{}", self.offset_bytes)?;
        }
        write!(f, " {}", self.desc)
    }
}

/// Writes one line per buffer and per launch, for readers and for snapshot tests.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, buffer) in self.buffers.iter().enumerate() {
            writeln!(f, "buffer b{i} {:?} {} bytes '{}'", buffer.role, buffer.size_bytes, buffer.name)?;
        }
        let list = |operands: &[Operand]| operands.iter().map(Operand::to_string).collect::<Vec<_>>().join(", ");
        for (i, launch) in self.launches.iter().enumerate() {
            let phase = if i >= self.update_start { "update" } else { "launch" };
            let (writes, kernel, reads) = (list(&launch.writes), &launch.kernel, list(&launch.reads));
            writeln!(f, "{phase} {i} '{}': {writes} = {kernel}({reads})", launch.name)?;
        }
        for named in &self.outputs {
            writeln!(f, "output '{}' {:?} in {}", named.name, named.shape, named.operand)?;
        }
        Ok(())
    }
}
