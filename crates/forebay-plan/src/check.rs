//! Check: the whole plan is checked without using a line of the passes' code.
//!
//! The check tracks the contents of every byte through one step: which write of which launch it holds. A launch must find in each operand's
//! region exactly what it would find in the buffer if the program ran launch by launch, in its own order and with unlimited memory. At the
//! end, and at the beginning of the update phase, every backing location must hold its tensor, so one step leaves everything as the next
//! expects it. A step that fails because of a disk must leave what it found; what commands of the update phase may do is checked
//! separately. The order of commands is checked by [`forebay_sync::race`], over two steps.

mod extent;
mod lines;
mod parts;
mod ranks;
mod relaid;
mod sums;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Binding, ByteRange, Command, Kernel, Launch, MemoryId, Region, Space};
use forebay_model::program::{BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};

use crate::backing_stores::DISK_ALIGNMENT_BYTES;
use crate::divided::Partition;
use crate::error::PlanError;
use crate::plan::{BackingLocation, MemoryKind, Plan};

/// Checks a plan of `program` (as it was given to the planner). If launches were cut, the parts in the [`Partition`] run instead; they are
/// checked as well.
///
/// # Errors
/// [`PlanError::Check`] names the first broken invariant.
pub fn check(program: &Program, partition: Option<&Partition>, plan: &Plan) -> Result<(), PlanError> {
    let program = match partition {
        Some(partition) => {
            check_parts(program, partition)?;
            &partition.program
        }
        None => program,
    };
    budget(plan)?;
    bounds(plan)?;
    each_runs(program, plan)?;
    let expected = Expected::of(program);
    failure_leaves_backing(program, plan, &expected)?;
    Contents::start(program, plan, &expected)?.run()?;
    order(plan)
}

/// Checks that a program with launches in parts computes the same bits as the original program: the parts of each launch compute every
/// element of its results once or, if the results are sums, add each term once in the order of the whole launch's sum tree, and each part
/// reads what it needs for that.
///
/// # Errors
/// [`PlanError::Check`] names the first launch whose parts are not equivalent to it.
pub fn check_parts(program: &Program, partition: &Partition) -> Result<(), PlanError> {
    parts::judge(program, partition).map_err(broken)
}

/// Checks the plans of all processes of a run, those of processes 0, 1, 2 and so on, against each other: each exchange must pair up what
/// processes send and receive, and no order of exchanges may leave processes waiting for each other. Each plan on its own is checked with
/// [`check`].
///
/// # Errors
/// [`PlanError::Check`] names the first exchange that does not pair up, or at which processes stop.
pub fn check_ranks(plans: &[&Plan]) -> Result<(), PlanError> {
    ranks::judge(plans).map_err(broken)
}

/// Checks that every hazard is ordered, before the first step and in two consecutive steps.
fn order(plan: &Plan) -> Result<(), PlanError> {
    let races = |commands: &[Command], steps| {
        let boundary = forebay_sync::barriers::StepBoundary::HostJoin;
        forebay_sync::race::check_races(&plan.prologue, commands, steps, boundary).map(|_| ())
    };
    races(&plan.warm_up, 1).and_then(|()| races(&plan.commands, 2)).map_err(|found| {
        let first = found.first().map(|violation| violation.describe(&|index| name(plan, index)));
        broken(format!("{} ordering violations; the first: {}", found.len(), first.unwrap_or_default()))
    })
}

/// Returns what a command of a plan is for: the launch's node, or the buffer that is copied.
fn name(plan: &Plan, index: usize) -> Option<String> {
    match plan.commands.get(index)? {
        Command::Launch { launch, .. } => plan.labels.get(launch.label as usize).cloned(),
        Command::Copy { .. } => {
            let movement = plan.movements.iter().find(|movement| movement.command == index)?;
            Some(format!("copy of {}", movement.name))
        }
        _ => None,
    }
}

