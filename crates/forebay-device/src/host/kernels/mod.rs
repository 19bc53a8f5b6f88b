//! Kernels of the host device: one family per file.
//!
//! Rules that make results a function of operands alone: work is cut into chunks whose boundaries depend only on shapes, never on the
//! number of threads; partial results are combined in a tree over the chunks (`forebay_base::sum_tree`); the pool only decides which thread
//! computes a chunk.

mod accumulators;
mod applied;
mod attention;
mod block;
mod buffer;
mod cache;
mod convolution;
mod element;
mod elementwise;
mod exchange;
mod integer;
mod largest;
mod loss;
mod math;
mod matmul;
mod movement;
mod normalization;
mod optimizer;
mod order;
mod parallel;
mod partial_sums;
pub mod peak;
mod pooling;
mod product;
mod recurrence;
mod reduce;
#[cfg(test)]
mod row_order_tests;
mod scan;
mod simd;
mod sixteen_bit;
mod spatial;
mod stored;
mod strided_layout;
mod sums;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod thread_buffer;
mod view;

use forebay_base::{Kernel, TensorDesc};

use super::copying;
use crate::device::DeviceError;
pub(crate) use exchange::Exchanged;
pub(crate) use parallel::alone;
pub(crate) use view::View;

/// Bytes of packing buffers that kernels keep for each thread; they count as host memory.
pub(crate) const PACKING_BYTES_PER_THREAD: u64 = 2 << 20;

/// Runs one kernel on the calling thread's pool, or on the calling thread within [`alone`]. Operands are those of the kernel's row in
/// [`forebay_base::kernel`].
///
/// # Safety
/// Every view must point to live memory of at least its descriptor's total size, aligned to 16 bytes. Nothing else may write memory that is
/// read, or touch memory that is written, while this runs. A write may be the same bytes as a read only if [`Kernel::in_place`] says so.
pub(crate) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises are those that the families ask for.
    let outcome = unsafe {
        match kernel {
            Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Binary { .. }
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Fill { .. }
            | Kernel::Dropout { .. }
            | Kernel::Random { .. } => elementwise::run(kernel, reads, writes),
            Kernel::Copy
            | Kernel::Slice { .. }
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Gather { .. }
            | Kernel::GatherGradient { .. }
            | Kernel::Scatter { .. } => movement::run(kernel, reads, writes),
            Kernel::TopK { .. } => order::run(kernel, reads, writes, workspace),
            Kernel::Scan { .. } => scan::run(kernel, reads, writes),
            Kernel::Reduce { .. }
            | Kernel::Softmax { .. }
            | Kernel::LogSoftmax { .. }
            | Kernel::SoftmaxGradient { .. }
            | Kernel::LogSoftmaxGradient { .. } => reduce::run(kernel, reads, writes),
            Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::MeanSquaredError
            | Kernel::MeanSquaredErrorGradient => loss::run(kernel, reads, writes),
            Kernel::MatMul { .. } => matmul::run(kernel, reads, writes),
            Kernel::Convolution { .. }
            | Kernel::ConvolutionDataGradient { .. }
            | Kernel::ConvolutionWeightGradient { .. } => convolution::run(kernel, reads, writes, workspace),
            Kernel::IntegerProduct { .. } | Kernel::IntegerConvolution { .. } => {
                integer::run(kernel, reads, writes, workspace)
            }
            Kernel::Pool { .. } | Kernel::PoolGradient { .. } | Kernel::PoolIndices { .. } => {
                pooling::run(kernel, reads, writes)
            }
            Kernel::BatchNormalization { .. }
            | Kernel::BatchNormalizationTraining { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::LayerNormalization { .. }
            | Kernel::LayerNormalizationGradient { .. }
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. } => normalization::run(kernel, reads, writes),
            Kernel::Attention(_)
            | Kernel::AttentionGradient(_)
            | Kernel::AttentionQueryGradient(_)
            | Kernel::AttentionKeyGradient(_) => attention::run(kernel, reads, writes),
            Kernel::Sgd { .. } | Kernel::Adam { .. } | Kernel::Adam8Bit { .. } => optimizer::run(kernel, reads, writes),
            Kernel::Recurrent(_) | Kernel::RecurrentGradient(_) => recurrence::run(kernel, reads, writes, workspace),
            Kernel::Sums { .. } | Kernel::AddSums { .. } | Kernel::FromSums { .. } => sums::run(kernel, reads, writes),
            Kernel::Exchange(exchange) => exchange::run(exchange, reads, writes),
        }
    };
    // Tasks complete their own stores; this completes those outside of tasks.
    copying::finish();
    outcome
}

