//! Matrix products.

use forebay_base::kernel::{Activation, BinaryOp, ProductPart};
use forebay_base::Kernel;

use super::decomposition::{composed, Composer, Decomposition, Part};
use super::products;
use super::shapes::{broadcast_shapes, product};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows.
pub const ROWS: &[Operator] = &[composed!("Gemm", gemm), composed!("MatMul", matmul)];

/// alpha op(a) op(b) + beta c, where c broadcasts to the product.
fn gemm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let (transpose_a, transpose_b) = (view.int("transA", 0)? != 0, view.int("transB", 0)? != 0);
    let error = || view.error(format!("operands {} and {} are no matrices that can be multiplied", a.ty, b.ty));
    let (&[a0, a1], &[b0, b1]) = (a.ty.shape.as_slice(), b.ty.shape.as_slice()) else { return Err(error()) };
    let (m, k) = if transpose_a { (a1, a0) } else { (a0, a1) };
    let (k_of_b, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
    if k != k_of_b || a.ty.data_type != b.ty.data_type {
        return Err(error());
    }
    let output = TensorType::new(a.ty.data_type, &[m, n]);
    let (alpha, beta) = (view.float("alpha", 1.0)?, view.float("beta", 1.0)?);
    let is_kernel = Kernel::product(transpose_a, transpose_b).facts().types.include(a.ty.data_type);
    if !is_kernel || k == 0 {
        let y = products::product(&mut c, (&a, transpose_a), (&b, transpose_b), &output.shape)?;
        let mut y = if alpha == 1.0 { y } else { c.affine(&y, alpha, 0.0)? };
        if view.has_input(2) {
            let summand = c.input(2)?;
            let summand = if beta == 1.0 { summand } else { c.affine(&summand, beta, 0.0)? };
            let summand = c.expand(&summand, &output.shape)?;
            y = c.binary(BinaryOp::Add, &y, &summand)?;
        }
        return c.finish(y);
    }
    let kernel = Kernel::MatMul {
        transpose_a,
        transpose_b,
        alpha,
        beta,
        activation: Activation::None,
        part: ProductPart::Whole,
    };
    if !view.has_input(2) {
        let y = c.kernel(kernel, &[&a, &b], output);
        return c.finish(y);
    }
    let summand = c.input(2)?;
    if broadcast_shapes(&view, &summand.ty.shape, &output.shape)? != output.shape {
        return Err(view.error(format!("the summand {} does not broadcast to {output}", summand.ty)));
    }
    let y = c.kernel(kernel, &[&a, &b, &summand], output);
    c.finish(y)
}

/// NumPy's matmul: the last two dimensions multiply, those before broadcast, a vector is a row on the left and a column on
/// the right. One matrix on the right makes a single product of all rows on the left.
fn matmul(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let y = multiply(&mut c, &a, &b)?;
    c.finish(y)
}

/// The product of two parts, as MatMul defines it.
pub(super) fn multiply(c: &mut Composer, a: &Part, b: &Part) -> Result<Part, ModelError> {
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
    let (&[ref left_batch @ .., m, k], &[ref right_batch @ .., k_of_b, n]) = (left.as_slice(), right.as_slice()) else {
        return Err(error());
    };
    if k != k_of_b || a.ty.data_type != b.ty.data_type {
        return Err(error());
    }
    let batch = broadcast_shapes(&view, left_batch, right_batch)?;
    let mut result = batch.clone();
    result.extend((!is_row).then_some(m));
    result.extend((!is_column).then_some(n));
    let (left, right, shape) = if right_batch.iter().all(|&size| size == 1) && batch.len() == left_batch.len() {
        let rows = product(&view, &[product(&view, left_batch)?, m])?;
        (vec![rows, k], vec![k, n], vec![rows, n])
    } else {
        let padded = |own: &[u64], matrix: [u64; 2]| {
            let mut shape = vec![1; batch.len() - own.len()];
            shape.extend(own);
            shape.extend(matrix);
            shape
        };
        (padded(left_batch, [m, k]), padded(right_batch, [k, n]), padded(&batch, [m, n]))
    };
    let (a, b) = (c.reshape(a, &left)?, c.reshape(b, &right)?);
    let y = products::product(c, (&a, false), (&b, false), &shape)?;
    c.reshape(&y, &result)
}
