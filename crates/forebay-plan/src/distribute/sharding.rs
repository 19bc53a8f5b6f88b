//! Sharding: which of the values that last from step to step each process keeps a slice of, as ZeRO does (Rajbhandari et al., 2020).
//!
//! A slice is a range of a tensor's elements, in row-major order; which ones depends on the tensor and the number of processes alone, so
//! that the plans of all batch sizes agree. A process updates its slices. Where an update is more than a function of each element, as
//! one that needs the norm of a whole tensor, its state is not sharded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_base::kernel::facts::{AxisRole, Dimension, OperandRef};
use forebay_base::TensorDesc;
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch, Role};

use super::shares::shares;
use super::{Request, Shard};
use crate::partition::cut::{cut_along, dimensions};
use crate::partition::rows::Cut;

/// Slices begin at multiples of this many elements: each is aligned, whatever the type.
const SLICE_ELEMENTS: u64 = 64;

/// The elements of each process's slice. None where a process would have none.
pub(super) fn slices(elements: u64, processes: usize) -> Option<Vec<Range<u64>>> {
    let units = shares(elements.div_ceil(SLICE_ELEMENTS), processes as u64, 1)?;
    let slice = |units: Range<u64>| units.start * SLICE_ELEMENTS..(units.end * SLICE_ELEMENTS).min(elements);
    Some(units.into_iter().map(slice).collect())
}

/// What is sharded of a program.
#[derive(Default)]
pub(super) struct Sharding {
    /// Elements of the buffers of which each process keeps its slice: those that last, and what updates compute on the way.
    pub buffers: BTreeMap<BufferId, u64>,
    /// Gradients that nothing but sliced updates needs in the end.
    pub gradients: BTreeSet<BufferId>,
    /// Launches of the update phase of which each process computes its slice, by number.
    pub launches: BTreeMap<usize, Flat>,
    /// By buffer: the last launch that reads or writes it.
    pub last_uses: BTreeMap<BufferId, usize>,
}

impl Sharding {
    /// Finds what can be sharded.
    pub fn of(program: &Program, request: Request, processes: usize) -> Sharding {
        let shard = request.shard;
        if shard == Shard::Nothing {
            return Sharding::default();
        }
        let (before, updates) = program.launches.split_at(program.update_start.min(program.launches.len()));
        let mut sharding = Sharding { buffers: candidates(program, shard, processes), ..Sharding::default() };
        let numbered = || updates.iter().enumerate().map(|(number, launch)| (before.len() + number, launch));
        let is_sliceable = |flat: &Flat| slices(flat.elements(), processes).is_some();
        let mut flat: BTreeMap<usize, Flat> =
            numbered().filter_map(|(number, launch)| Some((number, Flat::of(launch).filter(is_sliceable)?))).collect();
        for (number, launch) in numbered() {
            let flat = flat.get(&number);
            for (reference, operand) in operands(launch) {
                if !flat.is_some_and(|flat| flat.runs_along(reference)) {
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
            let elements = named.operand.desc.element_count();
            if fills(program, &named.operand) && slices(elements, processes).is_some() {
                sharding.buffers.insert(named.operand.buffer, elements);
            }
        }
        sharding
    }
}

/// What may be sharded, as far as each buffer alone says: what lasts and is of one tensor, and what nothing but updates computes.
fn candidates(program: &Program, shard: Shard, processes: usize) -> BTreeMap<BufferId, u64> {
    let (before, updates) = program.launches.split_at(program.update_start.min(program.launches.len()));
    let elements_of = |operand: &Operand| fills(program, operand).then(|| operand.desc.element_count());
    let mut found: BTreeMap<BufferId, u64> = BTreeMap::new();
    for named in &program.persistent {
        let role = program.buffer(named.operand.buffer).role;
        if role == Role::State || role == Role::Parameter && shard >= Shard::Parameters {
            found.extend(elements_of(&named.operand).map(|elements| (named.operand.buffer, elements)));
        }
    }
    let writes = updates.iter().flat_map(|launch| &launch.writes);
    let temporary = writes.filter(|write| program.buffer(write.buffer).role.is_temporary());
    found.extend(temporary.filter_map(|write| Some((write.buffer, elements_of(write)?))));
    for (_, operand) in before.iter().flat_map(operands) {
        if program.buffer(operand.buffer).role != Role::Parameter {
            found.remove(&operand.buffer);
        }
    }
    // What nothing updates stays as it is: it is there whole.
    let updated: BTreeSet<BufferId> =
        updates.iter().flat_map(|launch| &launch.writes).map(|write| write.buffer).collect();
    let outputs: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
    found.retain(|buffer, elements| {
        updated.contains(buffer) && !outputs.contains(buffer) && slices(*elements, processes).is_some()
    });
    // A buffer that two tensors lie in is not one of them.
    let mut named: BTreeMap<BufferId, usize> = BTreeMap::new();
    program.persistent.iter().for_each(|info| *named.entry(info.operand.buffer).or_default() += 1);
    found.retain(|buffer, _| named.get(buffer).is_none_or(|&count| count == 1));
    found
}

/// Gradients that one launch makes, and of which updates read slices alone.
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
            let is_sliced = sharding.launches.get(&number).is_some_and(|flat| flat.runs_along(reference))
                && fills(program, operand);
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

/// Whether an operand is all of its buffer, one element behind the other.
fn fills(program: &Program, operand: &Operand) -> bool {
    let bytes = operand.desc.element_count() * operand.desc.data_type().size_bytes();
    operand.desc.is_packed()
        && operand.offset_bytes == 0
        && program.buffer(operand.buffer).size_bytes.next_multiple_of(4) == bytes.next_multiple_of(4)
}

/// A launch that computes each element for itself, with operands of one axis.
pub(super) struct Flat {
    pub launch: ProgramLaunch,
    pub cut: Cut,
    dimension: Dimension,
}

impl Flat {
    /// None for a launch that computes elements from others, or whose operands lie in other ways than one element behind the other.
    pub fn of(launch: &ProgramLaunch) -> Option<Flat> {
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
        (fits && SLICE_ELEMENTS.is_multiple_of(cut.step)).then_some(Flat { launch: flat, cut, dimension })
    }

    pub fn elements(&self) -> u64 {
        self.cut.rows
    }

    /// Whether a slice of the launch needs but a slice of an operand.
    pub fn runs_along(&self, operand: OperandRef) -> bool {
        self.dimension.along(operand).is_some()
    }
}