fn broken(reason: String) -> PlanError {
    PlanError::Check { reason }
}

fn budget(plan: &Plan) -> Result<(), PlanError> {
    let of_kind = |kind| plan.memories.iter().filter(move |memory| memory.kind == kind).map(|memory| memory.size_bytes);
    let shared = plan.memories.iter().filter(|memory| matches!(memory.kind, MemoryKind::Shared(_)));
    let shared_bytes: u64 = shared.map(|memory| memory.size_bytes).sum();
    let heap_bytes = plan.heaps.iter().sum::<u64>() + of_kind(MemoryKind::Placed).sum::<u64>() + shared_bytes;
    let host_bytes = of_kind(MemoryKind::HostBlock).sum::<u64>();
    let statistics = &plan.statistics;
    for (what, bytes, budget) in
        [("heap", heap_bytes, statistics.device_budget_bytes), ("host", host_bytes, statistics.host_budget_bytes)]
    {
        if let Some(budget) = budget.filter(|&budget| bytes > budget) {
            return Err(broken(format!("{bytes} {what} bytes exceed the budget of {budget} bytes")));
        }
    }
    Ok(())
}

/// Checks that a step that ends in the middle because a disk failed leaves every backing location as it was. Of the memories that take
/// turns, nothing writes the one that a step reads; and if the update phase uses a disk at all, everything that it changes is in these
/// memories.
fn failure_leaves_backing(program: &Program, plan: &Plan, expected: &Expected) -> Result<(), PlanError> {
    let current = plan.turns.map(|(current, _)| current);
    let uses_disk = |region: &Region| plan.memory(region.memory).space == Space::Disk;
    let mut update_uses_disk = false;
    for (index, command) in plan.commands.iter().enumerate() {
        if command.writes().iter().any(|region| Some(region.memory) == current) {
            return Err(broken(format!("command {index} ({command}) writes what a failing step must leave unchanged")));
        }
        update_uses_disk |=
            index >= plan.update_start && command.reads().iter().chain(&command.writes()).any(uses_disk);
    }
    for (_, named, backing) in backing(&plan.persistent, &program.persistent)? {
        for (bytes, region) in &backing.pieces {
            let start = named.operand.offset_bytes + bytes.start;
            let range = ByteRange::new(start, start + bytes.len());
            let at = |buffers: &Buffers| buffers.get(&named.operand.buffer).map(|map| map.get(range));
            let changes = at(&expected.before_update) != at(&expected.at_end);
            if update_uses_disk && changes && Some(region.memory) != current {
                return Err(broken(format!("'{}' changes in place while a disk is used", named.name)));
            }
        }
    }
    Ok(())
}

/// Checks that every launch of the program runs, and that none runs twice unless it may: it must find and leave the same contents each
/// time, so it reads nothing that it writes, and writes nothing that lasts.
fn each_runs(program: &Program, plan: &Plan) -> Result<(), PlanError> {
    let mut runs = vec![0; program.launches.len()];
    for command in &plan.commands {
        if let Command::Launch { launch, .. } = command {
            let run = runs.get_mut(launch.label as usize);
            *run.ok_or_else(|| broken(format!("{command} is not a launch of the program")))? += 1;
            let source = &program.launches[launch.label as usize];
            let same = |bindings: &[Binding], operands: &[Operand]| {
                let descs = operands.iter().map(|operand| &operand.desc);
                bindings.iter().map(|binding| &binding.desc).eq(descs)
            };
            if plan.runs_on_host(launch) != source.on_host {
                let [runs, must] = if source.on_host { ["device", "host"] } else { ["host", "device"] };
                return Err(broken(format!(
                    "{command} runs on the {runs}, but '{}' must run on the {must}",
                    source.name
                )));
            }
            if !is_same(&launch.kernel, &source.kernel)
                || !same(&launch.reads, &source.reads)
                || !same(&launch.writes, &source.writes)
            {
                return Err(broken(format!("{command} differs from '{}'", source.name)));
            }
        }
    }
    let may_run_again = |launch: &ProgramLaunch| {
        launch.writes.iter().all(|write| {
            let lasts = !program.buffer(write.buffer).role.is_temporary();
            !lasts && launch.reads.iter().all(|read| read.buffer != write.buffer)
        })
    };
    match (0..runs.len())
        .find(|&label| runs[label] != 1 && !(runs[label] > 1 && may_run_again(&program.launches[label])))
    {
        Some(label) => Err(broken(format!("'{}' runs {} times", program.launches[label].name, runs[label]))),
        None => Ok(()),
    }
}

