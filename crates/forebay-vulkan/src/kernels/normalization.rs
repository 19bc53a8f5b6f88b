//! Normalisation by statistics of a batch or of a row.

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::lattice::{lattices, Lattice};
use super::operands::{exactly, require_packed, require_reachable};
use super::reduce::{team_of, team_words};
use super::shaders::{self, Shader};
use super::sums::{bindings, for_type, is_rectified, LANES};
use super::{groups, unsupported, Dispatch, Lowered, Offer, Operand};

/// Elements of x that a workgroup normalises, where workgroups share channels.
const GROUP_ELEMENTS: u64 = LANES * 8;
/// Elements that a workgroup of a layer's gradient has, about, and the rows that it has at least: its sums are as long as a
/// row, and small beside the rows.
const LAYER_ELEMENTS: u64 = 16_384;
const LAYER_ROWS: u64 = 32;

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, DeviceError> {
    let lowered =
        require_reachable(reads, offer).and_then(|()| require_reachable(writes, offer)).and_then(|()| match *kernel {
            Kernel::BatchNormalization { epsilon, activation } => {
                Batch { epsilon, activation, offer }.inference(reads, writes)
            }
            Kernel::BatchNormalizationTraining { epsilon, activation } => {
                Batch { epsilon, activation, offer }.training(reads, writes)
            }
            Kernel::BatchNormalizationGradient { epsilon, activation } => {
                Batch { epsilon, activation, offer }.gradient(reads, writes)
            }
            Kernel::RunningStatistics { momentum, correction } => {
                running_statistics(momentum, correction, reads, writes, offer)
            }
            Kernel::LayerNormalization { axis, epsilon } => layer(axis, epsilon, reads, writes, offer),
            Kernel::LayerNormalizationGradient { axis } => layer_gradient(axis, reads, writes, offer),
            _ => Err("not a normalisation".into()),
        });
    lowered.map_err(|reason| unsupported(kernel, reason))
}

/// Batch normalisation.
struct Batch<'a> {
    epsilon: f32,
    activation: Activation,
    offer: &'a Offer,
}

impl Batch<'_> {
    fn inference(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let [x, parameters @ ..] = exactly::<5>(reads, "operands")?;
        let [y] = exactly(writes, "results")?;
        require_per_channel(x, &parameters)?;
        let shaders = [&shaders::BATCH_NORMALIZATION_F32, &shaders::BATCH_NORMALIZATION_F64];
        self.dispatch(shaders, x, [x, y, x], (5, 1), true)
    }

    fn training(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let [x, scale, bias] = exactly(reads, "operands")?;
        let [y, mean, variance] = exactly(writes, "results")?;
        require_per_channel(x, &[scale, bias, mean, variance])?;
        let shaders = [&shaders::BATCH_TRAINING_F32, &shaders::BATCH_TRAINING_F64];
        self.dispatch(shaders, x, [x, y, x], (3, 3), false)
    }

    fn gradient(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let (own, sums) = reads.split_at(reads.len().min(6));
        let [dy, x, parameters @ ..] = exactly::<6>(own, "operands")?;
        require_per_channel(x, &parameters)?;
        if let [sums] = sums {
            let [dx] = exactly(writes, "results")?;
            require_packed(&[sums], DataType::Float64, 3 * x.sizes()[1])?;
            let shaders = [&shaders::BATCH_GRADIENT_WITH_SUMS_F32, &shaders::BATCH_GRADIENT_WITH_SUMS_F64];
            return self.dispatch(shaders, x, [x, dx, dy], (7, 1), true);
        }
        let [dx, dscale, dbias] = exactly(writes, "results")?;
        require_per_channel(x, &[dscale, dbias])?;
        let shaders = [&shaders::BATCH_GRADIENT_F32, &shaders::BATCH_GRADIENT_F64];
        self.dispatch(shaders, x, [x, dx, dy], (6, 3), false)
    }

    /// The dispatch for x, the result and dy; `counts` are those of reads and writes. Where the statistics are `given`,
    /// workgroups share channels, else each has one.
    fn dispatch(
        &self,
        shaders: [&'static Shader; 2],
        x: &TensorDesc,
        operands: [&TensorDesc; 3],
        counts: (usize, usize),
        given: bool,
    ) -> Result<Lowered, String> {
        super::operands::require_type(&operands, x.data_type())?;
        let lattices = lattices(operands)?;
        let lattice = &lattices[0];
        let count = if given { lattice.elements().div_ceil(GROUP_ELEMENTS) } else { lattice.channels };
        let groups = groups(count, self.offer);
        let mut parameters =
            vec![groups[0], count as u32, GROUP_ELEMENTS as u32, self.epsilon.to_bits(), is_rectified(self.activation)];
        parameters.extend(lattice.positions(lattices.iter().all(Lattice::is_seamless)));
        lattices.iter().for_each(|lattice| parameters.extend(lattice.strides()));
        let operands = (0..counts.0).map(Operand::Read).chain((0..counts.1).map(Operand::Write));
        Ok(Lowered::from(Dispatch {
            shader: for_type(x.data_type(), shaders)?,
            constants: Vec::new(),
            bindings: bindings(operands),
            parameters,
            groups,
        }))
    }
}

