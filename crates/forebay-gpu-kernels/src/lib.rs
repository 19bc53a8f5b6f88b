//! Kernels on the GPU: which shader runs with which operands, as plain data. No driver is called here, so every API that takes
//! SPIR-V can use it.
//!
//! A launch becomes dispatches ([`lower`]) that need no barrier between them; the sources are in the repository's `kernels/`, one
//! family per file there as here. What a dispatch does is a function of descriptors and of what the device offers ([`Target`]),
//! never of addresses or budgets.
//!
//! ```
//! use forebay_base::kernel::{Activation, BinaryOp};
//! use forebay_base::{DataType, Kernel, TensorDesc};
//! use forebay_gpu_kernels::{lower, Target};
//!
//! let gpu = Target {
//!     groups_max: 65_535,
//!     bindings_max: 16,
//!     binding_bytes_max: 128 << 20,
//!     workspace_bytes_max: 128 << 20,
//!     invocations_max: 256,
//!     shared_bytes: 32 << 10,
//!     float64: false,
//!     storage16: true,
//!     cooperative: None,
//! };
//! let vector = TensorDesc::packed(DataType::Float32, &[1 << 20]).unwrap();
//! let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
//! let lowered = lower(&add, &[vector.clone(), vector.clone()], &[vector], &gpu).unwrap();
//! assert_eq!(lowered.dispatches[0].shader.name, "elementwise_binary");
//! ```

mod attention;
mod channels;
mod convolution;
mod device_address;
mod elements;
mod elementwise;
mod error;
mod integer;
mod local_response;
mod loss;
mod matmul;
mod movement;
mod normalization;
mod operand_type;
mod operands;
mod optimizer;
mod parts;
mod pooling;
mod recurrent;
mod reduce;
mod rows;
mod scan;
mod shaders;
mod spatial;
mod strided_layout;
#[cfg(test)]
mod summing_tests;
mod sums;
pub mod target;
mod teams;

use forebay_base::kernel::{Activation, Summing};
use forebay_base::{DataType, Kernel, TensorDesc};

use device_address::device_address;
pub use error::Unsupported;
use operands::require_countable;
pub use shaders::{ALL, Shader};
pub use target::{BINDINGS, Cooperative, SUBGROUP_SIZE, Target, WORKGROUP_INVOCATIONS};

/// Bytes that a shader reaches through one of its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Whose bytes.
    pub operand: Operand,
    /// First byte, from the operand's first; a multiple of 256 where it is not 0.
    pub offset_bytes: u64,
    /// How many, a multiple of 4; none for all from there on.
    pub size_bytes: Option<u64>,
}

/// Whose bytes a shader reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// What the launch reads, by its place in the kernel's row.
    Read(usize),
    /// What the launch writes.
    Write(usize),
    /// The launch's workspace, which one dispatch alone uses.
    Workspace,
    /// The launch's workspace, which one dispatch writes as its result and a later one reads as an operand.
    Between,
    /// Four words of this dispatch alone, 0 when it starts. It has to leave them 0. The last workgroup to finish finds out by
    /// them that it is the last, and combines what the others left in the workspace.
    Counter,
    /// Four words of this dispatch alone, 0 when it starts, for an index out of range: 1, its place among the indices, and its low
    /// and high word.
    Fault,
}

impl From<Operand> for Bound {
    fn from(operand: Operand) -> Bound {
        Bound { operand, offset_bytes: 0, size_bytes: None }
    }
}

/// One dispatch of a shader.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The shader. Of what the launch reads and writes, a far one wants the addresses bound, not the bytes.
    pub shader: &'static Shader,
    /// Its specialization constants, from 0 on.
    pub constants: Vec<u32>,
    /// What it reaches through its bindings from 1 on.
    pub bindings: Vec<Bound>,
    /// The words that it reads through binding 0.
    pub parameters: Vec<u32>,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
}

/// How a launch runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lowered {
    /// Dispatches.
    pub dispatches: Vec<Dispatch>,
    /// Whether each of them has to see what those before it wrote; if not, they may run at once.
    pub ordered: bool,
    /// Bytes of workspace that they need, a function of descriptors and the device.
    pub workspace_bytes: u64,
}

impl From<Dispatch> for Lowered {
    fn from(dispatch: Dispatch) -> Lowered {
        Lowered::from(vec![dispatch])
    }
}

impl From<Vec<Dispatch>> for Lowered {
    fn from(dispatches: Vec<Dispatch>) -> Lowered {
        Lowered { dispatches, ordered: false, workspace_bytes: 0 }
    }
}

/// How a kernel runs with operands of these descriptors, which are those of its row in [`forebay_base::kernel`].
///
/// # Errors
/// [`Unsupported`] where it cannot.
pub fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let refuse = |reason: String| unsupported(kernel, reason);
    require_countable(reads).and_then(|()| require_countable(writes)).map_err(refuse)?;
    if let Some(function) = kernel.activation().and_then(Activation::function) {
        return Err(refuse(format!("{function:?} takes a launch of its own on a GPU")));
    }
    let mut lowered = lower_by_family(kernel, reads, writes, gpu)?;
    lowered.dispatches.iter_mut().for_each(|dispatch| dispatch.shader = gpu.form_of(dispatch.shader));
    let mut dispatches = lowered.dispatches.iter_mut();
    dispatches.try_for_each(|dispatch| device_address(dispatch, reads, writes, gpu)).map_err(refuse)?;
    let (workspace_bytes, most) = (lowered.workspace_bytes, gpu.workspace_bytes_max);
    if workspace_bytes > most {
        return Err(refuse(format!("it needs {workspace_bytes} bytes of scratch, and a shader reaches {most}")));
    }
    let needs = |need: fn(&Shader) -> bool| lowered.dispatches.iter().any(|dispatch| need(dispatch.shader));
    if !gpu.float64 && needs(Shader::needs_float64) {
        let reason = "it computes with float64, which the device's shaders lack; cast to float32 first";
        return Err(refuse(reason.into()));
    }
    if !gpu.storage16 && needs(Shader::needs_storage16) {
        return Err(refuse("its operands have elements of 16 bits, which the device's shaders cannot address".into()));
    }
    Ok(lowered)
}

