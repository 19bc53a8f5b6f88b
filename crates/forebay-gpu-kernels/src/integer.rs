//! Products and convolutions of 8-bit integers: `kernels/integer_product.slang`. Every element is a separate sum.

use forebay_base::kernel::Convolution;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::elements::{Elements, Layout, Task};
use super::shaders::{INTEGER_CONVOLUTION, INTEGER_PRODUCT};
use super::spatial::{Sliding, Spatial};
use super::{Lowered, Operand, Target, Unsupported, unsupported};

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = || {
        check_types(reads, writes)?;
        let y = &writes[0];
        let (elements, task) = match kernel {
            Kernel::IntegerProduct { transpose_b } => product(*transpose_b, reads, y)?,
            Kernel::IntegerConvolution { convolution } => convolved(convolution, reads, y)?,
            _ => return Err("not an integer kernel".to_string()),
        };
        Ok(Lowered::from(elements.dispatches(&task, gpu)?))
    };
    lowered().map_err(|reason| unsupported(kernel, reason))
}

/// # Errors
/// If the types of the operands are not those of the kernels.
fn check_types(reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<(), String> {
    let kinds: Vec<DataType> = reads.iter().chain(writes).map(TensorDesc::data_type).collect();
    let is_byte = |kind: &DataType| matches!(kind, DataType::Int8 | DataType::UInt8);
    let (int, float) = (DataType::Int32, DataType::Float32);
    let fits = match kinds[..] {
        [a, b, a_zero, b_zero, y] => (a, b, y) == (a_zero, b_zero, int) && [a, b].iter().all(is_byte),
        [a, b, a_zero, b_zero, bias, scale, zero, y] => {
            (a, b, y) == (a_zero, b_zero, zero) && (bias, scale) == (int, float) && [a, b, y].iter().all(is_byte)
        }
        _ => false,
    };
    fits.then_some(()).ok_or_else(|| format!("operands of {kinds:?} are not supported"))
}

/// Returns the constants that tell both shaders the types: which factors are signed, and what is written.
fn constants(reads: &[TensorDesc], y: &TensorDesc) -> Vec<u32> {
    let is_signed = |desc: &TensorDesc| u32::from(desc.data_type() == DataType::Int8);
    let kind = match y.data_type() {
        DataType::Int32 => 0,
        DataType::UInt8 => 1,
        _ => 2,
    };
    vec![is_signed(&reads[0]), is_signed(&reads[1]), kind]
}

/// Returns the layouts of the operands after the factors, with a position for each element. Absent operands are never read.
fn others(reads: &[TensorDesc], sizes: &[u64]) -> Result<Vec<Layout>, String> {
    let layout = |at: usize| match reads.get(at) {
        Some(desc) => Layout::broadcast(Operand::Read(at), desc, sizes),
        None => Ok(Layout::whole(Operand::Read(2), &reads[2], sizes)),
    };
    (2..7).map(layout).collect()
}

fn product(transpose_b: bool, reads: &[TensorDesc], y: &TensorDesc) -> Result<(Elements, Task), String> {
    let (a, b, sizes) = (&reads[0], &reads[1], y.sizes());
    let (rank, misfit) = (sizes.len(), || format!("the sizes of {}, {} and {y} do not match", reads[0], reads[1]));
    let ranks = [a.sizes().len(), b.sizes().len()];
    if rank < 2 || ranks.iter().any(|own| !(2..=rank).contains(own)) {
        return Err(misfit());
    }
    let (of_terms, of_columns) = if transpose_b { (ranks[1] - 1, ranks[1] - 2) } else { (ranks[1] - 2, ranks[1] - 1) };
    let terms = a.sizes()[ranks[0] - 1];
    let rows = a.sizes()[ranks[0] - 2];
    if (rows, b.sizes()[of_columns], b.sizes()[of_terms]) != (sizes[rank - 2], sizes[rank - 1], terms) {
        return Err(misfit());
    }
    let (a_strides, b_strides) = (a.effective_strides(), b.effective_strides());
    // Strides by dimension of y: batches broadcast.
    let batches = |desc: &TensorDesc, strides: &[u64]| -> Result<Vec<i64>, String> {
        let missing = rank - desc.sizes().len();
        let stride = |axis: usize| match axis.checked_sub(missing) {
            None => Ok(0),
            Some(own) if desc.sizes()[own] == sizes[axis] => Ok(strides[own] as i64),
            Some(own) if desc.sizes()[own] == 1 => Ok(0),
            Some(_) => Err(misfit()),
        };
        (0..rank - 2).map(stride).collect()
    };
    let mut of_a = batches(a, &a_strides)?;
    of_a.extend([a_strides[ranks[0] - 2] as i64, 0]);
    let mut of_b = batches(b, &b_strides)?;
    of_b.extend([0, b_strides[of_columns] as i64]);
    let mut layouts =
        vec![Layout::from_places(Operand::Read(0), a, of_a), Layout::from_places(Operand::Read(1), b, of_b)];
    layouts.extend(others(reads, sizes)?);
    layouts.push(Layout::broadcast(Operand::Write(0), y, sizes)?);
    let arguments = vec![terms as u32, a_strides[ranks[0] - 1] as u32, b_strides[of_terms] as u32];
    let task = Task { shader: &INTEGER_PRODUCT, constants: constants(reads, y), arguments };
    Ok((Elements::new(sizes, layouts), task))
}

fn convolved(convolution: &Convolution, reads: &[TensorDesc], y: &TensorDesc) -> Result<(Elements, Task), String> {
    let (x, w, sizes) = (&reads[0], &reads[1], y.sizes());
    let (input, output) = (Spatial::of(x)?, Spatial::of(y)?);
    let sliding = Sliding::of(&convolution.window, sizes.len(), output.sizes)?;
    let groups = convolution.groups;
    let taps = u64::from(sliding.taps());
    let fits = groups > 0
        && w.is_packed()
        && w.sizes().len() == sizes.len()
        && input.images == output.images
        && w.sizes()[0] == sizes[1]
        && sizes[1] % groups == 0
        && w.sizes()[1].checked_mul(groups) == Some(x.sizes()[1])
        && w.sizes()[2..] == convolution.window.kernel[..];
    if !fits {
        return Err(format!("the sizes of {x}, {w} and {y} do not match {groups} groups"));
    }
    let spatial = sizes.len() - 2;
    let strides = x.effective_strides();
    // The image of x, the filter of w, and the index of the window in a channel.
    let along = |first: [i64; 2]| -> Vec<i64> { first.into_iter().chain(vec![0; spatial]).collect() };
    let mut places = along([0, 0]);
    let mut step = 1;
    for axis in (2..sizes.len()).rev() {
        places[axis] = step;
        step *= sizes[axis] as i64;
    }
    let terms = w.sizes()[1] * taps;
    let mut layouts = vec![
        Layout::from_places(Operand::Read(0), x, along([strides[0] as i64, 0])),
        Layout::from_places(Operand::Read(1), w, along([0, terms as i64])),
    ];
    // Operands that belong to the filters broadcast as [filters, 1, ..].
    let by_filters = |desc: &TensorDesc| {
        let shape: Vec<u64> = [desc.element_count()].into_iter().chain(vec![1; spatial]).collect();
        let one = desc.element_count() == 1 || desc.element_count() == sizes[1];
        let shaped = TensorDesc::packed(desc.data_type(), &shape).map_err(|error| error.to_string());
        if one && desc.is_packed() { shaped } else { Err(format!("{desc} does not match the filters of {w}")) }
    };
    let mut shaped = reads[..2].to_vec();
    shaped.extend(reads[2..].iter().map(by_filters).collect::<Result<Vec<_>, _>>()?);
    layouts.extend(others(&shaped, sizes)?);
    layouts.push(Layout::from_places(Operand::Read(2), &reads[2], places));
    layouts.push(Layout::broadcast(Operand::Write(0), y, sizes)?);
    let Sliding { kernel, strides: steps, dilations, pads, .. } = sliding;
    let mut arguments = vec![w.sizes()[1] as u32, terms as u32, (sizes[1] / groups) as u32, input.strides[1]];
    arguments.extend([input.sizes, output.sizes, kernel, steps, dilations, pads].into_iter().flatten());
    arguments.extend(&input.strides[2..]);
    let task = Task { shader: &INTEGER_CONVOLUTION, constants: constants(reads, y), arguments };
    Ok((Elements::new(sizes, layouts), task))
}
