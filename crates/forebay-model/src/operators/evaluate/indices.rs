//! Updates by index, orders, and running sums, on the host.

use forebay_base::Tensor;
use forebay_base::kernel::{BinaryOp, ScanOp, ScatterOp};

use super::super::element_keys::keys;
use super::{Elements, arithmetic};
use crate::graph::TensorType;

/// Rows with updates; none where an index is out of range.
pub(super) fn scatter(
    op: ScatterOp,
    data: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    output: &TensorType,
) -> Option<Tensor> {
    let size = *data.shape().first()? as i64;
    let inner = data.shape()[1..].iter().product::<u64>() as usize;
    let row = |index: i64| {
        let row = if index < 0 { index.checked_add(size)? } else { index };
        (0..size).contains(&row).then_some(row as usize)
    };
    let rows = indices.to_i64()?.into_iter().map(row).collect::<Option<Vec<usize>>>()?;
    if op == ScatterOp::Replace {
        let length = inner * data.data_type().size_bytes() as usize;
        let mut bytes = data.bytes().to_vec();
        for (place, row) in rows.into_iter().enumerate() {
            let update = updates.bytes().get(place * length..(place + 1) * length)?;
            bytes[row * length..(row + 1) * length].copy_from_slice(update);
        }
        return Tensor::new(output.data_type, &output.shape, bytes);
    }
    let places =
        || rows.iter().enumerate().flat_map(|(i, row)| (0..inner).map(move |at| (i * inner + at, row * inner + at)));
    let elements = match (Elements::read(data)?, Elements::read(updates)?) {
        (Elements::Integers(mut y), Elements::Integers(updates)) => {
            for (update, at) in places() {
                let update = *updates.get(update)?;
                y[at] = match op {
                    ScatterOp::Replace => update,
                    ScatterOp::Add => y[at].wrapping_add(update),
                    ScatterOp::Multiply => y[at].wrapping_mul(update),
                    ScatterOp::Minimum => y[at].min(update),
                    ScatterOp::Maximum => y[at].max(update),
                };
            }
            Elements::Integers(y)
        }
        (Elements::Floats(mut y), Elements::Floats(updates)) => {
            // Sums and products of several updates would be rounded at other places than a device rounds them.
            let op = match op {
                ScatterOp::Minimum => BinaryOp::Minimum,
                ScatterOp::Maximum => BinaryOp::Maximum,
                ScatterOp::Replace | ScatterOp::Add | ScatterOp::Multiply => return None,
            };
            for (update, at) in places() {
                y[at] = arithmetic(op, y[at], *updates.get(update)?)?;
            }
            Elements::Floats(y)
        }
        _ => return None,
    };
    elements.write(output)
}

/// Sizes before an axis, along it and behind it.
fn split(shape: &[u64], axis: usize) -> [usize; 3] {
    let product = |sizes: &[u64]| sizes.iter().product::<u64>() as usize;
    [product(&shape[..axis]), shape[axis] as usize, product(&shape[axis + 1..])]
}

/// Where the first elements in an order are.
pub(super) fn top_k(
    axis: usize,
    [largest, nan_first, last]: [bool; 3],
    x: &Tensor,
    output: &TensorType,
) -> Option<Tensor> {
    let [outer, size, inner] = split(x.shape(), axis);
    let (k, keys) = (output.shape[axis] as usize, keys(x));
    let mut values = vec![0; outer * k * inner];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let key = |at: usize| {
            let key = keys[(o * size + at) * inner + i];
            let number = if last { size - 1 - at } else { at };
            match x.data_type().is_float() && key == u64::MAX {
                // NaN stands before or behind all numbers, which stand in the middle.
                true => (if nan_first { 0 } else { 2 }, 0, number),
                false => (1, if largest { !key } else { key }, number),
            }
        };
        let mut order: Vec<usize> = (0..size).collect();
        order.sort_unstable_by_key(|&at| key(at));
        for (place, &at) in order.iter().take(k).enumerate() {
            values[(o * k + place) * inner + i] = at as i64;
        }
    }
    Some(Tensor::from_i64(&output.shape, &values))
}

/// Running sums or products of integers: those of real numbers would be rounded at other places than a device rounds them.
pub(super) fn scan(
    (axis, op): (usize, ScanOp),
    (exclusive, reverse): (bool, bool),
    x: &Tensor,
    output: &TensorType,
) -> Option<Tensor> {
    let Elements::Integers(x_elements) = Elements::read(x)? else { return None };
    let [outer, size, inner] = split(x.shape(), axis);
    let mut y = vec![0; x_elements.len()];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let mut state = i64::from(op == ScanOp::Product);
        for step in 0..size {
            let at = (o * size + if reverse { size - 1 - step } else { step }) * inner + i;
            let next = match op {
                ScanOp::Sum => state.wrapping_add(x_elements[at]),
                ScanOp::Product => state.wrapping_mul(x_elements[at]),
                ScanOp::Recurrence => return None,
            };
            y[at] = if exclusive { state } else { next };
            state = next;
        }
    }
    Elements::Integers(y).write(output)
}
