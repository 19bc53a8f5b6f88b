//! Stores: where the bytes of a chunk are while they are not on the device: in the host block, in a spill file or in the model's own files.
//!
//! Inputs and outputs are always on the host, where the caller writes and reads them. Of the rest, the chunks that save the most disk time
//! per byte and nanosecond held stay on the host as far as the budget allows, in the way in which [`crate::residency`] assigns room on the
//! device. Weights that no step changes need no spill file: they are in the model's files and are read from there.
//!
//! A disk can fail, and a step that fails must leave everything that it would have changed as it was. So either nothing that steps change
//! is on disk, and the update phase neither reads nor writes there; or everything that steps change is on disk, in two places that take
//! turns: a step reads one and writes the other, and only a step that succeeds swaps them.
//!
//! Updates on the host work in place in the host block. Chunks that are on disk between steps have a place there while updates work on
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_base::{ByteRange, MemoryId};
use forebay_memory::{Effort, Item, place};
use forebay_model::program::{BufferId, Program, Role};
use forebay_model::tensor::Contents;

use crate::arena::{PiecesByTime, item};
use crate::cost::Costs;
use crate::host_launches::{HOST_LAUNCH_ALIGNMENT_BYTES, host_launch_bytes};
use crate::liveness::{Chunk, Liveness, Owner};
use crate::profile::{Profile, bytes_of_profile};
use crate::residency::{Residency, launch_starts};
use crate::tuning::HELD_PERCENT;

/// Alignment in bytes of buffers on the host; a plan's host block is never smaller.
pub(crate) const HOST_ALIGNMENT_BYTES: u64 = 64;
/// Alignment in bytes of chunks on disk: the unit in which disks read and write.
pub const DISK_ALIGNMENT_BYTES: u64 = 4096;
/// A host budget, and what may be on a disk when the budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimit {
    /// The budget.
    pub budget_bytes: u64,
    /// What may be on a disk.
    pub on_disk: OnDisk,
}

/// What may be on a disk while it is not on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDisk {
    /// Weights that are in the model's files and that no step changes; there is no spill file.
    ModelFiles,
    /// Also what does not change from step to step.
    Unchanging,
    /// Everything that steps change is on disk between steps.
    Changing,
}

/// What holds bytes that are not on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The host block.
    Host,
    /// The spill file.
    Disk,
    /// Two spill files with the same layout that take turns: one is read, the other is written.
    Turns,
    /// The model's files, which are only read.
    ModelFiles,
}

/// Where a chunk's bytes are while they are not on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePlace {
    /// What holds them.
    pub store: Store,
    /// Offset of the first byte there.
    pub offset_bytes: u64,
}

/// The places of chunks outside the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackingStores {
    /// For each chunk, its place, if it is ever away from the device.
    pub places: Vec<Option<StorePlace>>,
    /// For each chunk that is on disk and that launches touch in host memory, its offset in the host block from the first of these launches
    /// to the last.
    pub staged: Vec<Option<u64>>,
    /// Bytes of the host block; the last of them are for launches on the host ([`host_launch_bytes`]).
    pub host_bytes: u64,
    /// Bytes of the spill file.
    pub disk_bytes: u64,
    /// Bytes of each of the two files that take turns.
    pub turns_bytes: u64,
    /// Bytes of chunks that are read from the model's files.
    pub model_files_bytes: u64,
}

/// The host block among a plan's memories.
pub(crate) const HOST: MemoryId = MemoryId(1);

impl BackingStores {
    /// Returns the memory of a store. Of the two that take turns, a step reads the first, and the second holds what this step `changed`.
    /// The model's files, if a plan has them, follow the host block; then come the spill file for what does not change or does not last,
    /// and the files that take turns.
    pub(crate) fn memory(&self, store: Store, changed: bool) -> MemoryId {
        let spill = HOST.0 + 1 + u32::from(self.model_files_bytes > 0);
        match store {
            Store::Host => HOST,
            Store::ModelFiles => MemoryId(HOST.0 + 1),
            Store::Disk => MemoryId(spill),
            Store::Turns => MemoryId(spill + 1 + u32::from(changed)),
        }
    }

