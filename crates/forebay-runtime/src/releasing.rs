//! Memory of a plan that is given back to the system before the plan is dropped.

use forebay_base::{ByteRange, MemoryId, Region};
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

/// Everything but the persistent tensors for which `keep` returns true.
pub(crate) fn all_but(plan: &Plan, keep: &dyn Fn(&str) -> bool) -> Vec<Region> {
    let mut regions = Vec::new();
    for (number, memory) in plan.memories.iter().enumerate().filter(|(_, memory)| can_be_released(memory.kind)) {
        let kept = plan.persistent.iter().filter(|backing| keep(&backing.name));
        let pieces = kept.flat_map(|backing| &backing.pieces).map(|(_, region)| *region);
        let mut used: Vec<ByteRange> = pieces
            .filter(|region| region.memory.0 as usize == number)
            .map(|region| region.range)
            .chain([ByteRange::new(memory.size_bytes, memory.size_bytes)])
            .collect();
        used.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        for range in used {
            if range.start > end {
                regions.push(Region::new(MemoryId(number as u32), end, range.start - end));
            }
            end = end.max(range.end);
        }
    }
    regions
}

/// The regions that hold a tensor.
pub(crate) fn of<'a>(plan: &'a Plan, backing: &'a BackingLocation) -> impl Iterator<Item = Region> + 'a {
    backing.pieces.iter().map(|(_, region)| *region).filter(|region| can_be_released(plan.memory(region.memory).kind))
}

/// Whether memory of this kind belongs to the plan alone and can be the host's.
fn can_be_released(kind: MemoryKind) -> bool {
    match kind {
        MemoryKind::HostBlock | MemoryKind::Reservation | MemoryKind::Placed => true,
        MemoryKind::SpillFile | MemoryKind::ModelFiles | MemoryKind::Shared(_) | MemoryKind::Lent => false,
    }
}
