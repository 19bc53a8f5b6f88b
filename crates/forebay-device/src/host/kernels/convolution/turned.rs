//! Weights in the order in which the data gradient reads them: w\[output, input, tap] by group, family, input, output and tap.

use super::super::cache::{LINE, prefetch};
use super::super::parallel::{Pointer, for_each};
use super::super::simd::{LANES, Vector, dispatch_wide};
use super::super::stored::{Elements, Stored, widened_brain, widened_half};
use super::Geometry;
use super::correlation::Correlation;
use super::slab::{Span, spans};

/// Inputs of a task: their weights for one output are contiguous.
const INPUTS: usize = 2 * LANES;
/// Outputs whose weights are transposed together: the weights of an input and a tap fill a cache line.
const OUTPUTS: usize = 2 * LANES;

/// Reorders weights as [`Correlation::transposed`] reads them.
///
/// # Safety
/// `w` and `turned` must hold the weights of every group; no one may write `w` or touch `turned`.
pub(super) unsafe fn turn_weights(
    geometry: &Geometry,
    correlation: &Correlation,
    w: Stored<f32>,
    turned: Pointer<f32>,
) {
    let (inputs, outputs, taps) = (geometry.inputs, geometry.outputs, geometry.taps());
    let families: Vec<(usize, &[usize])> = correlation.families_taps().filter(|(_, own)| !own.is_empty()).collect();
    let blocks = inputs.div_ceil(INPUTS);
    for_each(geometry.groups * blocks, |index| {
        let (block, group) = (index % blocks * INPUTS, index / blocks);
        let group_count = inputs * outputs * taps;
        let rows = Span { start: block, len: INPUTS.min(inputs - block) };
        let sizes = [inputs, outputs, taps];
        // SAFETY: a group's weights contain those of each family, which have a row for each input; every task writes different rows.
        unsafe {
            let w = w.slice(group * group_count, group_count);
            let turned = |(first, own): &(usize, &[usize])| {
                let count = outputs * own.len();
                let start = group * correlation.weights_per_group() + first + rows.start * count;
                turned.slice_mut(start, rows.len * count)
            };
            match w {
                Elements::Float32(w) if taps == 1 => {
                    families.iter().for_each(|family| {
                        turn_matrix(&mut Matrix { w, inputs, outputs, rows, turned: turned(family) });
                    });
                }
                Elements::Float32(w) => turn_taps(w, |weight| weight, sizes, rows, &families, turned),
                Elements::Float16(w) => turn_taps(w, widened_half, sizes, rows, &families, turned),
                Elements::BFloat16(w) => turn_taps(w, widened_brain, sizes, rows, &families, turned),
            }
        }
    });
}

/// Reorders the weights of some inputs, a few outputs at a time; the weights of each family go to separate rows.
fn turn_taps<'a, A: Copy>(
    w: &[A],
    widened: impl Fn(A) -> f32 + Copy,
    [inputs, outputs, taps]: [usize; 3],
    rows: Span,
    families: &[(usize, &[usize])],
    turned: impl Fn(&(usize, &[usize])) -> &'a mut [f32],
) {
    let mut families: Vec<_> = families.iter().map(|family| (family.1, turned(family))).collect();
    for block in spans(outputs, OUTPUTS) {
        let later = (block.start + OUTPUTS) * inputs + rows.start;
        prefetch_rows(w.as_ptr(), OUTPUTS, [inputs * taps, later * taps], rows.len * taps);
        for (own, turned) in &mut families {
            let count = outputs * own.len();
            prefetch_rows(turned.as_ptr(), rows.len, [count, block.start * own.len()], block.len * own.len());
            for (row, line) in turned.chunks_exact_mut(count).enumerate() {
                let line = &mut line[block.start * own.len()..][..block.len * own.len()];
                let weights = &w[(block.start * inputs + rows.start + row) * taps..];
                match own.len() {
                    1 => gather::<A, 1>(weights, inputs * taps, own, widened, line),
                    2 => gather::<A, 2>(weights, inputs * taps, own, widened, line),
                    4 => gather::<A, 4>(weights, inputs * taps, own, widened, line),
                    8 => gather::<A, 8>(weights, inputs * taps, own, widened, line),
                    9 => gather::<A, 9>(weights, inputs * taps, own, widened, line),
                    27 => gather::<A, 27>(weights, inputs * taps, own, widened, line),
                    _ => {
                        for (weights, line) in weights.chunks(inputs * taps).zip(line.chunks_exact_mut(own.len())) {
                            line.iter_mut().zip(*own).for_each(|(value, &tap)| *value = widened(weights[tap]));
                        }
                    }
                }
            }
        }
    }
}

/// Gathers the `own` taps of each output, whose weights are `of_output` apart. The compiler knows the number of taps.
#[inline(always)]
fn gather<A: Copy, const N: usize>(
    weights: &[A],
    of_output: usize,
    own: &[usize],
    widened: impl Fn(A) -> f32,
    line: &mut [f32],
) {
    let own: [usize; N] = std::array::from_fn(|n| own[n]);
    for (weights, line) in weights.chunks(of_output).zip(line.as_chunks_mut::<N>().0) {
        *line = own.map(|tap| widened(weights[tap]));
    }
}

/// Prefetches `count` adjacent weights of each row, from `start` on: the processor does not do so on its own when rows are far apart.
#[inline(always)]
fn prefetch_rows<A>(weights: *const A, rows: usize, [of_row, start]: [usize; 2], count: usize) {
    for row in 0..rows {
        let first = weights.wrapping_add(row * of_row + start);
        (0..count).step_by(LINE).for_each(|weight| prefetch(first.wrapping_add(weight).cast()));
    }
}

/// Columns of a matrix of `outputs` times `inputs` weights, to be turned into rows.
struct Matrix<'a> {
    w: &'a [f32],
    inputs: usize,
    outputs: usize,
    rows: Span,
    turned: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// The slices must hold the matrix and the rows.
    fn turn_matrix, turn_matrix_with(matrix: &mut Matrix)
}

/// # Safety
/// As [`turn_matrix`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn turn_matrix_with<V: Vector>(matrix: &mut Matrix) {
    let Matrix { w, inputs, outputs, rows, ref mut turned } = *matrix;
    for row in spans(rows.len, LANES) {
        for output in spans(outputs, LANES) {
            if row.len == LANES && output.len == LANES {
                // SAFETY: eight rows of eight weights lie in both.
                unsafe {
                    let w = w.as_ptr().add(output.start * inputs + rows.start + row.start);
                    let turned = turned.as_mut_ptr().add(row.start * outputs + output.start);
                    V::transpose(w, inputs as isize, turned, outputs);
                }
                continue;
            }
            for row in row.start..row.start + row.len {
                for output in output.start..output.start + output.len {
                    turned[row * outputs + output] = w[output * inputs + rows.start + row];
                }
            }
        }
    }
}
