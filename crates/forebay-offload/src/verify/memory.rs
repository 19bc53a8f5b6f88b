//! What a memory holds, byte range by byte range.

use std::collections::BTreeMap;

use crate::schedule::Piece;

/// The step that wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// The step before the running one.
    LastStep,
    /// The running step.
    ThisStep,
}

/// The contents that bytes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Not written by anything in the step: constants, and inputs that appear where they are first needed.
    Input,
    /// Written by a kernel.
    Written {
        /// The kernel.
        kernel: usize,
        /// The step in which it was written.
        when: When,
    },
}

/// The ranges of a tensor with their contents; `None` while they are being written.
type Ranges = BTreeMap<u64, (u64, Option<Version>)>;

/// Everything that a memory holds, by tensor: start, end and contents of each range, neighbors merged.
pub type Contents = Vec<Vec<(u64, u64, Option<Version>)>>;

/// A memory.
pub struct Memory {
    /// The name that messages use.
    pub name: &'static str,
    /// Bytes in use.
    pub used_bytes: u64,
    capacity_bytes: u64,
    tensors: Vec<Ranges>,
}

impl Memory {
    /// Creates an empty memory.
    pub fn new(name: &'static str, capacity_bytes: u64, tensors: usize) -> Memory {
        Memory { name, used_bytes: 0, capacity_bytes, tensors: vec![Ranges::new(); tensors] }
    }

    /// Counts bytes as used, without recording which.
    pub fn grow(&mut self, bytes: u64) -> Result<(), String> {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
        if self.used_bytes > self.capacity_bytes {
            let Memory { name, used_bytes, capacity_bytes, .. } = self;
            return Err(format!("{name} holds {used_bytes} bytes, but its capacity is {capacity_bytes}"));
        }
        Ok(())
    }

    /// Takes room for a piece that is not here yet.
    pub fn take(&mut self, piece: &Piece, version: Option<Version>) -> Result<(), String> {
        let end = piece.offset_bytes + piece.size_bytes;
        let ranges = &mut self.tensors[piece.tensor];
        let overlaps = ranges.range(..end).next_back().is_some_and(|(_, (to, _))| *to > piece.offset_bytes);
        if overlaps {
            return Err(format!("{piece} is already on {}", self.name));
        }
        if piece.size_bytes > 0 {
            ranges.insert(piece.offset_bytes, (end, version));
        }
        self.grow(piece.size_bytes)
    }

    /// Whether nothing of the tensor is here.
    pub fn holds_nothing(&self, tensor: usize) -> bool {
        self.tensors[tensor].is_empty()
    }

    /// Frees whatever is here of a tensor.
    pub fn release_all(&mut self, tensor: usize) {
        let ranges = std::mem::take(&mut self.tensors[tensor]);
        self.used_bytes -= ranges.iter().map(|(from, (to, _))| to - from).sum::<u64>();
    }

    /// Frees a piece, all of which must be here.
    pub fn release(&mut self, piece: &Piece) -> Result<(), String> {
        self.read(piece)?;
        self.cut(piece.tensor, piece.offset_bytes);
        self.cut(piece.tensor, piece.offset_bytes + piece.size_bytes);
        let ranges = &mut self.tensors[piece.tensor];
        let gone: Vec<u64> =
            ranges.range(piece.offset_bytes..piece.offset_bytes + piece.size_bytes).map(|(from, _)| *from).collect();
        gone.iter().for_each(|from| {
            ranges.remove(from);
        });
        self.used_bytes -= piece.size_bytes;
        Ok(())
    }

    /// The contents of a piece, all of which must be here.
    pub fn read(&self, piece: &Piece) -> Result<Vec<(u64, u64, Option<Version>)>, String> {
        let (mut at, end) = (piece.offset_bytes, piece.offset_bytes + piece.size_bytes);
        let mut found: Vec<(u64, u64, Option<Version>)> = Vec::new();
        let ranges = &self.tensors[piece.tensor];
        while at < end {
            let Some((_, (to, version))) = ranges.range(..=at).next_back().filter(|(_, (to, _))| *to > at) else {
                return Err(format!("not all of {piece} is on {}", self.name));
            };
            let to = end.min(*to);
            match found.last_mut() {
                Some(last) if last.2 == *version => last.1 = to,
                _ => found.push((at, to, *version)),
            }
            at = to;
        }
        Ok(found)
    }

    /// Sets the contents of a piece that is here.
    pub fn write(&mut self, piece: &Piece, version: Option<Version>) {
        self.cut(piece.tensor, piece.offset_bytes);
        self.cut(piece.tensor, piece.offset_bytes + piece.size_bytes);
        let end = piece.offset_bytes + piece.size_bytes;
        self.tensors[piece.tensor].range_mut(piece.offset_bytes..end).for_each(|(_, (_, held))| *held = version);
    }

    /// Splits a range that crosses `at` in two.
    fn cut(&mut self, tensor: usize, at: u64) {
        let ranges = &mut self.tensors[tensor];
        if let Some((_, (to, version))) = ranges.range_mut(..at).next_back().filter(|(_, (to, _))| *to > at) {
            let right = (*to, *version);
            *to = at;
            ranges.insert(at, right);
        }
    }

    /// Everything that is held, with versions named as in a step that starts `steps` later.
    pub fn contents(&self, steps: u8) -> Contents {
        let named = |version: Version| match version {
            Version::Written { kernel, .. } if steps > 0 => Version::Written { kernel, when: When::LastStep },
            other => other,
        };
        let tensor = |ranges: &Ranges| {
            let mut merged: Vec<(u64, u64, Option<Version>)> = Vec::new();
            for (from, (to, version)) in ranges {
                let version = version.map(named);
                match merged.last_mut() {
                    Some(last) if last.1 == *from && last.2 == version => last.1 = *to,
                    _ => merged.push((*from, *to, version)),
                }
            }
            merged
        };
        self.tensors.iter().map(tensor).collect()
    }

    /// Starts another step.
    pub fn shift(&mut self) {
        for (_, (_, version)) in self.tensors.iter_mut().flatten() {
            if let Some(Version::Written { when, .. }) = version {
                *when = When::LastStep;
            }
        }
    }
}

/// How the states of the device, the host and the SSD differ.
pub fn difference(before: &[Contents], after: &[Contents]) -> Option<String> {
    for (name, (before, after)) in ["the device", "the host", "the SSD"].iter().zip(before.iter().zip(after)) {
        for (tensor, (before, after)) in before.iter().zip(after).enumerate() {
            if before != after {
                return Some(format!("contents of tensor {tensor} on {name} differ: {before:?}, then {after:?}"));
            }
        }
    }
    None
}
