//! Kernels that change the positions of elements, not their values. All but the gradient of a gather work for every data type: they move
//! 4-byte words, and 8-byte elements as two of them.

use forebay_base::kernel::{PadMode, ScatterOp};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::elements::{Elements, Kind, Layout, Task, bits_of, divisor};
use super::operands::{bindings, exactly, index_words};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, shaders, unsupported};

/// The number of dimensions in the table of `movement_pad.slang`: those of a tensor, and one more for elements of two words.
const PAD_DIMENSIONS: usize = 9;
/// The number of elements that a workgroup of `movement_gather_gradient.slang` or `movement_scatter.slang` computes.
const GRADIENT_ELEMENTS_PER_GROUP: u64 = 256 * 8;
/// The maximum number of indices that the workgroups of a dispatch read, each of which goes through all of them: a driver stops dispatches
/// that take seconds.
const INDEX_READS_MAX: u64 = 1 << 36;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let (x, y) = (&reads[0], &writes[0]);
    let dispatches = match kernel {
        Kernel::Copy => copy(x, y, gpu),
        Kernel::Slice { starts, steps } => slice(starts, steps, x, y, gpu),
        Kernel::SliceGradient { starts, steps } => slice_gradient(starts, steps, x, y, gpu),
        Kernel::Pad { begins, mode } => pad(begins, *mode, x, y, gpu),
        Kernel::Gather { axis } => gather(*axis, x, &reads[1], y, gpu),
        Kernel::GatherGradient { axis } => gather_gradient(*axis, x, &reads[1], y, gpu),
        Kernel::Scatter { op } => scatter(*op, reads, y, gpu),
        _ => Err("not a movement kernel".to_owned()),
    };
    let dispatches = dispatches.map_err(|reason| unsupported(kernel, reason))?;
    Ok(Lowered::from(dispatches))
}

fn moved(elements: Elements, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let task = Task { shader: &shaders::MOVEMENT_COPY, constants: Vec::new(), arguments: Vec::new() };
    elements.in_words().in_whole_words().dispatches(&task, gpu)
}

fn copy(x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    if x.sizes() != y.sizes() {
        return Err(format!("sizes {:?} and {:?} differ", x.sizes(), y.sizes()));
    }
    moved(Elements::of(std::slice::from_ref(x), y)?, gpu)
}

/// Checks that a slice stays within its tensor, and returns its steps, with 1 for dimensions in which only one index is taken.
fn slice_steps(starts: &[u64], steps: &[i64], whole: &TensorDesc, part: &TensorDesc) -> Result<Vec<i64>, String> {
    let (whole_sizes, part_sizes) = (whole.sizes(), part.sizes());
    if [starts.len(), steps.len(), part_sizes.len()].iter().any(|&count| count != whole_sizes.len()) {
        return Err(format!(
            "starts {starts:?}, steps {steps:?} and sizes {part_sizes:?} do not match {whole_sizes:?}"
        ));
    }
    let mut checked = Vec::with_capacity(steps.len());
    for (dimension, &size) in part_sizes.iter().enumerate() {
        let step = if size == 1 { 1 } else { steps[dimension] };
        let start = starts[dimension] as i128;
        let last = start + (size as i128 - 1) * step as i128;
        let inside = 0..whole_sizes[dimension] as i128;
        if !inside.contains(&start) || !inside.contains(&last) || step == 0 {
            return Err(format!("a slice from {start} to {last} exceeds dimension {dimension} of {whole}"));
        }
        checked.push(step);
    }
    Ok(checked)
}

fn slice(starts: &[u64], steps: &[i64], x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let steps = slice_steps(starts, steps, x, y)?;
    let mut taken = Layout::whole(Operand::Read(0), x, y.sizes()).in_part();
    for (dimension, stride) in x.effective_strides().into_iter().enumerate() {
        taken.first += starts[dimension] as i64 * stride as i64;
        taken.strides[dimension] = steps[dimension] * stride as i64;
    }
    let target = Layout::broadcast(Operand::Write(0), y, y.sizes())?;
    moved(Elements::new(y.sizes(), vec![taken, target]), gpu)
}

fn slice_gradient(
    starts: &[u64],
    steps: &[i64],
    dy: &TensorDesc,
    dx: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    let steps = slice_steps(starts, steps, dx, dy)?;
    let begins: Vec<i64> = starts.iter().map(|&start| start as i64).collect();
    around(PadMode::Constant(0.0).opcode(), 0, (&begins, &steps), dy, dx, gpu)
}

fn pad(begins: &[u64], mode: PadMode, x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let fits = begins.len() == x.sizes().len()
        && begins.len() == y.sizes().len()
        && (0..begins.len()).all(|d| begins[d].checked_add(x.sizes()[d]).is_some_and(|end| end <= y.sizes()[d]));
    if !fits {
        return Err(format!("{x} with {begins:?} before it does not fit in {y}"));
    }
    if !x.is_packed() {
        return Err(format!("{x} must be packed"));
    }
    let constant = match mode {
        PadMode::Constant(value) => bits_of(value as f64, x.data_type()),
        PadMode::Reflect | PadMode::Edge => 0,
    };
    let begins: Vec<i64> = begins.iter().map(|&begin| begin as i64).collect();
    around(mode.opcode(), constant, (&begins, &vec![1; begins.len()]), x, y, gpu)
}

