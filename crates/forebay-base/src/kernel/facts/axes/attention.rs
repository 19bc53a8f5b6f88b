//! Axes of attention: batches, heads, rows of queries, keys.

use super::super::{Along, AttentionOperands, OperandRef};
use super::Operands;

impl Operands<'_> {
    /// Cut along batches, and along heads where each has keys of its own. Rows of a head stay together: its keys are read once.
    pub(super) fn attention(&mut self, of: &AttentionOperands) -> Option<()> {
        let desc = |operand: OperandRef| match operand {
            OperandRef::Read(index) => self.read(index),
            OperandRef::Write(index) => self.write(index),
        };
        let (queries, keys) = (desc(*of.queries.first()?)?.sizes(), desc(*of.keys.first()?)?.sizes());
        let (&[batch, heads, rows, _], &[_, groups, count, _]) = (queries, keys) else { return None };
        let group = heads.checked_div(groups).filter(|group| group * groups == heads)?;
        let mask = desc(of.mask).map(|mask| mask.sizes().to_vec());
        // A mask is repeated along axes of size 1.
        let of_mask = |axis: usize, size: u64| {
            let own = mask.as_ref().and_then(|sizes| sizes.get(axis)).copied();
            (own == Some(size) && size > 1).then_some(of.mask)
        };
        let along = |all: &[&[OperandRef]], axis: usize, elements: u64| -> Vec<(OperandRef, Along)> {
            all.concat().into_iter().map(|operand| (operand, Along { elements, ..Along::axis(axis) })).collect()
        };
        let logarithms: &[OperandRef] = &[of.logarithms];
        let [batch_mask, heads_mask, rows_mask] =
            [(0, batch), (1, heads), (2, rows)].map(|(axis, size)| of_mask(axis, size).into_iter().collect::<Vec<_>>());
        let of_heads = [of.queries, of.results, logarithms];
        let of_groups = [of.keys, of.values];
        let batches = [of_heads.concat(), of_groups.concat(), batch_mask].concat();
        self.free(Some(1), &along(&[&batches], 0, 1));
        let grouped = along(&[&of_heads.concat(), &heads_mask], 1, group);
        let heads_of_groups = [grouped, along(&of_groups, 1, 1)].concat();
        self.free((group == 1).then_some(1), &heads_of_groups);
        self.whole(&along(&[&of_heads.concat(), &rows_mask], 2, 1));
        let columns =
            [along(&of_groups, 2, 1), of_mask(3, count).map(|mask| (mask, Along::axis(3))).into_iter().collect()];
        self.whole(&columns.concat());
        self.whole(&along(&[of.queries, of.keys], 3, 1));
        self.whole(&along(&[of.results, of.values], 3, 1));
        Some(())
    }
}