    /// Whether there are spill files.
    pub(crate) fn spills(&self) -> bool {
        self.disk_bytes + self.turns_bytes > 0
    }

    /// Whether copies reach a disk.
    pub(crate) fn uses_disk(&self) -> bool {
        self.spills() || self.model_files_bytes > 0
    }

    /// Whether the chunk's copies go to and from a disk.
    pub fn on_disk(&self, chunk: usize) -> bool {
        self.places[chunk].is_some_and(|place| place.store != Store::Host)
    }

    /// Returns the offset at which launches find a chunk in the host block.
    pub fn in_host_block(&self, chunk: usize) -> Option<u64> {
        let place = self.places[chunk].filter(|place| place.store == Store::Host);
        place.map(|place| place.offset_bytes).or(self.staged[chunk])
    }
}

/// Gives every chunk that is ever away from the device a place. Without `host_limit`, all places are on the host. With it, the host bytes
/// can still exceed the budget if not enough chunks may go to disk.
pub fn backing_stores(
    program: &Program,
    live: &Liveness,
    residency: &Residency,
    costs: &Costs,
    host_limit: Option<HostLimit>,
) -> BackingStores {
    let times = times(program, live, residency);
    let whole = Packing { grain_bytes: 1, alignment_bytes: HOST_ALIGNMENT_BYTES, capacity_bytes: None, apart: false };
    let Some(host_limit) = host_limit else {
        let host = pack(live, &times, whole, |_| true);
        return collect(program, live.chunks.len(), [(Store::Host, host.unwrap_or_default())].into());
    };
    // The bytes that launches on the host need there are reserved first.
    let launch_bytes = host_launch_bytes(program);
    let room_bytes = match launch_bytes {
        0 => host_limit.budget_bytes,
        bytes => {
            host_limit.budget_bytes.saturating_sub(bytes) / HOST_LAUNCH_ALIGNMENT_BYTES * HOST_LAUNCH_ALIGNMENT_BYTES
        }
    };
    let choice = Choice::new(program, live, residency, costs, host_limit.on_disk, &times);
    let host_times: Vec<Option<Range<u32>>> =
        choice.staged.iter().zip(&times).map(|(staged, time)| staged.clone().or(time.clone())).collect();
    let on_host = |kept: &[bool], chunk: usize| {
        choice.stands[chunk] == Stand::Host || kept[chunk] || choice.staged[chunk].is_some()
    };
    let parts = Packing { apart: true, ..whole };
    let fits = |kept: &Vec<bool>| {
        let within = Packing { capacity_bytes: Some(room_bytes), ..parts };
        pack(live, &host_times, within, |chunk| on_host(kept, chunk))
    };
    let share = |percent: u64| (u128::from(room_bytes) * u128::from(percent) / 100) as u64;
    let attempts = HELD_PERCENT.iter().map(|&percent| choice.keep(live, share(percent)));
    let found = attempts.filter_map(|kept| fits(&kept).map(|host| (kept, host))).next();
    let (kept, host) = found.unwrap_or_else(|| {
        let kept = vec![false; live.chunks.len()];
        let host = pack(live, &host_times, parts, |chunk| on_host(&kept, chunk));
        (kept, host.unwrap_or_default())
    });
    let blocks = Packing { grain_bytes: DISK_ALIGNMENT_BYTES, alignment_bytes: DISK_ALIGNMENT_BYTES, ..parts };
    let on_disk = |wanted: Stand| {
        let chosen = |chunk: usize| choice.stands[chunk] == wanted && !kept[chunk];
        pack(live, &times, blocks, chosen).unwrap_or_default()
    };
    let disks = [(Store::Disk, Stand::Either), (Store::Turns, Stand::Turns), (Store::ModelFiles, Stand::ModelFiles)];
    let packed = disks.into_iter().map(|(store, stand)| (store, on_disk(stand)));
    collect(program, live.chunks.len(), packed.chain([(Store::Host, host)]).collect())
}

/// Returns the number of bytes of weights that are in the model's files and that no launch changes.
pub fn bytes_in_model_files(program: &Program) -> u64 {
    let weights = program.contents.keys().filter(|&&buffer| is_weight_in_files(program, buffer));
    weights.map(|&buffer| program.buffer(buffer).size_bytes).fold(0, u64::saturating_add)
}

