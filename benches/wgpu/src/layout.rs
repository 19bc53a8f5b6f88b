//! The layout of a step's bytes in buffers: all in one, as in Forebay, or each tensor in its own.

use std::collections::BTreeMap;

use forebay_base::{MemoryId, Region};

use crate::recorder::{Picture, Step};
use crate::sequence::{Operation, Place};

/// The alignment at which bindings can start, wherever Forebay put them.
const ALIGNMENT_BYTES: u64 = 256;

/// A step with its operands in buffers.
pub struct Layout {
    /// The contents of the buffers before the step.
    pub buffers: Vec<Vec<u8>>,
    /// The operations of the step.
    pub operations: Vec<Operation<Place>>,
    /// The bytes that the step leaves, and their places.
    pub results: Vec<(Place, Vec<u8>)>,
}

/// Makes each of Forebay's memories one buffer.
pub fn arena(step: &Step, operations: &[Operation<Region>]) -> Layout {
    let memories: Vec<MemoryId> = step.before.keys().copied().collect();
    let place = |region: &Region| Place {
        buffer: memories.binary_search(&region.memory).unwrap_or(usize::MAX),
        offset_bytes: region.range.start,
        size_bytes: region.range.len(),
    };
    let operations = operations.iter().map(|operation| operation.map(place)).collect();
    let whole = |(buffer, bytes): (usize, &Vec<u8>)| {
        (Place { buffer, offset_bytes: 0, size_bytes: bytes.len() as u64 }, bytes.clone())
    };
    let results = step.after.values().enumerate().map(whole).collect();
    Layout { buffers: step.before.values().cloned().collect(), operations, results }
}

/// Makes each tensor a buffer. A tensor is a range of bytes from the time when they are written until others take their place. Tensors
/// share a buffer if an operation accesses them as one, or changes one into the other in place.
pub fn tensors(step: &Step, operations: &[Operation<Region>]) -> Layout {
    let mut tensors = Tensors::default();
    let named: Vec<Operation<(Region, usize)>> = operations.iter().map(|operation| tensors.follow(operation)).collect();
    let (buffer_of, buffers) = tensors.buffers(&step.before);
    let place = |&(region, tensor): &(Region, usize)| {
        let (buffer, start) = buffer_of[tensor];
        Place { buffer, offset_bytes: region.range.start - start, size_bytes: region.range.len() }
    };
    let results = tensors.current.iter().filter(|(_, (_, tensor))| !tensors.workspace.contains(tensor));
    let results = results.map(|(&(memory, start), &(end, tensor))| {
        let bytes = step.after[&memory][start as usize..end as usize].to_vec();
        (place(&(Region::new(memory, start, end - start), tensor)), bytes)
    });
    Layout { buffers, results: results.collect(), operations: named.iter().map(|one| one.map(place)).collect() }
}

/// Which tensor has which bytes as a step proceeds.
#[derive(Default)]
struct Tensors {
    /// By memory and first byte: one past the last byte, and the tensor that has the bytes now.
    current: BTreeMap<(MemoryId, u64), (u64, usize)>,
    /// By tensor: the bytes that it was created for.
    regions: Vec<Region>,
    /// By tensor: another tensor of its buffer, or the tensor itself if it represents all of them.
    others: Vec<usize>,
    /// Tensors that existed before the step.
    initial: Vec<usize>,
    /// Tensors whose bytes no one else reads.
    workspace: Vec<usize>,
}

impl Tensors {
    /// Determines the tensors of an operation.
    fn follow(&mut self, operation: &Operation<Region>) -> Operation<(Region, usize)> {
        match operation {
            Operation::Launch { reads, writes, workspace, dispatches } => {
                let of = |&region: &Region| (region, self.reach(region));
                let named: Vec<_> = reads.iter().map(of).collect();
                let write = |&region: &Region| {
                    let in_place = reads.iter().any(|read| read.overlaps(region));
                    (region, if in_place { self.reach(region) } else { self.replace(region) })
                };
                let writes = writes.iter().map(write).collect();
                let workspace = workspace.map(|region| (region, self.replace(region)));
                self.workspace.extend(workspace.map(|(_, tensor)| tensor));
                Operation::Launch { reads: named, writes, workspace, dispatches: dispatches.clone() }
            }
            Operation::Copy { from, to } => {
                let from = (*from, self.reach(*from));
                Operation::Copy { from, to: (*to, self.replace(*to)) }
            }
            Operation::Fill { to, pattern } => Operation::Fill { to: (*to, self.replace(*to)), pattern: *pattern },
        }
    }

    fn add(&mut self, region: Region) -> usize {
        let tensor = self.regions.len();
        self.regions.push(region);
        self.others.push(tensor);
        self.current.insert((region.memory, region.range.start), (region.range.end, tensor));
        tensor
    }

    /// Returns the tensor that has these bytes now. If there are several, they share a buffer from then on. Bytes that belong to no tensor
    /// existed before the step.
    fn reach(&mut self, region: Region) -> usize {
        let (memory, range) = (region.memory, region.range);
        let (mut at, mut found) = (range.start, Vec::new());
        while at < range.end {
            let covering = self.current.range(..=(memory, at)).next_back();
            let covering = covering.filter(|((of, _), (end, _))| *of == memory && *end > at);
            if let Some((_, &(end, tensor))) = covering {
                found.push(tensor);
                at = end;
                continue;
            }
            let next = self.current.range((memory, at)..).next().filter(|((of, _), _)| *of == memory);
            let end = next.map_or(range.end, |(&(_, start), _)| start.min(range.end));
            let tensor = self.add(Region::new(memory, at, end - at));
            self.initial.push(tensor);
            found.push(tensor);
            at = end;
        }
        let first = self.root(found[0]);
        for tensor in found {
            let root = self.root(tensor);
            self.others[root] = first;
        }
        first
    }

