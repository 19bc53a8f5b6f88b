//! Tests against a naive model of units, and a device that does what it is told.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::{Activation, BinaryOp};
use forebay_base::{ByteRange, Command, Kernel, Limits, MemoryId, Region};
use forebay_model::program::Role;

use super::{Move, Paging, page};
use crate::cost::estimate;
use crate::testing::{ProgramBuilder, Random, limits, random_training_program};
use crate::{DeviceBudgetSetting, PlanError};

fn units_of(paging: &Paging, region: Region) -> std::ops::Range<u64> {
    region.range.start / paging.unit_bytes..region.range.end.div_ceil(paging.unit_bytes)
}

/// Returns the units that launches read and write according to their commands, and those that hold something between steps or for the host.
fn naive_uses(paging: &Paging) -> Vec<BTreeMap<u64, (bool, bool)>> {
    let mut uses = Vec::new();
    for command in paging.plan.commands.iter().filter(|command| command.is_work()) {
        let mut units: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        for region in command.reads() {
            units_of(paging, region).for_each(|unit| units.entry(unit).or_default().0 = true);
        }
        for region in command.writes() {
            units_of(paging, region).for_each(|unit| units.entry(unit).or_default().1 = true);
        }
        uses.push(units);
    }
    uses
}

fn random_paging(seed: u64) -> (Paging, u64) {
    let mut random = Random::new(seed);
    let depth = 2 + random.below(6) as usize;
    let program = random_training_program(&mut random, depth);
    let costs = estimate(&program, &limits());
    let unlimited = page(&program, None, &limits(), &costs).unwrap();
    let statistics = &unlimited.plan.statistics;
    let (peak, minimum) = (statistics.in_core_peak_bytes, statistics.minimum_budget_bytes);
    let budget = minimum + random.below(peak - minimum + 1);
    (page(&program, Some(budget), &limits(), &costs).unwrap(), budget)
}

#[test]
fn launches_name_the_units_that_their_commands_touch() {
    for seed in 1..30 {
        let (paging, budget) = random_paging(seed);
        assert!(paging.capacity * paging.unit_bytes <= budget, "seed {seed}");
        assert!(paging.plan.commands.iter().all(|command| !matches!(command, Command::Copy { .. })), "seed {seed}");
        let naive = naive_uses(&paging);
        assert_eq!(naive.len(), paging.launches.len(), "seed {seed}");
        for (launch, (expected, found)) in naive.iter().zip(&paging.launches).enumerate() {
            assert!(found.uses.len() as u64 <= paging.capacity, "seed {seed}, launch {launch}");
            let units: Vec<u64> = found.uses.iter().map(|used| used.unit).collect();
            assert_eq!(expected.keys().copied().collect::<Vec<u64>>(), units, "seed {seed}, launch {launch}");
            for used in &found.uses {
                let (reads, writes) = expected[&used.unit];
                assert_eq!(writes, used.writes, "seed {seed}, launch {launch}, unit {}", used.unit);
                assert!(used.reads || !reads || writes, "seed {seed}, launch {launch}, unit {}", used.unit);
            }
        }
    }
}

/// Bytes of an input that nothing reads need no addresses. Those of a weight do: it can be read back.
#[test]
fn weights_that_are_used_in_part_have_addresses_as_a_whole() {
    const HALF: u64 = 256 << 10;
    let mut builder = ProgramBuilder::default();
    let (x, w) = (builder.input("x", 2 * HALF), builder.persistent("w", 2 * HALF, Role::Constant));
    builder.persistent("unused", HALF, Role::Constant);
    let y = builder.temporary("y", HALF);
    let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    builder.launch(add, &[x, w], &[y]);
    let half = builder.operand(y).desc;
    let mut program = builder.finish(&[y]);
    for (read, offset_bytes) in program.launches[0].reads.iter_mut().zip([0, HALF]) {
        (read.desc, read.offset_bytes) = (half.clone(), offset_bytes);
    }
    let plan = page(&program, None, &limits(), &estimate(&program, &limits())).unwrap().plan;
    let [x, w, unused] = [&plan.inputs[0], &plan.persistent[0], &plan.persistent[1]];
    let ranges = |backing: &crate::BackingLocation| backing.pieces.iter().map(|piece| piece.0).collect::<Vec<_>>();
    assert_eq!(ranges(x), [ByteRange::new(0, HALF)]);
    assert_eq!(ranges(w).iter().map(|range| range.len()).sum::<u64>(), 2 * HALF);
    assert!(ranges(unused).is_empty());
    let mut regions: Vec<ByteRange> = x.pieces.iter().chain(&w.pieces).map(|piece| piece.1.range).collect();
    regions.sort_by_key(|range| range.start);
    assert!(regions.windows(2).all(|pair| pair[0].end <= pair[1].start), "{regions:?}");
}

