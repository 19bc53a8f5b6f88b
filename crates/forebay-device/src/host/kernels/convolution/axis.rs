//! How target positions see the source along one spatial dimension.
//!
//! Every direction of a convolution is a *correlation*: target position j sees source element `j x source stride + u` through a tap. In the
//! forward direction, the target is y, the source is x, and the source stride is the convolution's stride. In the backward direction, the
//! target is dx and the source is dy. With a stride s, an element of dx sees only the taps whose distance to it is a multiple of s, so the
//! elements with the same remainder form a *class*, on which the correlation has source stride 1.
//!
//! The source is packed such that the elements that adjacent positions see through one tap are adjacent: by *phase* (the remainder of u by
//! the source stride). Within a phase, a tap sees the elements from its *shift* on.

use std::collections::HashMap;

use super::super::simd::LANES;
use super::Geometry;

/// The most positions of a plane, including those between rows, for which rows are packed without gaps: packing then takes longer.
const POSITIONS_DENSE_MAX: usize = 256;
/// The most positions of a plane for which planes are packed without gaps, too.
const PLANE_DENSE_MAX: usize = 64;

/// A tap as a class sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Its number in the kernel along this dimension.
    pub number: usize,
    /// The source element that position 0 sees.
    source: isize,
    /// The phase that holds the elements that it sees.
    pub phase: usize,
    /// Where in the phase position 0 looks.
    pub shift: usize,
}

/// The target elements that see the same taps: `first + j x target stride`, `count` of them.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub first: usize,
    pub count: usize,
    pub taps: Vec<Tap>,
}

/// One spatial dimension of a correlation.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub source: usize,
    pub source_stride: usize,
    pub target_stride: usize,
    pub classes: Vec<Class>,
    /// By phase: the source element that is packed first for position 0.
    pub phases: Vec<isize>,
    /// The largest shift.
    pub spread: usize,
}

impl Axis {
    /// Dimension `d` of the forward direction: from x to y.
    pub fn forward(geometry: &Geometry, d: usize) -> Axis {
        let source = |number: usize| (number * geometry.dilations[d]) as isize - geometry.pads[d] as isize;
        let taps = (0..geometry.kernel[d]).map(|number| Tap { number, source: source(number), phase: 0, shift: 0 });
        let class = Class { first: 0, count: geometry.target[d], taps: taps.collect() };
        Axis::new(geometry.source[d], geometry.strides[d], 1, vec![class])
    }

    /// The number of classes of dimension `d` in the transposed direction.
    pub fn transposed_classes(geometry: &Geometry, d: usize) -> usize {
        geometry.strides[d].min(geometry.source[d])
    }

    /// Dimension `d` of the transposed direction: from y to x.
    pub fn transposed(geometry: &Geometry, d: usize) -> Axis {
        let stride = geometry.strides[d];
        let class = |first| Class { first, count: (geometry.source[d] - first).div_ceil(stride), taps: Vec::new() };
        let mut classes: Vec<Class> = (0..Axis::transposed_classes(geometry, d)).map(class).collect();
        for number in 0..geometry.kernel[d] {
            // Element `first` of dx sees the tap if their distance is a multiple of the stride.
            let back = number as i128 * geometry.dilations[d] as i128 - geometry.pads[d] as i128;
            let first = back.rem_euclid(stride as i128) as usize;
            if let Some(class) = classes.get_mut(first) {
                let source = ((first as i128 - back) / stride as i128) as isize;
                // Taps through which a class sees only padding would take time, and their weights would be reordered for nothing.
                if source < geometry.target[d] as isize && source + class.count as isize > 0 {
                    class.taps.push(Tap { number, source, phase: 0, shift: 0 });
                }
            }
        }
        Axis::new(geometry.target[d], 1, stride, classes)
    }

    /// A dimension of units: each position stands for `size` elements of the target, and all taps of a window see the same unit.
    pub fn of_units(count: usize, size: usize, taps: &[Tap]) -> Axis {
        let taps = taps.iter().map(|tap| Tap { phase: 0, shift: 0, ..*tap }).collect();
        let classes = vec![Class { first: 0, count, taps }];
        Axis { source: count, source_stride: 1, target_stride: size, classes, phases: vec![0], spread: 0 }
    }