/// Whether two kernels are the same. NaN is not equal to itself, but prints the same text.
fn is_same(one: &Kernel, other: &Kernel) -> bool {
    one == other || format!("{one:?}") == format!("{other:?}")
}

fn bounds(plan: &Plan) -> Result<(), PlanError> {
    let inputs = plan.inputs.iter().flat_map(|backing| &backing.pieces).map(|(_, region)| region.memory);
    let lent: BTreeSet<MemoryId> = inputs.filter(|&id| is_lent(plan, id)).collect();
    for (index, command) in plan.warm_up.iter().chain(&plan.commands).enumerate() {
        for region in command.reads().into_iter().chain(command.writes()) {
            let inside = plan.memories.get(region.memory.0 as usize).is_some_and(|m| region.range.end <= m.size_bytes);
            if !inside {
                return Err(broken(format!("command {index} ({command}) exceeds the bounds of its memory")));
            }
            if lent.contains(&region.memory) && command.writes().contains(&region) {
                return Err(broken(format!("command {index} ({command}) writes an input that belongs to the caller")));
            }
            if plan.memory(region.memory).kind == MemoryKind::ModelFiles && command.writes().contains(&region) {
                return Err(broken(format!("command {index} ({command}) writes the model's files")));
            }
            let on_disk = plan.memory(region.memory).space == Space::Disk;
            if on_disk && region.range.start % DISK_ALIGNMENT_BYTES != 0 {
                return Err(broken(format!("command {index} ({command}) begins in the middle of a disk block")));
            }
        }
        if let Command::Launch { launch, .. } = command {
            let mut spaces =
                command.reads().into_iter().chain(command.writes()).map(|region| plan.memory(region.memory).space);
            let first = spaces.next();
            if spaces.any(|space| Some(space) != first) || first == Some(Space::Disk) {
                return Err(broken(format!("command {index} ({command}) has operands that are not all in one space")));
            }
            for binding in launch.reads.iter().chain(&launch.writes) {
                let (start, length) = (binding.region.range.start, binding.region.range.len());
                binding.desc.check_binding(start, length).map_err(|e| broken(format!("command {index}: {e}")))?;
            }
        }
    }
    Ok(())
}

/// Whether a memory is lent by the plan's user; `false` if there is no memory with this number.
fn is_lent(plan: &Plan, memory: MemoryId) -> bool {
    plan.memories.get(memory.0 as usize).is_some_and(|memory| memory.kind == MemoryKind::Lent)
}

/// What a byte holds: byte `address - shift` of the write with this number. The numbers of launches' writes come from [`Expected`]; named
/// operands have the highest ones: `u64::MAX` minus the position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    write: u64,
    shift: i128,
}

/// Tags by byte range; a range without a tag holds nothing.
#[derive(Clone, Debug, Default)]
struct ByteMap {
    pieces: BTreeMap<u64, (u64, Tag)>,
}

impl ByteMap {
    fn clear(&mut self, range: ByteRange) {
        let before = self.pieces.range(..range.start).next_back().map(|(&start, &piece)| (start, piece));
        if let Some((start, (end, tag))) = before.filter(|(_, (end, _))| *end > range.start) {
            self.pieces.insert(start, (range.start, tag));
            if end > range.end {
                self.pieces.insert(range.end, (end, tag));
            }
        }
        let inside: Vec<(u64, (u64, Tag))> = self.pieces.range(range.start..range.end).map(|(&s, &p)| (s, p)).collect();
        for (start, (end, tag)) in inside {
            self.pieces.remove(&start);
            if end > range.end {
                self.pieces.insert(range.end, (end, tag));
            }
        }
    }