/// Returns the dispatches that write a packed y around x: element 0 of x is at `begins`, and the next ones are `steps` further.
fn around(
    mode: u32,
    constant: u64,
    (begins, steps): (&[i64], &[i64]),
    x: &TensorDesc,
    y: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    require_numbered(y)?;
    let is_wide = x.data_type().size_bytes() == 8;
    let words = [constant as u32, if is_wide { (constant >> 32) as u32 } else { constant as u32 }];
    let scale = if is_wide { 2 } else { 1 };
    let mut rows = Vec::new();
    if is_wide {
        rows.push([&divisor(2)[..], &[0, 1, 2, 1]].concat());
    }
    for (dimension, stride) in x.effective_strides().into_iter().enumerate().rev() {
        let (begin, step) = (begins[dimension] as u32, steps[dimension] as u32);
        let [x_size, y_size] = [x, y].map(|desc| desc.sizes()[dimension] as u32);
        rows.push([&divisor(y_size)[..], &[begin, step, x_size, stride as u32 * scale]].concat());
    }
    let mut arguments = vec![words[0], words[1], rows.len() as u32];
    arguments.extend(rows.concat());
    arguments.resize(3 + PAD_DIMENSIONS * 7, 0);
    let layouts =
        vec![Layout::whole(Operand::Read(0), x, y.sizes()), Layout::broadcast(Operand::Write(0), y, y.sizes())?];
    let task = Task { shader: &shaders::MOVEMENT_PAD, constants: vec![mode], arguments };
    Elements::new(y.sizes(), layouts).in_words().dispatches(&task, gpu)
}

/// The number of elements before, along and after the axis, and the number of words of an index.
struct Axis {
    outer: u64,
    size: u64,
    inner: u64,
    index_words: u32,
}

fn axis_of(axis: usize, data: &TensorDesc, indices: &TensorDesc, y: &TensorDesc) -> Result<Axis, String> {
    if let Some(strided) = [data, indices, y].iter().find(|desc| !desc.is_packed()) {
        return Err(format!("{strided} must be packed"));
    }
    let index_words = index_words(indices, "indices")?;
    let sizes = data.sizes();
    let Some(&size) = sizes.get(axis) else {
        return Err(format!("{data} has no axis {axis}"));
    };
    let (outer, inner) = (sizes[..axis].iter().product(), sizes[axis + 1..].iter().product());
    if y.element_count() != outer * indices.element_count() * inner {
        return Err(format!("{data} indexed by {indices} along axis {axis} does not result in {y}"));
    }
    require_numbered(data)?;
    require_numbered(y)?;
    Ok(Axis { outer, size, inner, index_words })
}

fn gather(
    axis: usize,
    data: &TensorDesc,
    indices: &TensorDesc,
    y: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    let Axis { size, inner, index_words, .. } = axis_of(axis, data, indices, y)?;
    // Slices that consist of whole words are moved as words.
    let slice_bytes = inner * data.data_type().size_bytes();
    let (inner, element_bytes) =
        if slice_bytes.is_multiple_of(4) { (slice_bytes / 4, 4) } else { (inner, data.data_type().size_bytes()) };
    let sizes = [y.element_count() * y.data_type().size_bytes() / element_bytes];
    let mut layouts = vec![
        Layout::whole(Operand::Read(0), data, &sizes),
        Layout::whole(Operand::Read(1), indices, &sizes),
        Layout::whole(Operand::Write(0), y, &sizes).in_part(),
    ];
    layouts[0].element_bytes = element_bytes;
    layouts[2].element_bytes = element_bytes;
    layouts[2].strides = vec![1];
    let (inner, count) = (divisor(inner as u32), divisor(indices.element_count() as u32));
    let arguments = [&inner[..], &count, &[size as u32, index_words]].concat();
    let task = Task { shader: &shaders::MOVEMENT_GATHER, constants: Vec::new(), arguments };
    let mut dispatches = Elements::new(&sizes, layouts).dispatches(&task, gpu)?;
    dispatches.iter_mut().for_each(|dispatch| dispatch.bindings.push(Operand::Fault.into()));
    Ok(dispatches)
}

