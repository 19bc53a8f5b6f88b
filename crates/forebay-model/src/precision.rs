//! Which kernels compute in 16-bit floating-point types, and what is computed in float32 instead.

use forebay_base::Kernel;

use crate::graph::TensorType;

/// Returns the same type, with float32 in place of 16-bit floating-point types.
pub(crate) fn widened(ty: &TensorType) -> TensorType {
    TensorType::new(ty.data_type.computed_in(), &ty.shape)
}

/// Whether a kernel accepts operands of 16-bit floating-point types.
pub(crate) fn takes_16_bit(kernel: &Kernel) -> bool {
    kernel.facts().types.include_sixteen_bit()
}
