//! The moves of the search: which buffers are dropped between two of their uses, and which are kept.

use std::collections::BTreeMap;

use crate::tuning::{RECOMPUTED_BUFFERS_MAX, RECOMPUTED_BYTES_PARTS};

use super::sequence::Choice;
use super::step::Step;

/// A change of a choice, with the index of what it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Move {
    /// Drops a buffer between two uses.
    Drop(usize),
    /// Keeps a buffer after its last use that would otherwise be recomputed for others.
    Keep(usize),
    /// Holds a buffer that was recomputed for others until its own next use.
    Hold(usize),
    /// Makes launches run later if that saves bytes.
    Sink,
}

/// The contents of a buffer between their uses by two launches, or by the parts of two launches.
struct Drop {
    gaps: Vec<usize>,
    contents: Vec<usize>,
}

/// All possible moves.
pub(super) struct Moves {
    /// The drops; those of the most bytes for the most launches come first.
    drops: Vec<Drop>,
    /// By buffer: its contents.
    buffers: Vec<Vec<usize>>,
    /// By content: its buffer.
    buffer_of: Vec<usize>,
}

impl Moves {
    /// Collects the drops of buffers, or of their parts if they are in parts, that make a difference. With `longest`, collects all of them,
    /// each only once: where it is idle for longest.
    pub(super) fn new(step: &Step, longest: bool) -> Moves {
        let mut buffers: Vec<Vec<usize>> = Vec::new();
        let mut buffer_of = Vec::with_capacity(step.contents.len());
        let mut drops: BTreeMap<(usize, usize, usize), (i64, Drop)> = BTreeMap::new();
        for (number, content) in step.contents.iter().enumerate() {
            match buffers.last_mut().filter(|last| step.contents[last[0]].chunk.owner == content.chunk.owner) {
                Some(last) => last.push(number),
                None => buffers.push(vec![number]),
            }
            let buffer = buffers.len() - 1;
            buffer_of.push(buffer);
            let gaps: Vec<_> = match longest {
                true => step.longest_gap(number).into_iter().collect(),
                false => step.gaps(number).collect(),
            };
            for (gap, start, end) in gaps {
                let (from, to) = if longest { (0, 0) } else { (step.origins[start], step.origins[end]) };
                let nothing = || (0, Drop { gaps: Vec::new(), contents: Vec::new() });
                let (weight, drop) = drops.entry((buffer, from, to)).or_insert_with(nothing);
                *weight += content.bytes * (end - start - 1) as i64;
                drop.gaps.push(gap);
                drop.contents.push(number);
            }
        }
        let mut drops: Vec<(i64, Drop)> = drops.into_values().collect();
        if !longest {
            let peak_bytes = step.profile(&step.plain()).into_iter().max().unwrap_or(0);
            let bytes = |drop: &Drop| drop.contents.iter().map(|&content| step.contents[content].bytes).sum::<i64>();
            drops.retain(|(_, drop)| bytes(drop) >= peak_bytes / RECOMPUTED_BYTES_PARTS);
        }
        drops.sort_by_key(|(weight, drop)| std::cmp::Reverse((*weight, drop.gaps[0])));
        drops.truncate(RECOMPUTED_BUFFERS_MAX);
        Moves { drops: drops.into_iter().map(|(_, drop)| drop).collect(), buffers, buffer_of }
    }

    /// Returns all moves that drop a buffer.
    pub(super) fn drops(&self) -> impl DoubleEndedIterator<Item = Move> + ExactSizeIterator {
        (0..self.drops.len()).map(Move::Drop)
    }

    /// Returns all moves that make a difference.
    pub(super) fn all(&self) -> impl Iterator<Item = Move> + '_ {
        let mut dropped: Vec<usize> =
            self.drops.iter().flat_map(|drop| &drop.contents).map(|&content| self.buffer_of[content]).collect();
        dropped.sort_unstable();
        dropped.dedup();
        let others = dropped.into_iter().flat_map(|buffer| [Move::Hold(buffer), Move::Keep(buffer)]);
        self.drops().chain(others).chain([Move::Sink])
    }

    /// Returns the move that keeps a content.
    pub(super) fn keep(&self, content: usize) -> Move {
        Move::Keep(self.buffer_of[content])
    }

    /// Returns whether a move is made in a choice.
    pub(super) fn is_made(&self, choice: &Choice, candidate: Move) -> bool {
        match candidate {
            Move::Drop(number) => self.drops[number].gaps.iter().any(|&gap| choice.dropped[gap]),
            Move::Keep(buffer) => self.buffers[buffer].iter().any(|&content| choice.kept[content]),
            Move::Hold(buffer) => self.buffers[buffer].iter().any(|&content| choice.held[content]),
            Move::Sink => choice.sinks,
        }
    }

    /// Makes or undoes a move.
    pub(super) fn set(&self, choice: &mut Choice, candidate: Move, made: bool) {
        match candidate {
            Move::Drop(number) => self.drops[number].gaps.iter().for_each(|&gap| choice.dropped[gap] = made),
            Move::Keep(buffer) => self.buffers[buffer].iter().for_each(|&content| choice.kept[content] = made),
            Move::Hold(buffer) => self.buffers[buffer].iter().for_each(|&content| choice.held[content] = made),
            Move::Sink => choice.sinks = made,
        }
    }

    /// Holds what a move drops if it is recomputed for others. Returns whether that changes anything.
    pub(super) fn hold(&self, choice: &mut Choice, candidate: Move) -> bool {
        let Move::Drop(number) = candidate else { return false };
        let mut changes = false;
        for &content in &self.drops[number].contents {
            changes |= !std::mem::replace(&mut choice.held[content], true);
        }
        changes
    }
}