    /// Creates a tensor that takes the place of these bytes.
    fn replace(&mut self, region: Region) -> usize {
        let (memory, range) = (region.memory, region.range);
        for at in [range.start, range.end] {
            let before = self.current.range_mut(..(memory, at)).next_back();
            if let Some((_, (end, tensor))) = before.filter(|((of, _), (end, _))| *of == memory && *end > at) {
                let rest = (std::mem::replace(end, at), *tensor);
                self.current.insert((memory, at), rest);
            }
        }
        let gone: Vec<_> =
            self.current.range((memory, range.start)..(memory, range.end)).map(|(&key, _)| key).collect();
        self.current.retain(|key, _| !gone.contains(key));
        self.add(region)
    }

    fn root(&self, tensor: usize) -> usize {
        match self.others[tensor] {
            other if other == tensor => tensor,
            other => self.root(other),
        }
    }

    /// Returns, for each tensor, its buffer and the byte of its memory at which the buffer begins, and the buffers' initial contents.
    fn buffers(&self, before: &Picture) -> (Vec<(usize, u64)>, Vec<Vec<u8>>) {
        // By the tensor that represents a buffer: the first byte and one past the last.
        let mut extents: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (tensor, region) in self.regions.iter().enumerate() {
            let (start, end) = extents.entry(self.root(tensor)).or_insert((u64::MAX, 0));
            *start = (*start).min(region.range.start / ALIGNMENT_BYTES * ALIGNMENT_BYTES);
            *end = (*end).max(region.range.end);
        }
        let number = |root: &usize| extents.range(..root).count();
        let buffer_of = (0..self.regions.len()).map(|tensor| {
            let root = self.root(tensor);
            (number(&root), extents[&root].0)
        });
        let buffer_of: Vec<(usize, u64)> = buffer_of.collect();
        let mut buffers: Vec<Vec<u8>> = extents.values().map(|(start, end)| vec![0; (end - start) as usize]).collect();
        for &tensor in &self.initial {
            let (region, (buffer, start)) = (self.regions[tensor], buffer_of[tensor]);
            let (first, last) = (region.range.start as usize, region.range.end as usize);
            let at = first - start as usize;
            buffers[buffer][at..at + last - first].copy_from_slice(&before[&region.memory][first..last]);
        }
        (buffer_of, buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64) -> Region {
        Region::new(MemoryId(0), start, end - start)
    }

    fn launch(reads: &[(u64, u64)], write: (u64, u64)) -> Operation<Region> {
        let reads = reads.iter().map(|&(start, end)| region(start, end)).collect();
        Operation::Launch { reads, writes: vec![region(write.0, write.1)], workspace: None, dispatches: Vec::new() }
    }

    fn layout(operations: &[Operation<Region>]) -> Layout {
        let before: Vec<u8> = (0..=255).cycle().take(4096).collect();
        let picture = Picture::from([(MemoryId(0), before)]);
        tensors(&Step { lists: Vec::new(), before: picture.clone(), after: picture }, operations)
    }

    fn buffers(operation: &Operation<Place>) -> Vec<usize> {
        let Operation::Launch { reads, writes, .. } = operation else { return Vec::new() };
        reads.iter().chain(writes).map(|place| place.buffer).collect()
    }

    #[test]
    fn bytes_that_are_written_again_are_another_buffer() {
        let layout = layout(&[launch(&[(0, 256)], (256, 512)), launch(&[(256, 512)], (0, 256))]);
        let (first, second) = (buffers(&layout.operations[0]), buffers(&layout.operations[1]));
        assert_eq!(first[1], second[0]);
        assert_ne!(first[0], second[1], "the input is gone when its bytes are written");
        assert_eq!(layout.buffers[first[0]], (0..=255).collect::<Vec<u8>>());
        assert_eq!(layout.results.len(), 2);
    }

    #[test]
    fn what_is_reached_as_one_or_changed_in_place_is_one_buffer() {
        let whole = [launch(&[], (512, 768)), launch(&[], (768, 1024)), launch(&[(512, 1024)], (2048, 2304))];
        let layout = self::layout(&whole);
        let reached = buffers(&layout.operations[2]);
        assert_eq!([buffers(&layout.operations[0])[0], buffers(&layout.operations[1])[0]], [reached[0]; 2]);
        let Operation::Launch { writes, .. } = &layout.operations[1] else { unreachable!("it is a launch") };
        assert_eq!((writes[0].offset_bytes, writes[0].size_bytes), (256, 256));
        assert_ne!(reached[0], reached[1]);
        let layout = self::layout(&[launch(&[(512, 768)], (512, 768))]);
        let in_place = buffers(&layout.operations[0]);
        assert_eq!(in_place[0], in_place[1]);
    }

    #[test]
    fn a_part_that_is_overwritten_leaves_the_rest() {
        let layout =
            layout(&[launch(&[(0, 768)], (1024, 1280)), launch(&[], (256, 512)), launch(&[(512, 768)], (2048, 2304))]);
        assert_eq!(buffers(&layout.operations[2])[0], buffers(&layout.operations[0])[0]);
        assert_ne!(buffers(&layout.operations[1])[0], buffers(&layout.operations[0])[0]);
        let rest = layout.results.iter().filter(|(place, _)| place.buffer == buffers(&layout.operations[0])[0]);
        let rest: Vec<(u64, u64)> = rest.map(|(place, _)| (place.offset_bytes, place.size_bytes)).collect();
        assert_eq!(rest, [(0, 256), (512, 256)]);
    }
}
