//! Families: which taps of a window a correlation's target elements see, and where they look for them.

use super::Geometry;
use super::axis::Class;
use super::slab::Slab;

/// The class of target elements with the same remainder in each dimension, and the taps that they see.
pub(super) struct Family {
    /// The first element and the number of elements, in each dimension.
    pub first: [usize; 3],
    pub counts: [usize; 3],
    /// The taps' numbers in the kernel.
    pub taps: Vec<usize>,
    /// Where position 0 of a block looks in the packed channels, by source channel of a chunk and by tap.
    pub offsets: Vec<u32>,
    /// Where the family's weights begin in a group's, in elements.
    pub weights: usize,
}

/// The families of a correlation, and where their positions look in the packed channels of a chunk.
pub(super) fn families(
    geometry: &Geometry,
    slab: &Slab,
    source_chunk: usize,
    (sources, targets): (usize, usize),
) -> Vec<Family> {
    let [planes, rows, columns] = &slab.axes;
    let mut families = Vec::new();
    let mut weights = 0;
    for plane in &planes.classes {
        for row in &rows.classes {
            for column in &columns.classes {
                let classes = [plane, row, column];
                let (taps, places) = taps(geometry, slab, classes);
                let offsets = (0..source_chunk).flat_map(|channel| {
                    let start = channel * slab.channel_stride;
                    places.iter().map(move |place| (start + place) as u32)
                });
                let offsets = offsets.collect();
                let taps_count = taps.len();
                families.push(Family {
                    first: classes.map(|class| class.first),
                    counts: classes.map(|class| class.count),
                    taps,
                    offsets,
                    weights,
                });
                weights += taps_count * sources * targets;
            }
        }
    }
    families
}

/// The taps that three classes see: their numbers in the kernel, and where position 0 of a block looks through them.
pub(super) fn taps(geometry: &Geometry, slab: &Slab, [planes, rows, columns]: [&Class; 3]) -> (Vec<usize>, Vec<usize>) {
    let [_, height, width] = geometry.kernel;
    let mut taps = (Vec::new(), Vec::new());
    for plane in &planes.taps {
        for row in &rows.taps {
            for column in &columns.taps {
                taps.0.push((plane.number * height + row.number) * width + column.number);
                let phase = [plane.phase, row.phase, column.phase];
                taps.1.push(slab.offset(phase, [plane.shift, row.shift, column.shift]));
            }
        }
    }
    taps
}

/// Refuses a window with more taps than can be listed.
///
/// # Errors
/// Returns an error with the number of taps and how many are possible.
pub(super) fn check_taps(geometry: &Geometry, taps_max: usize) -> Result<(), String> {
    let taps = geometry.taps();
    if taps > taps_max {
        return Err(format!(
            "a window of {taps} elements is too large for the host, which supports at most {taps_max}"
        ));
    }
    Ok(())
}
