//! Units of four adjacent positions: the transforms of minimal filtering for windows of three elements (see [`super::winograd`]), for
//! results and for the gradient with respect to the weights.
//!
//! The four positions of a unit see six elements, which have six components. In the gradient, the four elements of dy have six components,
//! too; products of components are summed over units, and the sums are transformed into those of the window's three elements. That takes
//! six multiplications instead of twelve.

use super::super::simd::{Vector, WIDTH_MAX};
use super::super::stored::Elements;

/// Positions of a unit.
pub(super) const POSITIONS: usize = 4;
/// Components of a unit, and the elements that it sees.
pub(super) const COMPONENTS: usize = 6;
/// The most units of a block whose gradients are transformed at once: a multiple of every vector's width.
pub(super) const UNITS_MAX: usize = 64;

/// a x + b, where a is one number.
///
/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn scaled_sum<V: Vector>(a: f32, x: V, b: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { b.add_product(V::splat(a), x) }
}

/// Returns the components of the elements that units see.
///
/// # Safety
/// As [`scaled_sum`].
#[inline(always)]
pub(super) unsafe fn of_source<V: Vector>(x: [V; COMPONENTS]) -> [V; COMPONENTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (scaled_sum(-4.0, x[2], x[4]), scaled_sum(-4.0, x[1], x[3]));
        let (c, d) = (scaled_sum(-1.0, x[2], x[4]), scaled_sum(-1.0, x[1], x[3]));
        [
            scaled_sum(4.0, x[0], scaled_sum(-5.0, x[2], x[4])),
            scaled_sum(1.0, b, a),
            scaled_sum(-1.0, b, a),
            scaled_sum(2.0, d, c),
            scaled_sum(-2.0, d, c),
            scaled_sum(4.0, x[1], scaled_sum(-5.0, x[3], x[5])),
        ]
    }
}

/// Returns the components of the gradients of units.
///
/// # Safety
/// As [`scaled_sum`].
#[inline(always)]
unsafe fn of_gradient<V: Vector>(dy: [V; POSITIONS]) -> [V; COMPONENTS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (scaled_sum(1.0, dy[2], dy[0]), scaled_sum(1.0, dy[3], dy[1]));
        let (c, d) = (scaled_sum(4.0, dy[2], dy[0]), scaled_sum(4.0, dy[3], dy[1]));
        [dy[0], scaled_sum(1.0, b, a), scaled_sum(-1.0, b, a), scaled_sum(2.0, d, c), scaled_sum(-2.0, d, c), dy[3]]
    }
}

/// Returns the sums of a window's three elements, given those of components.
///
/// # Safety
/// As [`scaled_sum`].
#[inline(always)]
unsafe fn of_sums<V: Vector>(sums: [V; COMPONENTS]) -> [V; 3] {
    const SIXTH: f32 = 1.0 / 6.0;
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (scaled_sum(1.0, sums[2], sums[1]), scaled_sum(-1.0, sums[1], sums[2]));
        let (c, d) = (scaled_sum(1.0, sums[4], sums[3]), scaled_sum(-1.0, sums[4], sums[3]));
        let zero = V::splat(0.0);
        [
            scaled_sum(SIXTH, scaled_sum(0.25, c, scaled_sum(1.5, sums[0], scaled_sum(-1.0, a, zero))), zero),
            scaled_sum(SIXTH, scaled_sum(0.5, d, b), zero),
            scaled_sum(SIXTH, scaled_sum(-1.0, a, c), sums[5]),
        ]
    }
}

/// Writes the components of units, given the vectors of channels that they see one after the other: by unit and component.
///
/// # Safety
/// The vectors of all units must be readable, and those of their components writable; the CPU must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn transform_source<V: Vector>(seen: *const f32, units: usize, target: *mut f32) {
    for unit in 0..units {
        // SAFETY: the caller's promises.
        unsafe {
            let first = seen.add(unit * POSITIONS * V::WIDTH);
            let at = |element: usize| V::load(first.add(element * V::WIDTH));
            let components = of_source([at(0), at(1), at(2), at(3), at(4), at(5)]);
            for (component, vector) in components.into_iter().enumerate() {
                vector.store(target.add((unit * COMPONENTS + component) * V::WIDTH));
            }
        }
    }
}

/// Elements of some units, and behind them what vectors read and write.
const ELEMENTS: usize = UNITS_MAX * POSITIONS + 2 * WIDTH_MAX;

/// The gradients of some rows of units, and those with even and with odd numbers.
pub(super) struct Gradients {
    all: [f32; ELEMENTS],
    halves: [[f32; ELEMENTS / 2]; 2],
}

impl Gradients {
    pub fn new() -> Gradients {
        Gradients { all: [0.0; ELEMENTS], halves: [[0.0; ELEMENTS / 2]; 2] }
    }

    /// Writes the components of a channel's units: by component, [`UNITS_MAX`] apart, and row after row. The channel's rows are `pitch`
    /// elements apart. Behind the last column of a row, units see zeros.
    ///
    /// # Safety
    /// All components must be writable. There may be at most [`UNITS_MAX`] units; the CPU must have the vector's instructions.
    #[inline(always)]
    pub unsafe fn transform<V: Vector>(
        &mut self,
        channel: Elements,
        (start, pitch): (usize, usize),
        [rows, columns]: [usize; 2],
        target: *mut f32,
    ) {
        let width = columns.next_multiple_of(POSITIONS);
        for (row, line) in self.all.chunks_exact_mut(width).take(rows).enumerate() {
            channel.copy_to(&mut line[..columns], start + row * pitch, 1);
            line[columns..].fill(0.0);
        }
        let units = rows * width / POSITIONS;
        // SAFETY: the caller's promises; there is room for whole vectors.
        unsafe {
            for (odd, half) in self.halves.iter_mut().enumerate() {
                for at in (0..2 * units).step_by(V::WIDTH) {
                    V::load_even(self.all.as_ptr().add(2 * at + odd)).store(half.as_mut_ptr().add(at));
                }
            }
            for unit in (0..units).step_by(V::WIDTH) {
                let [even, odd] = [self.halves[0].as_ptr().add(2 * unit), self.halves[1].as_ptr().add(2 * unit)];
                let dy = [V::load_even(even), V::load_even(odd), V::load_even(even.add(1)), V::load_even(odd.add(1))];
                for (component, vector) in of_gradient(dy).into_iter().enumerate() {
                    vector.store(target.add(component * UNITS_MAX + unit));
                }
            }
        }
    }
}

/// Adds the sums of a window's three elements, `stride` elements apart, given those of components, `component_stride` apart.
///
/// # Safety
/// All sums must be readable, and those of the window writable; the CPU must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn add_sums<V: Vector>(
    components: *const f32,
    component_stride: usize,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let at = |component: usize| V::load(components.add(component * component_stride));
        for (element, own) in of_sums([at(0), at(1), at(2), at(3), at(4), at(5)]).into_iter().enumerate() {
            let sum = sums.add(element * stride);
            V::load(sum).add_product(own, V::splat(1.0)).store(sum);
        }
    }
}