fn is_weight_in_files(program: &Program, buffer: BufferId) -> bool {
    let is_in_file = program.contents.get(&buffer).is_some_and(Contents::is_in_file);
    is_in_file && program.buffer(buffer).role == Role::Constant
}

/// Whether a chunk's bytes are in the model's files and no launch changes them.
pub fn is_in_model_files(program: &Program, live: &Liveness, chunk: usize) -> bool {
    let Owner::Buffer(buffer) = live.chunks[chunk].owner else { return false };
    is_weight_in_files(program, buffer) && !live.chunks[chunk].is_changed()
}

/// Returns, for each chunk, the half-open range of launches during which it takes bytes outside the device. Inputs, outputs and whatever
/// lasts there from step to step keep their bytes for the whole step; temporaries keep them from their swap-out to their last swap-in, or
/// to the last launch that touches them in host memory. A buffer that launches touch in host memory is there as a whole.
fn times(program: &Program, live: &Liveness, residency: &Residency) -> Vec<Option<Range<u32>>> {
    let whole = 0..live.launch_count.max(1) as u32;
    let mut times: Vec<Option<Range<u32>>> = vec![None; live.chunks.len()];
    for segment in &residency.segments {
        let first = live.chunks[segment.chunk].accesses[segment.accesses.start].launch as u32;
        let saved = segment.swap_out_after as u32;
        for time in [segment.swap_out.then_some(saved), segment.swap_in.then_some(first)].into_iter().flatten() {
            let range = times[segment.chunk].get_or_insert(time..time + 1);
            *range = range.start.min(time)..range.end.max(time + 1);
        }
    }
    let in_host_memory = in_host_memory(live);
    for chunks in owners(live) {
        let Some(hull) = in_host_memory.get(&live.chunks[chunks.start].owner) else { continue };
        let all = times[chunks.clone()].iter().flatten().chain([hull]);
        let (start, end) =
            all.fold((hull.start, hull.end), |(start, end), time| (start.min(time.start), end.max(time.end)));
        times[chunks].fill(Some(start..end));
    }
    let fed_or_read = fed_or_read(program);
    for (index, chunk) in live.chunks.iter().enumerate() {
        let Owner::Buffer(buffer) = chunk.owner else { continue };
        let persistent = program.buffer(buffer).role.is_persistent();
        if (fed_or_read.contains(&buffer) || persistent) && !residency.backing_on_device[index] {
            times[index] = Some(whole.clone());
        }
    }
    times
}

/// The chunks of each owner.
fn owners(live: &Liveness) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut next = 0;
    live.chunks.chunk_by(|a, b| a.owner == b.owner).map(move |chunks| {
        let start = next;
        next += chunks.len();
        start..next
    })
}

/// For each owner that launches touch in host memory, the range from the first of these launches to one past the last.
fn in_host_memory(live: &Liveness) -> BTreeMap<Owner, Range<u32>> {
    let mut found: BTreeMap<Owner, Range<u32>> = BTreeMap::new();
    for chunk in &live.chunks {
        for access in &chunk.host_accesses {
            let launch = access.launch as u32;
            let range = found.entry(chunk.owner).or_insert(launch..launch + 1);
            *range = range.start.min(launch)..range.end.max(launch + 1);
        }
    }
    found
}

/// Buffers that the caller writes or reads.
fn fed_or_read(program: &Program) -> BTreeSet<BufferId> {
    program.inputs.iter().chain(&program.outputs).map(|named| named.operand.buffer).collect()
}

/// Where a chunk may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Host,
    /// On the host if there is room, else on disk.
    Either,
    Turns,
    /// On the host if there is room, else in the model's files.
    ModelFiles,
}

/// The choice of which chunks stay on the host.
struct Choice {
    /// Where each chunk may be.
    stands: Vec<Stand>,
    /// For each chunk that takes turns on disk and that launches touch in host memory, the range of these launches.
    staged: Vec<Option<Range<u32>>>,
    /// For each launch, the bytes that the host holds in any case.
    taken: Profile,
    /// The chunks that may be in either place. Those that save the most disk time per byte and nanosecond held come first.
    order: Vec<(usize, Range<usize>)>,
}

