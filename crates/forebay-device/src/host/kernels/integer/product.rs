//! Products of matrices of 8-bit integers.

use forebay_base::{DataType, TensorDesc};

use super::super::View;
use super::super::parallel::{Pointer, broadcast_strides, for_chunks, for_each, wide};
use super::dots::{Engine, Rows};
use super::finish::{Along, Quantized, limits, take_zeros};
use super::panels::{COLUMNS, PanelProduct, interleave, panels, rows_of_task, sum};
use super::{QUANTIZED_READS, byte_at};

/// The number of rows whose sums one task computes.
const SUMMED_ROWS: usize = 64;

/// The sizes of a product.
#[derive(Clone, Debug)]
struct Sizes {
    batches: Vec<usize>,
    m: usize,
    n: usize,
    k: usize,
}

impl Sizes {
    fn of(transpose_b: bool, reads: &[TensorDesc], y: &TensorDesc) -> Result<Sizes, String> {
        let sizes = |desc: &TensorDesc| desc.sizes().iter().map(|&size| size as usize).collect::<Vec<_>>();
        let misfit = || format!("the sizes of {}, {} and {y} do not match", reads[0], reads[1]);
        let (a, b, of_y) = (sizes(&reads[0]), sizes(&reads[1]), sizes(y));
        let ([.., m, k], [.., b0, b1], [batches @ .., rows, n]) = (&a[..], &b[..], &of_y[..]) else {
            return Err(misfit());
        };
        let of_b = if transpose_b { (*b1, *b0) } else { (*b0, *b1) };
        if (*k, *n) != of_b || rows != m {
            return Err(misfit());
        }
        Ok(Sizes { batches: batches.to_vec(), m: *m, n: *n, k: *k })
    }

    /// Returns the batch sizes followed by two more sizes.
    fn with(&self, rows: usize, columns: usize) -> Vec<usize> {
        [&self.batches[..], &[rows, columns]].concat()
    }

    fn batch_count(&self) -> usize {
        self.batches.iter().product()
    }
}

/// An operand that broadcasts to matrices.
struct Matrices<T> {
    base: Pointer<T>,
    /// The stride of each batch dimension.
    outer: Vec<isize>,
    row: isize,
    column: isize,
}

impl<T: Copy> Matrices<T> {
    fn of(view: &View, sizes: &[usize]) -> Result<Matrices<T>, String> {
        let mut strides = broadcast_strides(view, sizes)?;
        let (column, row) = (strides.pop().unwrap_or(0), strides.pop().unwrap_or(0));
        // With a single column, the distance to the next is not needed.
        let column = if sizes.last() == Some(&1) { 0 } else { column };
        if !matches!(column, 0 | 1) {
            return Err(format!("the elements of a row of {} are not contiguous", view.desc));
        }
        Ok(Matrices { base: Pointer::of(view), outer: strides, row, column })
    }

    /// Returns the offset at which a batch begins.
    fn offset(&self, batches: &[usize], mut batch: usize) -> isize {
        let mut offset = 0;
        for (&size, stride) in batches.iter().zip(&self.outer).rev() {
            offset += (batch % size) as isize * stride;
            batch /= size;
        }
        offset
    }

    /// Returns values of a row, from a column on.
    ///
    /// # Safety
    /// They must exist, and no one may write them meanwhile.
    unsafe fn values<'a>(&self, offset: isize, row: usize, column: usize, count: usize) -> Along<'a, T> {
        let first = offset + row as isize * self.row + column as isize * self.column;
        // SAFETY: the caller's promises.
        unsafe {
            match self.column {
                0 => Along::One(*self.base.at(first)),
                _ => Along::Each(std::slice::from_raw_parts(self.base.at(first), count)),
            }
        }
    }
}

/// Returns the number of bytes of the workspace: for the sums of the rows of every batch.
pub(super) fn workspace_bytes(transpose_b: bool, reads: &[TensorDesc], y: &TensorDesc) -> Result<u64, String> {
    let sizes = Sizes::of(transpose_b, reads, y)?;
    Ok((sizes.batch_count() * sizes.m * size_of::<i32>()) as u64)
}