fn gather_gradient(
    axis: usize,
    dy: &TensorDesc,
    indices: &TensorDesc,
    ddata: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    let Axis { outer, size, inner, index_words } = axis_of(axis, ddata, indices, dy)?;
    if dy.data_type() != DataType::Float32 {
        return Err(format!("the Vulkan device does not support sums of {}; cast to float32 first", dy.data_type()));
    }
    let groups_per_row = (size * inner).div_ceil(GRADIENT_ELEMENTS_PER_GROUP);
    check_index_reads(outer * groups_per_row, indices)?;
    let groups = groups(outer * groups_per_row, gpu);
    let numbers = [ddata.element_count(), inner, indices.element_count(), size];
    let mut parameters = vec![groups[0]];
    parameters.extend(numbers.map(|number| number as u32));
    parameters.extend([index_words, groups_per_row as u32, outer as u32]);
    let bindings = bindings([Operand::Read(0), Operand::Read(1), Operand::Write(0), Operand::Fault]);
    let shader = &shaders::MOVEMENT_GATHER_GRADIENT;
    Ok(vec![Dispatch { shader, constants: Vec::new(), bindings, parameters, groups }])
}

fn scatter(op: ScatterOp, reads: &[TensorDesc], y: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let [data, indices, updates] = exactly(reads, "operands")?;
    let size = y.sizes()[0];
    let inner = y.element_count() / size;
    if data.element_count() != y.element_count() || updates.element_count() != indices.element_count() * inner {
        return Err(format!("{updates} scattered by {indices} into {data} does not result in {y}"));
    }
    for desc in [data, indices, updates, y] {
        require_numbered(desc)?;
    }
    let index_words = index_words(indices, "indices")?;
    let (data_type, bytes) = (y.data_type(), y.data_type().size_bytes());
    let kind = Kind::of(data_type);
    let is_small_integer = bytes < 4 && matches!(kind, Kind::Signed | Kind::Unsigned);
    let is_computed = bytes == 4 || is_small_integer && !data_type.is_narrow();
    if op != ScatterOp::Replace && !is_computed {
        return Err(format!(
            "the Vulkan device does not support combining {data_type}; cast to float32 or int32 first"
        ));
    }
    let words = if bytes == 8 { 2 } else { 1 };
    let elements = y.element_count() * words;
    let group_count = elements.div_ceil(GRADIENT_ELEMENTS_PER_GROUP);
    check_index_reads(group_count, indices)?;
    let groups = groups(group_count, gpu);
    let numbers = [elements, inner * words, indices.element_count(), size];
    let mut parameters = vec![groups[0]];
    parameters.extend(numbers.map(|number| number as u32));
    parameters.push(index_words);
    let operands = [Operand::Read(0), Operand::Read(1), Operand::Read(2), Operand::Write(0), Operand::Fault];
    let constants = vec![op.opcode(), kind.opcode(), bytes.min(4) as u32];
    let bindings = bindings(operands);
    Ok(vec![Dispatch { shader: &shaders::MOVEMENT_SCATTER, constants, bindings, parameters, groups }])
}

/// Checks that workgroups which go through all indices do not take too long.
fn check_index_reads(group_count: u64, indices: &TensorDesc) -> Result<(), String> {
    let count = indices.element_count();
    match group_count.saturating_mul(count) <= INDEX_READS_MAX {
        true => Ok(()),
        false => Err(format!(
            "each of {group_count} workgroups would read {count} indices, more than {INDEX_READS_MAX} in all; use the host"
        )),
    }
}

/// Checks that a tensor is packed and that the indices of its elements, or of its words if there are more, fit in 31 bits.
fn require_numbered(desc: &TensorDesc) -> Result<(), String> {
    if !desc.is_packed() {
        return Err(format!("{desc} must be packed"));
    }
    let words = desc.element_count().max(desc.total_size_bytes() / 4);
    match words < 1 << 31 {
        true => Ok(()),
        false => Err(format!("{desc} has {words} elements or words; fewer than 2^31 are supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_by_very_many_indices_are_left_to_the_host() {
        let packed = |data_type: DataType, sizes: &[u64]| TensorDesc::packed(data_type, sizes).unwrap();
        let scattered = |rows: u64| {
            let (data, indices) = (packed(DataType::Float32, &[rows, 1]), packed(DataType::Int64, &[rows]));
            let reads = [data.clone(), indices, data.clone()];
            lower(&Kernel::Scatter { op: ScatterOp::Add }, &reads, &[data], &Target::LEAST)
        };
        let gathered = |[rows, inner]: [u64; 2], count: u64| {
            let reads = [packed(DataType::Float32, &[count, inner]), packed(DataType::Int64, &[count])];
            let ddata = packed(DataType::Float32, &[rows, inner]);
            lower(&Kernel::GatherGradient { axis: 0 }, &reads, &[ddata], &Target::LEAST)
        };
        // Pixels of a large image; the embeddings of a language model.
        assert!(scattered(1 << 20).is_ok() && gathered([1 << 20, 1], 1 << 20).is_ok());
        assert!(gathered([128_000, 4096], 8192).is_ok());
        for refused in [scattered(1 << 24), gathered([1 << 24, 1], 1 << 24)] {
            let refusal = refused.unwrap_err().to_string();
            assert!(refusal.contains("each of 8192 workgroups would read 16777216 indices"), "{refusal}");
            assert!(refusal.contains("use the host"), "{refusal}");
        }
    }
}
