//! Products of a few rows with weights that are packed once: panels of sixteen columns, term by term.
//!
//! Every element is one sum, in the order of its terms, regardless of which rows and panels are computed together. So rows and panels can
//! be divided in any way.

use super::super::parallel::{Pointer, for_each};
use super::super::simd::{LANES, Vector, dispatch};

/// Vectors of a panel.
const VECTORS: usize = 2;
/// Columns of a panel.
pub(super) const COLUMNS: usize = VECTORS * LANES;
/// The most rows that are multiplied at once.
const ROWS_MAX: usize = 6;

/// Matrices of packed weights, one for each direction.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    base: Pointer<f32>,
    /// The number of panels of a direction.
    count: usize,
    /// The number of terms of a sum.
    terms: usize,
}

/// How a matrix of weights is packed.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    /// Directions.
    pub directions: usize,
    /// Gates of a direction.
    pub gates: usize,
    /// Units of a state.
    pub units: usize,
}

impl Packing {
    /// The number of panels that hold one gate's columns, or a state's.
    pub fn unit_panels(self) -> usize {
        self.units.div_ceil(COLUMNS)
    }

    /// The number of elements of the weights to the gates: a sum over the state for every column of a gate.
    pub fn to_gates_elements(self) -> usize {
        self.directions * self.gates * self.unit_panels() * self.units * COLUMNS
    }

    /// The number of elements of the weights back to the state: a sum over all gates for every unit.
    pub fn to_state_elements(self) -> usize {
        self.directions * self.unit_panels() * self.gates * self.units * COLUMNS
    }

    /// Packs weights \[directions, gates units, units] for products from the state to the gates.
    ///
    /// # Safety
    /// The weights must be readable, and the target must be writable by no one else.
    pub unsafe fn to_gates(self, weights: Pointer<f32>, target: Pointer<f32>) -> Panels {
        let (units, panels) = (self.units, self.unit_panels());
        for_each(self.directions * self.gates * panels, |panel| {
            let (gate, first) = (panel / panels, panel % panels * COLUMNS);
            let columns = COLUMNS.min(units - first);
            // SAFETY: in bounds, because each panel has its own `units` terms.
            let (rows, panel) = unsafe {
                let rows = weights.slice((gate * units + first) * units, columns * units);
                (rows, target.at((panel * units * COLUMNS) as isize))
            };
            // SAFETY: the rows are complete, and no other task writes the panel.
            unsafe { transpose(&GateRows { rows, columns, units, panel }) };
        });
        Panels { base: target, count: self.gates * panels, terms: units }
    }

    /// Packs the same weights for products from the gates to the state.
    ///
    /// # Safety
    /// As [`Packing::to_gates`].
    pub unsafe fn to_state(self, weights: Pointer<f32>, target: Pointer<f32>) -> Panels {
        let (units, panels, terms) = (self.units, self.unit_panels(), self.gates * self.units);
        for_each(self.directions * panels, |panel| {
            let (direction, first) = (panel / panels, panel % panels * COLUMNS);
            let columns = COLUMNS.min(units - first);
            // SAFETY: in bounds, because each panel has its own `terms` terms.
            let (rows, panel) = unsafe {
                let rows = weights.slice(direction * terms * units, terms * units);
                (rows, target.slice_mut(panel * terms * COLUMNS, terms * COLUMNS))
            };
            for (packed, row) in panel.chunks_exact_mut(COLUMNS).zip(rows.chunks_exact(units)) {
                packed.fill(0.0);
                packed[..columns].copy_from_slice(&row[first..first + columns]);
            }
        });
        Panels { base: target, count: panels, terms }
    }
}

/// Rows of weights of one gate, which become the columns of a panel.
struct GateRows<'a> {
    /// `columns` rows of `units` elements.
    rows: &'a [f32],
    columns: usize,
    units: usize,
    /// `units` terms of [`COLUMNS`] columns.
    panel: *mut f32,
}

dispatch! {
    /// Packs rows as columns; missing columns are 0.
    ///
    /// # Safety
    /// The rows must be complete, and the panel must be writable by no one else.
    fn transpose, transpose_with(gate: &GateRows)
}

/// # Safety
/// As [`transpose`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn transpose_with<V: Vector>(gate: &GateRows) {
    let &GateRows { rows, columns, units, panel } = gate;
    let (whole_columns, whole_terms) = (columns / LANES * LANES, units / LANES * LANES);
    // SAFETY: the caller's promises; every column and every term is written once.
    unsafe {
        for first in (0..whole_columns).step_by(LANES) {
            for term in (0..whole_terms).step_by(LANES) {
                let source = rows.as_ptr().add(first * units + term);
                V::transpose(source, units as isize, panel.add(term * COLUMNS + first), COLUMNS);
            }
        }
        for term in 0..units {
            let first = if term < whole_terms { whole_columns } else { 0 };
            for column in first..COLUMNS {
                let value = if column < columns { rows[column * units + term] } else { 0.0 };
                *panel.add(term * COLUMNS + column) = value;
            }
        }
    }
}

