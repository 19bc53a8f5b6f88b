//! The gradients with respect to queries, keys and values. Probabilities are recomputed block by block.

use super::super::View;
use super::super::accumulators::Accumulators;
use super::super::parallel::{Pointer, for_each, threads, wide};
use super::super::product::{Matrix, multiply_few};
use super::super::thread_buffer::with_buffer;
use super::scores::{Block, to_probabilities};
use super::{KEYS, Launch, ROWS, Sizes, require_sizes};

/// The operands of the gradient besides queries, keys and values.
#[derive(Clone, Copy)]
struct Gradient {
    dy: Pointer<f32>,
    y: Pointer<f32>,
    logarithms: Pointer<f32>,
    /// The gradient with respect to queries, if it is wanted.
    dq: Option<Pointer<f32>>,
    /// The gradients with respect to keys and values, if they are wanted.
    dkv: Option<[Pointer<f32>; 2]>,
}

/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(
    launch: &Launch,
    reads: [&View; 3],
    dq: Option<&View>,
    dkv: Option<[&View; 2]>,
) -> Result<(), String> {
    let sizes = launch.sizes;
    let of = |heads: usize, rows: usize, size: usize| [sizes.batch, heads, rows, size];
    let results = of(sizes.heads, sizes.rows, sizes.v_size);
    let [dy, y, logarithms] = reads;
    require_sizes(&[(dy, &results), (y, &results), (logarithms, &[&results[..3], &[2]].concat())])?;
    if let Some(dq) = dq {
        require_sizes(&[(dq, &of(sizes.heads, sizes.rows, sizes.size))])?;
    }
    if let Some([dk, dv]) = dkv {
        let sizes_of = |size: usize| of(sizes.groups, sizes.keys, size);
        require_sizes(&[(dk, &sizes_of(sizes.size)), (dv, &sizes_of(sizes.v_size))])?;
    }
    if dq.is_some() && dkv.is_some() && are_passes_separate(&sizes, threads()) {
        // SAFETY: the caller's promises.
        return unsafe { run(launch, reads, dq, None).and_then(|()| run(launch, reads, None, dkv)) };
    }
    let [dy, y, logarithms] = [dy, y, logarithms].map(Pointer::<f32>::of);
    let (dq, dkv) = (dq.map(Pointer::<f32>::of), dkv.map(|both| both.map(Pointer::<f32>::of)));
    let gradient = Gradient { dy, y, logarithms, dq, dkv };
    let shared = sizes.heads / sizes.groups;
    let (row_blocks, key_blocks) = (sizes.rows.div_ceil(ROWS), sizes.keys.div_ceil(KEYS));
    // The heads (or groups of heads), the number of heads of each, and the blocks of rows and of keys into which its work is split.
    let (heads, shared, row_blocks, key_blocks) = match (dq, dkv) {
        (Some(_), None) => (sizes.heads, 1, row_blocks, 1),
        (None, Some(_)) => (sizes.groups, shared, 1, key_blocks),
        _ => (sizes.groups, shared, 1, 1),
    };
    let blocks = row_blocks * key_blocks;
    let part = |all: usize, step: usize, number: usize, count: usize| match count {
        1 => 0..all,
        _ => number * step..all.min((number + 1) * step),
    };
    for_each(sizes.batch * heads * blocks, |task| {
        let (batch, first) = (task / blocks / heads, task / blocks % heads * shared);
        let rows = part(sizes.rows, ROWS, task % row_blocks, row_blocks);
        let keys = part(sizes.keys, KEYS, task % key_blocks, key_blocks);
        with_buffer(3 * ROWS * KEYS, |buffer| {
            // SAFETY: every task writes the gradients of its own rows and keys, and reads only what no one writes.
            unsafe {
                if let Some([dk, dv]) = dkv {
                    let start = launch.group_of(batch, first) * sizes.keys + keys.start;
                    dk.slice_mut(start * sizes.size, keys.len() * sizes.size).fill(0.0);
                    dv.slice_mut(start * sizes.v_size, keys.len() * sizes.v_size).fill(0.0);
                }
                for head in first..first + shared {
                    for row in rows.clone().step_by(ROWS) {
                        gradient.block_of_rows(launch, (batch, head), row, keys.clone(), buffer);
                    }
                }
            }
        });
    });
    Ok(())
}

