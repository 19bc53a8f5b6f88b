//! Which kernels compute in 16-bit floating types, and what is computed in float32 instead.

use forebay_base::Kernel;

use crate::graph::TensorType;

/// The same type, but float32 for a 16-bit floating one.
pub(crate) fn widened(ty: &TensorType) -> TensorType {
    TensorType::new(ty.data_type.computed_in(), &ty.shape)
}

/// Whether a kernel takes operands of 16-bit floating types.
pub(crate) fn takes_16_bit(kernel: &Kernel) -> bool {
    kernel.facts().types.include_sixteen_bit()
}
