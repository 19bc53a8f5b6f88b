//! Elastic deformation: every position takes the value of a nearby one, and the displacement varies smoothly over the grid.
//!
//! Displacements are drawn for the knots of a coarse grid and interpolated by cubic B-splines, so none is larger than the largest one
//! drawn.

use forebay_base::random::SplitMix64;

use crate::plane::{Element, Grid};

/// The number of intervals between knots along an axis.
const INTERVALS: usize = 4;
/// The number of knots along an axis: a spline needs one more before the grid, and two after it.
const KNOTS: usize = INTERVALS + 3;

/// The displacements of knots along each axis, in positions.
pub(crate) struct Displacement {
    knots: Vec<[f64; 3]>,
}

impl Displacement {
    /// Draws displacements of up to `places` in either direction, but none along the first axis of a flat grid.
    pub(crate) fn draw(grid: &Grid, places: f32, random: &mut SplitMix64) -> Displacement {
        let depth = if grid.is_flat() { 1 } else { KNOTS };
        let mut knot = |axis: usize| match axis == 0 && grid.is_flat() {
            true => 0.0,
            false => f64::from(places) * random.symmetric(),
        };
        Displacement { knots: (0..depth * KNOTS * KNOTS).map(|_| [knot(0), knot(1), knot(2)]).collect() }
    }

    /// Gives every position the value at which its displacement points, or 0 if that is outside the grid.
    pub(crate) fn apply<T: Element>(&self, grid: &Grid, values: &mut [T]) {
        let sizes = grid.sizes();
        let old = values.to_vec();
        let mut places = values.iter_mut();
        for depth in 0..sizes[0] {
            // The knots are combined axis by axis: into those of a plane, of a row, and of a position.
            let plane = match grid.is_flat() {
                true => self.knots.clone(),
                false => combined(&self.knots, spline(depth, sizes[0])),
            };
            for row in 0..sizes[1] {
                let line = combined(&plane, spline(row, sizes[1]));
                for column in 0..sizes[2] {
                    let by = combined(&line, spline(column, sizes[2]))[0];
                    let at = [depth as f64 + by[0], row as f64 + by[1], column as f64 + by[2]];
                    places.next().into_iter().for_each(|place| *place = sample(grid, &old, at));
                }
            }
        }
    }
}

/// Returns the first of the four knots that contribute to a position, and their weights.
fn spline(at: usize, size: usize) -> (usize, [f64; 4]) {
    let place = at as f64 / (size.max(2) - 1) as f64 * INTERVALS as f64;
    let first = (place.floor() as usize).min(INTERVALS - 1);
    let t = place - first as f64;
    let (t2, t3, rest) = (t * t, t * t * t, 1.0 - t);
    let parts = [rest * rest * rest, 3.0 * t3 - 6.0 * t2 + 4.0, -3.0 * t3 + 3.0 * t2 + 3.0 * t + 1.0, t3];
    (first, parts.map(|part| part / 6.0))
}

/// Combines knots along their first axis.
fn combined(knots: &[[f64; 3]], (first, parts): (usize, [f64; 4])) -> Vec<[f64; 3]> {
    let inner = knots.len() / KNOTS;
    let mut found = vec![[0.0; 3]; inner];
    for (step, part) in parts.iter().enumerate() {
        let from = &knots[(first + step) * inner..][..inner];
        for (found, knot) in found.iter_mut().zip(from) {
            (0..3).for_each(|axis| found[axis] += part * knot[axis]);
        }
    }
    found
}

/// Returns the value at a position between those of the grid.
fn sample<T: Element>(grid: &Grid, values: &[T], at: [f64; 3]) -> T {
    let low = at.map(f64::floor);
    let sizes = grid.sizes();
    let mut corners = [(T::default(), 0.0); 8];
    for (number, corner) in corners.iter_mut().enumerate() {
        let (mut weight, mut from, mut is_inside) = (1.0, [0; 3], true);
        for axis in 0..3 {
            let is_high = number >> (2 - axis) & 1 == 1;
            let place = low[axis] + f64::from(u8::from(is_high));
            let part = at[axis] - low[axis];
            weight *= if is_high { part } else { 1.0 - part };
            is_inside &= place >= 0.0 && place < sizes[axis] as f64;
            from[axis] = place.max(0.0) as usize;
        }
        let value = if is_inside { values[grid.place(from)] } else { T::default() };
        *corner = (value, weight);
    }
    T::between(&corners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_displacement_changes_nothing_and_a_common_one_shifts() {
        for sizes in [[1, 5, 6].as_slice(), &[4, 5, 6]] {
            let grid = Grid::of(sizes);
            let given: Vec<f32> = (0..grid.count()).map(|place| place as f32).collect();
            let knots = if sizes[0] == 1 { KNOTS * KNOTS } else { KNOTS * KNOTS * KNOTS };
            let mut values = given.clone();
            Displacement { knots: vec![[0.0; 3]; knots] }.apply(&grid, &mut values);
            assert_eq!(values, given);
            // All knots point two places to the right.
            Displacement { knots: vec![[0.0, 0.0, 2.0]; knots] }.apply(&grid, &mut values);
            let row: Vec<f32> = values[..6].to_vec();
            let wanted = [2.0, 3.0, 4.0, 5.0, 0.0, 0.0];
            assert!(row.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-4), "{row:?}");
        }
    }

    #[test]
    fn values_come_from_no_further_than_the_largest_displacement_and_labels_with_them() {
        for sizes in [[1, 24, 32].as_slice(), &[9, 12, 16]] {
            let grid = Grid::of(sizes);
            let [_, rows, columns] = grid.sizes();
            let column = |place: usize| (place % columns) as i64;
            let mut labels: Vec<i64> = (0..grid.count()).map(|place| 1 + column(place)).collect();
            let mut values: Vec<f32> = labels.iter().map(|&label| label as f32).collect();
            let displacement = Displacement::draw(&grid, 3.0, &mut SplitMix64::of(&[1]));
            displacement.apply(&grid, &mut labels);
            displacement.apply(&grid, &mut values);
            let mut moved = 0;
            for (place, (&label, &value)) in labels.iter().zip(&values).enumerate() {
                let (row, inner) = (place / columns % rows, (4..columns - 4).contains(&(place % columns)));
                if inner && (4..rows - 4).contains(&row) && (sizes[0] == 1 || label != 0) {
                    let by = label - 1 - column(place);
                    assert!(by.abs() <= 3, "{by}");
                    assert!(sizes[0] > 1 || (value - label as f32).abs() <= 0.5 + 1e-4, "{value} {label}");
                    moved += u64::from(by != 0);
                }
            }
            assert!(moved > 5, "{moved}");
        }
    }
}
