//! Determinants.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::sampling::place_type;
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Det", determinant)];

/// Largest number of rows. Each takes about twenty kernels.
const SIZE_MAX: u64 = 64;

/// The product of the pivots of elimination with partial pivoting, for all matrices of a batch at once. A column of zeros makes it 0.
fn determinant(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let &[ref batch @ .., size, columns] = x.ty.shape.as_slice() else {
        return Err(view.error(format!("the input {} is not a matrix", x.ty)));
    };
    if size != columns || size == 0 || size > SIZE_MAX || !x.ty.data_type.is_float() {
        return Err(view.error(format!("the input {} is not a square float matrix of 1 to {SIZE_MAX} rows", x.ty)));
    }
    let count = product(&view, batch)?;
    let data_type = place_type(x.ty.data_type);
    let x_wide = c.cast(&x, data_type);
    let mut matrix = c.reshape(&x_wide, &[count, size, size])?;
    let mut result: Option<Part> = None;
    for rows in (1..=size).rev() {
        let (factor, rest) = eliminated(&mut c, &matrix, rows)?;
        result = Some(match result {
            None => factor,
            Some(result) => c.binary(BinaryOp::Multiply, &result, &factor)?,
        });
        let Some(rest) = rest else { break };
        matrix = rest;
    }
    let y = result.ok_or_else(|| view.error("the matrix has no rows"))?;
    let y = c.reshape(&y, batch)?;
    let y = c.cast(&y, x.ty.data_type);
    c.finish(y)
}

/// The first pivot of matrices [count, rows, rows], with the sign of the row exchange, and what elimination leaves of the other rows.
fn eliminated(c: &mut Composer, matrix: &Part, rows: u64) -> Result<(Part, Option<Part>), ModelError> {
    let data_type = matrix.ty.data_type;
    if rows == 1 {
        return Ok((matrix.clone(), None));
    }
    let column = part(c, matrix, 0..rows, 0..1);
    let magnitude = c.unary(UnaryOp::Abs, &column)?;
    let largest = c.reduce(ReduceOp::Max, &[1], &magnitude)?;
    let is_largest = c.binary(BinaryOp::Equal, &magnitude, &largest)?;
    let numbers: Vec<i64> = (0..rows as i64).collect();
    let numbers = c.integers(DataType::Int32, &[rows, 1], &numbers)?;
    let none = c.integers(DataType::Int32, &[], &[rows as i64 - 1])?;
    let first = c.select(&is_largest, &numbers, &none)?;
    let first = c.reduce(ReduceOp::Min, &[1], &first)?;
    let is_pivot = c.binary(BinaryOp::Equal, &numbers, &first)?;
    let zero = c.floats(data_type, &[], &[0.0])?;
    let one = c.floats(data_type, &[], &[1.0])?;
    let pivot_row = c.select(&is_pivot, matrix, &zero)?;
    let pivot_row = c.reduce(ReduceOp::Sum, &[1], &pivot_row)?;
    let pivot = part(c, &pivot_row, 0..1, 0..1);
    // The first row takes the pivot row's place, which flips the sign unless it is the pivot row itself.
    let top = part(c, matrix, 0..1, 0..rows);
    let others = part(c, matrix, 1..rows, 0..rows);
    let is_exchanged = c.kernel(
        Kernel::Slice { starts: vec![0, 1, 0], steps: vec![1; 3] },
        &[&is_pivot],
        TensorType::new(DataType::Bool, &[is_pivot.ty.shape[0], rows - 1, 1]),
    );
    let others = c.select(&is_exchanged, &top, &others)?;
    let start = c.integers(DataType::Int32, &[], &[0])?;
    let is_kept = c.binary(BinaryOp::Equal, &first, &start)?;
    let turned = c.affine(&pivot, -1.0, 0.0)?;
    let factor = c.select(&is_kept, &pivot, &turned)?;
    let is_zero = c.binary(BinaryOp::Equal, &pivot, &zero)?;
    let divisor = c.select(&is_zero, &one, &pivot)?;
    let heads = part(c, &others, 0..rows - 1, 0..1);
    let factors = c.binary(BinaryOp::Divide, &heads, &divisor)?;
    let tails = part(c, &others, 0..rows - 1, 1..rows);
    let pivot_tail = part(c, &pivot_row, 0..1, 1..rows);
    let taken = c.binary(BinaryOp::Multiply, &factors, &pivot_tail)?;
    let rest = c.binary(BinaryOp::Subtract, &tails, &taken)?;
    Ok((factor, Some(rest)))
}

/// Some rows and columns of matrices.
fn part(c: &mut Composer, x: &Part, rows: std::ops::Range<u64>, columns: std::ops::Range<u64>) -> Part {
    let shape = [x.ty.shape[0], rows.end - rows.start, columns.end - columns.start];
    if x.ty.shape == shape {
        return x.clone();
    }
    let kernel = Kernel::Slice { starts: vec![0, rows.start, columns.start], steps: vec![1; 3] };
    c.kernel(kernel, &[x], TensorType::new(x.ty.data_type, &shape))
}
