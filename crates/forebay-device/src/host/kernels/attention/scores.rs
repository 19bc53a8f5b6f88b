//! A block of scores: products of rows with keys, scaled, capped and masked.

use super::super::element::Float;
use super::super::parallel::wide;
use super::super::product::multiply_few;
use super::{Launch, Mask};

/// A block of scores: some rows of one head, and some keys.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The index of the batch.
    pub batch: usize,
    /// The index of the head in the batch.
    pub head: usize,
    /// The first row.
    pub row: usize,
    /// The number of rows.
    pub rows: usize,
    /// The first key.
    pub key: usize,
    /// The number of keys.
    pub keys: usize,
}

impl Launch {
    /// Returns the index of a head's group of keys among the groups of all batches.
    pub(super) fn group_of(&self, batch: usize, head: usize) -> usize {
        batch * self.sizes.groups + head / (self.sizes.heads / self.sizes.groups)
    }

    /// Writes the scores of a block, row after row. `slopes` receives their derivatives with respect to the products, if there is a cap.
    ///
    /// # Safety
    /// The block must lie in the operands, which no one may write.
    pub(super) unsafe fn scores(&self, block: &Block, out: &mut [f32], slopes: Option<&mut [f32]>) {
        let Block { batch, head, row, rows, key, keys } = *block;
        let sizes = &self.sizes;
        // SAFETY: the block lies in the operands.
        unsafe {
            let q = Launch::rows_of(self.q, batch * sizes.heads + head, sizes.rows, row, sizes.size);
            let k = Launch::rows_of(self.k, self.group_of(batch, head), sizes.keys, key, sizes.size);
            let scores = super::Matrix::rows(out.as_mut_ptr(), keys);
            multiply_few((rows, keys, sizes.size), q, k.transposed(), scores, self.options.scale, false);
        }
        let out = &mut out[..rows * keys];
        let cap = self.options.softcap;
        if cap != 0.0 {
            wide(
                #[inline(always)]
                || {
                    for score in out.iter_mut() {
                        *score = (*score / cap).hyperbolic_tangent();
                    }
                },
            );
            if let Some(slopes) = slopes {
                slopes.iter_mut().zip(out.iter()).for_each(|(slope, &tanh)| *slope = 1.0 - tanh * tanh);
            }
            out.iter_mut().for_each(|score| *score *= cap);
        }
        let place = |strides: [usize; 3], row: usize| batch * strides[0] + head * strides[1] + row * strides[2] + key;
        for (i, line) in out.chunks_exact_mut(keys).enumerate() {
            match self.mask {
                Mask::None => {}
                Mask::Added(mask, strides) => {
                    // SAFETY: the mask has the sizes of the scores, except along axes where it is broadcast.
                    let added = unsafe { mask.slice(place(strides, row + i), keys) };
                    wide(|| line.iter_mut().zip(added).for_each(|(score, &added)| *score += added));
                }
                Mask::Seen(mask, strides) => {
                    // SAFETY: as above.
                    let seen = unsafe { mask.slice(place(strides, row + i), keys) };
                    let unseen = f32::NEG_INFINITY;
                    line.iter_mut()
                        .zip(seen)
                        .for_each(|(score, &seen)| *score = if seen != 0 { *score } else { unseen });
                }
            }
            let seen = self.seen_by(row + i + 1).clamp(key, key + keys) - key;
            line[seen..].fill(f32::NEG_INFINITY);
        }
    }
}

/// line = exp(line - shift).
#[inline(always)]
pub(super) fn exponentials(line: &mut [f32], shift: f32) {
    for score in line {
        *score = (*score - shift).exponential();
    }
}

/// line = exp(line - logarithm - rest), which is exact in the first difference if the logarithm is large.
#[inline(always)]
pub(super) fn to_probabilities(line: &mut [f32], logarithm: f32, rest: f32) {
    for score in line {
        *score = (*score - logarithm - rest).exponential();
    }
}
