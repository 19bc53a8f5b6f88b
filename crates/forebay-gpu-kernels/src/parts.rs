//! Operands larger than a binding: kernels that compute each row only from the same rows run as several dispatches.

use std::ops::Range;

use super::operands::BINDING_ALIGNMENT_BYTES;
use super::{Bound, Operand, Target};

/// The rows of one operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub operand: Operand,
    /// The number of bytes from one row to the next, between which all of a row lies.
    pub row_bytes: u64,
}

/// Where the rows of a part can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// At the first byte of its bindings.
    Aligned,
    /// Anywhere: the shader is told how far after it ([`Rows::before`]).
    Anywhere,
}

/// Returns ranges of rows that fit in a binding for each operand, all but the last as long as possible. If there are no such ranges,
/// returns all rows at once, which are then not accessed through bindings.
pub(super) fn parts(operands: &[Rows], rows: u64, beginning: Beginning, gpu: &Target) -> Vec<Range<u64>> {
    let reached_bytes = gpu.binding_bytes_max.min(1 << 32);
    let row_bytes = operands.iter().map(|operand| operand.row_bytes).max().unwrap_or(1).max(1);
    // The number of rows from one that can begin a binding to the next, in all operands: a power of two.
    let step = |rows: &Rows| {
        BINDING_ALIGNMENT_BYTES >> rows.row_bytes.trailing_zeros().min(BINDING_ALIGNMENT_BYTES.trailing_zeros())
    };
    let (step, own_bytes) = match beginning {
        Beginning::Aligned => (operands.iter().map(step).max().unwrap_or(1), reached_bytes),
        Beginning::Anywhere => (1, reached_bytes.saturating_sub(BINDING_ALIGNMENT_BYTES)),
    };
    let count = own_bytes / row_bytes / step * step;
    if count == 0 || row_bytes.saturating_mul(rows) <= reached_bytes {
        return std::iter::once(0..rows).collect();
    }
    (0..rows).step_by(count as usize).map(|start| start..rows.min(start + count)).collect()
}

impl Rows {
    /// Returns the bytes of a part of `rows` rows, from where a binding can begin.
    pub fn bound(&self, part: &Range<u64>, rows: u64) -> Bound {
        if *part == (0..rows) {
            return Bound::from(self.operand);
        }
        let offset_bytes = part.start * self.row_bytes - self.before(part);
        // The last row ends where the operand does.
        let size_bytes = (part.end < rows).then(|| part.end * self.row_bytes - offset_bytes);
        Bound { operand: self.operand, offset_bytes, size_bytes }
    }

    /// Returns the number of bytes of the binding before the part's first row.
    pub fn before(&self, part: &Range<u64>) -> u64 {
        part.start * self.row_bytes % BINDING_ALIGNMENT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(binding_bytes_max: u64) -> Target {
        Target { binding_bytes_max, ..Target::LEAST }
    }

    #[test]
    fn parts_cover_all_rows_and_begin_where_bindings_may() {
        for (row_bytes, other_bytes, rows) in [(4, 4, 9000), (100, 8, 5000), (1024, 4, 300), (6400, 256, 77)] {
            let operands = [(Operand::Read(0), row_bytes), (Operand::Write(0), other_bytes)]
                .map(|(operand, row_bytes)| Rows { operand, row_bytes });
            let beginning = if row_bytes == 100 { Beginning::Anywhere } else { Beginning::Aligned };
            let parts = parts(&operands, rows, beginning, &gpu(1 << 16));
            let mut next = 0;
            for part in &parts {
                assert_eq!(part.start, next, "{row_bytes}");
                next = part.end;
                for operand in &operands {
                    let bound = operand.bound(part, rows);
                    assert_eq!(bound.offset_bytes % BINDING_ALIGNMENT_BYTES, 0, "{part:?} of {row_bytes}");
                    let before_bytes = operand.before(part);
                    assert_eq!(bound.offset_bytes + before_bytes, part.start * operand.row_bytes, "{part:?}");
                    let own_bytes = before_bytes + (part.end - part.start) * operand.row_bytes;
                    assert!(own_bytes <= 1 << 16, "{part:?} of {row_bytes}");
                    assert!(before_bytes == 0 || beginning == Beginning::Anywhere, "{part:?} of {row_bytes}");
                    assert_eq!(bound.size_bytes.is_some(), part.end < rows, "{part:?} of {row_bytes}");
                }
            }
            assert_eq!(next, rows);
            assert_eq!(parts.len() > 1, row_bytes * rows > 1 << 16, "{row_bytes}");
        }
    }

    #[test]
    fn rows_that_no_binding_holds_are_one_part() {
        let operand = Rows { operand: Operand::Read(0), row_bytes: 70_000 };
        let all = parts(&[operand], 10, Beginning::Anywhere, &gpu(1 << 16));
        assert_eq!(all.iter().map(|part| operand.bound(part, 10)).collect::<Vec<_>>(), [Operand::Read(0).into()]);
    }
}
