//! The program of a process, built launch by launch.

mod exchange;
mod slices;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_base::kernel::Summing;
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};

use super::sharding::Sharding;
use super::shares::shares;
use super::sharing::{Shared, Sharing, State, images_of_writes};
use super::{Distributed, SharedWork};
use crate::accumulate::{Placed, by_parts};
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;
use crate::partition::uncounted_loss;

/// Up to this many processes, the parts of all of them are checked before a launch is distributed.
const ALL_LOOKED_AT: usize = 16;

/// The program of a process while it is built.
pub(super) struct Building<'a> {
    program: &'a Program,
    rank: usize,
    processes: usize,
    /// Shares begin at multiples of this many images.
    quantum: u64,
    /// The number of parts in which all processes together go through the batch, one after the other. Each process has a share of each part.
    parts: u64,
    buffers: Vec<Buffer>,
    launches: Vec<ProgramLaunch>,
    /// By launch: the part that it belongs to. A launch that needs several parts, or none, belongs to the first: it runs as soon as it can.
    part_of: Vec<u64>,
    /// The part of the launches that are being added.
    part: u64,
    update_start: usize,
    /// By buffer: the location of its contents.
    states: Vec<State>,
    /// By distributed buffer: a buffer with all of its contents, as long as they do not change.
    gathered: BTreeMap<BufferId, BufferId>,
    /// By buffer of slices and part: the buffers with all slices.
    whole_slices: BTreeMap<(BufferId, u64), slices::Gathered>,
    /// What is sharded among the processes.
    sharding: &'a Sharding,
    /// The launch of the program that is being added.
    number: usize,
    /// Losses that are distributed: the kind of sums, what they read, and the sums.
    losses: Vec<(Summing, Vec<Operand>, Operand)>,
    work: SharedWork,
}

