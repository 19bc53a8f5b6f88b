//! Sums over the rows of a table, one per position in a row: `kernels/rows.slang`.

use forebay_base::kernel::reduction_block_rows;
use forebay_base::{DataType, TensorDesc};

use super::operands::{bindings, exactly, require_packed};
use super::shaders::{self, Shader};
use super::{Dispatch, Lowered, Operand, Target, groups};

/// The bytes of a chunk's sum for one position in a row.
const SUM_BYTES: u64 = 8;

/// Returns the number of rows and their length if the first axes are summed.
fn table(x: &TensorDesc, axes: usize) -> Result<[u64; 2], String> {
    let sizes = x.sizes();
    if axes >= sizes.len() {
        return Err(format!("{x} has no positions after {axes} axes"));
    }
    require_packed(&[x], DataType::Float32, x.element_count())?;
    Ok([&sizes[..axes], &sizes[axes..]].map(|sizes| sizes.iter().product()))
}

/// Lowers the reduction that sums along the first axes, in the same way as parts would sum it.
pub(super) fn whole(axes: usize, x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Lowered, String> {
    let table = table(x, axes)?;
    require_packed(&[y], DataType::Float32, table[1])?;
    Ok(lowered(&shaders::REDUCE_ROWS_F32, table, gpu))
}

/// Lowers the sums of some rows.
pub(super) fn sums(axes: usize, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let ([x], [sums]) = (exactly(reads, "operands")?, exactly(writes, "results")?);
    let table = table(x, axes)?;
    require_packed(&[sums], DataType::Float64, 2 * table[1])?;
    Ok(lowered(&shaders::SUMS_ROWS_F32, table, gpu))
}

fn lowered(shader: &'static Shader, [rows, length]: [u64; 2], gpu: &Target) -> Lowered {
    let RowGroups { block_rows, group_blocks, count } = RowGroups::of(rows, length);
    let groups = groups(count, gpu);
    let own = [count, rows, length, block_rows, group_blocks].map(|word| word as u32);
    let parameters = [groups[0]].into_iter().chain(own).collect();
    let operands = [Operand::Read(0), Operand::Write(0), Operand::Workspace, Operand::Counter];
    let dispatch = Dispatch { shader, constants: Vec::new(), bindings: bindings(operands), parameters, groups };
    Lowered { workspace_bytes: count * length * SUM_BYTES, ..Lowered::from(dispatch) }
}

/// The maximum number of sums of all workgroups: if there would be more, workgroups have several blocks each.
const SUMS_MAX: u64 = 8 << 20;

/// How workgroups share the reduction blocks of sums over rows: each has a subtree of the sum tree.
pub(super) struct RowGroups {
    /// The number of rows per block.
    pub block_rows: u64,
    /// The number of blocks per workgroup, a power of two.
    pub group_blocks: u64,
    /// The number of workgroups.
    pub count: u64,
}

impl RowGroups {
    /// Returns the workgroups for this number of rows of this length.
    pub fn of(rows: u64, length: u64) -> RowGroups {
        let block_rows = reduction_block_rows(length);
        let blocks = rows.div_ceil(block_rows);
        let group_blocks = blocks.div_ceil((SUMS_MAX / length.max(1)).max(1)).next_power_of_two();
        RowGroups { block_rows, group_blocks, count: blocks.div_ceil(group_blocks) }
    }
}
