//! The rule for a single command: it must not overlap itself.

use forebay_base::{Command, Launch, Region};

use super::violation::Violation;
use crate::physical::{PhysicalBytes, TileMap};

/// Adds the violations of one command.
pub(super) fn check(index: usize, command: &Command, tiles: &TileMap, violations: &mut Vec<Violation>) {
    match command {
        Command::Copy { from, to, .. } => {
            if from.range.len() != to.range.len() {
                violations.push(Violation::CopyLengths { command: index, from: *from, to: *to });
            }
            if overlap(tiles, *from, *to) {
                violations.push(Violation::OverlapsItself { command: index, one: *from, other: *to });
            }
        }
        Command::Launch { launch, .. } => check_launch(index, launch, tiles, violations),
        _ => {}
    }
}

fn check_launch(index: usize, launch: &Launch, tiles: &TileMap, violations: &mut Vec<Violation>) {
    let in_place = launch.kernel.in_place();
    let written: Vec<Region> = launch.writes.iter().map(|binding| binding.region).chain(launch.workspace).collect();
    for (write, &region) in written.iter().enumerate() {
        for (read, binding) in launch.reads.iter().enumerate() {
            let allowed = region == binding.region && in_place.contains(&(write, read)) && write < launch.writes.len();
            if !allowed && overlap(tiles, region, binding.region) {
                violations.push(Violation::OverlapsItself { command: index, one: region, other: binding.region });
            }
        }
        for &other in &written[..write] {
            if overlap(tiles, region, other) {
                violations.push(Violation::OverlapsItself { command: index, one: other, other: region });
            }
        }
    }
}

/// Whether two regions have a physical byte in common. Unmapped regions are reported elsewhere.
fn overlap(tiles: &TileMap, one: Region, other: Region) -> bool {
    let pieces = |region: Region| -> Vec<PhysicalBytes> { tiles.physical(region).unwrap_or_default() };
    let others = pieces(other);
    pieces(one).iter().any(|&piece| others.iter().any(|&other| piece.overlaps(other)))
}
