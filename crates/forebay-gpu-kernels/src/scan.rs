//! Kernels that process elements along an axis one after the other, or in an order: `kernels/scan.slang`, `kernels/top_k.slang` and
//! `kernels/sort.slang`.

use forebay_base::kernel::ScanOp;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::elements::Kind;
use super::operands::{bindings, exactly, require_packed};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, shaders, unsupported};

/// The number of invocations in a workgroup.
const GROUP: u64 = 256;
/// The maximum number of elements of a row that a single invocation puts in order.
const ALONE_MAX: u64 = 128;
/// The maximum number of elements of a longer row that are found one after another, each among all of the row.
const FOUND_MAX: u64 = 16;
/// The maximum number of elements that are looked at one after another to find the first ones of rows: a driver stops dispatches that take
/// seconds.
const LOOKS_MAX: u64 = 1 << 32;
/// The maximum number of elements of a row that an invocation sums up one after another, for the same reason.
const SCANNED_MAX: u64 = 1 << 21;
/// The number of rows that even small devices process at the same time.
const ROWS_AT_ONCE: u64 = 64;
/// The number of elements of a row that a workgroup of `sort.slang` puts in order, and what its dispatches do.
const BLOCK: u64 = 1024;
const SORT_BLOCKS: u32 = 0;
const COMPARE: u32 = 1;
const MERGE_BLOCKS: u32 = 2;
const WRITE: u32 = 3;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered: Result<Lowered, String> = match *kernel {
        Kernel::TopK { axis, largest, nan_first, last } => {
            top_k(axis, [largest, nan_first, last].map(u32::from), reads, writes, gpu)
        }
        Kernel::Scan { axis, op, exclusive, reverse } => {
            scan(axis, op, [exclusive, reverse], reads, writes, gpu).map(Lowered::from)
        }
        _ => Err("not a scan".to_owned()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
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
    if size > SCANNED_MAX {
        return Err(format!("rows of {size} elements, more than {SCANNED_MAX}, take too long; use the host"));
    }
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
) -> Result<Lowered, String> {
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
    let rows = outer * inner;
    let mut words = [rows, size, inner, chosen].map(|number| number as u32).to_vec();
    words.extend(flags);
    let elements = [x.data_type().size_bytes() as u32, kind.opcode(), infinity];
    let workspace_bytes = 4 * rows * size;
    if size > ALONE_MAX && chosen > FOUND_MAX {
        let most = gpu.workspace_bytes_max;
        if workspace_bytes <= most {
            let dispatches = sorted([rows, size, chosen], &words, elements, gpu);
            return Ok(Lowered { dispatches, ordered: true, workspace_bytes });
        }
        let looks = rows.div_ceil(ROWS_AT_ONCE).saturating_mul(chosen.saturating_mul(size));
        if looks > LOOKS_MAX {
            return Err(format!(
                "sorting {rows} rows of {size} elements takes {workspace_bytes} bytes of workspace, but a shader can access only {most}; \
                 use the host"
            ));
        }
    }
    let team = if size <= ALONE_MAX { 1 } else { GROUP };
    let groups = groups(rows.div_ceil(GROUP / team), gpu);
    let parameters = [&[groups[0]], &words[..]].concat();
    let constants = [&[team as u32], &elements[..]].concat();
    let bindings = bindings([Operand::Read(0), Operand::Write(0)]);
    Ok(Dispatch { shader: &shaders::TOP_K, constants, bindings, parameters, groups }.into())
}

/// Returns the dispatches that put rows in order and write the first elements. `words` are the parameters that describe the rows, and
/// `elements` the constants that describe their elements.
fn sorted([rows, size, chosen]: [u64; 3], words: &[u32], elements: [u32; 3], gpu: &Target) -> Vec<Dispatch> {
    let step = |stage: u32, row_groups: u64, distance: u64, inwards: bool| {
        let groups = groups(rows * row_groups, gpu);
        let own = [row_groups as u32, distance as u32, u32::from(inwards)];
        Dispatch {
            shader: &shaders::SORT,
            constants: [&[stage], &elements[..]].concat(),
            bindings: bindings([Operand::Read(0), Operand::Write(0), Operand::Workspace]),
            parameters: [&[groups[0]], words, &own].concat(),
            groups,
        }
    };
    let blocks = size.div_ceil(BLOCK);
    let mut dispatches = vec![step(SORT_BLOCKS, blocks, 0, false)];
    let mut run = BLOCK;
    while run < size {
        let mut distance = run;
        while distance >= BLOCK {
            let comparisons = size.div_ceil(2 * distance) * distance;
            dispatches.push(step(COMPARE, comparisons.div_ceil(GROUP), distance, distance == run));
            distance /= 2;
        }
        dispatches.push(step(MERGE_BLOCKS, blocks, 0, false));
        run *= 2;
    }
    dispatches.push(step(WRITE, chosen.div_ceil(GROUP), 0, false));
    dispatches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_sums_of_very_long_rows_are_left_to_the_host() {
        let lowered = |rows: u64, size: u64| {
            let desc = TensorDesc::packed(DataType::Float32, &[rows, size]).unwrap();
            let kernel = Kernel::Scan { axis: 1, op: ScanOp::Sum, exclusive: false, reverse: false };
            lower(&kernel, std::slice::from_ref(&desc), std::slice::from_ref(&desc), &Target::LEAST)
        };
        assert!(lowered(64, 1 << 16).is_ok() && lowered(1, 1 << 21).is_ok());
        let refusal = lowered(1, 1 << 22).unwrap_err().to_string();
        assert!(refusal.contains("rows of 4194304 elements") && refusal.contains("use the host"), "{refusal}");
    }

    #[test]
    fn many_elements_are_sorted_instead_of_found_one_after_another() {
        let lowered = |rows: u64, size: u64, chosen: u64| {
            let x = TensorDesc::packed(DataType::Float32, &[rows, size]).unwrap();
            let y = TensorDesc::packed(DataType::Int64, &[rows, chosen]).unwrap();
            lower(&Kernel::TopK { axis: 1, largest: true, nan_first: true, last: false }, &[x], &[y], &Target::LEAST)
        };
        for (size, chosen) in [(1 << 20, 10), (100, 100), (1 << 24, 100)] {
            // The last one has more indices than the workspace holds.
            let found = lowered(3, size, chosen).unwrap();
            assert_eq!((found.dispatches.len(), found.workspace_bytes), (1, 0), "{chosen} of {size}");
            assert_eq!(found.dispatches[0].shader, &shaders::TOP_K);
        }
        // A merge of runs of 2^n blocks: n + 1 comparisons across blocks, and one dispatch inside them.
        for (size, merges) in [(130, 0), (1024, 0), (1025, 1), (4096, 2), (4097, 3), (1_000_000, 10)] {
            let sorted = lowered(3, size, size).unwrap();
            assert_eq!(sorted.dispatches.len(), 2 + merges * (merges + 1) / 2 + merges, "{size}");
            assert_eq!((sorted.ordered, sorted.workspace_bytes), (true, 4 * 3 * size), "{size}");
            assert!(sorted.dispatches.iter().all(|dispatch| dispatch.shader == &shaders::SORT));
        }
        // Too many for the workspace, and too slow one after another.
        for (rows, size, chosen) in [(3, 1 << 24, 1 << 24), (1 << 19, 1 << 10, 1 << 10)] {
            let refusal = lowered(rows, size, chosen).unwrap_err().to_string();
            assert!(refusal.contains("use the host"), "{refusal}");
        }
    }
}