/// Runs the kernel, the types of whose operands have been checked.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(transpose_b: bool, reads: &[View], y: &View, scratch: View) -> Result<(), String> {
    let descs: Vec<TensorDesc> = reads.iter().map(|view| view.desc.clone()).collect();
    let sizes = Sizes::of(transpose_b, &descs, y.desc)?;
    let (m, n, k) = (sizes.m, sizes.n, sizes.k);
    let a = Matrices::<u8>::of(&reads[0], &sizes.with(m, k))?;
    let b = Matrices::<u8>::of(&reads[1], &if transpose_b { sizes.with(n, k) } else { sizes.with(k, n) })?;
    let a_zero = Matrices::<u8>::of(&reads[2], &sizes.with(m, 1))?;
    let b_zero = Matrices::<u8>::of(&reads[3], &sizes.with(1, n))?;
    let target = Matrices::<u8>::of(y, &sizes.with(m, n))?;
    let whole = sizes.with(m, n);
    let quantized = match reads.len() {
        QUANTIZED_READS => {
            Some((Matrices::<i32>::of(&reads[4], &whole)?, Matrices::<f32>::of(&reads[5], &whole)?, reads[6]))
        }
        _ => None,
    };
    let a_signed = descs[0].data_type() == DataType::Int8;
    let (b_type, flip) = (descs[1].data_type(), if descs[1].data_type() == DataType::Int8 { 0x80u8 } else { 0 });
    // Rows are treated as signed numbers and columns as unsigned ones, by subtracting or adding 128.
    let (a_shift, b_shift) = (if a_signed { 0 } else { 128 }, i32::from(flip));
    let row_sums = Pointer::<i32>::of(&scratch);
    let batches = sizes.batch_count();
    for_chunks(batches * m, SUMMED_ROWS, |range| {
        wide(
            #[inline(always)]
            || {
                for row in range {
                    let first = a.offset(&sizes.batches, row / m) + (row % m) as isize * a.row;
                    // SAFETY: the row exists; every task writes different sums.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(a.base.at(first), k);
                        *row_sums.at(row as isize) =
                            sum(bytes, a_signed).wrapping_sub((k as i32).wrapping_mul(a_shift));
                    }
                }
            },
        );
    });
    let engine = Engine::best();
    let (panel_count, width) = panels(n);
    let rows_at_once = rows_of_task(m, panel_count * batches);
    let parts = m.div_ceil(rows_at_once);
    for_each(batches * panel_count * parts, |task| {
        let (batch, place) = (task / (panel_count * parts), task % (panel_count * parts));
        let (column, row) = (place / parts * width, place % parts * rows_at_once);
        let (columns, rows) = (width.min(n - column), rows_at_once.min(m - row));
        let b_first = b.offset(&sizes.batches, batch);
        let zero_first = a_zero.offset(&sizes.batches, batch);
        let y_first = target.offset(&sizes.batches, batch);
        // SAFETY: all places lie in the operands; every task writes a different part of y.
        unsafe {
            let a_first = a.base.at(a.offset(&sizes.batches, batch) + row as isize * a.row);
            let flips = if a_signed { 0 } else { 0x8080_8080 };
            let mut zeros = [0; COLUMNS];
            let of_b = b_zero.values(b_zero.offset(&sizes.batches, batch), 0, column, columns);
            let shifted = |zero: u8| byte_at(&zero, b_type) + b_shift;
            let zeros = match of_b {
                Along::One(zero) => Along::One(shifted(zero)),
                Along::Each(all) => {
                    zeros.iter_mut().zip(all).for_each(|(own, &zero)| *own = shifted(zero));
                    Along::Each(&zeros[..columns])
                }
            };
            let row_zero = |row: usize| {
                let zero = a_zero.base.at(zero_first + row as isize * a_zero.row);
                byte_at(zero, descs[0].data_type()) - a_shift
            };
            let product = PanelProduct {
                engine,
                rows: Rows { first: a_first, pitch: a.row as usize, count: rows, flip: flips },
                terms: k,
                columns,
                sums_columns: (row..row + rows).any(|row| row_zero(row) != 0),
            };
            let pack = |term: usize, terms: usize, panel: *mut u8, width: usize| {
                let source = Lines { base: b.base, first: b_first, pitch: b.row, flip };
                match transpose_b {
                    true => source.pack_rows(column, columns, (term, terms), panel, width),
                    false => source.pack_columns(column, columns, (term, terms), panel, width),
                }
            };
            let epilogue = quantized.as_ref().map(|(bias, scale, zero)| {
                let firsts = [bias.offset(&sizes.batches, batch), scale.offset(&sizes.batches, batch)];
                (bias, scale, firsts, byte_at(zero.pointer, y.desc.data_type()) as f32)
            });
            product.run(pack, |own, sums, of_columns| {
                let own = row + own;
                let (zero, sum) = (row_zero(own), *row_sums.at((batch * m + own) as isize));
                let rest = sum.wrapping_sub((k as i32).wrapping_mul(zero));
                let place = y_first + own as isize * target.row + column as isize;
                wide(
                    #[inline(always)]
                    || {
                        take_zeros(sums, zero, of_columns, zeros, rest);
                        match &epilogue {
                            None => {
                                let out: Pointer<i32> = Pointer::of(y);
                                std::slice::from_raw_parts_mut(out.at(place), columns).copy_from_slice(sums);
                            }
                            Some((bias, scale, [bias_first, scale_first], zero)) => {
                                let quantized = Quantized {
                                    bias: bias.values(*bias_first, own, column, columns),
                                    scale: scale.values(*scale_first, own, column, columns),
                                    zero: *zero,
                                    limits: limits(y.desc.data_type()),
                                };
                                let out = std::slice::from_raw_parts_mut(target.base.at(place), columns);
                                quantized.write(sums, out);
                            }
                        }
                    },
                );
            });
        }
    });
    Ok(())
}

