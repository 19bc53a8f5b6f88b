//! Sharding: decides which of the values that last from step to step are divided into slices, one for each process, as in ZeRO (Rajbhandari
//! et al., 2020).
//!
//! A slice is a range of a tensor's elements in row-major order. It depends only on the tensor and the number of processes, so that the
//! plans of all batch sizes agree. A process updates its slices. If an update is not elementwise, for example because it needs the norm of
//! a whole tensor, its state is not sharded.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::TensorDesc;
use forebay_base::kernel::facts::{AxisRole, Dimension, OperandRef};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch, Role};

use super::sharing::Sliced;
use super::{Request, Shard};
use crate::partition::cut::{cut_along, dimensions};
use crate::partition::rows::Cut;

/// Slices begin at multiples of this many elements: each is aligned, whatever the type.
const SLICE_ELEMENTS: u64 = 64;
/// Slices of tensors with one element for each block of a parameter's elements begin at multiples of this many elements, for the same
/// reason.
const SLICE_BLOCKS: u64 = 4;

/// Slices of parameters begin at multiples of this many elements.
fn unit(block_elements: u64) -> u64 {
    if block_elements > 1 { (block_elements * SLICE_BLOCKS).next_multiple_of(SLICE_ELEMENTS) } else { SLICE_ELEMENTS }
}

/// What is sharded in a program.
#[derive(Default)]
pub(super) struct Sharding {
    /// Slices begin at multiples of this many elements, except those of tensors with one element for several elements of a parameter.
    pub unit: u64,
    /// The buffers of which each process keeps its slice: those that last, and intermediate results of updates.
    pub buffers: BTreeMap<BufferId, Sliced>,
    /// Gradients that are only needed by sliced updates in the end.
    pub gradients: BTreeSet<BufferId>,
    /// Launches of the update phase of which each process computes its slice, by number.
    pub launches: BTreeMap<usize, Flat>,
    /// By buffer: the last launch that reads or writes it.
    pub last_uses: BTreeMap<BufferId, usize>,
}

impl Sharding {
    /// Determines what can be sharded.
    pub fn of(program: &Program, request: Request, processes: usize) -> Sharding {
        let shard = request.shard;
        let unit = unit(request.block_elements);
        if shard == Shard::Nothing {
            return Sharding { unit, ..Sharding::default() };
        }
        let (before, updates) = program.phases();
        let numbered = || updates.iter().enumerate().map(|(number, launch)| (before.len() + number, launch));
        let is_sliceable = |flat: &Flat| flat.sliced().slices(processes).is_some();
        let flat = numbered().filter_map(|(number, launch)| Some((number, Flat::of(launch, unit)?)));
        let mut flat: BTreeMap<usize, Flat> = flat.filter(|(_, flat)| is_sliceable(flat)).collect();
        let mut units: BTreeMap<BufferId, u64> = BTreeMap::new();
        for flat in flat.values() {
            let own = operands(&flat.launch).filter_map(|(of, operand)| Some((operand.buffer, flat.unit_of(of)?)));
            units.extend(own);
        }
        let buffers = candidates(program, shard, processes, |buffer| units.get(&buffer).copied().unwrap_or(unit));
        let mut sharding = Sharding { unit, buffers, ..Sharding::default() };
        for (number, launch) in numbered() {
            let flat = flat.get(&number);
            for (reference, operand) in operands(launch) {
                let unit = flat.and_then(|flat| flat.unit_of(reference));
                if unit.is_none() || sharding.buffers.get(&operand.buffer).map(|sliced| sliced.unit) != unit {
                    sharding.buffers.remove(&operand.buffer);
                }
            }
        }
        flat.retain(|_, Flat { launch, .. }| {
            let is_sharded = operands(launch).any(|(_, operand)| sharding.buffers.contains_key(&operand.buffer));
            let trains = launch.writes.iter().any(|write| program.buffer(write.buffer).role == Role::Parameter);
            is_sharded || trains && shard >= Shard::Gradients
        });
        sharding.launches = flat;
        for (number, launch) in program.launches.iter().enumerate() {
            sharding.last_uses.extend(operands(launch).map(|(_, operand)| (operand.buffer, number)));
        }
        if shard >= Shard::Gradients {
            sharding.gradients = gradients(program, &sharding);
        }
        for named in program.persistent.iter().filter(|named| request.sharded.contains(&named.name)) {
            let sliced = Sliced::of(&named.operand.desc, unit);
            if fills(program, &named.operand) && sliced.slices(processes).is_some() {
                sharding.buffers.insert(named.operand.buffer, sliced);
            }
        }
        sharding
    }
}

