//! Panels (columns of a factor in the order in which tiles read them) and the products of rows with a panel.

use super::super::parallel::threads;
use super::super::thread_buffer::with_buffer;
use super::dots::{Engine, ROWS_MAX, Rows, STRIP, STRIPS_MAX, add_products};

/// The maximum number of terms of a panel: with the sums of [`TILE_ROWS`] rows, it stays in a core's second-level cache.
pub(super) const TERMS: usize = 2048;
/// The number of rows whose sums are kept if there are more terms than that.
const TILE_ROWS: usize = 512;
/// The maximum number of columns of a panel.
pub(super) const COLUMNS: usize = STRIP * STRIPS_MAX;

/// A row of ones, whose product with a panel is the sums of the columns.
static ONES: [u8; TERMS] = [1; TERMS];

/// Splits `count` columns into panels of about the same width. Returns the number of panels, and the number of columns of all but the last.
pub(super) fn panels(count: usize) -> (usize, usize) {
    let panels = count.div_ceil(COLUMNS).max(1);
    let width = count.div_ceil(panels).next_multiple_of(STRIP).max(STRIP);
    (count.div_ceil(width).max(1), width)
}

/// Returns the number of rows that one task multiplies with a panel if there are `tasks` panels: all of them, or fewer if there would be
/// too few tasks for the threads. Sums are exact, so this does not affect results.
pub(super) fn rows_of_task(rows: usize, tasks: usize) -> usize {
    let wanted = 2 * threads();
    let parts = if tasks >= wanted { 1 } else { wanted.div_ceil(tasks.max(1)) };
    rows.div_ceil(parts).max(8 * ROWS_MAX).next_multiple_of(ROWS_MAX)
}

/// The product of rows with a panel.
pub(super) struct PanelProduct {
    pub engine: Engine,
    pub rows: Rows,
    /// The number of terms of a sum.
    pub terms: usize,
    /// The number of columns of the panel, at most [`COLUMNS`].
    pub columns: usize,
    /// Whether the sums of the panel's columns are wanted.
    pub sums_columns: bool,
}

impl PanelProduct {
    /// Calls `finish(row, sums, sums of the columns)` for every row in order. `pack(term, count, panel, width)` writes some of the terms of
    /// the panel's columns in quads, with 0 for terms after the last.
    ///
    /// # Safety
    /// The rows must have the terms, and the processor must support the engine.
    pub unsafe fn run(
        &self,
        mut pack: impl FnMut(usize, usize, *mut u8, usize),
        mut finish: impl FnMut(usize, &mut [i32], &[i32]),
    ) {
        let width = self.columns.next_multiple_of(STRIP);
        let strips = width / STRIP;
        let blocks = self.terms.div_ceil(TERMS);
        let tile = if blocks > 1 { TILE_ROWS } else { ROWS_MAX };
        let panel_words = self.terms.min(TERMS).div_ceil(4) * width;
        with_buffer(panel_words + tile * width, |buffer| {
            let (panel, sums) = buffer.split_at_mut(panel_words);
            let panel = panel.as_mut_ptr().cast::<u8>();
            // SAFETY: elements of both types have 4 bytes, and all bit patterns are integers.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast::<i32>(), sums.len()) };
            let mut of_columns = [0; COLUMNS];
            for row in (0..self.rows.count).step_by(tile) {
                let count = tile.min(self.rows.count - row);
                sums[..count * width].fill(0);
                for block in 0..blocks {
                    let term = block * TERMS;
                    let terms = TERMS.min(self.terms - term);
                    if row == 0 || blocks > 1 {
                        pack(term, terms, panel, width);
                    }
                    // SAFETY: the caller's promises; panel and sums are as large as these rows and terms need.
                    unsafe {
                        if row == 0 && self.sums_columns {
                            let ones = Rows { first: ONES.as_ptr(), pitch: 0, count: 1, flip: 0 };
                            let quads = terms.div_ceil(4);
                            add_products(self.engine, ones, (panel, strips), quads, of_columns.as_mut_ptr());
                        }
                        let rows = self.rows.from(row, count, term);
                        self.add(rows, (panel, strips), terms, sums.as_mut_ptr());
                    }
                }
                for (i, sums) in sums[..count * width].chunks_exact_mut(width).enumerate() {
                    finish(row + i, &mut sums[..self.columns], &of_columns[..self.columns]);
                }
            }
        });
    }

    /// Adds products over any number of terms. The terms after the last whole quad are copied, so that nothing is read beyond the rows.
    ///
    /// # Safety
    /// As for [`add_products`].
    unsafe fn add(&self, rows: Rows, (panel, strips): (*const u8, usize), terms: usize, sums: *mut i32) {
        let width = strips * STRIP;
        let (quads, rest) = (terms / 4, terms % 4);
        // SAFETY: the caller's promises; of the last quad, only terms that exist are read.
        unsafe {
            add_products(self.engine, rows, (panel, strips), quads, sums);
            if rest == 0 {
                return;
            }
            for row in (0..rows.count).step_by(ROWS_MAX) {
                let count = ROWS_MAX.min(rows.count - row);
                let mut last = [[0u8; 4]; ROWS_MAX];
                for (i, last) in last[..count].iter_mut().enumerate() {
                    let from = rows.first.add((row + i) * rows.pitch + quads * 4);
                    std::ptr::copy_nonoverlapping(from, last.as_mut_ptr(), rest);
                }
                let own = Rows { first: last.as_ptr().cast(), pitch: 4, count, flip: rows.flip };
                add_products(self.engine, own, (panel.add(quads * width * 4), strips), 1, sums.add(row * width));
            }
        }
    }
}

/// Writes four lines as quads: the bytes of each column one after the other, XORed with `flip`.
///
/// # Safety
/// The lines must have `count` bytes, and `quads` must have room for four times as many.
pub(super) unsafe fn interleave(lines: [*const u8; 4], flip: u8, count: usize, quads: *mut u8) {
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(unused_mut))]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: every processor of this architecture has these instructions; the caller promises that the bytes exist.
        unsafe {
            let flips = _mm_set1_epi8(flip as i8);
            while done + 16 <= count {
                let [a, b, c, d] = lines.map(|line| _mm_xor_si128(_mm_loadu_si128(line.add(done).cast()), flips));
                let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
                let (ab_high, cd_high) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
                let to = quads.add(done * 4).cast::<__m128i>();
                _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
                _mm_storeu_si128(to.add(1), _mm_unpackhi_epi16(ab, cd));
                _mm_storeu_si128(to.add(2), _mm_unpacklo_epi16(ab_high, cd_high));
                _mm_storeu_si128(to.add(3), _mm_unpackhi_epi16(ab_high, cd_high));
                done += 16;
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::aarch64::*;
        // SAFETY: as above.
        unsafe {
            let flips = vdupq_n_u8(flip);
            while done + 16 <= count {
                let [a, b, c, d] = lines.map(|line| veorq_u8(vld1q_u8(line.add(done)), flips));
                vst4q_u8(quads.add(done * 4), uint8x16x4_t(a, b, c, d));
                done += 16;
            }
        }
    }
    for column in done..count {
        for (i, line) in lines.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *quads.add(column * 4 + i) = *line.add(column) ^ flip };
        }
    }
}

/// Returns the sum of signed or unsigned bytes.
pub(super) fn sum(bytes: &[u8], is_signed: bool) -> i32 {
    match is_signed {
        true => bytes.iter().fold(0i32, |sum, &byte| sum.wrapping_add(i32::from(byte as i8))),
        false => bytes.iter().fold(0i32, |sum, &byte| sum.wrapping_add(i32::from(byte))),
    }
}