    fn new(source: usize, source_stride: usize, target_stride: usize, classes: Vec<Class>) -> Axis {
        let mut axis = Axis { source, source_stride, target_stride, classes, phases: Vec::new(), spread: 0 };
        let stride = source_stride as isize;
        axis.assign_phases(|source| source.rem_euclid(stride));
        // A few taps far apart (a large dilation) share little, so packing each separately takes less.
        let joint_size = axis.phases.len().saturating_mul(axis.count().saturating_add(axis.spread));
        let apart = axis.distinct_sources().saturating_mul(axis.count());
        if apart < joint_size {
            axis.pack_taps_apart();
        }
        axis
    }

    /// The number of positions of the largest class.
    pub fn count(&self) -> usize {
        self.classes.iter().map(|class| class.count).max().unwrap_or(0)
    }

    /// Drops the positions from `count` on.
    pub fn shorten(&mut self, count: usize) {
        self.classes.iter_mut().for_each(|class| class.count = class.count.min(count));
    }

    /// Gives each tap its own phase, so that only elements that positions see are packed.
    pub fn pack_taps_apart(&mut self) {
        self.assign_phases(|source| source);
    }

    fn distinct_sources(&self) -> usize {
        let mut sources: Vec<isize> = self.classes.iter().flat_map(|class| &class.taps).map(|tap| tap.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.len()
    }

    /// Assigns phases; taps with the same key share one.
    fn assign_phases(&mut self, key: impl Fn(isize) -> isize) {
        let mut numbers = HashMap::new();
        self.phases.clear();
        for tap in self.classes.iter_mut().flat_map(|class| &mut class.taps) {
            tap.phase = *numbers.entry(key(tap.source)).or_insert(self.phases.len());
            match self.phases.get_mut(tap.phase) {
                Some(first) => *first = (*first).min(tap.source),
                None => self.phases.push(tap.source),
            }
        }
        if self.phases.is_empty() {
            // No element of the target sees any tap; one phase keeps sizes above 0.
            self.phases.push(0);
        }
        self.spread = 0;
        for tap in self.classes.iter_mut().flat_map(|class| &mut class.taps) {
            tap.shift = (tap.source - self.phases[tap.phase]) as usize / self.source_stride;
            self.spread = self.spread.max(tap.shift);
        }
    }

    /// Returns where the source begins and ends among `count` packed elements of a phase, starting at position `origin`.
    pub fn inside(&self, phase: usize, origin: usize, count: usize) -> (usize, usize) {
        let first = self.source_of(phase, origin);
        let stride = self.source_stride as isize;
        let until = |limit: isize| -(first - limit).div_euclid(stride);
        let low = until(0).clamp(0, count as isize);
        let high = until(self.source as isize).clamp(low, count as isize);
        (low as usize, high as usize)
    }

    /// The source element that is packed for a position in a phase; it may lie outside the source.
    pub fn source_of(&self, phase: usize, position: usize) -> isize {
        (position * self.source_stride) as isize + self.phases[phase]
    }
}

/// Packs the taps of the last dimension separately if planes are so small that the numbers between two rows would fill vectors, and those of
/// the rows if the numbers between planes would. `are_images` says whether planes are images.
pub(super) fn without_gaps(axes: [Axis; 3], are_images: bool) -> [Axis; 3] {
    let [planes, mut rows, mut columns] = axes;
    let (count, height, width) = (planes.count(), rows.count(), columns.count());
    let (dense, with_gaps) = (height * width, height * (width + columns.spread.min(1)));
    let halves = |positions: usize| positions.div_ceil(LANES);
    let halves_dense =
        if count > 1 && dense <= PLANE_DENSE_MAX { halves(count * dense) } else { count * halves(dense) };
    let is_small = (are_images || height > 1) && columns.spread > 0 && with_gaps <= POSITIONS_DENSE_MAX;
    if is_small && halves_dense < count * halves(with_gaps - 1) {
        columns.pack_taps_apart();
    }
    if columns.spread == 0 && halves_dense < count * halves(dense) {
        rows.pack_taps_apart();
    }
    [planes, rows, columns]
}
