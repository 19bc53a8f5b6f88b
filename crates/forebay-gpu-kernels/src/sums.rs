//! Sums over positions, computed in parts, and the results that follow from them.

use forebay_base::kernel::{Summing, check_group_size};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::channels::{Settings, is_relu, squares, sum_channels};
use super::operands::{bindings, exactly, for_type, format_of, require_packed};
use super::shaders;
use super::strided_layout::strided_layouts;
use super::teams::WORKGROUP_SIZE;
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, loss, normalization, rows, unsupported};

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = match *kernel {
        Kernel::Sums { of } => sums(of, reads, writes, gpu),
        Kernel::AddSums { of } => add(of, reads, writes, gpu),
        Kernel::FromSums { of } => finish(of, reads, writes, gpu),
        _ => Err("not a sum".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

fn sums(of: Summing, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    match of {
        Summing::CrossEntropy { axis, ignore_index } => return loss::sums(axis, ignore_index, reads, writes, gpu),
        Summing::LayerGradient { axis } => return normalization::layer_sums(axis, reads, writes, gpu),
        Summing::Rows { axes } => return rows::sums(axes, reads, writes, gpu),
        _ => {}
    }
    let [sums] = exactly(writes, "results")?;
    let x = reads.get(usize::from(reads.len() > 1)).ok_or("nothing to sum")?;
    let channels = if of == Summing::SquaredError { 1 } else { x.sizes().get(1).copied().unwrap_or(1) };
    let mut data_type = x.data_type();
    require_packed(&[sums], DataType::Float64, of.rows() * channels)?;
    let mut settings = Settings::default();
    let (shaders, [x, dy]) = match of {
        Summing::BatchStatistics { .. } => {
            let [x] = exactly(reads, "operands")?;
            settings = Settings {
                statistics: true,
                formats: Some([x, x].map(|desc| format_of(desc.data_type()))),
                ..settings
            };
            data_type = data_type.computed_in();
            ([&shaders::SUMS_STATISTICS_F32, &shaders::SUMS_STATISTICS_F64], strided_layouts([x, x])?)
        }
        Summing::BatchGradient { epsilon, activation } => {
            let [dy, x, parameters @ ..] = exactly::<6>(reads, "operands")?;
            data_type = data_type.computed_in();
            require_packed(&parameters, data_type, channels)?;
            if dy.data_type().computed_in() != data_type {
                return Err(format!("{dy} must be computed in {data_type}, like {x}"));
            }
            let formats = Some([x, dy].map(|desc| format_of(desc.data_type())));
            settings = Settings { epsilon, relu: is_relu(activation)?, formats, ..settings };
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
    Ok(sum_channels(for_type(data_type, shaders)?, x, dy, settings, reads.len(), gpu))
}

fn add(of: Summing, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let ([earlier, later], [sums]) = (exactly(reads, "operands")?, exactly(writes, "results")?);
    if sums.sizes().len() > 2 {
        // Only runs of many processes add several tables at once, and GPUs do not take part in these.
        return Err("several tables of sums".into());
    }
    let channels = sums.element_count() / of.rows();
    require_packed(&[earlier, later, sums], DataType::Float64, of.rows() * channels)?;
    let shader = match of {
        Summing::BatchStatistics { .. } => &shaders::ADD_SUMS_STATISTICS,
        Summing::Rows { .. } => &shaders::ADD_SUMS_ROWS,
        Summing::LayerGradient { .. } => &shaders::ADD_SUMS_LAYER,
        Summing::BatchGradient { .. } | Summing::CrossEntropy { .. } | Summing::SquaredError | Summing::Channels => {
            &shaders::ADD_SUMS
        }
    };
    let groups = groups(channels.div_ceil(WORKGROUP_SIZE), gpu);
    Ok(Lowered::from(Dispatch {
        shader,
        constants: Vec::new(),
        bindings: bindings([Operand::Read(0), Operand::Read(1), Operand::Write(0)]),
        parameters: vec![groups[0], channels as u32, of.rows() as u32],
        groups,
    }))
}

pub(super) fn finish(
    of: Summing,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let result = writes.first().ok_or("no results")?;
    let (data_type, channels) = (result.data_type(), result.element_count());
    let mut of_group = 1u64;
    let (shaders, operands, epsilon) = match of {
        Summing::BatchStatistics { group_size } => {
            check_group_size(channels, group_size)?;
            of_group = group_size;
            ([&shaders::FROM_SUMS_STATISTICS_F32, &shaders::FROM_SUMS_STATISTICS_F64], (1, 2), 0.0)
        }
        Summing::BatchGradient { epsilon, .. } => {
            ([&shaders::FROM_SUMS_GRADIENT_F32, &shaders::FROM_SUMS_GRADIENT_F64], (2, 2), epsilon)
        }
        // Losses can only be float32.
        Summing::CrossEntropy { .. } | Summing::SquaredError if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_MEAN_F32; 2], (1, 1), 0.0)
        }
        Summing::LayerGradient { .. } if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_LAYER_F32; 2], (1, 2), 0.0)
        }
        Summing::Rows { .. } if data_type == DataType::Float32 => ([&shaders::FROM_SUMS_ROWS_F32; 2], (1, 1), 0.0),
        Summing::CrossEntropy { .. } | Summing::SquaredError | Summing::LayerGradient { .. } | Summing::Rows { .. } => {
            return Err(format!("data type {data_type} is not supported; cast to float32 first"));
        }
        Summing::Channels => ([&shaders::FROM_SUMS_CHANNELS_F32, &shaders::FROM_SUMS_CHANNELS_F64], (1, 1), 0.0),
    };
    if (reads.len(), writes.len()) != operands {
        return Err(format!("found {} operands and {} results, expected {operands:?}", reads.len(), writes.len()));
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
        parameters: vec![groups[0], channels as u32, epsilon.to_bits(), of_group as u32],
        groups,
    }))
}
