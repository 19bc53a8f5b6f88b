//! Moves the values of a grid: mirrors, shifts and rotates them.

use forebay_base::random::SplitMix64;

/// The sizes of three spatial axes; the first is 1 if there are only two.
pub(crate) struct Grid {
    sizes: [usize; 3],
}

/// Returns whether a tensor of this shape has a value for each place of these spatial axes: they come last, after the batch axis and at
/// most one axis of channels.
pub(crate) fn is_map(shape: &[u64], spatial: &[u64]) -> bool {
    (1..=2).any(|first| shape.get(first..) == Some(spatial))
}

/// A number on a grid.
pub(crate) trait Element: Copy + Default {
    /// Returns the value at a position between others, from their values and weights.
    fn between(corners: &[(Self, f64)]) -> Self;

    /// Changes every value.
    fn each(values: &mut [Self], change: impl FnMut(f32) -> f32);

    /// Returns the mean of all values.
    fn mean(values: &[Self]) -> f32;
}

impl Element for f32 {
    fn between(corners: &[(f32, f64)]) -> f32 {
        corners.iter().map(|&(value, weight)| f64::from(value) * weight).sum::<f64>() as f32
    }

    fn each(values: &mut [f32], mut change: impl FnMut(f32) -> f32) {
        values.iter_mut().for_each(|value| *value = change(*value));
    }

    fn mean(values: &[f32]) -> f32 {
        let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
        (sum / values.len().max(1) as f64) as f32
    }
}

/// Labels are never interpolated: the nearest one is taken.
impl Element for i64 {
    fn between(corners: &[(i64, f64)]) -> i64 {
        let mut nearest = corners[0];
        for &corner in corners {
            if corner.1 > nearest.1 {
                nearest = corner;
            }
        }
        nearest.0
    }

    fn each(_: &mut [i64], _: impl FnMut(f32) -> f32) {}

    fn mean(_: &[i64]) -> f32 {
        0.0
    }
}

/// Returns the four elements of a rotation matrix.
pub(crate) fn rotation(degrees: f64) -> [f64; 4] {
    let (sine, cosine) = libm::sincos(degrees.to_radians());
    [cosine, -sine, sine, cosine]
}

impl Grid {
    /// Creates a grid of two or three axes.
    pub(crate) fn of(sizes: &[u64]) -> Grid {
        let size = |from_last: usize| sizes.iter().rev().nth(from_last).map_or(1, |&size| size as usize);
        Grid { sizes: [size(2), size(1), size(0)] }
    }

