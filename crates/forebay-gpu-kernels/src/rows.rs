//! Sums over the rows of a table, one per place in a row: `kernels/rows.slang`.

use forebay_base::kernel::reduction_block_rows;
use forebay_base::{DataType, TensorDesc};

use super::operands::{bindings, exactly, require_packed};
use super::shaders::{self, Shader};
use super::{groups, Dispatch, Lowered, Operand, Target};

/// Bytes of a chunk's sum for a place in a row.
const SUM_BYTES: u64 = 8;

/// Rows, and their length, where the first axes are summed.
fn table(x: &TensorDesc, axes: usize) -> Result<[u64; 2], String> {
    let sizes = x.sizes();
    if axes >= sizes.len() {
        return Err(format!("{x} has no places behind {axes} axes"));
    }
    require_packed(&[x], DataType::Float32, x.element_count())?;
    Ok([&sizes[..axes], &sizes[axes..]].map(|sizes| sizes.iter().product()))
}

/// The reduction that sums along the first axes, as parts would sum it.
pub(super) fn whole(axes: usize, x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Lowered, String> {
    let [rows, length] = table(x, axes)?;
    require_packed(&[y], DataType::Float32, length)?;
    let operands = vec![Operand::Read(0), Operand::Write(0), Operand::Workspace, Operand::Counter];
    Ok(lowered(&shaders::REDUCE_ROWS_F32, [rows, length, reduction_block_rows(rows, length)], false, operands, gpu))
}

/// The sums of some rows.
pub(super) fn sums(
    (axes, block_rows): (usize, u64),
    accumulate: bool,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let (own, before) = reads.split_at(reads.len().min(1));
    let ([x], [sums]) = (exactly(own, "operands")?, exactly(writes, "results")?);
    let [rows, length] = table(x, axes)?;
    require_packed(&before.iter().chain([sums]).collect::<Vec<_>>(), DataType::Float64, 2 * length)?;
    if before.len() != usize::from(accumulate) {
        return Err(format!("{} operands", reads.len()));
    }
    let before = if accumulate { Operand::Read(1) } else { Operand::Write(0) };
    let operands = vec![Operand::Read(0), Operand::Write(0), Operand::Workspace, Operand::Counter, before];
    Ok(lowered(&shaders::SUMS_ROWS_F32, [rows, length, block_rows], accumulate, operands, gpu))
}

fn lowered(
    shader: &'static Shader,
    [rows, length, block_rows]: [u64; 3],
    accumulates: bool,
    operands: Vec<Operand>,
    gpu: &Target,
) -> Lowered {
    let count = rows.div_ceil(block_rows);
    let groups = groups(count, gpu);
    let own = [count as u32, rows as u32, length as u32, block_rows as u32, accumulates.into()];
    let parameters = [groups[0]].into_iter().chain(own).collect();
    let dispatch = Dispatch { shader, constants: Vec::new(), bindings: bindings(operands), parameters, groups };
    Lowered { dispatches: vec![dispatch], workspace_bytes: count * length * SUM_BYTES }
}
