//! A step whose contents can be dropped, and the memory that a sequence of its launches takes.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::program::{BufferId, Program, Role};

use crate::alias::may_take_over;
use crate::backing_stores::is_in_model_files;
use crate::cost::Costs;
use crate::liveness::{Chunk, Liveness, Owner};

/// The lifetime of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// From step to step.
    Lasting,
    /// While launches use them: they are read from a file each time.
    InFile,
    /// Written by the caller before the step.
    Fed,
    /// From a launch to a later one of the same step.
    Temporary,
}

/// Bytes that launches touch only as a whole.
pub(super) struct Content<'a> {
    pub(super) bytes: i64,
    /// The bytes of the buffer that it is in.
    pub(super) buffer_bytes: u64,
    pub(super) lifetime: Lifetime,
    /// Whether the caller reads it.
    pub(super) is_output: bool,
    /// The launch that computes all of it; `None` if several write it.
    pub(super) maker: Option<usize>,
    /// The number of launches that touch it.
    pub(super) uses: usize,
    /// The number of its first gap among the gaps of all contents. There is one gap between each two consecutive uses.
    pub(super) first_gap: usize,
    pub(super) chunk: &'a Chunk,
}

/// A launch and the contents that it touches.
#[derive(Default)]
pub(super) struct Item {
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
    /// What it reads, then what it writes without reading it.
    pub(super) touched: Vec<usize>,
    pub(super) duration_ns: u64,
    pub(super) workspace_bytes: i64,
    /// Whether the caller reads something that it writes.
    pub(super) gives_output: bool,
    /// The bytes of what it writes without reading it, as far as they do not last: temporary ones, and those of inputs.
    born_bytes: [i64; 2],
    /// The same of what it reads.
    read_bytes: [i64; 2],
    /// Contents that it writes, each with one that it reads and whose bytes the former may take over ([`mod@crate::alias`]).
    pub(super) in_place: Vec<(usize, usize)>,
    /// Whether it may run twice: it changes nothing that it reads or that others write, and no other process takes part in it.
    repeats: bool,
    /// The next launch that changes what it reads; `usize::MAX` if there is none.
    next_change: usize,
}

/// A step, prepared for the search.
pub(super) struct Step<'a> {
    pub(super) contents: Vec<Content<'a>>,
    pub(super) items: Vec<Item>,
    /// The number of gaps of all contents.
    pub(super) gap_count: usize,
    /// By launch: the launch that it is a part of.
    pub(super) origins: Vec<usize>,
    /// Whether inputs are live before their first use, outputs are live after their last use, and launches work in place.
    pub(super) one_pool: bool,
    /// Whether updates come after the outputs.
    pub(super) has_updates: bool,
    /// The first launch of the update phase.
    pub(super) update_start: usize,
}

impl Item {
    /// Returns what it writes without reading it.
    pub(super) fn only_written(&self) -> &[usize] {
        &self.touched[self.reads.len()..]
    }

    /// Returns the bytes that it takes.
    pub(super) fn born_bytes(&self, step: &Step) -> i64 {
        step.not_lasting(self.born_bytes)
    }

    /// Returns the bytes of what it reads that do not last.
    pub(super) fn read_bytes(&self, step: &Step) -> i64 {
        step.not_lasting(self.read_bytes)
    }
}

