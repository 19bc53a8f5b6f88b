//! Products of matrices of any type.

use forebay_base::Kernel;
use forebay_base::kernel::{BinaryOp, ReduceOp};

use super::decomposition::{Composer, Part};
use crate::error::ModelError;
use crate::graph::TensorType;

/// op(a) op(b) of packed matrices in batches that broadcast, where op optionally transposes. For types that the matrix product kernel does
/// not support (float64, integers), all products of two elements are computed and then summed, which takes memory for m k n elements.
pub(super) fn product(
    c: &mut Composer,
    (a, transpose_a): (&Part, bool),
    (b, transpose_b): (&Part, bool),
    shape: &[u64],
) -> Result<Part, ModelError> {
    if a.ty.count() == 0 || b.ty.count() == 0 {
        // A sum without terms.
        return Ok(c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(a.ty.data_type, shape)));
    }
    let kernel = Kernel::product(transpose_a, transpose_b);
    if kernel.facts().types.include(a.ty.data_type) {
        return Ok(c.kernel(kernel, &[a, b], TensorType::new(a.ty.data_type, shape)));
    }
    let rows = |c: &mut Composer, x: &Part, is_turned: bool| {
        let rank = x.ty.shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if is_turned {
            order.swap(rank - 2, rank - 1);
        }
        c.transpose(x, &order)
    };
    let (a, b) = (rows(c, a, transpose_a)?, rows(c, b, !transpose_b)?);
    let (mut left, mut right) = (a.ty.shape.clone(), b.ty.shape.clone());
    left.insert(left.len() - 1, 1);
    right.insert(right.len() - 2, 1);
    let (a, b) = (c.reshape(&a, &left)?, c.reshape(&b, &right)?);
    let products = c.binary(BinaryOp::Multiply, &a, &b)?;
    let sums = c.reduce(ReduceOp::Sum, &[products.ty.shape.len() - 1], &products)?;
    c.reshape(&sums, shape)
}
