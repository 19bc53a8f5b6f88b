//! Products: a matrix product as several, along its batches, its rows, its columns, or the terms of its sums.
//!
//! Rows and batches are ranges of bytes of what they are taken from; columns of a packed matrix are not, but a launch may read
//! them where they lie. Which way leaves the least to touch depends on which of the three matrices is large.

use forebay_base::kernel::{Activation, ProductPart, PRODUCT_COLUMNS, PRODUCT_ROWS, PRODUCT_TERMS};
use forebay_base::{DataType, Kernel};
use forebay_model::program::{Operand, ProgramLaunch};

use super::rows::{aligned_rows, rows_of, slice_of, Axis, Cut, Rows};

/// The ways in which a product may be cut.
pub(super) fn cuts(launch: &ProgramLaunch) -> Vec<Cut> {
    let Kernel::MatMul { transpose_b, alpha, part: ProductPart::Whole, .. } = launch.kernel else { return Vec::new() };
    let (y, b) = (&launch.writes[0].desc, &launch.reads[1].desc);
    let (sizes, b_sizes) = (y.sizes(), b.sizes());
    let rank = sizes.len();
    if rank < 2 || b_sizes.len() < 2 || launch.reads[0].desc.sizes().len() < 2 {
        return Vec::new();
    }
    // The first batches, or the rows of a single matrix, are what lies together.
    let axis = sizes[..rank - 1].iter().position(|&size| size > 1).unwrap_or(rank - 2);
    let step = if axis == rank - 2 { PRODUCT_ROWS } else { aligned_batches(launch, axis) };
    let mut cuts = vec![Cut { axis: Axis::Of(axis), rows: sizes[axis], step }];
    // Sums in 16 bits are rounded, and what is rounded is not gone on from.
    if axis == rank - 2 && y.data_type() == DataType::Float32 {
        let [rows, columns] = [b_sizes[b_sizes.len() - 2], b_sizes[b_sizes.len() - 1]];
        let (columns, terms) = if transpose_b { (rows, columns) } else { (columns, rows) };
        cuts.push(Cut { axis: Axis::Columns, rows: columns, step: PRODUCT_COLUMNS });
        if alpha == 1.0 && launch.reads.len() == 2 {
            cuts.push(Cut { axis: Axis::Terms, rows: terms, step: PRODUCT_TERMS });
        }
    }
    cuts
}

/// Batches whose matrices begin at aligned bytes, in all operands that have some.
fn aligned_batches(launch: &ProgramLaunch, axis: usize) -> u64 {
    let rank = launch.writes[0].desc.sizes().len();
    let aligned = launch.reads.iter().chain(&launch.writes).filter_map(|operand| {
        let own = own_axis(operand, axis, rank)?;
        aligned_rows(&operand.desc, own)
    });
    aligned.max().unwrap_or(1)
}

/// The axis of an operand that is an axis of the result, unless it repeats along it.
fn own_axis(operand: &Operand, axis: usize, rank: usize) -> Option<usize> {
    let sizes = operand.desc.sizes();
    (axis + sizes.len()).checked_sub(rank).filter(|&own| sizes[own] > 1)
}

/// The part of a product with some batches, rows, columns or terms.
pub(super) fn part(launch: &ProgramLaunch, axis: Axis, rows: Rows) -> Option<ProgramLaunch> {
    let Kernel::MatMul { transpose_a, transpose_b, .. } = launch.kernel else { return None };
    let mut part = launch.clone();
    let rank = launch.writes[0].desc.sizes().len();
    // The rows and the columns of a factor: its last two axes, the other way round where it is transposed.
    let of = |factor: usize, of_rows: bool| {
        let factor_rank = launch.reads[factor].desc.sizes().len();
        let is_transposed = [transpose_a, transpose_b][factor];
        factor_rank - if of_rows == is_transposed { 1 } else { 2 }
    };
    match axis {
        Axis::Of(axis) if axis + 2 == rank => {
            part.writes[0] = rows_of(&part.writes[0], axis, rows)?;
            part.reads[0] = slice_of(&part.reads[0], of(0, true), rows)?;
            for summand in &mut part.reads[2..] {
                *summand = slice_of(summand, axis, rows)?;
            }
        }
        Axis::Of(axis) => {
            part.writes[0] = rows_of(&part.writes[0], axis, rows)?;
            for read in &mut part.reads {
                if let Some(own) = own_axis(read, axis, rank) {
                    *read = rows_of(read, own, rows)?;
                }
            }
        }
        Axis::Columns => {
            part.reads[1] = slice_of(&part.reads[1], of(1, false), rows)?;
            for summand in &mut part.reads[2..] {
                *summand = slice_of(summand, rank - 1, rows)?;
            }
            let own = ProductPart::Columns { first: rows.start };
            if own.reads_result() {
                part.reads.insert(2, part.writes[0].clone());
            }
            set_part(&mut part.kernel, own);
        }
        Axis::Terms => {
            let terms = launch.reads[0].desc.sizes()[of(0, false)];
            part.reads[0] = slice_of(&part.reads[0], of(0, false), rows)?;
            part.reads[1] = slice_of(&part.reads[1], of(1, true), rows)?;
            if rows.start > 0 {
                part.reads.push(part.writes[0].clone());
                set_part(&mut part.kernel, ProductPart::MoreTerms);
            }
            if let Kernel::MatMul { activation, .. } = &mut part.kernel {
                // Sums are complete at the end.
                if rows.end < terms {
                    *activation = Activation::None;
                }
            }
        }
    }
    Some(part)
}

fn set_part(kernel: &mut Kernel, own: ProductPart) {
    if let Kernel::MatMul { part, .. } = kernel {
        *part = own;
    }
}