impl Choice {
    fn new(
        program: &Program,
        live: &Liveness,
        residency: &Residency,
        costs: &Costs,
        on_disk: OnDisk,
        times: &[Option<Range<u32>>],
    ) -> Choice {
        let mut stands = stands(program, live, on_disk);
        let mut disk_ns = vec![0u64; live.chunks.len()];
        for segment in &residency.segments {
            let chunk = &live.chunks[segment.chunk];
            let (bytes, launch) = (chunk.range.len(), |access: usize| chunk.accesses[access].launch);
            let swapped_in = segment.swap_in.then(|| launch(segment.accesses.start));
            let saved = segment.swap_out.then_some(segment.swap_out_after);
            disk_ns[segment.chunk] += swapped_in.map_or(0, |_| costs.disk_read_ns(bytes));
            disk_ns[segment.chunk] += saved.map_or(0, |_| costs.disk_write_ns(bytes));
            // The update phase does not use the disk while it changes anything in place.
            let updates = swapped_in.into_iter().chain(saved).any(|launch| launch >= program.update_start);
            if updates && on_disk != OnDisk::Changing {
                stands[segment.chunk] = Stand::Host;
            }
        }
        let in_host_memory = in_host_memory(live);
        let staged = |(chunk, stand): (&Chunk, &Stand)| {
            in_host_memory.get(&chunk.owner).filter(|_| *stand == Stand::Turns).cloned()
        };
        let staged: Vec<Option<Range<u32>>> = live.chunks.iter().zip(&stands).map(staged).collect();
        let starts = launch_starts(costs);
        let mut taken = Profile::new(&vec![0; live.launch_count.max(1)]);
        let mut order = Vec::new();
        for (index, time) in times.iter().enumerate() {
            let Some(time) = time.as_ref().map(|time| time.start as usize..time.end as usize) else { continue };
            let bytes = host_bytes(live, index);
            let mut take = |time: &Range<usize>| taken.add(time.start, time.end, bytes_of_profile(bytes));
            match stands[index] {
                Stand::Host => take(&time),
                Stand::Either | Stand::ModelFiles => {
                    let held_ns = starts[time.end.min(starts.len() - 1)] - starts[time.start];
                    let density = disk_ns[index] as f64 / (bytes.max(1) as f64 * (held_ns as f64 + 1.0));
                    order.push((density, index, time));
                }
                Stand::Turns => {
                    let staged = staged[index].as_ref().map(|time| time.start as usize..time.end as usize);
                    staged.iter().for_each(take);
                }
            }
        }
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        Choice { stands, staged, taken, order: order.into_iter().map(|(_, index, time)| (index, time)).collect() }
    }

    /// Returns, for each chunk, whether it stays on the host although it does not have to, within `room_bytes`.
    fn keep(&self, live: &Liveness, room_bytes: u64) -> Vec<bool> {
        let mut kept = vec![false; self.stands.len()];
        let (mut taken, room_bytes) = (self.taken.clone(), bytes_of_profile(room_bytes));
        for (index, time) in &self.order {
            let bytes = bytes_of_profile(host_bytes(live, *index));
            if taken.most(time.start, time.end).saturating_add(bytes) <= room_bytes {
                kept[*index] = true;
                taken.add(time.start, time.end, bytes);
            }
        }
        kept
    }
}

fn host_bytes(live: &Liveness, chunk: usize) -> u64 {
    live.chunks[chunk].range.len().next_multiple_of(HOST_ALIGNMENT_BYTES)
}

