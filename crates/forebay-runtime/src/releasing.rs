//! Memory of a plan that is given back to the system before the plan is dropped.

use forebay_base::{ByteRange, MemoryId, Region};
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

/// Everything but the persistent tensors for which `keep` returns true.
pub(crate) fn all_but(plan: &Plan, keep: &dyn Fn(&str) -> bool) -> Vec<Region> {
    let kept = plan.persistent.iter().filter(|backing| keep(&backing.name));
    let pieces: Vec<Region> = kept.flat_map(|backing| &backing.pieces).map(|(_, region)| *region).collect();
    let memories = plan.memories.iter().enumerate().filter(|(_, memory)| can_be_released(memory.kind));
    memories.flat_map(|(i, memory)| outside(Region::new(MemoryId(i as u32), 0, memory.size_bytes), &pieces)).collect()
}

/// The parts of a region that none of the others overlaps.
pub(crate) fn outside(region: Region, others: &[Region]) -> Vec<Region> {
    let mut used: Vec<ByteRange> =
        others.iter().filter(|other| other.overlaps(region)).map(|other| other.range).collect();
    used.push(ByteRange::new(region.range.end, region.range.end));
    used.sort_unstable_by_key(|range| range.start);
    let (mut parts, mut end) = (Vec::new(), region.range.start);
    for range in used {
        if range.start > end {
            parts.push(Region::new(region.memory, end, range.start - end));
        }
        end = end.max(range.end);
    }
    parts
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
