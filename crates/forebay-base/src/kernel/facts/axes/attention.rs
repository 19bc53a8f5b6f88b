//! Axes of attention: batches, heads, rows of queries, keys.

use super::super::super::{ATTENTION_KEYS, ATTENTION_ROWS};
use super::super::{Along, AttentionOperands, AxisRole, OperandRef};
use super::Operands;

impl Operands<'_> {
    /// Cut along batches; within one batch, along groups of heads that share keys; within one group, along its heads; within one head,
    /// along rows or keys. Axes over which something is summed are not cut: heads and rows for gradients with respect to keys, keys for
    /// everything else.
    pub(super) fn attention(&mut self, of: &AttentionOperands) -> Option<()> {
        let desc = |operand: OperandRef| match operand {
            OperandRef::Read(index) => self.read(index),
            OperandRef::Write(index) => self.write(index),
        };
        let (queries, keys) = (desc(*of.queries.first()?)?.sizes(), desc(*of.keys.first()?)?.sizes());
        let (&[batch, heads, rows, _], &[_, groups, count, _]) = (queries, keys) else { return None };
        let shared = heads.checked_div(groups).filter(|shared| shared * groups == heads)?;
        let mask = desc(of.mask).map(|mask| mask.sizes().to_vec());
        // A mask broadcasts along axes of size 1.
        let of_mask = |axis: usize, size: u64| {
            let own = mask.as_ref().and_then(|sizes| sizes.get(axis)).copied();
            (own == Some(size) && size > 1).then_some(of.mask)
        };
        let along = |all: &[OperandRef], along: Along| -> Vec<(OperandRef, Along)> {
            all.iter().map(|&operand| (operand, along)).collect()
        };
        let of_axis = |all: &[&[OperandRef]], axis: usize| along(&all.concat(), Along::axis(axis));
        let masks = [(0, batch), (1, heads), (2, rows), (3, count)]
            .map(|(axis, size)| of_mask(axis, size).into_iter().collect::<Vec<_>>());
        let [batch_mask, heads_mask, rows_mask, keys_mask] = masks.each_ref().map(Vec::as_slice);
        let logarithms = [of.logarithms];
        let of_rows = [of.queries, of.results, &logarithms];
        let of_keys = [of.keys, of.values];
        let is_write = |operand: &OperandRef| matches!(operand, OperandRef::Write(_));
        let (writes_rows, writes_keys) = (of_rows.concat().iter().any(is_write), of_keys.concat().iter().any(is_write));

        self.free(Some(1), &of_axis(&[&of_keys.concat(), &of_rows.concat(), batch_mask], 0));
        let of_heads = [&of_rows.concat(), heads_mask].concat();
        let grouped = along(&of_heads, Along { elements: shared, ..Along::axis(1) });
        self.free((batch == 1).then_some(1), &[of_axis(&of_keys, 1), grouped].concat());
        if shared > 1 {
            let members = along(&of_heads, Along { indices: Some(shared), ..Along::axis(1) });
            match writes_keys {
                true => self.whole(&members),
                false => self.free((batch == 1 && groups == 1).then_some(1), &members),
            }
        }
        let is_one = batch == 1 && heads == 1;
        let step = i64::from(of.is_causal);
        let of_rows = of_axis(&[&of_rows.concat(), rows_mask], 2);
        match writes_keys {
            true => self.whole(&of_rows),
            false => self.add(AxisRole::Diagonal(step), is_one.then_some(ATTENTION_ROWS), &of_rows, &[]),
        }
        let columns = [of_axis(&of_keys, 2), of_axis(&[keys_mask], 3)].concat();
        match writes_rows {
            true => self.whole(&columns),
            false => {
                let cut = (batch == 1 && groups == 1).then_some(ATTENTION_KEYS);
                self.add(AxisRole::Diagonal(-step), cut, &columns, &[]);
            }
        }
        self.whole(&of_axis(&[of.queries, of.keys], 3));
        self.whole(&of_axis(&[of.results, of.values], 3));
        self.whole(&of_axis(&[&logarithms], 3));
        Some(())
    }
}
