//! The independent checker: finds every hazard of a list of commands that nothing orders.
//!
//! It is written so that it cannot repeat the inserter's mistakes: bytes are cut once into cells between all ends of
//! ranges that the list names, each cell remembers its last accesses, and happens-before is followed from the commands as
//! they stand. Only [`crate::physical`] is shared.
//!
//! Each stream has a clock that says, per stream, before which index everything is complete when the stream's next
//! command starts. A barrier raises the stream's own entry to the present; a record keeps the clock with its own entry at
//! the present; a wait joins the record's. Command `a` happens before `b` where `b`'s clock has passed `a`.
//!
//! Each access is compared with the last write of each of its bytes and, if it writes, with every stream's last read
//! since. A race with an older access is hidden behind one of these: where all of them are ordered, so is everything
//! older.

use std::collections::BTreeMap;

use forebay_base::{Command, StreamId};

use crate::error::SyncError;
use crate::physical::{PhysicalBytes, PhysicalMemory, TileMap};
use crate::StepBoundary;

mod cells;
mod order;
mod shape;
mod violation;

pub use violation::{Hazard, Race, RaceReport, Violation};

use cells::Cells;
use order::Order;

/// Checks a list that runs `steps` times in a row under the mapping of `prologue`.
///
/// Two steps are enough to judge any number: the steps are alike.
///
/// # Errors
/// Every violation found, races in the order of their second command.
pub fn check_races(
    prologue: &[Command],
    commands: &[Command],
    steps: usize,
    boundary: StepBoundary,
) -> Result<RaceReport, Vec<Violation>> {
    let tiles = TileMap::from_prologue(prologue).map_err(|error| vec![Violation::Mapping(error)])?;
    let mut violations = Vec::new();
    let uses = physical_uses(&tiles, commands, &mut violations);
    commands.iter().enumerate().for_each(|(index, command)| shape::check(index, command, &tiles, &mut violations));
    let mut order = Order::new(commands);
    let mut cells = Cells::new(&uses, order.stream_count());
    let mut hazards = 0;
    for step in 0..steps {
        for (index, command) in commands.iter().enumerate() {
            // An order that is wrong in one step is wrong in each; one report is enough.
            let found = order.advance(index, command);
            if step == 0 {
                violations.extend(found);
            }
            if command.is_work() {
                let met = cells.access(step, index, &uses[index], &order);
                hazards += met.hazards;
                violations.extend(met.races.into_iter().map(Violation::Race));
            }
        }
        order.end_step(boundary);
    }
    if !violations.is_empty() {
        return Err(violations);
    }
    let count = |wanted: fn(&Command) -> bool| commands.iter().filter(|command| wanted(command)).count();
    Ok(RaceReport {
        work: count(Command::is_work),
        barriers: count(|command| matches!(command, Command::Barrier { .. })),
        waits: count(|command| matches!(command, Command::Wait { .. })),
        records: count(|command| matches!(command, Command::Record { .. })),
        hazards,
    })
}

/// The physical bytes that each command uses.
#[derive(Clone, Debug)]
struct Uses {
    stream: StreamId,
    reads: Vec<PhysicalBytes>,
    writes: Vec<PhysicalBytes>,
}

fn physical_uses(tiles: &TileMap, commands: &[Command], violations: &mut Vec<Violation>) -> Vec<Uses> {
    let mut pieces = |index: usize, regions: Vec<forebay_base::Region>| {
        let mut pieces = Vec::with_capacity(regions.len());
        for region in regions {
            match tiles.physical(region) {
                Ok(found) => pieces.extend(found),
                Err(SyncError::Unmapped { region, offset_bytes }) => {
                    violations.push(Violation::Unmapped { command: index, region, offset_bytes });
                }
                Err(error) => violations.push(Violation::Mapping(error)),
            }
        }
        pieces
    };
    let uses = |(index, command): (usize, &Command)| {
        let stream = command.stream().unwrap_or(StreamId(0));
        Uses { stream, reads: pieces(index, command.reads()), writes: pieces(index, command.writes()) }
    };
    commands.iter().enumerate().map(uses).collect()
}

/// Ranges of one physical memory each, in order, touching ones joined.
fn joined(mut ranges: Vec<PhysicalBytes>) -> Vec<PhysicalBytes> {
    ranges.sort_unstable();
    let mut joined: Vec<PhysicalBytes> = Vec::with_capacity(ranges.len());
    for bytes in ranges {
        match joined.last_mut() {
            Some(last) if last.memory == bytes.memory && last.range.end >= bytes.range.start => {
                last.range.end = last.range.end.max(bytes.range.end);
            }
            _ => joined.push(bytes),
        }
    }
    joined
}

/// The ends of all ranges by memory: what cells are cut at.
fn cuts(uses: &[Uses]) -> BTreeMap<PhysicalMemory, Vec<u64>> {
    let mut cuts: BTreeMap<PhysicalMemory, Vec<u64>> = BTreeMap::new();
    for bytes in uses.iter().flat_map(|uses| uses.reads.iter().chain(&uses.writes)) {
        cuts.entry(bytes.memory).or_default().extend([bytes.range.start, bytes.range.end]);
    }
    for ends in cuts.values_mut() {
        ends.sort_unstable();
        ends.dedup();
    }
    cuts
}