/// Returns the first index of a launch that is out of range: its position among the indices, the index, and the number of entries to choose
/// from.
///
/// # Errors
/// Returns an error for operands that cannot be indices.
///
/// # Safety
/// As [`run`].
pub(crate) unsafe fn index_fault(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
) -> Result<Option<(usize, i64, u64)>, DeviceError> {
    // SAFETY: the caller's promises.
    unsafe { movement::index_fault(kernel, reads, writes) }
}

/// The error for operands that a kernel cannot run with.
fn unsupported(kernel: &Kernel, reason: String) -> DeviceError {
    DeviceError::Unsupported { kernel: kernel.name(), reason }
}

/// Returns the temporary bytes that a kernel needs, or an error if the host cannot run it with these operands.
pub(crate) fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    if let Some(first) = reads.first().filter(|first| !kernel.facts().take(first.data_type())) {
        return Err(unsupported(kernel, format!("its first operand cannot be {}", first.data_type())));
    }
    match kernel {
        Kernel::MatMul { .. } => {
            sixteen_bit::check_types(kernel, reads.iter(), &writes[0]).map_err(|reason| unsupported(kernel, reason))?;
            Ok(0)
        }
        Kernel::Convolution { .. }
        | Kernel::ConvolutionDataGradient { .. }
        | Kernel::ConvolutionWeightGradient { .. } => convolution::workspace_bytes(kernel, reads, writes),
        Kernel::IntegerProduct { .. } | Kernel::IntegerConvolution { .. } => {
            integer::workspace_bytes(kernel, reads, writes)
        }
        Kernel::Recurrent(_) | Kernel::RecurrentGradient(_) => recurrence::workspace_bytes(kernel, reads),
        Kernel::TopK { .. } => order::workspace_bytes(kernel, reads, writes),
        Kernel::Unary(_)
        | Kernel::UnaryGradient(_)
        | Kernel::Binary { .. }
        | Kernel::Select
        | Kernel::Cast(_)
        | Kernel::Copy
        | Kernel::Slice { .. }
        | Kernel::SliceGradient { .. }
        | Kernel::Pad { .. }
        | Kernel::Fill { .. }
        | Kernel::Reduce { .. }
        | Kernel::Softmax { .. }
        | Kernel::LogSoftmax { .. }
        | Kernel::SoftmaxGradient { .. }
        | Kernel::LogSoftmaxGradient { .. }
        | Kernel::SoftmaxCrossEntropy { .. }
        | Kernel::SoftmaxCrossEntropyGradient { .. }
        | Kernel::MeanSquaredError
        | Kernel::MeanSquaredErrorGradient
        | Kernel::Pool { .. }
        | Kernel::PoolGradient { .. }
        | Kernel::BatchNormalization { .. }
        | Kernel::BatchNormalizationTraining { .. }
        | Kernel::BatchNormalizationGradient { .. }
        | Kernel::RunningStatistics { .. }
        | Kernel::LayerNormalization { .. }
        | Kernel::LayerNormalizationGradient { .. }
        | Kernel::Attention(_)
        | Kernel::AttentionGradient(_)
        | Kernel::AttentionQueryGradient(_)
        | Kernel::AttentionKeyGradient(_)
        | Kernel::LocalResponseNormalization { .. }
        | Kernel::LocalResponseNormalizationGradient { .. }
        | Kernel::Gather { .. }
        | Kernel::GatherGradient { .. }
        | Kernel::Scatter { .. }
        | Kernel::Scan { .. }
        | Kernel::PoolIndices { .. }
        | Kernel::Dropout { .. }
        | Kernel::Random { .. }
        | Kernel::Sgd { .. }
        | Kernel::Adam { .. }
        | Kernel::Adam8Bit { .. }
        | Kernel::Sums { .. }
        | Kernel::AddSums { .. }
        | Kernel::FromSums { .. }
        | Kernel::Exchange(_) => Ok(0),
    }
}
