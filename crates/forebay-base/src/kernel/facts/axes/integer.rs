//! Axes of products of integers: batches, rows, columns and terms, with operands that broadcast to the result.

use super::super::AxisRole;
use super::{Cut, Operands, read, write};

impl Operands<'_> {
    /// The dimensions of a and b, their zero points, and the operands that produce an 8-bit result.
    pub(super) fn integer_product(&mut self, transpose_b: bool) -> Option<()> {
        let rank = self.write(0)?.sizes().len();
        let ranks: Vec<usize> = self.reads.iter().map(|desc| desc.sizes().len()).collect();
        if rank < 2 || ranks.len() < 4 || ranks.iter().any(|own| !(2..=rank).contains(own)) {
            return None;
        }
        let terms = [ranks[0] - 1, ranks[1] - if transpose_b { 1 } else { 2 }];
        // The axis of a read along an axis of the result; `None` if the read lacks it or broadcasts along it.
        let along = |at: usize, axis: usize| {
            let own = match (at, transpose_b) {
                // Rows and columns of b are swapped.
                (1, true) if axis + 2 >= rank => ranks[1] - (axis + 2 - rank) - 1,
                _ => (axis + ranks[at]).checked_sub(rank)?,
            };
            let is_own = terms.get(at) != Some(&own) && self.reads[at].sizes()[own] > 1;
            is_own.then(|| read(at, own))
        };
        let mut found = Vec::new();
        for axis in 0..rank {
            let targets: Vec<_> = (0..ranks.len()).filter_map(|at| along(at, axis)).chain([write(0, axis)]).collect();
            found.push((rank - axis, targets));
        }
        for (from_end, targets) in found {
            match from_end {
                1 => self.free(None, &targets),
                2 => self.product_rows(true, &targets),
                _ => self.free(Some(1), &targets),
            }
        }
        self.add(AxisRole::Reduced, Cut::NONE, &[read(0, terms[0]), read(1, terms[1])], &[]);
        Some(())
    }
}
