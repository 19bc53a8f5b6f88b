//! Paging: a step in which everything has addresses, and the device holds a part of it. For managed memory, where bytes move in units of a
//! fixed size, whatever tensors are in them.
//!
//! Everything gets addresses as if there were no budget: inputs from the beginning of the step, outputs until its end. Dead bytes are
//! reused, so that a model that fits on the device has its backing location there after its first step. A unit *lives* from the first
//! launch that touches a tensor in it until no tensor in it is needed. Moves are either decided by managed memory itself
//! ([`Paging::launches`] tells it what it needs to know) or dictated by the framework, which keeps within the budget ([`Paging::moves`]).

mod moves;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::alias::alias;
use crate::arena::{Arena, arena};
use crate::backing_stores::BackingStores;
use crate::cost::Costs;
use crate::emit::{Decisions, emit};
use crate::error::{DeviceBudgetSetting, PlanError};
use crate::liveness::{Access, Chunk, Liveness, Owner, liveness};
use crate::loans::Loans;
use crate::plan::Plan;
use crate::residency::{Kind, Residency, Segment, kinds};
use crate::schedule::Work;

pub use moves::{Move, Moves};

/// The default size of a unit in bytes: large enough that mapping it costs little compared to copying it.
const UNIT_BYTES: u64 = 2 << 20;
/// Units are smaller if fewer than this many would fit the budget.
const UNITS_MIN: u64 = 64;

/// What a launch does with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitUse {
    /// The unit: its index within the range of addresses.
    pub unit: u64,
    /// Whether the launch reads what the unit holds, or changes only a part of it.
    pub reads: bool,
    /// Whether the launch changes what the unit holds.
    pub writes: bool,
}

/// The units of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchUnits {
    /// The units that it uses, in ascending order.
    pub uses: Vec<UnitUse>,
    /// Units whose contents are no longer needed when it is done.
    pub dies: Vec<u64>,
}

/// A step that runs in managed memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Paging {
    /// Launches in the program's order, and the addresses of everything, including inputs and outputs, in one range on the device.
    pub plan: Plan,
    /// Size of a unit in bytes.
    pub unit_bytes: u64,
    /// The number of units in the range of addresses.
    pub unit_count: u64,
    /// The most units that may be on the device at once.
    pub capacity: u64,
    /// What each launch does with units.
    pub launches: Vec<LaunchUnits>,
    /// For a framework that dictates every move: the moves before and after each launch.
    pub moves: Vec<Moves>,
}

/// Pages one step of a program. Fuse it first ([`crate::fuse`]), and set its launches' workspace bytes.
///
/// # Errors
/// Fails if the budget is below what some launch needs in whole tiles, or if the device maps no tiles.
pub fn page(
    program: &Program,
    device_budget_bytes: Option<u64>,
    limits: &Limits,
    costs: &Costs,
) -> Result<Paging, PlanError> {
    if let Some(launch) = program.launches.iter().find(|launch| launch.on_host) {
        let reason = "the device cannot run it, and with managed memory no operator runs on the host (leave out \
                      --memory, or choose another device)";
        return Err(PlanError::Tensor { launch: launch.name.clone(), reason: reason.to_string() });
    }
    let alone: Vec<u32> = (0..program.launches.len() as u32).collect();
    let program = alias(program.clone(), &alone);
    let live = liveness(&program, false);
    let intervals = whole_intervals(&program, &live);
    let arena = arena(&live, &intervals, None, u64::MAX, false)
        .ok_or_else(|| PlanError::Check { reason: "no placement was found in an unlimited arena".to_string() })?;
    let unlimited_bytes = arena.device_bytes.max(1).next_multiple_of(limits.tile_size_bytes);
    let budget_bytes = device_budget_bytes.unwrap_or(unlimited_bytes);
    let layout = Layout { program: &program, live: &live, intervals: &intervals, arena: &arena };
    let (minimum_budget_bytes, minimum_launch) = layout.minimum_budget(limits.tile_size_bytes);
    if minimum_budget_bytes > budget_bytes.min(limits.memory_bytes) {
        return Err(PlanError::DeviceBudget {
            budget_bytes: budget_bytes.min(limits.memory_bytes),
            minimum_bytes: minimum_budget_bytes,
            launch: minimum_launch,
            setting: match budget_bytes > limits.memory_bytes {
                true => DeviceBudgetSetting::Device,
                false => DeviceBudgetSetting::default(),
            },
        });
    }
    let unit_bytes = layout.unit_bytes(budget_bytes, limits);
    let unit_count = unlimited_bytes.div_ceil(unit_bytes);
    let capacity = device_budget_bytes.map_or(unit_count, |bytes| bytes / unit_bytes);
    let lives = layout.lives(unit_bytes);
    let mut plan = layout.plan(limits)?;
    let statistics = &mut plan.statistics;
    statistics.device_budget_bytes = device_budget_bytes;
    statistics.in_core_peak_bytes = unlimited_bytes;
    statistics.device_peak_bytes = capacity.min(unit_count) * unit_bytes;
    (statistics.minimum_budget_bytes, statistics.minimum_launch) = (minimum_budget_bytes, minimum_launch);
    Ok(Paging {
        launches: launch_units(&lives, live.launch_count),
        moves: moves::moves(&lives, live.launch_count, unit_bytes, capacity, costs),
        plan,
        unit_bytes,
        unit_count,
        capacity,
    })
}