/// Bytes of workspace that a launch needs, whole or cut into parts: a plan gives each part what the whole has. The sums of parts
/// are a kernel of their own ([`Kernel::Sums`]), which may need workspace where the whole needs none.
///
/// # Errors
/// As [`lower`].
pub fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<u64, Unsupported> {
    let own = lower(kernel, reads, writes, gpu)?.workspace_bytes;
    let (of, operands) = match *kernel {
        Kernel::BatchNormalizationTraining { group_size, .. } => (Summing::BatchStatistics { group_size }, &reads[..1]),
        Kernel::BatchNormalizationGradient { epsilon, activation, .. } if writes.len() == 3 => {
            (Summing::BatchGradient { epsilon, activation }, reads)
        }
        // The others sum as their parts do.
        _ => return Ok(own),
    };
    let table = TensorDesc::packed(DataType::Float64, &[of.rows(), writes[1].element_count()]);
    let table = table.map_err(|error| unsupported(kernel, error.to_string()))?;
    let sums = lower(&Kernel::Sums { of }, operands, &[table], gpu)?;
    Ok(own.max(sums.workspace_bytes))
}

fn lower_by_family(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    match kernel {
        Kernel::Unary(_)
        | Kernel::UnaryGradient(_)
        | Kernel::Binary { .. }
        | Kernel::Select
        | Kernel::Cast(_)
        | Kernel::Fill { .. }
        | Kernel::Dropout { .. }
        | Kernel::Random { .. } => elementwise::lower(kernel, reads, writes, gpu),
        Kernel::Copy
        | Kernel::Slice { .. }
        | Kernel::SliceGradient { .. }
        | Kernel::Pad { .. }
        | Kernel::Gather { .. }
        | Kernel::GatherGradient { .. }
        | Kernel::Scatter { .. } => movement::lower(kernel, reads, writes, gpu),
        Kernel::TopK { .. } | Kernel::Scan { .. } => scan::lower(kernel, reads, writes, gpu),
        Kernel::Reduce { .. }
        | Kernel::Softmax { .. }
        | Kernel::LogSoftmax { .. }
        | Kernel::SoftmaxGradient { .. }
        | Kernel::LogSoftmaxGradient { .. } => reduce::lower(kernel, reads, writes, gpu),
        Kernel::SoftmaxCrossEntropy { .. }
        | Kernel::SoftmaxCrossEntropyGradient { .. }
        | Kernel::MeanSquaredError
        | Kernel::MeanSquaredErrorGradient => loss::lower(kernel, reads, writes, gpu),
        Kernel::MatMul { .. } => matmul::lower(kernel, reads, writes, gpu),
        Kernel::Convolution { .. }
        | Kernel::ConvolutionDataGradient { .. }
        | Kernel::ConvolutionWeightGradient { .. } => convolution::lower(kernel, reads, writes, gpu),
        Kernel::IntegerProduct { .. } | Kernel::IntegerConvolution { .. } => integer::lower(kernel, reads, writes, gpu),
        Kernel::Pool { .. } | Kernel::PoolGradient { .. } | Kernel::PoolIndices { .. } => {
            pooling::lower(kernel, reads, writes, gpu)
        }
        Kernel::BatchNormalization { .. }
        | Kernel::BatchNormalizationTraining { .. }
        | Kernel::BatchNormalizationGradient { .. }
        | Kernel::RunningStatistics { .. }
        | Kernel::LayerNormalization { .. }
        | Kernel::LayerNormalizationGradient { .. } => normalization::lower(kernel, reads, writes, gpu),
        Kernel::LocalResponseNormalization { .. } | Kernel::LocalResponseNormalizationGradient { .. } => {
            local_response::lower(kernel, reads, writes, gpu)
        }
        Kernel::Attention(_)
        | Kernel::AttentionGradient(_)
        | Kernel::AttentionQueryGradient(_)
        | Kernel::AttentionKeyGradient(_) => attention::lower(kernel, reads, writes, gpu),
        Kernel::Sgd { .. } | Kernel::Adam { .. } | Kernel::Adam8Bit { .. } => {
            optimizer::lower(kernel, reads, writes, gpu)
        }
        Kernel::Recurrent(_) | Kernel::RecurrentGradient(_) => recurrent::lower(kernel, reads, writes, gpu),
        Kernel::Sums { .. } | Kernel::AddSums { .. } | Kernel::FromSums { .. } => {
            sums::lower(kernel, reads, writes, gpu)
        }
        Kernel::Exchange(_) => Err(unsupported(kernel, "processes exchange bytes through the host")),
    }
}

/// The error for operands that a kernel cannot run with.
fn unsupported(kernel: &Kernel, reason: impl Into<String>) -> Unsupported {
    Unsupported { kernel: kernel.name(), reason: reason.into() }
}

/// Workgroups for `count` of them in a row, spread over two dimensions where one does not hold them. Shaders number them row
/// by row (`group_index` in `common.slang`) and leave the superfluous ones of the last row alone.
fn groups(count: u64, gpu: &Target) -> [u32; 3] {
    let max = u64::from(gpu.groups_max);
    let rows = count.div_ceil(max).max(1);
    let columns = count.div_ceil(rows).max(1);
    [columns as u32, rows as u32, 1]
}
