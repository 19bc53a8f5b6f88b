//! Losses, each a mean over the batch, and their gradients.

use std::ops::Range;

use forebay_base::kernel::reduction_block_of_losses;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::channels::mean_squares;
use super::operands::{bindings, exactly, index_words, require_packed, require_type};
use super::parts::{Beginning, Rows, parts};
use super::shaders::{self, Shader};
use super::strided_layout::StridedLayout;
use super::teams::{WORKGROUP_SIZE, team_of, team_words};
use super::{Bound, Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// The bytes of a loss and a count: two float64.
const LOSS_BYTES: u64 = 16;
/// The number of elements per workgroup if they are independent of each other.
const GROUP_ELEMENTS: u64 = WORKGROUP_SIZE * 8;
/// The maximum number of workgroups that each count all labels: a fixed number, and some for each class.
const COUNTING_GROUPS: u64 = 16;
const COUNTING_GROUPS_PER_CLASS: u64 = 4;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = match *kernel {
        Kernel::SoftmaxCrossEntropy { axis, ignore_index } => cross_entropy(axis, ignore_index, reads, writes, gpu),
        Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index } => {
            cross_entropy_gradient(axis, ignore_index, reads, writes, gpu)
        }
        Kernel::MeanSquaredError => squared_error(reads, writes, gpu),
        Kernel::MeanSquaredErrorGradient => squared_error_gradient(reads, writes, gpu),
        _ => Err("not a loss kernel".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

fn squared_error(reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let [loss] = exactly(writes, "results")?;
    require_packed(&[loss], DataType::Float32, 1)?;
    mean_squares(reads, gpu)
}

fn squared_error_gradient(reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let (own, sums) = reads.split_at(reads.len().min(3));
    let [dloss, prediction, target] = exactly(own, "operands")?;
    let [dprediction] = exactly(writes, "results")?;
    let elements = prediction.element_count();
    require_packed(&[dloss], DataType::Float32, 1)?;
    require_packed(&[prediction, target, dprediction], DataType::Float32, elements)?;
    let shader = match sums {
        [] => &shaders::SQUARED_ERROR_GRADIENT_F32,
        [sums] => {
            require_packed(&[sums], DataType::Float64, 2)?;
            &shaders::SQUARED_ERROR_GRADIENT_WITH_SUMS_F32
        }
        _ => return Err(format!("{} operands", reads.len())),
    };
    let slabs = [Operand::Read(1), Operand::Read(2), Operand::Write(0)].map(|operand| Rows { operand, row_bytes: 4 });
    let dispatch = |part: &Range<u64>| {
        let own = part.end - part.start;
        let groups = groups(own.div_ceil(GROUP_ELEMENTS), gpu);
        let [prediction, target, result] = slabs.map(|slab| slab.bound(part, elements));
        let sums = sums.iter().map(|_| Bound::from(Operand::Read(3)));
        let dloss = Bound::from(Operand::Read(0));
        Dispatch {
            shader,
            constants: Vec::new(),
            bindings: [dloss, prediction, target].into_iter().chain(sums).chain([result]).collect(),
            parameters: vec![groups[0], own as u32, GROUP_ELEMENTS as u32, (elements as f32).to_bits()],
            groups,
        }
    };
    let dispatches: Vec<_> = parts(&slabs, elements, Beginning::Aligned, gpu).iter().map(dispatch).collect();
    Ok(Lowered::from(dispatches))
}

/// How logits are laid out in memory: positions are images times rows times places.
#[derive(Clone, Copy)]
struct Layout {
    classes: u64,
    images: u64,
    rows: u64,
    places: u64,
    image_stride: u64,
    row_stride: u64,
    place_stride: u64,
    class_stride: u64,
}

impl Layout {
    /// # Errors
    /// If there is no such axis, or if no shader can read the layout of the logits.
    fn of(desc: &TensorDesc, axis: usize) -> Result<Layout, String> {
        require_type(&[desc], DataType::Float32)?;
        let sizes = desc.sizes();
        if axis >= sizes.len() {
            return Err(format!("{desc} has no class axis {axis}"));
        }
        let outer: u64 = sizes[..axis].iter().product();
        let inner: u64 = sizes[axis + 1..].iter().product();
        if axis == 1 && inner > 1 {
            let StridedLayout { images, channels, rows, places, image_stride, channel_stride, row_stride, .. } =
                StridedLayout::of(desc)?;
            let class_stride = channel_stride;
            return Ok(Layout {
                classes: channels,
                images,
                rows,
                places,
                image_stride,
                row_stride,
                place_stride: 1,
                class_stride,
            });
        }
        if !desc.is_packed() {
            return Err(format!("{desc} must be packed"));
        }
        let classes = sizes[axis];
        // With classes first, there are no images, and all positions form one row; with classes last, each image is a row.
        let images = if axis == 0 { 1 } else { sizes[0] };
        let rows = if inner == 1 { 1 } else { outer / images };
        let places = outer / images / rows * inner;
        Ok(Layout {
            classes,
            images,
            rows,
            places,
            image_stride: classes * rows * places,
            row_stride: classes * places,
            place_stride: if inner == 1 { classes } else { 1 },
            class_stride: inner,
        })
    }

    /// Returns the parameters of teams: neighboring invocations have neighboring positions if these are contiguous.
    fn team_words(&self, groups: [u32; 3]) -> [u32; 3] {
        team_words(groups, team_of(self.classes), self.place_stride == 1)
    }

    fn positions(&self) -> u64 {
        self.images * self.rows * self.places
    }

    /// Returns the number of positions of a chunk, of positions of the images in which it begins, of chunks in these images, and of all
    /// chunks.
    fn chunks(&self) -> [u64; 4] {
        let chunk = reduction_block_of_losses(self.classes, self.rows, self.places);
        let span = chunk.images * self.rows * self.places;
        let per_span = self.rows.div_ceil(chunk.rows);
        [chunk.images * chunk.rows * self.places, span, per_span, self.images.div_ceil(chunk.images) * per_span]
    }
}

/// Returns the parameters after those of teams, the number of workgroups first.
fn parameters(
    layout: &Layout,
    result: &Layout,
    ignore_index: Option<i64>,
    labels: &TensorDesc,
    groups: u64,
) -> Result<Vec<u32>, String> {
    let label_words = u64::from(index_words(labels, "labels")?);
    if !labels.is_packed() || labels.element_count() != layout.positions() || layout.classes > i32::MAX as u64 {
        return Err(format!(
            "labels {labels} do not match {} classes at {} positions",
            layout.classes,
            layout.positions()
        ));
    }
    let ignore = ignore_index.unwrap_or_default() as u64;
    let image_positions = layout.rows * layout.places;
    let words = [
        groups,
        layout.positions(),
        layout.classes,
        image_positions,
        layout.places,
        layout.place_stride,
        layout.class_stride,
        layout.image_stride,
        layout.row_stride,
        result.class_stride,
        result.image_stride,
        result.row_stride,
        label_words,
        u64::from(ignore_index.is_some()),
        ignore & u64::from(u32::MAX),
        ignore >> 32,
    ];
    Ok(words.into_iter().chain(layout.chunks()).map(|word| word as u32).collect())
}

/// Returns the dispatch that computes the loss or the sums of positions, whichever `shader` writes.
fn cross_entropy_dispatch(
    axis: usize,
    ignore_index: Option<i64>,
    shader: &'static Shader,
    reads: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [logits, labels] = exactly(reads, "operands")?;
    let layout = Layout::of(logits, axis)?;
    let team = team_of(layout.classes);
    let [.., chunks] = layout.chunks();
    // With few classes, a workgroup has a chunk; with many, it has some positions.
    let count = if team == 1 { chunks } else { layout.positions().div_ceil(WORKGROUP_SIZE / team) };
    let partial = if team == 1 { chunks } else { layout.positions() };
    let groups = groups(count, gpu);
    let mut words = layout.team_words(groups).to_vec();
    words.extend(parameters(&layout, &layout, ignore_index, labels, count)?);
    let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0), Operand::Workspace, Operand::Counter];
    let dispatch = Dispatch { shader, constants: Vec::new(), bindings: bindings(operands), parameters: words, groups };
    Ok(Lowered { workspace_bytes: partial * LOSS_BYTES, ..Lowered::from(dispatch) })
}