impl<'a> Step<'a> {
    /// Creates a step from a liveness with all accesses ([`Liveness::with_all_accesses`]); `reads_files` says whether weights in files are
    /// read at each use.
    pub(super) fn new(program: &Program, live: &'a Liveness, costs: &Costs, reads_files: bool) -> Step<'a> {
        let device_bytes = |chunk: &Chunk| {
            let is_on_host = chunk.accesses.len() == chunk.host_accesses.len();
            if is_on_host { 0 } else { chunk.device_bytes() as i64 }
        };
        let unchanged = || Item { next_change: usize::MAX, ..Item::default() };
        let mut items: Vec<Item> = (0..live.launch_count).map(|_| unchanged()).collect();
        let mut contents = Vec::new();
        let mut gap_count = 0;
        // By buffer: its first content.
        let mut numbers: BTreeMap<BufferId, usize> = BTreeMap::new();
        for (index, chunk) in live.chunks.iter().enumerate() {
            let Owner::Buffer(buffer) = chunk.owner else {
                if let Owner::Workspace(launch) = chunk.owner {
                    items[launch].workspace_bytes += device_bytes(chunk);
                }
                continue;
            };
            let number = contents.len();
            numbers.entry(buffer).or_insert(number);
            let mut next_change = usize::MAX;
            for access in chunk.accesses.iter().rev() {
                let item = &mut items[access.launch];
                if access.reads {
                    item.reads.push(number);
                    item.next_change = item.next_change.min(next_change);
                }
                if access.writes {
                    item.writes.push(number);
                    next_change = access.launch;
                }
            }
            let role = program.buffer(buffer).role;
            let lifetime = match role {
                Role::Input => Lifetime::Fed,
                Role::Constant if reads_files && is_in_model_files(program, live, index) => Lifetime::InFile,
                Role::Constant | Role::Parameter | Role::State => Lifetime::Lasting,
                Role::Temporary | Role::Gradient => Lifetime::Temporary,
            };
            // Outputs leave the device once, after they are computed.
            let is_output = program.outputs.iter().any(|named| named.operand.buffer == buffer);
            let is_on_host = chunk.host_accesses.iter().any(|access| access.writes);
            let mut writers = chunk.accesses.iter().filter(|access| access.writes);
            let maker = match (lifetime, writers.next(), writers.next()) {
                (Lifetime::Temporary, Some(only), None) if !only.reads && !is_output && !is_on_host => {
                    Some(only.launch)
                }
                _ => None,
            };
            let buffer_bytes = program.buffer(buffer).size_bytes;
            let bytes = device_bytes(chunk);
            let (uses, first_gap) = (chunk.accesses.len(), gap_count);
            contents.push(Content { bytes, buffer_bytes, lifetime, is_output, maker, uses, first_gap, chunk });
            gap_count += chunk.accesses.len().saturating_sub(1);
        }
        for (launch, item) in items.iter_mut().enumerate() {
            let read: BTreeSet<usize> = item.reads.iter().copied().collect();
            let only_written = item.writes.iter().filter(|write| !read.contains(write));
            item.touched = item.reads.iter().chain(only_written).copied().collect();
            item.duration_ns = costs.launch_ns[launch];
            item.gives_output = item.writes.iter().any(|&content| contents[content].is_output);
            let bytes = |numbers: &[usize], lifetime| {
                let contents = numbers.iter().map(|&number| &contents[number]);
                contents.filter(|content| content.lifetime == lifetime).map(|content| content.bytes).sum::<i64>()
            };
            item.born_bytes = [Lifetime::Temporary, Lifetime::Fed].map(|lifetime| bytes(item.only_written(), lifetime));
            item.read_bytes = [Lifetime::Temporary, Lifetime::Fed].map(|lifetime| bytes(&item.reads, lifetime));
            if program.launches[launch].in_host_memory {
                continue;
            }
            let pairs = program.launches[launch].kernel.in_place().iter();
            let pairs =
                pairs.filter_map(|&(write, read)| may_take_over(program, &program.launches[launch], write, read));
            // Outputs stay where they are; buffers in pieces are live piece by piece.
            let is_one = |number: &usize| contents[*number].chunk.range.len() == contents[*number].buffer_bytes;
            let one = |buffer| numbers.get(&buffer).copied().filter(is_one);
            let pairs = pairs.filter_map(|(write, read)| one(write).zip(one(read)));
            item.in_place = pairs.filter(|&(_, read)| !contents[read].is_output).collect();
            item.repeats = !program.launches[launch].kernel.is_collective();
            item.repeats &= item.writes.iter().all(|&content| contents[content].maker == Some(launch));
        }
        let update_start = program.update_start;
        let has_updates = update_start < program.launches.len();
        let origins = (0..live.launch_count).collect();
        Step { contents, items, gap_count, origins, one_pool: false, has_updates, update_start }
    }

    /// Returns the gaps of a content that end with a use before which it may be recomputed: the number of each, with the launches before
    /// and after it.
    pub(super) fn gaps(&self, content: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let Content { maker, chunk, first_gap, .. } = &self.contents[content];
        let pairs = chunk.accesses.windows(2).enumerate().filter(|(_, pair)| pair[1].reads);
        let gaps = pairs.map(move |(number, pair)| (first_gap + number, pair[0].launch, pair[1].launch));
        let may_end = move |end: usize| maker.is_some_and(|maker| self.may_repeat(maker, end));
        gaps.filter(move |&(_, start, end)| start + 1 < end && may_end(end))
    }

    /// Returns the longest of them.
    pub(super) fn longest_gap(&self, content: usize) -> Option<(usize, usize, usize)> {
        self.gaps(content).max_by_key(|&(gap, start, end)| (end - start, gap))
    }

    /// Returns every launch once.
    pub(super) fn plain(&self) -> Vec<(usize, bool)> {
        (0..self.items.len()).map(|launch| (launch, false)).collect()
    }

    /// Returns whether a launch may run again before another one: what it reads has not changed since.
    pub(super) fn may_repeat(&self, launch: usize, at: usize) -> bool {
        let item = &self.items[launch];
        item.repeats && at <= item.next_change
    }

    /// Returns the part of temporary bytes and bytes of inputs that does not last: in one pool, that includes inputs.
    fn not_lasting(&self, [temporary, fed]: [i64; 2]) -> i64 {
        if self.one_pool { temporary + fed } else { temporary }
    }

    /// Returns the bytes of those contents that do not last.
    pub(super) fn live_bytes(&self, contents: &[usize], counts: impl Fn(usize) -> bool) -> i64 {
        let counted = contents.iter().filter(|&&content| counts(content)).map(|&content| &self.contents[content]);
        let bytes = counted.map(|content| match content.lifetime {
            Lifetime::Temporary => content.bytes,
            Lifetime::Fed if self.one_pool => content.bytes,
            Lifetime::Fed | Lifetime::Lasting | Lifetime::InFile => 0,
        });
        bytes.sum()
    }

    /// Returns the live bytes during each launch of a sequence.
    pub(super) fn profile(&self, sequence: &[(usize, bool)]) -> Vec<i64> {
        let mut profiling = Profiling::default();
        profiling.profile(self, sequence);
        profiling.live_bytes
    }

    pub(super) fn recomputed_ns(&self, sequence: &[(usize, bool)]) -> u64 {
        let repeats = sequence.iter().filter(|(_, repeats)| *repeats);
        repeats.map(|&(launch, _)| self.items[launch].duration_ns).sum()
    }
}

/// Computes the live bytes of sequences. The memory that this takes is kept from one sequence to the next.
#[derive(Default)]
pub(super) struct Profiling {
    /// The live bytes during each launch of the latest sequence.
    pub(super) live_bytes: Vec<i64>,
    /// By content: since when it has been live, or [`NOWHERE`], and its last use so far.
    spans: Vec<(u32, u32)>,
    /// Where launches may take over bytes, if the first of the two contents ends there.
    takes_over: Vec<(u32, usize, usize)>,
}

/// Stands for no position.
const NOWHERE: u32 = u32::MAX;

impl Profiling {
    /// Computes the live bytes during each launch of a sequence.
    pub(super) fn profile(&mut self, step: &Step, sequence: &[(usize, bool)]) {
        let Profiling { live_bytes: changes, spans, takes_over } = self;
        changes.clear();
        spans.clear();
        takes_over.clear();
        changes.resize(sequence.len() + 1, 0);
        spans.resize(step.contents.len(), (NOWHERE, 0));
        let mut hold = |(start, end): (u32, u32), bytes: i64| {
            changes[start as usize] += bytes;
            changes[end as usize + 1] -= bytes;
        };
        for (place, &(launch, _)) in (0u32..).zip(sequence) {
            let item = &step.items[launch];
            hold((place, place), item.workspace_bytes);
            for &read in &item.reads {
                let span = &mut spans[read];
                *span = (if span.0 == NOWHERE { place } else { span.0 }, place);
                if step.contents[read].lifetime == Lifetime::InFile {
                    hold((place, place), step.contents[read].bytes);
                }
            }
            if step.one_pool {
                let new = item.in_place.iter().filter(|(write, _)| spans[*write].0 == NOWHERE);
                takes_over.extend(new.map(|&(write, read)| (place, read, write)));
            }
            for &write in &item.writes {
                // What is written without being read begins a new life.
                let before = spans[write];
                if before.0 == NOWHERE {
                    spans[write] = (place, place);
                } else if before.1 != place {
                    hold(before, step.contents[write].bytes);
                    spans[write] = (place, place);
                }
            }
        }
        let mut last = NOWHERE;
        for &(place, read, write) in takes_over.iter() {
            if last != place && spans[read].0 != NOWHERE && spans[read].1 == place {
                last = place;
                hold((place, place), -step.contents[write].bytes);
            }
        }
        let end = (sequence.len() as u32).wrapping_sub(1);
        for (content, &span) in step.contents.iter().zip(spans.iter()) {
            if span.0 == NOWHERE {
                continue;
            }
            let gives_output = step.one_pool && content.is_output && !step.has_updates;
            match content.lifetime {
                Lifetime::InFile => {}
                Lifetime::Lasting => hold((0, end), content.bytes),
                Lifetime::Fed if step.one_pool => hold((0, span.1), content.bytes),
                _ if gives_output => hold((span.0, end), content.bytes),
                _ => hold(span, content.bytes),
            }
        }
        changes.pop();
        let mut live = 0;
        for change in changes.iter_mut() {
            live += *change;
            *change = live;
        }
    }
}