/// Gives every chunk addresses from its first to its last use: inputs from the beginning of the step, outputs until its end, and persistent
/// chunks always. What no launch uses has addresses only if it is part of a persistent buffer that is used, which is read back as a whole.
fn whole_intervals(program: &Program, live: &Liveness) -> Residency {
    let kinds = kinds(program, live);
    let used: BTreeSet<Owner> =
        live.chunks.iter().filter(|chunk| !chunk.accesses.is_empty()).map(|chunk| chunk.owner).collect();
    let interval = |(index, chunk): (usize, &Chunk)| {
        let Kind { persistent, input, output } = kinds[index];
        let launches =
            chunk.accesses.first().zip(chunk.accesses.last()).map(|(first, last)| (first.launch, last.launch));
        let (first, last) = launches.or_else(|| (persistent && used.contains(&chunk.owner)).then_some((0, 0)))?;
        let start = if persistent || input { 0 } else { first };
        let end = if persistent || output { live.launch_count - 1 } else { last };
        Some(Segment {
            chunk: index,
            start,
            end,
            accesses: 0..chunk.accesses.len(),
            swap_in: false,
            swap_out: false,
            swap_out_after: end,
        })
    };
    Residency {
        segments: live.chunks.iter().enumerate().filter_map(interval).collect(),
        backing_on_device: vec![true; live.chunks.len()],
        across_steps: vec![false; live.chunks.len()],
    }
}

/// The addresses of everything.
struct Layout<'a> {
    program: &'a Program,
    live: &'a Liveness,
    intervals: &'a Residency,
    arena: &'a Arena,
}