fn cross_entropy(
    axis: usize,
    ignore_index: Option<i64>,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [loss] = exactly(writes, "results")?;
    require_packed(&[loss], DataType::Float32, 1)?;
    cross_entropy_dispatch(axis, ignore_index, &shaders::CROSS_ENTROPY_F32, reads, gpu)
}

/// Lowers the sums of the losses of some positions.
pub(super) fn sums(
    axis: usize,
    ignore_index: Option<i64>,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [sums] = exactly(writes, "results")?;
    require_packed(&[sums], DataType::Float64, 2)?;
    cross_entropy_dispatch(axis, ignore_index, &shaders::CROSS_ENTROPY_SUMS_F32, reads, gpu)
}

fn cross_entropy_gradient(
    axis: usize,
    ignore_index: Option<i64>,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let (own, sums) = reads.split_at(reads.len().min(3));
    let [dloss, logits, labels] = exactly(own, "operands")?;
    let [dlogits] = exactly(writes, "results")?;
    require_packed(&[dloss], DataType::Float32, 1)?;
    let (layout, result) = (Layout::of(logits, axis)?, Layout::of(dlogits, axis)?);
    if logits.sizes() != dlogits.sizes() {
        return Err(format!("{logits} and {dlogits} differ in size"));
    }
    let shader = match sums {
        [] => &shaders::CROSS_ENTROPY_GRADIENT_F32,
        [sums] => {
            require_packed(&[sums], DataType::Float64, 2)?;
            &shaders::CROSS_ENTROPY_GRADIENT_WITH_SUMS_F32
        }
        _ => return Err(format!("{} operands", reads.len())),
    };
    let team = team_of(layout.classes);
    let mut count = layout.positions().div_ceil(WORKGROUP_SIZE / team);
    if ignore_index.is_some() && sums.is_empty() {
        count = count.min(COUNTING_GROUPS + COUNTING_GROUPS_PER_CLASS * layout.classes);
    }
    let groups = groups(count, gpu);
    let mut words = layout.team_words(groups).to_vec();
    words.extend(parameters(&layout, &result, ignore_index, labels, count)?);
    Ok(Lowered::from(Dispatch {
        shader,
        constants: Vec::new(),
        bindings: bindings((0..reads.len()).map(Operand::Read).chain([Operand::Write(0)])),
        parameters: words,
        groups,
    }))
}
