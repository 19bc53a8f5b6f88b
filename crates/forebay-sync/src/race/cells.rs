//! Bytes cut into cells, each with its last accesses.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use super::order::{Moment, Order};
use super::violation::{Hazard, Race};
use super::{cuts, joined, Uses};
use crate::physical::{PhysicalBytes, PhysicalMemory};

/// Where one memory's cells lie in the flat arrays.
#[derive(Debug)]
struct Row {
    first_cell: usize,
    ends: Vec<u64>,
}

/// The last accesses of all cells.
#[derive(Debug)]
pub(super) struct Cells {
    rows: BTreeMap<PhysicalMemory, Row>,
    stream_count: usize,
    /// Per cell, its last write.
    writes: Vec<Option<Moment>>,
    /// Per cell and stream, the stream's last read since that write.
    reads: Vec<Option<Moment>>,
}

/// What an access met.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// Pairs of commands with a hazard, ordered or not.
    pub hazards: usize,
    /// Those that are not ordered.
    pub races: Vec<Race>,
}

impl Cells {
    pub fn new(uses: &[Uses], stream_count: usize) -> Cells {
        let mut cells = 0;
        let mut rows = BTreeMap::new();
        for (memory, ends) in cuts(uses) {
            let first_cell = cells;
            cells += ends.len();
            rows.insert(memory, Row { first_cell, ends });
        }
        Cells { rows, stream_count, writes: vec![None; cells], reads: vec![None; cells * stream_count] }
    }

    /// The first cell of a range, and where its cells begin and end.
    fn span(&self, bytes: PhysicalBytes) -> (usize, &[u64]) {
        let Some(row) = self.rows.get(&bytes.memory).filter(|_| !bytes.range.is_empty()) else {
            return (0, &[]);
        };
        let find = |end: u64| row.ends.partition_point(|&other| other < end);
        let (first, last) = (find(bytes.range.start), find(bytes.range.end));
        (row.first_cell + first, &row.ends[first..=last])
    }

    /// Compares a command's accesses with the past, then adds them.
    pub fn access(&mut self, step: usize, index: usize, uses: &Uses, order: &Order) -> Met {
        let now = order.moment(step, index, uses.stream);
        let mut found: BTreeMap<(Moment, Hazard), Vec<PhysicalBytes>> = BTreeMap::new();
        let mut hazards: Vec<(Moment, Hazard)> = Vec::new();
        let mut meet = |past: Moment, hazard: Hazard, memory: PhysicalMemory, ends: &[u64]| {
            if hazards.last() != Some(&(past, hazard)) {
                hazards.push((past, hazard));
            }
            if !order.is_before(past, now) {
                let bytes = PhysicalBytes { memory, range: ByteRange::new(ends[0], ends[1]) };
                found.entry((past, hazard)).or_default().push(bytes);
            }
        };
        for &bytes in &uses.reads {
            let (first, ends) = self.span(bytes);
            for (cell, ends) in (first..).zip(ends.windows(2)) {
                if let Some(past) = self.writes[cell] {
                    meet(past, Hazard::ReadAfterWrite, bytes.memory, ends);
                }
            }
        }
        for &bytes in &uses.writes {
            let (first, ends) = self.span(bytes);
            for (cell, ends) in (first..).zip(ends.windows(2)) {
                if let Some(past) = self.writes[cell] {
                    meet(past, Hazard::WriteAfterWrite, bytes.memory, ends);
                }
                for past in self.reads[cell * self.stream_count..][..self.stream_count].iter().flatten() {
                    meet(*past, Hazard::WriteAfterRead, bytes.memory, ends);
                }
            }
        }
        hazards.sort_unstable();
        hazards.dedup();
        self.add(uses, now);
        let race = |((past, hazard), bytes)| order.race(past, now, hazard, joined(bytes));
        Met { hazards: hazards.len(), races: found.into_iter().map(race).collect() }
    }

    fn add(&mut self, uses: &Uses, now: Moment) {
        for &bytes in &uses.reads {
            let (first, ends) = self.span(bytes);
            for cell in first..first + ends.len().saturating_sub(1) {
                self.reads[cell * self.stream_count + now.stream] = Some(now);
            }
        }
        for &bytes in &uses.writes {
            let (first, ends) = self.span(bytes);
            for cell in first..first + ends.len().saturating_sub(1) {
                self.writes[cell] = Some(now);
                self.reads[cell * self.stream_count..][..self.stream_count].fill(None);
            }
        }
    }
}
