//! Weights in the order in which the data gradient reads them: w\[output, input, tap] by group, family, input, output and tap.

use super::super::parallel::{for_each, Pointer};
use super::super::simd::{dispatch_wide, Vector, LANES};
use super::super::stored::{Elements, Stored};
use super::correlation::Correlation;
use super::slab::{spans, Span};
use super::Geometry;

/// Inputs of a task: their weights of one output lie together.
const INPUTS: usize = 2 * LANES;

/// Orders weights as [`Correlation::transposed`] reads them.
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
    if families.is_empty() {
        return;
    }
    let blocks = inputs.div_ceil(INPUTS);
    for_each(geometry.groups * families.len() * blocks, |index| {
        let (block, index) = (index % blocks * INPUTS, index / blocks);
        let ((first, own), group) = (families[index % families.len()], index / families.len());
        let group_count = inputs * outputs * taps;
        let rows = Span { start: block, len: INPUTS.min(inputs - block) };
        // SAFETY: a group's weights hold each family's, and those a row for each input; every task writes rows of its own.
        unsafe {
            let w = w.slice(group * group_count, group_count);
            let count = outputs * own.len();
            let turned = turned
                .slice_mut(group * correlation.weights_per_group() + first + rows.start * count, rows.len * count);
            match w {
                Elements::Float32(w) if taps == 1 => turn_matrix(&mut Matrix { w, inputs, outputs, rows, turned }),
                _ => turn_taps(w, [inputs, outputs, taps], own, rows, turned),
            }
        }
    });
}

/// Weights of some inputs, tap by tap.
fn turn_taps(w: Elements, [inputs, outputs, taps]: [usize; 3], own: &[usize], rows: Span, turned: &mut [f32]) {
    let count = outputs * own.len();
    for output in 0..outputs {
        for (row, line) in turned.chunks_exact_mut(count).enumerate() {
            let first = (output * inputs + rows.start + row) * taps;
            let line = &mut line[output * own.len()..][..own.len()];
            line.iter_mut().zip(own).for_each(|(value, &tap)| *value = w.get(first + tap));
        }
    }
}

/// Columns of a matrix of `outputs` times `inputs` weights, which become rows.
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