/// A factor whose columns are packed.
struct Lines {
    base: Pointer<u8>,
    first: isize,
    /// The distance from one line of the factor, as it is given, to the next.
    pitch: isize,
    flip: u8,
}

impl Lines {
    /// Packs columns of a factor [k, n].
    ///
    /// # Safety
    /// Terms and columns must exist, and the panel must have room for them.
    unsafe fn pack_columns(
        &self,
        column: usize,
        columns: usize,
        (term, terms): (usize, usize),
        panel: *mut u8,
        width: usize,
    ) {
        // Missing terms become 0.
        let nothing = [self.flip; COLUMNS];
        for quad in 0..terms.div_ceil(4) {
            // SAFETY: the caller's promises.
            unsafe {
                let lines = std::array::from_fn(|i| match quad * 4 + i < terms {
                    true => {
                        let line = (term + quad * 4 + i) as isize * self.pitch;
                        self.base.at(self.first + line + column as isize).cast_const()
                    }
                    false => nothing.as_ptr(),
                });
                interleave(lines, self.flip, columns, panel.add(quad * width * 4));
            }
        }
    }

    /// Packs rows of a factor [n, k].
    ///
    /// # Safety
    /// As for [`Lines::pack_columns`].
    unsafe fn pack_rows(
        &self,
        column: usize,
        columns: usize,
        (term, terms): (usize, usize),
        panel: *mut u8,
        width: usize,
    ) {
        let flips = u32::from_ne_bytes([self.flip; 4]);
        for own in 0..columns {
            // SAFETY: the caller's promises; of the last quad, only terms that exist are read.
            unsafe {
                let line = self.base.at(self.first + (column + own) as isize * self.pitch + term as isize);
                let to = panel.cast::<u32>().add(own);
                for quad in 0..terms / 4 {
                    *to.add(quad * width) = line.cast::<u32>().add(quad).read_unaligned() ^ flips;
                }
                if terms % 4 != 0 {
                    let mut last = [self.flip; 4];
                    std::ptr::copy_nonoverlapping(line.add(terms / 4 * 4), last.as_mut_ptr(), terms % 4);
                    *to.add(terms / 4 * width) = u32::from_ne_bytes(last) ^ flips;
                }
            }
        }
    }
}