/// Where each chunk may be, regardless of what moves when.
fn stands(program: &Program, live: &Liveness, on_disk: OnDisk) -> Vec<Stand> {
    let (fed_or_read, in_host_memory) = (fed_or_read(program), in_host_memory(live));
    let stand = |chunks: Range<usize>, index: usize| {
        let Owner::Buffer(buffer) = live.chunks[index].owner else { return Stand::Host };
        let is_whole = in_host_memory.contains_key(&live.chunks[index].owner);
        let is_changed =
            if is_whole { live.chunks[chunks].iter().any(Chunk::is_changed) } else { live.chunks[index].is_changed() };
        let changing = program.buffer(buffer).role.is_persistent() && is_changed;
        match (fed_or_read.contains(&buffer), changing) {
            (true, _) => Stand::Host,
            (false, true) if on_disk == OnDisk::Changing => Stand::Turns,
            (false, true) => Stand::Host,
            (false, false) if is_whole => Stand::Host,
            (false, false) if is_in_model_files(program, live, index) => Stand::ModelFiles,
            (false, false) if on_disk == OnDisk::ModelFiles => Stand::Host,
            (false, false) => Stand::Either,
        }
    };
    owners(live)
        .flat_map(|chunks| chunks.clone().map(move |index| (chunks.clone(), index)))
        .map(|(chunks, index)| stand(chunks, index))
        .collect()
}

/// The first launch of a span of time, and one past its last.
type Time = (u32, u32);

/// Offsets of some chunks in one store.
#[derive(Default)]
struct Packed {
    offsets: BTreeMap<usize, u64>,
    bytes: u64,
}

/// How chunks are packed.
#[derive(Clone, Copy)]
struct Packing {
    /// The size of each chunk is rounded up to a multiple of this many bytes.
    grain_bytes: u64,
    alignment_bytes: u64,
    capacity_bytes: Option<u64>,
    /// Whether chunks of one buffer lie next to each other only if they are there at the same time. Otherwise they all do, which needs
    /// fewer copies, but more room if parts of a buffer come and go.
    apart: bool,
}

/// Packs the chosen chunks that have times. Returns `None` if they do not fit the capacity.
fn pack(
    live: &Liveness,
    times: &[Option<Range<u32>>],
    packing: Packing,
    chosen: impl Fn(usize) -> bool,
) -> Option<Packed> {
    let mut groups: BTreeMap<(Owner, Time), (u64, PiecesByTime)> = BTreeMap::new();
    let mut starts: BTreeMap<usize, ((Owner, Time), u64)> = BTreeMap::new();
    let in_host_memory = in_host_memory(live);
    for (index, chunk) in live.chunks.iter().enumerate() {
        let Some(time) = times[index].as_ref().filter(|_| chosen(index)) else { continue };
        let time = (time.start, time.end);
        let key = (chunk.owner, if packing.apart { time } else { (0, 0) });
        let (end, pieces) = groups.entry(key).or_default();
        let bytes = ByteRange::new(*end, *end + chunk.range.len().next_multiple_of(packing.grain_bytes));
        *end = bytes.end;
        starts.insert(index, (key, bytes.start));
        pieces.entry(time).or_default().push(bytes);
    }
    let order: Vec<(Owner, Time)> = groups.keys().copied().collect();
    let alignment_bytes = |owner: &Owner| match in_host_memory.contains_key(owner) {
        true => packing.alignment_bytes.max(HOST_LAUNCH_ALIGNMENT_BYTES),
        false => packing.alignment_bytes,
    };
    let items: Vec<Item> =
        groups.into_iter().map(|((owner, _), (_, pieces))| item(pieces, alignment_bytes(&owner))).collect();
    let placement = place(&items, packing.capacity_bytes, Effort::default()).ok()?;
    let bases: BTreeMap<(Owner, Time), u64> = order.into_iter().zip(placement.offsets).collect();
    let offsets = starts.into_iter().map(|(index, (key, start))| (index, bases[&key] + start)).collect();
    Some(Packed { offsets, bytes: placement.height_bytes })
}

/// Combines the places of all stores. A chunk that is both on a disk and in the host block is staged in the host block.
fn collect(program: &Program, count: usize, packed: BTreeMap<Store, Packed>) -> BackingStores {
    let bytes = |store| packed.get(&store).map_or(0, |packed| packed.bytes);
    let host_bytes = match host_launch_bytes(program) {
        0 => bytes(Store::Host),
        launch_bytes => bytes(Store::Host).next_multiple_of(HOST_LAUNCH_ALIGNMENT_BYTES) + launch_bytes,
    };
    let mut backing_stores = BackingStores {
        places: vec![None; count],
        staged: vec![None; count],
        host_bytes,
        disk_bytes: bytes(Store::Disk),
        turns_bytes: bytes(Store::Turns),
        model_files_bytes: bytes(Store::ModelFiles),
    };
    // The host comes last.
    for (&store, Packed { offsets, .. }) in packed.iter().rev() {
        for (&chunk, &offset_bytes) in offsets {
            match &mut backing_stores.places[chunk] {
                Some(_) => backing_stores.staged[chunk] = Some(offset_bytes),
                place => *place = Some(StorePlace { store, offset_bytes }),
            }
        }
    }
    backing_stores
}