/// Whether this many threads compute the gradient with respect to queries before those with respect to keys and values: if half of them or
/// more would have no group of heads, and blocks of rows and keys are more tasks. Probabilities are then computed twice (7 products instead
/// of 5 in all). The bits are the same.
pub(super) fn are_passes_separate(sizes: &Sizes, threads: usize) -> bool {
    let shared = sizes.heads / sizes.groups;
    let has_more_tasks = shared * sizes.rows.div_ceil(ROWS) > 1 && sizes.keys > KEYS;
    2 * sizes.batch * sizes.groups <= threads && has_more_tasks
}

impl Gradient {
    /// Adds the contributions of a block of rows to the gradients with respect to some keys, and those of the keys to the gradient of the
    /// rows. `keys` begins at the start of a block.
    ///
    /// # Safety
    /// The rows and keys must exist; no one else may touch their wanted gradients or write the operands that are read.
    unsafe fn block_of_rows(
        &self,
        launch: &Launch,
        (batch, head): (usize, usize),
        row: usize,
        keys: std::ops::Range<usize>,
        buffer: &mut [f32],
    ) {
        let (sizes, scale) = (&launch.sizes, launch.options.scale);
        let rows = ROWS.min(sizes.rows - row);
        let (own, group) = (batch * sizes.heads + head, launch.group_of(batch, head));
        let first = own * sizes.rows + row;
        // SAFETY: the caller's promises (so below).
        let (dy, y, logarithms) = unsafe {
            let result = |base: Pointer<f32>| base.slice(first * sizes.v_size, rows * sizes.v_size);
            (result(self.dy), result(self.y), self.logarithms.slice(2 * first, 2 * rows))
        };
        let dq = self.dq.map(|dq| {
            // SAFETY: as above.
            let dq = unsafe { dq.slice_mut(first * sizes.size, rows * sizes.size) };
            dq.fill(0.0);
            Matrix::rows(dq.as_mut_ptr(), sizes.size)
        });
        let seen = launch.seen_by(row + rows).min(keys.end);
        if seen <= keys.start {
            return;
        }
        // The gradients of a row with respect to its scores add up to 0 once these means are subtracted.
        let mut means = [0.0; ROWS];
        for (mean, (dy, y)) in means.iter_mut().zip(dy.chunks_exact(sizes.v_size).zip(y.chunks_exact(sizes.v_size))) {
            let mut accumulators = Accumulators::new();
            accumulators.add2(dy, y, |dy: f32, y: f32| [f64::from(dy) * f64::from(y)]);
            *mean = accumulators.totals()[0] as f32;
        }
        let (probabilities, rest) = buffer.split_at_mut(ROWS * KEYS);
        let (scores, slopes) = rest.split_at_mut(ROWS * KEYS);
        let has_cap = launch.options.softcap != 0.0;
        for key in (keys.start..seen).step_by(KEYS) {
            let block = Block { batch, head, row, rows, key, keys: KEYS.min(seen - key) };
            let (n, count) = (block.keys, rows * block.keys);
            let p = &mut probabilities[..count];
            let mut slopes = has_cap.then_some(&mut slopes[..count]);
            // SAFETY: the block lies in the operands; the matrices of gradients belong to this task alone.
            unsafe {
                launch.scores(&block, p, slopes.as_deref_mut());
                for (line, logarithm) in p.chunks_exact_mut(n).zip(logarithms.chunks_exact(2)) {
                    wide(
                        #[inline(always)]
                        || to_probabilities(line, logarithm[0], logarithm[1]),
                    );
                }
                let of_p = Matrix::rows(p.as_mut_ptr(), n);
                let of_dy = Matrix::rows(dy.as_ptr().cast_mut(), sizes.v_size);
                if let Some([_, dv]) = self.dkv {
                    let dv = Launch::rows_of(dv, group, sizes.keys, key, sizes.v_size);
                    multiply_few((n, sizes.v_size, rows), of_p.transposed(), of_dy, dv, 1.0, true);
                }
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
                if let Some(dq) = dq {
                    let k = Launch::rows_of(launch.k, group, sizes.keys, key, sizes.size);
                    multiply_few((rows, sizes.size, n), of_ds, k, dq, scale, true);
                }
                if let Some([dk, _]) = self.dkv {
                    let q = Launch::rows_of(launch.q, own, sizes.rows, row, sizes.size);
                    let dk = Launch::rows_of(dk, group, sizes.keys, key, sizes.size);
                    multiply_few((n, sizes.size, rows), of_ds.transposed(), q, dk, scale, true);
                }
            }
        }
    }
}