    fn set(&mut self, range: ByteRange, tag: Tag) {
        self.clear(range);
        if !range.is_empty() {
            self.pieces.insert(range.start, (range.end, tag));
        }
    }

    /// Returns the pieces inside a range, cut to it.
    fn get(&self, range: ByteRange) -> Vec<(ByteRange, Tag)> {
        let first = self.pieces.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        self.pieces
            .range(first..range.end)
            .filter_map(|(&start, &(end, tag))| Some((ByteRange::new(start, end).intersection(range)?, tag)))
            .collect()
    }
}

/// The contents of buffers, as pieces of what was written to them.
type Buffers = BTreeMap<BufferId, ByteMap>;

/// What launches find when the program runs in its own order.
struct Expected {
    /// For each launch, what each of its reads and then each of its writes finds in its buffer.
    found: Vec<Vec<Vec<(ByteRange, Tag)>>>,
    /// For each launch, the number of its first write.
    first_write: Vec<u64>,
    /// All buffers when the update phase begins.
    before_update: Buffers,
    /// All buffers at the end.
    at_end: Buffers,
}

impl Expected {
    fn of(program: &Program) -> Expected {
        let mut buffers = Buffers::new();
        for (number, named) in program.persistent.iter().chain(&program.inputs).enumerate() {
            let tag = Tag { write: u64::MAX - number as u64, shift: 0 };
            buffers.entry(named.operand.buffer).or_default().set(named.operand.range(), tag);
        }
        let mut expected = Expected {
            found: Vec::with_capacity(program.launches.len()),
            first_write: Vec::with_capacity(program.launches.len()),
            before_update: buffers.clone(),
            at_end: Buffers::new(),
        };
        let mut writes = 0;
        for (index, launch) in program.launches.iter().enumerate() {
            if index == program.update_start {
                expected.before_update.clone_from(&buffers);
            }
            let held = |operand: &Operand| {
                buffers.get(&operand.buffer).map(|map| map.get(operand.range())).unwrap_or_default()
            };
            expected.found.push(launch.reads.iter().chain(&launch.writes).map(held).collect());
            expected.first_write.push(writes);
            for operand in &launch.writes {
                buffers.entry(operand.buffer).or_default().set(operand.range(), Tag { write: writes, shift: 0 });
                writes += 1;
            }
        }
        if program.update_start >= program.launches.len() {
            expected.before_update.clone_from(&buffers);
        }
        expected.at_end = buffers;
        expected
    }
}

/// The contents of all memories, and what they should be.
struct Contents<'a> {
    program: &'a Program,
    plan: &'a Plan,
    expected: &'a Expected,
    memories: BTreeMap<MemoryId, ByteMap>,
}

/// Returns each backing location with its operand and the operand's position in the list.
fn backing<'a>(
    backing: &'a [BackingLocation],
    named: &'a [NamedOperand],
) -> Result<Vec<(usize, &'a NamedOperand, &'a BackingLocation)>, PlanError> {
    let places: BTreeMap<&str, usize> = named.iter().enumerate().map(|(i, named)| (named.name.as_str(), i)).collect();
    backing
        .iter()
        .map(|backing| {
            let place = places.get(backing.name.as_str()).copied();
            let place =
                place.ok_or_else(|| broken(format!("backing location of unknown tensor '{}'", backing.name)))?;
            Ok((place, &named[place], backing))
        })
        .collect()
}

