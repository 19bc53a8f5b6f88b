//! The physical bytes that one entry of a list uses.

use forebay_base::{Command, Region};

use super::violation::{Actor, Violation};
use crate::error::SyncError;
use crate::physical::{PhysicalBytes, TileMap};

/// The physical bytes that one entry uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    pub reads: Vec<PhysicalBytes>,
    pub writes: Vec<PhysicalBytes>,
}

impl Uses {
    /// The bytes of a command, determined by [`Uses::find`]. Mapping, barriers, records and waits use none.
    pub fn of_command(index: usize, command: &Command, tiles: &TileMap, violations: &mut Vec<Violation>) -> Uses {
        let Some(stream) = command.stream() else { return Uses::default() };
        let regions = (&command.reads()[..], &command.writes()[..]);
        Uses::find(index, Actor::Stream(stream), regions, tiles, violations)
    }

    /// Translates regions through the mapping. Adds a violation for each region that is not mapped.
    pub fn find(
        index: usize,
        actor: Actor,
        (reads, writes): (&[Region], &[Region]),
        tiles: &TileMap,
        violations: &mut Vec<Violation>,
    ) -> Uses {
        let mut pieces = |regions: &[Region]| {
            let mut pieces = Vec::with_capacity(regions.len());
            for &region in regions {
                match tiles.physical(region) {
                    Ok(found) => pieces.extend(found),
                    Err(SyncError::Unmapped { region, offset_bytes }) => {
                        violations.push(Violation::Unmapped { command: index, actor, region, offset_bytes });
                    }
                    Err(error) => violations.push(Violation::Mapping(error)),
                }
            }
            pieces
        };
        Uses { reads: pieces(reads), writes: pieces(writes) }
    }
}

/// Sorts ranges by physical memory and position, and joins those that touch.
pub(super) fn joined(mut ranges: Vec<PhysicalBytes>) -> Vec<PhysicalBytes> {
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
