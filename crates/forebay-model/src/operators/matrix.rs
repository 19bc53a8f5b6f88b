//! Matrix products.

use forebay_base::Kernel;
use forebay_base::kernel::{Activation, BinaryOp, ProductPart};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::products;
use super::shapes::{broadcast_shapes, product};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Gemm", gemm), composed!("MatMul", matmul)];

/// alpha op(a) op(b) + beta c, where c broadcasts to the product.
fn gemm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = general_product(&mut c)?;
    c.finish(y)
}

/// The result of `Gemm` for a node's inputs and attributes.
pub(super) fn general_product(c: &mut Composer) -> Result<Part, ModelError> {
    let view = c.view;
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (transpose_a, transpose_b) = (view.int("transA", 0)? != 0, view.int("transB", 0)? != 0);
    let error = || view.error(format!("operands {} and {} are not matrices that can be multiplied", a.ty, b.ty));
    let (&[a0, a1], &[b0, b1]) = (a.ty.shape.as_slice(), b.ty.shape.as_slice()) else { return Err(error()) };
    let (m, k) = if transpose_a { (a1, a0) } else { (a0, a1) };
    let (k_of_b, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
    if k != k_of_b || a.ty.data_type != b.ty.data_type {
        return Err(error());
    }
    let output = TensorType::new(a.ty.data_type, &[m, n]);
    let (alpha, beta) = (view.float("alpha", 1.0)?, view.float("beta", 1.0)?);
    let mut summand = None;
    if view.has_input(2) {
        let part = c.input(2)?;
        if broadcast_shapes(&view, &part.ty.shape, &output.shape)? != output.shape {
            return Err(view.error(format!("the summand {} does not broadcast to {output}", part.ty)));
        }
        // As in BLAS, a factor of 0 leaves the summand out, whatever it contains.
        summand = Some(part).filter(|_| beta != 0.0);
    }
    let is_kernel = Kernel::product(transpose_a, transpose_b).facts().types.include(a.ty.data_type);
    if !is_kernel || k == 0 {
        let y = products::product(c, (&a, transpose_a), (&b, transpose_b), &output.shape)?;
        let mut y = if alpha == 1.0 { y } else { c.affine(&y, alpha, 0.0)? };
        if let Some(summand) = summand {
            let summand = if beta == 1.0 { summand } else { c.affine(&summand, beta, 0.0)? };
            let summand = c.expand(&summand, &output.shape)?;
            y = c.binary(BinaryOp::Add, &y, &summand)?;
        }
        return Ok(y);
    }
    let kernel = Kernel::MatMul {
        transpose_a,
        transpose_b,
        alpha,
        beta,
        activation: Activation::None,
        part: ProductPart::Whole,
    };
    let reads: Vec<&Part> = [&a, &b].into_iter().chain(&summand).collect();
    Ok(c.kernel(kernel, &reads, output))
}

/// NumPy's matmul: the last two dimensions are multiplied, the preceding ones are broadcast, and a vector is a row on the left and a column
/// on the right. If there is one matrix on the right, all rows on the left form a single product.
fn matmul(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let y = multiply(&mut c, &a, &b)?;
    c.finish(y)
}

/// The product of two parts, as MatMul defines it.
pub(super) fn multiply(c: &mut Composer, a: &Part, b: &Part) -> Result<Part, ModelError> {
    product_of(c, a, b, [false, false], 1.0)
}

/// alpha op(a) op(b) as in NumPy's matmul, where op optionally transposes the last two dimensions of operands that are not vectors.
pub(super) fn product_of(
    c: &mut Composer,
    a: &Part,
    b: &Part,
    transposed: [bool; 2],
    alpha: f32,
) -> Result<Part, ModelError> {
    let view = c.view;
    let error = || view.error(format!("operands {} and {} cannot be multiplied", a.ty, b.ty));
    let (mut left, mut right) = (a.ty.shape.clone(), b.ty.shape.clone());
    let (is_row, is_column) = (left.len() == 1, right.len() == 1);
    if is_row {
        left.insert(0, 1);
    }
    if is_column {
        right.push(1);
    }
    let transpose = [transposed[0] && !is_row, transposed[1] && !is_column];
    let (&[ref left_batch @ .., a0, a1], &[ref right_batch @ .., b0, b1]) = (left.as_slice(), right.as_slice()) else {
        return Err(error());
    };
    let (m, k) = if transpose[0] { (a1, a0) } else { (a0, a1) };
    let (k_of_b, n) = if transpose[1] { (b1, b0) } else { (b0, b1) };
    if k != k_of_b || a.ty.data_type != b.ty.data_type {
        return Err(error());
    }
    let batch = broadcast_shapes(&view, left_batch, right_batch)?;
    let mut result = batch.clone();
    result.extend((!is_row).then_some(m));
    result.extend((!is_column).then_some(n));
    let is_one_matrix = right_batch.iter().all(|&size| size == 1) && batch.len() == left_batch.len();
    let (left, right, shape) = if is_one_matrix && (!transpose[0] || left_batch.iter().all(|&size| size == 1)) {
        let rows = product(&view, &[product(&view, left_batch)?, m])?;
        let left = if transpose[0] { vec![k, m] } else { vec![rows, k] };
        (left, vec![b0, b1], vec![rows, n])
    } else {
        let padded = |own: &[u64], matrix: [u64; 2]| {
            let mut shape = vec![1; batch.len() - own.len()];
            shape.extend(own);
            shape.extend(matrix);
            shape
        };
        (padded(left_batch, [a0, a1]), padded(right_batch, [b0, b1]), padded(&batch, [m, n]))
    };
    let (a, b) = (c.reshape(a, &left)?, c.reshape(b, &right)?);
    if !Kernel::product(transpose[0], transpose[1]).facts().types.include(a.ty.data_type) || k == 0 {
        let y = products::product(c, (&a, transpose[0]), (&b, transpose[1]), &shape)?;
        let y = if alpha == 1.0 { y } else { c.affine(&y, alpha, 0.0)? };
        return c.reshape(&y, &result);
    }
    let kernel = Kernel::MatMul {
        transpose_a: transpose[0],
        transpose_b: transpose[1],
        alpha,
        beta: 0.0,
        activation: Activation::None,
        part: ProductPart::Whole,
    };
    let y = c.kernel(kernel, &[&a, &b], TensorType::new(a.ty.data_type, &shape));
    c.reshape(&y, &result)
}
