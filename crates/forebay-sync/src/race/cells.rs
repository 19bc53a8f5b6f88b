//! The last accesses of all bytes.
//!
//! A memory is a row of cells: runs of bytes with the same past. An access cuts the row at both of its ends, and a write leaves a single
//! cell. So the total number of cells that accesses visit grows with the number of accesses, not with the number of ends in a long trace.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use super::order::{Moment, Order};
use super::uses::{Uses, joined};
use super::violation::Hazard;
use crate::physical::{PhysicalBytes, PhysicalMemory};

/// The past of a run of bytes.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// The last write.
    write: Option<Moment>,
    /// The last read of each timeline since that write.
    reads: Vec<Moment>,
}

/// The cells of one memory by their first byte. Each cell ends where the next begins, and the first begins at byte 0.
#[derive(Debug)]
struct Row(BTreeMap<u64, Cell>);

/// The last accesses of all bytes.
#[derive(Debug, Default)]
pub(super) struct Cells {
    rows: BTreeMap<PhysicalMemory, Row>,
}

/// An unordered hazard: the earlier access, and the bytes in ascending order.
pub(super) type Unordered = (Moment, Hazard, Vec<PhysicalBytes>);

/// The hazards of an access.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// Pairs of accesses with a hazard, ordered or not.
    pub hazards: usize,
    /// The hazards that are not ordered.
    pub unordered: Vec<Unordered>,
}

impl Row {
    /// Splits the row so that a cell begins at this byte.
    fn cut(&mut self, at: u64) {
        if let Some((_, cell)) = self.0.range(..=at).next_back().filter(|&(&start, _)| start < at) {
            let rest = cell.clone();
            self.0.insert(at, rest);
        }
    }

    /// The cells of a range that has been cut out, with their bytes.
    fn cells(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, &Cell)> {
        let ends = self.0.range(range.start..=range.end).skip(1).map(|(&end, _)| end);
        self.0.range(range.start..range.end).zip(ends).map(|((&start, cell), end)| (ByteRange::new(start, end), cell))
    }

    fn read(&mut self, range: ByteRange, now: Moment) {
        for (_, cell) in self.0.range_mut(range.start..range.end) {
            match cell.reads.iter_mut().find(|read| read.timeline == now.timeline) {
                Some(read) => *read = now,
                None => cell.reads.push(now),
            }
        }
    }

    fn write(&mut self, range: ByteRange, now: Moment) {
        while let Some((&start, _)) = self.0.range(range.start..range.end).next_back() {
            self.0.remove(&start);
        }
        self.0.insert(range.start, Cell { write: Some(now), reads: Vec::new() });
    }
}

impl Cells {
    /// Compares the accesses at `now` with the past, then adds them.
    pub fn access(&mut self, now: Moment, uses: &Uses, order: &Order) -> Met {
        let mut found: BTreeMap<(Moment, Hazard), Vec<PhysicalBytes>> = BTreeMap::new();
        let mut hazards: Vec<(Moment, Hazard)> = Vec::new();
        let mut meet = |past: Moment, hazard: Hazard, bytes: PhysicalBytes| {
            if hazards.last() != Some(&(past, hazard)) {
                hazards.push((past, hazard));
            }
            if !order.is_before(past, now) {
                found.entry((past, hazard)).or_default().push(bytes);
            }
        };
        for &bytes in &uses.reads {
            for (range, cell) in self.cut_out(bytes) {
                let bytes = PhysicalBytes { range, ..bytes };
                cell.write.iter().for_each(|&past| meet(past, Hazard::ReadAfterWrite, bytes));
            }
        }
        for &bytes in &uses.writes {
            for (range, cell) in self.cut_out(bytes) {
                let bytes = PhysicalBytes { range, ..bytes };
                cell.write.iter().for_each(|&past| meet(past, Hazard::WriteAfterWrite, bytes));
                cell.reads.iter().for_each(|&past| meet(past, Hazard::WriteAfterRead, bytes));
            }
        }
        hazards.sort_unstable();
        hazards.dedup();
        self.add(uses, now);
        let unordered = |((past, hazard), bytes)| (past, hazard, joined(bytes));
        Met { hazards: hazards.len(), unordered: found.into_iter().map(unordered).collect() }
    }

    /// The cells of a range, after cutting the row at its ends.
    fn cut_out(&mut self, bytes: PhysicalBytes) -> impl Iterator<Item = (ByteRange, &Cell)> {
        let row = self.rows.entry(bytes.memory).or_insert_with(|| Row([(0, Cell::default())].into()));
        if !bytes.range.is_empty() {
            row.cut(bytes.range.start);
            row.cut(bytes.range.end);
        }
        row.cells(bytes.range)
    }

    fn add(&mut self, uses: &Uses, now: Moment) {
        for bytes in uses.reads.iter().filter(|bytes| !bytes.range.is_empty()) {
            self.rows.entry(bytes.memory).and_modify(|row| row.read(bytes.range, now));
        }
        for bytes in uses.writes.iter().filter(|bytes| !bytes.range.is_empty()) {
            self.rows.entry(bytes.memory).and_modify(|row| row.write(bytes.range, now));
        }
    }
}
