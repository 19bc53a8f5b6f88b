//! Sums that wait in a thread's buffer until those of a block are complete: if they are rounded to 16 bits, stored past the caches, or lie
//! apart in the target.

use super::super::applied::apply_to;
use super::super::parallel::wide;
use super::super::spatial::Spatial;
use super::super::stored::Stored;
use super::super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use super::block_sums::Output;
use super::correlation::{Block, Correlation};
use super::slab::{Span, spans};

impl Correlation {
    /// Computes one block for some target channels in a thread's buffer, and stores it: 16-bit sums are rounded once.
    ///
    /// # Safety
    /// As [`Correlation::run`]; `target` is the first channel.
    pub unsafe fn buffered_block(&self, block: &Block, targets: Span, target: Stored<f32>) {
        let (first, [planes, rows, columns]) = self.covered(block.origin);
        let count = planes * rows * columns;
        let layout = Spatial { image: 0, channel: count, plane: rows * columns, row: columns, span: count };
        let is_seamless = self.target.row == columns;
        let (rows, columns) = if is_seamless { (1, rows * columns) } else { (rows, columns) };
        let store = |part: Span, sums: &[f32]| {
            for line in 0..part.len * planes * rows {
                let (channel, plane, row) = (line / rows / planes, line / rows % planes, line % rows);
                let start = (part.start + channel) * self.target.channel
                    + (first[0] + plane) * self.target.plane
                    + (first[1] + row) * self.target.row
                    + first[2];
                // SAFETY: the row lies in the target and belongs to no one else.
                unsafe { target.store(start, &sums[line * columns..][..columns]) };
            }
        };
        // SAFETY: the caller's promises.
        unsafe { self.sums_in_buffer(block, targets, (count, layout, first), store) };
    }

    /// The positions of a family in a block that starts here, as they wait: planes, and the length of the run of each, including the numbers
    /// between rows.
    pub fn runs(&self, origin: [usize; 3]) -> (usize, usize) {
        let len = |d: usize| self.slab.block[d].min(self.slab.axes[d].count() - origin[d]);
        (len(0), (len(1) - 1) * self.slab.row_pitch() + len(2))
    }

    /// Computes one block for some target channels in a thread's buffer, by family and channel, and stores it.
    ///
    /// # Safety
    /// As [`Correlation::run`]; `target` is the first channel.
    pub unsafe fn waiting_block(&self, block: &Block, targets: Span, target: Stored<f32>) {
        let (planes, run) = self.runs(block.origin);
        let count = planes * run;
        let layout = Spatial { image: 0, channel: count, plane: run, row: 0, span: count };
        let (first, [.., columns]) = self.covered(block.origin);
        let [of_planes, _, of_columns] = &self.slab.axes;
        let classes = of_columns.classes.len();
        let store = |part: Span, sums: &[f32]| {
            let mut buffer = Vec::new();
            // The families whose positions are in the same rows of the target.
            let of_rows = self.families.chunks(classes).zip(sums.chunks_exact(classes * part.len * count));
            for (families, sums) in of_rows {
                let Some((lens, at, layout)) = self.places(&families[0], block.origin, &self.target) else { continue };
                let is_seamless = layout.column_stride == 1 && [layout.pitch, layout.row_stride] == [lens[2]; 2];
                let (rows, columns) = if is_seamless { (1, lens[1] * lens[2]) } else { (lens[1], columns) };
                for line in 0..part.len * lens[0] * rows {
                    let (channel, plane, row) = (line / rows / lens[0], line / rows % lens[0], line % rows);
                    let start = (part.start + channel) * self.target.channel
                        + (at[0] + plane * of_planes.target_stride) * self.target.plane
                        + at[1] * self.target.row
                        + row * layout.row_stride
                        + first[2];
                    let sums = &sums[channel * count + plane * run + row * layout.pitch..];
                    // SAFETY: the row lies in the target and belongs to no one else.
                    unsafe {
                        match target.own().filter(|_| !target.bypasses_caches()) {
                            _ if classes == 1 => layout.store_run(&sums[..columns], target.at(start as isize)),
                            Some(base) => {
                                let line = std::slice::from_raw_parts_mut(base.add(start), columns);
                                interleave(line, classes, sums, part.len * count);
                            }
                            None => {
                                buffer.resize(columns, 0.0);
                                interleave(&mut buffer, classes, sums, part.len * count);
                                target.store(start, &buffer);
                            }
                        }
                    }
                }
            }
        };
        // SAFETY: the caller's promises.
        unsafe { self.sums_in_buffer(block, targets, (count * self.families.len(), layout, [0; 3]), store) };
    }

    /// Computes one block for some target channels in a thread's buffer, for as many channels at once as fit, and calls `store` with these
    /// channels, counted from the first one, and with their sums. A channel has `count` sums, laid out from the target element `first` on.
    ///
    /// # Safety
    /// As [`Correlation::run`].
    unsafe fn sums_in_buffer(
        &self,
        block: &Block,
        targets: Span,
        (count, layout, first): (usize, Spatial, [usize; 3]),
        store: impl Fn(Span, &[f32]),
    ) {
        let packed_count = self.packed_count();
        // There is room for at least one channel of a block, which has at most `BLOCK_MAX` elements.
        let at_once = (ELEMENTS_MAX.saturating_sub(packed_count) / count.max(1)).clamp(1, targets.len);
        with_buffer(packed_count + at_once * count, |buffer| {
            let (packed, sums) = buffer.split_at_mut(packed_count);
            for part in spans(targets.len, at_once) {
                let channels = Span { start: targets.start + part.start, len: part.len };
                // SAFETY: the caller's promises; there is room for the part's channels.
                unsafe {
                    let output = Output { base: sums.as_mut_ptr(), layout, first, bypasses_caches: false };
                    self.block(block, channels, &output, packed);
                    if let Some(function) = block.activation.function() {
                        apply_to(function, sums.as_mut_ptr(), [(1, 0); 3], part.len * count);
                    }
                }
                store(part, sums);
            }
        });
    }
}

/// Fills a row of which each class has every `classes`-th element. The elements of a class are adjacent, `distance` after those of the class
/// before it.
fn interleave(line: &mut [f32], classes: usize, elements: &[f32], distance: usize) {
    if classes != 2 {
        for (class, elements) in elements.chunks(distance).enumerate().take(classes.min(line.len())) {
            line[class..].iter_mut().step_by(classes).zip(elements).for_each(|(to, &from)| *to = from);
        }
        return;
    }
    let (even, odd) = elements.split_at(distance);
    wide(
        #[inline(always)]
        || {
            let (pairs, last) = line.as_chunks_mut::<2>();
            let count = pairs.len();
            pairs.iter_mut().zip(even.iter().zip(odd)).for_each(|(pair, (&even, &odd))| *pair = [even, odd]);
            last.iter_mut().zip(&even[count..]).for_each(|(to, &from)| *to = from);
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_interleaved_from_their_classes() {
        for classes in 1..5 {
            for len in 0..40 {
                let elements: Vec<f32> = (0..classes * 50).map(|number| number as f32).collect();
                let mut line = vec![-1.0; len];
                interleave(&mut line, classes, &elements, 50);
                for (at, &found) in line.iter().enumerate() {
                    assert_eq!(found, (at % classes * 50 + at / classes) as f32, "{classes} classes, {len} elements");
                }
            }
        }
    }
}
