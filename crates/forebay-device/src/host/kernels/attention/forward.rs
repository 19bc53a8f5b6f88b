//! The forward pass: the result, and the logarithm of the sum of each row, in two parts.

use forebay_base::kernel::ATTENTION_LOGARITHM_LARGE;

use super::super::View;
use super::super::accumulators::{Accumulators, largest};
use super::super::element::{Float, Number};
use super::super::parallel::{Pointer, for_each, wide};
use super::super::product::{Matrix, multiply_few};
use super::super::thread_buffer::with_buffer;
use super::scores::{Block, exponentials};
use super::{KEYS, Launch, ROWS, require_sizes};

/// The running statistics of a row's scores.
#[derive(Clone, Copy)]
struct Running {
    /// The largest score.
    largest: f32,
    /// The sum of the exponentials of the scores minus [`Running::shift`].
    sum: f64,
}

impl Running {
    /// Returns the number that is subtracted from scores before taking exponentials: the largest score, or 0 for a row that has seen no
    /// key.
    fn shift(&self) -> f32 {
        if self.largest == f32::NEG_INFINITY { 0.0 } else { self.largest }
    }
}

/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(launch: &Launch, y: &View, logarithms: &View) -> Result<(), String> {
    let sizes = launch.sizes;
    let heads = [sizes.batch, sizes.heads, sizes.rows];
    require_sizes(&[
        (y, &[heads.as_slice(), &[sizes.v_size]].concat()),
        (logarithms, &[heads.as_slice(), &[2]].concat()),
    ])?;
    let (y, logarithms) = (Pointer::<f32>::of(y), Pointer::<f32>::of(logarithms));
    let blocks = sizes.rows.div_ceil(ROWS);
    for_each(sizes.batch * sizes.heads * blocks, |task| {
        let (head, row) = (task / blocks, task % blocks * ROWS);
        let rows = ROWS.min(sizes.rows - row);
        // SAFETY: every task writes different rows.
        let (y, logarithms) = unsafe {
            let first = head * sizes.rows + row;
            (y.slice_mut(first * sizes.v_size, rows * sizes.v_size), logarithms.slice_mut(2 * first, 2 * rows))
        };
        // SAFETY: the caller's promises.
        with_buffer(ROWS * KEYS, |scores| unsafe { block_of_rows(launch, head, row, scores, y, logarithms) });
    });
    Ok(())
}

/// # Safety
/// The rows must exist, and no one may write the operands.
unsafe fn block_of_rows(
    launch: &Launch,
    head: usize,
    row: usize,
    scores: &mut [f32],
    y: &mut [f32],
    logarithms: &mut [f32],
) {
    let (sizes, rows) = (&launch.sizes, logarithms.len() / 2);
    let (batch, own) = (head / sizes.heads, head % sizes.heads);
    let mut running = [Running { largest: f32::NEG_INFINITY, sum: 0.0 }; ROWS];
    y.fill(0.0);
    let seen = launch.seen_by(row + rows);
    for key in (0..seen).step_by(KEYS) {
        let block = Block { batch, head: own, row, rows, key, keys: KEYS.min(seen - key) };
        let scores = &mut scores[..rows * block.keys];
        // SAFETY: the block lies in the operands.
        unsafe { launch.scores(&block, scores, None) };
        let lines = scores.chunks_exact_mut(block.keys).zip(y.chunks_exact_mut(sizes.v_size));
        for ((line, y), running) in lines.zip(&mut running) {
            wide(
                #[inline(always)]
                || add_line(line, y, running),
            );
        }
        let group = launch.group_of(batch, own);
        // SAFETY: as above; no one else uses the rows of y.
        unsafe {
            let v = Launch::rows_of(launch.v, group, sizes.keys, key, sizes.v_size);
            let (p, y) = (Matrix::rows(scores.as_mut_ptr(), block.keys), Matrix::rows(y.as_mut_ptr(), sizes.v_size));
            multiply_few((rows, sizes.v_size, block.keys), p, v, y, 1.0, true);
        }
    }
    for ((y, logarithm), running) in y.chunks_exact_mut(sizes.v_size).zip(logarithms.chunks_exact_mut(2)).zip(&running)
    {
        if running.sum == 0.0 {
            // The row saw no key, so its result stays 0. The exponentials of its scores are 0 with any logarithm, also in the gradient.
            logarithm.fill(0.0);
            continue;
        }
        let sum = running.sum as f32;
        wide(|| y.iter_mut().for_each(|y| *y /= sum));
        logarithm.copy_from_slice(&in_parts(f64::from(running.shift()), running.sum.logarithm()));
    }
}

/// shift + more, rounded, and what rounding left of it if it is large. Where masks are large negative numbers instead of minus infinity and a
/// row sees nothing else, its largest score is so large that it absorbs the logarithm of the sum, which the gradient needs.
fn in_parts(shift: f64, more: f64) -> [f32; 2] {
    let rounded = (shift + more) as f32;
    match rounded.abs() >= ATTENTION_LOGARITHM_LARGE {
        // Even float64 cannot hold the sum of the largest numbers of float32 and a logarithm.
        true => [rounded, (shift - f64::from(rounded) + more) as f32],
        false => [rounded, 0.0],
    }
}

/// Turns scores into exponentials and adds them up; earlier sums are rescaled to the new largest score.
#[inline(always)]
fn add_line(line: &mut [f32], y: &mut [f32], running: &mut Running) {
    let before = running.shift();
    let highest = largest(line);
    running.largest = Number::maximum(highest, running.largest);
    let shift = running.shift();
    exponentials(line, shift);
    let mut accumulators = Accumulators::new();
    accumulators.add(line, |e: f32| [f64::from(e)]);
    if shift != before && running.sum != 0.0 {
        let factor = (before - shift).exponential();
        y.iter_mut().for_each(|y| *y *= factor);
        running.sum *= f64::from(factor);
    }
    running.sum += accumulators.totals()[0];
}