/// Rows times some panels: `out[row][column] = sum of x[row][term] panel[term][column]`, or that sum added to the previous results.
pub(super) struct Product<'a> {
    /// The rows that are multiplied, starting at the first term.
    pub x: &'a [*const f32],
    /// The rows of the result: whole panels, starting at the first one.
    pub out: &'a [*mut f32],
    /// The weights.
    pub panels: Panels,
    /// The direction of the weights.
    pub direction: usize,
    /// The first panel.
    pub first_panel: usize,
    /// The number of panels.
    pub panel_count: usize,
    /// The first term.
    pub first_term: usize,
    /// The number of terms.
    pub terms: usize,
    /// Whether the results are added to the previous ones.
    pub accumulate: bool,
}

impl Product<'_> {
    /// Computes the product on the calling thread.
    ///
    /// # Safety
    /// Rows must contain the terms and the panels, and no one else may touch the results.
    pub unsafe fn run(&self) {
        assert!(self.x.len() == self.out.len() && self.first_panel + self.panel_count <= self.panels.count);
        // SAFETY: the caller's promises.
        unsafe { multiply(self) }
    }

    fn panel(&self, panel: usize) -> *const f32 {
        let Panels { base, count, terms } = self.panels;
        let first = ((self.direction * count + panel) * terms + self.first_term) * COLUMNS;
        // SAFETY: the direction has this panel, and the panel this term.
        unsafe { base.at(first as isize) }
    }
}

dispatch! {
    /// # Safety
    /// As [`Product::run`].
    fn multiply, multiply_with(product: &Product)
}

/// # Safety
/// As [`Product::run`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_with<V: Vector>(product: &Product) {
    // Groups of nearly the same size: a small one would leave most of the processor's multipliers idle.
    let (rows, groups) = (product.x.len(), product.x.len().div_ceil(ROWS_MAX));
    let mut first = 0;
    for group in 0..groups {
        let count = rows / groups + usize::from(group < rows % groups);
        // SAFETY: the caller's promises; the rows are those of the product.
        unsafe {
            match count {
                1 => all_panels::<V, 1, 4>(product, first),
                2 => all_panels::<V, 2, 3>(product, first),
                3 => all_panels::<V, 3, 2>(product, first),
                4 => all_panels::<V, 4, 1>(product, first),
                5 => all_panels::<V, 5, 1>(product, first),
                _ => all_panels::<V, ROWS_MAX, 1>(product, first),
            }
        }
        first += count;
    }
}

/// Multiplies `R` rows from this one on by all panels, `P` panels at once.
///
/// # Safety
/// As [`multiply_with`]; the product must have the rows.
#[inline(always)]
unsafe fn all_panels<V: Vector, const R: usize, const P: usize>(product: &Product, row: usize) {
    let (mut panel, end) = (product.first_panel, product.first_panel + product.panel_count);
    // SAFETY: the caller's promises; rows and panels are those of the product.
    unsafe {
        while panel + P <= end {
            V::outline(
                #[inline(always)]
                || tile::<V, R, P>(product, row, panel),
            );
            panel += P;
        }
        while panel < end {
            V::outline(
                #[inline(always)]
                || tile::<V, R, 1>(product, row, panel),
            );
            panel += 1;
        }
    }
}

/// Multiplies `R` rows from this one on by `P` panels from this one on.
///
/// # Safety
/// As [`multiply_with`]; the product must have the rows and the panels.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const P: usize>(product: &Product, row: usize, panel: usize) {
    let column = (panel - product.first_panel) * COLUMNS;
    // SAFETY: the caller's promises.
    unsafe {
        let x: [*const f32; R] = std::array::from_fn(|i| product.x[row + i]);
        let out: [*mut f32; R] = std::array::from_fn(|i| product.out[row + i].add(column));
        let mut weights: [*const f32; P] = std::array::from_fn(|i| product.panel(panel + i));
        let mut sums = [[[V::splat(0.0); VECTORS]; P]; R];
        if product.accumulate {
            for (sums, out) in sums.iter_mut().zip(out) {
                for (panel, sums) in sums.iter_mut().enumerate() {
                    for (vector, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(out.add(panel * COLUMNS + vector * LANES));
                    }
                }
            }
        }
        for term in 0..product.terms {
            let mut seen = [[V::splat(0.0); VECTORS]; P];
            for (seen, weights) in seen.iter_mut().zip(&mut weights) {
                for (vector, seen) in seen.iter_mut().enumerate() {
                    *seen = V::load(weights.add(vector * LANES));
                }
                *weights = weights.add(COLUMNS);
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let factor = V::splat(*x.add(term));
                for (sums, seen) in sums.iter_mut().zip(seen) {
                    for (sum, seen) in sums.iter_mut().zip(seen) {
                        *sum = sum.add_product(factor, seen);
                    }
                }
            }
        }
        for (sums, out) in sums.iter().zip(out) {
            for (panel, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    sum.store(out.add(panel * COLUMNS + vector * LANES));
                }
            }
        }
    }
}