/// Returns what may be sharded, judging each buffer separately: buffers that last and hold one tensor, and buffers that only updates
/// compute.
fn candidates(
    program: &Program,
    shard: Shard,
    processes: usize,
    unit: impl Fn(BufferId) -> u64,
) -> BTreeMap<BufferId, Sliced> {
    let (before, updates) = program.phases();
    let sliced = |operand: &Operand| fills(program, operand).then(|| Sliced::of(&operand.desc, unit(operand.buffer)));
    let mut found: BTreeMap<BufferId, Sliced> = BTreeMap::new();
    for named in &program.persistent {
        let role = program.buffer(named.operand.buffer).role;
        if role == Role::State || role == Role::Parameter && shard >= Shard::Parameters {
            found.extend(sliced(&named.operand).map(|sliced| (named.operand.buffer, sliced)));
        }
    }
    let writes = updates.iter().flat_map(|launch| &launch.writes);
    let temporary = writes.filter(|write| program.buffer(write.buffer).role.is_temporary());
    found.extend(temporary.filter_map(|write| Some((write.buffer, sliced(write)?))));
    for (_, operand) in before.iter().flat_map(operands) {
        if program.buffer(operand.buffer).role != Role::Parameter {
            found.remove(&operand.buffer);
        }
    }
    // What is never updated stays whole.
    let updated: BTreeSet<BufferId> =
        updates.iter().flat_map(|launch| &launch.writes).map(|write| write.buffer).collect();
    let outputs: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
    found.retain(|buffer, sliced| {
        updated.contains(buffer) && !outputs.contains(buffer) && sliced.slices(processes).is_some()
    });
    // Buffers that hold two tensors are not sharded.
    let mut named: BTreeMap<BufferId, usize> = BTreeMap::new();
    program.persistent.iter().for_each(|info| *named.entry(info.operand.buffer).or_default() += 1);
    found.retain(|buffer, _| named.get(buffer).is_none_or(|&count| count == 1));
    found
}

/// Returns gradients that one launch computes, and of which updates read only slices.
fn gradients(program: &Program, sharding: &Sharding) -> BTreeSet<BufferId> {
    let mut writers: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    let mut needed_whole = BTreeSet::new();
    for (number, launch) in program.launches.iter().enumerate() {
        for write in &launch.writes {
            *writers.entry(write.buffer).or_default() += 1;
        }
        let is_update = number >= program.update_start;
        for (reference, operand) in operands(launch).filter(|_| is_update) {
            let unit = sharding.launches.get(&number).and_then(|flat| flat.unit_of(reference));
            let is_sliced = unit == Some(sharding.unit) && fills(program, operand);
            if is_sliced {
                found.insert(operand.buffer);
            } else {
                needed_whole.insert(operand.buffer);
            }
        }
    }
    needed_whole.extend(program.outputs.iter().map(|named| named.operand.buffer));
    found.retain(|buffer| {
        program.buffer(*buffer).role.is_temporary()
            && writers.get(buffer) == Some(&1)
            && !needed_whole.contains(buffer)
            && !sharding.buffers.contains_key(buffer)
    });
    found
}

fn operands(launch: &ProgramLaunch) -> impl Iterator<Item = (OperandRef, &Operand)> {
    let reads = launch.reads.iter().enumerate().map(|(read, operand)| (OperandRef::Read(read), operand));
    let writes = launch.writes.iter().enumerate().map(|(write, operand)| (OperandRef::Write(write), operand));
    reads.chain(writes)
}

/// Returns whether an operand is all of its buffer, with contiguous elements.
fn fills(program: &Program, operand: &Operand) -> bool {
    let bytes = operand.desc.element_count() * operand.desc.data_type().size_bytes();
    operand.desc.is_packed()
        && operand.offset_bytes == 0
        && program.buffer(operand.buffer).size_bytes.next_multiple_of(4) == bytes.next_multiple_of(4)
}

/// An elementwise launch, with operands of one axis.
pub(super) struct Flat {
    pub launch: ProgramLaunch,
    pub cut: Cut,
    dimension: Dimension,
    unit: u64,
}

impl Flat {
    /// Returns `None` for a launch that is not elementwise, whose operands are not contiguous, or that cannot be cut at all multiples of a
    /// unit.
    pub fn of(launch: &ProgramLaunch, unit: u64) -> Option<Flat> {
        if !launch.kernel.facts().is_elementwise() {
            return None;
        }
        let elements = launch.writes.first()?.desc.element_count();
        let mut flat = launch.clone();
        for operand in flat.reads.iter_mut().chain(&mut flat.writes) {
            let (desc, count) = (&operand.desc, operand.desc.element_count());
            if count == 1 || count == elements {
                if !desc.is_packed() {
                    return None;
                }
                operand.desc = TensorDesc::packed(desc.data_type(), &[count]).ok()?;
            }
        }
        let found = dimensions(&flat).into_iter().enumerate();
        let mut along = found.filter(|(_, dimension)| dimension.role == AxisRole::Free);
        let (number, dimension) = along.next()?;
        let cut = cut_along(&flat, number, &dimension)?;
        let is_all = |write: usize| dimension.along(OperandRef::Write(write)).is_some();
        let fits = along.next().is_none() && cut.rows == elements && (0..flat.writes.len()).all(is_all);
        (fits && unit.is_multiple_of(cut.step)).then_some(Flat { launch: flat, cut, dimension, unit })
    }

    /// Returns the slices of its first write.
    pub fn sliced(&self) -> Sliced {
        Sliced::of(&self.launch.writes[0].desc, self.unit)
    }

    /// Returns the number of elements at whose multiples slices of an operand begin. `None` if a slice of the launch needs all of the
    /// operand.
    pub fn unit_of(&self, operand: OperandRef) -> Option<u64> {
        Some(self.unit / self.dimension.along(operand)?.0.covers)
    }
}