    /// Returns the number of positions.
    pub(crate) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Splits values into those of consecutive grids.
    pub(crate) fn planes<'a, T>(&self, values: &'a mut [T]) -> std::slice::ChunksExactMut<'a, T> {
        values.chunks_exact_mut(self.count().max(1))
    }

    /// Returns whether the grid has only two axes, or size 1 along the first of three.
    pub(crate) fn is_flat(&self) -> bool {
        self.sizes[0] == 1
    }

    /// Returns the sizes.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        self.sizes
    }

    /// Returns the index of a position.
    pub(crate) fn place(&self, [depth, row, column]: [usize; 3]) -> usize {
        (depth * self.sizes[1] + row) * self.sizes[2] + column
    }

    /// Gives every position a new value, computed from the old ones.
    pub(crate) fn moved<T: Element>(&self, values: &mut [T], value: impl Fn(&[T], [usize; 3]) -> T) {
        let old = values.to_vec();
        let mut places = values.iter_mut();
        for depth in 0..self.sizes[0] {
            for row in 0..self.sizes[1] {
                for column in 0..self.sizes[2] {
                    places.next().into_iter().for_each(|place| *place = value(&old, [depth, row, column]));
                }
            }
        }
    }

    /// Mirrors the values along an axis.
    pub(crate) fn flip<T: Element>(&self, values: &mut [T], axis: usize) {
        self.moved(values, |old, mut at| {
            at[axis] = self.sizes[axis] - 1 - at[axis];
            old[self.place(at)]
        });
    }

    /// Shifts the values along every axis, and fills the gap with zeros.
    pub(crate) fn shift<T: Element>(&self, values: &mut [T], by: [i64; 3]) {
        self.moved(values, |old, at| {
            let mut from = [0; 3];
            for axis in 0..3 {
                let place = at[axis] as i64 + by[axis];
                if place < 0 || place >= self.sizes[axis] as i64 {
                    return T::default();
                }
                from[axis] = place as usize;
            }
            old[self.place(from)]
        });
    }

    /// Gives each position of the last two axes the value at the matrix times the position, relative to the middle, or 0 if that is outside
    /// the grid.
    pub(crate) fn transform<T: Element>(&self, values: &mut [T], [a, b, c, d]: [f64; 4]) {
        let middle = [1, 2].map(|axis| (self.sizes[axis] as f64 - 1.0) / 2.0);
        self.moved(values, |old, [depth, row, column]| {
            let (y, x) = (row as f64 - middle[0], column as f64 - middle[1]);
            let (from_y, from_x) = (a * y + b * x + middle[0], c * y + d * x + middle[1]);
            let (top, left) = (from_y.floor(), from_x.floor());
            let (down, right) = (from_y - top, from_x - left);
            let at = |y: f64, x: f64| {
                let is_inside = y >= 0.0 && x >= 0.0 && y < self.sizes[1] as f64 && x < self.sizes[2] as f64;
                if is_inside { old[self.place([depth, y as usize, x as usize])] } else { T::default() }
            };
            T::between(&[
                (at(top, left), (1.0 - down) * (1.0 - right)),
                (at(top, left + 1.0), (1.0 - down) * right),
                (at(top + 1.0, left), down * (1.0 - right)),
                (at(top + 1.0, left + 1.0), down * right),
            ])
        });
    }

    /// Draws a box that takes the given share of each axis. Returns its first position and its size along each axis.
    pub(crate) fn hole(&self, share: f32, random: &mut SplitMix64) -> [(usize, usize); 3] {
        self.sizes.map(|size| {
            let length = ((size as f64 * f64::from(share)).round() as usize).clamp(1, size.max(1));
            (random.up_to((size - length.min(size)) as u64) as usize, length)
        })
    }

    /// Sets a box to 0.
    pub(crate) fn clear<T: Element>(&self, values: &mut [T], hole: &[(usize, usize); 3]) {
        let is_in = |axis: usize, at: usize| at >= hole[axis].0 && at < hole[axis].0 + hole[axis].1;
        self.moved(values, |old, at| match (0..3).all(|axis| is_in(axis, at[axis])) {
            true => T::default(),
            false => old[self.place(at)],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_and_no_turn_are_exact_up_to_rounding() {
        let grid = Grid::of(&[3, 3]);
        let given: Vec<f32> = (0..9u8).map(f32::from).collect();
        let turned = |degrees| {
            let mut values = given.clone();
            grid.transform(&mut values, rotation(degrees));
            values.iter().map(|value| value.round()).collect::<Vec<_>>()
        };
        assert_eq!(turned(0.0), given);
        assert_eq!(turned(90.0), [6.0, 3.0, 0.0, 7.0, 4.0, 1.0, 8.0, 5.0, 2.0]);
        for degrees in [-180.0, -33.0, 1.0, 170.0f64] {
            let [cosine, _, sine, _] = rotation(degrees);
            assert!(
                (cosine - degrees.to_radians().cos()).abs() < 1e-14
                    && (sine - degrees.to_radians().sin()).abs() < 1e-14
            );
        }
    }

    #[test]
    fn labels_take_the_nearest_and_values_the_mean() {
        let grid = Grid::of(&[1, 4]);
        let (mut values, mut labels) = ([0.0f32, 1.0, 2.0, 3.0], [0i64, 10, 20, 30]);
        let half = [1.0, 0.0, 0.0, 0.5];
        grid.transform(&mut values, half);
        grid.transform(&mut labels, half);
        assert_eq!(values, [0.75, 1.25, 1.75, 2.25]);
        assert_eq!(labels, [10, 10, 20, 20]);
    }
}
