//! The gradients by queries, keys and values: probabilities are computed again, block by block.

use super::super::accumulators::Accumulators;
use super::super::parallel::{for_each, wide, Pointer};
use super::super::product::{multiply_few, Matrix};
use super::super::thread_buffer::with_buffer;
use super::super::View;
use super::scores::{exponentials, Block};
use super::{require_sizes, Launch, KEYS, ROWS};

/// What the gradient reads and writes besides queries, keys and values.
#[derive(Clone, Copy)]
struct Gradient {
    dy: Pointer<f32>,
    y: Pointer<f32>,
    logarithms: Pointer<f32>,
    dq: Pointer<f32>,
    dk: Pointer<f32>,
    dv: Pointer<f32>,
}

/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(launch: &Launch, reads: [&View; 3], writes: [&View; 3]) -> Result<(), String> {
    let sizes = launch.sizes;
    let of = |heads: usize, rows: usize, size: usize| [sizes.batch, heads, rows, size];
    let results = of(sizes.heads, sizes.rows, sizes.v_size);
    let ([dy, y, logarithms], [dq, dk, dv]) = (reads, writes);
    require_sizes(&[
        (dy, &results),
        (y, &results),
        (logarithms, &results[..3]),
        (dq, &of(sizes.heads, sizes.rows, sizes.size)),
        (dk, &of(sizes.groups, sizes.keys, sizes.size)),
        (dv, &of(sizes.groups, sizes.keys, sizes.v_size)),
    ])?;
    let [dy, y, logarithms, dq, dk, dv] = [dy, y, logarithms, dq, dk, dv].map(Pointer::<f32>::of);
    let gradient = Gradient { dy, y, logarithms, dq, dk, dv };
    let has_cap = launch.options.softcap != 0.0;
    let elements = ROWS * KEYS * if has_cap { 3 } else { 2 };
    for_each(sizes.batch * sizes.groups, |group| {
        with_buffer(elements, |buffer| {
            // SAFETY: every task writes the gradients of its group, and reads what no one writes.
            unsafe {
                dk.slice_mut(group * sizes.keys * sizes.size, sizes.keys * sizes.size).fill(0.0);
                dv.slice_mut(group * sizes.keys * sizes.v_size, sizes.keys * sizes.v_size).fill(0.0);
                let (batch, shared) = (group / sizes.groups, sizes.heads / sizes.groups);
                for head in (0..shared).map(|head| group % sizes.groups * shared + head) {
                    for row in (0..sizes.rows).step_by(ROWS) {
                        gradient.block_of_rows(launch, (batch, head), row, buffer);
                    }
                }
            }
        });
    });
    Ok(())
}

impl Gradient {
    /// # Safety
    /// The rows must exist; no one else may touch the gradients of the head's group, or write what is read.
    unsafe fn block_of_rows(&self, launch: &Launch, (batch, head): (usize, usize), row: usize, buffer: &mut [f32]) {
        let (sizes, scale) = (&launch.sizes, launch.options.scale);
        let rows = ROWS.min(sizes.rows - row);
        let (own, group) = (batch * sizes.heads + head, launch.group_of(batch, head));
        let first = own * sizes.rows + row;
        // SAFETY: the caller's promises (so below).
        let (dy, y, logarithms, dq) = unsafe {
            let result = |base: Pointer<f32>| base.slice(first * sizes.v_size, rows * sizes.v_size);
            let dq = self.dq.slice_mut(first * sizes.size, rows * sizes.size);
            (result(self.dy), result(self.y), self.logarithms.slice(first, rows), dq)
        };
        dq.fill(0.0);
        // The sum of each row's gradients by scores is 0: this is what they have above that.
        let mut means = [0.0; ROWS];
        for (mean, (dy, y)) in means.iter_mut().zip(dy.chunks_exact(sizes.v_size).zip(y.chunks_exact(sizes.v_size))) {
            let mut accumulators = Accumulators::new();
            accumulators.add2(dy, y, |dy: f32, y: f32| [f64::from(dy) * f64::from(y)]);
            *mean = accumulators.totals()[0] as f32;
        }
        let (probabilities, rest) = buffer.split_at_mut(ROWS * KEYS);
        let (scores, rest) = rest.split_at_mut(ROWS * KEYS);
        let seen = launch.seen_by(row + rows);
        for key in (0..seen).step_by(KEYS) {
            let block = Block { batch, head, row, rows, key, keys: KEYS.min(seen - key) };
            let (n, count) = (block.keys, rows * block.keys);
            let p = &mut probabilities[..count];
            let mut slopes = rest.get_mut(..count);
            // SAFETY: the block lies in the operands; matrices of gradients are this task's own.
            unsafe {
                launch.scores(&block, p, slopes.as_deref_mut());
                for (line, &logarithm) in p.chunks_exact_mut(n).zip(logarithms) {
                    wide(
                        #[inline(always)]
                        || exponentials(line, logarithm),
                    );
                }
                let of_p = Matrix::rows(p.as_mut_ptr(), n);
                let of_dy = Matrix::rows(dy.as_ptr().cast_mut(), sizes.v_size);
                let dv = Launch::rows_of(self.dv, group, sizes.keys, key, sizes.v_size);
                multiply_few((n, sizes.v_size, rows), of_p.transposed(), of_dy, dv, 1.0, true);
                let ds = &mut scores[..count];
                let of_ds = Matrix::rows(ds.as_mut_ptr(), n);
                let v = Launch::rows_of(launch.v, group, sizes.keys, key, sizes.v_size);
                multiply_few((rows, n, sizes.v_size), of_dy, v.transposed(), of_ds, 1.0, false);
                for ((ds, p), &mean) in ds.chunks_exact_mut(n).zip(p.chunks_exact(n)).zip(&means) {
                    wide(|| ds.iter_mut().zip(p).for_each(|(ds, &p)| *ds = p * (*ds - mean)));
                }
                if let Some(slopes) = slopes {
                    wide(|| ds.iter_mut().zip(slopes.iter()).for_each(|(ds, &slope)| *ds *= slope));
                }
                let k = Launch::rows_of(launch.k, group, sizes.keys, key, sizes.size);
                let of_dq = Matrix::rows(dq.as_mut_ptr(), sizes.size);
                multiply_few((rows, sizes.size, n), of_ds, k, of_dq, scale, true);
                let q = Launch::rows_of(launch.q, own, sizes.rows, row, sizes.size);
                let dk = Launch::rows_of(self.dk, group, sizes.keys, key, sizes.size);
                multiply_few((n, sizes.size, rows), of_ds.transposed(), q, dk, scale, true);
            }
        }
    }
}
