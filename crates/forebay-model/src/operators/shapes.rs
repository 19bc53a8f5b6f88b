//! Arithmetic on shapes that several families share. It is all checked, because sizes come from files.

use crate::error::ModelError;
use crate::operator::NodeView;

/// The shape that two shapes broadcast to, by NumPy's rules.
pub(crate) fn broadcast_shapes(view: &NodeView, a: &[u64], b: &[u64]) -> Result<Vec<u64>, ModelError> {
    let rank = a.len().max(b.len());
    let size = |shape: &[u64], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (a, b) if a == b || b == 1 => Ok(a),
            (1, b) => Ok(b),
            _ => Err(view.error(format!("shapes {a:?} and {b:?} do not broadcast"))),
        })
        .collect()
}

/// The number of elements of a tensor with these sizes.
pub(crate) fn product(view: &NodeView, sizes: &[u64]) -> Result<u64, ModelError> {
    let product = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    product.ok_or_else(|| view.error(format!("a tensor with the sizes {sizes:?} has more than 2^64 elements")))
}

/// Largest number of constant numbers that a node creates for one of its sizes.
const CONSTANTS_MAX: u64 = 1 << 26;

/// The number of elements of a constant with these sizes, for which memory should have room. This is to be checked before the constant is
/// allocated: tensors without elements can have any size along their other axes.
pub(crate) fn require_few(view: &NodeView, sizes: &[u64]) -> Result<usize, ModelError> {
    match product(view, sizes)? {
        count @ ..=CONSTANTS_MAX => Ok(count as usize),
        count => Err(view.error(format!("sizes {sizes:?} need {count} constant numbers, more than {CONSTANTS_MAX}"))),
    }
}

/// Row-major strides in elements. Wraps if the number of elements does not fit in 64 bits; such tensors are never created.
pub(crate) fn packed_strides(sizes: &[u64]) -> Vec<u64> {
    forebay_base::tensor::packed_strides(sizes)
}

/// A size from an integer of the model.
pub(crate) fn size(view: &NodeView, what: &str, value: i64) -> Result<u64, ModelError> {
    u64::try_from(value).map_err(|_| view.error(format!("{what} must not be negative, but is {value}")))
}

/// Axes from the model in ascending order, counted from the end if negative; a repeated axis is an error.
pub(crate) fn axes(view: &NodeView, axes: &[i64], rank: usize) -> Result<Vec<usize>, ModelError> {
    let mut resolved = axes.iter().map(|&axis| view.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    resolved.sort_unstable();
    if resolved.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(view.error(format!("axes {axes:?} of {rank} dimensions contain the same axis twice")));
    }
    Ok(resolved)
}

/// A list of integers from an attribute, as in older versions of operators, or from a constant input, as in newer ones.
pub(crate) fn attribute_or_input(view: &NodeView, name: &str, i: usize) -> Result<Option<Vec<i64>>, ModelError> {
    if let Some(values) = view.ints(name)? {
        return Ok(Some(values.to_vec()));
    }
    if view.has_input(i) {
        return view.constant_ints(i).map(Some);
    }
    Ok(None)
}
