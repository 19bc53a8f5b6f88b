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
    /// Temporary buffers of which each process keeps its slice: gradients that sliced updates read in the end, and what is computed from
    /// slices only. Launches that need all of such a buffer gather it.
    pub kept: BTreeSet<BufferId>,
    /// Buffers that launches before the update phase need whole.
    pub needed_whole: BTreeSet<BufferId>,
    /// Elementwise launches of which each process computes its slice, by number.
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
        for named in program.persistent.iter().filter(|named| request.sharded.contains(&named.name)) {
            let sliced = Sliced::of(&named.operand.desc, unit);
            if fills(program, &named.operand) && sliced.slices(processes).is_some() {
                sharding.buffers.insert(named.operand.buffer, sliced);
            }
        }
        if shard >= Shard::Gradients {
            sharding.slice_before_updates(program, processes);
        }
        sharding
    }

    /// Finds the buffers of which each process keeps its slice before the update phase, and the elementwise launches of which it computes
    /// its slice:
    /// - gradients of which updates read only slices;
    /// - launches that compute these gradients from others (sums, scaled gradients, conversions), and what they read;
    /// - launches that read only slices (squares of gradients, conversions of parameters), and their results.
    fn slice_before_updates(&mut self, program: &Program, processes: usize) {
        let (before, updates) = program.phases();
        // What updates or the caller need whole.
        let mut needed_later: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
        for (number, launch) in (before.len()..).zip(updates) {
            for (reference, operand) in operands(launch) {
                let unit = self.launches.get(&number).and_then(|flat| flat.unit_of(reference));
                let is_sliced = unit == Some(self.unit) && fills(program, operand);
                (if is_sliced { &mut self.kept } else { &mut needed_later }).insert(operand.buffer);
            }
        }
        let mut writers: BTreeMap<BufferId, usize> = BTreeMap::new();
        for write in program.launches.iter().flat_map(|launch| &launch.writes) {
            *writers.entry(write.buffer).or_default() += 1;
        }
        let may_be_kept = |buffer: &BufferId| {
            program.buffer(*buffer).role.is_temporary()
                && writers.get(buffer) == Some(&1)
                && !needed_later.contains(buffer)
                && !self.buffers.contains_key(buffer)
        };
        self.kept.retain(may_be_kept);
        let flat = before.iter().enumerate().filter_map(|(number, launch)| {
            let flat = Flat::filling(program, launch, self.unit)?;
            let is_kept = launch.writes.iter().all(|write| may_be_kept(&write.buffer));
            (is_kept && flat.sliced().slices(processes).is_some()).then_some((number, flat))
        });
        let mut flat: BTreeMap<usize, Flat> = flat.collect();
        let mut found = BTreeSet::new();
        for (&number, flat) in flat.iter().rev() {
            if flat.launch.writes.iter().all(|write| self.kept.contains(&write.buffer)) {
                self.kept.extend(flat.reads_along().map(|read| read.buffer).filter(may_be_kept));
                found.insert(number);
            }
        }
        for (&number, flat) in &flat {
            let is_slice = |read: &Operand| {
                self.kept.contains(&read.buffer)
                    || self.buffers.get(&read.buffer).is_some_and(|sliced| sliced.unit == self.unit)
            };
            if flat.reads_along().next().is_some() && flat.reads_along().all(is_slice) {
                self.kept.extend(flat.launch.writes.iter().map(|write| write.buffer));
                found.insert(number);
            }
        }
        flat.retain(|number, _| found.contains(number));
        let whole = before.iter().enumerate().filter(|(number, _)| !found.contains(number));
        self.needed_whole.extend(whole.flat_map(|(_, launch)| &launch.reads).map(|read| read.buffer));
        self.launches.append(&mut flat);
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

/// Returns whether all elements of an operand are one and the same element in memory.
fn is_broadcast(desc: &TensorDesc) -> bool {
    let along = desc.sizes().iter().zip(desc.effective_strides());
    desc.element_count() > 1 && along.filter(|(size, _)| **size > 1).all(|(_, stride)| stride == 0)
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
            if count == elements && is_broadcast(desc) {
                operand.desc = TensorDesc::strided(desc.data_type(), &[count], &[0]).ok()?;
            } else if count == 1 || count == elements {
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

    /// Returns the launch with operands of one axis if each of them is one element or all of a buffer, with as many elements as the results.
    fn filling(program: &Program, launch: &ProgramLaunch, unit: u64) -> Option<Flat> {
        let flat = Flat::of(launch, unit)?;
        let elements = flat.cut.rows;
        let fits = |operand: &Operand| {
            let count = operand.desc.element_count();
            count == 1 || is_broadcast(&operand.desc) || count == elements && fills(program, operand)
        };
        operands(launch).all(|(_, operand)| fits(operand)).then_some(flat)
    }

    /// Returns the reads of which each slice of the launch reads a slice.
    pub fn reads_along(&self) -> impl Iterator<Item = &Operand> {
        let reads = self.launch.reads.iter().enumerate();
        reads.filter(|(read, _)| self.unit_of(OperandRef::Read(*read)).is_some()).map(|(_, operand)| operand)
    }

    /// Returns the slices of its first write.
    pub fn sliced(&self) -> Sliced {
        Sliced::of(&self.launch.writes[0].desc, self.unit)
    }

    /// Returns the number of elements at whose multiples slices of an operand begin. `None` if a slice of the launch needs all of the
    /// operand.
    pub fn unit_of(&self, operand: OperandRef) -> Option<u64> {
        if is_broadcast(self.launch.desc(operand)?) {
            return None;
        }
        Some(self.unit / self.dimension.along(operand)?.0.covers)
    }
}
