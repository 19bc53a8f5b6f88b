//! Normalization by statistics of a batch or of a row.

use std::ops::Range;

use forebay_base::kernel::{Activation, Summing, check_group_size};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::channels::{are_shared, is_relu};
use super::operands::{BINDING_ALIGNMENT_BYTES, bindings, exactly, for_type, format_of, require_packed};
use super::parts::{Beginning, Rows, parts};
use super::rows::RowGroups;
use super::shaders::{self, Shader};
use super::strided_layout::{StridedLayout, strided_layouts};
use super::teams::{WORKGROUP_SIZE, team_of, team_words};
use super::{Bound, Dispatch, Lowered, Operand, Target, Unsupported, groups, lower_by_family, unsupported};

/// The number of elements of x that a workgroup normalizes if workgroups share channels.
const GROUP_ELEMENTS: u64 = WORKGROUP_SIZE * 8;
/// With at least this many contiguous elements of a channel, each workgroup has a single channel.
const RUN_ELEMENTS: u64 = 32;
/// The number of elements from which on a channel has a large workgroup, the invocations of such a workgroup, and the bytes that they
/// share: one pair of float64 each, and twice that for each chunk and each pending sum.
const WIDE_SAMPLES: u64 = 32_768;
const WIDE_WORKGROUP_SIZE: u32 = 1024;
const WIDE_SHARED_BYTES: u32 = WIDE_WORKGROUP_SIZE * 16 + (WIDE_WORKGROUP_SIZE / 64 + 34) * 32;
/// The bytes of the sums that a workgroup of a layer's gradient has for each position in a row.
const LAYER_SUM_BYTES: u64 = 8;