impl Layout<'_> {
    /// Returns the units that an interval touches.
    fn units(&self, interval: usize, unit_bytes: u64) -> std::ops::Range<u64> {
        let start = self.arena.device_offsets[interval];
        let end = start + self.live.chunks[self.intervals.segments[interval].chunk].range.len();
        start / unit_bytes..end.div_ceil(unit_bytes)
    }

    /// Returns the number of units that each launch uses at once.
    fn units_at_once(&self, unit_bytes: u64) -> Vec<u64> {
        let mut units: Vec<Vec<u64>> = vec![Vec::new(); self.live.launch_count];
        for (index, segment) in self.intervals.segments.iter().enumerate() {
            for access in &self.live.chunks[segment.chunk].accesses {
                units[access.launch].extend(self.units(index, unit_bytes));
            }
        }
        let distinct = |units: &mut Vec<u64>| {
            units.sort_unstable();
            units.dedup();
            units.len() as u64
        };
        units.iter_mut().map(distinct).collect()
    }

    /// Returns the smallest budget that every launch fits, in tiles, and the launch that needs it.
    fn minimum_budget(&self, tile_bytes: u64) -> (u64, String) {
        let counts = self.units_at_once(tile_bytes);
        let launch = (0..counts.len()).max_by_key(|&launch| (counts[launch], std::cmp::Reverse(launch)));
        let bytes = launch.map_or(1, |launch| counts[launch].max(1)) * tile_bytes;
        (bytes, launch.map_or_else(String::new, |launch| self.program.launches[launch].name.clone()))
    }

    /// Returns the default size of a unit, reduced as far as necessary for every launch to fit the budget.
    fn unit_bytes(&self, budget_bytes: u64, limits: &Limits) -> u64 {
        let tile_bytes = limits.tile_size_bytes;
        let mut tiles = UNIT_BYTES.min(budget_bytes / UNITS_MIN).min(limits.heap_size_max_bytes) / tile_bytes;
        while tiles > 1 {
            let unit_bytes = tiles * tile_bytes;
            let needed = self.units_at_once(unit_bytes).into_iter().max().unwrap_or(0);
            if needed <= budget_bytes / unit_bytes {
                return unit_bytes;
            }
            tiles /= 2;
        }
        tile_bytes
    }

    /// Returns a plan with launches only: nothing is copied between spaces.
    fn plan(&self, limits: &Limits) -> Result<Plan, PlanError> {
        let sources: Vec<usize> = (0..self.live.launch_count).collect();
        let decisions = Decisions {
            program: self.program,
            sources: &sources,
            live: self.live,
            residency: self.intervals,
            backing_stores: &BackingStores { places: vec![None; self.live.chunks.len()], ..BackingStores::default() },
            arena: self.arena,
            loans: &Loans::default(),
            limits,
        };
        let work: Vec<Work> = sources.iter().map(|&launch| Work::Launch(launch)).collect();
        emit(&decisions, &work)
    }

    /// Returns the lives of all units; the lives of one unit are in chronological order.
    fn lives(&self, unit_bytes: u64) -> Vec<Life> {
        let mut occupants: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for index in 0..self.intervals.segments.len() {
            self.units(index, unit_bytes).for_each(|unit| occupants.entry(unit).or_default().push(index));
        }
        let mut lives = Vec::new();
        let kinds = kinds(self.program, self.live);
        for (unit, mut intervals) in occupants {
            intervals.sort_by_key(|&interval| (self.intervals.segments[interval].start, interval));
            let mut life: Option<Life> = None;
            for interval in intervals {
                let Segment { chunk, start, end, .. } = self.intervals.segments[interval];
                if life.as_ref().is_some_and(|life| life.end < start) {
                    lives.extend(life.take().map(Life::closed));
                }
                let (chunk, kind) = (&self.live.chunks[chunk], kinds[chunk]);
                life.get_or_insert_with(|| Life::new(unit, start)).add(end, kind, &chunk.accesses);
            }
            lives.extend(life.map(Life::closed));
        }
        lives
    }
}

/// The time during which a unit holds something that is needed.
struct Life {
    unit: u64,
    start: usize,
    end: usize,
    kind: Kind,
    accesses: Vec<Access>,
}

impl Life {
    fn new(unit: u64, start: usize) -> Life {
        Life { unit, start, end: start, kind: Kind::default(), accesses: Vec::new() }
    }

    fn add(&mut self, end: usize, kind: Kind, accesses: &[Access]) {
        self.end = self.end.max(end);
        self.kind.persistent |= kind.persistent;
        self.kind.input |= kind.input;
        self.kind.output |= kind.output;
        self.accesses.extend_from_slice(accesses);
    }

    /// Merges accesses so that there is one per launch. All but the first access to a fresh unit need the unit's contents, because it also
    /// holds other bytes.
    fn closed(mut self) -> Life {
        self.accesses.sort_by_key(|access| access.launch);
        self.accesses.dedup_by(|access, kept| {
            let same = access.launch == kept.launch;
            kept.reads |= same && access.reads;
            kept.writes |= same && access.writes;
            same
        });
        let fresh = !self.kind.persistent && !self.kind.input;
        for (place, access) in self.accesses.iter_mut().enumerate() {
            access.reads = place > 0 || !fresh;
        }
        self
    }

    /// Returns the launch after which its contents are no longer needed; `None` if the host or the next step needs them.
    fn dies_at(&self) -> Option<usize> {
        let needed = self.kind.persistent || self.kind.output;
        self.accesses.last().filter(|_| !needed).map(|access| access.launch)
    }

    /// Converts it to a chunk of the residency pass.
    fn chunk(&self, unit_bytes: u64) -> Chunk {
        let start = self.unit * unit_bytes;
        let range = forebay_base::ByteRange::new(start, start + unit_bytes);
        Chunk::on_device(Owner::Workspace(self.start), range, self.accesses.clone())
    }
}

fn launch_units(lives: &[Life], launch_count: usize) -> Vec<LaunchUnits> {
    let mut launches = vec![LaunchUnits::default(); launch_count];
    for life in lives {
        for &Access { launch, reads, writes } in &life.accesses {
            launches[launch].uses.push(UnitUse { unit: life.unit, reads, writes });
        }
        if let Some(launch) = life.dies_at() {
            launches[launch].dies.push(life.unit);
        }
    }
    launches
}

#[cfg(test)]
mod tests;