/// What launches and the host read was written in this step or is persistent, and has not died since.
#[test]
fn nothing_dies_before_it_is_read() {
    for seed in 1..20 {
        let (paging, _) = random_paging(seed);
        // For each 256 bytes of addresses, the alignment of tensors: whether they hold something.
        let cells = |region: Region| (region.range.start / 256) as usize..region.range.end.div_ceil(256) as usize;
        let mut holds = vec![false; (paging.unit_count * paging.unit_bytes / 256) as usize];
        let backing = paging.plan.inputs.iter().chain(&paging.plan.persistent);
        backing.flat_map(|backing| &backing.pieces).for_each(|(_, region)| holds[cells(*region)].fill(true));
        let commands = paging.plan.commands.iter().filter(|command| command.is_work());
        for (launch, (command, units)) in commands.zip(&paging.launches).enumerate() {
            let mut read = command.reads().into_iter().map(cells);
            assert!(read.all(|cells| holds[cells].iter().all(|&holds| holds)), "seed {seed}: launch {launch}");
            command.writes().into_iter().for_each(|region| holds[cells(region)].fill(true));
            for &unit in &units.dies {
                let dead = Region::new(MemoryId(0), unit * paging.unit_bytes, paging.unit_bytes);
                holds[cells(dead)].fill(false);
            }
        }
        let lasting = paging.plan.outputs.iter().chain(&paging.plan.persistent);
        let mut read = lasting.flat_map(|backing| &backing.pieces).map(|(_, region)| cells(*region));
        assert!(read.all(|cells| holds[cells].iter().all(|&holds| holds)), "seed {seed}: the host");
    }
}

/// A device that evicts only what it is told to, in the order in which a driver does.
#[test]
fn said_moves_keep_within_the_budget_and_lose_nothing() {
    for seed in 1..60 {
        let (paging, budget) = random_paging(seed);
        let what = format!("seed {seed}, {budget} bytes, {} units of {}", paging.capacity, paging.unit_bytes);
        let mut queue: Vec<u64> = Vec::new();
        // Units whose data on the device is newer than the host's.
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        for step in 0..3 {
            for (launch, (units, moves)) in paging.launches.iter().zip(&paging.moves).enumerate() {
                let what = format!("{what}, step {step}, launch {launch}");
                moves.before.iter().for_each(|said| tell(&paging, *said, &mut queue, &mut changed, &what));
                for used in &units.uses {
                    assert!(queue.contains(&used.unit), "{what}: unit {} is missing", used.unit);
                    if used.writes {
                        changed.insert(used.unit);
                    }
                }
                moves.after.iter().for_each(|said| tell(&paging, *said, &mut queue, &mut changed, &what));
                for unit in &units.dies {
                    changed.remove(unit);
                }
            }
        }
    }
}

fn tell(paging: &Paging, said: Move, queue: &mut Vec<u64>, changed: &mut BTreeSet<u64>, what: &str) {
    match said {
        Move::ToHost(unit) => {
            changed.remove(&unit);
            if queue.contains(&unit) {
                queue.retain(|&other| other != unit);
                queue.insert(0, unit);
            }
        }
        Move::ToDevice(unit) => {
            let resident = queue.contains(&unit);
            queue.retain(|&other| other != unit);
            if !resident && queue.len() as u64 == paging.capacity {
                let victim = queue.remove(0);
                assert!(!changed.contains(&victim), "{what}: unit {victim} goes with data that only it has");
            }
            queue.push(unit);
        }
    }
}

#[test]
fn a_budget_below_the_largest_launch_names_it() {
    let mut random = Random::new(7);
    let program = random_training_program(&mut random, 3);
    let costs = estimate(&program, &limits());
    let statistics = page(&program, None, &limits(), &costs).unwrap().plan.statistics;
    let budget_bytes = statistics.minimum_budget_bytes - 1;
    let (minimum_bytes, launch) = (statistics.minimum_budget_bytes, statistics.minimum_launch);
    let refused = |budget_bytes, limits: &Limits| page(&program, Some(budget_bytes), limits, &costs).unwrap_err();
    let error = |setting| PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch: launch.clone(), setting };
    assert_eq!(refused(budget_bytes, &limits()), error(DeviceBudgetSetting::DeviceMemory));
    assert!(page(&program, Some(minimum_bytes), &limits(), &costs).is_ok());
    // No budget is large enough for a device that is too small.
    let small = Limits { memory_bytes: budget_bytes, ..limits() };
    let error_of_device = error(DeviceBudgetSetting::Device);
    assert_eq!(refused(minimum_bytes, &small), error_of_device);
    assert!(error_of_device.to_string().ends_with("(use a smaller batch)"), "{error_of_device}");
}

#[test]
fn what_fits_never_leaves() {
    for seed in 1..10 {
        let mut random = Random::new(seed);
        let program = random_training_program(&mut random, 4);
        let paging = page(&program, None, &limits(), &estimate(&program, &limits())).unwrap();
        let said = paging.moves.iter().flat_map(|moves| moves.before.iter().chain(&moves.after));
        let leaves = said.filter(|said| matches!(said, Move::ToHost(_))).count();
        // Only the loss is copied to the host, to be read there.
        assert!(leaves <= 1, "seed {seed}: {leaves}");
    }
}