/// The operand that is normalized, and the first result.
const X: Operand = Operand::Read(0);
const RESULT: Operand = Operand::Write(0);

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let batch = |epsilon, activation, group_size| {
        is_relu(activation).map(|relu| Batch { epsilon, activation, relu, group_size, gpu })
    };
    let lowered = match *kernel {
        Kernel::BatchNormalization { epsilon, activation } => {
            batch(epsilon, activation, 1).and_then(|batch| batch.inference(reads, writes))
        }
        Kernel::BatchNormalizationTraining { epsilon, activation, group_size } => {
            batch(epsilon, activation, group_size).and_then(|batch| batch.training(reads, writes))
        }
        Kernel::BatchNormalizationGradient { epsilon, activation, group_size } => {
            batch(epsilon, activation, group_size).and_then(|batch| batch.gradient(reads, writes))
        }
        Kernel::RunningStatistics { momentum, correction } => {
            running_statistics(momentum, correction, reads, writes, gpu)
        }
        Kernel::LayerNormalization { axis, epsilon } => layer(axis, epsilon, reads, writes, gpu),
        Kernel::LayerNormalizationGradient { axis } => layer_gradient(axis, reads, writes, gpu),
        _ => Err("not a normalization".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

/// Batch normalization.
struct Batch<'a> {
    epsilon: f32,
    activation: Activation,
    /// The activation, as returned by [`is_relu`].
    relu: u32,
    /// The number of channels that share statistics.
    group_size: u64,
    gpu: &'a Target,
}

impl Batch<'_> {
    fn inference(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let [x, parameters @ ..] = exactly::<5>(reads, "operands")?;
        let [y] = exactly(writes, "results")?;
        require_per_channel(x, &parameters)?;
        self.by_element(&NORMALIZATION, [(X, x), (RESULT, y), (X, x)], all((5, 1)))
    }

    fn training(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let [x, scale, bias] = exactly(reads, "operands")?;
        let [y, mean, variance] = exactly(writes, "results")?;
        require_per_channel(x, &[scale, bias, mean, variance])?;
        if self.group_size != 1 || are_shared(&StridedLayout::of(x)?) || y.data_type().is_sixteen_bit() {
            // The same as inference, with the statistics that have just been written.
            let of = [X, Operand::Read(1), Operand::Read(2), Operand::Write(1), Operand::Write(2), RESULT];
            let normalized = self.by_element(&NORMALIZATION, [(X, x), (RESULT, y), (X, x)], bindings(of))?;
            return self.after_sums(
                Summing::BatchStatistics { group_size: self.group_size },
                &reads[..1],
                &writes[1..],
                normalized,
            );
        }
        let shaders = [&shaders::BATCH_TRAINING_F32, &shaders::BATCH_TRAINING_F64, &shaders::BATCH_TRAINING_WIDE_F32];
        self.by_channel(shaders, [(X, x), (RESULT, y), (X, x)], (3, 3))
    }

    fn gradient(&self, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Lowered, String> {
        let (own, sums) = reads.split_at(reads.len().min(6));
        let [dy, x, parameters @ ..] = exactly::<6>(own, "operands")?;
        require_per_channel(x, &parameters)?;
        if let [sums] = sums {
            let [dx] = exactly(writes, "results")?;
            require_packed(&[sums], DataType::Float64, 3 * x.sizes()[1])?;
            let tensors = [(Operand::Read(1), x), (RESULT, dx), (Operand::Read(0), dy)];
            return self.gradient_with_sums(Operand::Read(6), 0, tensors);
        }
        let [dx, dscale, dbias] = exactly(writes, "results")?;
        require_per_channel(x, &[dscale, dbias])?;
        if self.group_size != 1 || are_shared(&StridedLayout::of(x)?) || dx.data_type().is_sixteen_bit() {
            let tensors = [(Operand::Read(1), x), (RESULT, dx), (Operand::Read(0), dy)];
            let gradient = self.gradient_with_sums(Operand::Between, sums_bytes(3, x.sizes()[1]), tensors)?;
            let of = Summing::BatchGradient { epsilon: self.epsilon, activation: self.activation };
            return self.after_sums(of, reads, &writes[1..], gradient);
        }
        let shaders = [&shaders::BATCH_GRADIENT_F32, &shaders::BATCH_GRADIENT_F64, &shaders::BATCH_GRADIENT_WIDE_F32];
        self.by_channel(shaders, [(Operand::Read(1), x), (RESULT, dx), (Operand::Read(0), dy)], (6, 3))
    }

    /// Lowers the gradient with respect to x if `sums` has the complete sums; `tensors` are x, the result and dy. The sums of groups are
    /// first added in the workspace, from byte `offset_bytes` on.
    fn gradient_with_sums(
        &self,
        sums: Operand,
        offset_bytes: u64,
        tensors: [(Operand, &TensorDesc); 3],
    ) -> Result<Lowered, String> {
        let reads = (0..6).map(Operand::Read);
        if self.group_size == 1 {
            return self.by_element(&GRADIENT_WITH_SUMS, tensors, bindings(reads.chain([sums, RESULT])));
        }
        let x = tensors[0].1;
        let channels = x.sizes().get(1).copied().unwrap_or(1);
        check_group_size(channels, self.group_size)?;
        let groups = groups(channels.div_ceil(WORKGROUP_SIZE), self.gpu);
        let shaders = [&shaders::GROUP_SUMS_F32, &shaders::GROUP_SUMS_F64];
        let group_sums = Bound { operand: Operand::Between, offset_bytes, size_bytes: None };
        let of_groups = Dispatch {
            shader: for_type(x.data_type().computed_in(), shaders)?,
            constants: Vec::new(),
            bindings: [sums, Operand::Read(2)].map(Bound::from).into_iter().chain([group_sums]).collect(),
            parameters: vec![groups[0], channels as u32, self.group_size as u32],
            groups,
        };
        let of_elements = reads.map(Bound::from).chain([group_sums, Bound::from(RESULT)]).collect();
        let elements = self.by_element(&GRADIENT_WITH_SUMS, tensors, of_elements)?;
        let dispatches = [vec![of_groups], elements.dispatches].concat();
        Ok(Lowered { dispatches, ordered: true, workspace_bytes: offset_bytes + sums_bytes(3, channels) })
    }

    /// Computes sums in the workspace, then the results that follow from them, and then the elements, in the same way as parts of a kernel
    /// would, so that the bits are the same. `parameters` are the results that follow from the sums: all but the first.
    fn after_sums(
        &self,
        of: Summing,
        reads: &[TensorDesc],
        parameters: &[TensorDesc],
        elements: Lowered,
    ) -> Result<Lowered, String> {
        let sums = TensorDesc::packed(DataType::Float64, &[of.rows(), parameters[0].element_count()]);
        let sums = [sums.map_err(|error| error.to_string())?];
        let lowered = |kernel: Kernel, reads: &[TensorDesc], writes: &[TensorDesc]| {
            lower_by_family(&kernel, reads, writes, self.gpu).map_err(|refused| refused.reason)
        };
        let mut summed = lowered(Kernel::Sums { of }, reads, &sums)?;
        let sums_bytes = sums_bytes(of.rows(), parameters[0].element_count());
        for bound in summed.dispatches.iter_mut().flat_map(|dispatch| &mut dispatch.bindings) {
            match bound.operand {
                Operand::Write(_) => bound.operand = Operand::Between,
                Operand::Workspace => bound.offset_bytes += sums_bytes,
                _ => {}
            }
        }
        // A gradient's parameters need the variance, the last of its operands.
        let variance = matches!(of, Summing::BatchGradient { .. }).then(|| reads[5].clone());
        let finished_reads: Vec<TensorDesc> = sums.into_iter().chain(variance).collect();
        let mut finished = lowered(Kernel::FromSums { of }, &finished_reads, parameters)?;
        for bound in finished.dispatches.iter_mut().flat_map(|dispatch| &mut dispatch.bindings) {
            bound.operand = match bound.operand {
                Operand::Read(0) => Operand::Between,
                Operand::Read(_) => Operand::Read(5),
                Operand::Write(number) => Operand::Write(number + 1),
                other => other,
            };
        }
        let dispatches = [summed.dispatches, finished.dispatches, elements.dispatches].concat();
        let workspace_bytes = elements.workspace_bytes.max(sums_bytes + summed.workspace_bytes);
        Ok(Lowered { dispatches, ordered: true, workspace_bytes })
    }

    /// Returns the dispatch in which each workgroup has one channel; workgroups are large if channels are. `shaders` are for float32,
    /// float64, and large workgroups of float32; `counts` are the numbers of reads and writes.
    fn by_channel(
        &self,
        shaders: [&'static Shader; 3],
        tensors: [(Operand, &TensorDesc); 3],
        counts: (usize, usize),
    ) -> Result<Lowered, String> {
        let strided_layouts = strided_layouts(tensors.map(|(_, desc)| desc))?;
        let [float32, float64, wide] = shaders;
        let is_wide = strided_layouts[0].samples() >= WIDE_SAMPLES
            && self.gpu.invocations_max >= WIDE_WORKGROUP_SIZE
            && self.gpu.shared_bytes >= WIDE_SHARED_BYTES;
        let shader = for_type(tensors[0].1.data_type().computed_in(), [if is_wide { wide } else { float32 }, float64])?;
        let channels = strided_layouts[0].channels;
        let formats = formats_of(&tensors);
        Ok(Lowered::from(self.dispatch((shader, formats), &strided_layouts, false, channels, all(counts))))
    }

    /// Returns the dispatches in which workgroups share channels and elements are independent of each other; `tensors` are x, the result
    /// and dy.
    fn by_element(
        &self,
        shaders: &ByResult,
        tensors: [(Operand, &TensorDesc); 3],
        bindings: Vec<Bound>,
    ) -> Result<Lowered, String> {
        let strided_layouts = strided_layouts(tensors.map(|(_, desc)| desc))?;
        let shader = shaders.of(tensors.map(|(_, desc)| desc.data_type()))?;
        let formats = formats_of(&tensors);
        let rows = strided_layouts[0].slabs();
        let mut slabs: Vec<Rows> = Vec::new();
        let is_large = |(_, desc): &(Operand, &TensorDesc)| desc.total_size_bytes() > self.gpu.binding_bytes_max;
        if tensors.iter().any(is_large) && strided_layouts.iter().all(StridedLayout::is_cuttable) {
            for (&(operand, desc), own) in tensors.iter().zip(&strided_layouts) {
                slabs.push(Rows { operand, row_bytes: own.slab_stride() * desc.data_type().size_bytes() });
            }
        }
        let parts = parts(&slabs, rows, Beginning::Anywhere, self.gpu);
        let dispatch = |part: &Range<u64>| {
            let mut own = strided_layouts.map(|strided_layout| strided_layout.with_slabs(part.end - part.start));
            for ((strided_layout, slab), (_, desc)) in own.iter_mut().zip(&slabs).zip(&tensors) {
                strided_layout.first = slab.before(part) / desc.data_type().size_bytes();
            }
            let seamless = own.iter().all(StridedLayout::is_seamless);
            let run = if seamless { own[0].rows * own[0].places } else { own[0].places };
            let mixed = run < RUN_ELEMENTS;
            let count = if mixed {
                own[0].elements().div_ceil(GROUP_ELEMENTS)
            } else {
                own[0].samples().div_ceil(GROUP_ELEMENTS) * own[0].channels
            };
            let mut bindings = bindings.clone();
            for slab in &slabs {
                let bound = slab.bound(part, rows);
                bindings.iter_mut().filter(|other| other.operand == slab.operand).for_each(|other| *other = bound);
            }
            self.dispatch((shader, formats.clone()), &own, mixed, count, bindings)
        };
        Ok(Lowered::from(parts.iter().map(dispatch).collect::<Vec<_>>()))
    }

    /// Returns the dispatch of a shader with its constants, in `count` workgroups; `strided_layouts` are those of x, the result and dy.
    fn dispatch(
        &self,
        (shader, constants): (&'static Shader, Vec<u32>),
        strided_layouts: &[StridedLayout; 3],
        mixed: bool,
        count: u64,
        bindings: Vec<Bound>,
    ) -> Dispatch {
        let groups = groups(count, self.gpu);
        let mut parameters =
            vec![groups[0], count as u32, GROUP_ELEMENTS as u32, u32::from(mixed), self.epsilon.to_bits(), self.relu];
        parameters.push(u32::from(self.group_size != 1));
        parameters.extend(strided_layouts[0].positions(strided_layouts.iter().all(StridedLayout::is_seamless)));
        strided_layouts.iter().for_each(|strided_layout| parameters.extend(strided_layout.words()));
        Dispatch { shader, constants, bindings, parameters, groups }
    }
}

/// Shaders that differ in the type of their result.
struct ByResult {
    float32: &'static Shader,
    float16: &'static Shader,
    bfloat16: &'static Shader,
    float64: &'static Shader,
}

const NORMALIZATION: ByResult = ByResult {
    float32: &shaders::BATCH_NORMALIZATION_F32,
    float16: &shaders::BATCH_NORMALIZATION_TO_F16,
    bfloat16: &shaders::BATCH_NORMALIZATION_TO_BF16,
    float64: &shaders::BATCH_NORMALIZATION_F64,
};

const GRADIENT_WITH_SUMS: ByResult = ByResult {
    float32: &shaders::BATCH_GRADIENT_WITH_SUMS_F32,
    float16: &shaders::BATCH_GRADIENT_WITH_SUMS_TO_F16,
    bfloat16: &shaders::BATCH_GRADIENT_WITH_SUMS_TO_BF16,
    float64: &shaders::BATCH_GRADIENT_WITH_SUMS_F64,
};

impl ByResult {
    /// Returns the shader for the types of x, the result and dy.
    ///
    /// # Errors
    /// If these are not computed in the same type.
    fn of(&self, [x, result, dy]: [DataType; 3]) -> Result<&'static Shader, String> {
        let computed = x.computed_in();
        if let Some(other) = [result, dy].into_iter().find(|&other| other.computed_in() != computed) {
            return Err(format!("x is {x}, but another operand is {other}; cast one first"));
        }
        let float32 = match result {
            DataType::Float16 => self.float16,
            DataType::BFloat16 => self.bfloat16,
            _ => self.float32,
        };
        for_type(computed, [float32, self.float64])
    }
}

/// Returns how x and dy are stored, as constants of `batch_operands.slang`, for x, the result and dy.
fn formats_of([(_, x), _, (_, dy)]: &[(Operand, &TensorDesc); 3]) -> Vec<u32> {
    [x, dy].map(|desc| format_of(desc.data_type())).to_vec()
}

/// Returns the bytes of a table of sums in the workspace.
fn sums_bytes(rows: u64, channels: u64) -> u64 {
    (8 * rows * channels).next_multiple_of(BINDING_ALIGNMENT_BYTES)
}

/// Returns the bindings of all operands.
fn all((reads, writes): (usize, usize)) -> Vec<Bound> {
    bindings((0..reads).map(Operand::Read).chain((0..writes).map(Operand::Write)))
}

/// # Errors
/// If an operand does not have one element per channel of x.
fn require_per_channel(x: &TensorDesc, others: &[&TensorDesc]) -> Result<(), String> {
    require_packed(others, x.data_type().computed_in(), x.sizes().get(1).copied().unwrap_or(1))
}

fn running_statistics(
    momentum: f32,
    correction: f32,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [running, batch] = exactly(reads, "operands")?;
    let [updated] = exactly(writes, "results")?;
    let channels = running.element_count();
    require_packed(&[running, batch, updated], running.data_type(), channels)?;
    let groups = groups(channels.div_ceil(WORKGROUP_SIZE), gpu);
    let shaders = [&shaders::RUNNING_STATISTICS_F32, &shaders::RUNNING_STATISTICS_F64];
    Ok(Lowered::from(Dispatch {
        shader: for_type(running.data_type(), shaders)?,
        constants: Vec::new(),
        bindings: bindings([Operand::Read(0), Operand::Read(1), Operand::Write(0)]),
        parameters: vec![groups[0], channels as u32, momentum.to_bits(), correction.to_bits()],
        groups,
    }))
}

/// Returns the number of rows and their length if x is normalized from this axis on.
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
    gpu: &Target,
) -> Result<Lowered, String> {
    if !(2..=3).contains(&reads.len()) || ![1, 3].contains(&writes.len()) {
        let (reads, writes) = (reads.len(), writes.len());
        return Err(format!(
            "found {reads} operands and {writes} results, expected 2 or 3 operands and 1 or 3 results"
        ));
    }
    let (rows, length) = rows_of(axis, &reads[0])?;
    require_packed(&[&reads[0], &writes[0]], DataType::Float32, rows * length)?;
    require_packed(&reads[1..].iter().collect::<Vec<_>>(), DataType::Float32, length)?;
    require_packed(&writes[1..].iter().collect::<Vec<_>>(), DataType::Float32, rows)?;
    let team = team_of(length);
    let (biased, keeps) = (reads.len() == 3, writes.len() == 3);
    let bias = Operand::Read(if biased { 2 } else { 1 });
    // All bindings of a shader must be bound, even those that it does not use here.
    let kept = |write| if keeps { (Operand::Write(write), 4) } else { (RESULT, 4 * length) };
    let slabs = [(X, 4 * length), (RESULT, 4 * length), kept(1), kept(2)]
        .map(|(operand, row_bytes)| Rows { operand, row_bytes });
    let dispatch = |part: &Range<u64>| {
        let own = part.end - part.start;
        let groups = groups(own.div_ceil(WORKGROUP_SIZE / team), gpu);
        let [x, y, mean, inverse] = slabs.map(|slab| slab.bound(part, rows));
        Dispatch {
            shader: &shaders::LAYER_NORMALIZATION_F32,
            constants: Vec::new(),
            bindings: vec![x, Bound::from(Operand::Read(1)), Bound::from(bias), y, mean, inverse],
            parameters: [
                team_words(groups, team, false).to_vec(),
                vec![own as u32, length as u32, epsilon.to_bits(), u32::from(biased), u32::from(keeps)],
            ]
            .concat(),
            groups,
        }
    };
    let dispatches: Vec<_> = parts(&slabs, rows, Beginning::Aligned, gpu).iter().map(dispatch).collect();
    Ok(Lowered::from(dispatches))
}

fn layer_gradient(axis: usize, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let [dy, x, scale, mean, inverse] = exactly(reads, "operands")?;
    let (dx, parameters) = writes.split_first().ok_or("no results")?;
    if ![0, 2].contains(&parameters.len()) {
        return Err(format!("{} results", writes.len()));
    }
    let (rows, length) = rows_of(axis, x)?;
    require_packed(&[dy, x, dx], DataType::Float32, rows * length)?;
    require_packed(&[mean, inverse], DataType::Float32, rows)?;
    require_packed(&[scale].into_iter().chain(parameters).collect::<Vec<_>>(), DataType::Float32, length)?;
    let is_summed = !parameters.is_empty();
    // All bindings of a shader must be bound, even those that it does not use here.
    let (results, workspace) = if is_summed { ([0, 1, 2], Operand::Workspace) } else { ([0; 3], Operand::Counter) };
    let operands = (0..5).map(Operand::Read).chain(results.map(Operand::Write)).chain([workspace, Operand::Counter]);
    Ok(layer_rows(&shaders::LAYER_GRADIENT_F32, [rows, length], is_summed, bindings(operands), gpu))
}

/// Lowers the sums over rows from which dscale and dbias are computed.
pub(super) fn layer_sums(
    axis: usize,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let ([dy, x, mean, inverse], [sums]) = (exactly(reads, "operands")?, exactly(writes, "results")?);
    let (rows, length) = rows_of(axis, x)?;
    require_packed(&[dy, x], DataType::Float32, rows * length)?;
    require_packed(&[mean, inverse], DataType::Float32, rows)?;
    require_packed(&[sums], DataType::Float64, 2 * length)?;
    let reads = [0, 1, 2, 3].map(Operand::Read);
    let operands = reads.into_iter().chain([Operand::Write(0), Operand::Workspace, Operand::Counter]);
    Ok(layer_rows(&shaders::LAYER_SUMS_F32, [rows, length], true, bindings(operands), gpu))
}

/// Returns the dispatch in which each workgroup has some reduction blocks of rows; `is_summed` says whether it computes sums.
fn layer_rows(
    shader: &'static Shader,
    [rows, length]: [u64; 2],
    is_summed: bool,
    bindings: Vec<Bound>,
    gpu: &Target,
) -> Lowered {
    let RowGroups { block_rows, group_blocks, count } = RowGroups::of(rows, length);
    let groups = groups(count, gpu);
    let own = [count, rows, length, block_rows, group_blocks, u64::from(is_summed)].map(|word| word as u32);
    let parameters = team_words(groups, team_of(length), false).into_iter().chain(own).collect();
    let dispatch = Dispatch { shader, constants: Vec::new(), bindings, parameters, groups };
    let workspace_bytes = if is_summed { count * length * LAYER_SUM_BYTES } else { 0 };
    Lowered { workspace_bytes, ..Lowered::from(dispatch) }
}