#[cfg(test)]
mod tests {
    use forebay_base::{Command, Space};

    use super::*;
    use crate::cost::estimate;
    use crate::error::PlanError;
    use crate::plan::{MemoryKind, Plan};
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{limits, training_program, with_constants_in_file};

    fn planned(program: &Program, device_bytes: Option<u64>, host_bytes: Option<u64>) -> Result<Plan, PlanError> {
        let options = PlanOptions {
            device_budget_bytes: device_bytes,
            host_budget_bytes: host_bytes,
            spill: true,
            check: true,
            ..PlanOptions::default()
        };
        plan_program(program, &options)
    }

    fn plan_program(program: &Program, options: &PlanOptions) -> Result<Plan, PlanError> {
        plan(program, options, &limits(), &estimate(program, &limits()))
    }

    /// A program, a device budget between the smallest and the peak, and the least host budget for it.
    fn tight(seed: u64, percent: u64) -> (Program, Option<u64>, u64) {
        const P: Role = Role::Parameter;
        const C: Role = Role::Constant;
        // Among these are programs that spill with turns, and programs that spill without.
        let programs: [(u64, &[(Role, usize)]); 5] = [
            (15, &[(P, 0), (C, 1), (P, 0), (P, 2)]),
            (6, &[(C, 0), (P, 0)]),
            (14, &[(C, 0), (P, 1), (C, 2), (C, 1)]),
            (17, &[(P, 0), (C, 0), (C, 0), (P, 2)]),
            (29, &[(P, 0), (P, 0), (P, 0), (P, 3)]),
        ];
        let (size, layers) = programs[seed as usize - 1];
        let program = crate::fuse::fuse(training_program(size << 16, layers));
        let whole = planned(&program, None, None).unwrap().statistics;
        let (low, high) = (whole.minimum_budget_bytes, whole.in_core_peak_bytes);
        let device_bytes = Some(low + (high - low) * percent / 100);
        let least_bytes = match planned(&program, device_bytes, Some(0)) {
            Err(PlanError::HostBudget { needed_bytes, spilled: true, .. }) => needed_bytes,
            other => panic!("seed {seed}: {other:?}"),
        };
        (program, device_bytes, least_bytes)
    }

    #[test]
    fn every_host_budget_that_holds_inputs_and_outputs_has_a_checked_plan() {
        let (mut with_turns, mut without) = (0, 0);
        for seed in 1..5 {
            for percent in [0, 50] {
                let what = format!("seed {seed}, device {percent} %");
                let (program, device_bytes, least_bytes) = tight(seed, percent);
                let roomy = planned(&program, device_bytes, None).unwrap().statistics;
                assert_eq!((roomy.spill_bytes, roomy.bytes_to_disk), (0, 0), "{what}: nothing spills without need");
                for part in [0, 40, 100] {
                    let budget = least_bytes + (roomy.host_bytes - least_bytes) * part / 100;
                    let plan = planned(&program, device_bytes, Some(budget))
                        .unwrap_or_else(|error| panic!("{what}, host {part} %: {error}"));
                    let found = &plan.statistics;
                    assert!(found.host_bytes <= budget, "{what}, host {part} %: {} of {budget}", found.host_bytes);
                    assert_eq!(found.spill_bytes > 0, found.bytes_from_disk > 0, "{what}, host {part} %");
                    with_turns += usize::from(plan.turns.is_some());
                    without += usize::from(plan.turns.is_none() && found.spill_bytes > 0);
                    if part == 100 {
                        assert_eq!(found.spill_bytes, 0, "{what}: what it takes is enough");
                    }
                    let again = (part == 40).then(|| planned(&program, device_bytes, Some(budget)).unwrap());
                    assert!(again.is_none_or(|again| again == plan), "{what}: another plan");
                }
            }
        }
        assert!(with_turns > 2 && without > 2, "{with_turns} plans with turns, {without} without");
    }

