//! Kernels that process elements along an axis one after the other, or in an order: `kernels/scan.slang` and `kernels/top_k.slang`.

use forebay_base::kernel::ScanOp;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::elements::Kind;
use super::operands::{bindings, exactly, require_packed};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, shaders, unsupported};

/// The number of invocations in a workgroup.
const GROUP: u64 = 256;
/// The maximum number of elements of a row that a single invocation puts in order.
const ALONE_MAX: u64 = 128;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = match *kernel {
        Kernel::TopK { axis, largest, nan_first, last } => {
            top_k(axis, [largest, nan_first, last].map(u32::from), reads, writes, gpu)
        }
        Kernel::Scan { axis, op, exclusive, reverse } => scan(axis, op, [exclusive, reverse], reads, writes, gpu),
        _ => Err("not a scan".to_owned()),
    };
    lowered.map(Lowered::from).map_err(|reason| unsupported(kernel, reason))
}

/// Returns the number of elements before, along and after an axis.
fn split(desc: &TensorDesc, axis: usize) -> Result<[u64; 3], String> {
    let sizes = desc.sizes();
    let Some(&size) = sizes.get(axis) else {
        return Err(format!("{desc} has no axis {axis}"));
    };
    let words = desc.total_size_bytes() / 4;
    if words >= 1 << 31 {
        return Err(format!("{desc} has {words} words; fewer than 2^31 are supported"));
    }
    Ok([sizes[..axis].iter().product(), size, sizes[axis + 1..].iter().product()])
}

fn scan(
    axis: usize,
    op: ScanOp,
    [exclusive, reverse]: [bool; 2],
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Dispatch, String> {
    let [y] = exactly(writes, "results")?;
    let expected = if op == ScanOp::Recurrence { 2 } else { 1 };
    if reads.len() != expected {
        return Err(format!("found {} operands, expected {expected}", reads.len()));
    }
    let operands: Vec<&TensorDesc> = reads.iter().chain([y]).collect();
    require_packed(&operands, y.data_type(), y.element_count())?;
    let [outer, size, inner] = split(y, axis)?;
    let shader = match y.data_type() {
        DataType::Float32 => &shaders::SCAN_F32,
        DataType::Float64 => &shaders::SCAN_F64,
        DataType::Int32 | DataType::UInt32 => &shaders::SCAN_U32,
        DataType::Int64 | DataType::UInt64 => &shaders::SCAN_U64,
        other => return Err(format!("data type {other} is not supported; cast to float32 or int32 first")),
    };
    let groups = groups((outer * inner).div_ceil(GROUP), gpu);
    let words = [outer * inner, size, inner, u64::from(op.opcode()), u64::from(exclusive), u64::from(reverse)];
    let parameters = [u64::from(groups[0])].into_iter().chain(words).map(|word| word as u32).collect();
    // Scans without factors do not read them.
    let bindings = bindings([Operand::Read(0), Operand::Read(reads.len() - 1), Operand::Write(0)]);
    Ok(Dispatch { shader, constants: Vec::new(), bindings, parameters, groups })
}

fn top_k(
    axis: usize,
    flags: [u32; 3],
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Dispatch, String> {
    let ([x], [y]) = (exactly(reads, "operands")?, exactly(writes, "results")?);
    let ([outer, size, inner], [_, chosen, _]) = (split(x, axis)?, split(y, axis)?);
    require_packed(&[x], x.data_type(), x.element_count())?;
    require_packed(&[y], DataType::Int64, outer * chosen * inner)?;
    if chosen > size {
        return Err(format!("{x} does not have {chosen} elements along axis {axis}"));
    }
    if x.data_type().is_narrow() {
        return Err(format!("elements of {} are not ordered; cast to float32 first", x.data_type()));
    }
    let kind = Kind::of(x.data_type());
    // Booleans are ordered as numbers.
    let kind = if kind == Kind::Boolean { Kind::Unsigned } else { kind };
    let infinity = match x.data_type() {
        DataType::Float64 => 0x7ff0_0000,
        DataType::Float16 => 0x7c00_0000,
        _ => 0x7f80_0000,
    };
    let team = if size <= ALONE_MAX { 1 } else { GROUP };
    let rows = outer * inner;
    let groups = groups(rows.div_ceil(GROUP / team), gpu);
    let mut parameters = vec![groups[0]];
    parameters.extend([rows, size, inner, chosen].map(|number| number as u32));
    parameters.extend(flags);
    let constants = vec![team as u32, x.data_type().size_bytes() as u32, kind.opcode(), infinity];
    let bindings = bindings([Operand::Read(0), Operand::Write(0)]);
    Ok(Dispatch { shader: &shaders::TOP_K, constants, bindings, parameters, groups })
}
