//! The number of device bytes that hold something still needed, command by command: the memory curve of a trace.

use std::collections::BTreeMap;

use forebay_base::{ByteRange, Command, MemoryId, Region, Space};
use forebay_plan::Plan;

/// Disjoint byte ranges of several memories.
#[derive(Default)]
struct ByteSet {
    /// The end of each range, by memory and start.
    ranges: BTreeMap<(MemoryId, u64), u64>,
    size_bytes: u64,
}

impl ByteSet {
    fn insert(&mut self, region: Region) {
        if region.range.is_empty() {
            return;
        }
        self.remove(region);
        self.ranges.insert((region.memory, region.range.start), region.range.end);
        self.size_bytes += region.range.len();
    }

    fn remove(&mut self, region: Region) {
        let (memory, ByteRange { start, end }) = (region.memory, region.range);
        // Only the last range that starts before `end` can reach beyond it, so walking backwards stops early.
        while let Some((&(_, found), &found_end)) = self.ranges.range((memory, 0)..(memory, end)).next_back() {
            if found_end <= start {
                break;
            }
            self.ranges.remove(&(memory, found));
            self.size_bytes -= found_end - found;
            for (keep_start, keep_end) in [(found, found_end.min(start)), (found.max(end), found_end)] {
                if keep_start < keep_end {
                    self.ranges.insert((memory, keep_start), keep_end);
                    self.size_bytes += keep_end - keep_start;
                }
            }
        }
    }
}

/// By launch label: the device bytes that are needed while that launch runs. A byte is needed from when it is written until it is last
/// read; the backing locations of persistent tensors are needed at the end of the step.
pub fn live_bytes_by_label(plan: &Plan) -> BTreeMap<u32, u64> {
    let on_device = |region: &Region| matches!(plan.memory(region.memory).space, Space::Device(_));
    let mut live = ByteSet::default();
    for (_, region) in plan.persistent.iter().flat_map(|backing| &backing.pieces) {
        if on_device(region) {
            live.insert(*region);
        }
    }
    let mut by_label = BTreeMap::new();
    for command in plan.commands.iter().rev() {
        let writes: Vec<Region> = command.writes().into_iter().filter(on_device).collect();
        let reads: Vec<Region> = command.reads().into_iter().filter(on_device).collect();
        if let Command::Launch { launch, .. } = command {
            for &region in writes.iter().chain(&reads) {
                live.insert(region);
            }
            by_label.insert(launch.label, live.size_bytes);
        }
        for &region in &writes {
            live.remove(region);
        }
        for &region in &reads {
            live.insert(region);
        }
    }
    by_label
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    /// The set agrees with a plain list of bytes under random insertions and removals.
    #[test]
    fn byte_set_agrees_with_a_naive_one() {
        let mut generator = Random::new(0);
        let mut random = |below: u64| generator.below(below);
        let mut set = ByteSet::default();
        let mut naive = [[false; 64]; 2];
        for round in 0..4000 {
            let memory = random(2);
            let start = random(64);
            let end = start + random(65 - start);
            let insert = random(2) == 0;
            let region = Region::new(MemoryId(memory as u32), start, end - start);
            if insert {
                set.insert(region);
            } else {
                set.remove(region);
            }
            naive[memory as usize][start as usize..end as usize].fill(insert);
            let expected = naive.iter().flatten().filter(|&&set| set).count() as u64;
            assert_eq!(set.size_bytes, expected, "round {round}");
        }
    }
}
