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
/// Rows that are multiplied by a panel at once.
const ROWS: usize = 6;
/// Panels by which a single row is multiplied at once.
const PANELS: usize = 4;

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
                (rows, target.slice_mut(panel * units * COLUMNS, units * COLUMNS))
            };
            for (term, packed) in panel.chunks_exact_mut(COLUMNS).enumerate() {
                packed.fill(0.0);
                for (packed, row) in packed.iter_mut().zip(rows.chunks_exact(units)) {
                    *packed = row[term];
                }
            }
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
    let (x, out) = (product.x, product.out);
    // SAFETY: the caller's promises; rows and panels are those of the product.
    unsafe {
        if let ([x], [out]) = (x, out) {
            let (mut panel, end) = (product.first_panel, product.first_panel + product.panel_count);
            while panel + PANELS <= end {
                let out = out.add((panel - product.first_panel) * COLUMNS);
                V::outline(|| one_row::<V>(product, *x, out, panel));
                panel += PANELS;
            }
            while panel < end {
                let out = out.add((panel - product.first_panel) * COLUMNS);
                V::outline(|| some_rows::<V, 1>(product, [*x], [out], panel));
                panel += 1;
            }
            return;
        }
        for panel in product.first_panel..product.first_panel + product.panel_count {
            let at = |row: usize| out[row].add((panel - product.first_panel) * COLUMNS);
            let mut row = 0;
            while row + ROWS <= x.len() {
                let (x, out) = (std::array::from_fn(|i| x[row + i]), std::array::from_fn(|i| at(row + i)));
                V::outline(|| some_rows::<V, ROWS>(product, x, out, panel));
                row += ROWS;
            }
            while row + 2 <= x.len() {
                V::outline(|| some_rows::<V, 2>(product, [x[row], x[row + 1]], [at(row), at(row + 1)], panel));
                row += 2;
            }
            if row < x.len() {
                V::outline(|| some_rows::<V, 1>(product, [x[row]], [at(row)], panel));
            }
        }
    }
}

/// # Safety
/// As [`multiply_with`]; the results are those of this panel.
#[inline(always)]
unsafe fn some_rows<V: Vector, const N: usize>(
    product: &Product,
    x: [*const f32; N],
    out: [*mut f32; N],
    panel: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; N];
        if product.accumulate {
            for row in 0..N {
                sums[row] = std::array::from_fn(|vector| V::load(out[row].add(vector * LANES)));
            }
        }
        let mut weights = product.panel(panel);
        for term in 0..product.terms {
            let seen: [V; VECTORS] = std::array::from_fn(|vector| V::load(weights.add(vector * LANES)));
            for row in 0..N {
                let factor = V::splat(*x[row].add(term));
                for vector in 0..VECTORS {
                    sums[row][vector] = sums[row][vector].add_product(factor, seen[vector]);
                }
            }
            weights = weights.add(COLUMNS);
        }
        for (sums, out) in sums.iter().zip(out) {
            for (vector, sum) in sums.iter().enumerate() {
                sum.store(out.add(vector * LANES));
            }
        }
    }
}

/// # Safety
/// As [`multiply_with`]; the results are those of [`PANELS`] panels from this one on.
#[inline(always)]
unsafe fn one_row<V: Vector>(product: &Product, x: *const f32, out: *mut f32, panel: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; PANELS];
        if product.accumulate {
            for (panel, sums) in sums.iter_mut().enumerate() {
                *sums = std::array::from_fn(|vector| V::load(out.add(panel * COLUMNS + vector * LANES)));
            }
        }
        let mut weights: [*const f32; PANELS] = std::array::from_fn(|i| product.panel(panel + i));
        for term in 0..product.terms {
            let factor = V::splat(*x.add(term));
            for (sums, weights) in sums.iter_mut().zip(&mut weights) {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add_product(factor, V::load(weights.add(vector * LANES)));
                }
                *weights = weights.add(COLUMNS);
            }
        }
        for (panel, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                sum.store(out.add(panel * COLUMNS + vector * LANES));
            }
        }
    }
}
