//! The sums of a weight gradient's block of positions, in registers: see [`super::window_gradient`].

use std::mem::MaybeUninit;

use super::super::simd::{Vector, WIDTH_MAX};
use super::microkernel::CHANNELS_MAX;
use super::quads::{self, COMPONENTS, UNITS_MAX};
use super::slab::{even, spans};

/// Vectors that are summed together.
pub(super) const VECTORS: usize = 3;
/// The most positions of a block.
pub(super) const POSITIONS: usize = 256;
/// The most levels of sums that wait for those of other images.
const LEVELS: usize = POSITIONS.ilog2() as usize + 1;

/// One vector of sums.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// Where the first position of a block looks in the packed elements, counted from the position's own elements.
    pub seen: usize,
    /// The place of these sums among those of an output.
    pub place: usize,
    /// Whether the vector's second half also holds sums.
    pub is_whole: bool,
}

/// The sums of a tile: by output, tap and channel of x.
#[derive(Clone, Copy)]
pub(super) struct SumsOfTile {
    pub first: *mut f32,
    /// Elements from output to output, and from tap to tap.
    pub of_output: usize,
    pub of_tap: usize,
}

/// A block of positions, of one image or of each of several.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// For each image, how many of the waiting sums are added to its own.
    pub merges: &'a [u32],
    /// Elements from what a position sees to what the same position of the next image sees.
    pub image_stride: usize,
    /// The gradients of the first channel, row after row, and how far apart those of channels and of images are.
    pub gradients: *const f32,
    pub of_channel: usize,
    pub of_image: usize,
    /// Whether sums are added to those that are there, or replace them.
    pub adds: bool,
    pub rows: usize,
    pub columns: usize,
    pub seen: *const f32,
    /// Elements from what one position sees to what the next one sees, and from row to row.
    pub step: usize,
    pub row_step: usize,
    /// Elements of a vector that is not full.
    pub half: usize,
}

/// Adds a block's sums to those of a tile. If it is summed in components, these are written first: there must be room for those of
/// [`CHANNELS_MAX`] outputs.
///
/// # Safety
/// All elements that the positions see must be packed, and there must be enough sums. The CPU must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn sum_block<V: Vector>(
    run: &Run,
    outputs: usize,
    vectors: &[Sums],
    tile: SumsOfTile,
    components: Option<*mut f32>,
) {
    let of_component = vectors.len() * V::WIDTH;
    let in_place = |(number, sums): (usize, &Sums)| Sums { place: number * V::WIDTH, ..*sums };
    let own: Vec<Sums> = components.map_or_else(Vec::new, |_| vectors.iter().enumerate().map(in_place).collect());
    let (count, at_once) = if components.is_some() { (COMPONENTS, CHANNELS_MAX) } else { (1, outputs) };
    for outputs in spans(outputs, at_once) {
        // SAFETY: the caller's promises.
        unsafe {
            for component in 0..count {
                let part = Run {
                    gradients: run.gradients.add(outputs.start * run.of_channel + component * UNITS_MAX),
                    seen: run.seen.add(component * V::WIDTH),
                    ..*run
                };
                let (vectors, of_output, sums) = match components {
                    Some(sums) => (&own[..], COMPONENTS * of_component, sums.add(component * of_component)),
                    None => (vectors, tile.of_output, tile.first),
                };
                sum_outputs::<V>(&part, outputs.len, vectors, (of_output, sums));
            }
            let Some(components) = components else { continue };
            V::outline(
                #[inline(always)]
                || {
                    for output in 0..outputs.len {
                        for (sums, own) in vectors.iter().zip(&own) {
                            let own = components.add(output * COMPONENTS * of_component + own.place);
                            let target = tile.first.add((outputs.start + output) * tile.of_output + sums.place);
                            quads::add_sums::<V>(own, of_component, target, tile.of_tap);
                        }
                    }
                },
            );
        }
    }
}