impl<'a> Contents<'a> {
    /// The state between two steps: every backing location holds its tensor, and inputs are fed.
    fn start(program: &'a Program, plan: &'a Plan, expected: &'a Expected) -> Result<Contents<'a>, PlanError> {
        let mut contents = Contents { program, plan, expected, memories: BTreeMap::new() };
        for (number, named, backing) in backing(&plan.persistent, &program.persistent)? {
            contents.fill(number, named, backing);
        }
        for (number, named, backing) in backing(&plan.inputs, &program.inputs)? {
            contents.fill(program.persistent.len() + number, named, backing);
        }
        for command in &plan.warm_up {
            match command {
                Command::Copy { from, to, .. } => contents.copy(*from, *to),
                _ => return Err(broken(format!("{command} before the first step is not a copy"))),
            }
        }
        Ok(contents)
    }

    fn fill(&mut self, number: usize, named: &NamedOperand, backing: &BackingLocation) {
        for (bytes, region) in &backing.pieces {
            let start = named.operand.offset_bytes + bytes.start;
            let shift = i128::from(region.range.start) - i128::from(start);
            let tag = Tag { write: u64::MAX - number as u64, shift };
            self.memories.entry(region.memory).or_default().set(region.range, tag);
        }
    }

    fn run(mut self) -> Result<(), PlanError> {
        for (index, command) in self.plan.commands.iter().enumerate() {
            if index == self.plan.update_start {
                self.before_update()?;
            }
            match command {
                Command::Launch { launch, .. } => self.launch(launch, index)?,
                Command::Copy { from, to, .. } => self.copy(*from, *to),
                Command::Fill { region, .. } => self.memories.entry(region.memory).or_default().clear(region.range),
                _ => {}
            }
        }
        if self.plan.update_start >= self.plan.commands.len() {
            self.before_update()?;
        }
        let at_end: Vec<BackingLocation> =
            self.plan.persistent.iter().map(|backing| self.after_exchange(backing)).collect();
        self.backing_holds(&at_end, &self.program.persistent, &self.expected.at_end, "at the end")?;
        self.is_led_in()
    }

    /// Checks that a step leaves on the device, in addition to the backing locations, what the next one expects there, so that the warm-up
    /// copies would change nothing.
    fn is_led_in(&self) -> Result<(), PlanError> {
        let held = |region: &Region| {
            let pieces = self.memories.get(&region.memory).map(|map| map.get(region.range)).unwrap_or_default();
            let start = region.range.start;
            let mut relative: Vec<(u64, u64, u64, i128)> = Vec::new();
            for (bytes, Tag { write, shift }) in pieces {
                let piece = (bytes.start - start, bytes.end - start, write, shift - i128::from(start));
                match relative.last_mut() {
                    Some(last) if (last.1, last.2, last.3) == (piece.0, piece.2, piece.3) => last.1 = piece.1,
                    _ => relative.push(piece),
                }
            }
            relative
        };
        for command in &self.plan.warm_up {
            if let Command::Copy { from, to, .. } = command
                && held(from) != held(to)
            {
                return Err(broken(format!("{to} does not have the contents of {from} at the end")));
            }
        }
        Ok(())
    }

    /// Returns where the next step's backing location is now, before the memories that take turns are exchanged.
    fn after_exchange(&self, backing: &BackingLocation) -> BackingLocation {
        let mut backing = backing.clone();
        if let Some((current, next)) = self.plan.turns {
            let moved = backing.pieces.iter_mut().filter(|(_, region)| region.memory == current);
            moved.for_each(|(_, region)| region.memory = next);
        }
        backing
    }

    fn before_update(&self) -> Result<(), PlanError> {
        let (plan, program, expected) = (self.plan, self.program, &self.expected.before_update);
        self.backing_holds(&plan.persistent, &program.persistent, expected, "before the update phase")?;
        self.backing_holds(&plan.outputs, &program.outputs, expected, "before the update phase")
    }

    fn backing_holds(
        &self,
        held: &[BackingLocation],
        named: &[NamedOperand],
        expected: &Buffers,
        when: &str,
    ) -> Result<(), PlanError> {
        backing(held, named)?
            .into_iter()
            .try_for_each(|(_, named, backing)| self.backing_location_holds(named, backing, expected, when))
    }

    fn backing_location_holds(
        &self,
        named: &NamedOperand,
        backing: &BackingLocation,
        expected: &Buffers,
        when: &str,
    ) -> Result<(), PlanError> {
        let covered: u64 = backing.pieces.iter().map(|(bytes, _)| bytes.len()).sum();
        if covered != named.operand.desc.total_size_bytes() {
            return Err(broken(format!("the backing location of '{}' does not cover all of it", named.name)));
        }
        for (bytes, region) in &backing.pieces {
            let start = named.operand.offset_bytes + bytes.start;
            let range = ByteRange::new(start, start + bytes.len());
            let contents = expected.get(&named.operand.buffer).map(|map| map.get(range)).unwrap_or_default();
            if contents.is_empty() {
                return Err(broken(format!("nothing is ever written to '{}'", named.name)));
            }
            self.holds(&contents, range, *region)
                .map_err(|reason| broken(format!("the backing location of '{}' {when}: {reason}", named.name)))?;
        }
        Ok(())
    }

    /// Checks that a region holds the expected contents of a buffer's range.
    fn holds(&self, expected: &[(ByteRange, Tag)], range: ByteRange, region: Region) -> Result<(), String> {
        let shift = i128::from(region.range.start) - i128::from(range.start);
        for &(part, tag) in expected {
            let at = |byte: u64| (i128::from(byte) + shift) as u64;
            let found =
                self.memories.get(&region.memory).map(|map| map.get(ByteRange::new(at(part.start), at(part.end))));
            let found = found.unwrap_or_default();
            let right = found.iter().all(|(_, held)| held.write == tag.write && held.shift == shift + tag.shift);
            let held: u64 = found.iter().map(|(bytes, _)| bytes.len()).sum();
            if !right || held != part.len() {
                return Err(format!("{region} does not contain its bytes {part}"));
            }
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch, index: usize) -> Result<(), PlanError> {
        let label = launch.label as usize;
        let source = &self.program.launches[label];
        let (expected_reads, expected_writes) = self.expected.found[label].split_at(source.reads.len());
        let wrong = |reason| broken(format!("'{}' (command {index}): {reason}", source.name));
        for ((operand, binding), expected) in source.reads.iter().zip(&launch.reads).zip(expected_reads) {
            let range = operand.range();
            let written: u64 = expected.iter().map(|(part, _)| part.len()).sum();
            if operand.desc.is_dense() && written != range.len() {
                return Err(broken(format!("'{}' (command {index}) reads bytes that nothing wrote", source.name)));
            }
            self.holds(expected, range, binding.region).map_err(wrong)?;
        }
        for ((operand, binding), expected) in source.writes.iter().zip(&launch.writes).zip(expected_writes) {
            let role = self.program.buffer(operand.buffer).role;
            if index < self.plan.update_start && matches!(role, Role::Parameter | Role::State | Role::Constant) {
                return Err(broken(format!("'{}' changes state before the update phase", source.name)));
            }
            if !operand.desc.is_dense() {
                self.holds(expected, operand.range(), binding.region).map_err(wrong)?;
            }
        }
        for (write, (operand, binding)) in
            (self.expected.first_write[label]..).zip(source.writes.iter().zip(&launch.writes))
        {
            let shift = i128::from(binding.region.range.start) - i128::from(operand.offset_bytes);
            self.memories.entry(binding.region.memory).or_default().set(binding.region.range, Tag { write, shift });
        }
        if let Some(workspace) = launch.workspace {
            self.memories.entry(workspace.memory).or_default().clear(workspace.range);
        }
        Ok(())
    }

    fn copy(&mut self, from: Region, to: Region) {
        let pieces = self.memories.get(&from.memory).map(|map| map.get(from.range)).unwrap_or_default();
        let moved = i128::from(to.range.start) - i128::from(from.range.start);
        let target = self.memories.entry(to.memory).or_default();
        target.clear(to.range);
        for (part, tag) in pieces {
            let at = |byte: u64| (i128::from(byte) + moved) as u64;
            target.set(ByteRange::new(at(part.start), at(part.end)), Tag { shift: tag.shift + moved, ..tag });
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{Kernel, StreamId};

    use super::*;
    use crate::cost::estimate;
    use crate::partition::partition;
    use crate::plan::Movement;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{Random, limits, random_training_program};

    /// Plans that would lose parameters when a disk fails are detected.
    #[test]
    fn what_a_failed_step_must_leave_is_not_written() {
        // The first program that, depending on the memory on the host, takes turns between two places or keeps one.
        let plans_of = |seed: u64| {
            let program = random_training_program(&mut Random::new(seed), 4);
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let planned = |device_bytes, host_bytes| {
                let budgets =
                    PlanOptions { device_budget_bytes: device_bytes, host_budget_bytes: host_bytes, ..spilling() };
                plan(&program, &budgets, &limits, &costs)
            };
            let half = planned(None, None).unwrap().statistics.in_core_peak_bytes / 2;
            let roomy = planned(Some(half), None).unwrap().statistics.host_bytes;
            let Err(PlanError::HostBudget { needed_bytes, .. }) = planned(Some(half), Some(0)) else { return None };
            let plans = [needed_bytes, roomy - 1].map(|host_bytes| planned(Some(half), Some(host_bytes)).unwrap());
            let [turning, keeping] = &plans;
            let differ = turning.turns.is_some() && keeping.turns.is_none() && keeping.statistics.spill_bytes > 0;
            differ.then_some((program, plans))
        };
        let (program, [mut turning, mut keeping]) = (0..40).find_map(plans_of).expect("a program of both kinds");
        let error = |plan: &Plan| {
            let parts = plan.cut_bytes.and_then(|limit_bytes| partition(&program, limit_bytes));
            check(&program, parts.as_ref(), plan).unwrap_err().to_string()
        };
        keeping.update_start = 0;
        assert!(error(&keeping).contains("changes in place"), "{}", error(&keeping));
        let (current, next) = turning.turns.unwrap();
        let mut exchanged = turning.clone();
        exchanged.turns = Some((next, current));
        assert!(error(&exchanged).contains("must leave unchanged"), "{}", error(&exchanged));
        turning.turns = None;
        assert!(error(&turning).contains("changes in place"), "{}", error(&turning));
    }

    fn spilling() -> PlanOptions {
        PlanOptions { spill: true, check: true, ..PlanOptions::default() }
    }

    #[test]
    fn a_race_in_a_plan_names_its_nodes() {
        let region = |index: u64| Region::new(MemoryId(0), index * 64, 64);
        let binding = |index: u64| {
            let desc = forebay_base::TensorDesc::packed(forebay_base::DataType::Float32, &[16]).unwrap();
            forebay_base::Binding { region: region(index), desc }
        };
        let launch = Launch {
            kernel: Kernel::Copy,
            reads: vec![binding(1)],
            writes: vec![binding(2)],
            workspace: None,
            label: 0,
        };
        let plan = Plan {
            commands: vec![
                Command::Copy { stream: StreamId(1), from: region(0), to: region(1) },
                Command::Launch { stream: StreamId(0), launch: Box::new(launch) },
            ],
            labels: vec!["relu_1".to_string()],
            movements: vec![Movement {
                command: 0,
                name: "conv_1.w".to_string(),
                role: Role::Parameter,
                reason: String::new(),
            }],
            ..Plan::default()
        };
        let error = order(&plan).unwrap_err().to_string();
        assert!(error.contains("'copy of conv_1.w' (command 0 of s1) and 'relu_1' (command 1 of s0)"), "{error}");
    }
}