/// # Errors
/// Where an operand does not have one element for each of x's channels.
fn require_per_channel(x: &TensorDesc, others: &[&TensorDesc]) -> Result<(), String> {
    require_packed(others, x.data_type(), x.sizes().get(1).copied().unwrap_or(1))
}

fn running_statistics(
    momentum: f32,
    correction: f32,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, String> {
    let [running, batch] = exactly(reads, "operands")?;
    let [updated] = exactly(writes, "results")?;
    let channels = running.element_count();
    require_packed(&[running, batch, updated], running.data_type(), channels)?;
    let groups = groups(channels.div_ceil(LANES), offer);
    let shaders = [&shaders::RUNNING_STATISTICS_F32, &shaders::RUNNING_STATISTICS_F64];
    Ok(Lowered::from(Dispatch {
        shader: for_type(running.data_type(), shaders)?,
        constants: Vec::new(),
        bindings: bindings([Operand::Read(0), Operand::Read(1), Operand::Write(0)]),
        parameters: vec![groups[0], channels as u32, momentum.to_bits(), correction.to_bits()],
        groups,
    }))
}

/// Rows and their length, where x is normalised from an axis on.
fn rows_of(axis: usize, x: &TensorDesc) -> Result<(u64, u64), String> {
    let sizes = x.sizes();
    if axis >= sizes.len() {
        return Err(format!("{x} has no axis {axis}"));
    }
    Ok((sizes[..axis].iter().product(), sizes[axis..].iter().product()))
}

fn layer(
    axis: usize,
    epsilon: f32,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, String> {
    if !(2..=3).contains(&reads.len()) || ![1, 3].contains(&writes.len()) {
        return Err(format!("{} operands and {} results", reads.len(), writes.len()));
    }
    let (rows, length) = rows_of(axis, &reads[0])?;
    require_packed(&[&reads[0], &writes[0]], DataType::Float32, rows * length)?;
    require_packed(&reads[1..].iter().collect::<Vec<_>>(), DataType::Float32, length)?;
    require_packed(&writes[1..].iter().collect::<Vec<_>>(), DataType::Float32, rows)?;
    let team = team_of(length);
    let groups = groups(rows.div_ceil(LANES / team), offer);
    let (biased, keeps) = (reads.len() == 3, writes.len() == 3);
    let bias = Operand::Read(if biased { 2 } else { 1 });
    let kept = |write| Operand::Write(if keeps { write } else { 0 });
    Ok(Lowered::from(Dispatch {
        shader: &shaders::LAYER_NORMALIZATION_F32,
        constants: Vec::new(),
        bindings: bindings([Operand::Read(0), Operand::Read(1), bias, Operand::Write(0), kept(1), kept(2)]),
        parameters: [
            team_words(groups, team, false).to_vec(),
            vec![rows as u32, length as u32, epsilon.to_bits(), u32::from(biased), u32::from(keeps)],
        ]
        .concat(),
        groups,
    }))
}

fn layer_gradient(axis: usize, reads: &[TensorDesc], writes: &[TensorDesc], offer: &Offer) -> Result<Lowered, String> {
    let [dy, x, scale, mean, inverse] = exactly(reads, "operands")?;
    let [dx, dscale, dbias] = exactly(writes, "results")?;
    let (rows, length) = rows_of(axis, x)?;
    require_packed(&[dy, x, dx], DataType::Float32, rows * length)?;
    require_packed(&[mean, inverse], DataType::Float32, rows)?;
    require_packed(&[scale, dscale, dbias], DataType::Float32, length)?;
    let group_rows = (LAYER_ELEMENTS / length).max(LAYER_ROWS).min(rows);
    let count = rows.div_ceil(group_rows);
    let groups = groups(count, offer);
    let results = (0..3).map(Operand::Write);
    let operands = (0..5).map(Operand::Read).chain(results).chain([Operand::Scratch, Operand::Counter]);
    let dispatch = Dispatch {
        shader: &shaders::LAYER_GRADIENT_F32,
        constants: Vec::new(),
        bindings: bindings(operands),
        parameters: [
            team_words(groups, team_of(length), false).to_vec(),
            vec![count as u32, rows as u32, length as u32, group_rows as u32],
        ]
        .concat(),
        groups,
    };
    Ok(Lowered { dispatches: vec![dispatch], scratch_bytes: count * length * 8 })
}