/// Adds the sums of some outputs to those that are there, or writes them. `of_output` is the distance between outputs in elements.
///
/// # Safety
/// As [`sum_block`].
#[inline(always)]
unsafe fn sum_outputs<V: Vector>(run: &Run, outputs: usize, vectors: &[Sums], (of_output, sums): (usize, *mut f32)) {
    for vectors in vectors.chunks(even(vectors.len(), VECTORS)) {
        let mut output = 0;
        while output < outputs {
            // SAFETY: the caller's promises.
            unsafe {
                let of = (output, of_output);
                output += match (outputs - output, vectors.len()) {
                    (8.., 3) if V::REGISTERS >= 32 => sum_some::<V, 8, 3>(run, vectors, of, sums),
                    (8.., 2) if V::REGISTERS >= 32 => sum_some::<V, 8, 2>(run, vectors, of, sums),
                    (8.., 1) => sum_some::<V, 8, 1>(run, vectors, of, sums),
                    (4.., 3) => sum_some::<V, 4, 3>(run, vectors, of, sums),
                    (4.., 2) => sum_some::<V, 4, 2>(run, vectors, of, sums),
                    (4.., 1) => sum_some::<V, 4, 1>(run, vectors, of, sums),
                    (2.., 3) => sum_some::<V, 2, 3>(run, vectors, of, sums),
                    (2.., 2) => sum_some::<V, 2, 2>(run, vectors, of, sums),
                    (2.., 1) => sum_some::<V, 2, 1>(run, vectors, of, sums),
                    (_, 3) => sum_some::<V, 1, 3>(run, vectors, of, sums),
                    (_, 2) => sum_some::<V, 1, 2>(run, vectors, of, sums),
                    (_, _) => sum_some::<V, 1, 1>(run, vectors, of, sums),
                };
            }
        }
    }
}

/// Returns `N` vectors of sums for each of `R` outputs, over the positions of an image.
///
/// # Safety
/// As [`sum_block`].
#[inline(always)]
unsafe fn sums_of_image<V: Vector, const R: usize, const N: usize>(
    run: &Run,
    vectors: &[Sums],
    output: usize,
    image: usize,
) -> [[V; N]; R] {
    // SAFETY: the caller's promises.
    unsafe {
        let mut own = [[V::splat(0.0); N]; R];
        let mut gradient = run.gradients.add(output * run.of_channel + image * run.of_image);
        for row in 0..run.rows {
            let first = run.seen.add(image * run.image_stride + row * run.row_step);
            let mut seen: [*const f32; N] = std::array::from_fn(|n| first.add(vectors[n].seen));
            for _ in 0..run.columns {
                let of_taps: [V; N] = std::array::from_fn(|n| V::load(seen[n]));
                for (r, own) in own.iter_mut().enumerate() {
                    *own = V::add_multiples(*own, gradient.wrapping_add(r * run.of_channel), of_taps);
                }
                for seen in &mut seen {
                    *seen = seen.wrapping_add(run.step);
                }
                gradient = gradient.wrapping_add(1);
            }
        }
        own
    }
}

/// Adds `N` vectors of sums for each of `R` outputs, and returns `R`.
///
/// # Safety
/// As [`sum_block`].
#[inline(always)]
unsafe fn sum_some<V: Vector, const R: usize, const N: usize>(
    run: &Run,
    vectors: &[Sums],
    (output, of_output): (usize, usize),
    sums: *mut f32,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || {
                let mut waiting = [const { MaybeUninit::<[[V; N]; R]>::uninit() }; LEVELS];
                let (mut level, mut image) = (0, 0);
                let own = loop {
                    let mut own = sums_of_image::<V, R, N>(run, vectors, output, image);
                    for _ in 0..run.merges[image] {
                        level -= 1;
                        let earlier: [[V; N]; R] = waiting[level].assume_init();
                        own = std::array::from_fn(|r| {
                            std::array::from_fn(|n| earlier[r][n].add_product(own[r][n], V::splat(1.0)))
                        });
                    }
                    image += 1;
                    if image == run.merges.len() {
                        break own;
                    }
                    waiting[level].write(own);
                    level += 1;
                };
                for (r, own) in own.into_iter().enumerate() {
                    for (n, sum) in own.into_iter().enumerate() {
                        let at = sums.add((output + r) * of_output + vectors[n].place);
                        let added = |earlier: V| if run.adds { earlier.add_product(sum, V::splat(1.0)) } else { sum };
                        if vectors[n].is_whole {
                            added(V::load(at)).store(at);
                            continue;
                        }
                        // Through a separate array, so that nothing after the sums is touched.
                        let mut line = [0.0f32; WIDTH_MAX];
                        std::ptr::copy_nonoverlapping(at, line.as_mut_ptr(), run.half);
                        added(V::load(line.as_ptr())).store(line.as_mut_ptr());
                        std::ptr::copy_nonoverlapping(line.as_ptr(), at, run.half);
                    }
                }
            },
        );
    }
    R
}
