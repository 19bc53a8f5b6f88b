//! Lowers kernels to GPU dispatches: which shader runs with which operands, as plain data. No driver is called here, so any API that
//! accepts SPIR-V can use it.
//!
//! [`lower`] turns a launch into dispatches, which need barriers between them only if [`Lowered::ordered`] says so. The sources of the
//! shaders are in the repository's `kernels/`, with one family per file, as here. What a dispatch does depends on descriptors and on what
//! the device offers ([`Target`]), never on addresses or budgets.
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

/// The bytes that a shader accesses through one of its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The operand that the bytes belong to.
    pub operand: Operand,
    /// The offset of the first byte within the operand, a multiple of 256.
    pub offset_bytes: u64,
    /// The number of bytes, a multiple of 4; `None` for all bytes from there on.
    pub size_bytes: Option<u64>,
}

/// What a shader accesses through a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An operand that the launch reads, by its position in the kernel's row.
    Read(usize),
    /// An operand that the launch writes.
    Write(usize),
    /// The launch's workspace, as scratch.
    Workspace,
    /// The launch's workspace, which one dispatch writes as its result and a later dispatch reads as an operand.
    Between,
    /// Four words for this dispatch alone, 0 when it starts; it must leave them 0. They tell the last workgroup to finish that it is the
    /// last, and it then combines what the others left in the workspace.
    Counter,
    /// Four words for this dispatch alone, 0 when it starts, that report an index out of range: 1, its position among the indices, and its
    /// low and high words.
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
    /// The shader. A device-address variant expects the addresses of what the launch reads and writes in its bindings, not the bytes.
    pub shader: &'static Shader,
    /// The shader's specialization constants, from 0 on.
    pub constants: Vec<u32>,
    /// What the shader accesses through its bindings from 1 on.
    pub bindings: Vec<Bound>,
    /// The words that the shader reads through binding 0.
    pub parameters: Vec<u32>,
    /// The number of workgroups in each dimension.
    pub groups: [u32; 3],
}

/// A launch, lowered to dispatches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lowered {
    /// The dispatches.
    pub dispatches: Vec<Dispatch>,
    /// Whether each dispatch must see what the earlier ones wrote; if not, they can run concurrently.
    pub ordered: bool,
    /// The bytes of workspace that the dispatches need, which depend on the descriptors and the device.
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

/// Lowers a kernel to dispatches. The descriptors are those of the operands in its row in [`forebay_base::kernel`].
///
/// # Errors
/// [`Unsupported`] if it cannot run with these operands.
pub fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let refuse = |reason: String| unsupported(kernel, reason);
    require_countable(reads).and_then(|()| require_countable(writes)).map_err(refuse)?;
    if let Some(function) = kernel.activation().and_then(Activation::function) {
        return Err(refuse(format!("{function:?} requires a separate launch on a GPU")));
    }
    let mut lowered = lower_by_family(kernel, reads, writes, gpu)?;
    lowered.dispatches.iter_mut().for_each(|dispatch| dispatch.shader = gpu.form_of(dispatch.shader));
    let mut dispatches = lowered.dispatches.iter_mut();
    dispatches.try_for_each(|dispatch| device_address(dispatch, reads, writes, gpu)).map_err(refuse)?;
    let (workspace_bytes, most) = (lowered.workspace_bytes, gpu.workspace_bytes_max);
    if workspace_bytes > most {
        return Err(refuse(format!(
            "it needs {workspace_bytes} bytes of workspace, but a shader can access only {most}"
        )));
    }
    let needs = |need: fn(&Shader) -> bool| lowered.dispatches.iter().any(|dispatch| need(dispatch.shader));
    if !gpu.float64 && needs(Shader::needs_float64) {
        let reason = "it computes with float64, which the device's shaders do not support; cast to float32 first";
        return Err(refuse(reason.into()));
    }
    if !gpu.storage16 && needs(Shader::needs_storage16) {
        return Err(refuse("its operands have 16-bit elements, which the device's shaders cannot access".into()));
    }
    Ok(lowered)
}

/// Returns the bytes of workspace that a launch needs, whole or cut into parts: a plan gives each part as much as the whole. The sums of
/// parts are a separate kernel ([`Kernel::Sums`]), which can need workspace even if the whole needs none.
///
/// # Errors
/// The same as those of [`lower`].
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
        // The other kernels sum in the same way as their parts.
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

/// Returns the error for operands that a kernel cannot run with.
fn unsupported(kernel: &Kernel, reason: impl Into<String>) -> Unsupported {
    Unsupported { kernel: kernel.name(), reason: reason.into() }
}

/// Returns a grid of at least `count` workgroups, spread over two dimensions if one cannot hold them. Shaders number them row by row
/// (`group_index` in `common.slang`) and ignore the surplus ones in the last row.
fn groups(count: u64, gpu: &Target) -> [u32; 3] {
    let max = u64::from(gpu.groups_max);
    let rows = count.div_ceil(max).max(1);
    let columns = count.div_ceil(rows).max(1);
    [columns as u32, rows as u32, 1]
}
