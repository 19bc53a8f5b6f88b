//! Slices: the ranges of values that each process keeps: of parameters and state, and of what is computed from slices.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::kernel::facts::OperandRef;
use forebay_base::{ByteRange, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

use super::Building;
use super::exchange::bytes_of;
use crate::distribute::sharding::Flat;
use crate::distribute::sharing::{Sliced, State};
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;

/// A gathered parameter is dropped, and gathered again later, if it is not needed again within this many launches.
const KEPT_LAUNCHES: usize = 12;

/// A buffer with all slices of another buffer.
pub(super) struct Gathered {
    pub whole: BufferId,
    /// The last launch that used it.
    used: usize,
}

impl Building<'_> {
    /// Returns each process's slice, in bytes.
    pub(super) fn byte_slices(&self, sliced: &Sliced) -> Option<Vec<ByteRange>> {
        let bytes = sliced.element_bytes;
        let slice = |slice: Range<u64>| ByteRange::new(slice.start * bytes, slice.end * bytes);
        Some(sliced.slices(self.processes)?.into_iter().map(slice).collect())
    }

    /// Returns this process's slice, in bytes.
    pub(super) fn own_slice(&self, sliced: &Sliced) -> Option<ByteRange> {
        self.byte_slices(sliced)?.get(self.rank).copied()
    }

    /// Returns a buffer with all elements of a buffer of which each process has a slice.
    pub(super) fn gathered_slices(&mut self, buffer: BufferId, sliced: Sliced) -> Option<BufferId> {
        let now = self.number;
        if let Some(Gathered { whole, used }) = self.whole_slices.get_mut(&(buffer, self.part))
            && now - *used < KEPT_LAUNCHES
        {
            *used = now;
            return Some(*whole);
        }
        let sizes = self.sizes_of(&sliced)?;
        let name = self.buffers[buffer.0 as usize].name.clone();
        let whole = self.buffer(format!("all of {name}"), sizes.iter().sum::<u64>().next_multiple_of(4))?;
        self.exchange_all(&name, buffer, whole, &sizes)?;
        self.whole_slices.insert((buffer, self.part), Gathered { whole, used: now });
        Some(whole)
    }

    /// Returns a launch of the current part with buffers of slices that this part has gathered, instead of those of the first part: what a
    /// part has gathered is dropped before the next part begins.
    pub(super) fn with_own_slices(&mut self, mut launch: ProgramLaunch) -> Option<ProgramLaunch> {
        if self.part == 0 {
            return Some(launch);
        }
        for read in &mut launch.reads {
            let first = self.whole_slices.iter().find(|((_, part), of)| *part == 0 && of.whole == read.buffer);
            if let Some((&(buffer, _), _)) = first
                && let State::Slice(sliced) = self.state(buffer)
            {
                read.buffer = self.gathered_slices(buffer, sliced)?;
            }
        }
        Some(launch)
    }

    /// Returns the number of bytes in each process's slice.
    fn sizes_of(&self, sliced: &Sliced) -> Option<Vec<u64>> {
        Some(self.byte_slices(sliced)?.iter().map(|slice| slice.len()).collect())
    }

    /// Makes every process have all of a buffer of which each has the newest slice.
    pub(super) fn gather_newest(&mut self, buffer: BufferId) -> Option<()> {
        let State::NewestSlice(sliced) = self.state(buffer) else { return Some(()) };
        let (own, sizes) = (self.own_slice(&sliced)?, self.sizes_of(&sliced)?);
        let name = self.buffers[buffer.0 as usize].name.clone();
        // What is sent and what is received are in different places.
        let slice = self.buffer(format!("slice of {name}"), own.len().next_multiple_of(4))?;
        let target = bytes_of(slice, own.len())?;
        let source = Operand { buffer, offset_bytes: own.start, ..target.clone() };
        self.push(format!("slice of {name}"), Kernel::Copy, vec![source], vec![target]);
        self.exchange_all(&name, slice, buffer, &sizes)
    }

    /// Returns whether an elementwise launch before the update phase is computed by slices: if that saves gathering an operand, or room for
    /// results of which nothing needs all.
    pub(super) fn saves_by_slices(&self, flat: &Flat) -> bool {
        let is_slice = |read: &Operand| matches!(self.state(read.buffer), State::Slice(_));
        flat.reads_along().any(is_slice) || flat.launch.writes.iter().all(|write| self.is_kept_only(write.buffer))
    }

    /// Returns whether each process keeps its slice of a temporary buffer, and no launch before the update phase needs all of it.
    pub(super) fn is_kept_only(&self, buffer: BufferId) -> bool {
        self.sharding.kept.contains(&buffer) && !self.sharding.needed_whole.contains(&buffer)
    }

    /// Adds an elementwise launch of which each process computes its slice.
    pub(super) fn add_slice(&mut self, flat: &Flat) -> Option<()> {
        let slices = flat.sliced().slices(self.processes)?;
        let rows: Vec<Rows> = slices.iter().map(|slice| Rows { start: slice.start, end: slice.end }).collect();
        let all = flat.launch.reads.iter().enumerate().map(|(read, operand)| (OperandRef::Read(read), operand));
        for (_, operand) in all.filter(|(reference, _)| flat.unit_of(*reference).is_none()) {
            self.gather_newest(operand.buffer)?;
        }
        let mut part = Cutting::new(&flat.launch, &flat.cut)?.part(rows[self.rank], None)?;
        for (number, write) in flat.launch.writes.iter().enumerate() {
            let sliced = Sliced::of(&write.desc, flat.unit_of(OperandRef::Write(number))?);
            let is_kept =
                self.sharding.buffers.contains_key(&write.buffer) || self.sharding.kept.contains(&write.buffer);
            self.states[write.buffer.0 as usize] =
                if is_kept { State::Slice(sliced) } else { State::NewestSlice(sliced) };
            self.whole_slices.retain(|(buffer, _), _| *buffer != write.buffer);
        }
        for (number, read) in part.reads.iter_mut().enumerate() {
            let is_elsewhere = match self.state(read.buffer) {
                State::Shared(_) => true,
                // One element, which another process may have.
                State::Slice(_) => flat.unit_of(OperandRef::Read(number)).is_none(),
                _ => false,
            };
            if is_elsewhere {
                read.buffer = self.whole_buffer(read.buffer)?;
            }
        }
        for operand in part.reads.iter_mut().chain(&mut part.writes) {
            if let State::Slice(sliced) = self.state(operand.buffer) {
                operand.offset_bytes = operand.offset_bytes.checked_sub(self.own_slice(&sliced)?.start)?;
            }
        }
        self.count(&flat.launch, self.largest_share(&rows));
        self.push_launch(part);
        Some(())
    }

    /// Adds a launch of the update phase.
    pub(super) fn add_update(&mut self, number: usize, launch: &ProgramLaunch) -> Option<()> {
        let sharding = self.sharding;
        if let Some(flat) = sharding.launches.get(&number) {
            self.add_slice(flat)?;
        } else {
            for operand in launch.reads.iter().chain(&launch.writes) {
                self.gather_newest(operand.buffer)?;
            }
            self.add_whole(launch.clone())?;
        }
        let is_last = |operand: &&Operand| sharding.last_uses.get(&operand.buffer) == Some(&number);
        let done: Vec<BufferId> = launch.writes.iter().filter(is_last).map(|write| write.buffer).collect();
        done.into_iter().try_for_each(|buffer| self.gather_newest(buffer))
    }

    /// Makes this process keep its slice of `whole`, an operand that it has computed, in `buffer`.
    pub(super) fn keep_slice(&mut self, buffer: BufferId, whole: &Operand) -> Option<()> {
        let sliced = Sliced::of(&whole.desc, self.sharding.unit);
        let own = self.own_slice(&sliced)?;
        let source = Operand { offset_bytes: own.start, ..bytes_of(whole.buffer, own.len())? };
        let name = format!("slice of {}", self.buffers[buffer.0 as usize].name);
        self.push(name, Kernel::Copy, vec![source], vec![bytes_of(buffer, own.len())?]);
        self.states[buffer.0 as usize] = State::Slice(sliced);
        Some(())
    }

    /// Returns the operand for a sum over images of which each process keeps the slice that it added, in a buffer of the slice's size.
    pub(super) fn kept_slice(&mut self, write: &Operand, own: &ByteRange) -> Option<Operand> {
        let sliced = Sliced::of(&write.desc, self.sharding.unit);
        self.states[write.buffer.0 as usize] = State::Slice(sliced);
        let desc = TensorDesc::packed(write.desc.data_type(), &[own.len() / sliced.element_bytes]).ok()?;
        Some(Operand { buffer: write.buffer, offset_bytes: 0, desc })
    }

    /// Makes persistent values that are sharded begin as slices.
    pub(super) fn begin_slices(&mut self) {
        let lasting = self.program.persistent.iter().map(|named| &named.operand);
        for operand in lasting {
            if let Some(&sliced) = self.sharding.buffers.get(&operand.buffer) {
                self.states[operand.buffer.0 as usize] = State::Slice(sliced);
            }
        }
    }

    /// Gives persistent values that are sharded the size and the contents of this process's slice. Returns the slices of all processes by
    /// name.
    pub(super) fn finish_slices(&mut self, program: &mut Program) -> Option<BTreeMap<String, Vec<Range<u64>>>> {
        let mut found = BTreeMap::new();
        for named in &mut program.persistent {
            let Some(sliced) = self.sharding.buffers.get(&named.operand.buffer) else { continue };
            let slices = sliced.slices(self.processes)?;
            let own = slices.get(self.rank)?.clone();
            let count = own.end - own.start;
            named.shape = vec![count];
            named.operand.desc = TensorDesc::packed(named.operand.desc.data_type(), &[count]).ok()?;
            if let Some(contents) = program.contents.get_mut(&named.operand.buffer) {
                *contents = contents.slice(own);
            }
            found.insert(named.name.clone(), slices);
        }
        Some(found)
    }
}
