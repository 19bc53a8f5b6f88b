//! Turning columns of sliding windows back into images.

use forebay_base::{DataType, Kernel};

use super::convolution::per_dimension;
use super::decomposition::{Composer, Decomposition, composed};
use super::shapes::{packed_strides, product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("Col2Im", columns_to_image)];

/// Largest number of elements in the windows of one channel. Each element has an index.
const INDICES_MAX: u64 = 1 << 26;

/// Adds each element of a window at its position in the image: the transpose of a gather, with constant indices.
fn columns_to_image(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let sizes = |i: usize| -> Result<Vec<u64>, ModelError> {
        view.constant_ints(i)?.into_iter().map(|value| size(&view, "a size", value)).collect()
    };
    let (image, block) = (sizes(1)?, sizes(2)?);
    let d = image.len();
    let refuse = || view.error(format!("columns {} of blocks {block:?} do not form an image {image:?}", x.ty));
    let taps = product(&view, &block)?;
    let &[n, rows, count] = x.ty.shape.as_slice() else { return Err(refuse()) };
    if block.len() != d || taps == 0 || rows % taps != 0 || image.contains(&0) {
        return Err(refuse());
    }
    let strides = per_dimension(&view, "strides", d, 1, 1)?;
    let dilations = per_dimension(&view, "dilations", d, 1, 1)?;
    let pads = per_dimension(&view, "pads", 2 * d, 0, 0)?;
    let (mut padded, mut windows) = (Vec::with_capacity(d), Vec::with_capacity(d));
    for i in 0..d {
        let sum = image[i].checked_add(pads[i]).and_then(|sum| sum.checked_add(pads[d + i])).ok_or_else(refuse)?;
        let reach = (block[i] - 1).checked_mul(dilations[i]).and_then(|reach| reach.checked_add(1));
        let free = reach.and_then(|reach| sum.checked_sub(reach)).ok_or_else(refuse)?;
        padded.push(sum);
        windows.push(free / strides[i] + 1);
    }
    let indices = product(&view, &[taps, count])?;
    if product(&view, &windows)? != count || indices > INDICES_MAX {
        return Err(refuse());
    }
    let places = packed_strides(&padded);
    let (window_strides, block_strides) = (packed_strides(&windows), packed_strides(&block));
    let mut targets = Vec::with_capacity(indices as usize);
    for tap in 0..taps {
        for window in 0..count {
            let place = |i: usize| {
                let (row, offset) = (window / window_strides[i] % windows[i], tap / block_strides[i] % block[i]);
                row * strides[i] + offset * dilations[i]
            };
            targets.push((0..d).map(|i| place(i) * places[i]).sum::<u64>() as i64);
        }
    }
    let targets = c.integers(DataType::Int64, &[indices], &targets)?;
    let images = product(&view, &[n, rows / taps])?;
    let columns = c.reshape(&x, &[images, indices])?;
    let ty = TensorType::new(x.ty.data_type, &[images, product(&view, &padded)?]);
    let y = c.kernel(Kernel::GatherGradient { axis: 1 }, &[&columns, &targets], ty);
    let mut y = c.reshape(&y, &[&[n, rows / taps], padded.as_slice()].concat())?;
    if padded != image {
        let starts = [&[0, 0], &pads[..d]].concat();
        let ty = TensorType::new(x.ty.data_type, &[&[n, rows / taps], image.as_slice()].concat());
        y = c.kernel(Kernel::Slice { starts, steps: vec![1; d + 2] }, &[&y], ty);
    }
    c.finish(y)
}