    #[test]
    fn without_leave_to_spill_the_error_names_the_way_out() {
        let (program, device_bytes, least_bytes) = tight(3, 20);
        let options = PlanOptions {
            device_budget_bytes: device_bytes,
            host_budget_bytes: Some(least_bytes),
            ..PlanOptions::default()
        };
        let error = plan(&program, &options, &limits(), &estimate(&program, &limits())).unwrap_err().to_string();
        assert!(error.contains("--spill-dir"), "{error}");
        let error = planned(&program, device_bytes, Some(least_bytes - 1)).unwrap_err().to_string();
        assert!(error.contains(&format!("{least_bytes} bytes")) && !error.contains("--spill-dir"), "{error}");
    }

    #[test]
    fn copies_of_a_disk_have_streams_of_their_own() {
        let (program, device_bytes, least_bytes) = tight(5, 20);
        let plan = planned(&program, device_bytes, Some(least_bytes)).unwrap();
        let names: Vec<&str> = plan.streams.iter().map(|stream| stream.name.as_str()).collect();
        assert_eq!(names, ["compute", "copy in", "copy out", "disk in", "disk out"]);
        let mut seen = BTreeSet::new();
        for command in &plan.commands {
            if let Command::Copy { stream, from, to } = command {
                let spaces = [from, to].map(|region| plan.memory(region.memory).space);
                assert_eq!(spaces.contains(&Space::Disk), stream.0 >= 3, "{command}");
                seen.insert(stream.0);
            }
        }
        assert!(seen.contains(&3) && seen.contains(&4), "{seen:?}");
    }

    /// The kinds of memory that hold a plan's constants between steps.
    fn kinds_of_constants(program: &Program, plan: &Plan) -> BTreeSet<MemoryKind> {
        let constants = plan.persistent.iter().zip(&program.persistent);
        let constants = constants.filter(|(_, named)| program.buffer(named.operand.buffer).role == Role::Constant);
        constants.flat_map(|(home, _)| &home.pieces).map(|(_, region)| plan.memory(region.memory).kind).collect()
    }

    #[test]
    fn constants_in_files_are_never_spilled_and_need_no_folder() {
        let (mut mixed, mut without_folder) = (0, 0);
        for seed in 1..5 {
            let (program, device_bytes, least_bytes) = tight(seed, 30);
            let in_file = with_constants_in_file(program.clone());
            for part in [0, 25, 50, 75] {
                let what = format!("seed {seed}, {part} %");
                let needed_bytes = planned(&program, device_bytes, None).unwrap().statistics.host_bytes;
                let budget = Some(least_bytes + (needed_bytes - least_bytes) * part / 100);
                let plan = planned(&in_file, device_bytes, budget).unwrap_or_else(|error| panic!("{what}: {error}"));
                let kinds = kinds_of_constants(&in_file, &plan);
                assert!(!kinds.contains(&MemoryKind::SpillFile), "{what}: {kinds:?}");
                let found = &plan.statistics;
                assert!(found.bytes_from_model_files <= found.bytes_from_disk, "{what}: {found:?}");
                mixed += usize::from(found.spill_bytes > 0 && found.model_files_bytes > 0);
                let options = PlanOptions {
                    device_budget_bytes: device_bytes,
                    host_budget_bytes: budget,
                    check: true,
                    ..PlanOptions::default()
                };
                match plan_program(&in_file, &options) {
                    Ok(plan) => {
                        let found = &plan.statistics;
                        assert!(Some(found.host_bytes) <= budget, "{what}: {found:?}");
                        assert_eq!(found.spill_bytes, 0, "{what}");
                        without_folder += usize::from(found.model_files_bytes > 0);
                    }
                    Err(PlanError::HostBudget { spilled, .. }) => assert!(!spilled, "{what}"),
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
        assert!(mixed > 3 && without_folder > 3, "{mixed} plans spill, too, {without_folder} need no folder");
    }
}
