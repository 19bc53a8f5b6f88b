//! Layout: determines which buffers are stored row by row, so that rows of a spatial dimension are contiguous.
//!
//! A packed tensor of one image, x\[1, c, d, ..], keeps the rows of each channel separate. If it is stored row by row (all channels of the
//! first row, then all channels of the second), any range of rows is one range of bytes, including the neighbors that a convolution needs.
//! Channels that are computed into a concatenation are in a part of every row.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::Summing;
use forebay_base::kernel::facts::ByRows;
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{DataType, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

/// The number of places in a row is a multiple of this, so that sums in accumulators do not depend on where rows begin.
const PLACES_MULTIPLE: u64 = 16;

/// Returns where an operand would be if its buffer were stored row by row.
fn by_rows(program: &Program, operand: &Operand) -> Option<Operand> {
    let (desc, buffer) = (&operand.desc, program.buffer(operand.buffer));
    let sizes = desc.sizes();
    let fits = (4..=5).contains(&sizes.len())
        && sizes[0] == 1
        && sizes[2] > 1
        && desc.data_type().computed_in() == DataType::Float32
        && desc.is_packed()
        && buffer.role.is_temporary();
    if !fits {
        return None;
    }
    let places: u64 = sizes[3..].iter().product();
    let channel_bytes = places * sizes[2] * desc.data_type().size_bytes();
    if !places.is_multiple_of(PLACES_MULTIPLE)
        || !operand.offset_bytes.is_multiple_of(channel_bytes)
        || buffer.size_bytes % channel_bytes != 0
    {
        return None;
    }
    let (channels, first) = (buffer.size_bytes / channel_bytes, operand.offset_bytes / channel_bytes);
    let mut strides = desc.effective_strides();
    strides[0] = channels * sizes[2] * places;
    strides[1] = places;
    strides[2] = channels * places;
    let offset_bytes = first * places * desc.data_type().size_bytes();
    let desc = TensorDesc::strided(desc.data_type(), sizes, &strides).ok()?;
    offset_bytes.is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES).then_some(Operand {
        buffer: operand.buffer,
        offset_bytes,
        desc,
    })
}

/// Returns the operands of a launch, and whether they may be stored row by row.
fn free_operands(launch: &ProgramLaunch) -> impl Iterator<Item = (&Operand, bool)> {
    let ByRows { reads, writes, sums_of_channels } = launch.kernel.facts().by_rows;
    let is_free =
        !sums_of_channels || super::cut::summing(launch, 2).is_some_and(|sums| matches!(sums.of, Summing::Channels));
    let reads = launch.reads.iter().enumerate().map(move |(i, read)| (read, reads.contains(&i) && is_free));
    reads.chain(launch.writes.iter().enumerate().map(move |(i, write)| (write, writes.contains(&i) && is_free)))
}

/// Returns the buffers that may be stored row by row: everything that touches them supports it and sees the same rows.
pub(super) fn candidates(program: &Program) -> BTreeSet<BufferId> {
    let mut row_sizes: BTreeMap<BufferId, Option<Vec<u64>>> = BTreeMap::new();
    for (operand, free) in program.launches.iter().flat_map(free_operands) {
        let sizes = by_rows(program, operand).filter(|_| free).map(|_| operand.desc.sizes()[2..].to_vec());
        let known = row_sizes.entry(operand.buffer).or_insert_with(|| sizes.clone());
        if *known != sizes {
            *known = None;
        }
    }
    for named in program.inputs.iter().chain(&program.outputs).chain(&program.persistent) {
        row_sizes.insert(named.operand.buffer, None);
    }
    row_sizes.into_iter().filter(|(_, sizes)| sizes.is_some()).map(|(buffer, _)| buffer).collect()
}

/// Returns the launch with its operands in these buffers stored row by row.
pub(super) fn stored_by_rows(program: &Program, launch: &ProgramLaunch, buffers: &BTreeSet<BufferId>) -> ProgramLaunch {
    let mut launch = launch.clone();
    for operand in launch.reads.iter_mut().chain(&mut launch.writes).filter(|operand| buffers.contains(&operand.buffer))
    {
        if let Some(moved) = by_rows(program, operand) {
            *operand = moved;
        }
    }
    launch
}
