//! Functions that products and convolutions apply to a task's results while they are in the cache.

use forebay_base::kernel::{Activation, UnaryOp};
use forebay_base::{DataType, TensorDesc};

use super::elementwise;

/// The function of an activation that the host can apply to a result with this descriptor, or `None` if the activation only has limits.
///
/// # Errors
/// Returns an error for a function that is not defined for float32, or for a result of another type.
pub(super) fn function(activation: Activation, y: &TensorDesc) -> Result<Option<UnaryOp>, String> {
    let Some(function) = activation.function() else { return Ok(None) };
    if y.data_type() != DataType::Float32 {
        return Err(format!("{function:?} supports only sums of float32, not {y}"));
    }
    elementwise::function::<f32>(function).map(|_| Some(function))
}

/// Applies a function to rows of `len` elements, which are arranged in three dimensions with these sizes and strides in elements.
///
/// # Safety
/// The elements must be readable and writable and belong to no one else; the function comes from [`function`].
pub(super) unsafe fn apply_to(function: UnaryOp, first: *mut f32, outer: [(usize, usize); 3], len: usize) {
    let function = elementwise::function(function).expect("defined for float32");
    let (mut outer, mut len) = (outer, len);
    // Rows that are contiguous count as one.
    for dimension in (0..outer.len()).rev() {
        let (size, stride) = outer[dimension];
        if size != 1 && stride != len {
            break;
        }
        len *= size;
        outer[dimension] = (1, 0);
    }
    let [channels, planes, rows] = outer;
    for channel in 0..channels.0 {
        for plane in 0..planes.0 {
            for row in 0..rows.0 {
                // SAFETY: the caller's promises.
                let values = unsafe {
                    let start = first.add(channel * channels.1 + plane * planes.1 + row * rows.1);
                    std::slice::from_raw_parts_mut(start, len)
                };
                elementwise::apply(&function, values);
            }
        }
    }
}