impl<'a> Building<'a> {
    pub fn new(
        program: &'a Program,
        sharding: &'a Sharding,
        (rank, processes): (usize, usize),
        (quantum, parts): (u64, u64),
    ) -> Building<'a> {
        let state = |buffer: &Buffer| if buffer.role.is_temporary() { State::Unwritten } else { State::Whole };
        let mut building = Building {
            program,
            rank,
            processes,
            quantum,
            parts,
            buffers: program.buffers.clone(),
            launches: Vec::with_capacity(program.launches.len()),
            part_of: Vec::with_capacity(program.launches.len()),
            part: 0,
            update_start: 0,
            states: program.buffers.iter().map(state).collect(),
            gathered: BTreeMap::new(),
            whole_slices: BTreeMap::new(),
            sharding,
            number: 0,
            losses: Vec::new(),
            work: SharedWork::default(),
        };
        building.begin_slices();
        building
    }

    /// Distributes the inputs, and returns which of their images this process is fed. An input from which each launch takes only some
    /// images, such as the parts of a batch, is fed whole.
    pub fn share_inputs(&mut self, batch: &BTreeSet<String>) -> BTreeMap<String, Vec<Range<u64>>> {
        let mut own = BTreeMap::new();
        for NamedOperand { name, operand, .. } in &self.program.inputs {
            let (desc, buffer) = (&operand.desc, operand.buffer.0 as usize);
            let images = desc.sizes().first().copied().unwrap_or(0);
            let Some(shares) = self.shares(images).filter(|_| batch.contains(name)) else { continue };
            let image_bytes = desc.element_count() / images * desc.data_type().size_bytes();
            let is_plain = desc.is_packed()
                && operand.offset_bytes == 0
                && self.program.buffers[buffer].size_bytes == (image_bytes * images).next_multiple_of(4);
            if !is_plain {
                continue;
            }
            let takes_some = |launch: &ProgramLaunch| {
                let is_slice = matches!(&launch.kernel, Kernel::Slice { .. });
                let is_some = |read: &Operand| is_slice || read.desc.element_count() < desc.element_count();
                launch.reads.iter().any(|read| read.buffer == operand.buffer && is_some(read))
            };
            self.states[buffer] = match self.program.launches.iter().any(takes_some) {
                true => State::Batch(images),
                false => {
                    own.insert(name.clone(), self.own_of(&shares).collect());
                    State::Shared(Shared { images, image_bytes })
                }
            };
        }
        own
    }

    /// Adds all launches. `None` if contents would have to be whole and distributed at the same time.
    pub fn build(&mut self) -> Option<()> {
        let program = self.program;
        let (before, updates) = program.phases();
        for (number, launch) in before.iter().enumerate() {
            self.number = number;
            self.add(launch.clone())?;
        }
        // Whatever the update phase reads is exchanged before the phase begins, and so are the outputs.
        let reads = updates.iter().flat_map(|launch| &launch.reads);
        let outputs = program.outputs.iter().map(|named| &named.operand);
        for operand in reads.chain(outputs) {
            if let State::Shared(_) = self.state(operand.buffer) {
                self.whole_buffer(operand.buffer)?;
            }
        }
        if self.parts > 1 {
            self.order_by_parts();
        }
        self.update_start = self.launches.len();
        for (number, launch) in (before.len()..).zip(updates) {
            self.number = number;
            self.add_update(number, launch)?;
        }
        self.chain_exchanges()
    }

    /// Sorts launches by part, so that what a part keeps for its backward pass is freed before the next part begins.
    fn order_by_parts(&mut self) {
        let launches = std::mem::take(&mut self.launches).into_iter().zip(std::mem::take(&mut self.part_of));
        let placed = launches.map(|(launch, part)| Placed { launch, source: 0, part }).collect();
        for Placed { launch, part, .. } in by_parts(&self.buffers, placed) {
            self.launches.push(launch);
            self.part_of.push(part);
        }
    }

    /// Returns the finished program; `None` if nothing is distributed.
    pub fn finish(mut self, inputs: BTreeMap<String, Vec<Range<u64>>>) -> Option<Distributed> {
        if self.work.shared_launches == 0 && self.sharding.launches.is_empty() && self.sharding.buffers.is_empty() {
            return None;
        }
        let outputs = self.program.outputs.iter().map(|named| {
            let own = named.operand.buffer;
            let slices = self.whole_slices.get(&(own, 0)).map(|slices| slices.whole);
            let buffer = self.gathered.get(&own).copied().or(slices).unwrap_or(own);
            NamedOperand { operand: Operand { buffer, ..named.operand.clone() }, ..named.clone() }
        });
        let outputs = outputs.collect();
        let fed = self.program.inputs.iter().map(|named| {
            let Some(own) = inputs.get(&named.name) else { return Some(named.clone()) };
            let with_share = |sizes: &[u64]| {
                let mut sizes = sizes.to_vec();
                sizes.iter_mut().take(1).for_each(|size| *size = images_in(own));
                sizes
            };
            let desc = &named.operand.desc;
            let desc = TensorDesc::packed(desc.data_type(), &with_share(desc.sizes())).ok()?;
            let operand = Operand { desc, ..named.operand.clone() };
            Some(NamedOperand { name: named.name.clone(), shape: with_share(&named.shape), operand })
        });
        let fed = fed.collect::<Option<Vec<_>>>()?;
        for (buffer, state) in self.states.iter().enumerate() {
            let bytes = match state {
                State::Shared(shared) => {
                    let own: Vec<Range<u64>> = self.own_of(&self.shares(shared.images)?).collect();
                    images_in(&own) * shared.image_bytes
                }
                State::Slice(sliced) => self.own_slice(sliced)?.len(),
                State::Unwritten | State::Whole | State::Batch(_) | State::NewestSlice(_) => continue,
            };
            let buffer = &mut self.buffers[buffer];
            if buffer.role.is_persistent() {
                self.work.sharded_bytes += buffer.size_bytes;
                self.work.own_shard_bytes += bytes;
            }
            buffer.size_bytes = bytes.next_multiple_of(4);
        }
        let mut program = self.program.clone();
        let shards = self.finish_slices(&mut program)?;
        let Building { parts, buffers, launches, update_start, work, .. } = self;
        let program = Program { buffers, launches, update_start, inputs: fed, outputs, ..program };
        debug_assert_eq!(program.validate().map_err(|error| error.to_string()), Ok(()));
        Some(Distributed { program, inputs, parts, shards, work })
    }

    /// Returns the images of each process in the first part, then in the second one, and so on. A batch with few images has fewer parts.
    fn shares(&self, images: u64) -> Option<Vec<Range<u64>>> {
        (1..=self.parts).rev().find_map(|parts| shares(images, self.processes as u64 * parts, self.quantum))
    }

    /// Returns what this process has of each part.
    fn own_of<'b, T: Clone>(&'b self, of_all: &'b [T]) -> impl Iterator<Item = T> + 'b {
        of_all.iter().skip(self.rank).step_by(self.processes).cloned()
    }

    /// Returns the state of an operand's buffer, and its size in bytes.
    fn of_buffer(&self, operand: &Operand) -> (State, u64) {
        (self.state(operand.buffer), self.buffers[operand.buffer.0 as usize].size_bytes)
    }

    /// Counts the operations of a launch, all of which or a share of which each process executes.
    fn count(&mut self, launch: &ProgramLaunch, largest_share: f64) {
        let operations = launch.kernel.facts().operations(|operand| launch.desc(operand));
        self.work.operations += operations * largest_share;
    }

    fn state(&self, buffer: BufferId) -> State {
        self.states[buffer.0 as usize]
    }

    /// Adds a launch before the update phase: a slice of it, or distributed if possible, otherwise whole.
    fn add(&mut self, mut launch: ProgramLaunch) -> Option<()> {
        if let Some(flat) = self.sharding.launches.get(&self.number).filter(|flat| self.saves_by_slices(flat)) {
            return self.add_slice(flat);
        }
        for read in &mut launch.reads {
            if let State::Slice(sliced) = self.state(read.buffer) {
                read.buffer = self.gathered_slices(read.buffer, sliced)?;
            }
        }
        let Some(sharing) = Sharing::of(&launch, &|operand| self.of_buffer(operand)) else {
            return self.add_whole(launch);
        };
        let is_sum = sharing.writes.iter().any(Option::is_none);
        let added = if is_sum { self.add_sum(&launch, &sharing) } else { self.add_shared(&launch, &sharing) };
        match added {
            Some(()) => Some(()),
            None => self.add_whole(launch),
        }
    }

    /// Returns the rows of each process in the first part, then in the second one, and so on, if parts can begin there.
    fn rows(&self, sharing: &Sharing, step: u64) -> Option<Vec<Rows>> {
        let (unit, rows) = (sharing.cut.rows / sharing.images, sharing.cut.rows);
        let shares = self.shares(sharing.images)?;
        let of_share = |share: &Range<u64>| Rows { start: share.start * unit, end: share.end * unit };
        let all: Vec<Rows> = shares.iter().map(of_share).collect();
        all.iter().all(|own| own.start.is_multiple_of(step) && own.end <= rows).then_some(all)
    }

    /// Returns the operands of a launch on images of the current part, as they are located in this process's buffers, in which its images
    /// follow each other.
    fn own_operands(&self, operands: Vec<Operand>) -> Option<Vec<Operand>> {
        let own = |mut operand: Operand| {
            if let State::Shared(shared) = self.state(operand.buffer) {
                let shares = self.shares(shared.images)?;
                let own: Vec<Range<u64>> = self.own_of(&shares).collect();
                let (earlier, now) = (own.get(..self.part as usize)?, own.get(self.part as usize)?);
                let elsewhere = (now.start - images_in(earlier)) * shared.image_bytes;
                operand.offset_bytes = operand.offset_bytes.checked_sub(elsewhere)?;
            }
            Some(operand)
        };
        operands.into_iter().map(own).collect()
    }

    fn own_part(&self, part: ProgramLaunch) -> Option<ProgramLaunch> {
        let (reads, writes) = (self.own_operands(part.reads)?, self.own_operands(part.writes)?);
        Some(ProgramLaunch { reads, writes, ..part })
    }

    /// Adds this process's share of a launch whose results have images, part by part. `None` if that is impossible; in this case nothing has
    /// changed.
    fn add_shared(&mut self, launch: &ProgramLaunch, sharing: &Sharing) -> Option<()> {
        let cutting = Cutting::new(launch, &sharing.cut)?;
        let rows = self.rows(sharing, sharing.dimension.cut?)?;
        let mut sums = None;
        if let Some(loss) = uncounted_loss(launch) {
            let is_same =
                |(_, reads, _): &&(Summing, Vec<Operand>, Operand)| launch.reads.get(1..3) == Some(&reads[..]);
            let found = self.losses.iter().filter(|(of, ..)| *of == loss).find(is_same);
            sums = Some(found?.2.clone());
        }
        witnesses(&rows).into_iter().try_for_each(|rows| cutting.part(rows, None).map(drop))?;
        let before: Vec<State> = launch.writes.iter().map(|write| self.state(write.buffer)).collect();
        for (write, shared) in launch.writes.iter().zip(&sharing.writes) {
            self.states[write.buffer.0 as usize] = State::Shared((*shared)?);
        }
        let own = self.own_of(&rows).collect::<Vec<Rows>>();
        let own = self.each_part(own.len(), |building, part| building.own_part(cutting.part(own[part], None)?));
        let Some(own) = own else {
            launch.writes.iter().zip(before).for_each(|(write, state)| self.states[write.buffer.0 as usize] = state);
            return None;
        };
        for write in &launch.writes {
            self.gathered.remove(&write.buffer);
        }
        self.work.shared_launches += 1;
        self.count(launch, self.largest_share(&rows));
        let mut own = own.into_iter();
        self.each_part(own.len(), |building, _| {
            let mut part = building.with_own_slices(own.next()?)?;
            part.reads.extend(sums.clone());
            building.push_launch(part);
            Some(())
        })?;
        Some(())
    }

    /// Does something for each of the first parts, and returns the results.
    fn each_part<T>(&mut self, parts: usize, mut each: impl FnMut(&mut Self, usize) -> Option<T>) -> Option<Vec<T>> {
        let all = (0..parts).map(|part| {
            self.part = part as u64;
            each(self, part)
        });
        let all: Option<Vec<T>> = all.collect();
        self.part = 0;
        all
    }

    /// Returns the largest fraction of all rows that a process has.
    fn largest_share(&self, rows: &[Rows]) -> f64 {
        let all = rows.last().map_or(1, |last| last.end).max(1);
        let of_process = |rank: usize| rows[rank..].iter().step_by(self.processes).map(|own| own.len()).sum::<u64>();
        (0..self.processes).map(of_process).max().unwrap_or(all) as f64 / all as f64
    }

    /// Adds a launch that every process computes, with whole operands. `None` if it would have to write a part of a distributed buffer and
    /// cannot.
    fn add_whole(&mut self, mut launch: ProgramLaunch) -> Option<()> {
        let exchanges = self.work.exchanges;
        let images = images_of_writes(&launch, &|operand| self.of_buffer(operand));
        self.count(&launch, 1.0);
        for read in &mut launch.reads {
            read.buffer = self.whole_buffer(read.buffer)?;
        }
        if self.work.exchanges > exchanges {
            self.work.whole_launches.push(launch.name.clone());
        }
        // If other launches have written their images to a buffer, so does this launch, from a separate buffer.
        let mut copies = Vec::new();
        let mut slices = Vec::new();
        for (write, images) in launch.writes.iter_mut().zip(images) {
            match self.state(write.buffer) {
                State::Shared(_) => {
                    let Buffer { name, size_bytes, .. } = &self.buffers[write.buffer.0 as usize];
                    let whole = self.buffer(format!("all of {name}"), *size_bytes)?;
                    let target = write.clone();
                    write.buffer = whole;
                    let name = format!("{} to its images", launch.name);
                    copies.push(ProgramLaunch::new(name, Kernel::Copy, vec![write.clone()], vec![target]));
                }
                State::Unwritten if images.is_none() && self.is_kept_only(write.buffer) => {
                    let Buffer { name, size_bytes, .. } = &self.buffers[write.buffer.0 as usize];
                    let whole = self.buffer(format!("all of {name}"), *size_bytes)?;
                    slices.push((std::mem::replace(&mut write.buffer, whole), write.clone()));
                }
                State::Unwritten | State::Whole | State::Batch(_) => {}
                // Sharded buffers are only written by slices, and buffers whose slices are newest have been gathered.
                State::Slice(_) | State::NewestSlice(_) => return None,
            }
            self.states[write.buffer.0 as usize] = images.map_or(State::Whole, State::Batch);
        }
        self.push_launch(launch);
        for (buffer, whole) in slices {
            self.keep_slice(buffer, &whole)?;
        }
        for copy in copies {
            let sharing = Sharing::of(&copy, &|operand| self.of_buffer(operand))?;
            self.add_shared(&copy, &sharing)?;
        }
        Some(())
    }

    fn push(&mut self, name: String, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        self.push_launch(ProgramLaunch::new(name, kernel, reads, writes));
    }

    fn push_launch(&mut self, launch: ProgramLaunch) {
        self.launches.push(launch);
        self.part_of.push(self.part);
    }

    /// Adds a separate buffer.
    fn buffer(&mut self, name: String, size_bytes: u64) -> Option<BufferId> {
        let buffer = BufferId(u32::try_from(self.buffers.len()).ok()?);
        self.buffers.push(Buffer { name, size_bytes, role: Role::Temporary });
        self.states.push(State::Unwritten);
        Some(buffer)
    }
}

/// Returns parts that represent those of all processes: if these are possible, so are the others. All that a part requires is that its
/// beginning is a multiple of some number.
fn witnesses(rows: &[Rows]) -> Vec<Rows> {
    if rows.len() <= ALL_LOOKED_AT {
        return rows.to_vec();
    }
    let common = rows.iter().fold(0, |common, own| gcd(common, own.start));
    let aligned_alike = Rows { start: common, end: rows[1].end };
    vec![rows[0], rows[1], rows[rows.len() - 1], aligned_alike]
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the number of images in ranges.
fn images_in(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}
