//! Sums over positions in parts, and what becomes of them.

use forebay_base::kernel::Summing;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::channels::{is_relu, squares, sum_channels, Settings};
use super::operands::{bindings, exactly, for_type, require_packed};
use super::shaders;
use super::strided_layout::strided_layouts;
use super::teams::WORKGROUP_SIZE;
use super::{groups, loss, normalization, rows, unsupported, Dispatch, Lowered, Operand, Target, Unsupported};

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = match *kernel {
        Kernel::Sums { of, accumulate } => add(of, accumulate, reads, writes, gpu),
        Kernel::FromSums { of } => finish(of, reads, writes, gpu),
        _ => Err("not a sum".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

fn add(
    of: Summing,
    accumulate: bool,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    match of {
        Summing::CrossEntropy { axis, ignore_index } => {
            return loss::sums(axis, ignore_index, accumulate, reads, writes, gpu)
        }
        Summing::LayerGradient { axis, block_rows } => {
            return normalization::layer_sums((axis, block_rows), accumulate, reads, writes, gpu)
        }
        Summing::Rows { axes, block_rows } => return rows::sums((axes, block_rows), accumulate, reads, writes, gpu),
        _ => {}
    }
    let [sums] = exactly(writes, "results")?;
    let own = reads.len().saturating_sub(usize::from(accumulate));
    let (reads, before) = reads.split_at(own);
    let x = reads.get(usize::from(reads.len() > 1)).ok_or("nothing to sum")?;
    let channels = if of == Summing::SquaredError { 1 } else { x.sizes().get(1).copied().unwrap_or(1) };
    let data_type = x.data_type();
    let tables: Vec<&TensorDesc> = before.iter().chain([sums]).collect();
    require_packed(&tables, DataType::Float64, of.rows() * channels)?;
    let mut settings = Settings { accumulate, ..Settings::default() };
    let (shaders, [x, dy]) = match of {
        Summing::BatchStatistics => {
            let [x] = exactly(reads, "operands")?;
            ([&shaders::SUMS_STATISTICS_F32, &shaders::SUMS_STATISTICS_F64], strided_layouts([x, x])?)
        }
        Summing::BatchGradient { epsilon, activation } => {
            let [dy, x, parameters @ ..] = exactly::<6>(reads, "operands")?;
            require_packed(&parameters, data_type, channels)?;
            settings = Settings { accumulate, epsilon, relu: is_relu(activation) };
            ([&shaders::SUMS_GRADIENT_F32, &shaders::SUMS_GRADIENT_F64], strided_layouts([x, dy])?)
        }
        Summing::SquaredError => {
            let x = squares(reads)?;
            ([&shaders::SUMS_SQUARES_F32; 2], [x, x])
        }
        Summing::CrossEntropy { .. } | Summing::LayerGradient { .. } | Summing::Rows { .. } | Summing::Channels => {
            let [x] = exactly(reads, "operands")?;
            ([&shaders::SUMS_CHANNELS_F32, &shaders::SUMS_CHANNELS_F64], strided_layouts([x, x])?)
        }
    };
    Ok(sum_channels(for_type(data_type, shaders)?, x, dy, settings, own, gpu))
}

fn finish(of: Summing, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let result = writes.first().ok_or("no results")?;
    let (data_type, channels) = (result.data_type(), result.element_count());
    let (shaders, operands, epsilon) = match of {
        Summing::BatchStatistics => {
            ([&shaders::FROM_SUMS_STATISTICS_F32, &shaders::FROM_SUMS_STATISTICS_F64], (1, 2), 0.0)
        }
        Summing::BatchGradient { epsilon, .. } => {
            ([&shaders::FROM_SUMS_GRADIENT_F32, &shaders::FROM_SUMS_GRADIENT_F64], (2, 2), epsilon)
        }
        // Losses are float32 alone.
        Summing::CrossEntropy { .. } | Summing::SquaredError if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_MEAN_F32; 2], (1, 1), 0.0)
        }
        Summing::LayerGradient { .. } if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_LAYER_F32; 2], (1, 2), 0.0)
        }
        Summing::Rows { .. } if data_type == DataType::Float32 => ([&shaders::FROM_SUMS_ROWS_F32; 2], (1, 1), 0.0),
        Summing::CrossEntropy { .. } | Summing::SquaredError | Summing::LayerGradient { .. } | Summing::Rows { .. } => {
            return Err(format!("data type {data_type} is not supported; cast to float32 first"))
        }
        Summing::Channels => ([&shaders::FROM_SUMS_CHANNELS_F32, &shaders::FROM_SUMS_CHANNELS_F64], (1, 1), 0.0),
    };
    if (reads.len(), writes.len()) != operands {
        return Err(format!("{} operands and {} results where {operands:?} are needed", reads.len(), writes.len()));
    }
    require_packed(&[&reads[0]], DataType::Float64, of.rows() * channels)?;
    let others: Vec<&TensorDesc> = reads[1..].iter().chain(writes).collect();
    require_packed(&others, data_type, channels)?;
    let groups = groups(channels.div_ceil(WORKGROUP_SIZE), gpu);
    let operands = (0..reads.len()).map(Operand::Read).chain((0..writes.len()).map(Operand::Write));
    Ok(Lowered::from(Dispatch {
        shader: for_type(data_type, shaders)?,
        constants: Vec::new(),
        bindings: bindings(operands),
        parameters: vec![groups[0], channels as u32, epsilon.to_bits()],
        groups,
    }))
}
